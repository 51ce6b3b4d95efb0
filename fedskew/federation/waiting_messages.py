"""Which nodes have a message waiting at the SuperLink, as its database says.

A look for a message through the SuperLink is 10 ms of the one processor that it uses. Sites that each look once a
second would take all of it from a hundred sites on, while they have nothing to do. The database answers for all of them
at once, in less than a millisecond. What it says is a hint: the SuperLink itself hands messages out.
"""

import asyncio
import sqlite3
import time
from contextlib import closing
from pathlib import Path

EVERY = 0.05
"""Seconds between two looks at the database, while a site waits for a message."""
QUERY = (
    "SELECT DISTINCT dst_node_id FROM message_ins WHERE delivered_at = '' AND created_at + ttl > ?"
)
"""The condition by which flwr 1.42 chooses a message for a node."""
IDS = 2**64
"""Number of node ids: flwr counts them from 0, and its database from -IDS / 2."""


class WaitingMessages:
    """Lets sites wait for messages."""

    def __init__(self, database: Path) -> None:
        """`database` is the SuperLink's, an SQLite file."""
        self.database = database
        self.is_readable = False
        """Whether the last look at the database has succeeded."""
        self.asking: dict[int, list[asyncio.Future[bool]]] = {}
        """By node, who waits for a message for it."""
        self.timer: asyncio.TimerHandle | None = None

    def nodes(self) -> set[int] | None:
        """Return the nodes that have a message waiting, or None where the database cannot be read.

        The file is opened at each look, as a coordinator may have replaced it.
        """
        address = f"{self.database.resolve().as_uri()}?mode=ro"
        try:
            with closing(sqlite3.connect(address, uri=True, timeout=0)) as connection:
                rows = connection.execute(QUERY, (time.time(),)).fetchall()
        except sqlite3.Error:
            return None
        return {int(node) % IDS for (node,) in rows}

    async def wait(self, node: int, seconds: float) -> bool:
        """Wait for a message for a node, and return whether the SuperLink is to be asked for it.

        Args:
            node: the id that flwr has given to a site.
            seconds: the most that this takes. True after that only where the database cannot be read.
        """
        mine: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.asking.setdefault(node, []).append(mine)
        self.poll_soon()
        try:
            async with asyncio.timeout(seconds):
                return await mine
        except TimeoutError:
            return not self.is_readable
        finally:
            self.leave(node, mine)

    def leave(self, node: int, mine: asyncio.Future[bool]) -> None:
        """Take back that somebody waits."""
        rest = self.asking.get(node, [])
        if mine in rest:
            rest.remove(mine)
        if not rest:
            self.asking.pop(node, None)

    def poll_soon(self) -> None:
        """Look at the database in a moment, unless that is planned already."""
        if self.timer is None:
            self.timer = asyncio.get_running_loop().call_later(EVERY, self.poll)

    def poll(self) -> None:
        """Wake those who wait for a message that is there, and look again while others wait."""
        self.timer = None
        found = self.nodes()
        self.is_readable = found is not None
        for node in (found or set()) & self.asking.keys():
            for waiting in self.asking.pop(node):
                if not waiting.done():
                    waiting.set_result(True)
        if self.asking:
            self.poll_soon()
