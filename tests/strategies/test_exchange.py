"""What clients say beside their numbers: bounded and escaped before it comes into a record."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from client_app.handlers import ClientFailure, ClientOutcome, ClientReply
from client_app.messages import FOLDED, folded, pack, unfolded, unpack
from client_app.models import build
from client_app.serialization import DecodeError, Expected, from_bytes, to_bytes
from client_app.state import size
from fedskew.engines.local import LocalGrid, identify
from strategies.core.exchange import (
    RECORD_NAME,
    DirectGrid,
    Exchange,
    ExchangeSettings,
    FoldingGrid,
    Request,
    TooFewReplies,
    WorkersLost,
    assign,
    collect_replies,
    replies,
)
from strategies.core.node_assignment import AnyNodeAssigner
from strategies.core.reading import MOST_RECORDS, failure_in, worker_in
from strategies.core.rounds import HEADER_BYTES, largest_record
from strategies.core.whole_replies import SUPERLINK_NODE

LONG = "\x1b[2J" * 10**6


def test_nothing_that_a_client_says_takes_more_than_a_line() -> None:
    exchange = Exchange([0, 1, 2])
    exchange.sort(
        RecordDict(
            {
                "0/error": ConfigRecord({"reason": LONG}),
                "1/metrics": ConfigRecord({LONG: LONG}),
                "2/model": ArrayRecord(),
                "2/worker": ConfigRecord({"process": 3, "device": LONG, LONG: LONG}),
            }
        ),
        1,
        {0, 1, 2},
    )
    exchange.refuse(2, f"model: {LONG} is not expected")
    assert sorted(exchange.failures) == [0, 1, 2]
    for reason in exchange.failures.values():
        assert reason.isprintable() and len(reason) < 5000


def test_what_is_recorded_of_a_clients_process_is_bounded() -> None:
    exchange = Exchange([0])
    words = ConfigRecord({"process": 3, "device": LONG, LONG: LONG, "bytes": b"x"})
    exchange.sort(RecordDict({"0/worker": words}), 1, {0})
    worker = exchange.answers[0].worker
    assert set(worker) == {"process", "device"} and worker["process"] == 3
    assert len(str(worker["device"])) < 5000


def test_a_reply_of_too_many_records_or_tensors_is_refused() -> None:
    """Empty tensors and records cost the sender next to nothing, and the server memory."""
    exchange = Exchange([0, 1, 2], Expected(2**26, 8))
    honest = pack({str(number): torch.ones(2) for number in range(8)})
    empty = pack({str(number): torch.empty(0) for number in range(1000)})
    few = pack({"w": torch.ones(2)})
    many = {f"2/upload/{number}": few for number in range(MOST_RECORDS + 1)}
    exchange.sort(RecordDict({"0/model": honest, "1/model": empty, **many}), 1, {0, 1, 2})
    assert list(exchange.answers) == [0] and len(exchange.answers[0].states["model"]) == 8
    assert "are expected" in exchange.failures[1]
    assert exchange.failures[2].endswith(
        f"records arrived, and at most {MOST_RECORDS} are expected"
    )


class Scripted(LocalGrid):
    """Gives, look by look, the replies of a script: (from which node, to which of the messages, whether an error)."""

    def __init__(self, *looks: list[tuple[int, int, bool]]) -> None:
        super().__init__()
        self.looks, self.numbers = list(looks), list[str]()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        self.numbers += super().push_messages(messages)
        return self.numbers[-2:]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.reply(*words) for words in (self.looks.pop(0) if self.looks else [])]

    def reply(self, node: int, to: int, fails: bool) -> Message:
        asked = Message(RecordDict(), dst_node_id=node, message_type="train")
        asked.metadata.__dict__["_message_id"] = self.numbers[to]
        return Message(Error(2, "died") if fails else RecordDict(), reply_to=asked)


def heard(*looks: list[tuple[int, int, bool]], timeout: float = 30) -> tuple[list[int], list[str]]:
    """Return the nodes whose replies counted when nodes 5 and 6 were asked, and what was said of the others."""
    identify()
    unsolicited: list[str] = []
    asked = [Message(RecordDict(), dst_node_id=node, message_type="train") for node in (5, 6)]
    counted = list(replies(Scripted(*looks), asked, timeout, unsolicited.append))
    return [reply.metadata.src_node_id for reply in counted], unsolicited


def test_a_reply_counts_once_and_for_the_node_that_was_asked() -> None:
    assert heard([(6, 1, False)], [], [(5, 0, False)]) == ([6, 5], [])
    twice, unsolicited = heard(
        [(5, 0, False), (5, 0, False), (6, 0, False), (5, 1, False)],
        [(5, 0, False)],
        [(6, 1, False)],
    )
    assert twice == [5, 6] and len(unsolicited) == 4
    assert unsolicited[1] == "node 6 sent a reply that is late, twice there or not its own"


def test_an_error_counts_from_the_node_or_from_flwr() -> None:
    assert heard([(5, 0, True), (SUPERLINK_NODE, 1, True)])[0] == [5, SUPERLINK_NODE]
    assert heard([(6, 0, True), (SUPERLINK_NODE, 1, False)], [(5, 0, False), (6, 1, False)])[0] == [
        5,
        6,
    ]


def test_what_is_not_there_in_time_is_not_waited_for(caplog: Any) -> None:
    assert heard([(5, 0, False)], timeout=0.0)[0] == [5]
    assert "no reply after 0 s" in caplog.text


def test_it_is_said_for_whom_a_round_waits_and_again(monkeypatch: Any) -> None:
    """Node 5 replies at once, node 6 never: within a minute it is named, then again, and left out after the timeout."""
    identify()
    now, said = [0.0], list[tuple[list[int], float]]()
    monkeypatch.setattr("strategies.core.exchange.time.monotonic", lambda: now[0])
    monkeypatch.setattr(
        "strategies.core.exchange.time.sleep", lambda seconds: now.__setitem__(0, now[0] + 10)
    )
    asked = [Message(RecordDict(), dst_node_id=node, message_type="train") for node in (5, 6)]
    grid = Scripted([(5, 0, False)])
    counted = replies(
        grid, asked, 300, late=lambda nodes, seconds: said.append((list(nodes), seconds))
    )
    assert [reply.metadata.src_node_id for reply in counted] == [5]
    assert [nodes for nodes, _ in said] == [[6]] * 3
    assert [round(seconds, -1) for _, seconds in said] == [60, 120, 230]


def test_nobody_is_named_where_all_reply_soon() -> None:
    identify()
    asked = [Message(RecordDict(), dst_node_id=node, message_type="train") for node in (5, 6)]
    grid = Scripted([(5, 0, False)], [(6, 1, False)])

    def late(nodes: Any, seconds: float) -> None:
        raise AssertionError(nodes)

    assert len(list(replies(grid, asked, 300, late=late))) == 2


def test_what_could_not_be_sent_is_not_waited_for() -> None:
    class Full(Scripted):
        def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
            list(super().push_messages(messages))
            return self.numbers[:1]

    identify()
    asked = [Message(RecordDict(), dst_node_id=node, message_type="train") for node in (5, 6)]
    assert [reply.metadata.src_node_id for reply in replies(Full([(5, 0, False)]), asked, 30)] == [
        5
    ]


def test_a_reply_that_cannot_be_unfolded_fails_its_own_client() -> None:
    identify()
    whole = folded(
        {"0/model": pack({"w": torch.ones(2)}), "0/metrics": MetricRecord({"loss": 1.0})}
    )
    contents = {6: RecordDict({FOLDED: ConfigRecord({FOLDED: b"no records"})}), 5: whole}
    replies_of = []
    for node, content in contents.items():
        asked = Message(RecordDict(), dst_node_id=node, message_type="train")
        asked.metadata.__dict__["_message_id"] = "m"
        replies_of.append(Message(content, reply_to=asked))
    exchange = Exchange([0, 1])
    exchange.receive(replies_of, {5: [0], 6: [1]})
    assert exchange.answers[0].metrics == {"loss": 1.0} and exchange.answers[0].states["model"][
        "w"
    ].tolist() == [1, 1]
    assert exchange.failures[1].startswith("unreadable reply") and list(exchange.answers) == [0]


def test_between_sites_all_messages_share_the_record_of_their_states() -> None:
    identify()
    request = Request(
        "train", {"round": 1}, {"model": {"w": torch.ones(2)}, "broadcast/x": {}}, "{}", {}
    )
    grid = LocalGrid()
    sent = request.messages({5: [0], 6: [1]})
    FoldingGrid(grid).push_messages(sent)
    assert all(list(message.content) == [FOLDED, "task"] for message in sent)
    assert sent[0].content[FOLDED] is sent[1].content[FOLDED] and grid.get_node_ids()
    content = unfolded(sent[1].content)
    assert unpack(content["model"])["w"].tolist() == [1, 1] and content["task"]["clients"] == [1]


@pytest.mark.parametrize("classes", [2, 10])
def test_a_record_may_hold_two_models_and_eight_tensors_for_each_class(classes: int) -> None:
    """The bound on a reply's work: docs/explanation/security.md."""
    model = build("mlp-bn", (1, 4, 4), classes, 0)
    expected = largest_record(model)
    most = 2 * len(model.state_dict()) + 8 * classes + 64
    empty = {str(number): torch.empty(0) for number in range(most + 1)}
    fitting = dict(list(empty.items())[:most])
    assert len(from_bytes(to_bytes(fitting), expected)) == most
    with pytest.raises(DecodeError):
        from_bytes(to_bytes(empty), expected)

    model_bytes = size(model.state_dict())
    covariance_bytes = 8 * model.head.in_features**2
    assert expected.bytes == HEADER_BYTES + 2 * (classes + 1) * (model_bytes + covariance_bytes)


