"""The gateway's limits: what is refused, beside what passes."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from test_gateway import (
    NORTH,
    RUN,
    SOUTH,
    STRANGER,
    UPLOAD,
    Client,
    federation_of_two,
    header,
    message_of,
)

from data import DataError
from fedskew.federation import connections as connections_module
from fedskew.federation import gateway as gateway_module
from fedskew.federation import intake, turns
from fedskew.federation.certificates import write_authority, write_server
from fedskew.federation.connections import Connection, Connections, InPieces, Listener, Server
from fedskew.federation.flower_internals import PullMessagesRequest
from fedskew.federation.folder import FederationFolder
from fedskew.federation.gateway import Gateway
from fedskew.federation.limits import LIMIT_KEYS, Allowances, Limits, address_of
from fedskew.federation.turns import NoTurn, Turns


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FederationFolder:
    return federation_of_two(tmp_path, monkeypatch)


@pytest.mark.parametrize("key", LIMIT_KEYS)
def test_every_limit_is_a_setting_of_at_least_one(folder: FederationFolder, key: str) -> None:
    file = folder.path / "coordinator.toml"
    text = file.read_text()
    assert folder.coordinator.limits == Limits()
    file.write_text(f"{text}{key} = 7\n")
    limits = FederationFolder(folder.path).coordinator.limits
    assert getattr(limits, key.replace("-", "_")) == 7
    for wrong in ("0", "-1", '"7"', "1.5"):
        file.write_text(f"{text}{key} = {wrong}\n")
        with pytest.raises(DataError) as refused:
            _ = FederationFolder(folder.path).coordinator
        assert refused.value.key == key


def test_an_address_has_no_more_connections_than_all(folder: FederationFolder) -> None:
    file = folder.path / "coordinator.toml"
    text = f"{file.read_text()}connections = 100\n"
    file.write_text(text)
    assert FederationFolder(folder.path).coordinator.limits.connections_per_address == 100
    file.write_text(f"{text}connections-per-address = 100\n")
    assert FederationFolder(folder.path).coordinator.limits.connections_per_address == 100
    file.write_text(f"{text}connections-per-address = 101\n")
    with pytest.raises(DataError, match="must be at most connections = 100"):
        _ = FederationFolder(folder.path).coordinator


def test_two_hundred_sites_behind_one_address_stay_within_the_defaults() -> None:
    """A SuperNode has at most ten connections: a question, a heartbeat and eight objects."""
    limits = Limits()
    assert 200 * 10 <= limits.connections_per_address < limits.connections
    assert limits.connections_per_site >= 2 * limits.requests_at_a_time


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9%eth0", "2001:db8:1:2::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("a name", "a name"),
    ],
)
def test_an_ipv6_network_counts_as_one_address(host: str, address: str) -> None:
    assert address_of(host) == address


def test_an_allowance_fills_up_again_and_a_debt_has_an_end() -> None:
    now = [0.0]
    allowance = Allowances(10.0, 20.0, debt=5.0, clock=lambda: now[0]).of("north")
    assert [allowance.take() for _ in range(20)] == [0.0] * 20
    assert allowance.take() == pytest.approx(0.1)
    assert allowance.take(1000.0) == pytest.approx(0.5)
    assert allowance.seconds_until() == pytest.approx(0.6)
    now[0] = 0.6
    assert allowance.seconds_until() == 0.0
    now[0] = 100.0
    assert allowance.refill() == 20.0


def test_whole_allowances_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedskew.federation.limits.REMEMBERED", 3)
    now = [0.0]
    allowances = Allowances(1.0, 5.0, debt=0.0, clock=lambda: now[0])
    allowances.of("used").take(5.0)
    for number in range(9):
        allowances.of(f"address-{number}")
    assert len(allowances.by_name) <= 3
    assert allowances.of("used").left == 0.0


class Opened:
    """A connection as `Connections` sees it."""

    def __init__(self, port: int, address: str) -> None:
        self.peer = address, port
        self.address = address
        self.site = ""
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True


def counted(**changes: int) -> tuple[Connections, list[tuple[str, str]]]:
    refused: list[tuple[str, str]] = []
    limits = replace(Limits(), **changes)
    return Connections(limits, lambda limit, who: refused.append((limit, who))), refused


def opened(connections: Connections, *addresses: str) -> list[Any]:
    begun: list[Any] = [Opened(port, address) for port, address in enumerate(addresses)]
    for connection in begun:
        assert connections.admit(connection)
    return begun


def test_at_an_addresss_limit_the_oldest_that_nobody_signed_makes_room() -> None:
    connections, refused = counted(connections_per_address=3)
    first, second, _ = opened(connections, "a", "a", "a")
    assert connections.signed(first.peer, "north")
    assert not refused
    late: Any = Opened(7, "a")
    assert connections.admit(late)
    assert refused == [("connections-per-address", "a")]
    assert (first.aborted, second.aborted, late.aborted) == (False, True, False)
    assert connections.by_address["a"] == 3
    assert connections.admit(Opened(8, "b")), "another address has connections of its own"  # type: ignore[arg-type]
    assert len(refused) == 1


def test_no_room_is_made_where_every_connection_is_a_site_s() -> None:
    connections, refused = counted(connections_per_address=2)
    for connection in opened(connections, "a", "a"):
        assert connections.signed(connection.peer, "north")
    late: Any = Opened(7, "a")
    assert not connections.admit(late)
    assert refused == [("connections-per-address", "a")]
    connections.release(connections.open["a", 0])
    assert connections.admit(late)


def test_in_all_the_address_with_most_strangers_makes_room() -> None:
    connections, refused = counted(connections=4, connections_per_address=4)
    one, flood, *_ = opened(connections, "a", "b", "b", "b")
    assert connections.admit(Opened(7, "c"))  # type: ignore[arg-type]
    assert refused == [("connections", "c")]
    assert flood.aborted and not one.aborted and len(connections.open) == 4


def test_a_site_has_so_many_connections() -> None:
    connections, refused = counted(connections_per_site=2)
    first, second, third = opened(connections, "a", "b", "c")
    assert connections.signed(first.peer, "north") and connections.signed(second.peer, "north")
    assert connections.signed(first.peer, "north"), "one counts once"
    assert not connections.signed(third.peer, "north")
    assert refused == [("connections-per-site", "north")]
    assert connections.signed(third.peer, "south"), "another site has its own"
    connections.release(first)
    connections.release(first)
    assert connections.by_site["north"] == 1 and ("a", 0) not in connections.open
    assert connections.signed(None, "north"), "in a test there is no connection"


def test_a_new_connection_from_the_same_port_takes_the_place_of_the_former() -> None:
    """Otherwise the former would be counted for ever, and an address would come to its limit."""
    connections, refused = counted(connections_per_address=2)
    former, again = Opened(7, "a"), Opened(7, "a")
    for connection in (former, again):
        assert connections.admit(connection)  # type: ignore[arg-type]
    assert former.aborted and not again.aborted and not refused
    assert connections.by_address["a"] == 1
    for connection in (former, again):
        connections.release(connection)  # type: ignore[arg-type]
    assert not connections.open and not connections.by_address and not connections.strangers


Exchange = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[bytes]]


async def hello(request: Request) -> Response:
    return InPieces(await request.body() or b"hello")


@contextlib.asynccontextmanager
async def served(
    tmp_path: Path, **changes: int
) -> AsyncIterator[tuple[int, ssl.SSLContext, Connections, list[str]]]:
    """Serve `hello` behind the gateway's connections; yield port, a client's context, and the limits that were met."""
    authority = tmp_path / "ca.crt", tmp_path / "ca.key"
    server = tmp_path / "server.crt", tmp_path / "server.key"
    write_authority("one", *authority)
    write_server("one", ["127.0.0.1"], authority, *server)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*server)
    met: list[str] = []
    limits = replace(Limits(), **changes)
    connections = Connections(limits, lambda limit, who: met.append(limit))
    routes = [Route("/{path:path}", hello, methods=["GET", "POST"])]
    config = uvicorn.Config(
        Starlette(routes=routes), "127.0.0.1", 0, ws="none", log_level="error", lifespan="off"
    )
    running = Server(config, connections, context)
    config.load()
    running.lifespan = config.lifespan_class(config)
    await running.startup()
    port = running.listener.sockets[0].getsockname()[1]
    try:
        yield port, ssl.create_default_context(cafile=str(authority[0])), connections, met
    finally:
        await running.shutdown()


async def answer(port: int, context: ssl.SSLContext, exchange: Exchange) -> bytes:
    """Return what an exchange over a connection of its own gives, b"" where it is cut."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        return await exchange(reader, writer)
    except (ConnectionError, asyncio.IncompleteReadError):
        return b""
    finally:
        writer.transport.abort()


