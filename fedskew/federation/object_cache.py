"""A cache of objects that several sites fetch at the same time: the gateway fetches each once.

The model that goes out to N sites is one object of flwr's, named by the sha256 of its content. The SuperLink reads it
from its database and counts it there for every site that asks.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

from google.protobuf.message import DecodeError

from fedskew.federation.flower_internals import PullObjectRequest, PullObjectResponse

Reply = tuple[int, bytes, dict[str, str]]
"""Status, body and headers."""
POLL, HELD = 0.1, 10.0
"""Seconds between two questions for an object that is still on its way, and for which a site's question waits: a node
that hears that it is not there asks again after 1, 2, 4 ... seconds."""
KEPT = 30.0
"""Seconds for which an object is kept for the other sites; one that comes later has it fetched again."""


class Objects:
    """Answers to questions for objects, by run and name."""

    def __init__(self) -> None:
        self.kept: dict[tuple[int, str], tuple[float, asyncio.Future[Reply]]] = {}

    async def get(self, body: bytes, ask: Callable[[], Awaitable[Reply]]) -> Reply:
        """Return the answer to a question, from another site's where it is the same; `ask` asks the SuperLink."""
        try:
            question = PullObjectRequest.FromString(body)
        except DecodeError:
            return await ask()
        key = (question.run_id, question.object_id)
        now = time.monotonic()
        for name, (began, _) in list(self.kept.items()):
            if now - began >= KEPT:
                del self.kept[name]
        if key not in self.kept:
            self.kept[key] = now, asyncio.ensure_future(self.fetch(key, ask))
        _, answer = self.kept[key]
        # Shielded: a site that hangs up does not end the fetch for the others.
        return await asyncio.shield(answer)

    async def fetch(self, key: tuple[int, str], ask: Callable[[], Awaitable[Reply]]) -> Reply:
        """Ask until the object is there, for a while; forget at once whatever is not the object."""
        there = False
        until = time.monotonic() + HELD
        try:
            while True:
                status, content, headers = await ask()
                response = PullObjectResponse.FromString(content if status == 200 else b"")
                there = response.object_available
                if there or not response.object_found or time.monotonic() > until:
                    return status, content, headers
                await asyncio.sleep(POLL)
        finally:
            if not there:
                self.kept.pop(key, None)
