"""Send requests to clients and collect their replies, with one flwr message per node or by a direct call.

Clients whose worker process died are asked again, as long as each attempt brings at least one new answer. A node may
answer only for the clients that it was asked for in this exchange. Anything else that it sends is ignored and logged.
"""

import logging
import math
import re
import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid as Grid  # re-exported, so that other modules need not import flwr

from client_app.handlers import (
    ClientFailure,
    ClientOutcome,
    ClientReply,
    ClientRequest,
    ExpectedState,
)
from client_app.messages import ACTION, folded, pack, unfolded
from client_app.serialization import Expected
from client_app.state import State
from data.text import printable, sentence
from strategies.core.node_assignment import (
    LATE_SECONDS,
    ExchangeSettings,
    NodeAssigner,
    NodeAssignment,
    wait_for_nodes,
)
from strategies.core.validation import failure_in, read
from strategies.core.whole_replies import SUPERLINK_NODE, is_between_sites

log = logging.getLogger("fedskew")


class TooFewReplies(RuntimeError):
    """Fewer clients sent a valid reply than min-reply-share, or between sites min-sites, demands."""


RECORD_NAME = re.compile(r"(0|[1-9][0-9]{0,8})/(.{1,200})", re.ASCII | re.DOTALL)
"""The name of a record in a reply, CLIENT/RECORD: the client's number without leading zeros, then e.g. upload/NAME."""
NODES_LOOK = 2.0
"""Seconds between two looks whether the asked nodes are still connected, and have not started again."""
MIN_POLL, MAX_POLL = 0.01, 0.3
"""Shortest and longest pause, in seconds, between two polls for replies."""
POLL_SHARE = 0.02
"""The pause as a share of the time waited so far: a long wait costs few polls and lasts at most about 2 % longer."""
NO_REPLY = "no reply"
"""Why a client was left out whose reply did not arrive in time."""
TRAIN, EVALUATE, QUERY = MessageType.TRAIN, MessageType.EVALUATE, MessageType.QUERY


@dataclass(frozen=True)
class Request:
    """A request to clients, the same for every client of a node."""

    kind: str
    """TRAIN, EVALUATE or QUERY."""
    task: Mapping[str, int | str]
    """The round, or the question."""
    states: Mapping[str, State]
    """The tensors of the request, by record name; sent once per node."""
    run_spec: str
    """The run's settings that clients need, as JSON."""
    client_states: Mapping[int, ExpectedState] = field(default_factory=dict)
    """By client, the memory that it loads and the data that it must have; a client that is not there is new."""
    largest: Expected | None = None
    """Limits of each record in a reply; None sets no limit."""
    examples: Mapping[int, int] = field(default_factory=dict)
    """By client, its number of training samples, if the server knows it."""

    def longest_first(self, clients: Sequence[int]) -> list[int]:
        """Sort clients by decreasing number of samples, so that all workers finish at about the same time."""
        return sorted(clients, key=lambda client: (-self.examples.get(client, 0), client))

    def expected_state(self, client: int) -> ExpectedState:
        """Return the memory and data that the server expects a client to have."""
        return self.client_states.get(client, ExpectedState())

    @cached_property
    def client_request(self) -> ClientRequest:
        """The request as clients in the server's own processes get it, without a flwr message."""
        return ClientRequest(self.kind, self.task, self.states, self.run_spec)

    @cached_property
    def records(self) -> dict[str, ArrayRecord]:
        """The states as flwr records, packed once and shared by all messages."""
        return {name: pack(state) for name, state in self.states.items()}

    def messages(self, assignment: NodeAssignment, fold: bool = False) -> list[Message]:
        """Return one message per node; with `fold` all states are one record of fewer objects, the same for all."""
        records = folded(self.records) if fold else self.records
        messages = []
        for node, clients in assignment.items():
            states = [self.expected_state(client) for client in clients]
            task = ConfigRecord(
                {
                    **self.task,
                    "assignment": self.run_spec,
                    "clients": list(clients),
                    "memory": [state.round for state in states],
                    "memory-digests": [state.memory for state in states],
                    "data-digests": [state.data for state in states],
                }
            )
            content = RecordDict({**records, "task": task})
            kind = f"{self.kind}.{ACTION}"
            messages.append(Message(content, dst_node_id=node, message_type=kind))
        return messages


class WorkersLost(RuntimeError):
    """The processes that trained or evaluated clients have died; the message says why."""


class DirectGrid(Grid):
    """A grid that runs the clients on this machine and exchanges no flwr messages."""

    @abstractmethod
    def outcomes(
        self, request: Request, clients: Sequence[int], timeout: float
    ) -> Iterator[ClientOutcome]:
        """Yield each client's reply or failure, in any order, for at most `timeout` seconds.

        The tensors are on the CPU and contiguous. Raises WorkersLost when no worker is left for the remaining clients.
        """


