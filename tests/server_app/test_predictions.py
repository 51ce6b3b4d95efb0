"""What a run keeps of its last test: only where the server measured, and the run's own numbers come of it."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from in_process import FinishedRun

from client_app.metrics import Scores
from server_app import predictions
from server_app.evaluation import metrics_from
from server_app.predictions import read_predictions, write_predictions
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
    monkeypatch.setattr(predictions, "LARGEST", 64)
    write_predictions(folder, kept)
    assert not folder.predictions_file.exists()
