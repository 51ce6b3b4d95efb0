"""Gates that are not this federation's: whether a site talks to one, the real SuperNode among what a site runs."""

import http.client
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from attacks.at_the_gate import ROGUE
from attacks.stage import AT_WORK, Attack, ControlFailed, Refusal, Stage, Succeeded, Untried
from fedskew.engines.processes import free_port
from fedskew.federation.certificates import write_authority, write_server
from site_agent.config import read_link, read_site
from site_agent.online import online
from site_agent.preflight import Row
from site_agent.supernode_watch import command_of, environment

Pair = tuple[Path, Path]
"""Files of a certificate and its key."""
SERVES = "127.0.0.2"
"""Address of the gateway that the sites look for. Every certificate of `federation renew` is good for 127.0.0.1."""
ANSWER = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
SUPERNODE = 90.0
"""Seconds that a SuperNode has to start and to connect."""


class Impostor:
    """Listens on loopback as a gateway would; keeps of each connection what the other side sent, or why it sent
    nothing.

    Without a certificate it speaks plain HTTP.
    """

    def __init__(self, certificate: Pair | None) -> None:
        self.context: ssl.SSLContext | None = None
        if certificate:
            self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.context.load_cert_chain(*certificate)
        self.listener = socket.create_server((SERVES, 0))
        self.port = int(self.listener.getsockname()[1])
        self.seen: list[Refusal] = []
        self.some = threading.Event()
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self) -> None:
        """Answer connections until the listener is closed."""
        while True:
            try:
                connection = self.listener.accept()[0]
            except OSError:
                return
            connection.settimeout(10)
            if seen := self.heard(connection):
                self.seen.append(seen)
                self.some.set()

    def heard(self, connection: socket.socket) -> Refusal | None:
        """Return what came over a connection; nothing of one that was opened and closed."""
        with connection:
            try:
                if self.context:
                    connection = self.context.wrap_socket(connection, server_side=True)
                first = connection.recv(4096)
                connection.sendall(ANSWER)
            except ssl.SSLError as error:
                return Refusal(f"TLS alert {error.reason}", str(error))
            except OSError:
                return None
            finally:
                connection.close()
        if not first:
            return None
        if first.startswith(b"\x16\x03"):
            return Refusal("ClientHello", "a TLS handshake, in answer to which plain HTTP came")
        line, _, rest = first.partition(b"\r\n")
        signed = " with the node's signature" if b"flwr-signature" in rest.lower() else ""
        return Refusal("a request", f"{line.decode(errors='replace')}{signed}")

    def close(self) -> None:
        """Listen no longer."""
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join(10)


Certify = Callable[[Stage, Path], Pair | None]


def right(stage: Stage, folder: Path) -> Pair:
    """Write a certificate of this federation's own authority for the gateway's name."""
    return certificate(folder, stage.folder.authority, SERVES)


def other_authority(stage: Stage, folder: Path) -> Pair:
    """Write one of another authority, of the same name as this federation's, for the gateway's name."""
    return certificate(folder, made_authority(folder, stage.folder.agreement.name), SERVES)


def self_signed(stage: Stage, folder: Path) -> Pair:
    """Write one for the gateway's name with a key of its own, of an authority that nobody has heard of."""
    return certificate(folder, made_authority(folder, "elsewhere"), SERVES)


def other_host(stage: Stage, folder: Path) -> Pair:
    """Write one of this federation's authority for another machine, as a site's neighbour may have."""
    return certificate(folder, stage.folder.authority, "elsewhere.example")


def nothing(stage: Stage, folder: Path) -> None:
    """Write none: plain HTTP."""


def made_authority(folder: Path, name: str) -> Pair:
    authority = folder / "ca.crt", folder / "ca.key"
    write_authority(name, *authority)
    return authority


def certificate(folder: Path, authority: Pair, host: str) -> Pair:
    server = folder / "server.crt", folder / "server.key"
    write_server("try", [host], authority, *server)
    return server


@contextmanager
def impostor(stage: Stage, certify: Certify) -> Iterator[Impostor]:
    """Listen with a certificate that `certify` writes."""
    with TemporaryDirectory() as folder:
        listening = Impostor(certify(stage, Path(folder)))
        try:
            yield listening
        finally:
            listening.close()


def looked_at(stage: Stage, address: str) -> Row:
    """Return what `fedskew-site check --online` of the rogue's site says of a gateway's certificate."""
    file = stage.place(ROGUE) / "site.toml"
    link = replace(read_link(file), address=address)
    rows = online(read_site(file), link)
    try:
        return next(row for row in rows if row.subject == "tls")
    except http.client.HTTPException as error:
        raise Untried(f"the impostor answers wrongly: {error}") from None


