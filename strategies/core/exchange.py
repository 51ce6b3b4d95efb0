"""Ask clients, by one flwr message per node or directly, and again those whose worker died, while somebody new answers.

A node answers for the clients that it was asked for in this exchange, and for nobody else. What it sends besides is
noted as unsolicited in the round's record.
"""

import logging
import re
import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Protocol, cast

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid as Grid  # for the modules that ask, which import flwr nowhere else

from client_app.handlers import (
    ClientFailure,
    ClientOutcome,
    ClientReply,
    ClientRequest,
    ExpectedState,
)
from client_app.messages import ACTION, folded, pack, unfolded
from client_app.polling import PollingClient
from client_app.serialization import Expected
from client_app.state import State
from data.text import printable, sentence
from strategies.core.exchange_settings import ExchangeSettings
from strategies.core.reading import DIGESTS, failure_in, read

log = logging.getLogger("fedskew")


class TooFewReplies(RuntimeError):
    """Fewer good replies than the run asks for."""


class TooFewNodes(TimeoutError):
    """Fewer nodes connected than the run asks for."""


NodeAssignment = Mapping[int, Sequence[int]]
"""By node, the clients that it computes for."""
RECORD = re.compile(r"(0|[1-9][0-9]{0,8})/(.{1,200})", re.ASCII | re.DOTALL)
"""The name of a client's record in a reply: its number, written in the one way that counts, and what it is."""
MOST_UNSOLICITED = 20
"""Sentences on unsolicited records and replies that are kept."""
SHORTEST, LONGEST, SHARE = 0.01, 0.3, 0.02
"""Seconds between two looks for replies at least and at most, and as a share of the time waited so far."""
LATE = 60.0
"""Seconds after which it is said for whom a round waits; it is said again after twice as many, and so on."""
SUPERLINK = 1
"""The node in whose name flwr reports that there will be no reply."""
TRAIN, EVALUATE, QUERY = MessageType.TRAIN, MessageType.EVALUATE, MessageType.QUERY


@dataclass(frozen=True)
class Request:
    """A request to clients, the same for every client of a node."""

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
        """Return the clients by their samples, the most first, so that all workers end at about the same time."""
        return sorted(clients, key=lambda client: (-self.examples.get(client, 0), client))

    def digest(self, kind: str, client: int) -> str:
        """Return the digest of a client's memory or of its data, empty where the server knows none."""
        return self.digests.get(kind, {}).get(client, "")

    def expected_state(self, client: int) -> ExpectedState:
        """Return the state in which the server expects a client."""
        return ExpectedState(
            round=self.memory_rounds.get(client, 0),
            memory=self.digest("memory", client),
            data=self.digest("data", client),
        )

    @cached_property
    def client_request(self) -> ClientRequest:
        """The same without a message."""
        return ClientRequest(self.kind, self.task, self.states, self.run_spec)

    @cached_property
    def records(self) -> dict[str, ArrayRecord]:
        """The states as records, which all messages share."""
        return {name: pack(state) for name, state in self.states.items()}

    def message(self, node: int, clients: Sequence[int]) -> Message:
        """Return the message to a node that runs these clients."""
        task = ConfigRecord(
            {
                **self.task,
                "assignment": self.run_spec,
                "clients": list(clients),
                "memory": [self.memory_rounds.get(client, 0) for client in clients],
            }
        )
        for kind in DIGESTS:
            task[f"{kind}-digests"] = [self.digest(kind, client) for client in clients]
        content = RecordDict({**self.records, "task": task})
        return Message(content, dst_node_id=node, message_type=f"{self.kind}.{ACTION}")

    def messages(self, assignment: NodeAssignment) -> list[Message]:
        """Return one message per node."""
        return [self.message(node, clients) for node, clients in assignment.items()]


class WorkersLost(RuntimeError):
    """The processes that trained or evaluated clients are gone; the message says why."""


class Direct(Grid):
    """A grid that runs clients itself: no message is made."""

    @abstractmethod
    def outcomes(
        self, request: Request, clients: Sequence[int], timeout: float
    ) -> Iterator[ClientOutcome]:
        """Yield what clients answer, in any order, for `timeout` seconds; states are on the CPU and contiguous.

        Raises WorkersLost when nobody is left to run the others.
        """