async def send(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    await writer.drain()


async def whole(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    writer.write(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
    return await reader.read()


async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    writer.write(b"GET / HTTP/1.1\r\nhost: a\r\n")
    return await reader.read()


async def nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    return await reader.read()


async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    writer.write(b"GET / HTTP/1.1\r\nhost: a\r\n" + b"x: " + b"y" * connections_module.HEAD)
    return await reader.read()


async def large_body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    size = 3 * connections_module.HEAD
    head = f"POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {size}\r\n\r\n"
    writer.write(head.encode() + b"z" * size)
    return await reader.read()


@pytest.mark.parametrize(
    ("exchange", "status", "limit"),
    [
        (whole, b"200", []),
        (large_body, b"200", []),
        (half, b"408", ["header-seconds"]),
        (nothing, b"408", ["header-seconds"]),
        (endless, b"431", ["header-bytes"]),
    ],
)
def test_a_head_has_its_time_and_its_size(
    tmp_path: Path, exchange: Exchange, status: bytes, limit: list[str]
) -> None:
    async def run() -> bytes:
        async with served(tmp_path, header_seconds=1) as (port, context, connections, met):
            got = await answer(port, context, exchange)
            assert met == limit
            while connections.open:  # the connection is gone by now, or in a moment
                await asyncio.sleep(0.01)
        return got

    assert asyncio.run(run()).split()[1] == status


def test_a_handshake_has_its_time(tmp_path: Path) -> None:
    async def run() -> list[str]:
        async with served(tmp_path, header_seconds=1) as (port, _, connections, met):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)  # says nothing
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()
            while connections.open:
                await asyncio.sleep(0.01)
        return met

    assert asyncio.run(run()) == ["header-seconds"]


def test_a_connection_over_the_limit_is_reset_so_that_a_supernode_tries_again(
    tmp_path: Path,
) -> None:
    """flwr's client ends at an error that names SSL, and repeats what is reset."""

    async def run() -> None:
        async with served(tmp_path, connections_per_address=1) as (port, context, connections, met):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
            while not connections.open:
                await asyncio.sleep(0.01)
            assert connections.signed(next(iter(connections.open)), "north")
            with pytest.raises(ConnectionResetError):
                await asyncio.open_connection("127.0.0.1", port, ssl=context)
            assert met == ["connections-per-address"]
            assert b" 200 " in (await whole(reader, writer)).splitlines()[0]
            writer.close()
            while connections.open:
                await asyncio.sleep(0.01)
            assert b" 200 " in (await answer(port, context, whole)).splitlines()[0]

    asyncio.run(run())


def test_many_new_connections_of_an_address_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections_module, "BURST", 2)

    async def run() -> None:
        async with served(tmp_path, new_connections_per_second=1, header_seconds=1) as served_at:
            port, context, connections, met = served_at
            for _ in range(2):
                assert b" 200 " in (await answer(port, context, whole)).splitlines()[0]
            # Without a single one a second: who comes now waits in vain.
            allowance = connections.beginnings.of("127.0.0.1")
            allowance.left = allowance.rate = 0.001
            with pytest.raises(ConnectionResetError):
                await answer(port, context, whole)
            assert met == ["new-connections-per-second"] and not connections.open

    asyncio.run(run())


def test_a_connection_that_ends_before_its_handshake_has_begun_is_closed() -> None:
    """A task that is cancelled before its first step never runs, so that it cannot close anything."""
    connections, met = counted()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)

    def begin(listener: Listener, port: int) -> tuple[Connection, socket.socket]:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        connection = Connection(connections, ours, ("a", port))
        assert connections.admit(connection)
        listener.begin(connection)
        return connection, theirs

    async def run() -> None:
        listener = Listener(connections, context, asyncio.Protocol)
        begun, here = begin(listener, 1)
        ended, there = begin(listener, 2)
        ended.abort()
        await settle()
        assert ended.accepted.fileno() == -1 and there.recv(1) == b""
        assert begun.accepted.fileno() != -1 and list(connections.open) == [begun.peer]
        begun.abort()
        await settle()
        assert begun.accepted.fileno() == -1 and not connections.open and not met
        here.close()
        there.close()

    asyncio.run(run())


