"""Runs with heads in closed form: without rounds, beside trained methods, killed and resumed, and refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message, RecordDict
from in_process import HEADS, FinishedRun, TamperingGrid, kill, number_of

from client_app.messages import kind_of, pack, unpack
from client_app.state import State, digest
from data import SettingError
from fedskew.engines.workers import WorkersGrid
from server_app.checkpoint import latest
from server_app.run_evaluation import RunEvaluation
from server_app.settings import defaults
from strategies.core.exchange import TooFewReplies

Train = Callable[..., FinishedRun]
ALL = "+".join(HEADS)
LINEAR = {"model": "linear", "rounds": 0, "min_samples": 1, "train_images": 500}


def models_of(outcome: FinishedRun) -> dict[str, State]:
    """Return the deployed models of a run's last checkpoint."""
    checkpoint = latest(outcome.folder, print)
    assert checkpoint is not None
    return checkpoint.deployed


def hashes_of(outcome: FinishedRun) -> dict[str, str]:
    return {name: digest([state]) for name, state in models_of(outcome).items()}


# ---- the partition ---------------------------------------------------------------------------------------------------

USUAL = {"alpha": defaults()["alpha"], "min_samples": defaults()["min-samples"]}
"""What partitions without alpha and min-samples leave as it is."""
PARTITIONS: dict[str, dict[str, Any]] = {
    "pooled": {**USUAL, "partition": "pooled", "clients": 0},
    "lda 0.01": {"partition": "lda", "alpha": 0.01, "clients": 10},
    "lda 0.1, 40 clients": {"partition": "lda", "alpha": 0.1, "clients": 40},
    "one class per client": {
        **USUAL,
        "partition": "classes-per-client",
        "classes_per_client": 1,
        "clients": 10,
    },
}


def test_every_partition_ends_in_the_same_heads_to_the_bit(train: Train) -> None:
    by_partition = [
        hashes_of(train(name, method=ALL, **{**LINEAR, **changes}))
        for name, changes in PARTITIONS.items()
    ]
    for head in HEADS:
        different = len({models[head] for models in by_partition})
        assert different == 1 or (head == "fedcof" and different > 2), head


def test_worker_processes_give_the_same_heads(train: Train) -> None:
    here = train("here", method=ALL, **LINEAR)
    there = train("there", grid=WorkersGrid(2), method=ALL, **LINEAR)
    assert there.summary["hash"] == here.summary["hash"]


# ---- without rounds --------------------------------------------------------------------------------------------------


def test_a_run_without_rounds_has_one_record_no_average_and_the_answers_bytes(train: Train) -> None:
    sent: dict[str, int] = {}

    def count(asked: Message, records: RecordDict) -> None:
        for name, record in records.array_records.items():
            if "/upload/" in name:
                sent[name] = sum(tensor.nbytes for tensor in unpack(record).values())

    outcome = train(grid=TamperingGrid(count), method=ALL, **LINEAR)
    (record,) = outcome.records
    assert record["round"] == 0 and record["loss"] is None and record["failures"] == {}
    assert sorted(record["models"]) == sorted(outcome.summary["rows"]) == sorted(HEADS)
    assert record["clipped-features"] == 0
    assert all(numbers["balanced-accuracy"] > 0.6 for numbers in record["models"].values())
    assert record["bytes-up"] == sum(sent.values()) > 0
    model, questions = 4 * (64 * 10 + 10), 5  # label-counts and four kinds of statistics
    assert record["bytes-down"] == questions * 4 * model
    assert train(method=ALL, **LINEAR).summary == outcome.summary, "it is finished"


def test_a_run_without_rounds_that_is_killed_asks_for_nothing_again(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*given: object) -> None:
        raise InterruptedError

    whole = train("whole", method=ALL, **LINEAR)
    with monkeypatch.context() as patch:
        patch.setattr(RunEvaluation, "evaluate", stop)
        with pytest.raises(InterruptedError):
            train("killed", method=ALL, **LINEAR)
    resumed = train("killed", grid=(grid := TamperingGrid()), method=ALL, **LINEAR)
    assert grid.asked == []
    assert resumed.summary["hash"] == whole.summary["hash"]
    assert resumed.records == whole.records


