"""Hand on a reply once all of its objects have arrived, so that no incomplete reply holds back another.

flwr announces a reply before its objects arrive, and announces it once. Its Grid then waits for the objects of one
reply after the other. If a site is killed while it uploads, the objects never arrive, and flwr gives up after 180
seconds.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from flwr.serverapp import Grid

from client_app.flower_internals import (
    PullAppMessagesRequest,
    PullAppMessagesResponse,
    PullObjectRequest,
    PullObjectResponse,
    on_its_way,
)

SUPERLINK_NODE = 1
"""The node id by which a ServerApp fetches objects, and from which flwr reports that a reply will never come."""


def between_sites(grid: Grid) -> Grid:
    """Make flwr's HttpGrid hand on whole replies, for a run between sites, and return it.

    The grid of a rehearsal is returned unchanged, as it sends nothing over a network.
    """
    # The attribute identifies HttpGrid. An isinstance check would import its module in simulations too.
    if hasattr(grid, "_runtime_client"):
        grid._client = WholeReplies(grid._runtime_client)  # type: ignore[attr-defined]
    return grid


def is_between_sites(grid: Grid) -> bool:
    """Return whether `between_sites` has prepared the grid."""
    return isinstance(getattr(grid, "_client", None), WholeReplies)


@dataclass
class IncomingReply:
    """A reply that was announced, in flwr's protobuf, and those of its objects that have arrived."""

    message: Any
    tree: Any
    missing: list[str]
    """Ids of the objects that have not arrived."""
    arrived: dict[str, Any] = field(default_factory=dict)
    """By id, flwr's response with the object."""


class WholeReplies:
    """A runtime client whose `PullMessages` returns the replies that have arrived as a whole, and does not wait."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.incoming: list[IncomingReply] = []
        self.objects: dict[str, Any] = {}
        """By id, flwr's responses with the objects of the replies that were handed on last."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)

    def PullMessages(self, request: Any) -> Any:
        """Return flwr's response with the whole replies to the messages that the request names."""
        asked = set(request.message_ids)
        # Nobody waits for the others any more.
        self.incoming = [reply for reply in self.incoming if answered_by(reply.message) in asked]
        # flwr takes an announced reply for delivered: it answers a second request for it with an error.
        unannounced = asked - {answered_by(reply.message) for reply in self.incoming}
        if unannounced:
            self.announce(sorted(unannounced))

        self.objects.clear()
        over = [reply for reply in self.incoming if self.is_over(reply)]
        self.incoming = [reply for reply in self.incoming if reply not in over]

        handed_on = PullAppMessagesResponse()
        for reply in over:
            for name in reply.missing:
                self.objects[name] = PullObjectResponse(object_found=False)
            handed_on.messages_list.append(reply.message)
            handed_on.message_object_trees.append(reply.tree)
        for reply in over:
            # Last: an object that one reply misses may have arrived with another.
            self.objects |= reply.arrived
        return handed_on

    def PullObject(self, request: Any) -> Any:
        """Return flwr's response: the object of a reply that was handed on, or what the SuperLink answers."""
        response = self.objects.get(request.object_id)  # two replies may have the same object
        return self.client.PullObject(request) if response is None else response

    def announce(self, message_ids: list[str]) -> None:
        """Ask for the replies to these messages that are announced by now, and add them to `incoming`."""
        response = self.client.PullMessages(PullAppMessagesRequest(message_ids=message_ids))
        announced = zip(response.messages_list, response.message_object_trees, strict=True)
        for message, tree in announced:
            self.incoming.append(IncomingReply(message, tree, missing=list(object_ids(tree))))

    def is_over(self, reply: IncomingReply) -> bool:
        """Fetch what has arrived, and return whether the reply is whole, or one of its objects will never arrive."""
        while reply.missing:
            name = reply.missing[0]
            request = PullObjectRequest(run_id=reply.message.metadata.run_id, object_id=name)
            request.node.node_id = SUPERLINK_NODE
            response = self.client.PullObject(request)
            if on_its_way(response):
                return False
            if not response.object_found:
                return True
            reply.arrived[name] = response
            del reply.missing[0]
        return True


def answered_by(message: Any) -> str:
    """Return the id of the message that a reply answers."""
    return str(message.metadata.reply_to_message_id)


def object_ids(tree: Any) -> Iterator[str]:
    """Yield the ids of all objects of a reply, in flwr's order: what an object consists of comes before it."""
    for child in tree.children:
        yield from object_ids(child)
    yield str(tree.object_id)
