"""A grid in one process: nodes with contexts of their own, messages by way of flwr's protobuf, no FedSkew."""

import copy
import random
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity


class FakeGrid(Grid):
    """Plays every node in this process, in a shuffled order of replies."""

    def __init__(
        self,
        app: ClientApp,
        nodes: int = 4,
        run_config: Mapping[str, Any] | None = None,
        shuffle: int = 0,
    ) -> None:
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
        self.app = app
        self.order = random.Random(shuffle)
        draws = random.Random(7)
        self.nodes = [draws.getrandbits(62) for _ in range(nodes)]
        self.contexts = {
            node: Context(
                run_id=1,
                node_id=node,
                node_config={"partition-id": number, "num-partitions": nodes},
                state=RecordDict(),
                run_config=dict(run_config or {}),
            )
            for number, node in enumerate(self.nodes)
        }
        self.errors: list[Exception] = []
        self.refusals: list[str] = []
        """The reasons of the error replies that mods made."""
        self.change: Callable[[int, Message], None] = lambda number, reply: None
        """What a dishonest or broken client does to its reply."""

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        replies = [self.answer(message) for message in messages]
        self.order.shuffle(replies)
        return replies

    def answer(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        received = by_wire(message)
        context = copy.deepcopy(self.contexts[node])
        TaskIdentity.node_id = node
        try:
            reply = self.app(received, context)
        except Exception as error:
            self.errors.append(error)
            reply = Message(Error(2, str(error)), reply_to=received)
        else:
            self.contexts[node] = context
            if reply.has_error():
                self.refusals.append(str(reply.error.reason))
            self.change(self.nodes.index(node), reply)
        return by_wire(reply)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError

    def set_run(self, run_id: int) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **named: Any) -> Message:
        raise NotImplementedError


def by_wire(message: Message) -> Message:
    """Return a message as it arrives on the other side."""
    message.metadata.__dict__["_message_id"] = uuid.uuid4().hex
    return message_from_proto(message_to_proto(message))
