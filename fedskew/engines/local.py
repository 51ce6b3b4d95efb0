"""flwr Grids that answer messages in this process: one node for all clients, or a rehearsal with a node per site."""

import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NoReturn

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid

from client_app.flower_internals import TaskIdentity
from client_app.messages import handing_over
from data.agreement import Agreement, as_flower_has_it
from data.text import printable, sentence
from site_agent.config import Site
from site_agent.data_view import install


class Refusing(Grid):
    """A grid without what FedSkew's strategies do not need."""

    def refuse(self, *arguments: object, **named: object) -> NoReturn:
        """Raise NotImplementedError."""
        raise NotImplementedError("a grid of this machine runs clients and offers nothing else")

    push_messages: Callable[..., Iterable[str]] = refuse
    pull_messages: Callable[..., Iterable[Message]] = refuse
    send_and_receive: Callable[..., Iterable[Message]] = refuse
    set_run: Callable[..., NoReturn] = refuse
    run: property = property(refuse)
    create_message: Callable[..., NoReturn] = refuse


class LocalGrid(Refusing):
    """Hands every message straight to the ClientApp and returns its replies: clients run one after the other.

    To be used as a context manager.
    """

    def __init__(self) -> None:
        self.stack = ExitStack()
        self.out: dict[str, Message] = {}

    def __enter__(self) -> "LocalGrid":
        identify()
        self.stack.enter_context(handing_over())
        return self

    def __exit__(self, *error: object) -> None:
        self.stack.close()

    def get_node_ids(self) -> Iterable[int]:
        """Return the node that runs every client."""
        return [1]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Take messages and return their numbers; earlier ones that are still unanswered get no reply any more."""
        self.out = {}
        for message in messages:
            number = message.metadata.__dict__["_message_id"] = uuid.uuid4().hex
            self.out[number] = message
        return list(self.out)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Run the client of the first message that is unanswered, and return its reply."""
        for number in message_ids:
            if number in self.out:
                reply = self.answer_here(self.out[number])
                del self.out[reply.metadata.reply_to_message_id]
                return [reply]
        return []

    def answer_here(self, message: Message) -> Message:
        """Return the reply of this process's ClientApp."""
        return handle(message)


def identify() -> None:
    """Give flwr the numbers that its messages carry, which have no meaning in one process."""
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1


def handle(message: Message) -> Message:
    """Return the ClientApp's reply to a message, or flwr's error message when it raised."""
    from client_app.app import app

    identify()
    context = Context(
        run_id=1,
        node_id=message.metadata.dst_node_id,
        node_config={},
        state=RecordDict(),
        run_config={},
    )
    try:
        return app(message, context)
    except Exception as error:
        return Message(Error(2, printable(sentence(error))), reply_to=message)


@dataclass(frozen=True)
class Node:
    """A node as flwr's Grid lists it."""

    node_id: int
    public_key: bytes


class RehearsalGrid(LocalGrid):
    """One node per site, each with the public key that the agreement names; all run in this process."""

    def __init__(self, sites: Mapping[int, Site], agreement: Agreement) -> None:
        super().__init__()
        self.sites = sites
        self.nodes = []
        for number, site in enumerate(agreement.sites):
            if number in sites:
                self.nodes.append(Node(number + 1, as_flower_has_it(site.key)))

    def __enter__(self) -> "RehearsalGrid":
        super().__enter__()
        install(self.sites, signed_runs=False)
        return self

    def __exit__(self, *error: object) -> None:
        install({})
        super().__exit__(*error)

    def get_node_ids(self) -> Iterable[int]:
        """Return the sites' nodes."""
        return [node.node_id for node in self.nodes]

    def get_nodes(self) -> Iterable[Node]:  # type: ignore[override]  # flwr's own holds what only a SuperLink knows
        """Return the sites' nodes with their keys."""
        return self.nodes
