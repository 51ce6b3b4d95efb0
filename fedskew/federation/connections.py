"""The gateway's connections: how many there are of each address and each site, and how long they may say nothing.

uvicorn sees a connection after its TLS handshake, and waits for a request's head for ever. So `Server` accepts
connections itself: it counts each before its handshake, and closes one whose handshake, head or answer takes too long.
Nothing of this needs a signature; a site is known once it has signed.
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
"""Host and port of a connection's other end."""
BURST = 10
"""Seconds' worth of new connections of an address that may begin at once."""
HEAD = 2**16
"""Bytes of a request's head. uvicorn has no limit of its own with httptools."""
BACKLOG = 2048
"""Connections that the kernel keeps until they are accepted."""
PAUSE = 0.1
"""Seconds after which to accept again where this process or the machine has no file left."""
AT_ONCE = struct.pack("ii", 1, 0)
"""SO_LINGER by which a connection ends with a reset: on, for no seconds."""
PARTING = 30.0
"""Seconds that the other end has to end TLS in order, in which the rest of an answer is sent."""
PIECE = 2**16
"""Bytes of an answer that are written at a time. TLS in asyncio says that a line is slow between two writes alone."""
TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
TOO_LONG = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class Connections:
    """The open connections, by address and by site.

    At a limit of an address or of all, the oldest connection makes room on which nobody has signed yet: what honest
    sites open is signed within a second. Where every connection is a site's, the new one is closed.
    """

    def __init__(self, limits: Limits, refused: Callable[[str, str], None]) -> None:
        """`refused` is called with a limit's key and the address or site that has met it."""
        self.limits = limits
        self.refused = refused
        self.open: dict[Peer, Connection] = {}
        self.by_address = Counter[str]()
        self.by_site = Counter[str]()
        self.strangers: dict[str, dict[Connection, None]] = {}
        """By address, the connections on which nobody has signed yet, the oldest first."""
        rate = limits.new_connections_per_second
        self.beginnings = Allowances(rate, BURST * rate, debt=0.0)

    def admit(self, connection: "Connection") -> bool:
        """Count a new connection, and return whether there is room for it."""
        address = connection.address
        self.forget_former(connection.peer)
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

    def forget_former(self, peer: Peer) -> None:
        """Close the connection that a new one from the same host and port takes the place of.

        Its other end has reset it, and nothing has looked at it since. In the counts, it would stay there for ever.
        """
        former = self.open.get(peer)
        if former is not None:
            former.abort()
            self.release(former)

    def most_strangers(self) -> str:
        """Return the address with most connections on which nobody has signed."""
        return max(self.strangers, key=lambda address: len(self.strangers[address]), default="")

    def make_room(self, address: str) -> bool:
        """Close the oldest connection of an address on which nobody has signed, and return whether there was one."""
        for connection in self.strangers.get(address, {}):
            connection.abort()
            self.release(connection)
            return True
        return False

    def release(self, connection: "Connection") -> None:
        """Count a connection no more; a second time changes nothing."""
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
        """Count a connection no more among those on which nobody has signed."""
        strangers = self.strangers.get(connection.address, {})
        strangers.pop(connection, None)
        if not strangers:
            self.strangers.pop(connection.address, None)

    def signed(self, peer: Peer | None, site: str) -> bool:
        """Note that a site has signed a request on a connection. Return False where the site has too many.

        A proxy may send the requests of several sites over one connection: it counts as that of the first.
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
    """One connection: uvicorn's protocol behind two deadlines, after the TLS handshake."""

    def __init__(self, connections: Connections, accepted: socket.socket, peer: Peer) -> None:
        self.connections = connections
        self.limits = connections.limits
        self.accepted = accepted
        self.beginning: asyncio.Task[None] | None = None
        """The handshake."""
        self.peer = peer
        self.address = address_of(peer[0])
        self.site = ""
        self.http: Any = None
        """uvicorn's protocol."""
        self.transport: Any = None
        self.loop = asyncio.get_running_loop()
        self.head = 0
        """Bytes of the request that is being received, before it is a request."""
        self.head_deadline: asyncio.TimerHandle | None = None
        self.answer_deadline: asyncio.TimerHandle | None = None
        self.slow_answer: Any = None
        """uvicorn's cycle of the request whose answer has the deadline."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Hand the connection over to uvicorn after its handshake."""
        self.transport = transport
        self.http.connection_made(transport)
        self.expect_head()

    def abort(self) -> None:
        """Close the connection at once.

        A client whose handshake is reset tries again. flwr's SuperNode ends when a handshake ends in another way.
        """
        if self.transport is not None:
            self.transport.abort()
            return
        with contextlib.suppress(OSError):
            self.accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
        if self.beginning is None:
            self.drop_head_deadline()
            self.accepted.close()
        else:
            self.beginning.cancel()  # its end closes the socket

    @property
    def at_work(self) -> bool:
        """Whether a request has come whose answer is not complete."""
        cycle = self.http.cycle
        return cycle is not None and not cycle.response_complete

    def expect_turn(self) -> None:
        """Let the connection wait for its handshake for a while."""
        seconds = self.limits.header_seconds
        self.head_deadline = self.loop.call_later(seconds, self.turn_is_late)

    def turn_is_late(self) -> None:
        """Close a connection whose address has begun too many others."""
        self.connections.refused("new-connections-per-second", self.address)
        self.abort()
        self.connections.release(self)

    def expect_head(self) -> None:
        """Give the next request's head its time, unless that runs already."""
        if self.head_deadline is None:
            seconds = self.limits.header_seconds
            self.head_deadline = self.loop.call_later(seconds, self.head_is_late)

    def drop_head_deadline(self) -> None:
        """Wait for no head any more."""
        if self.head_deadline is not None:
            self.head_deadline.cancel()
            self.head_deadline = None

    def drop_answer_deadline(self) -> None:
        """Wait for nobody to take an answer any more."""
        if self.answer_deadline is not None:
            self.answer_deadline.cancel()
            self.answer_deadline = None

    def head_is_late(self) -> None:
        """Close a connection whose request is not complete in time."""
        if not self.at_work:
            self.refuse("header-seconds", TOO_SLOW)

    def answer_is_late(self) -> None:
        """Close a connection whose other end takes too long to take an answer."""
        if self.at_work and self.http.cycle is self.slow_answer:
            self.connections.refused("body-seconds", self.site or self.address)
            self.abort()

    def refuse(self, limit: str, words: bytes) -> None:
        """Say why and close."""
        self.connections.refused(limit, self.site or self.address)
        if not self.transport.is_closing():
            self.transport.write(words)
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        """Pass data on, and look whether they end a request's head."""
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
        """Pass the end on."""
        self.http.eof_received()

    def pause_writing(self) -> None:
        """Give the other end its time to take the whole answer."""
        self.http.pause_writing()
        if self.slow_answer is not self.http.cycle:
            self.drop_answer_deadline()  # of the answer before
            self.slow_answer = self.http.cycle
            seconds = self.limits.body_seconds
            self.answer_deadline = self.loop.call_later(seconds, self.answer_is_late)

    def resume_writing(self) -> None:
        """Go on sending."""
        self.http.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        """Count the connection no more."""
        self.drop_head_deadline()
        self.drop_answer_deadline()
        self.connections.release(self)
        self.http.connection_lost(error)


