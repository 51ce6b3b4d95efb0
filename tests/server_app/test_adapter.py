"""The adapter to flwr: replies that must not be combined, nodes, questions, and the ways to start it."""

import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg
from flwr.serverapp.strategy import Result
from in_process import FinishedRun, ManyNodes, Tamper, TamperingGrid, drop, number_of, small

from client_app.memory import folder_of
from client_app.messages import from_flower, kind_of, pack, to_flower, unpack
from client_app.models import build
from client_app.optimizer import coefficient_sum
from client_app.state import State, digest
from client_app.tensor_files import read
from client_app.training import steps_of
from data import federate
from fedskew.engines.local import LocalGrid, identify
from server_app.checkpoint import Checkpoint
from strategies.core.exchange import (
    Exchange,
    ExchangeSettings,
    TooFewNodes,
    TooFewReplies,
    wait_for_nodes,
)
from strategies.core.flower_adapter import Strategy

Train = Callable[..., FinishedRun]
FAULTY = 1
MODEL, METRICS, UPLOAD = (
    f"{FAULTY}/model",
    f"{FAULTY}/metrics",
    f"{FAULTY}/upload/feature-gradients",
)


def model_with(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[RecordDict], None]:
    """Return what changes the faulty client's model."""
    return state_with(MODEL, change)


def state_with(
    record: str, change: Callable[[dict[str, torch.Tensor]], object]
) -> Callable[[RecordDict], None]:
    """Return what changes a record of tensors."""

    def spoil(records: RecordDict) -> None:
        state = {
            name: tensor.clone() for name, tensor in unpack(records.array_records[record]).items()
        }
        change(state)
        records[record] = pack(state)

    return spoil


def metrics_with(**changes: Any) -> Callable[[RecordDict], None]:
    """Return what changes the faulty client's numbers; None takes one out."""

    def spoil(records: RecordDict) -> None:
        numbers = {
            **records.metric_records[METRICS],
            **{k.replace("_", "-"): v for k, v in changes.items()},
        }
        records[METRICS] = MetricRecord(
            {key: value for key, value in numbers.items() if value is not None}
        )

    return spoil


def raises(records: RecordDict) -> None:
    drop(records, FAULTY)
    records[f"{FAULTY}/error"] = ConfigRecord({"reason": "ValueError: no such luck"})


def renamed(records: RecordDict, number: str) -> None:
    """Send what the faulty client sends under another number."""
    for name in [name for name in records if name.startswith(f"{FAULTY}/")]:
        records[name.replace(f"{FAULTY}/", f"{number}/", 1)] = records.pop(name)


def under_another_id(records: RecordDict) -> None:
    renamed(records, "99")


def garbage(records: RecordDict) -> None:
    records[MODEL] = ArrayRecord(
        {"head.bias": Array("float32", (10,), "numpy.ndarray", b"no array")}
    )


def crowded(records: RecordDict) -> None:
    """Send a model of 20,000 empty tensors, which take fewer bytes than a record may have."""
    records[MODEL] = pack({str(number): torch.empty(0) for number in range(20_000)})