def test_clients_with_the_most_samples_come_first() -> None:
    request = Request("train", {"round": 1}, {}, "", {}, examples={0: 5, 1: 9, 3: 9})
    assert request.longest_first([0, 3, 2, 1]) == [1, 3, 0, 2]
    one_sample = replace(
        request, examples={5: 1}
    )  # a client whose samples are unknown counts as one without any
    assert one_sample.longest_first([3, 5]) == [5, 3]


@pytest.mark.parametrize(
    ("sent", "kept"), [(7, 7), (10**6, 10**6), (2**63 - 1, 2**63 - 1), (-1, 0), (2.5, 0), ("7", 0)]
)
def test_the_number_of_a_failure_is_a_count_of_64_bits_or_nothing(sent: Any, kept: int) -> None:
    record = ConfigRecord({"reason": "too few samples", "number": sent})
    assert failure_in(record).number == kept


def test_clients_whose_processes_died_are_unanswered_and_told_why() -> None:
    def outcomes() -> Iterable[ClientOutcome]:
        yield 2, ClientReply(metrics={"loss": 1.0})
        yield 0, ClientFailure("no memory is left")
        raise WorkersLost("two worker processes died")

    exchange = Exchange([0, 1, 2, 3])
    exchange.take(outcomes())
    assert list(exchange.answers) == [2] and exchange.unanswered == [1, 3]
    exchange.close({3: "site north is not connected"})
    assert exchange.failures == {
        0: "no memory is left",
        1: "no reply; a node reported: two worker processes died",
        3: "site north is not connected",
    }
    assert list(exchange.reported) == [0] and not exchange.unanswered


