"""What sites fetch from the SuperLink at the same time: the gate fetches it once.

The model that goes out to N sites is one object of flwr's, named by the sha256 of its content. The SuperLink reads it
from its database and counts it there for every site that asks.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

from flwr.proto.message_pb2 import PullObjectRequest, PullObjectResponse
from google.protobuf.message import DecodeError

Reply = tuple[int, bytes, dict[str, str]]
"""Status, body and headers."""
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
        key, now = (question.run_id, question.object_id), time.monotonic()
        self.kept = {name: entry for name, entry in self.kept.items() if now - entry[0] < KEPT}
        if key not in self.kept:
            self.kept[key] = now, asyncio.ensure_future(self.fetch(key, ask))
        return await asyncio.shield(self.kept[key][1])  # a site that hangs up does not end it for the others

    async def fetch(self, key: tuple[int, str], ask: Callable[[], Awaitable[Reply]]) -> Reply:
        """Ask, and forget at once whatever is not the object."""
        there = False
        try:
            status, content, headers = await ask()
            there = status == 200 and PullObjectResponse.FromString(content).object_available
            return status, content, headers
        finally:
            if not there:
                self.kept.pop(key, None)