CROWDED = "unreadable reply: a head of "
FAULTS: dict[str, tuple[Callable[[RecordDict], None], str]] = {
    "raises": (raises, "ValueError: no such luck"),
    "nan": (
        model_with(lambda s: s["head.weight"][3, 5].fill_(torch.nan)),
        "model: head.weight is not finite",
    ),
    "infinity": (
        model_with(lambda s: s["head.bias"][0].fill_(-torch.inf)),
        "model: head.bias is not finite",
    ),
    "shape": (
        model_with(lambda s: s.update({"head.bias": s["head.bias"][:-1]})),
        "model: head.bias is float32 of 9, not float32 of 10",
    ),
    "dtype": (
        model_with(lambda s: s.update({"head.bias": s["head.bias"].double()})),
        "model: head.bias is float64 of 10, not float32 of 10",
    ),
    "extra name": (
        model_with(lambda s: s.update(more=torch.ones(2))),
        "model: 'more' is not expected",
    ),
    "missing name": (model_with(lambda s: s.pop("head.bias")), "model: head.bias is missing"),
    "no model": (lambda records: records.pop(MODEL) and None, "the reply holds no model"),
    "zero examples": (metrics_with(num_examples=0), "metric num-examples is 0 and must be 1 to"),
    "negative examples": (
        metrics_with(num_examples=-3),
        "metric num-examples is -3 and must be 1 to",
    ),
    "half an example": (
        metrics_with(num_examples=7.5),
        "metric num-examples is 7.5 and must be whole",
    ),
    "nan examples": (metrics_with(num_examples=float("nan")), "metric num-examples is not finite"),
    "infinite examples": (
        metrics_with(num_examples=float("inf")),
        "metric num-examples is not finite",
    ),
    "no step": (metrics_with(steps=0), "metric steps is 0 and must be 1 to"),
    "negative norm": (
        metrics_with(coefficient_sum=-2.5),
        "metric coefficient-sum is -2.5 and must be 0 to",
    ),
    "more examples": (
        metrics_with(num_examples=10**18),
        "metric num-examples is 1e+18 and must be 1 to",
    ),
    "another's examples": (
        metrics_with(num_examples=33),
        "num-examples is 33, and the client has ",
    ),
    "more steps": (metrics_with(steps=10**6), "steps is 1000000, and "),
    "tiny norm": (metrics_with(coefficient_sum=1e-300), "coefficient-sum is 1e-300, and "),
    "endless seconds": (metrics_with(seconds=1e308), "metric seconds is 1e+308 and must be 0 to"),
    "huge weights": (
        model_with(lambda s: s["head.weight"][0].fill_(3e38)),
        "model: head.weight is 3e+38 and must be ",
    ),
    "huge gradients": (
        state_with(UPLOAD, lambda s: s["gradients"][0].fill_(1e30)),
        "feature-gradients: gradients is 1e+30 and must be ",
    ),
    "missing metric": (metrics_with(coefficient_sum=None), "metric coefficient-sum is missing"),
    "nan loss": (metrics_with(loss=float("nan")), "metric loss is not finite"),
    "metric of several numbers": (metrics_with(loss=[1.0, 2.0]), "unreadable reply: TypeError"),
    "no metrics": (
        lambda records: records.pop(METRICS) and None,
        "metric coefficient-sum is missing",
    ),
    "unknown upload": (
        lambda records: records.update({f"{FAULTY}/upload/surprise": pack({"a": torch.ones(1)})}),
        "upload 'surprise' is not one that fedavg",
    ),
    "missing upload": (
        lambda records: records.pop(UPLOAD) and None,
        "upload feature-gradients is missing",
    ),
    "nan upload": (
        state_with(UPLOAD, lambda s: s["gradients"][0, 0, 0].fill_(torch.nan)),
        "feature-gradients: gradients is not finite",
    ),
    "bad upload": (
        state_with(UPLOAD, lambda s: s.update(classes=s["classes"].flip(0))),
        "upload feature-gradients: classes are ",
    ),
    "unknown client": (under_another_id, "no reply"),
    "an alias of its number": (lambda records: renamed(records, f"0{FAULTY}"), "no reply"),
    "its number in other digits": (lambda records: renamed(records, chr(0x0661)), "no reply"),
    "a number of 4301 digits": (lambda records: renamed(records, "1" * 4301), "no reply"),
    "unreadable": (
        lambda records: records.update({MODEL: ConfigRecord({"a": 1})}),
        "unreadable reply: ",
    ),
    "garbage": (garbage, "unreadable reply: "),
    # An even name: the reply travels as bytes, which are looked at before a tensor is made.
    "too many tensors": (crowded, CROWDED),
    "dropped": (lambda records: drop(records, FAULTY), "no reply"),
}
CHANGES: dict[str, Any] = {
    "method": "fedbn+creff",
    "min_reply_share": 0.5,
    "alpha": 10.0,
    "local_steps": 1,
}


