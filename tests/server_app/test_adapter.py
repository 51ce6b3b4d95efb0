"""The adapter to flwr: replies that must not be combined, nodes, questions, and the ways to start it."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg
from flwr.serverapp.strategy import FedAvgM as FlowerFedAvgM
from in_process import (
    FinishedRun,
    ManyNodes,
    Tamper,
    TamperingGrid,
    drop,
    faithful,
    number_of,
    small,
)

from client_app.messages import kind_of, pack, to_flower, unpack
from client_app.optimizer import coefficient_sum
from client_app.training import steps_of
from data import federate
from fedskew.engines.local import LocalGrid, identify
from server_app.app import Run
from server_app.run_folder import RunFolder
from strategies.core.exchange import (
    Exchange,
    TooFewReplies,
)
from strategies.core.node_assignment import ExchangeSettings, TooFewNodes, wait_for_nodes
from strategies.core.server import Diverged

Train = Callable[..., FinishedRun]
Spoil = Callable[[RecordDict, int], object]
"""What changes the records of the client of that number."""

# ---- replies that must not be combined -------------------------------------------------------------------------------


def state_with(change: Callable[[dict[str, torch.Tensor]], object], record: str = "model") -> Spoil:
    """Return what changes a client's record of tensors."""

    def spoil(records: RecordDict, client: int) -> None:
        name = f"{client}/{record}"
        state = {key: tensor.clone() for key, tensor in unpack(records.array_records[name]).items()}
        change(state)
        records[name] = pack(state)

    return spoil


def upload_with(change: Callable[[dict[str, torch.Tensor]], object]) -> Spoil:
    return state_with(change, "upload/feature-gradients")


def metrics_with(**changes: Any) -> Spoil:
    """Return what changes a client's numbers; None takes one out."""

    def spoil(records: RecordDict, client: int) -> None:
        stated = {key.replace("_", "-"): value for key, value in changes.items()}
        numbers = {**records.metric_records[f"{client}/metrics"], **stated}
        kept = {key: value for key, value in numbers.items() if value is not None}
        records[f"{client}/metrics"] = MetricRecord(kept)

    return spoil


def without(record: str) -> Spoil:
    return lambda records, client: records.pop(f"{client}/{record}")


def raises(records: RecordDict, client: int) -> None:
    drop(records, client)
    records[f"{client}/error"] = ConfigRecord({"reason": "ValueError: no such luck"})


def numbered(number: Callable[[int], str]) -> Spoil:
    """Return what sends everything of a client under another number."""

    def spoil(records: RecordDict, client: int) -> None:
        for name in [name for name in records if name.startswith(f"{client}/")]:
            records[name.replace(f"{client}/", f"{number(client)}/", 1)] = records.pop(name)

    return spoil


def garbage(records: RecordDict, client: int) -> None:
    array = Array("float32", (10,), "numpy.ndarray", b"no array")
    records[f"{client}/model"] = ArrayRecord({"head.bias": array})


def crowded(records: RecordDict, client: int) -> None:
    """Send a model of 20,000 empty tensors, which take fewer bytes than a record may have."""
    records[f"{client}/model"] = pack({str(number): torch.empty(0) for number in range(20_000)})


NAN = float("nan")
FAULTS: list[tuple[Spoil, str]] = [
    (raises, "ValueError: no such luck"),
    (drop, "no reply"),
    (numbered(lambda client: f"0{client}"), "no reply"),
    (numbered(lambda client: "".join(chr(0x660 + int(d)) for d in str(client))), "no reply"),
    (garbage, "unreadable reply: "),
    (crowded, "unreadable reply: a head of "),
    (
        lambda records, k: records.update({f"{k}/worker": ConfigRecord({"process": 10**5000})}),
        "unreadable reply: ValueError: worker: has a number of more than 63 bits",
    ),
    (without("model"), "the reply holds no model"),
    (
        state_with(lambda s: s["head.weight"][3, 5].fill_(NAN)),
        "model: head.weight is not finite",
    ),
    (
        state_with(lambda s: s["head.weight"].fill_(3e38)),
        "model: head.weight is 3e+38 and must be -1e+10 to 1e+10",
    ),
    (
        state_with(lambda s: s.update({"head.bias": s["head.bias"][:-1]})),
        "model: head.bias is float32 of 9, not float32 of 10",
    ),
    (metrics_with(num_examples=0), "metric num-examples is 0 and must be 1 to"),
    (metrics_with(num_examples=777), "num-examples is 777, and the client has "),
    (metrics_with(steps=10**6), "steps is 1000000, and "),
    (metrics_with(coefficient_sum=1e-300), "coefficient-sum is 1e-300, and "),
    (without("upload/feature-gradients"), "upload feature-gradients is missing"),
    (
        lambda records, k: records.update({f"{k}/upload/surprise": pack({"a": torch.ones(1)})}),
        "upload 'surprise' is not one that scaffold",
    ),
    (
        upload_with(lambda s: s.update(classes=s["classes"].flip(0))),
        "upload feature-gradients: classes are ",
    ),
]
"""Client k's reply in round 1 is spoiled by fault k, and is left out for that reason."""
HONEST = 4
CHANGES: dict[str, Any] = {
    "method": "creff+scaffold",
    "clients": len(FAULTS) + HONEST,
    "alpha": 100.0,
    "train_images": 800,
    "min_reply_share": 0.05,
    "local_steps": 1,
    "evaluate_every": 0,
}


