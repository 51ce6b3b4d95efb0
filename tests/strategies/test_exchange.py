"""Questions to nodes and their replies: which count, who is waited for, and how much of what a client says is kept."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from client_app.handlers import ClientFailure, ClientOutcome, ClientReply
from client_app.messages import FOLDED, folded, pack
from client_app.models import build
from client_app.serialization import DecodeError, Expected, from_bytes, to_bytes
from client_app.state import size
from fedskew.engines.local import LocalGrid, identify
from strategies.core.exchange import (
    Exchange,
    Request,
    TooFewReplies,
    WorkersLost,
    replies,
)
from strategies.core.node_assignment import ExchangeSettings, NodeAssigner
from strategies.core.rounds import HEADER_BYTES, largest_record
from strategies.core.validation import MOST_RECORDS, failure_in, worker_in
from strategies.core.whole_replies import SUPERLINK_NODE

LONG = "\x1b[2J" * 10**6


def test_nothing_that_a_client_says_takes_more_than_a_line() -> None:
    exchange = Exchange([0, 1, 2, 3])
    words = ConfigRecord({"process": 3, "device": LONG, LONG: LONG, "bytes": b"x"})
    records = {
        "0/error": ConfigRecord({"reason": LONG}),
        "1/metrics": ConfigRecord({LONG: LONG}),
        "2/model": ArrayRecord(),
        "2/worker": words,
        "3/worker": words,
    }
    exchange.sort(RecordDict(records), 1, {0, 1, 2, 3})  # type: ignore[arg-type]
    worker = exchange.answers[3].worker
    exchange.refuse(2, f"model: {LONG} is not expected")
    assert sorted(exchange.failures) == [0, 1, 2]
    for reason in exchange.failures.values():
        assert reason.isprintable() and len(reason) < 5000
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
    assert sorted(exchange.failures) == [1, 2]


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


def heard(*looks: list[tuple[int, int, bool]], timeout: float = 30) -> list[int]:
    """Return the nodes whose replies counted when nodes 5 and 6 were asked."""
    identify()
    asked = [Message(RecordDict(), dst_node_id=node, message_type="train") for node in (5, 6)]
    counted = list(replies(Scripted(*looks), asked, timeout))
    return [reply.metadata.src_node_id for reply in counted]


def test_a_reply_counts_once_and_for_the_node_that_was_asked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An error counts from the node or from flwr, and nobody is waited for when the time is over."""
    assert heard([(6, 1, False)], [], [(5, 0, False)]) == [6, 5]
    assert heard([(5, 0, True), (SUPERLINK_NODE, 1, True)]) == [5, SUPERLINK_NODE]
    assert heard([(6, 0, True), (SUPERLINK_NODE, 1, False)], [(5, 0, False), (6, 1, False)]) == [
        5,
        6,
    ]
    assert heard([(5, 0, False)], timeout=0.0) == [5]
    caplog.clear()
    twice = heard(
        [(5, 0, False), (5, 0, False), (6, 0, False), (5, 1, False)],
        [(5, 0, False)],
        [(6, 1, False)],
    )
    assert twice == [5, 6] and len(caplog.records) == 4


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


def test_a_record_may_hold_two_models_and_eight_tensors_for_each_class() -> None:
    """The bound on a reply's work: docs/explanation/security.md."""
    model = build("mlp-bn", (1, 4, 4), 10, 0)
    expected = largest_record(model)
    most = 2 * len(model.state_dict()) + 8 * 10 + 64
    fitting = {str(number): torch.empty(0) for number in range(most)}
    assert len(from_bytes(to_bytes(fitting), expected)) == most
    with pytest.raises(DecodeError):
        from_bytes(to_bytes({**fitting, "more": torch.empty(0)}), expected)
    of_class = size(model.state_dict()) + 8 * model.head.in_features**2
    assert expected.bytes == HEADER_BYTES + 2 * (10 + 1) * of_class


