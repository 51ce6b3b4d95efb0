"""What a run keeps of its last test: only where the server measured, and the run's own numbers come of it."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from in_process import FinishedRun, small

from client_app.metrics import Scores
from data import load
from server_app import predictions
from server_app.evaluation import metrics_from
from server_app.predictions import VALIDATION, read_predictions, write_predictions
from server_app.run_folder import RunFolder

Train = Callable[..., FinishedRun]


def test_the_last_rounds_numbers_come_of_what_is_kept(train: Train) -> None:
    outcome = train("one", method="creff")
    for model in ("average", "creff"):
        kept = read_predictions(outcome.folder, model)
        assert kept is not None
        scores = Scores.of_probabilities(*map(torch.from_numpy, kept[:2]))
        recorded = outcome.records[-1]["models"][model]
        numbers = metrics_from(scores)
        assert {name: recorded[name] for name in ("auroc", "auprc", "brier")} == pytest.approx(
            {name: numbers[name] for name in ("auroc", "auprc", "brier")}
        )
        assert recorded["confusion"] == scores.confusion_CC.tolist()
    assert read_predictions(outcome.folder, "ccvr") is None


def test_validation_samples_are_kept_too_and_all_have_their_numbers(train: Train) -> None:
    outcome = train("one", method="fedavg", validation_fraction=0.2)
    recorded = outcome.records[-1]["models"]["average"]
    data = load(small(outcome.folder.path).data)
    for before, kind, numbers in (
        ("", "test", recorded),
        (VALIDATION, "validation", recorded["validation"]),
    ):
        kept = read_predictions(outcome.folder, f"{before}average")
        assert kept is not None and kept.samples_N is not None and kept.units_U is kept.samples_N
        scores = Scores.of_probabilities(*map(torch.from_numpy, kept[:2]))
        assert numbers["confusion"] == scores.confusion_CC.tolist()
        labels_N = data.test_labels if kind == "test" else data.train_labels
        assert kept.labels_N.tolist() == labels_N[kept.samples_N].tolist()
        assert len(set(kept.samples_N.tolist())) == len(kept.samples_N)


def test_what_clients_measure_is_not_kept(train: Train) -> None:
    outcome = train("one", method="fedbn", model="mlp-bn")
    assert not outcome.folder.predictions_file.exists()
    assert "confusion" in outcome.records[-1]["models"]["average"]


def test_what_is_too_large_or_damaged_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(tmp_path)
    kept = {
        "average": {
            "log-probabilities": torch.zeros(4, 2).double(),
            "labels": torch.zeros(4).long(),
        }
    }
    write_predictions(folder, kept)
    assert read_predictions(folder, "average") is not None
    folder.predictions_file.write_bytes(folder.predictions_file.read_bytes()[:-8])
    assert read_predictions(folder, "average") is None
    copied = {name: tensor.clone() for name, tensor in kept["average"].items()}
    with_validation = {**kept, f"{VALIDATION}average": copied}
    for most, has_validation in ((200, True), (100, False)):
        monkeypatch.setattr(predictions, "LARGEST", most)
        write_predictions(folder, with_validation)
        assert read_predictions(folder, "average") is not None, "what is tested is left out last"
        of_validation = read_predictions(folder, f"{VALIDATION}average")
        assert (of_validation is not None) == has_validation
    monkeypatch.setattr(predictions, "LARGEST", 64)
    write_predictions(folder, kept)
    assert not folder.predictions_file.exists()
