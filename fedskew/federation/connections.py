"""The gateway's connections: limits on their number per address and per site, and deadlines for idle ones.

uvicorn sees a connection only after its TLS handshake, and waits for a request's head forever. So `Server` accepts
connections itself. It counts each connection before the handshake, and closes it if the handshake, a request's head or
the sending of an answer takes too long. A connection belongs to a site once a request on it has a valid signature.
"""

import asyncio
import contextlib
import logging
import random
import socket
import ssl
import struct
import sys
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import uvicorn
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fedskew.federation.limits import Allowances, Limits, address_of

log = logging.getLogger("fedskew.gateway")
Peer = tuple[str, int]
"""The host and port of a connection's peer, the other end."""
BURST = 10
"""An address may begin a burst of BURST x new-connections-per-second connections."""
HEAD = 2**16
"""The largest head of a request in bytes. uvicorn with httptools has no limit of its own."""
BACKLOG = 2048
"""Connections that the kernel queues until they are accepted."""
PAUSE = 0.1
"""Seconds to wait before accepting again if this process or the machine cannot open more files."""
RESET_ON_CLOSE = struct.pack("ii", 1, 0)
"""The value of SO_LINGER (on, 0 seconds) with which closing a socket sends a TCP reset."""
TLS_SHUTDOWN = 30.0
"""Seconds for the TLS shutdown of a closed connection, during which the rest of an answer is still sent."""
PIECE = 2**16
"""Bytes of an answer per write. asyncio's TLS reports a slow receiver (pause_writing) only between two writes."""
TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
TOO_LONG = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class Connections:
    """The open connections, counted by address and by site.

    A new connection beyond a limit replaces the oldest connection without a signed request, as honest sites sign within
    a second. If all connections belong to sites, the new one is closed.
    """

    def __init__(self, limits: Limits, refused: Callable[[str, str], None]) -> None:
        """`refused` is called with the key of an exceeded limit and the address or site."""
        self.limits = limits
        self.refused = refused
        self.open: dict[Peer, Connection] = {}
        self.by_address = Counter[str]()
        self.by_site = Counter[str]()
        self.strangers: dict[str, dict[Connection, None]] = {}
        """By address, the connections without a signed request, the oldest first."""
        rate = limits.new_connections_per_second
        self.beginnings = Allowances(rate, BURST * rate, debt=0.0)

    def admit(self, connection: "Connection") -> bool:
        """Count a new connection and return True, or return False if there is no room for it."""
        address = connection.address
        self.close_former(connection.peer)
        if self.by_address[address] >= self.limits.connections_per_address:
            self.refused("connections-per-address", address)
            if not self.make_room(address):
                return False
        if len(self.open) >= self.limits.connections:
            self.refused("connections", address)
            if not self.make_room(self.most_strangers()):
                return False
        self.open[connection.peer] = connection
        self.by_address[address] += 1
        self.strangers.setdefault(address, {})[connection] = None
        return True

    def close_former(self, peer: Peer) -> None:
        """Close the connection that a new one from the same host and port replaces.

        The peer has reset it, and nothing has read from it since. Without this, it would be counted forever.
        """
        former = self.open.get(peer)
        if former is not None:
            former.abort()
            self.release(former)

    def most_strangers(self) -> str:
        """Return the address with the most connections without a signed request; empty if there are none."""
        return max(self.strangers, key=lambda address: len(self.strangers[address]), default="")

    def make_room(self, address: str) -> bool:
        """Close the oldest connection of an address without a signed request. Return whether there was one."""
        for connection in self.strangers.get(address, {}):
            connection.abort()
            self.release(connection)
            return True
        return False

    def release(self, connection: "Connection") -> None:
        """Remove a connection from all counts. A second call has no effect."""
        if self.open.get(connection.peer) is not connection:
            return
        del self.open[connection.peer]
        self.by_address[connection.address] -= 1
        if not self.by_address[connection.address]:
            del self.by_address[connection.address]
        self.forget_stranger(connection)
        if connection.site:
            self.by_site[connection.site] -= 1

    def forget_stranger(self, connection: "Connection") -> None:
        """Remove a connection from `strangers`."""
        strangers = self.strangers.get(connection.address, {})
        strangers.pop(connection, None)
        if not strangers:
            self.strangers.pop(connection.address, None)

    def signed(self, peer: Peer | None, site: str) -> bool:
        """Record that a site has signed a request on a connection. Return False if the site has too many connections.

        A proxy may send requests of several sites over one connection. It counts for the first of them.
        """
        connection = self.open.get(peer) if peer else None
        if connection is None or connection.site:
            return True
        if self.by_site[site] >= self.limits.connections_per_site:
            self.refused("connections-per-site", site)
            return False
        connection.site = site
        self.by_site[site] += 1
        self.forget_stranger(connection)
        return True


