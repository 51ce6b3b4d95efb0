"""The gateway's connections: how many there are of each address and each site, and how long they may say nothing.

uvicorn counts connections after their TLS handshake, and waits for a request's head for ever. So `Connection` stands
before it: it counts a connection when it is accepted, makes the handshake itself, and closes a connection whose
handshake, head or answer takes too long. Nothing of this needs a signature; a site is known once it has signed.
"""

import asyncio
import logging
import ssl
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

from fedskew.federation.limits import Allowances, Limits, address_of

log = logging.getLogger("fedskew.gateway")
Peer = tuple[str, int]
"""Host and port of a connection's other end."""
BURST = 10
"""Seconds' worth of new connections of an address that may begin at once."""
HEAD = 2**16
"""Bytes of a request's head. uvicorn has no limit of its own with httptools."""
PARTING = 5.0
"""Seconds that the other end has to end TLS in order."""
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
        longest = rate * limits.header_seconds
        self.beginnings = Allowances(rate, BURST * rate, longest)

    def admit(self, connection: "Connection") -> float | None:
        """Count a new connection. Return the seconds until its handshake may begin, or None where there is no room."""
        address = connection.address
        wait = self.beginnings.of(address).seconds_until()
        if wait >= self.limits.header_seconds:
            self.refused("new-connections-per-second", address)
            return None
        if self.by_address[address] >= self.limits.connections_per_address:
            self.refused("connections-per-address", address)
            if not self.make_room(address):
                return None
        if len(self.open) >= self.limits.connections:
            self.refused("connections", address)
            if not self.make_room(self.most_strangers()):
                return None
        self.beginnings.of(address).take()
        self.open[connection.peer] = connection
        self.by_address[address] += 1
        self.strangers.setdefault(address, {})[connection] = None
        return wait

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

    def protocol(self, context: ssl.SSLContext) -> Callable[..., asyncio.Protocol]:
        """Return what uvicorn makes a protocol with, one for every connection."""
        return partial(make_connection, self, context)


class Connection(asyncio.Protocol):
    """One connection: its TLS handshake, and then uvicorn's protocol behind two deadlines."""

    def __init__(
        self, connections: Connections, context: ssl.SSLContext, http: asyncio.Protocol
    ) -> None:
        """`http` is uvicorn's protocol, which gets the connection after the handshake."""
        self.connections = connections
        self.limits = connections.limits
        self.context = context
        self.http: Any = http
        self.loop = asyncio.get_running_loop()
        self.transport: Any = None
        self.peer: Peer = ("?", 0)
        self.address = "?"
        self.site = ""
        self.secure = False
        self.beginning: asyncio.Task[None] | None = None
        self.early: list[bytes] = []
        """What came between the handshake's end and uvicorn's beginning."""
        self.head = 0
        """Bytes of the request that is being received, before it is a request."""
        self.head_deadline: asyncio.TimerHandle | None = None
        self.answer_deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection, and begin TLS, where there is room."""
        self.transport = transport
        name = transport.get_extra_info("peername") or ("?", 0)
        self.peer = str(name[0]), int(name[1])
        self.address = address_of(self.peer[0])
        wait = self.connections.admit(self)
        if wait is None:
            self.abort()
            return
        self.transport.pause_reading()
        self.beginning = self.loop.create_task(self.begin(wait))

    async def begin(self, wait: float) -> None:
        """Make the TLS handshake after a while, and hand the connection over to uvicorn."""
        try:
            if wait:
                await asyncio.sleep(wait)
            secured = await self.loop.start_tls(
                self.transport,
                self,
                self.context,
                server_side=True,
                ssl_handshake_timeout=self.limits.header_seconds,
                ssl_shutdown_timeout=PARTING,
            )
        except (OSError, asyncio.CancelledError, RuntimeError) as error:
            if isinstance(error, ConnectionAbortedError) and "handshake" in str(error):
                self.connections.refused("header-seconds", self.address)
            self.abort()
            self.connections.release(self)
            return
        if secured is None or self.peer not in self.connections.open:
            self.abort()
            return
        self.transport = secured
        self.secure = True
        self.http.connection_made(secured)
        self.expect_head()
        for data in self.early:
            self.data_received(data)
        self.early = []

    def abort(self) -> None:
        """Close the connection at once."""
        if self.beginning is not None and not self.secure:
            self.beginning.cancel()
        self.transport.abort()

    @property
    def at_work(self) -> bool:
        """Whether a request has come whose answer is not complete."""
        cycle = self.http.cycle
        return cycle is not None and not cycle.response_complete

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
        """Close a connection whose other end takes nothing of an answer."""
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
        if not self.secure:
            self.early.append(data)
            return
        if self.transport.is_closing():
            return
        waiting = not self.at_work
        if waiting:
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
        if self.secure:
            self.http.eof_received()

    def pause_writing(self) -> None:
        """Give the other end its time to take an answer."""
        if self.secure:
            self.http.pause_writing()
        self.drop_answer_deadline()
        seconds = self.limits.body_seconds
        self.answer_deadline = self.loop.call_later(seconds, self.answer_is_late)

    def resume_writing(self) -> None:
        """Go on sending."""
        self.drop_answer_deadline()
        if self.secure:
            self.http.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        """Count the connection no more."""
        self.drop_head_deadline()
        self.drop_answer_deadline()
        self.connections.release(self)
        if self.secure:
            self.http.connection_lost(error)


def make_connection(
    connections: Connections, context: ssl.SSLContext, **options: Any
) -> Connection:
    """Return a connection before uvicorn's protocol, which takes the options."""
    http = AutoHTTPProtocol(**options)
    return Connection(connections, context, http)