@dataclass
class Exchange:
    """The clients that were asked, and their replies so far."""

    asked: Sequence[int]
    largest: Expected | None = None
    """Limits of each record in a reply; None sets no limit."""
    answers: dict[int, ClientReply] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)
    """By client, why its answer is missing or was refused."""
    reported: dict[int, ClientFailure] = field(default_factory=dict)
    """The failures that clients reported themselves; `failures` has their reasons as well."""
    error: str = ""
    """The last error that flwr sent in place of a reply, or why the workers were lost."""
    sites: Sequence[str] = ()
    """The clients' names between sites; empty in a simulation."""

    @property
    def unanswered(self) -> list[int]:
        """Clients that have neither an answer nor a failure so far."""
        return [k for k in self.asked if k not in self.answers and k not in self.failures]

    def take(self, outcomes: Iterable[ClientOutcome]) -> None:
        """Store the outcomes of a DirectGrid. They need no parsing: the server's own code has made them."""
        try:
            for client, outcome in outcomes:
                if isinstance(outcome, ClientFailure):
                    self.fail(client, outcome)
                else:
                    self.answers[client] = outcome
        except WorkersLost as error:
            self.error = str(error)

    def receive(self, replies: Iterable[Message], assignment: NodeAssignment) -> None:
        """Read the replies and store each client's answer or failure; an unreadable reply fails its node's clients."""
        for reply in replies:
            if reply.has_error():  # flwr's error, as for a dead worker: its clients are asked again
                self.error = printable(reply.error.reason)
                continue
            node = reply.metadata.src_node_id
            asked = set(assignment.get(node, ()))
            try:
                content = unfolded(reply.content)
            except Exception as error:  # no bytes that a client sends may crash the server
                for client in asked.intersection(self.unanswered):
                    self.refuse(client, f"unreadable reply: {sentence(error)}")
                continue
            self.sort(content, node, asked)

    def sort(self, content: RecordDict, node: int, asked: Collection[int]) -> None:
        """Group a node's records, named CLIENT/RECORD, by client, and store each client's answer or failure.

        Records of a client that has already answered, or is not among `asked`, are ignored.
        """
        records: dict[int, dict[str, object]] = {client: {} for client in asked}
        strays = []
        for name, record in content.items():
            match = RECORD_NAME.fullmatch(name)
            client = int(match[1]) if match else -1
            if match is None or client not in records:
                strays.append(name)
            else:
                records[client][match[2]] = record
        if strays:
            first = printable(strays[0][:80])
            log.warning("node %d was not asked for %d records: %s", node, len(strays), first)
        for client in self.unanswered:
            parts = records.get(client)
            if not parts:
                continue
            failure = parts.pop("error", None)
            if isinstance(failure, ConfigRecord):
                self.fail(client, failure_in(failure))
                continue
            try:
                self.answers[client] = read(parts, self.largest)
            except Exception as error:  # no bytes that a client sends may crash the server
                self.refuse(client, f"unreadable reply: {sentence(error)}")

    def refuse(self, client: int, reason: str) -> None:
        """Discard a client's answer, if there is one, and store the reason as its failure."""
        self.answers.pop(client, None)
        self.failures[client] = printable(reason)

    def fail(self, client: int, failure: ClientFailure) -> None:
        """Store the failure that a client reported in place of an answer."""
        self.refuse(client, failure.reason)
        self.reported[client] = failure

    def uploads(self, name: str) -> dict[int, State]:
        """Return the upload `name` of each client that answered, sorted by client."""
        answers = sorted(self.answers.items())
        return {client: answer.named("upload")[name] for client, answer in answers}

    def close(self, absent: Mapping[int, str] | None = None) -> None:
        """Store a failure for each client without an answer; `absent` has the reasons of those that were not asked."""
        reason = f"{NO_REPLY}; a node reported: {self.error}" if self.error else NO_REPLY
        reasons = absent or {}
        for client in self.unanswered:
            self.failures[client] = reasons.get(client, reason)

    def least(self, share: float) -> int:
        """Return how many valid replies are at least `share` of the asked clients; one is the least."""
        # 1e-9 makes up for rounding: 0.07 * 100 is a little more than 7 in floating point.
        return max(1, math.ceil(share * len(self.asked) - 1e-9))

    def check_enough(self, share: float, what: str) -> None:
        """Log the clients that failed. Raises TooFewReplies when fewer than `share` of the asked sent a valid reply.

        `what` begins the messages, such as "round 3".
        """
        reasons = []
        for client, reason in sorted(self.failures.items()):
            name = client_name(client, self.sites)
            log.warning("%s: %s left out: %s", what, name, reason)
            reasons.append(f"{name}: {reason[:200]}")
        least = self.least(share)
        if len(self.answers) >= least:
            return
        counts = f"{len(self.answers)} good replies of {len(self.asked)}"
        # Between sites the agreement sets the share.
        rule = "min-sites" if self.sites else f"min-reply-share = {share:g}"
        # The log has all reasons, and in full.
        found = f"{what}: {counts}, and {rule} asks for {least}; {'; '.join(reasons[:5])}"
        raise TooFewReplies(found)


def is_no_reply(failure: str) -> bool:
    """Return whether a client was left out because its reply did not arrive in time."""
    return failure == NO_REPLY or failure.startswith(f"{NO_REPLY}; ")