class Connection(asyncio.Protocol):
    """One connection. After the TLS handshake, it passes data to uvicorn's protocol and enforces two deadlines."""

    def __init__(self, connections: Connections, accepted: socket.socket, peer: Peer) -> None:
        self.connections = connections
        self.limits = connections.limits
        self.accepted = accepted
        self.handshake_task: asyncio.Task[None] | None = None
        """The TLS handshake; None before it begins."""
        self.peer = peer
        self.address = address_of(peer[0])
        self.site = ""
        self.http: Any = None
        """uvicorn's protocol for this connection."""
        self.transport: Any = None
        self.loop = asyncio.get_running_loop()
        self.head = 0
        """Bytes received of a request whose head is not complete."""
        self.head_deadline: asyncio.TimerHandle | None = None
        """Runs while the connection waits for its handshake's turn or for the head of a request."""
        self.answer_deadline: asyncio.TimerHandle | None = None
        """Runs while the peer is slow to receive an answer."""
        self.slow_answer: Any = None
        """uvicorn's cycle (a request with its answer) for which `answer_deadline` runs."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Give the connection to uvicorn after the TLS handshake."""
        self.transport = transport
        self.http.connection_made(transport)
        self.expect_head()

    def abort(self) -> None:
        """Close the connection at once.

        Before and during the handshake, the socket closes with a TCP reset: flwr's SuperNode then retries. After any
        other failure of a handshake, it exits.
        """
        if self.transport is not None:
            self.transport.abort()
            return
        with contextlib.suppress(OSError):
            self.accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        if self.handshake_task is None:
            self.drop_head_deadline()
            self.accepted.close()
        else:
            self.handshake_task.cancel()  # close_without_handshake then closes the socket

    @property
    def at_work(self) -> bool:
        """Whether a request has arrived whose answer is not complete."""
        cycle = self.http.cycle
        return cycle is not None and not cycle.response_complete

    def expect_turn(self) -> None:
        """Set a deadline for the begin of the handshake, which has to wait for its turn."""
        seconds = self.limits.header_seconds
        self.head_deadline = self.loop.call_later(seconds, self.turn_is_late)

    def turn_is_late(self) -> None:
        """Close a connection whose handshake did not begin in time, as its address begins too many."""
        self.connections.refused("new-connections-per-second", self.address)
        self.abort()
        self.connections.release(self)

    def expect_head(self) -> None:
        """Set the deadline for the head of the next request, unless it runs already."""
        if self.head_deadline is None:
            seconds = self.limits.header_seconds
            self.head_deadline = self.loop.call_later(seconds, self.head_is_late)

    def drop_head_deadline(self) -> None:
        """Cancel the deadline for a request's head or for the begin of the handshake."""
        if self.head_deadline is not None:
            self.head_deadline.cancel()
            self.head_deadline = None

    def drop_answer_deadline(self) -> None:
        """Cancel the deadline for sending an answer."""
        if self.answer_deadline is not None:
            self.answer_deadline.cancel()
            self.answer_deadline = None

    def head_is_late(self) -> None:
        """Close a connection on which no complete head of a request arrived in time."""
        if not self.at_work:
            self.refuse("header-seconds", TOO_SLOW)

    def answer_is_late(self) -> None:
        """Close a connection whose peer is too slow to receive an answer."""
        if self.at_work and self.http.cycle is self.slow_answer:
            self.connections.refused("body-seconds", self.site or self.address)
            self.abort()

    def refuse(self, limit: str, response: bytes) -> None:
        """Count the exceeded limit, send an HTTP response and close the connection."""
        self.connections.refused(limit, self.site or self.address)
        if not self.transport.is_closing():
            self.transport.write(response)
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        """Pass data to uvicorn, and check the size of the request's head and whether it is complete."""
        if self.transport.is_closing():
            return
        if not self.at_work:
            self.head += len(data)
            self.expect_head()
        self.http.data_received(data)
        if self.at_work:
            self.head = 0
            self.drop_head_deadline()
        elif self.head > HEAD:
            self.refuse("header-bytes", TOO_LONG)

    def eof_received(self) -> None:
        """Tell uvicorn that the peer sends nothing more."""
        self.http.eof_received()

    def pause_writing(self) -> None:
        """Set the deadline for sending the whole answer: the peer is slow to receive it."""
        self.http.pause_writing()
        if self.slow_answer is not self.http.cycle:
            self.drop_answer_deadline()  # the deadline of the previous answer
            self.slow_answer = self.http.cycle
            seconds = self.limits.body_seconds
            self.answer_deadline = self.loop.call_later(seconds, self.answer_is_late)

    def resume_writing(self) -> None:
        """Let uvicorn continue to send."""
        self.http.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        """Remove the closed connection from the counts."""
        self.drop_head_deadline()
        self.drop_answer_deadline()
        self.connections.release(self)
        self.http.connection_lost(error)


