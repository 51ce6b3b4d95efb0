"""`fedskew-site check --online`: what is wrong with the way to the coordinator, seen on sockets of loopback."""

import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.proto.fleet_pb2 import ActivateNodeResponse

from fedskew.federation import certificates
from fedskew.federation.certificates import write_authority, write_server
from site_agent.cli import main
from site_agent.config import Link
from site_agent.keys import make_key
from site_agent.online import online
from site_agent.preflight import Row
from tests.site_files import site_entries, site_folders, write

Pair = tuple[Path, Path]
SITE: Any = SimpleNamespace(name="north")


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


class Gateway(ThreadingHTTPServer):
    """Answers as the gateway does: 404 with a date to who looks, a status to who signs in."""

    daemon_threads = True
    ahead, status = 0.0, 200

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A handshake that fails is the other side's to tell."""


class Handler(BaseHTTPRequestHandler):
    server: Gateway

    def date_time_string(self, timestamp: float | None = None) -> str:
        return format_datetime(
            datetime.now(UTC) + timedelta(seconds=self.server.ahead), usegmt=True
        )

    def do_GET(self) -> None:
        self.answer(404, b"")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.answer(self.server.status, ActivateNodeResponse(node_id=7).SerializeToString())

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *words: object) -> None:
        pass


Listen = Callable[[Pair | None], Gateway]


@pytest.fixture
def listen() -> Iterator[Listen]:
    """Listen on loopback with a certificate, or without TLS."""
    gateways: list[Gateway] = []

    def start(server: Pair | None) -> Gateway:
        gateway = Gateway(("127.0.0.1", 0), Handler)
        if server:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*server)
            gateway.socket = context.wrap_socket(gateway.socket, server_side=True)
        threading.Thread(target=gateway.serve_forever, args=(0.01,), daemon=True).start()
        gateways.append(gateway)
        return gateway

    yield start
    for gateway in gateways:
        gateway.shutdown()
        gateway.server_close()


def certified(folder: Path, *hosts: str) -> tuple[Path, Pair]:
    """Make an authority and a server's certificate; return ca.crt, and the server's two files."""
    folder.mkdir()
    authority, server = (
        (folder / "ca.crt", folder / "ca.key"),
        (folder / "server.crt", folder / "server.key"),
    )
    write_authority("four hospitals", *authority)
    write_server("four hospitals", hosts, authority, *server)
    return authority[0], server


def looked(gateway: Gateway, ca: Path, folder: Path) -> dict[str, Row]:
    """Return what the site says of a gateway, by subject."""
    if not (folder / "node.key").exists():
        make_key(folder / "node.key")
    link = Link(f"127.0.0.1:{gateway.server_address[1]}", folder / "node.key", ca)
    return {row.subject: row for row in online(SITE, link)}


def test_a_way_that_is_open_holds(tmp_path: Path, listen: Listen) -> None:
    ca, server = certified(tmp_path / "here")
    rows = looked(listen(server), ca, tmp_path)
    assert list(rows) == ["proxy", "tls", "clock", "key known"] and all(
        row.holds for row in rows.values()
    ), rows
    assert "396 days" in rows["tls"].text and rows["key known"].text == "as north"


@pytest.mark.parametrize(
    ("days", "sentence"),
    [
        (
            -500,
            "set the clock where that is wrong, else the coordinator must renew the certificate",
        ),
        (2, "is not yet valid; look at this machine's clock first"),
    ],
)
def test_a_certificate_out_of_its_dates(
    tmp_path: Path, listen: Listen, monkeypatch: pytest.MonkeyPatch, days: int, sentence: str
) -> None:
    class Then(datetime):
        @classmethod
        def now(cls, tz: object = None) -> "Then":  # type: ignore[override]
            return datetime.now(UTC) + timedelta(days=days)  # type: ignore[return-value]

    ca, server = certified(tmp_path / "here")
    with monkeypatch.context() as patch:
        patch.setattr(certificates, "datetime", Then)
        write_server("four hospitals", [], (ca, ca.with_suffix(".key")), *server)
    rows = looked(listen(server), ca, tmp_path)
    assert not rows["tls"].holds and sentence in rows["tls"].text and "clock" not in rows


def test_a_certificate_without_the_name(
    tmp_path: Path, listen: Listen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates, "LOCAL", ())
    ca, server = certified(tmp_path / "here", "gateway.example.org")
    row = looked(listen(server), ca, tmp_path)["tls"]
    assert not row.holds and "link.address must be a name that is in it" in row.text


def test_the_authority_of_another_federation(tmp_path: Path, listen: Listen) -> None:
    (_, server), (other, _) = certified(tmp_path / "here"), certified(tmp_path / "there")
    row = looked(listen(server), other, tmp_path)["tls"]
    assert not row.holds and "of another authority than link.ca; ask the coordinator" in row.text


def test_plain_http(tmp_path: Path, listen: Listen) -> None:
    ca, _ = certified(tmp_path / "here")
    row = looked(listen(None), ca, tmp_path)["tls"]
    assert (
        not row.holds and "not with TLS (plain HTTP?); a SuperNode would retry for ever" in row.text
    )


def test_nobody_listens(tmp_path: Path) -> None:
    ca, _ = certified(tmp_path / "here")
    make_key(tmp_path / "node.key")
    with socket.socket() as held:  # bound, and not listening
        held.bind(("127.0.0.1", 0))
        link = Link(f"127.0.0.1:{held.getsockname()[1]}", tmp_path / "node.key", ca)
        *_, row = online(SITE, link)
    assert row.subject == "tls" and not row.holds and "nobody listens there" in row.text


