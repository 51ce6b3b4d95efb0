"""Asking clients something, and again while somebody new answers: by one of flwr's messages a node, or directly.

A node answers for the clients that it was asked for in this exchange, and for nobody else; what it sends besides is
kept as a stray sentence for the record.
"""

import logging
import re
import time
from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Annotated, Protocol

from annotated_types import Ge, Gt, Le
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid as Grid  # for the modules that ask, which import flwr nowhere else

from client_app.handlers import ClientOutcome, ClientReply, ClientRequest, ExpectedState
from client_app.messages import pack, unfolded
from client_app.serialization import Expected
from client_app.state import State
from data import Settings
from data.text import printable, sentence
from strategies.core.reading import DIGESTS, read
from strategies.core.replies import replies

log = logging.getLogger("fedskew")


@dataclass(frozen=True)
class ExchangeSettings(Settings):
    """How the server reaches its clients."""

    nodes: Annotated[int, Ge(1), Le(1_000_000)] = 1
    """Connected nodes to wait for before asking; any node plays any client in a simulation."""
    node_wait: Annotated[float, Ge(0)] = 90.0
    """Seconds to wait for them; then the run fails. flwr refuses a killed node's successor for up to 60 of them."""
    timeout: Annotated[float, Gt(0)] = 3600.0
    """Seconds to wait for the replies of a round; the missing ones count as failures."""
    min_replies: Annotated[float, Gt(0), Le(1)] = 1.0
    """Share of the clients asked that must send a good reply; with fewer the run stops, its checkpoint kept."""


class TooFewReplies(RuntimeError):
    """Fewer good replies than the run asks for."""


class TooFewNodes(TimeoutError):
    """Fewer nodes connected than the run asks for."""


Dealt = Mapping[int, Sequence[int]]
"""By node, the clients that it is asked to play."""
RECORD = re.compile(r"(0|[1-9][0-9]{0,8})/(.{1,200})", re.ASCII | re.DOTALL)
"""The name of a client's record in a reply: its number, written in the one way that counts, and what it is."""
MOST_STRAYS = 20
"""Sentences on strays that are kept."""
TRAIN, EVALUATE, QUERY = MessageType.TRAIN, MessageType.EVALUATE, MessageType.QUERY


@dataclass(frozen=True)
class Request:
    """What clients are asked, whichever of them a node plays."""

    kind: str
    """TRAIN, EVALUATE or QUERY."""
    task: Mapping[str, int | str]
    """The round, or the question."""
    states: Mapping[str, State]
    """What travels with it, once a node."""
    run_spec: str
    memory_rounds: Mapping[int, int]
    """By client, the round of the memory that counts."""
    digests: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    """By kind and client, what the server knows of its memory and of its data."""
    largest: Expected | None = None
    """What a record of a reply may hold."""
    examples: Mapping[int, int] = field(default_factory=dict)
    """By client its training samples, where the server knows them."""

    def longest_first(self, clients: Sequence[int]) -> list[int]:
        """Return the clients by their samples, the most first: who works on what is left ends at about one time."""
        return sorted(clients, key=lambda client: (-self.examples.get(client, 0), client))

    def known(self, client: int) -> ExpectedState:
        """Return what the server knows of a client."""
        memory, data = (self.digests.get(kind, {}).get(client, "") for kind in DIGESTS)
        return ExpectedState(self.memory_rounds.get(client, 0), memory, data)

    @cached_property
    def client_request(self) -> ClientRequest:
        """The same without a message."""
        return ClientRequest(self.kind, self.task, self.states, self.run_spec)

    @cached_property
    def records(self) -> dict[str, ArrayRecord]:
        """The states as records, which all messages share."""
        return {name: pack(state) for name, state in self.states.items()}

    def message(self, node: int, clients: Sequence[int]) -> Message:
        """Return the message to a node that plays these clients."""
        memory = [self.memory_rounds.get(client, 0) for client in clients]
        known = {kind: self.digests.get(kind, {}) for kind in DIGESTS}
        task = ConfigRecord(
            {**self.task, "assignment": self.run_spec, "clients": list(clients), "memory": memory}
        )
        task.update(
            {
                f"{kind}-digests": [codes.get(client, "") for client in clients]
                for kind, codes in known.items()
            }
        )
        content = RecordDict({**self.records, "task": task})
        return Message(content, dst_node_id=node, message_type=self.kind)

    def messages(self, dealt: Dealt) -> list[Message]:
        """Return one message a node."""
        return [self.message(node, clients) for node, clients in dealt.items()]


