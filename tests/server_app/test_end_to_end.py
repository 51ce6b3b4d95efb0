"""Whole runs in one process: how clients run changes no bit, what may be left out is plain training, what leaves."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from in_process import FinishedRun, experiment

from client_app.models import batch_norm_names, build
from fedskew.engines.local import LocalGrid
from fedskew.engines.workers import WorkersGrid
from server_app.checkpoint import Checkpoint

Train = Callable[..., FinishedRun]


def test_another_seed_is_another_run(train: Train) -> None:
    assert train("1", seed=1, rounds=1).hash != train("0", rounds=1).hash


def test_worker_processes_give_the_same(train: Train) -> None:
    here = train("here", method="creff+fedbn")
    there = train("there", method="creff+fedbn", grid=WorkersGrid(2))
    assert there.summary["hash"] == here.summary["hash"] and there.records == here.records
    processes = [
        {worker["process"] for record in outcome.folder.rounds() for worker in record.workers}
        for outcome in (here, there)
    ]
    assert processes[0] == {os.getpid()} and processes[1] and os.getpid() not in processes[1]


@pytest.mark.parametrize("other", ["fedavg", "fedshift+fedbn"])
def test_creff_leaves_the_average_alone(train: Train, other: str) -> None:
    """{u, v} is the other method's to the bit in every round; the re-trained head never enters it."""
    plain = train("plain", method=other, rounds=3, participation=0.75)
    creff = train("creff", method=f"creff+{other}", rounds=3, participation=0.75)
    for part in ("shared", "memory"):
        assert creff.summary["hash"][part] == plain.summary["hash"][part]
    for ours, theirs in zip(creff.records, plain.records, strict=True):
        assert ours["models"]["average"] == theirs["models"]["average"]
        assert ours["loss"] == theirs["loss"]
        assert ours["models"]["creff"] != ours["models"]["average"]
    assert creff.summary["rows"]["average"] == plain.summary["rows"]["average"]


def test_bfloat16_repeats_to_the_bit_and_differs_by_little(train: Train) -> None:
    changes = {"method": "scaffold", "local_epochs": 1, "rounds": 1}
    exact = train("float32", **changes)
    rounded = train("bfloat16", precision="bfloat16", **changes)
    again = train("again", grid=LocalGrid(faithful=True), precision="bfloat16", **changes)
    assert again.summary["hash"] == rounded.summary["hash"] != exact.summary["hash"]
    ours, theirs = (
        Checkpoint.load(outcome.folder.checkpoint_file).shared for outcome in (rounded, exact)
    )
    for name, tensor in theirs.items():
        assert ours[name].dtype == tensor.dtype
        torch.testing.assert_close(ours[name], tensor, rtol=0.02, atol=0.02)
    assert rounded.records[-1]["loss"] == pytest.approx(exact.records[-1]["loss"], rel=0.02)


def test_batch_norm_never_leaves_the_client(train: Train) -> None:
    outcome = train(method="fedbn")
    model = build("mlp-bn", (1, 8, 8), 10, 0)
    private, checkpoint = batch_norm_names(model), Checkpoint.load(outcome.folder.checkpoint_file)
    assert len(private) == 10
    assert checkpoint.shared.keys() == model.state_dict().keys() - private
    assert checkpoint.memory_rounds == dict.fromkeys(range(4), 2)
    sent = 4 * sum(tensor.nbytes for tensor in checkpoint.shared.values())
    (everything, _) = train("fedavg").records
    (record, _) = outcome.records
    assert record["bytes-up"] == record["bytes-down"] == sent < everything["bytes-up"]


def test_participation_is_rounded_down_and_at_least_one(train: Train) -> None:
    for participation, count in ((0.74, 2), (0.75, 3), (0.01, 1)):
        outcome = train(f"{participation}", participation=participation, evaluate_every=0)
        assert [len(record["clients"]) for record in outcome.records] == [count] * 2


def test_every_client_is_sampled_in_time(train: Train) -> None:
    changes = {"participation": 0.5, "evaluate_every": 0, "local_steps": 1}
    shorter, longer = (
        [
            tuple(record["clients"])
            for record in train(f"{rounds}", rounds=rounds, **changes).records
        ]
        for rounds in (8, 9)
    )
    assert longer[:8] == shorter and len(set(shorter)) > 2
    assert {client for clients in shorter for client in clients} == set(range(4))


@pytest.mark.parametrize(
    ("method", "setting"),
    [
        ("fedprox", "proximal__mu"),
        ("fedshift", "logit_shift__scale"),
        ("fed-focal", "focal__gamma"),
        ("fedlc", "logit_calibration__tau"),
    ],
)
def test_identity_settings_are_plain_training(train: Train, method: str, setting: str) -> None:
    identity = train("identity", method=method, **{setting: 0.0}, rounds=1)
    assert identity.hash == train("plain", rounds=1).hash
    assert train("effect", method=method, rounds=1).hash != identity.hash


def test_clients_per_pass_make_a_run_of_their_own_and_nearly_the_same(tmp_path: Path) -> None:
    changes = {"method": "fedprox+fedshift+iwds+fedbn", "rounds": 1}
    single = experiment(tmp_path, **changes)
    both = experiment(tmp_path, LocalGrid(0), clients_per_pass=2, **changes)
    assert single.summary["run"] != both.summary["run"]
    assert "clients-together" not in single.summary
    assert both.summary["clients-together"] == "in one pass"
    assert "clients-per-pass = 2: in one pass" in both.lines
    (ours,), (theirs,) = both.records, single.records
    assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
    for left, right in zip(ours["updates"], theirs["updates"], strict=True):
        assert left["norm"] == pytest.approx(right["norm"], rel=1e-4)
