"""Whose request the gateway passes to the SuperLink next, so that no site waits behind another's many.

A SuperLink answers about a hundred requests a second, in one process. So a few are with it at a time, and the sites
take turns. A site that asks for more than its requests a second waits until no other site is at work, and then has one
request there at a time: it uses what is left over. Where every site asks for more, none waits for that.
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fedskew.federation.limits import Allowances, Clock, Limits

AT_A_TIME = 8
"""Requests that are with the SuperLink at a time."""
OF_A_SITE = 4
"""Those of one site among them: each is answered in one thread of the SuperLink's, and they share a processor."""
BURST = 10
"""Seconds' worth of requests that a site may make at once."""
UNIT = 2**22
"""Bytes of a body that count as one more request."""
QUIET = 0.2
"""Seconds after the start of another site's request in which no site goes beyond its allowance: what is between two
requests of an exchange is no time that is left over."""
OWN = ""
"""Stands for the gateway's own requests, which have no limit: several sites wait for each."""
SHORTEST = 0.005
"""Seconds between two looks at the allowances at least."""
PATIENCE = 30.0
"""Seconds that a request waits for its turn."""


class NoTurn(Exception):
    """A request's turn did not come in time."""


class Turns:
    """The requests that wait for the SuperLink."""

    def __init__(self, limits: Limits, clock: Clock = time.monotonic) -> None:
        rate = limits.requests_per_second
        self.allowances = Allowances(rate, BURST * rate, BURST * rate, clock)
        self.waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """By site, its requests in order; the site whose turn is next comes first."""
        self.busy = Counter[str]()
        """By site, its requests that are with the SuperLink."""
        self.all_busy = 0
        self.clock = clock
        self.quiet_from = 0.0
        """When no site that keeps within half of its allowance is at work any more."""
        self.timer: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def turn(self, site: str, size: int = 0, is_work: bool = True) -> AsyncIterator[None]:
        """Wait for the turn of a site's request. Raises NoTurn after PATIENCE seconds.

        Args:
            site: whose it is, or OWN.
            size: bytes of its body.
            is_work: False for a look for messages, of which every idle site has one in 15 seconds.
        """
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.setdefault(site, deque()).append(mine)
        self.give()
        try:
            async with asyncio.timeout(PATIENCE):
                await mine
        except BaseException as error:
            self.leave(site, mine)
            if isinstance(error, TimeoutError):
                raise NoTurn from None
            raise
        self.charge(site, size)
        if is_work and self.allowances.of(site).left >= self.allowances.most / 2:
            self.quiet_from = self.clock() + QUIET
        try:
            yield
        finally:
            self.end(site)

    def charge(self, site: str, size: int) -> None:
        """Count the bytes of a body."""
        self.allowances.of(site).take(size / UNIT)

    def give(self) -> None:
        """Let every request go whose turn it is, and look again when the next site's allowance allows one."""
        while (site := self.next_site()) is not None:
            mine = self.waiting[site].popleft()
            rest = self.waiting.pop(site)
            if rest:
                self.waiting[site] = rest  # behind the other sites
            if mine.done():
                continue  # its sender has hung up
            self.busy[site] += 1
            self.all_busy += 1
            mine.set_result(None)
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if self.waiting and self.all_busy < AT_A_TIME:  # else an answer comes first
            soonest = min(self.allowances.of(site).seconds_until() for site in self.waiting)
            if not self.all_busy:
                soonest = min(soonest, self.quiet_from - self.clock())
            loop = asyncio.get_running_loop()
            self.timer = loop.call_later(max(soonest, SHORTEST), self.give)

    def next_site(self) -> str | None:
        """Return the site whose request goes next, or None while all have to wait."""
        if not self.waiting or self.all_busy >= AT_A_TIME:
            return None
        for site in self.waiting:
            if site == OWN:
                return site
            allowance = self.allowances.of(site)
            if self.busy[site] < OF_A_SITE and allowance.refill() >= 1:
                allowance.take()
                return site
        if self.all_busy or self.clock() < self.quiet_from:
            return None
        return next(iter(self.waiting))

    def leave(self, site: str, mine: asyncio.Future[None]) -> None:
        """Take a request back that does not wait any more."""
        if mine.done() and not mine.cancelled():
            self.end(site)  # its turn came in the same moment
            return
        mine.cancel()
        rest = self.waiting.get(site, deque())
        if mine in rest:
            rest.remove(mine)
        if not rest:
            self.waiting.pop(site, None)

    def end(self, site: str) -> None:
        """Count a request as answered."""
        self.busy[site] -= 1
        self.all_busy -= 1
        self.give()