class OneIsSilent(LocalGrid, DirectGrid):
    """A grid whose client 0 never answers, and costs all of the timeout unless its worker died."""

    def __init__(self, died: bool) -> None:
        super().__init__()
        self.died = died
        self.asked: list[list[int]] = []

    def outcomes(
        self, request: Request, clients: Sequence[int], timeout: float
    ) -> Iterator[tuple[int, ClientOutcome]]:
        self.asked.append(sorted(clients))
        for client in clients:
            if client:
                yield client, ClientReply(metrics={"loss": 1.0})
        if self.died:
            raise WorkersLost("a worker process died")
        time.sleep(timeout)


@pytest.mark.parametrize(("died", "asked"), [(False, [[0, 1]]), (True, [[0, 1], [0]])])
def test_a_client_that_is_silent_for_the_whole_timeout_is_not_asked_again(
    died: bool, asked: list[list[int]]
) -> None:
    identify()
    grid = OneIsSilent(died)
    request = Request("train", {"round": 1}, {}, "{}", {})
    settings = ExchangeSettings(timeout=0.05, node_wait=0.0)
    exchange = collect_replies(grid, [0, 1], request, settings, AnyNodeAssigner())
    assert grid.asked == asked
    assert list(exchange.answers) == [1] and list(exchange.failures) == [0]