class InPieces(Response):
    """An answer that is written in pieces, as fast as the peer receives it.

    uvicorn treats a connection as idle once its answer is written, and closes it seconds later. If a large answer were
    written at once, it would be cut off on a slow connection.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer in pieces of PIECE bytes."""
        start = {
            "type": "http.response.start",
            "status": self.status_code,
            "headers": self.raw_headers,
        }
        await send(start)
        body = bytes(self.body)
        for begin in range(0, len(body), PIECE):
            piece = body[begin : begin + PIECE]
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class Listener:
    """The sockets that the gateway listens on."""

    def __init__(
        self,
        connections: Connections,
        context: ssl.SSLContext,
        http: Callable[[], asyncio.Protocol],
    ) -> None:
        """`http` makes uvicorn's protocol, one for every connection."""
        self.connections = connections
        self.context = context
        self.http = http
        self.sockets: list[socket.socket] = []
        self.tasks = set[asyncio.Task[None]]()
        self.waiting: dict[str, list[Connection]] = {}
        """By address, the connections whose handshake waits for its turn, the newest last."""

    async def listen(self, host: str, port: int) -> None:
        """Listen on a port of all addresses of a host, and accept connections. Raises OSError if a port is taken."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, address in dict.fromkeys((entry[0], entry[4]) for entry in found):
            listening = socket.create_server(address[:2], family=family, backlog=BACKLOG)
            listening.setblocking(False)
            self.sockets.append(listening)
            self.start(self.accept(listening))

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine as a background task. The reference in `tasks` keeps it from being garbage-collected."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    async def accept(self, listening: socket.socket) -> None:
        """Accept connections forever."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, peer = await loop.sock_accept(listening)
            except OSError as error:
                log.error("no connection can be accepted: %s", error)
                await asyncio.sleep(PAUSE)
                continue
            connection = Connection(self.connections, accepted, (str(peer[0]), int(peer[1])))
            if self.connections.admit(connection):
                self.begin_in_turn(connection)
            else:
                connection.abort()
            # sock_accept does not yield to other tasks while connections are queued.
            await asyncio.sleep(0)

    def begin_in_turn(self, connection: Connection) -> None:
        """Begin a connection's handshake, or queue it if its address begins too many connections."""
        address = connection.address
        allowance = self.connections.beginnings.of(address)
        if address in self.waiting:
            self.waiting[address].append(connection)
            connection.expect_turn()
        elif allowance.seconds_until():
            self.waiting[address] = [connection]
            connection.expect_turn()
            self.start(self.begin_waiting(address))
        else:
            allowance.take()
            self.begin(connection)

    async def begin_waiting(self, address: str) -> None:
        """Begin the queued handshakes of an address, alternately the newest one and a random one.

        With the oldest first, a site that opens thousands of connections would block other sites behind its address.
        """
        allowance = self.connections.beginnings.of(address)
        waiting = self.waiting[address]
        is_newest = True
        while waiting:
            await asyncio.sleep(allowance.seconds_until())
            index = len(waiting) - 1 if is_newest else random.randrange(len(waiting))
            connection = waiting.pop(index)
            if self.connections.open.get(connection.peer) is connection:
                is_newest = not is_newest
                allowance.take()
                connection.drop_head_deadline()
                self.begin(connection)
        del self.waiting[address]

    def begin(self, connection: Connection) -> None:
        """Start a connection's handshake as a task."""
        task = self.start(self.handshake(connection))
        connection.handshake_task = task
        task.add_done_callback(lambda _: self.close_without_handshake(connection))

    async def handshake(self, connection: Connection) -> None:
        """Do a connection's TLS handshake and connect it to uvicorn's protocol."""
        loop = asyncio.get_running_loop()
        connection.http = self.http()
        try:
            await loop.connect_accepted_socket(
                lambda: connection,
                connection.accepted,
                ssl=self.context,
                ssl_handshake_timeout=self.connections.limits.header_seconds,
                ssl_shutdown_timeout=TLS_SHUTDOWN,
            )
        except OSError as error:
            # Only the text of asyncio's ConnectionAbortedError tells a slow handshake from other failures.
            if "taking longer" in str(error):
                self.connections.refused("header-seconds", connection.address)

    def close_without_handshake(self, connection: Connection) -> None:
        """Close a connection whose handshake failed or was cancelled, even before it began."""
        if connection.transport is None:
            connection.accepted.close()
            self.connections.release(connection)

    def close(self) -> None:
        """Stop accepting, and close the connections without a complete handshake."""
        for task in self.tasks:
            task.cancel()
        for waiting in self.waiting.values():
            for connection in waiting:
                connection.abort()
                self.connections.release(connection)
        for listening in self.sockets:
            listening.close()

    async def wait_closed(self) -> None:
        """Return immediately. uvicorn waits for the connections itself."""


class Server(uvicorn.Server):
    """uvicorn's server with the gateway's `Listener` in place of asyncio's servers."""

    def __init__(
        self, config: uvicorn.Config, connections: Connections, context: ssl.SSLContext
    ) -> None:
        super().__init__(config)
        self.listener = Listener(connections, context, self.protocol)

    def protocol(self) -> asyncio.Protocol:
        """Return a new protocol object of uvicorn, for one connection."""
        http: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return http

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen. Raises SystemExit(1) if the port cannot be used."""
        await self.lifespan.startup()
        try:
            await self.listener.listen(self.config.host, self.config.port)
        except OSError as error:
            log.error("%s", error)
            await self.lifespan.shutdown()
            sys.exit(1)
        self.servers = [self.listener]  # type: ignore[list-item]
        self.started = True