class InPieces(Response):
    """An answer that is written as fast as its other end takes it, and is complete only then.

    uvicorn counts a connection as idle once an answer is written, and closes it after seconds. Written at once, an
    object would be cut on a slow line.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer."""
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
        """By address, the connections whose handshake has to wait, the newest last."""

    async def listen(self, host: str, port: int) -> None:
        """Accept connections at a port of every address of a host. Raises OSError."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, address in dict.fromkeys((entry[0], entry[4]) for entry in found):
            listening = socket.create_server(address[:2], family=family, backlog=BACKLOG)
            listening.setblocking(False)
            self.sockets.append(listening)
            self.start(self.accept(listening))

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do something beside everything else."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    async def accept(self, listening: socket.socket) -> None:
        """Accept connections for ever."""
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
            await asyncio.sleep(0)  # accepting does not give way while connections are queued

    def begin_in_turn(self, connection: Connection) -> None:
        """Begin a connection's handshake at once, or let it wait where its address begins too many."""
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
        """Begin the handshakes that wait at an address: in turns the newest and one at random.

        The oldest first would let a site that opens thousands keep the others behind its address from ever beginning.
        """
        allowance = self.connections.beginnings.of(address)
        waiting = self.waiting[address]
        is_newest = True
        while waiting:
            await asyncio.sleep(allowance.seconds_until())
            place = len(waiting) - 1 if is_newest else random.randrange(len(waiting))
            connection = waiting.pop(place)
            if self.connections.open.get(connection.peer) is connection:
                is_newest = not is_newest
                allowance.take()
                connection.drop_head_deadline()
                self.begin(connection)
        del self.waiting[address]

    def begin(self, connection: Connection) -> None:
        """Begin a connection's handshake."""
        connection.beginning = self.start(self.handshake(connection))
        connection.beginning.add_done_callback(lambda _: self.close_without_handshake(connection))

    async def handshake(self, connection: Connection) -> None:
        """Make a connection's handshake."""
        loop = asyncio.get_running_loop()
        connection.http = self.http()
        try:
            await loop.connect_accepted_socket(
                lambda: connection,
                connection.accepted,
                ssl=self.context,
                ssl_handshake_timeout=self.connections.limits.header_seconds,
                ssl_shutdown_timeout=PARTING,
            )
        except OSError as error:
            # asyncio's ConnectionAbortedError for a handshake that is too slow says so in its text alone.
            if "taking longer" in str(error):
                self.connections.refused("header-seconds", connection.address)

    def close_without_handshake(self, connection: Connection) -> None:
        """Close a connection whose handshake has failed, or was ended, also before its first step."""
        if connection.transport is None:
            connection.accepted.close()
            self.connections.release(connection)

    def close(self) -> None:
        """Accept no more, and close what has made no handshake yet."""
        for task in self.tasks:
            task.cancel()
        for waiting in self.waiting.values():
            for connection in waiting:
                connection.abort()
                self.connections.release(connection)
        for listening in self.sockets:
            listening.close()

    async def wait_closed(self) -> None:
        """Return at once: uvicorn looks after the connections."""


class Server(uvicorn.Server):
    """uvicorn's server, with a listener of the gateway's own."""

    def __init__(
        self, config: uvicorn.Config, connections: Connections, context: ssl.SSLContext
    ) -> None:
        super().__init__(config)
        self.listener = Listener(connections, context, self.protocol)

    def protocol(self) -> asyncio.Protocol:
        """Make uvicorn's protocol for a connection."""
        http: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return http

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen. Raises SystemExit where the port is taken."""
        await self.lifespan.startup()
        try:
            await self.listener.listen(self.config.host, self.config.port)
        except OSError as error:
            log.error("%s", error)
            await self.lifespan.shutdown()
            sys.exit(1)
        self.servers = [self.listener]  # type: ignore[list-item]
        self.started = True