def test_other_work_goes_on_while_connections_are_queued(tmp_path: Path) -> None:
    async def run() -> int:
        async with served(tmp_path) as (port, _, connections, _):
            queued = [socket.create_connection(("127.0.0.1", port)) for _ in range(50)]
            turns = 0
            while len(connections.open) < len(queued):
                await asyncio.sleep(0)
                turns += 1
            for one in queued:
                one.close()
            return turns

    assert asyncio.run(run()) >= 50


def test_what_waits_for_its_handshake_is_closed_with_the_listener(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections_module, "BURST", 1)

    async def run() -> None:
        async with served(tmp_path, new_connections_per_second=1) as (port, _, connections, _):
            # The first begins its handshake, and the others wait for theirs.
            queued = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
            while len(connections.open) < len(queued):
                await asyncio.sleep(0.01)
        await settle()
        assert not connections.open
        for one in queued:
            one.settimeout(5)
            with contextlib.suppress(ConnectionResetError):
                assert one.recv(1) == b""
            one.close()

    asyncio.run(run())


def test_each_answer_has_its_own_time_also_where_requests_are_queued() -> None:
    connections, met = counted(body_seconds=60)

    async def run() -> None:
        ours, theirs = socket.socketpair()
        connection = Connection(connections, ours, ("a", 1))
        connection.http = Mock(cycle=Mock(response_complete=False))
        connection.transport = Mock()
        connection.pause_writing()
        first = connection.answer_deadline
        connection.pause_writing()
        assert first is not None and connection.answer_deadline is first
        # uvicorn begins with the next request at once, and its answer waits for room too.
        connection.http.cycle = Mock(response_complete=False)
        connection.answer_is_late()
        assert not met and not connection.transport.abort.called
        connection.pause_writing()
        assert first.cancelled() and connection.answer_deadline is not None
        connection.answer_is_late()
        assert met == [("body-seconds", "a")] and connection.transport.abort.called
        connection.drop_answer_deadline()
        ours.close()
        theirs.close()

    asyncio.run(run())


