"""Asking clients something through flwr: one message a node, asked again while somebody new answers.

A node answers for the clients that it was asked for in this exchange, and for nobody else; what it sends besides is
kept as a stray sentence for the record.
"""

import logging
import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Protocol

from annotated_types import Ge, Gt, Le
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid as Grid  # for the modules that ask, which import flwr nowhere else

from client_app.messages import named, pack, unfolded, unpack
from client_app.state import State
from data import Settings
from data.text import printable, sentence
from strategies.replies import replies

log = logging.getLogger("fedskew")


@dataclass(frozen=True)
class ExchangeSettings(Settings):
    """How the server reaches its clients."""

    nodes: Annotated[int, Ge(1), Le(1_000_000)] = 1
    """Connected nodes to wait for before asking; any node plays any client in a simulation."""
    node_wait: Annotated[float, Ge(0)] = 60.0
    """Seconds to wait for them; then the run fails."""
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
SHA256 = re.compile(r"[0-9a-f]{64}")
DIGESTS = ("memory", "data")
"""What a client tells the digest of."""
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
    assignment: str
    memory_rounds: Mapping[int, int]
    """By client, the round of the memory that counts."""
    digests: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    """By kind and client, what the server knows of its memory and of its data."""
    largest: int | None = None
    """Bytes that a record of a reply may have."""

    @cached_property
    def records(self) -> dict[str, ArrayRecord]:
        """The states as records, which all messages share."""
        return {name: pack(state) for name, state in self.states.items()}

    def message(self, node: int, clients: Sequence[int]) -> Message:
        """Return the message to a node that plays these clients."""
        memory = [self.memory_rounds.get(client, 0) for client in clients]
        known = {kind: self.digests.get(kind, {}) for kind in DIGESTS}
        task = ConfigRecord({**self.task, "assignment": self.assignment, "clients": list(clients), "memory": memory})
        task.update({f"{kind}-digests": [codes.get(client, "") for client in clients] for kind, codes in known.items()})
        content = RecordDict({**self.records, "task": task})
        return Message(content, dst_node_id=node, message_type=self.kind)

    def messages(self, dealt: Dealt) -> list[Message]:
        """Return one message a node."""
        return [self.message(node, clients) for node, clients in dealt.items()]


@dataclass(frozen=True)
class Answer:
    """One client's records."""

    states: Mapping[str, State] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    worker: Mapping[str, object] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)
    """sha256 of the client's memory and of its data, as far as it has any."""

    def named(self, kind: str) -> dict[str, State]:
        """Return the states named `kind/NAME`, by NAME."""
        return named(self.states, kind)


@dataclass
class Exchange:
    """Who was asked, and what came back so far."""

    asked: Sequence[int]
    largest: int | None = None
    """Bytes that a record may have."""
    answers: dict[int, Answer] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)
    error: str = ""
    """What a node last reported instead of a reply."""
    strays: list[str] = field(default_factory=list)
    """What nodes sent that they were not asked for."""

    @property
    def unanswered(self) -> list[int]:
        """Clients that neither answered nor reported an error."""
        return [client for client in self.asked if client not in self.answers and client not in self.failures]

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
        return {client: self.answers[client].named("upload")[name] for client in sorted(self.answers)}

    def close(self, absent: Mapping[int, str] | None = None) -> None:
        """Count those who did not answer as failures; `absent` says why some were not asked."""
        reason = f"no reply; a node reported: {self.error}" if self.error else "no reply"
        self.failures |= {client: (absent or {}).get(client, reason) for client in self.unanswered}

    def enough(self, share: float) -> bool:
        """Return whether `share` of those asked sent a good reply, at least one."""
        return len(self.answers) >= max(1, share * len(self.asked) - 1e-9)  # 0.55 * 20 is a little more than 11

    def check_enough(self, share: float, what: str) -> None:
        """Log who is left out. Raises TooFewReplies when fewer than `share` of those asked sent a good reply."""
        self.failures = dict(sorted(self.failures.items()))
        for client, reason in self.failures.items():
            log.warning("%s: client %d left out: %s", what, client, reason)
        if not self.enough(share):
            reasons = "; ".join(
                f"client {client}: {reason[:200]}" for client, reason in list(self.failures.items())[:5]
            )
            raise TooFewReplies(
                f"{what}: {len(self.answers)} good replies of {len(self.asked)}, min-replies = {share:g}; {reasons}"
            )


def read(parts: Mapping[str, object], largest: int | None) -> Answer:
    """Return one client's records, each of at most so many bytes, as an answer."""
    states, numbers, words, digests = {}, {}, {}, {}
    for name, record in parts.items():
        if name == "metrics":
            numbers = {key: number(key, value) for key, value in dict(record).items()}  # type: ignore[call-overload]
        elif name == "worker" and isinstance(record, ConfigRecord):  # only what a record of the round can hold
            kept = {key: value for key, value in record.items() if key in ("process", "device", "visible-gpus")}
            if any(isinstance(value, int) and abs(value) >= 2**63 for value in kept.values()):
                raise ValueError("worker: has a number of more than 63 bits")  # Python does not print the longest
            words = {key: value if isinstance(value, int) else printable(value) for key, value in kept.items()}
        elif name == "digests" and isinstance(record, ConfigRecord):
            digests = {kind: digest_of(record[kind]) for kind in DIGESTS if kind in record}
        else:
            states[name] = unpack(record, largest)
    return Answer(states, numbers, words, digests)


def digest_of(code: object) -> str:
    """Return a sha256. Raises ValueError for what is none."""
    if not isinstance(code, str) or not SHA256.fullmatch(code):
        raise ValueError("a digest is no sha256")
    return code


def number(key: str, value: object) -> float:
    """Return a metric as a float. Raises TypeError for what is none, as a list or a truth value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"metric {key} is {type(value).__name__}, not a number")
    return float(value)


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


def converse(
    grid: Grid, clients: Sequence[int], request: Request, settings: ExchangeSettings, directory: Directory
) -> Exchange:
    """Ask the clients, and ask again those whose worker died, as long as somebody new answers."""
    exchange = Exchange(clients, request.largest)
    before = len(clients) + 1
    while 0 < len(exchange.unanswered) < before:
        before = len(exchange.unanswered)
        dealt = directory.deal(grid, exchange.unanswered, settings)
        exchange.receive(replies(grid, request.messages(dealt), settings.timeout, exchange.stray), dealt)
    exchange.close(directory.absent)
    return exchange