@pytest.mark.parametrize("address", ["gateway.example.org", "gateway:https", ":8443"])
def test_an_address_that_is_none(tmp_path: Path, address: str) -> None:
    (row,) = online(SITE, Link(address, tmp_path, tmp_path))
    assert not row.holds and "must be HOST:PORT" in row.text


@pytest.mark.parametrize(
    ("ahead", "holds"), [(-4.0, True), (-8.0, False), (290.0, True), (310.0, False)]
)  # of the coordinator's clock; a header tells whole seconds
def test_a_clock_that_is_off(tmp_path: Path, listen: Listen, ahead: float, holds: bool) -> None:
    ca, server = certified(tmp_path / "here")
    gateway = listen(server)
    gateway.ahead = ahead
    row = looked(gateway, ca, tmp_path)["clock"]
    assert row.holds == holds and ("let a time service set" in row.text) != holds, row


@pytest.mark.parametrize(("ahead", "asks"), [(-8.0, False), (310.0, False), (0.0, True)])
def test_a_clock_that_is_off_has_one_cure(
    tmp_path: Path, listen: Listen, ahead: float, asks: bool
) -> None:
    """The coordinator refuses every signature by such a clock: to send it the key again would not help."""
    ca, server = certified(tmp_path / "here")
    gateway = listen(server)
    gateway.ahead, gateway.status = ahead, 403
    rows = looked(gateway, ca, tmp_path)
    assert not rows["key known"].holds
    assert ("send the lines" in rows["key known"].text) == asks
    assert ("not asked: the clock comes first" in rows["key known"].text) != asks


@pytest.mark.parametrize(
    ("status", "sentence"),
    [
        (401, "send the lines of `fedskew-site key` to the coordinator"),
        (403, "send the lines of `fedskew-site key` to the coordinator"),
        (503, "the SuperLink behind the gateway does not answer"),
        (409, "not registered, or this site's SuperNode is at work"),
    ],
)
def test_a_key_that_is_refused(tmp_path: Path, listen: Listen, status: int, sentence: str) -> None:
    ca, server = certified(tmp_path / "here")
    gateway = listen(server)
    gateway.status = status
    row = looked(gateway, ca, tmp_path)["key known"]
    assert not row.holds and sentence in row.text and str(status) in row.text


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (403, "key known  no: the coordinator refuses this site's key (403). It was revoked"),
        (401, "key known  yes\n"),
        (503, "key known  not asked: the coordinator's gateway has no answer (503)"),
        (None, "key known  not asked: no coordinator answers"),
    ],
)
def test_a_site_whose_key_was_revoked_says_so_in_its_status(
    tmp_path: Path,
    listen: Listen,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answer: int | None,
    sentence: str,
) -> None:
    """The gateway knows no revoked key, and answers 403; a SuperLink that is asked of no node answers 401."""
    ca, server = certified(tmp_path / "here")
    make_key(tmp_path / "node.key")
    port = 1
    if answer is not None:
        gateway = listen(server)
        gateway.status, port = answer, gateway.server_address[1]
    place = site_folders(tmp_path / "sites") / "north"
    link = {"address": f"127.0.0.1:{port}", "key": str(tmp_path / "node.key"), "ca": str(ca)}
    site_file = write(place / "site.toml", site_entries(link=link))
    monkeypatch.setattr(sys, "argv", ["fedskew-site", "status", "--site", str(site_file)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code and sentence in capsys.readouterr().out


@pytest.fixture
def proxy() -> Iterator[tuple[str, list[str]]]:
    """A proxy that knows CONNECT alone; yields its address, and the targets that it was asked for."""
    targets: list[str] = []

    def pump(source: socket.socket, target: socket.socket) -> None:
        try:
            while content := source.recv(65536):
                target.sendall(content)
        except OSError:
            pass
        for end in (source, target):
            end.close()

    def serve() -> None:
        while True:
            try:
                client = listener.accept()[0]
            except OSError:
                return
            asked = b""
            while b"\r\n\r\n" not in asked:
                asked += client.recv(4096)
            targets.append(asked.split()[1].decode())
            host, _, port = targets[-1].rpartition(":")
            there = socket.create_connection((host, int(port)))
            client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            for pair in ((client, there), (there, client)):
                threading.Thread(target=pump, args=pair, daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", targets
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(5)


def test_a_proxy_is_gone_through_and_named(
    tmp_path: Path, listen: Listen, proxy: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    ca, server = certified(tmp_path / "here")
    gateway = listen(server)
    monkeypatch.setenv("https_proxy", proxy[0])
    rows = looked(gateway, ca, tmp_path)
    assert all(row.holds for row in rows.values()), rows
    assert (
        rows["proxy"].text == f"{proxy[0]} for 127.0.0.1; loopback goes past it, as `start` sees to"
    )
    assert set(proxy[1]) == {f"127.0.0.1:{gateway.server_address[1]}"}


def test_no_proxy_is_gone_past(
    tmp_path: Path, listen: Listen, proxy: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    ca, server = certified(tmp_path / "here")
    monkeypatch.setenv("https_proxy", proxy[0])
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert (
        looked(listen(server), ca, tmp_path)["proxy"].text == "none for 127.0.0.1" and not proxy[1]
    )
