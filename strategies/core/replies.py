"""Sending messages and pulling the replies: which of what arrives is an answer to what was asked."""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, cast

from flwr.app import ArrayRecord, Message, RecordDict
from flwr.serverapp import Grid

from client_app.messages import folded
from client_app.polling import PollingClient

log = logging.getLogger("fedskew")

SHORTEST, LONGEST, SHARE = 0.01, 0.3, 0.02
"""Seconds between two looks for replies at least and at most, and as a share of the time waited so far."""
LATE = 60.0
"""Seconds after which it is said for whom a round waits; it is said again after twice as many, and so on."""
SUPERLINK = 1
"""The node in whose name flwr reports that there will be no reply."""


def between_sites(grid: Grid) -> Grid:
    """Return flwr's HttpGrid as a run between sites uses it: with fewer objects a message, and nothing slept over.

    A rehearsal's grid, whose messages do not travel, is as it was.
    """
    if not hasattr(grid, "_runtime_client"):  # whose module would be imported in simulations too
        return grid
    grid._client = PollingClient(grid._runtime_client)  # type: ignore[attr-defined]
    return cast(Grid, Folding(grid))


class Folding:
    """A grid whose messages go out with their states in one record, which is the same for all."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid

    def __getattr__(self, name: str) -> Any:
        return getattr(self.grid, name)

    def push_messages(self, messages: Sequence[Message]) -> Iterable[str]:
        """Push messages as flwr does."""
        packed: dict[tuple[int, ...], RecordDict] = {}
        for message in messages:
            states = {name: r for name, r in message.content.items() if isinstance(r, ArrayRecord)}
            others = {name: r for name, r in message.content.items() if name not in states}
            same = tuple(map(id, states.values()))
            packed[same] = packed.get(same) or folded(states)
            message.content = RecordDict({**packed[same], **others})
        return self.grid.push_messages(messages)


def replies(
    grid: Grid,
    messages: Sequence[Message],
    timeout: float | None,
    stray: Callable[[str], None] = log.warning,
    late: Callable[[Collection[int], float], None] = lambda nodes, seconds: None,
) -> Iterator[Message]:
    """Send the messages; yield the first reply to each, if it is of the node that was asked, for `timeout` seconds.

    Replies that are pulled wait nowhere for others, and a grid that waits for them itself is not waited for twice.
    `late` gets the nodes that have not replied after LATE seconds, and again after 2, 4, 8, ... times as many.
    """
    due = LATE
    began, pushed = time.monotonic(), set(grid.push_messages(messages))
    sent = {message.metadata.message_id: message.metadata.dst_node_id for message in messages}
    waiting = {number: node for number, node in sent.items() if number in pushed}
    while waiting:
        looked, arrived = time.monotonic(), list(grid.pull_messages(list(waiting)))
        for reply in arrived:
            number, node = reply.metadata.reply_to_message_id, reply.metadata.src_node_id
            if waiting.get(number) == node or (
                number in waiting and reply.has_error() and node == SUPERLINK
            ):
                del waiting[number]
                yield reply
            else:
                stray(f"node {node} sent a reply that is late, twice there or not its own")
        now = time.monotonic()
        if waiting and timeout is not None and now > began + timeout:
            log.warning("no reply after %g s", timeout)
            return
        if waiting and now > began + due:
            due *= 2
            late(list(waiting.values()), now - began)
        if waiting and not arrived:
            pause = min(LONGEST, max(SHORTEST, SHARE * (now - began)))
            time.sleep(max(0.0, pause - (now - looked)))