def in_round_1(spoils: Iterable[Spoil]) -> Tamper:
    """Return a tampering with the training replies of the first clients in round 1."""

    def tamper(asked: Message, records: RecordDict) -> None:
        if kind_of(asked) == "train" and number_of(asked) == 1:
            for client, spoil in enumerate(spoils):
                if f"{client}/model" in records:  # a message may hold some clients alone
                    spoil(records, client)

    return tamper


def test_every_faulty_reply_is_left_out_for_its_reason(
    train: Train, caplog: pytest.LogCaptureFixture
) -> None:
    """The run goes on to the bits of one in which these clients were silent; in round 2 they are back."""
    spoils = [spoil for spoil, _ in FAULTS]
    outcome = train(grid=faithful(TamperingGrid(in_round_1(spoils))), **CHANGES)
    first, second = outcome.records
    assert [*first["failures"]] == [str(client) for client in range(len(FAULTS))]
    for (_, reason), found in zip(FAULTS, first["failures"].values(), strict=True):
        assert found.startswith(reason)
    assert first["clients"] == list(range(len(FAULTS), len(FAULTS) + HONEST))
    assert second["failures"] == {} and len(second["clients"]) == len(FAULTS) + HONEST
    assert outcome.summary["failures"] == len(FAULTS)
    assert "round 1: client 1 left out: no reply" in caplog.text
    silent = train("silent", grid=TamperingGrid(in_round_1([drop] * len(FAULTS))), **CHANGES)
    assert outcome.hash == silent.hash