class Lost(RuntimeError):
    """Whoever played clients is gone; the message says what is known of it."""


class Direct(Grid):
    """A grid that plays clients itself: no message is made."""

    @abstractmethod
    def outcomes(
        self, request: Request, clients: Sequence[int], timeout: float
    ) -> Iterator[ClientOutcome]:
        """Yield what clients answer, in any order, for `timeout` seconds; states are on the CPU and contiguous.

        Raises Lost when nobody is left to play the others.
        """


@dataclass
class Exchange:
    """Who was asked, and what came back so far."""

    asked: Sequence[int]
    largest: Expected | None = None
    """What a record may hold."""
    answers: dict[int, ClientReply] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)
    error: str = ""
    """What a node last reported instead of a reply."""
    strays: list[str] = field(default_factory=list)
    """What nodes sent that they were not asked for."""

    @property
    def unanswered(self) -> list[int]:
        """Clients that neither answered nor reported an error."""
        return [
            client
            for client in self.asked
            if client not in self.answers and client not in self.failures
        ]

    def take(self, outcomes: Iterable[ClientOutcome]) -> None:
        """Take what clients answer to a grid that is direct; its own code has made it."""
        try:
            for client, outcome in outcomes:
                if isinstance(outcome, str):
                    self.refuse(client, outcome)
                else:
                    self.answers[client] = outcome
        except Lost as error:
            self.error = str(error)

    def receive(self, replies: Iterable[Message], dealt: Dealt) -> None:
        """Sort the replies' records by client; a reply nobody can read fails the clients it cannot be read for."""
        for reply in replies:
            if reply.has_error():  # of flwr's own, a dead worker: its clients stay unanswered
                self.error = printable(reply.error.reason)
            else:
                node = reply.metadata.src_node_id
                asked = set(dealt.get(node, ()))
                try:
                    content = unfolded(reply.content)
                except Exception as error:  # whatever a client sends must not end the server
                    for client in asked & set(self.unanswered):
                        self.refuse(client, f"unreadable reply: {sentence(error)}")
                else:
                    self.sort(content, node, asked)

    def sort(self, content: RecordDict, node: int, asked: Collection[int]) -> None:
        """Sort a node's records, named `CLIENT/RECORD`; of a client that comes twice the first counts."""
        records: dict[int, dict[str, object]] = {}
        waiting = set(self.unanswered)
        for name, record in content.items():
            match = RECORD.fullmatch(name)
            client = int(match[1]) if match else -1
            if match is None or client not in asked:
                self.stray(f"node {node} sent {printable(name[:80])}, which it was not asked for")
            elif client in waiting:
                records.setdefault(client, {})[match[2]] = record
        for client, parts in records.items():
            if isinstance(error := parts.pop("error", None), ConfigRecord):
                self.refuse(client, str(error.get("reason", "no reason given")))
                continue
            try:
                self.answers[client] = read(parts, self.largest)
            except Exception as error:  # whatever a client sends must not end the server
                self.refuse(client, f"unreadable reply: {sentence(error)}")

    def stray(self, sentence: str) -> None:
        """Keep what a node sent unasked, the first few."""
        if len(self.strays) < MOST_STRAYS:
            self.strays.append(sentence)

    def refuse(self, client: int, reason: str) -> None:
        """Take a client's answer out, for a reason."""
        self.answers.pop(client, None)
        self.failures[client] = printable(reason)

    def uploads(self, name: str) -> dict[int, State]:
        """Return the upload `name` of everybody who answered, sorted by client."""
        return {
            client: self.answers[client].named("upload")[name] for client in sorted(self.answers)
        }

    def close(self, absent: Mapping[int, str] | None = None) -> None:
        """Count those who did not answer as failures; `absent` says why some were not asked."""
        reason = f"no reply; a node reported: {self.error}" if self.error else "no reply"
        self.failures |= {client: (absent or {}).get(client, reason) for client in self.unanswered}

    def enough(self, share: float) -> bool:
        """Return whether `share` of those asked sent a good reply, at least one."""
        return len(self.answers) >= max(
            1, share * len(self.asked) - 1e-9
        )  # 0.55 * 20 is a little more than 11

    def check_enough(self, share: float, what: str) -> None:
        """Log who is left out. Raises TooFewReplies when fewer than `share` of those asked sent a good reply."""
        self.failures = dict(sorted(self.failures.items()))
        for client, reason in self.failures.items():
            log.warning("%s: client %d left out: %s", what, client, reason)
        if not self.enough(share):
            reasons = "; ".join(
                f"client {client}: {reason[:200]}"
                for client, reason in list(self.failures.items())[:5]
            )
            raise TooFewReplies(
                f"{what}: {len(self.answers)} good replies of {len(self.asked)}, min-replies = {share:g}; {reasons}"
            )