def test_clients_with_the_most_samples_come_first() -> None:
    request = Request("train", {"round": 1}, {}, "", {}, examples={0: 5, 1: 9, 3: 9})
    assert request.longest_first([0, 3, 2, 1]) == [1, 3, 0, 2]
    one_sample = replace(
        request, examples={5: 1}
    )  # a client whose samples are unknown counts as one without any
    assert one_sample.longest_first([3, 5]) == [5, 3]


@pytest.mark.parametrize(
    ("sent", "kept"), [(7, 7), (2**63 - 1, 2**63 - 1), (-1, 0), (2.5, 0), ("7", 0)]
)
def test_the_number_of_a_failure_is_a_count_of_64_bits_or_nothing(sent: Any, kept: int) -> None:
    record = ConfigRecord({"reason": "too few samples", "number": sent})
    assert failure_in(record).number == kept


def test_a_fact_of_a_process_is_a_number_of_63_bits() -> None:
    assert worker_in({"process": 2**63 - 1}) == {"process": 2**63 - 1}  # type: ignore[arg-type]
    with pytest.raises(ValueError):
        worker_in({"process": -(2**63)})  # type: ignore[arg-type]


def test_clients_whose_processes_died_are_unanswered_and_told_why() -> None:
    def outcomes() -> Iterable[ClientOutcome]:
        yield 2, ClientReply(metrics={"loss": 1.0})
        yield 0, ClientFailure("no memory is left")
        raise WorkersLost("two worker processes died")

    exchange = Exchange([0, 1, 2, 3])
    exchange.take(outcomes())
    assert list(exchange.answers) == [2] and exchange.unanswered == [1, 3]
    exchange.close({3: "site north is not connected"})
    assert exchange.failures[0] == "no memory is left"
    assert "two worker processes died" in exchange.failures[1]
    assert exchange.failures[3] == "site north is not connected"
    assert list(exchange.reported) == [0] and not exchange.unanswered


@pytest.mark.parametrize(
    ("asked", "good", "share", "enough"),
    [
        (100, 7, 0.07, True),
        (100, 6, 0.07, False),
        (3, 3, 1.0, True),
        (3, 2, 1.0, False),
        (100, 1, 0.001, True),
        (100, 0, 0.001, False),
    ],
)
def test_so_many_of_those_asked_must_reply(
    asked: int, good: int, share: float, enough: bool
) -> None:
    """0.07 * 100 is a little more than 7 in floating point; one reply is the least. The failures are named."""
    exchange = Exchange(range(asked), answers={client: ClientReply() for client in range(good)})
    assert (good >= exchange.least(share)) == enough
    exchange.close()
    if enough:
        exchange.check_enough(share, "round 1")
    else:
        with pytest.raises(TooFewReplies) as refused:
            exchange.check_enough(share, "round 1")
        assert str(refused.value).count("client ") == min(5, asked - good)


def test_clients_are_spread_evenly_over_the_nodes_and_no_node_goes_without() -> None:
    class Nodes:
        def get_node_ids(self) -> list[int]:
            return [30, 10, 20]

    def of(clients: list[int]) -> Any:
        return NodeAssigner().assign(Nodes(), clients, ExchangeSettings(nodes=3))  # type: ignore[arg-type]

    assert of([4, 5, 6, 7]) == {10: [4, 7], 20: [5], 30: [6]}
    assert of([4, 5]) == {10: [4], 20: [5]}


def test_a_record_of_a_client_that_was_not_asked_is_named_and_not_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    exchange = Exchange([0, 1])
    long_name = "1/" + "x" * 90
    records = {"0/worker": ConfigRecord(), long_name: ConfigRecord(), "nobody": ConfigRecord()}
    exchange.sort(RecordDict(dict(records)), 7, {0})  # node 7 computes for client 0 alone
    assert set(exchange.answers) == {0}
    (line,) = [record.getMessage() for record in caplog.records]
    assert long_name[:80] in line and long_name[:81] not in line and "2 records" in line