def client_name(client: int, sites: Sequence[str]) -> str:
    """Return what a sentence calls a client: between sites by its site's name."""
    return f"site {sites[client]}" if sites else f"client {client}"


def replies(
    grid: Grid,
    messages: Sequence[Message],
    timeout: float,
    late: Callable[[Collection[int], float], None] = lambda nodes, seconds: None,
) -> Iterator[Message]:
    """Send the messages, and yield the first reply to each as soon as it has arrived.

    A reply counts only if it comes from the node that was asked.

    Args:
        grid: sends the messages.
        messages: one per node.
        timeout: seconds to wait for all replies.
        late: gets the nodes without a reply and the seconds waited, after LATE_SECONDS and again after 2, 4, 8, ...
            times as many.
    """
    due = LATE_SECONDS
    began = time.monotonic()
    pushed = set(grid.push_messages(messages))
    sent = {message.metadata.message_id: message.metadata.dst_node_id for message in messages}
    waiting = {message_id: node for message_id, node in sent.items() if message_id in pushed}
    signed_in = signed_in_at(grid)
    next_look = began + NODES_LOOK
    while waiting:
        polled = time.monotonic()
        if polled > next_look:
            next_look = polled + NODES_LOOK
            now_signed_in = signed_in_at(grid)
            for message_id, node in list(waiting.items()):
                # flwr hands a message out once: a SuperNode that has started since then never gets it. Of a node that
                # went offline while it uploaded, the rest of the reply never arrives.
                if now_signed_in.get(node) != signed_in.get(node):
                    log.warning(
                        "node %d has gone offline or started again: its reply is lost", node
                    )
                    del waiting[message_id]
        arrived = list(grid.pull_messages(list(waiting)))
        for reply in arrived:
            message_id = reply.metadata.reply_to_message_id
            node = reply.metadata.src_node_id
            is_waiting = message_id in waiting
            is_from_asked_node = is_waiting and waiting[message_id] == node
            is_given_up = is_waiting and node == SUPERLINK_NODE and reply.has_error()
            if is_from_asked_node or is_given_up:
                del waiting[message_id]
                yield reply
            else:
                log.warning("node %d sent a reply that is late, twice there or not its own", node)
        now = time.monotonic()
        if waiting and now > began + timeout:
            log.warning("no reply after %g s", timeout)
            return
        if waiting and now > began + due:
            due *= 2
            late(list(waiting.values()), now - began)
        if waiting and not arrived:
            pause = min(MAX_POLL, max(MIN_POLL, POLL_SHARE * (now - began)))
            # A grid whose pull itself waits for replies has used up part of the pause.
            time.sleep(max(0.0, pause - (now - polled)))


def signed_in_at(grid: Grid) -> dict[int, str]:
    """Return when each connected node has signed in; nothing for a grid that does not tell."""
    get_nodes = getattr(grid, "get_nodes", None)
    nodes = [] if get_nodes is None else get_nodes()
    return {node.node_id: str(getattr(node, "last_activated_at", "")) for node in nodes}


def collect_replies(
    grid: Grid,
    clients: Sequence[int],
    request: Request,
    settings: ExchangeSettings,
    assigner: NodeAssigner,
) -> Exchange:
    """Ask the clients and return the exchange with all answers and failures.

    Clients without an answer, as after the death of their worker, are asked again as long as each attempt brings an
    answer or failure of another client. All attempts together wait for replies for `settings.timeout` seconds.
    """
    exchange = Exchange(clients, request.largest, sites=assigner.names)
    before = len(clients) + 1
    seconds_left = settings.timeout
    while 0 < len(exchange.unanswered) < before and seconds_left > 0:
        before = len(exchange.unanswered)
        if isinstance(grid, DirectGrid):
            wait_for_nodes(grid, settings)
            in_order = request.longest_first(exchange.unanswered)
            began = time.monotonic()
            exchange.take(grid.outcomes(request, in_order, seconds_left))
        else:
            assignment = assigner.assign(grid, exchange.unanswered, settings)
            began = time.monotonic()
            arriving = replies(
                grid,
                request.messages(assignment, fold=is_between_sites(grid)),
                seconds_left,
                late=partial(report_late, assigner, assignment, settings.timeout),
            )
            try:
                exchange.receive(arriving, assignment)
            finally:
                assigner.report_line("")
        seconds_left -= time.monotonic() - began
    exchange.close(assigner.absent)
    return exchange


def report_late(
    assigner: NodeAssigner,
    assignment: NodeAssignment,
    timeout: float,
    nodes: Collection[int],
    seconds: float,
) -> None:
    """Log and report the clients of `nodes`, which have not replied after `seconds` of at most `timeout` seconds."""
    clients: list[int] = []
    for node in nodes:
        clients += assignment.get(node, ())
    who = assigner.listed(clients)
    line = f"waiting for {who} since {seconds:.0f} s; left out after timeout = {timeout:g} s"
    log.warning(line)
    assigner.report_line(line)