def check_passes(stage: Stage) -> str:
    """Let the site look at its own gateway, and at the listener of these attacks with a right certificate."""
    lines = []
    with impostor(stage, right) as listening:
        for address in (stage.address, f"{SERVES}:{listening.port}"):
            row = looked_at(stage, address)
            if not row.holds:
                raise ControlFailed(f"fedskew-site check --online: {row}")
            lines.append(str(row))
    return "\n".join(lines)


def check_refuses(certify: Certify) -> Callable[[Stage], list[Refusal]]:
    """Return an attack on `fedskew-site check --online` by an impostor."""

    def attempt(stage: Stage) -> list[Refusal]:
        with impostor(stage, certify) as listening:
            row = looked_at(stage, f"{SERVES}:{listening.port}")
        if row.holds:
            raise Succeeded(str(row))
        return [Refusal(f"NO {row.subject}", row.text)]

    return attempt


def first_word(stage: Stage, certify: Certify) -> Refusal:
    """Start the real SuperNode of the rogue's site towards an impostor; return the first that it says to it."""
    link = read_link(stage.place(ROGUE) / "site.toml")
    assert link.key and link.ca
    with impostor(stage, certify) as listening, TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "secret").write_text("0" * 64)
        words = command_of(
            f"{SERVES}:{listening.port}",
            link.key,
            link.ca,
            free_port(),
            home / "secret",
        )
        with (home / "supernode.log").open("wb") as log:
            straight = environment(home)
            straight |= {name: f"{straight[name]},{SERVES}" for name in ("NO_PROXY", "no_proxy")}
            supernode = subprocess.Popen(words, env=straight, stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + SUPERNODE
            while not listening.some.wait(0.5):
                if supernode.poll() is not None or time.monotonic() > deadline:
                    said = (home / "supernode.log").read_text(errors="replace")[-300:]
                    raise Untried(f"the SuperNode does not connect: {said}")
            # A second connection would show a SuperNode that gives in.
            time.sleep(3)
            requests = [seen for seen in listening.seen if seen.kind == "a request"]
            return (requests or listening.seen)[0]
        finally:
            supernode.kill()
            supernode.wait()


def supernode_talks(stage: Stage) -> str:
    """Let the SuperNode meet the same listener with a right certificate, to which it talks."""
    said = first_word(stage, right)
    if said.kind != "a request" or "activate-node" not in said.line:
        raise ControlFailed(f"to a right certificate the SuperNode says: {said.kind}: {said.line}")
    return f"to a right certificate: {said.line}"


def supernode_refuses(certify: Certify) -> Callable[[Stage], list[Refusal]]:
    """Return an attack on the real SuperNode by an impostor."""

    def attempt(stage: Stage) -> list[Refusal]:
        said = first_word(stage, certify)
        if said.kind == "a request":
            raise Succeeded(f"the SuperNode says: {said.line}")
        return [said]

    return attempt


NETWORK = "the network"
ATTACKS = [
    Attack("a gateway with a certificate of another authority of the same name", NETWORK, AT_WORK, check_passes,
           check_refuses(other_authority),
           (Refusal("NO tls", "the certificate is of another authority than link.ca"),)),
    Attack("a gateway with the certificate of another machine of the federation", NETWORK, AT_WORK, check_passes,
           check_refuses(other_host), (Refusal("NO tls", "the certificate does not hold"),)),
    Attack("a gateway without TLS", NETWORK, AT_WORK, check_passes, check_refuses(nothing),
           (Refusal("NO tls", "answers, but not with TLS"),)),
    Attack("the real SuperNode before a gateway of another authority", NETWORK, AT_WORK, supernode_talks,
           supernode_refuses(self_signed), (Refusal("TLS alert TLSV1_ALERT_UNKNOWN_CA", ""),)),
    Attack("the real SuperNode before a gateway with another key under the authority's and the gateway's names",
           NETWORK, AT_WORK, supernode_talks, supernode_refuses(other_authority),
           (Refusal("TLS alert TLSV1_ALERT_DECRYPT_ERROR", ""),)),
    Attack("the real SuperNode before a gateway with the certificate of another machine", NETWORK, AT_WORK,
           supernode_talks, supernode_refuses(other_host), (Refusal("TLS alert SSLV3_ALERT_BAD_CERTIFICATE", ""),)),
    Attack("the real SuperNode before a gateway without TLS", NETWORK, AT_WORK, supernode_talks,
           supernode_refuses(nothing), (Refusal("ClientHello", ""),)),
]  # fmt: skip