def test_an_exchange_without_an_error_has_no_reply_to_tell_of() -> None:
    exchange = Exchange([7])
    exchange.close()
    assert exchange.failures == {7: "no reply"}


@pytest.mark.parametrize(
    ("asked", "good", "share", "enough"),
    [
        (20, 11, 0.55, True),
        (20, 10, 0.55, False),
        (3, 3, 1.0, True),
        (3, 2, 1.0, False),
        (100, 1, 0.001, True),
        (100, 0, 0.001, False),
    ],
)
def test_so_many_of_those_asked_must_reply(
    asked: int, good: int, share: float, enough: bool
) -> None:
    """0.55 * 20 is a little more than 11 in floating point; one reply is the least."""
    exchange = Exchange(range(asked), answers={client: ClientReply() for client in range(good)})
    assert exchange.enough(share) == enough
    exchange.close()
    if enough:
        exchange.check_enough(share, "round 1")
    else:
        with pytest.raises(TooFewReplies, match=f"^round 1: {good} good replies of {asked}, "):
            exchange.check_enough(share, "round 1")


def test_five_reasons_are_given_where_too_few_reply() -> None:
    exchange = Exchange(range(6))
    for client in reversed(range(6)):
        exchange.refuse(client, f"{client} " + 300 * "x")
    with pytest.raises(TooFewReplies) as refused:
        exchange.check_enough(1.0, "round 1")
    reasons = str(refused.value).split("min-reply-share = 1 asks for 6; ")[1].split("; ")
    assert reasons == [f"client {client}: {client} " + 198 * "x" for client in range(5)]


def test_clients_are_spread_evenly_over_the_nodes_and_no_node_goes_without() -> None:
    class Nodes:
        def get_node_ids(self) -> list[int]:
            return [30, 10, 20]

    def of(clients: list[int]) -> Any:
        return assign(Nodes(), clients, ExchangeSettings(nodes=3))  # type: ignore[arg-type]

    assert of([4, 5, 6, 7]) == {10: [4, 7], 20: [5], 30: [6]}
    assert of([4, 5]) == {10: [4], 20: [5]}


def test_a_record_of_a_client_that_was_not_asked_is_named_and_not_read() -> None:
    exchange = Exchange([0, 1])
    long_name = "1/" + "x" * 90
    records = {"0/worker": ConfigRecord(), long_name: ConfigRecord(), "nobody": ConfigRecord()}
    exchange.sort(RecordDict(dict(records)), 7, {0})  # node 7 computes for client 0 alone
    assert set(exchange.answers) == {0}
    assert exchange.unsolicited == [
        f"node 7 sent {long_name[:80]}, which it was not asked for",
        "node 7 sent nobody, which it was not asked for",
    ]


def test_a_record_s_name_may_hold_any_character_behind_the_client_s_number() -> None:
    match = RECORD_NAME.fullmatch("12/of two\nlines")
    assert match is not None and match.groups() == ("12", "of two\nlines")
    assert RECORD_NAME.fullmatch("012/x") is None  # a number has one way to be written


def test_a_client_may_leave_out_what_it_does_not_know_of_its_process() -> None:
    assert worker_in({"visible-gpus": 0}) == {"visible-gpus": 0}  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [2**63, -(2**63)])
def test_a_number_of_more_than_63_bits_is_no_fact_of_a_process(number: int) -> None:
    assert worker_in({"process": 2**63 - 1}) == {"process": 2**63 - 1}  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="more than 63 bits"):
        worker_in({"process": number})  # type: ignore[arg-type]