def deal(grid: Grid, clients: Sequence[int], settings: ExchangeSettings) -> Dealt:
    """Return which of the connected nodes plays which of the clients; any node can play any in a simulation."""
    nodes = wait_for_nodes(grid, settings)[: len(clients)]
    return {node: clients[place :: len(nodes)] for place, node in enumerate(nodes)}


def wait_for_nodes(grid: Grid, settings: ExchangeSettings) -> list[int]:
    """Return the connected nodes, sorted. Raises TooFewNodes when too few came in time: never a hang."""
    deadline = time.monotonic() + settings.node_wait
    while len(nodes := sorted(grid.get_node_ids())) < settings.nodes:
        if time.monotonic() > deadline:
            raise TooFewNodes(
                f"{len(nodes)} of {settings.nodes} nodes connected after {settings.node_wait:g} s: "
                "start more, or lower nodes"
            )
        time.sleep(0.05)
    return nodes


class Directory(Protocol):
    """Who plays which client."""

    absent: Mapping[int, str]
    """Why a client is not asked at present."""

    def deal(self, grid: Grid, clients: Sequence[int], settings: ExchangeSettings) -> Dealt:
        """Return the clients that each node is to play."""

    def waits_for(self, clients: Sequence[int], seconds: float, timeout: float) -> None:
        """Say that replies of these clients are still missing after so many seconds of `timeout`."""

    def waits_no_more(self) -> None:
        """Take back what `waits_for` said."""


def converse(
    grid: Grid,
    clients: Sequence[int],
    request: Request,
    settings: ExchangeSettings,
    directory: Directory,
) -> Exchange:
    """Ask the clients, and ask again those whose worker died, as long as somebody new answers."""
    exchange = Exchange(clients, request.largest)
    before = len(clients) + 1
    while 0 < len(exchange.unanswered) < before:
        before = len(exchange.unanswered)
        if isinstance(grid, Direct):
            wait_for_nodes(grid, settings)
            exchange.take(
                grid.outcomes(request, request.longest_first(exchange.unanswered), settings.timeout)
            )
        else:
            dealt = directory.deal(grid, exchange.unanswered, settings)
            late = partial(report_late, directory, dealt, settings.timeout)
            try:
                exchange.receive(
                    replies(grid, request.messages(dealt), settings.timeout, exchange.stray, late),
                    dealt,
                )
            finally:
                directory.waits_no_more()
    exchange.close(directory.absent)
    return exchange


def report_late(
    directory: Directory, dealt: Dealt, timeout: float, nodes: Collection[int], seconds: float
) -> None:
    """Have the directory say which clients the nodes play that have not replied after so many seconds."""
    clients = sorted(client for node in nodes for client in dealt.get(node, ()))
    directory.waits_for(clients, seconds, timeout)
