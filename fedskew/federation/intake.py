"""A limit on the bytes of request bodies that the gateway buffers at the same time, per site and in all.

A body is held once, as the pieces in which it came. Its room is taken whole before the first piece is read, so that two
half-read bodies never wait for each other; what has to wait stays at the sender, as TCP sees to.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import Request

SITES = 4
"""Bodies of the largest size that there is room for in all."""
OPEN = 32
"""Requests of a site at a time. flwr's SuperNode has fewer than ten: a question, a sign of life and a few objects."""
PATIENCE = 30.0
"""Seconds that a body waits for room."""
SLOWEST = 300.0
"""Seconds in which a body has to arrive; flwr takes the signature of a request for 305."""
SMALL = 2**20
"""Bytes of a body that is no object: messages travel without what is in them."""


class TooManyRequests(Exception):
    """A site has more requests open than a SuperNode ever has."""


class NoRoom(Exception):
    """There was no room for a body in time."""


class TooSlow(Exception):
    """A body did not arrive in time."""


class TooLarge(Exception):
    """A body is larger than a request of its kind may be."""


class Intake:
    """What the gateway holds at the same time; `largest` are the bytes of the largest body."""

    def __init__(self, largest: int) -> None:
        self.largest = largest
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
        if self.open[site] >= OPEN:
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


async def pieces_of(request: Request, most: int) -> list[bytes]:
    """Return a request's body as it comes.

    Raises TooLarge for more bytes than room was taken for, TooSlow for one that takes longer than SLOWEST.
    """
    pieces: list[bytes] = []
    received = 0
    try:
        async with asyncio.timeout(SLOWEST):
            async for piece in request.stream():
                received += len(piece)
                request.state.received = received
                if received > most:
                    raise TooLarge
                pieces.append(piece)
    except TimeoutError:
        raise TooSlow from None
    return pieces


async def streamed(pieces: list[bytes]) -> AsyncIterator[bytes]:
    """Yield a body's pieces, for a request that sends it on without a copy."""
    for piece in pieces:
        yield piece