def in_round(round: int, spoil: Callable[[RecordDict], None]) -> Tamper:
    """Return a tampering with the faulty client's training reply of one round."""

    def tamper(asked: Message, records: RecordDict) -> None:
        if kind_of(asked) == "train" and number_of(asked) == round and MODEL in records:
            spoil(records)

    return tamper


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The hash of the run without client 1 in round 1."""
    from in_process import experiment

    dropped = TamperingGrid(in_round(1, FAULTS["dropped"][0]))
    return experiment(tmp_path_factory.mktemp("dropped"), dropped, **CHANGES).hash


@pytest.mark.parametrize("fault", FAULTS)
def test_faulty_reply_is_left_out(
    train: Train, expected: str, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    spoil, reason = FAULTS[fault]
    outcome = train(grid=TamperingGrid(in_round(1, spoil), faithful=len(fault) % 2 == 0), **CHANGES)
    first, second = outcome.records
    assert list(first["failures"]) == [str(FAULTY)] and first["failures"][str(FAULTY)].startswith(
        reason
    )
    assert first["clients"] == [0, 2, 3] and second["clients"] == [0, 1, 2, 3]
    assert second["failures"] == {} and outcome.summary["failures"] == 1
    assert f"round 1: client {FAULTY} left out: {reason}" in caplog.text
    assert outcome.hash == expected


@pytest.mark.parametrize("words", [{"process": b"bytes"}, {"device": ["a", "b"]}])
def test_odd_worker_record_does_not_end_the_run(train: Train, words: dict[str, Any]) -> None:
    def odd(records: RecordDict) -> None:
        records[f"{FAULTY}/worker"] = ConfigRecord(words)

    outcome = train(grid=TamperingGrid(in_round(1, odd)), **CHANGES)
    assert outcome.summary["failures"] == 0


def test_a_number_of_a_worker_that_python_prints_to_nobody(train: Train) -> None:
    def odd(records: RecordDict) -> None:
        records[f"{FAULTY}/worker"] = ConfigRecord({"process": 10**5000})

    outcome = train(grid=TamperingGrid(in_round(1, odd)), **CHANGES)
    assert outcome.records[0]["failures"] == {
        str(FAULTY): "unreadable reply: ValueError: worker: has a number of more than 63 bits"
    }


def test_all_replies_demanded(train: Train, tmp_path: Path) -> None:
    changes = {**CHANGES, "min_reply_share": 1.0, "rounds": 3}
    with pytest.raises(
        TooFewReplies,
        match=r"round 3: 3 good replies of 4.*client 1: model: head\.weight is not fin",
    ):
        train(grid=TamperingGrid(in_round(3, FAULTS["nan"][0])), **changes)
    checkpoint = Checkpoint.load(
        small(tmp_path / "results", **changes).folder / "checkpoint.safetensors"
    )
    assert checkpoint.round == 2
    assert train(**changes).hash == train("undisturbed", **changes).hash


def test_share_of_replies_is_exact() -> None:
    exchange = Exchange(range(20))
    exchange.answers = dict.fromkeys(range(11), None)  # type: ignore[arg-type]
    exchange.check_enough(0.55, "round 1")  # 0.55 * 20 is 11.000000000000002
    with pytest.raises(TooFewReplies):
        exchange.check_enough(0.56, "round 1")


def test_no_good_reply_is_never_enough() -> None:
    with pytest.raises(TooFewReplies, match=r"0 good replies of 1"):
        Exchange([0]).check_enough(0.01, "round 1")


def test_faulty_scores_are_left_out(train: Train, caplog: pytest.LogCaptureFixture) -> None:
    def tamper(asked: Message, records: RecordDict) -> None:
        if kind_of(asked) == "evaluate":
            scores = unpack(records.array_records[f"{FAULTY}/test/average"])
            records[f"{FAULTY}/test/average"] = pack({**scores, "loss": -scores["loss"]})

    outcome = train(grid=TamperingGrid(tamper), method="fedbn", min_reply_share=0.75)
    values = outcome.records[-1]["models"]["average"]["client-accuracy"]["values"]
    assert [client for client, value in enumerate(values) if value is None] == [FAULTY] and len(
        values
    ) == 4
    assert f"evaluation after round 2: client {FAULTY} left out: " in caplog.text
    assert str(FAULTY) in outcome.records[-1]["failures"]
    assert outcome.hash == train("undisturbed", method="fedbn").hash


def test_dead_worker_is_asked_again(train: Train) -> None:
    class Dying(TamperingGrid):
        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            (reply,) = super().pull_messages(message_ids)
            asked = self.asked[0]
            first = reply.metadata.reply_to_message_id == asked.metadata.message_id
            return [Message(Error(2, "died"), reply_to=asked) if first else reply]

        def get_node_ids(self) -> list[int]:
            return [1, 2]

    outcome = train(grid=(grid := Dying()))
    assert [list(message.content["task"]["clients"]) for message in grid.asked[:3]] == [
        [0, 2],
        [1, 3],
        [0],
    ]
    assert outcome.summary["failures"] == 0 and outcome.hash == train("undisturbed").hash


def test_what_a_dead_node_reported_is_told(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("client_app.app.states", broken)
    with pytest.raises(
        TooFewReplies, match=r"client 0: no reply; a node reported: .*no space left"
    ):
        train(grid=TamperingGrid())


def test_what_prevents_every_client_from_being_played_is_told(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("client_app.handlers.train", broken)
    with pytest.raises(
        TooFewReplies, match=r"client 0: no reply; a node reported: .*no space left"
    ):
        train()


def test_first_word_of_a_client_counts() -> None:
    exchange = Exchange([0, 1])
    exchange.sort(
        RecordDict({"0/error": ConfigRecord({"reason": "first"}), "1/model": pack({})}), 1, {0, 1}
    )
    exchange.sort(
        RecordDict({"0/model": ArrayRecord(), "1/error": ConfigRecord({"reason": "second"})}),
        1,
        {0, 1},
    )
    assert (exchange.failures, list(exchange.answers), exchange.unanswered) == (
        {0: "first"},
        [1],
        [],
    )


def test_too_few_nodes(train: Train) -> None:
    with pytest.raises(TooFewNodes, match=r"1 of 3 nodes connected after 0\.1 s"):
        train(nodes=3, node_wait=0.1)


def test_nodes_that_come_late() -> None:
    class Late(LocalGrid):
        times = 0

        def get_node_ids(self) -> list[int]:
            self.times += 1
            return [5, 2][: self.times - 1]

    assert wait_for_nodes(Late(), ExchangeSettings(nodes=2, node_wait=30)) == [2, 5]
    early = Late()
    early.times = 2
    assert wait_for_nodes(early, ExchangeSettings(nodes=1, node_wait=0)) == [2, 5]


def test_number_of_nodes_and_order_of_replies_do_not_matter(train: Train) -> None:
    changes = {"method": "fedbn+creff+fedshift", "clients": 5, "participation": 0.6}
    outcomes = [train(f"{nodes}", grid=ManyNodes(nodes), **changes) for nodes in (1, 2, 3, 9)]
    assert len({outcome.hash for outcome in outcomes}) == 1
    assert outcomes[0].records == outcomes[3].records


# ---- the question before round 1 -------------------------------------------------------------------------------------


def test_prior_is_asked_once_in_a_runs_life(train: Train) -> None:
    grid = TamperingGrid(in_round(2, FAULTS["nan"][0]))
    with pytest.raises(TooFewReplies):
        train(grid=grid, method="fedshift+fedbn", rounds=3)
    assert grid.kinds().count("query") == 1
    outcome = train(grid=(grid := TamperingGrid()), method="fedshift+fedbn", rounds=3)
    assert grid.kinds().count("query") == 0 and len(outcome.records) == 3


def test_prior_is_not_asked_again_when_round_1_failed(train: Train) -> None:
    with pytest.raises(TooFewReplies):
        train(grid=TamperingGrid(in_round(1, FAULTS["nan"][0])), method="fedshift")
    outcome = train(grid=(grid := TamperingGrid()), method="fedshift")
    assert grid.kinds() == ["train", "train"]
    assert outcome.hash == train("undisturbed", method="fedshift").hash


@pytest.mark.parametrize("kind", ["dropped", "raises", "no answer"])
def test_missing_answer(train: Train, kind: str) -> None:
    def tamper(asked: Message, records: RecordDict) -> None:
        if kind_of(asked) == "query":
            if kind == "no answer":
                records[f"{FAULTY}/upload/other"] = records.pop(f"{FAULTY}/upload/logit-shift")
            else:
                FAULTS[kind][0](records)

    reasons = {
        "dropped": "no reply",
        "raises": "ValueError: no such luck",
        "no answer": "the reply holds no answer for logit-shift",
    }
    with pytest.raises(
        TooFewReplies, match=f"class-counts.*3 good replies of 4.*client {FAULTY}: {reasons[kind]}"
    ):
        train(grid=TamperingGrid(tamper), method="fedshift", min_reply_share=0.5)


def test_answers_of_another_shape(train: Train) -> None:
    def tamper(asked: Message, records: RecordDict) -> None:
        if kind_of(asked) == "query":
            records["2/upload/logit-shift"] = pack({"counts": torch.ones(9).long()})

    with pytest.raises(TooFewReplies, match="client 2: class counts are not int64 of 10"):
        train(grid=TamperingGrid(tamper), method="fedshift")


@pytest.mark.parametrize("smoothing", [0.0, 0.5, 1.0])
def test_prior_is_the_sum_of_all_clients_smoothed_counts(
    train: Train, tmp_path: Path, smoothing: float
) -> None:
    outcome = train(
        grid=(grid := TamperingGrid()),
        method="fedshift",
        participation=0.5,
        logit_shift__smoothing=smoothing,
    )
    counts_C = unpack(grid.asked[1].content.array_records["broadcast/logit-shift"])[
        "counts"
    ].double()
    federation = federate(small(tmp_path).data, 0)
    smoothed_KC = torch.as_tensor(federation.counts_KC).double() + smoothing
    torch.testing.assert_close(
        counts_C / counts_C.sum(), smoothed_KC.sum(0) / smoothed_KC.sum(), rtol=0, atol=1e-15
    )
    assert outcome.summary["failures"] == 0


# ---- weights ---------------------------------------------------------------------------------------------------------


def test_weighting_over_all_is_the_same_when_all_take_part(train: Train) -> None:
    participants = train("participants", fedavg__weighting="participants", rounds=3)
    everyone = train("all", fedavg__weighting="all", rounds=3)
    assert participants.hash == everyone.hash
    half = [
        train(f"half-{w}", fedavg__weighting=w, participation=0.5) for w in ("participants", "all")
    ]
    assert half[0].hash != half[1].hash


# ---- ways to start it ------------------------------------------------------------------------------------------------


def strategy_of(results: Path, **changes: Any) -> Strategy:
    """Return the strategy of small settings; it knows no client's number of examples, which tests make up."""
    settings = small(results, **changes)
    model = build(settings.general.model, (1, 8, 8), 10, 0)
    return Strategy(
        model,
        settings.run_spec(),
        clients=settings.data.clients,
        participation=settings.general.participation,
        combine=settings.combine,
        deploys=settings.deploys,
        holdout=federate(settings.data, 0).holdout(),
    )