@dataclass
class Exchange:
    """The clients that were asked, and their replies so far."""

    asked: Sequence[int]
    largest: Expected | None = None
    """What a record may hold."""
    answers: dict[int, ClientReply] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)
    """Why a client's answer does not count, or is not there."""
    reported: dict[int, ClientFailure] = field(default_factory=dict)
    """Of these failures, those that the clients reported themselves."""
    error: str = ""
    """What a node last reported instead of a reply."""
    unsolicited: list[str] = field(default_factory=list)
    """What nodes sent that they were not asked for."""

    @property
    def unanswered(self) -> list[int]:
        """Clients that neither answered nor reported an error."""
        settled = self.answers.keys() | self.failures.keys()
        return [client for client in self.asked if client not in settled]

    def take(self, outcomes: Iterable[ClientOutcome]) -> None:
        """Take what clients answer to a grid that is direct; its own code has made it."""
        try:
            for client, outcome in outcomes:
                if isinstance(outcome, ClientFailure):
                    self.fail(client, outcome)
                else:
                    self.answers[client] = outcome
        except WorkersLost as error:
            self.error = str(error)

    def receive(self, replies: Iterable[Message], assignment: NodeAssignment) -> None:
        """Sort the replies' records by client; an unreadable reply fails its clients."""
        for reply in replies:
            if reply.has_error():  # of flwr's own, a dead worker: its clients stay unanswered
                self.error = printable(reply.error.reason)
                continue
            node = reply.metadata.src_node_id
            asked = set(assignment.get(node, ()))
            try:
                content = unfolded(reply.content)
            except Exception as error:  # whatever a client sends must not end the server
                for client in asked.intersection(self.unanswered):
                    self.refuse(client, f"unreadable reply: {sentence(error)}")
                continue
            self.sort(content, node, asked)

    def sort(self, content: RecordDict, node: int, asked: Collection[int]) -> None:
        """Sort a node's records, named `CLIENT/RECORD`; of a client that comes twice the first counts."""
        records: dict[int, dict[str, object]] = {}
        waiting = set(self.unanswered)
        for name, record in content.items():
            match = RECORD.fullmatch(name)
            client = int(match[1]) if match else -1
            if match is None or client not in asked:
                shown = printable(name[:80])
                self.note_unsolicited(f"node {node} sent {shown}, which it was not asked for")
            elif client in waiting:
                parts = records.setdefault(client, {})
                parts[match[2]] = record
        for client, parts in records.items():
            failure = parts.pop("error", None)
            if isinstance(failure, ConfigRecord):
                self.fail(client, failure_in(failure))
                continue
            try:
                self.answers[client] = read(parts, self.largest)
            except Exception as error:  # whatever a client sends must not end the server
                self.refuse(client, f"unreadable reply: {sentence(error)}")

    def note_unsolicited(self, sentence: str) -> None:
        """Keep a sentence on what a node sent without being asked; the first MOST_UNSOLICITED."""
        if len(self.unsolicited) < MOST_UNSOLICITED:
            self.unsolicited.append(sentence)

    def refuse(self, client: int, reason: str) -> None:
        """Take a client's answer out, for a reason."""
        self.answers.pop(client, None)
        self.failures[client] = printable(reason)

    def fail(self, client: int, failure: ClientFailure) -> None:
        """Take what a client reports instead of an answer."""
        self.refuse(client, failure.reason)
        self.reported[client] = failure

    def uploads(self, name: str) -> dict[int, State]:
        """Return the upload `name` of everybody who answered, sorted by client."""
        found = {}
        for client in sorted(self.answers):
            found[client] = self.answers[client].named("upload")[name]
        return found

    def close(self, absent: Mapping[int, str] | None = None) -> None:
        """Count those who did not answer as failures; `absent` says why some were not asked."""
        reason = f"no reply; a node reported: {self.error}" if self.error else "no reply"
        reasons = absent or {}
        for client in self.unanswered:
            self.failures[client] = reasons.get(client, reason)

    def enough(self, share: float) -> bool:
        """Return whether `share` of those asked sent a good reply, at least one."""
        needed = share * len(self.asked) - 1e-9  # 0.07 * 100 is a little more than 7
        return len(self.answers) >= max(1, needed)

    def check_enough(self, share: float, what: str) -> None:
        """Log who is left out. Raises TooFewReplies when fewer than `share` of those asked sent a good reply."""
        self.failures = dict(sorted(self.failures.items()))
        for client, reason in self.failures.items():
            log.warning("%s: client %d left out: %s", what, client, reason)
        if self.enough(share):
            return
        counts = f"{len(self.answers)} good replies of {len(self.asked)}"
        # A few reasons, cut short: the log above has all of them.
        first_failures = list(self.failures.items())[:5]
        reasons = [f"client {client}: {reason[:200]}" for client, reason in first_failures]
        listed = "; ".join(reasons)
        raise TooFewReplies(f"{what}: {counts}, min-replies = {share:g}; {listed}")


