"""A limit on the bytes of request bodies that the gateway buffers at the same time, per site and in all.

A body is held once, as the pieces in which it came. Its room is taken whole before the first piece is read, so that two
half-read bodies never wait for each other; what has to wait stays at the sender, as TCP sees to.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import Request

from fedskew.federation.limits import Limits

SITES = 4
"""Bodies of the largest size that there is room for in all."""
PATIENCE = 30.0
"""Seconds that a body waits for room."""
GRACE = 15.0
"""Seconds after which a body's rate counts: a line may stall for some."""
SMALL = 2**20
"""Bytes of a body that is no object: messages travel without what is in them."""


class TooManyRequests(Exception):
    """A site has more requests open than a SuperNode ever has."""


class NoRoom(Exception):
    """There was no room for a body in time."""


class TooSlow(Exception):
    """A body did not arrive in time, or not at the least rate."""

    def __init__(self, limit: str) -> None:
        """`limit` is the key of the limit in coordinator.toml."""
        super().__init__(limit)
        self.limit = limit


class TooLarge(Exception):
    """A body is larger than a request of its kind may be, or one too many of a reply."""

    def __init__(self, limit: str = "largest-message-mib") -> None:
        """`limit` is the key of the limit in coordinator.toml."""
        super().__init__(limit)
        self.limit = limit


class Intake:
    """What the gateway holds at the same time; `largest` are the bytes of the largest body."""

    def __init__(self, largest: int, limits: Limits) -> None:
        self.largest = largest
        self.limits = limits
        self.held: Counter[str] = Counter()
        """By site, the bytes that there is room taken for."""
        self.open: Counter[str] = Counter()
        """By site, its requests."""
        self.freed = asyncio.Condition()

    @asynccontextmanager
    async def room(self, site: str, size: int) -> AsyncIterator[None]:
        """Hold room for a site's body of so many bytes, at most the largest.

        Raises TooManyRequests at once, and NoRoom after PATIENCE seconds.
        """
        if self.is_full(site):
            raise TooManyRequests
        self.open[site] += 1
        try:
            try:
                async with asyncio.timeout(PATIENCE), self.freed:
                    await self.freed.wait_for(lambda: self.fits(site, size))
                    self.held[site] += size
            except TimeoutError:
                raise NoRoom from None
            try:
                yield
            finally:
                self.held[site] -= size
                async with self.freed:
                    self.freed.notify_all()
        finally:
            self.open[site] -= 1

    def is_full(self, site: str) -> bool:
        """Return whether a site has as many requests open as it may."""
        return self.open[site] >= self.limits.requests_at_a_time

    def fits(self, site: str, size: int) -> bool:
        """Return whether there is room: each site has that of one largest body, all together that of SITES."""
        return (
            self.held[site] + size <= self.largest
            and self.held.total() + size <= SITES * self.largest
        )


def size_of(request: Request, most: int) -> int:
    """Return the bytes to take room for: those that the request states, else the most that it may have.

    Raises TooLarge where it states more than that.
    """
    stated = request.headers.get("content-length", "")
    if not (stated.isascii() and stated.isdigit()):
        return most
    if len(stated) > len(str(most)) or int(stated) > most:
        raise TooLarge
    return int(stated)


async def pieces_of(request: Request, most: int, limits: Limits) -> list[bytes]:
    """Return a request's body as it comes.

    Raises:
        TooLarge: more bytes than room was taken for.
        TooSlow: it takes longer than body-seconds, or is slower than least-bytes-per-second after GRACE seconds.
    """
    pieces: list[bytes] = []
    received = 0
    first = min(GRACE, limits.body_seconds)
    deadline = asyncio.timeout(first)
    try:
        async with deadline:
            began = (deadline.when() or 0.0) - first
            last = began + limits.body_seconds
            async for piece in request.stream():
                received += len(piece)
                request.state.received = received
                if received > most:
                    raise TooLarge
                pieces.append(piece)
                paid_for = received / limits.least_bytes_per_second
                deadline.reschedule(min(last, began + GRACE + paid_for))
    except TimeoutError:
        is_last = (deadline.when() or 0.0) > last - 0.01  # both are sums of floats
        raise TooSlow("body-seconds" if is_last else "least-bytes-per-second") from None
    return pieces


async def streamed(pieces: list[bytes]) -> AsyncIterator[bytes]:
    """Yield a body's pieces, for a request that sends it on without a copy."""
    for piece in pieces:
        yield piece