def test_an_answer_that_nobody_takes_ends(tmp_path: Path) -> None:
    size = 2**24

    async def run() -> None:
        async with served(tmp_path, body_seconds=1) as (port, context, connections, met):
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, limit=2**12)
            head = f"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {size}\r\n\r\n"
            await send(writer, head.encode() + bytes(size))
            while not connections.open:
                await asyncio.sleep(0.01)
            while connections.open:  # it takes nothing, and its buffers are full
                await asyncio.sleep(0.01)
            assert met == ["body-seconds"]
            writer.transport.abort()

    asyncio.run(run())


async def pieces(*waits: float) -> AsyncIterator[bytes]:
    for wait in waits:
        await asyncio.sleep(wait)
        yield b"x"


@pytest.fixture
def gateway(folder: FederationFolder) -> Gateway:
    made = Gateway(folder)
    made.client = httpx.AsyncClient(
        transport=httpx.MockTransport(lambda request: httpx.Response(200))
    )
    return made


def refused_by(gateway: Gateway, limit: str, site: str = "north") -> float:
    labels = {"site": site, "limit": limit}
    return gateway.traffic.registry.get_sample_value("fedskew_gate_refused_total", labels) or 0.0


def test_a_body_has_a_least_rate(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "GRACE", 0.2)
    gateway.limits = replace(Limits(), least_bytes_per_second=10)
    client = Client(gateway)

    def status(*waits: float) -> int:
        return client.post(UPLOAD, content=pieces(*waits), headers=header(NORTH)).status_code

    # Each byte gives it a tenth of a second more.
    assert status(*[0.0] * 20, 1.0) == 200
    assert refused_by(gateway, "least-bytes-per-second") == 0
    assert status(0.0, 60.0) == 408
    assert refused_by(gateway, "least-bytes-per-second") == 1