def test_start_is_a_drop_in(tmp_path: Path) -> None:
    strategy, measured = strategy_of(tmp_path, method="fedshift"), []

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        measured.append(digest([from_flower(arrays)]))
        return MetricRecord({"round": server_round})

    with LocalGrid() as grid:
        result = strategy.start(
            grid=grid, initial_arrays=to_flower(strategy.shared), num_rounds=2, evaluate_fn=evaluate
        )
    assert isinstance(result, Result)
    assert (
        digest([from_flower(result.arrays)])
        == digest([strategy.shared])
        == measured[-1]
        != measured[0]
    )
    assert {
        number: dict(record) for number, record in result.evaluate_metrics_serverapp.items()
    } == {
        1: {"round": 1},
        2: {"round": 2},
    }
    assert result.train_metrics_clientapp[2]["loss"] == strategy.last.loss
    strategy.summary()


@pytest.mark.parametrize("method", ["fedavg", "fedbn+creff"])
def test_flowers_own_calls_give_the_same_as_start(tmp_path: Path, method: str) -> None:
    changes = {"method": method, "participation": 0.75}
    started, called = strategy_of(tmp_path / "a", **changes), strategy_of(tmp_path / "b", **changes)
    with LocalGrid() as grid:
        started.start(grid, to_flower(started.shared), 3)
        arrays = to_flower(called.shared)
        for server_round in (1, 2, 3):
            messages = list(called.configure_train(server_round, arrays, ConfigRecord(), grid))
            replies = list(grid.send_and_receive(messages))
            arrays, metrics = called.aggregate_train(server_round, replies)
        assert list(called.configure_evaluate(3, arrays, ConfigRecord(), grid)) == []
        assert called.aggregate_evaluate(3, []) is None  # type: ignore[func-returns-value]
    assert digest([called.shared]) == digest([started.shared]) == digest([from_flower(arrays)])
    assert called.last.loss == started.last.loss == metrics["loss"]
    for name, state in started.states.items():
        assert digest([called.states[name]]) == digest([state])
    assert called.memory_rounds == started.memory_rounds
    if "fedbn" in method:
        client, round = max(called.memory_rounds.items())
        files = [
            sorted(folder_of(small(tmp_path / r, **changes).folder, client).iterdir()) for r in "ab"
        ]
        assert files[0][-1].name == files[1][-1].name and files[0][-1].stem.endswith(str(round))
        assert digest([read(files[0][-1])[0]]) == digest([read(files[1][-1])[0]])