# ---- beside a trained method -----------------------------------------------------------------------------------------


def test_heads_beside_a_trained_method_change_nothing_of_it(train: Train) -> None:
    plain = train("plain", model="linear", method="fedshift")
    beside = train("beside", model="linear", method=f"fedshift+{ALL}")
    without = hashes_of(train("without", method=ALL, model="linear", rounds=0))
    assert beside.summary["hash"]["shared"] == plain.summary["hash"]["shared"]
    assert hashes_of(beside) == {"average": hashes_of(plain)["average"], **without}
    for ours, theirs in zip(beside.records, plain.records, strict=True):
        assert sorted(ours["models"]) == sorted(["average", *HEADS])
        assert ours["bytes-down"] == theirs["bytes-down"], "statistics do not travel back"


def test_training_starts_with_a_head_in_closed_form_to_the_bit(
    train: Train, tmp_path: Path
) -> None:
    """And a run that is killed in its first round resumes with it."""
    fixed = {"model": "random-conv", "lift": 100, "alpha": 0.1, "min_samples": 1, "test_images": 0}
    changes = {**fixed, "method": "fedavgm", "rounds": 1, "head_start": "fed-lda"}
    sent: list[State] = []

    def look(asked: Message, records: RecordDict) -> None:
        if kind_of(asked) == "train" and number_of(asked) == 1:
            sent.append(unpack(asked.content.array_records["model"]))

    alone = models_of(train("alone", **fixed, method="fed-lda", rounds=0))["fed-lda"]
    started = train("started", grid=TamperingGrid(look), **changes)
    assert all(torch.equal(sent[0][name], tensor) for name, tensor in alone.items())
    kill(tmp_path / "killed", "during training", changes, round=1)
    resumed = train("killed", grid=(grid := TamperingGrid()), **changes)
    assert "query" not in grid.kinds() and resumed.hash == started.hash


# ---- refusals --------------------------------------------------------------------------------------------------------


def test_too_many_bits_for_the_samples_are_refused_before_anything_is_asked(train: Train) -> None:
    grid = TamperingGrid()
    changes = {**LINEAR, "method": "fed-lda", "balanced_statistics__bits": 20}
    train("few", **changes)
    # 1,437 samples of weight 1,024 at most, with 20 bits: below 2^63; only a bound of its own shows the refusal.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("client_app.variants.feature_statistics.LARGEST_SUM", 2**60)
        patch.setattr("client_app.integer_grid.LARGEST_SUM", 2**60)
        with pytest.raises(SettingError) as refused:
            train("many", grid=grid, **{**changes, "train_images": 0})
    assert refused.value.key == "balanced-statistics.bits" and grid.asked == []
    assert "at most 19" in str(refused.value)


def test_a_range_that_clips_is_refused_with_the_one_to_set(train: Train) -> None:
    changes = {**LINEAR, "method": "fedncm"}
    with pytest.raises(SettingError) as refused:
        train("narrow", **changes, class_means__range=0.5)
    assert refused.value.key == "class-means.range"
    *_, remedy = (word for word in str(refused.value).split() if word.replace(".", "").isdigit())
    outcome = train("wide", **changes, class_means__range=float(remedy))
    assert outcome.records[0]["clipped-features"] <= 1e-3


@pytest.mark.parametrize(
    ("name", "spoil", "reason"),
    [
        ("sums", lambda tensor: tensor[:, :-1], "not int64 of shape"),
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
            records[key] = pack({**state, name: spoil(state[name]).contiguous()})

    with pytest.raises(TooFewReplies) as ended:
        train(grid=TamperingGrid(tamper, faithful=True), method="fed3r", **LINEAR)
    assert "client 2" in str(ended.value) and reason in str(ended.value)