def test_a_run_that_too_few_finite_models_end_is_recorded_as_diverged(
    train: Train, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Two clients send a number that is not finite, and every reply is asked for; the log names both."""
    spoil = state_with(lambda state: state["head.weight"][3, 5].fill_(NAN))
    with pytest.raises(Diverged):
        train(grid=TamperingGrid(in_round_1([spoil, spoil])), min_reply_share=1.0)
    assert "round 1: client 1 left out: model: head.weight is not finite" in caplog.text
    (file,) = tmp_path.rglob("diverged.json")
    record = json.loads(file.read_text())
    assert (record["round"], record["client"]) == (1, "client 0")


def test_the_first_word_of_a_client_counts() -> None:
    exchange = Exchange([0, 1])
    error, model = {"reason": "first"}, pack({})
    exchange.sort(RecordDict({"0/error": ConfigRecord(error), "1/model": model}), 1, {0, 1})
    error = {"reason": "second"}
    exchange.sort(RecordDict({"0/model": model, "1/error": ConfigRecord(error)}), 1, {0, 1})
    assert exchange.failures == {0: "first"} and exchange.unanswered == []
    assert list(exchange.answers) == [1]


# ---- nodes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["client_app.app.states", "client_app.handlers.train"])
def test_what_a_dead_node_reported_is_in_the_reason(
    train: Train, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    def broken(*arguments: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(place, broken)
    with pytest.raises(TooFewReplies) as ended:
        train(grid=TamperingGrid())
    assert "client 0: no reply; a node reported: " in str(ended.value)
    assert "no space left" in str(ended.value)


def test_nodes_are_waited_for(train: Train) -> None:
    class Late(LocalGrid):
        times = 0

        def get_node_ids(self) -> list[int]:
            self.times += 1
            return [5, 2][: self.times - 1]

    assert wait_for_nodes(Late(), ExchangeSettings(nodes=2, node_wait=30)) == [2, 5]
    early = Late()
    early.times = 2
    assert wait_for_nodes(early, ExchangeSettings(nodes=1, node_wait=0)) == [2, 5]
    with pytest.raises(TooFewNodes):
        train(nodes=3, node_wait=0.1)


def test_number_of_nodes_and_order_of_replies_do_not_matter(train: Train) -> None:
    changes = {"method": "fedbn+creff+fedshift", "clients": 5, "participation": 0.6}
    one, many = [train(f"{nodes}", grid=ManyNodes(nodes), **changes) for nodes in (1, 9)]
    assert one.hash == many.hash and one.records == many.records


# ---- the question before round 1 -------------------------------------------------------------------------------------


def other_counts(change: Callable[[torch.Tensor], torch.Tensor]) -> Spoil:
    return state_with(lambda s: s.update(counts=change(s["counts"])), "upload/logit-shift")


def without_answer(records: RecordDict, client: int) -> None:
    records[f"{client}/upload/other"] = records.pop(f"{client}/upload/logit-shift")


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (raises, "ValueError: no such luck"),
        (without_answer, "the reply holds no answer for logit-shift"),
        (other_counts(lambda counts: counts[:-1]), "counts is int64 of 9, not int64 of 10"),
        (other_counts(lambda counts: -counts - 1), "counts is -"),
        (other_counts(lambda counts: counts + 2**16), "class counts are those of "),
    ],
)
def test_a_class_prior_without_every_client_ends_the_run(
    train: Train, spoil: Spoil, reason: str
) -> None:
    def tamper(asked: Message, records: RecordDict) -> None:
        if kind_of(asked) == "query":
            spoil(records, 2)

    with pytest.raises(TooFewReplies) as ended:
        train(grid=TamperingGrid(tamper), method="fedshift", min_reply_share=0.5)
    assert f"; client 2: {reason}" in str(ended.value)


@pytest.mark.parametrize("smoothing", [0.0, 0.5])
def test_prior_is_the_sum_of_all_clients_smoothed_counts(
    train: Train, tmp_path: Path, smoothing: float
) -> None:
    changes = {"participation": 0.5, "logit_shift__smoothing": smoothing, "rounds": 1}
    train(grid=(grid := TamperingGrid()), method="fedshift", **changes)
    sent = unpack(grid.asked[1].content.array_records["broadcast/logit-shift"])
    counts_C = sent["counts"].double()
    federation = federate(small(tmp_path).data, 0)
    smoothed_KC = torch.as_tensor(federation.counts_KC).double() + smoothing
    expected_C = smoothed_KC.sum(0) / smoothed_KC.sum()
    torch.testing.assert_close(counts_C / counts_C.sum(), expected_C, rtol=0, atol=1e-15)


# ---- weights and ways to start it ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "theirs"),
    [
        ("fedavg", FlowerFedAvg()),
        ("fedavgm", FlowerFedAvgM(server_learning_rate=0.7, server_momentum=0.9)),
    ],
)
def test_the_mean_and_its_momentum_are_flowers(tmp_path: Path, method: str, theirs: Any) -> None:
    """Three rounds of the same replies, in another order."""
    rate = {"server_learning_rate": 0.7} if method == "fedavgm" else {}
    settings = small(tmp_path, method=method, model="small-cnn", **rate)
    federation = federate(settings.data, 0)
    examples = federation.counts_KC.sum(1).tolist()
    generator = torch.Generator().manual_seed(0)
    with faithful(LocalGrid()) as grid:
        identify()
        ours = Run(grid, settings, federation, RunFolder(settings.folder), print).strategy
        theirs.current_arrays = arrays = to_flower(ours.shared)
        for number in (1, 2, 3):
            clients = ours.begin_round(number)
            assignment = {1: clients}
            (asked,) = ours.training_request().messages(assignment)
            mine, replies = RecordDict(), []
            for client, count in enumerate(examples):
                state = {
                    name: tensor + torch.randn(tensor.shape, generator=generator)
                    for name, tensor in arrays.to_torch_state_dict().items()
                }
                steps = steps_of(count, settings.training)
                work = coefficient_sum(steps, settings.training.momentum)
                numbers = {"num-examples": count, "steps": steps, "coefficient-sum": work}
                others = {"loss": float(client), "seconds": 0.0}
                mine[f"{client}/model"] = pack(state)
                mine[f"{client}/metrics"] = MetricRecord({**numbers, **others})
                metrics = MetricRecord({"num-examples": count})
                reply = RecordDict({"arrays": to_flower(state), "metrics": metrics})
                replies.insert(0, Message(reply, reply_to=asked))
            exchange = Exchange(clients, ours.largest)
            exchange.receive([Message(mine, reply_to=asked)], assignment)
            ours.finish_round(exchange)
            flowers, _ = theirs.aggregate_train(number, replies)
            for name, tensor in flowers.to_torch_state_dict().items():
                torch.testing.assert_close(ours.shared[name], tensor, rtol=1e-6, atol=1e-6)
            arrays = to_flower(ours.shared)
    weighted = sum(client * count for client, count in enumerate(examples))
    assert ours.last.loss == pytest.approx(weighted / sum(examples))