def test_flowers_own_calls_refuse_a_reply_with_too_many_tensors(tmp_path: Path) -> None:
    strategy = strategy_of(tmp_path)
    with LocalGrid(faithful=True) as grid:
        arrays = to_flower(strategy.shared)
        messages = strategy.configure_train(1, arrays, ConfigRecord(), grid)
        replies = list(grid.send_and_receive(messages))
        crowded(replies[0].content)
        with pytest.raises(TooFewReplies, match=f"3 good replies of 4.*client {FAULTY}: {CROWDED}"):
            strategy.aggregate_train(1, replies)


def test_model_given_to_the_strategy_is_not_its_state(tmp_path: Path) -> None:
    strategy = strategy_of(tmp_path)
    before = digest([strategy.shared])
    strategy.server.model.load_state_dict(
        {n: t + 1 for n, t in strategy.server.model.state_dict().items()}
    )
    assert digest([strategy.shared]) == before


def test_fedavg_is_flowers_fedavg(tmp_path: Path) -> None:
    strategy = strategy_of(tmp_path, model="small-cnn")
    updates: dict[int, tuple[State, int]] = {}
    generator = torch.Generator().manual_seed(0)
    for client, examples in enumerate((3, 50, 7, 140)):
        state = {
            n: t + torch.randn(t.shape, generator=generator) for n, t in strategy.shared.items()
        }
        updates[client] = (state, examples)
    with LocalGrid(faithful=True) as grid:
        (asked,) = strategy.configure_train(1, to_flower(strategy.shared), ConfigRecord(), grid)
        identify()
        others = {"remembers": 0, "seconds": 0.0}
        ours, theirs = RecordDict(), []
        order = random.Random(0).sample(list(updates), len(updates))
        for client in order:
            state, examples = updates[client]
            ours[f"{client}/model"] = pack(state)
            steps = steps_of(examples, strategy.server.training)
            norm = coefficient_sum(steps, strategy.server.training.momentum)
            done = {"loss": float(client), "steps": steps, "coefficient-sum": norm}
            ours[f"{client}/metrics"] = MetricRecord({**others, **done, "num-examples": examples})
            reply = RecordDict(
                {"arrays": to_flower(state), "metrics": MetricRecord({"num-examples": examples})}
            )
            theirs.append(Message(reply, reply_to=asked))
        arrays, _ = strategy.aggregate_train(1, [Message(ours, reply_to=asked)])
        flowers, _ = FlowerFedAvg().aggregate_train(1, theirs)
    assert flowers is not None
    assert strategy.last.loss == pytest.approx(
        (50 * 1 + 7 * 2 + 140 * 3) / 200
    )  # weighted by samples
    for name, tensor in from_flower(flowers).items():
        torch.testing.assert_close(from_flower(arrays)[name], tensor, rtol=1e-6, atol=1e-6)
