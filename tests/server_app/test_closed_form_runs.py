"""Runs with heads in closed form: without rounds, beside trained methods, killed and resumed, and refused."""

from collections.abc import Callable
from typing import Any

import pytest
from flwr.app import Message, RecordDict
from in_process import HEADS, FinishedRun, TamperingGrid, faithful

from client_app.messages import pack, unpack
from client_app.state import State, digest
from server_app.checkpoint import latest
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
}


def test_every_partition_ends_in_the_same_heads_to_the_bit(train: Train) -> None:
    by_partition = [
        hashes_of(train(name, method=ALL, **{**LINEAR, **changes}))
        for name, changes in PARTITIONS.items()
    ]
    for head in HEADS:
        assert len({models[head] for models in by_partition}) == 1, head


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
    assert all(numbers["balanced-accuracy"] > 0.6 for numbers in record["models"].values())
    assert record["bytes-up"] == sum(sent.values()) > 0
    model, questions = 4 * (64 * 10 + 10), 4  # label-counts and three kinds of statistics
    assert record["bytes-down"] == questions * 4 * model


# ---- beside a trained method -----------------------------------------------------------------------------------------


def test_heads_beside_a_trained_method_change_nothing_of_it(train: Train) -> None:
    plain = train("plain", model="linear", method="fedshift")
    beside = train("beside", model="linear", method=f"fedshift+{ALL}")
    without = hashes_of(train("without", method=ALL, model="linear", rounds=0))
    assert hashes_of(beside) == {"average": hashes_of(plain)["average"], **without}
    assert beside.records[0]["bytes-down"] == plain.records[0]["bytes-down"]


# ---- refusals --------------------------------------------------------------------------------------------------------


def test_a_client_whose_statistics_cannot_be_is_named(train: Train) -> None:
    for name, spoil, reason in (
        ("sums", lambda tensor: tensor[:, :-1], "not int64 of 10x64"),
        ("triangle", lambda tensor: tensor * 0 + 2**60, "a sum of products"),
        ("counts", lambda tensor: tensor + 1, "samples"),
    ):

        def tamper(asked: Message, records: RecordDict, name=name, spoil=spoil) -> None:
            key = "2/upload/feature-statistics"
            if key in records.array_records:
                state = dict(unpack(records.array_records[key]))
                records[key] = pack({**state, name: spoil(state[name]).contiguous()})

        with pytest.raises(TooFewReplies) as ended:
            train(grid=faithful(TamperingGrid(tamper)), method="fed3r", **LINEAR)
        assert "client 2" in str(ended.value) and reason in str(ended.value)
