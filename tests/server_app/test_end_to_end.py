"""Every method for two rounds in one process: same hash however the clients run, and the rows it promises."""

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.queues import SimpleQueue
from pathlib import Path

import numpy as np
import pytest
import torch
from in_process import HEADS, FinishedRun, experiment

from client_app.models import batch_norm_names, build
from fedskew.engines.local import LocalGrid
from fedskew.engines.workers import WorkersGrid
from server_app.app import run
from server_app.checkpoint import Checkpoint
from server_app.methods import METHODS
from server_app.run_folder import RunFolder
from server_app.settings import parse

Train = Callable[..., FinishedRun]
COMBINATIONS = ("fedshift+fedbn+iwds", "creff+fedbn", "fedprox+fedshift+creff", "fedbn+tau-norm+reweighting",
                "creff+ccvr+tau-norm+fedshift+iwds", "feddf+fedshift+iwds", "fedbe+fedshift+iwds+ccvr",
                "real-features+fedshift+iwds+feddf", "fedbn+tau-norm+creff",
                "fedshift+fedbn+iwds+creff-code", "creff+creff-code+tau-norm",
                "fednova+creff", "scaffold+ccvr", "scaffold+ccvr+refit-bias", "fedavgm+fedshift+tau-norm",
                "fedshift+fed-lda+fed3r+creff", "scaffold+fedncm+fedcof+iwds")  # fmt: skip
DEPLOYING = {"creff": ["creff"], "creff-code": ["creff-code"], "ccvr": ["ccvr"],
             "refit-bias": ["refit-bias"], "tau-norm": ["tau-norm"],
             **{head: [head] for head in HEADS},
             "real-features": ["real-features"], "real-blocks": ["real-blocks-1", "real-blocks-2"],
             "ditto": ["personal-model"]}  # fmt: skip


@pytest.mark.parametrize("method", [*METHODS, *COMBINATIONS])
def test_method_runs_the_same_handed_over_and_faithfully(train: Train, method: str) -> None:
    changes = {"method": method, "participation": 0.75}
    handed, faithful = (
        train("handed", **changes),
        train("faithful", grid=LocalGrid(faithful=True), **changes),
    )
    assert handed.summary["hash"] == faithful.summary["hash"]
    assert handed.records == faithful.records
    summary = handed.summary
    deployed = [
        "average",
        *(model for name in method.split("+") for model in DEPLOYING.get(name, [])),
    ]
    keeping = ("fedbn", "silobn", "singleset", "fedper", "fedrep")
    private = any(name in method for name in keeping)
    assert sorted(summary["rows"]) == sorted(summary["models"]) == sorted(deployed)
    for record in handed.records:  # what needs a question is deployed after the last round
        assert set(deployed) - record["models"].keys() == (
            {"ccvr", "refit-bias"} & set(deployed) if record["round"] == 1 else set()
        )
    for record in handed.records:
        assert len(record["clients"]) == 3 and record["failures"] == {}
        assert record["evaluated-by"] == ("clients" if private else "server")
        assert (record["bytes-down"] > 0 < record["bytes-up"]) == (method != "singleset")
        for numbers in record["models"].values():
            assert 0 <= numbers["balanced-accuracy"] <= 1 and len(numbers["recall"]) == 10
    for name, loss in (("creff", "matching-loss"), ("creff-code", "matching-loss-code")):
        assert (loss in handed.records[0]) == (name in method.split("+"))


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


def elsewhere(results: Path, methods: list[str], hashes: SimpleQueue[list[str]]) -> None:
    """Tell the runs' hashes."""
    hashes.put([experiment(results, method=method).hash for method in methods])


def test_another_process_gives_the_same(train: Train, tmp_path: Path) -> None:
    """Not forked from this one, so that it hashes text otherwise."""
    methods = ["fedshift+fedbn+iwds", "creff+fedbn"]
    context = multiprocessing.get_context("forkserver")
    process = context.Process(
        target=elsewhere, args=(tmp_path / "there", methods, hashes := context.SimpleQueue())
    )
    process.start()
    process.join()
    assert hashes.get() == [train("here", method=method).hash for method in methods]


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


def test_server_optimizer_identity(train: Train) -> None:
    plain = train("plain", rounds=3)
    assert train("same", rounds=3, server_learning_rate=1.0, server_momentum=0.0).hash == plain.hash
    assert train("momentum", rounds=3, server_momentum=0.9).hash != plain.hash


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


