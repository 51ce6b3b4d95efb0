"""Runs with heads in closed form: without rounds, beside trained methods, killed and resumed, and refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message, RecordDict
from in_process import HEADS, FinishedRun, ManyNodes, TamperingGrid, number_of, small

import server_app.app
from client_app.messages import pack, unpack
from client_app.state import digest
from data import SettingError
from fedskew.costs.estimate import cost_of
from fedskew.costs.pace import Pace
from fedskew.costs.sizes import sizes_of
from fedskew.engines.local import LocalGrid
from fedskew.engines.workers import WorkersGrid
from fedskew.experiments import experiments
from fedskew.experiments.plan import plan
from server_app.checkpoint import latest
from server_app.run_evaluation import RunEvaluation
from server_app.run_folder import RunFolder
from server_app.settings import defaults, parse

Train = Callable[..., FinishedRun]
ALL = "+".join(HEADS)
POOLED = [head for head in HEADS if head != "fedcof"]
"""The heads that do not depend on the partition."""
LINEAR = {"model": "linear", "rounds": 0, "min_samples": 1, "train_images": 500}


def models_of(outcome: FinishedRun) -> dict[str, str]:
    """Return a hash of each deployed model."""
    checkpoint = latest(outcome.folder, print)
    assert checkpoint is not None
    return {name: digest([state]) for name, state in checkpoint.deployed.items()}


# ---- the partition ---------------------------------------------------------------------------------------------------

USUAL = {"alpha": defaults()["alpha"], "min_samples": defaults()["min-samples"]}
"""What partitions without alpha and min-samples leave as it is."""
PARTITIONS: dict[str, dict[str, Any]] = {
    "pooled": {**USUAL, "partition": "pooled", "clients": 0},
    "iid": {**USUAL, "partition": "iid", "clients": 10},
    "lda 0.5": {"partition": "lda", "alpha": 0.5, "clients": 10},
    "lda 0.01": {"partition": "lda", "alpha": 0.01, "clients": 10},
    "lda 0.1, 40 clients": {"partition": "lda", "alpha": 0.1, "clients": 40},
    "llt 0.99": {
        "min_samples": USUAL["min_samples"],
        "partition": "llt",
        "alpha": 0.99,
        "clients": 10,
    },
    "a class per client": {
        **USUAL,
        "partition": "classes-per-client",
        "classes_per_client": 1,
        "clients": 10,
    },
}


def test_every_partition_ends_in_the_same_heads_to_the_bit(train: Train) -> None:
    by_partition = {
        name: models_of(train(name, method=ALL, **{**LINEAR, **changes}))
        for name, changes in PARTITIONS.items()
    }
    for head in POOLED:
        assert len({models[head] for models in by_partition.values()}) == 1, head
    assert len({models["fedcof"] for models in by_partition.values()}) > 2


def test_lifted_features_give_heads_that_depend_on_the_partition_as_little(train: Train) -> None:
    lifted = {**LINEAR, "model": "random-conv", "lift": 100}
    by_partition = [
        models_of(train(name, method="fed-lda+fed3r", **{**lifted, **PARTITIONS[name]}))
        for name in ("pooled", "lda 0.1, 40 clients")
    ]
    for head in ("fed-lda", "fed3r"):
        assert len({models[head] for models in by_partition}) == 1, head
    other_width = train("wider", method="fed-lda", **{**lifted, "lift": 101})
    assert models_of(other_width)["fed-lda"] != by_partition[0]["fed-lda"]


def test_one_label_changed_is_seen(train: Train, tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    images = draws.integers(0, 256, (240, 8, 8), dtype=np.uint8)
    labels = np.arange(240) % 3

    def models(name: str, labels: np.ndarray[Any, Any]) -> dict[str, str]:
        file = tmp_path / f"{name}.npz"
        parts = {"train_images": images[:180], "train_labels": labels[:180]}
        np.savez(file, **parts, test_images=images[180:], test_labels=labels[180:])
        about = {"dataset": f"npz:{file}", "classes": "a,b,c", "input_shape": "1x8x8"}
        about |= {"model": "linear", "rounds": 0, "train_images": 0, "test_images": 0}
        return models_of(train(name, method=ALL, **about, **USUAL, partition="iid"))

    before = models("before", labels)
    assert models("again", labels) == before
    labels[17] = (labels[17] + 1) % 3
    after = models("after", labels)
    assert all(after[head] != before[head] for head in HEADS)


@pytest.mark.parametrize("grid", [LocalGrid(faithful=True), ManyNodes(3), WorkersGrid(2)])
def test_every_engine_gives_the_same_heads(train: Train, grid: Any) -> None:
    here, there = (
        train("here", method=ALL, **LINEAR),
        train("there", grid=grid, method=ALL, **LINEAR),
    )
    assert there.summary["hash"] == here.summary["hash"]


# ---- without rounds --------------------------------------------------------------------------------------------------


def test_a_run_without_rounds_has_one_record_and_no_average(train: Train) -> None:
    outcome = train(method=ALL, **LINEAR)
    (record,) = outcome.records
    assert record["round"] == 0 and record["loss"] is None and record["failures"] == {}
    assert sorted(record["models"]) == sorted(outcome.summary["rows"]) == sorted(HEADS)
    assert record["metrics"] if "metrics" in record else record["clipped-features"] == 0
    assert any(line.startswith("without rounds  fed-lda 0.") for line in outcome.lines)
    assert all(numbers["balanced-accuracy"] > 0.6 for numbers in record["models"].values())
    again = train(method=ALL, **LINEAR)
    assert again.summary == outcome.summary  # it is finished, and not repeated


def test_the_bytes_without_rounds_are_those_of_the_answers(train: Train) -> None:
    sent: dict[str, int] = {}

    def count(asked: Message, records: RecordDict) -> None:
        for name, record in records.array_records.items():
            if "/upload/" in name:
                state = unpack(record)
                sent[name] = sum(tensor.nbytes for tensor in state.values())

    outcome = train(grid=TamperingGrid(count), method=ALL, **LINEAR)
    assert outcome.records[0]["bytes-up"] == sum(sent.values()) > 0
    model = 4 * (64 * 10 + 10)
    questions = 5  # label-counts and four kinds of statistics
    assert outcome.records[0]["bytes-down"] == questions * 4 * model


def test_a_run_without_rounds_that_is_killed_asks_for_nothing_again(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train("whole", method=ALL, **LINEAR)
    with monkeypatch.context() as patch:
        patch.setattr(RunEvaluation, "evaluate", stop)
        with pytest.raises(InterruptedError):
            train("killed", method=ALL, **LINEAR)
    asked: list[int] = []
    grid = TamperingGrid(lambda message, records: asked.append(number_of(message)))
    resumed = train("killed", grid=grid, method=ALL, **LINEAR)
    assert resumed.summary["hash"] == whole.summary["hash"]
    assert resumed.records == whole.records
    assert asked == []


def stop(*given: object) -> None:
    raise InterruptedError


def test_the_cost_of_a_run_without_rounds(tmp_path: Path) -> None:
    changes = {"method": "fed-lda", **LINEAR}
    settings = small(tmp_path, **changes)
    sizes = sizes_of(settings.data, settings.general.seed)
    assert sizes is not None
    pace = Pace(clients=100.0, server=100.0, evaluation=2.0, once=1.0)
    cost = cost_of(settings, sizes, pace)
    assert (cost.left, cost.seconds, cost.down) == (1, 3.0, 0)
    with LocalGrid() as grid:
        server_app.app.run(grid, settings, lambda line: None)
    (record,) = RunFolder(settings.folder).rounds()
    assert cost.up == record.bytes_up
    done = cost_of(settings, sizes, pace)
    assert (done.left, done.seconds, done.up) == (0, 0.0, 0.0)


# ---- beside a trained method -----------------------------------------------------------------------------------------


def test_heads_beside_a_trained_method_change_nothing_of_it(train: Train) -> None:
    changes = {"model": "linear", "rounds": 2, "method": "fedshift"}
    plain = train("plain", **changes)
    beside = train("beside", **{**changes, "method": f"fedshift+{ALL}"})
    without = train("without", method=ALL, model="linear", rounds=0)
    assert beside.summary["hash"]["shared"] == plain.summary["hash"]["shared"]
    assert models_of(beside)["average"] == models_of(plain)["average"]
    for head in HEADS:
        assert models_of(beside)[head] == models_of(without)[head]
    assert [sorted(record["models"]) for record in beside.records] == [
        sorted(["average", *HEADS])
    ] * 2
    down = [outcome.records[0]["bytes-down"] for outcome in (plain, beside)]
    assert down[0] == down[1]  # statistics do not travel back


def test_experiments_train_once_for_all_heads() -> None:
    entry = {
        "title": "",
        "methods": ["fedavg", *HEADS],
        "settings": {"dataset": "digits", "model": "linear", "rounds": 2},
    }
    cells = plan(experiments.experiment("one", entry))
    assert len({cell.run.run_id for cell in cells}) == 1
    assert [cell.deployed for cell in cells] == ["average", *HEADS]


# ---- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "key", "words"),
    [
        ({"method": "fedavg", "rounds": 0}, "rounds", ["closed form alone", "fedavg trains"]),
        ({"method": "fedshift+fed3r", "rounds": 0}, "rounds", ["fedshift trains"]),
        ({"method": "tau-norm+fed3r", "rounds": 0}, "rounds", ["tau-norm trains"]),
        ({"method": "fednova+fed3r", "rounds": 0}, "rounds", ["fednova trains"]),
        ({"method": "fed3r", "rounds": -1}, "rounds", ["must be"]),
        (
            {"dataset": "cifar10", "model": "random-conv", "augmentation": "crop-flip"},
            "augmentation",
            ["no effect with rounds = 0"],
        ),
        ({"method": "fed3r", "model": "mlp-bn"}, "method", ["fed3r needs features that stay"]),
        ({"method": "fed-lda+fedbn"}, "method", ["fedbn", "local-batch-norm"]),
        ({"method": "fed3r", "fed3r.rho": "-1"}, "fed3r.rho", ["number of 0 or more"]),
        ({"method": "fed3r", "feature-statistics.bits": 0}, "feature-statistics.bits", ["1"]),
        ({"method": "fedncm", "feature-statistics.bits": 9}, "feature-statistics.bits", ["effect"]),
    ],
)
def test_settings_that_are_refused(changes: dict[str, Any], key: str, words: list[str]) -> None:
    good = {"dataset": "digits", "model": "linear", "method": "fed3r", "rounds": 0}
    assert parse(good).general.rounds == 0
    with pytest.raises(SettingError) as caught:
        parse({**good, **changes})
    assert caught.value.key == key
    assert all(word in str(caught.value) for word in words), caught.value


def test_too_many_bits_for_the_samples_are_refused_before_anything_is_asked(train: Train) -> None:
    asked: list[int] = []
    grid = TamperingGrid(lambda message, records: asked.append(1))
    changes = {**LINEAR, "method": "fed-lda", "balanced_statistics__bits": 20, "train_images": 0}
    train("few", **{**changes, "train_images": 500})
    # 1,437 samples of weight 1,024 at most, with 20 bits: below 2^63; only a bound of its own shows the refusal.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("client_app.variants.feature_statistics.LARGEST_SUM", 2**60)
        patch.setattr("client_app.integer_grid.LARGEST_SUM", 2**60)
        with pytest.raises(SettingError, match=r"balanced-statistics.bits.*overflow.*at most 19"):
            train("many", grid=grid, **changes)
    assert asked == []


def test_a_range_that_clips_is_refused_with_the_one_to_set(train: Train) -> None:
    changes = {**LINEAR, "method": "fedncm"}
    with pytest.raises(SettingError, match=r"class-means.range = 0.5.* is enough") as caught:
        train("narrow", **changes, class_means__range=0.5)
    (remedy,) = [word for word in str(caught.value).split() if word.replace(".", "").isdigit()][-1:]
    outcome = train("wide", **changes, class_means__range=float(remedy))
    assert outcome.records[0]["clipped-features"] <= 1e-3


@pytest.mark.parametrize(
    ("name", "spoil", "reason"),
    [
        ("sums", lambda tensor: tensor[:, :-1], "not int64 of shape"),
        ("sums", lambda tensor: tensor.double(), "not int64 of shape"),
        ("triangle", lambda tensor: tensor * 0 + 2**60, "a sum of products"),
        ("counts", lambda tensor: tensor + 1, "samples"),
    ],
)
def test_a_client_whose_statistics_cannot_be_is_named(
    train: Train, name: str, spoil: Callable[[torch.Tensor], torch.Tensor], reason: str
) -> None:
    def tamper(asked: Message, records: RecordDict) -> None:
        key = "2/upload/feature-statistics"
        if key in records.array_records:
            state = dict(unpack(records.array_records[key]))
            state[name] = spoil(state[name]).contiguous()
            records[key] = pack(state)

    from strategies.core.exchange import TooFewReplies

    with pytest.raises(TooFewReplies, match=f"client 2.*{reason}"):
        train(grid=TamperingGrid(tamper, faithful=True), method="fed3r", **LINEAR)