def test_a_body_has_its_seconds(gateway: Gateway) -> None:
    gateway.limits = replace(Limits(), body_seconds=1)
    client = Client(gateway)
    ending = client.post(UPLOAD, content=pieces(0.0, 60.0), headers=header(NORTH))
    assert ending.status_code == 408 and refused_by(gateway, "body-seconds") == 1
    passing = client.post(UPLOAD, content=pieces(0.0, 0.0), headers=header(NORTH))
    assert passing.status_code == 200


def test_a_site_at_its_limit_costs_no_look_at_a_signature(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(gateway)
    looks: list[bool] = []
    verify = gateway_module.verify_signature

    def counting(*arguments: Any) -> bool:
        looks.append(True)
        return verify(*arguments)

    monkeypatch.setattr(gateway_module, "verify_signature", counting)
    assert client.post(RUN, headers=header(NORTH)).status_code == 200 and len(looks) == 1
    gateway.intake.open["north"] = Limits().requests_at_a_time
    refused = client.post(RUN, headers=header(NORTH))
    assert (refused.status_code, refused.headers["retry-after"], len(looks)) == (429, "1", 1)
    assert refused_by(gateway, "requests-at-a-time") == 1
    assert client.post(RUN, headers=header(SOUTH)).status_code == 200


def test_a_site_with_too_many_connections_is_refused(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(gateway)
    assert client.post(RUN, headers=header(NORTH)).status_code == 200
    monkeypatch.setattr(gateway.connections, "signed", lambda peer, site: site != "north")
    assert client.post(RUN, headers=header(NORTH)).status_code == 429
    assert client.post(RUN, headers=header(SOUTH)).status_code == 200


def test_many_refusals_wait_and_what_is_passed_on_does_not(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(gateway)
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(gateway_module.asyncio, "sleep", sleep)
    monkeypatch.setattr(gateway_module, "REFUSALS_AT_ONCE", 3)
    gateway.refusals = Allowances(1.0, 3.0, debt=30.0)
    for _ in range(5):
        assert client.post(RUN, headers=header(NORTH, signer=STRANGER)).status_code == 403
    assert waits[:3] == [0.0] * 3 and waits[3] > 0.5 and waits[4] > waits[3]
    del waits[:]
    assert client.post(RUN, headers=header(NORTH)).status_code == 200 and not waits


def test_a_site_s_older_question_ends(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """A SuperNode has one question at a time; thirty of a site would look for messages thirty times a second."""
    monkeypatch.setattr(gateway_module, "PAUSE", 0.01)
    gateway.lost_messages.uncertain.clear()
    message = asyncio.Event()

    async def superlink(request: httpx.Request) -> httpx.Response:
        content = message_of("note").SerializeToString() if message.is_set() else b""
        return httpx.Response(200, content=content)

    question = PullMessagesRequest().SerializeToString()

    async def run() -> list[bytes]:
        gateway.client = httpx.AsyncClient(transport=httpx.MockTransport(superlink))
        transport = httpx.ASGITransport(gateway.application())
        async with httpx.AsyncClient(transport=transport, base_url="https://gateway") as client:

            def ask() -> asyncio.Task[httpx.Response]:
                asking = client.post(gateway_module.PULL, content=question, headers=header(NORTH))
                return asyncio.ensure_future(asking)

            older = ask()
            await asyncio.sleep(0.05)
            newer = ask()
            first = (await older).content
            assert not newer.done()
            message.set()
            return [first, (await newer).content]

    first, second = asyncio.run(run())
    assert first == b"" and second == message_of("note").SerializeToString()


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def take_turns(
    order: list[str], given: Turns, letting: dict[str, asyncio.Event]
) -> Callable[[str, str], Awaitable[None]]:
    async def request(site: str, name: str) -> None:
        async with given.turn(site):
            order.append(name)
            await letting[name].wait()

    return request


def test_sites_take_turns_at_the_superlink(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "AT_A_TIME", 1)

    async def run() -> list[str]:
        order: list[str] = []
        given = Turns(Limits(), Clock())
        names = [("north", f"north-{number}") for number in range(3)] + [("south", "south-0")]
        letting = {name: asyncio.Event() for _, name in names}
        request = take_turns(order, given, letting)
        going = [asyncio.ensure_future(request(site, name)) for site, name in names]
        await settle()
        for _ in range(4):
            letting[order[-1]].set()
            await settle()
        await asyncio.gather(*going)
        assert not given.waiting and not given.all_busy
        return order

    assert asyncio.run(run()) == ["north-0", "north-1", "south-0", "north-2"]


def test_a_site_beyond_its_requests_a_second_waits_while_another_is_served() -> None:
    limits = replace(Limits(), requests_per_second=1)

    async def run() -> None:
        order: list[str] = []
        clock = Clock()
        given = Turns(limits, clock)
        letting = {name: asyncio.Event() for name in ("late", "south", "again")}
        request = take_turns(order, given, letting)
        for _ in range(turns.BURST):
            async with given.turn("north"):
                pass
        going = [asyncio.ensure_future(request("south", "south"))]
        await settle()
        going.append(asyncio.ensure_future(request("north", "late")))
        await settle()
        assert order == ["south"], "the other site's request is with the SuperLink"
        letting["south"].set()
        await settle()
        assert order == ["south"], "the other site's exchange goes on in a moment"
        clock.now = turns.QUIET
        given.give()
        await settle()
        assert order == ["south", "late"], "nobody else asks"
        going.append(asyncio.ensure_future(request("north", "again")))
        await settle()
        assert order == ["south", "late"], "one at a time"
        clock.now = 1.0
        given.give()
        await settle()
        assert order == ["south", "late", "again"], "a second has passed"
        for event in letting.values():
            event.set()
        await asyncio.gather(*going)

    asyncio.run(run())


def test_large_bodies_count_as_many_requests() -> None:
    async def run() -> None:
        given = Turns(replace(Limits(), requests_per_second=1), Clock())
        async with given.turn("north", 3 * turns.UNIT):
            pass
        assert given.allowances.of("north").left == turns.BURST - 4
        assert given.allowances.of("south").left == turns.BURST

    asyncio.run(run())


def test_a_request_whose_turn_does_not_come_is_refused_and_leaves_no_trace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "PATIENCE", 0.05)
    monkeypatch.setattr(turns, "OF_A_SITE", 1)

    async def run() -> None:
        given = Turns(Limits())
        async with given.turn("north"):
            with pytest.raises(NoTurn):
                async with given.turn("north"):
                    pytest.fail("it is not its turn")
            waiting = asyncio.ensure_future(given.turn("north").__aenter__())
            await settle()
            waiting.cancel()
            await settle()
            assert not given.waiting and given.all_busy == 1
        async with given.turn("north"):
            assert given.busy["north"] == 1

    asyncio.run(run())


def test_a_request_without_a_turn_gets_503_which_a_supernode_repeats(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "PATIENCE", 0.0)
    client = Client(gateway)
    assert client.post(RUN, headers=header(SOUTH)).status_code == 200
    gateway.turns.busy["north"] = turns.OF_A_SITE
    gateway.turns.all_busy = turns.OF_A_SITE
    refused = client.post(RUN, headers=header(NORTH))
    assert refused.status_code == 503 and refused.headers["retry-after"] == "1"
    assert refused_by(gateway, "requests-per-second") == 1


def test_the_gateway_has_fewer_connections_where_it_may_open_few_files(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    raised: list[tuple[int, int]] = []
    monkeypatch.setattr(gateway_module.resource, "getrlimit", lambda what: (8192, 8192))
    gateway_module.allow_files(gateway)
    assert gateway.connections.limits == Limits()

    def forbidden(what: int, limits: tuple[int, int]) -> None:
        raised.append(limits)
        raise PermissionError

    monkeypatch.setattr(gateway_module.resource, "getrlimit", lambda what: (1024, 4096))
    monkeypatch.setattr(gateway_module.resource, "setrlimit", forbidden)
    gateway_module.allow_files(gateway)
    assert raised == [(4096, 4096)]
    assert gateway.connections.limits.connections == 1024 - gateway_module.OTHER_FILES
    assert "at most 768 connections" in caplog.text