def test_tau_sweep_shares_its_training(train: Train) -> None:
    outcomes = {tau: train(f"{tau}", method="tau-norm", tau_norm__tau=tau) for tau in (0.0, 1.0)}
    assert outcomes[0.0].summary["hash"]["shared"] == outcomes[1.0].summary["hash"]["shared"]
    last = outcomes[0.0].records[-1]["models"]
    assert last["tau-norm"] == last["average"]


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


def test_every_client_is_sampled_in_time(tmp_path: Path) -> None:
    outcome = experiment(tmp_path, rounds=12, participation=0.5, evaluate_every=0, local_steps=1)
    sampled = [tuple(record["clients"]) for record in outcome.records]
    assert len(set(sampled)) > 2 and {client for clients in sampled for client in clients} == set(
        range(4)
    )
    longer = experiment(
        tmp_path / "longer", rounds=13, participation=0.5, evaluate_every=0, local_steps=1
    )
    assert [tuple(record["clients"]) for record in longer.records][:12] == sampled


@pytest.mark.parametrize(
    ("method", "setting"),
    [("fedprox", "proximal__mu"), ("fedshift", "logit_shift__scale"), ("fed-focal", "focal__gamma"),
     ("fedlc", "logit_calibration__tau")],
)  # fmt: skip
def test_identity_settings_are_plain_training(train: Train, method: str, setting: str) -> None:
    identity = train("identity", method=method, **{setting: 0.0})
    assert identity.hash == train("plain").hash
    assert train("effect", method=method).hash != identity.hash


@pytest.mark.slow  # quickly on synthetic features: strategies/test_creff.py
def test_matching_loss_falls_on_digits(train: Train) -> None:
    """With the settings of the paper's Figure 4 (m = 100, I = 100, rate 0.1) below 0.15 within ten rounds."""
    outcome = train(
        method="creff", model="small-cnn", clients=5, rounds=10, alpha=0.1, train_images=0, participation=0.4,
        local_epochs=5, evaluate_every=0, creff__features_per_class=100, creff__feature_steps=100, creff__head_steps=20,
    )  # fmt: skip
    losses = [record["matching-loss"] for record in outcome.records]
    assert losses[-1] < 0.15 and losses[-1] < losses[0]


@pytest.mark.parametrize(("method", "model"), [("creff", "small-cnn"), ("fedbn", "mlp-bn")])
def test_validation_data_choose_a_round(tmp_path: Path, method: str, model: str) -> None:
    """Both ways of evaluation; the test numbers of the round that is best on validation data are in the summary."""
    draw = np.random.default_rng(0)
    labels = np.arange(120) % 4
    images = draw.integers(0, 128, (120, 8, 8), dtype=np.uint8) + (
        40 * labels[:, None, None]
    ).astype(np.uint8)
    arrays = {"train": slice(0, 60), "test": slice(60, 90), "val": slice(90, 120)}
    np.savez(
        tmp_path / "own.npz",
        **{f"{key}_images": images[part] for key, part in arrays.items()},
        **{f"{key}_labels": labels[part] for key, part in arrays.items()},
    )
    config = {
        "dataset": f"npz:{tmp_path / 'own.npz'}",
        "classes": "4",
        "input-shape": "1x8x8",
        "partition": "iid",
    }
    run_settings = parse(
        {
            **config,
            "clients": 3,
            "rounds": 3,
            "method": method,
            "model": model,
            "results": str(tmp_path / "r"),
        }
    )
    with LocalGrid() as grid:
        summary = run(grid, run_settings)
    records = [record.to_json() for record in RunFolder(run_settings.folder).rounds()]
    for name, numbers in summary["models"].items():
        measured = [record["models"][name]["validation"] for record in records]
        on_validation = [
            run_settings.get("client-accuracy", {}).get("mean", run_settings["balanced-accuracy"])
            for run_settings in measured
        ]
        best = numbers["best-validation"]
        assert best["round"] == 1 + on_validation.index(max(on_validation))
        assert (
            best["balanced-accuracy"]
            == records[best["round"] - 1]["models"][name]["balanced-accuracy"]
        )


def test_a_run_of_clients_per_pass_in_bfloat16_says_that_its_numbers_are_others(
    tmp_path: Path,
) -> None:
    coarse = {"rounds": 1, "clients_per_pass": 2, "precision": "bfloat16"}
    both = experiment(tmp_path, LocalGrid(0), method="fedavg", **coarse)
    said = both.summary["clients-together"]
    assert said.startswith("in one pass; bfloat16") and "differ by 1e-3 to 1e-1" in said
    assert f"clients-per-pass = 2: {said}" in both.lines
    alone = experiment(tmp_path, method="fedavg", rounds=1, precision="bfloat16")
    assert "clients-together" not in alone.summary


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
