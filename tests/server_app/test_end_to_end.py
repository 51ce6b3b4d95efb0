"""Every method for two rounds in one process: same hash however the clients run, and the rows it promises."""

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
    assert train("seed 1", seed=1).hash != train("seed 0").hash


@pytest.mark.parametrize("method", ["fedshift+fedbn+iwds", "creff+fedbn"])
def test_worker_processes_give_the_same(train: Train, method: str) -> None:
    here, there = train("here", method=method), train("there", method=method, grid=WorkersGrid(2))
    assert there.summary["hash"] == here.summary["hash"]
    assert there.records == here.records
    processes = {worker["process"] for record in there.folder.rounds() for worker in record.workers}
    assert processes and os.getpid() not in processes
    assert {worker["process"] for record in here.folder.rounds() for worker in record.workers} == {
        os.getpid()
    }


@pytest.mark.parametrize("other", ["fedavg", "iwds", "fedshift+fedbn"])
def test_creff_leaves_the_average_alone(train: Train, other: str) -> None:
    """{u, v} is the other method's to the bit in every round; the re-trained head never enters it."""
    plain = train("plain", method=other, rounds=4, participation=0.75)
    creff = train("creff", method=f"creff+{other}", rounds=4, participation=0.75)
    for part in ("shared", "memory"):
        assert creff.summary["hash"][part] == plain.summary["hash"][part]
    for ours, theirs in zip(creff.records, plain.records, strict=True):
        assert ours["models"]["average"] == theirs["models"]["average"]
        assert ours["loss"] == theirs["loss"]
        assert ours["models"]["creff"] != ours["models"]["average"]
    assert creff.summary["rows"]["average"] == plain.summary["rows"]["average"]


@pytest.mark.parametrize("method", ["fedshift+iwds", "scaffold", "ratio-loss"])
def test_bfloat16_repeats_to_the_bit_and_differs_by_little(train: Train, method: str) -> None:
    changes = {"method": method, "model": "small-cnn", "local_epochs": 1}
    exact, rounded = (
        train(precision, precision=precision, **changes) for precision in ("float32", "bfloat16")
    )
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
    everything = train("fedavg").records
    sent = sum(tensor.numel() * tensor.element_size() for tensor in checkpoint.shared.values())
    assert (
        outcome.records[0]["bytes-up"]
        == outcome.records[0]["bytes-down"]
        == 4 * sent
        < everything[0]["bytes-up"]
    )


def test_participation_is_rounded_down_and_at_least_one(train: Train) -> None:
    for participation, count in ((0.5, 2), (0.74, 2), (0.75, 3), (0.01, 1)):
        outcome = train(f"{participation}", participation=participation)
        assert [len(record["clients"]) for record in outcome.records] == [count] * 2


@pytest.mark.parametrize(
    ("method", "setting"),
    [("fedprox", "proximal__mu"), ("fedshift", "logit_shift__scale"), ("fed-focal", "focal__gamma"),
     ("fedlc", "logit_calibration__tau")],
)  # fmt: skip
def test_identity_settings_are_plain_training(train: Train, method: str, setting: str) -> None:
    identity = train("identity", method=method, **{setting: 0.0})
    assert identity.hash == train("plain").hash
    assert train("effect", method=method).hash != identity.hash


@pytest.mark.parametrize("method", ["fedavg", "fedprox+fedshift+iwds+fedbn"])
def test_clients_per_pass_make_a_run_of_their_own_and_nearly_the_same(
    method: str, tmp_path: Path
) -> None:
    single = experiment(tmp_path, method=method, rounds=1)
    both = [
        experiment(tmp_path, LocalGrid(w), method=method, rounds=1, clients_per_pass=2)
        for w in (0,)
    ]
    assert (
        single.summary["run"] != both[0].summary["run"] and "clients-together" not in single.summary
    )
    assert (
        both[0].summary["clients-together"] == "in one pass"
        and "clients-per-pass = 2: in one pass" in both[0].lines
    )
    assert both[0].records[0]["loss"] == pytest.approx(single.records[0]["loss"], rel=1e-5)
    pairs = zip(both[0].records[0]["updates"], single.records[0]["updates"], strict=True)
    assert all(left["norm"] == pytest.approx(right["norm"], rel=1e-4) for left, right in pairs)
