"""`fedskew-site check --online`: what is wrong with the way to the coordinator, seen on sockets of loopback."""

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatResponse

from site_agent.check import Row, online
from site_agent.config import Link
from site_agent.keys import make_key
from tests.site_agent.conftest import FedSkewSite
from tests.site_files import Pair, certified, site_entries, site_folders, write


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


class Gateway(ThreadingHTTPServer):
    """Answers as the gateway does: 404 with a date to who looks, a status to who signs in."""

    daemon_threads = True
    ahead, status = 0.0, 200

    def __init__(self, server: Pair | None = None) -> None:
        """`server` has the certificate and its key; None is plain HTTP."""
        super().__init__(("127.0.0.1", 0), Handler)
        if server:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*server)
            self.socket = context.wrap_socket(self.socket, server_side=True)
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"

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
        self.answer(self.server.status, SendNodeHeartbeatResponse().SerializeToString())

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *words: object) -> None:
        pass


Listen = Callable[..., Gateway]


@pytest.fixture
def listen() -> Iterator[Listen]:
    """Listen on loopback with a certificate, or without TLS."""
    gateways: list[Gateway] = []

    def start(server: Pair | None = None) -> Gateway:
        gateways.append(Gateway(server))
        return gateways[-1]

    yield start
    for gateway in gateways:
        gateway.shutdown()
        gateway.server_close()


def looked(address: str, ca: Path, folder: Path) -> dict[str, Row]:
    """Return what the site says of a gateway, by subject."""
    if not (folder / "node.key").exists():
        make_key(folder / "node.key")
    return {
        row.subject: row
        for row in online(Link.model_construct(address=address, key=folder / "node.key", ca=ca))
    }


def test_check_verifies_as_the_supernode_does_and_no_more_strictly(
    tmp_path: Path, listen: Listen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A federation of an older FedSkew has certificates that Python 3.13 refuses by default."""
    ((authority, _), server), ((other, _), _) = (
        certified(tmp_path / name, "127.0.0.1") for name in ("one", "two")
    )

    def strict(**settings: Any) -> ssl.SSLContext:
        raise ssl.SSLCertVerificationError("the default context is strict")

    monkeypatch.setattr(ssl, "create_default_context", strict)
    address = listen(server).address
    assert looked(address, authority, tmp_path)["tls"].holds
    assert not looked(address, other, tmp_path)["tls"].holds


def test_a_way_that_is_open_holds(tmp_path: Path, listen: Listen) -> None:
    (ca, _), server = certified(tmp_path / "here")
    rows = looked(listen(server).address, ca, tmp_path)
    assert list(rows) == ["proxy", "tls", "clock", "key known"]
    assert all(row.holds for row in rows.values()), rows


@pytest.mark.parametrize(
    ("ahead", "holds"), [(-4.0, True), (-8.0, False), (290.0, True), (310.0, False)]
)
def test_a_clock_that_is_off_comes_before_the_key(
    tmp_path: Path, listen: Listen, ahead: float, holds: bool
) -> None:
    """The coordinator refuses every signature by such a clock: to send it the key again would not help."""
    (ca, _), server = certified(tmp_path / "here")
    gateway = listen(server)
    gateway.ahead, gateway.status = ahead, 403
    rows = looked(gateway.address, ca, tmp_path)
    assert rows["clock"].holds == holds
    if holds:
        assert "send the lines" in rows["key known"].text
    else:
        assert "key known" not in rows


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("another authority", "link.ca"),
        ("plain HTTP", "plain HTTP"),
        ("nobody listens", "nobody listens"),
    ],
)
def test_what_is_wrong_with_the_way_is_said(
    tmp_path: Path, listen: Listen, fault: str, said: str
) -> None:
    (ca, _), server = certified(tmp_path / "here")
    address = listen(None if fault == "plain HTTP" else server).address
    if fault == "another authority":
        (ca, _), _ = certified(tmp_path / "there")
    with socket.socket() as held:  # bound, and not listening
        held.bind(("127.0.0.1", 0))
        if fault == "nobody listens":
            address = f"127.0.0.1:{held.getsockname()[1]}"
        rows = looked(address, ca, tmp_path)
    assert not rows["tls"].holds and said in rows["tls"].text and "clock" not in rows


@pytest.mark.parametrize(("status", "known"), [(401, "yes"), (403, "no: "), (503, "not asked")])
def test_a_key_that_is_refused_is_said_by_check_and_one_that_was_revoked_by_status(
    tmp_path: Path, listen: Listen, fedskew_site: FedSkewSite, status: int, known: str
) -> None:
    """The gateway knows no revoked key, and answers 403; a SuperLink that is asked of no node answers 401."""
    (ca, _), server = certified(tmp_path / "here")
    gateway = listen(server)
    gateway.status = status
    row = looked(gateway.address, ca, tmp_path)["key known"]
    assert row.holds == (status == 401) and ("send the lines" in row.text) == (status == 403)
    site_file = site_folders(tmp_path / "sites") / "north/site.toml"
    link = {"address": gateway.address, "key": str(tmp_path / "node.key"), "ca": str(ca)}
    write(site_file, site_entries(link=link))
    mark = "ok " if known == "yes" else "NO "
    assert f"{mark} key known    {known}" in fedskew_site("status", "--site", site_file)[1]