def assign(grid: Grid, clients: Sequence[int], settings: ExchangeSettings) -> NodeAssignment:
    """Spread the clients evenly over the connected nodes; in a simulation any node can compute for any client."""
    nodes = wait_for_nodes(grid, settings)[: len(clients)]
    return {node: clients[first :: len(nodes)] for first, node in enumerate(nodes)}


def wait_for_nodes(grid: Grid, settings: ExchangeSettings) -> list[int]:
    """Return the connected nodes, sorted. Raises TooFewNodes when too few came in time: never a hang."""
    deadline = time.monotonic() + settings.node_wait
    while True:
        nodes = sorted(grid.get_node_ids())
        if len(nodes) >= settings.nodes:
            return nodes
        if time.monotonic() > deadline:
            connected = f"{len(nodes)} of {settings.nodes} nodes connected"
            wait = f"{settings.node_wait:g} s"
            raise TooFewNodes(f"{connected} after {wait}: start more, or lower nodes")
        time.sleep(0.05)


class NodeAssigner(Protocol):
    """Decides which node computes for which client."""

    absent: Mapping[int, str]
    """Why a client is not asked at present."""

    def assign(
        self,
        grid: Grid,
        clients: Sequence[int],
        settings: ExchangeSettings,
    ) -> NodeAssignment:
        """Return the clients of each node."""

    def waits_for(self, clients: Sequence[int], seconds: float, timeout: float) -> None:
        """Say that replies of these clients are still missing after so many seconds of `timeout`."""

    def waits_no_more(self) -> None:
        """Take back what `waits_for` said."""


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
            states: dict[str, ArrayRecord] = {}
            others: dict[str, ConfigRecord | MetricRecord] = {}
            for name, record in message.content.items():
                if isinstance(record, ArrayRecord):
                    states[name] = record
                else:
                    others[name] = record
            same = tuple(id(record) for record in states.values())
            if same not in packed:
                packed[same] = folded(states)
            message.content = RecordDict({**packed[same], **others})
        return self.grid.push_messages(messages)


def replies(
    grid: Grid,
    messages: Sequence[Message],
    timeout: float | None,
    unsolicited: Callable[[str], None] = log.warning,
    late: Callable[[Collection[int], float], None] = lambda nodes, seconds: None,
) -> Iterator[Message]:
    """Send the messages; yield the first reply to each, if it is of the node that was asked, for `timeout` seconds.

    Replies that are pulled wait nowhere for others, and a grid that waits for them itself is not waited for twice.
    `late` gets the nodes that have not replied after LATE seconds, and again after 2, 4, 8, ... times as many.
    """
    due = LATE
    began = time.monotonic()
    pushed = set(grid.push_messages(messages))
    sent = {message.metadata.message_id: message.metadata.dst_node_id for message in messages}
    waiting = {number: node for number, node in sent.items() if number in pushed}
    while waiting:
        looked = time.monotonic()
        arrived = list(grid.pull_messages(list(waiting)))
        for reply in arrived:
            number = reply.metadata.reply_to_message_id
            node = reply.metadata.src_node_id
            is_asked_node = number in waiting and waiting[number] == node
            is_given_up = number in waiting and node == SUPERLINK and reply.has_error()
            if is_asked_node or is_given_up:
                del waiting[number]
                yield reply
            else:
                unsolicited(f"node {node} sent a reply that is late, twice there or not its own")
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


def collect_replies(
    grid: Grid,
    clients: Sequence[int],
    request: Request,
    settings: ExchangeSettings,
    assigner: NodeAssigner,
) -> Exchange:
    """Ask the clients, and ask again those whose worker died, as long as somebody new answers."""
    exchange = Exchange(clients, request.largest)
    before = len(clients) + 1
    while 0 < len(exchange.unanswered) < before:
        before = len(exchange.unanswered)
        if isinstance(grid, Direct):
            wait_for_nodes(grid, settings)
            in_order = request.longest_first(exchange.unanswered)
            exchange.take(grid.outcomes(request, in_order, settings.timeout))
        else:
            assignment = assigner.assign(grid, exchange.unanswered, settings)
            arriving = replies(
                grid,
                request.messages(assignment),
                settings.timeout,
                unsolicited=exchange.note_unsolicited,
                late=partial(report_late, assigner, assignment, settings.timeout),
            )
            try:
                exchange.receive(arriving, assignment)
            finally:
                assigner.waits_no_more()
    exchange.close(assigner.absent)
    return exchange


def report_late(
    assigner: NodeAssigner,
    assignment: NodeAssignment,
    timeout: float,
    nodes: Collection[int],
    seconds: float,
) -> None:
    """Have the assigner report the clients of the nodes that have not replied after so many seconds."""
    clients: list[int] = []
    for node in nodes:
        clients += assignment.get(node, ())
    clients.sort()
    assigner.waits_for(clients, seconds, timeout)
