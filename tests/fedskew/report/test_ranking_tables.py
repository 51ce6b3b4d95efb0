"""DeLong's test against published figures and the definition; intervals; what the report says of rankings."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from frozen import gathered
from sklearn.metrics import average_precision_score, roc_auc_score

from client_app.scores import Scores
from client_app.state import State
from fedskew.report.gather import Gathered
from fedskew.report.ranking import delong, intervals, ranking_tables, resampled
from server_app.evaluation import measured
from server_app.predictions import Predictions, write_predictions
from server_app.results import RunFolder

PATIENTS = """
    3.0 5.8 10 0  3.2 6.3 5 1  3.9 6.8 3 1  2.8 4.8 6 0  3.2 5.8 3 1  0.9 4.0 5 0  2.5 5.7 8 0  1.6 5.6 5 1  3.8 5.7 5 1
    3.7 6.7 6 1  3.2 5.4 4 1  3.8 6.6 6 1  4.1 6.6 5 1  3.6 5.7 5 1  4.3 7.0 4 1  3.6 6.7 4 0  2.3 4.4 6 1  4.2 7.6 4 0
    4.0 6.6 6 0  3.5 5.8 6 1  3.8 6.8 7 1  3.0 4.7 8 0  4.5 7.4 5 1  3.7 7.4 5 1  3.1 6.6 6 1  4.1 8.2 6 1  4.3 7.0 5 1
    4.3 6.5 4 1  3.2 5.1 5 1  2.6 4.7 6 1  3.3 6.8 6 0  1.7 4.0 7 0  3.7 6.1 5 1  3.3 6.3 7 1  4.2 7.7 6 1  3.5 6.2 5 1
    2.9 5.7 9 0  2.1 4.8 7 1  2.8 6.2 8 0  4.0 7.0 7 1  3.3 5.7 6 1  3.7 6.9 5 1  3.6 6.6 5 1"""
"""Albumin, total protein, Krebs-Goplerud score (less is better) and whether surgery helped: the 43 of DeLong, DeLong
and Clarke-Pearson's (1988) 49 patients of whom all three are known."""


def over_all_pairs(
    first_N: np.ndarray, second_N: np.ndarray, label_N: np.ndarray
) -> tuple[float, float]:
    """Return the difference and its standard error from the matrices of all pairs, O(m n)."""

    def wins(score_N: np.ndarray) -> np.ndarray:
        positive, negative = score_N[label_N == 1], score_N[label_N == 0]
        return (positive[:, None] > negative) + 0.5 * (positive[:, None] == negative)  # type: ignore[no-any-return]

    ours, theirs = wins(first_N), wins(second_N)
    rows, columns = np.cov(ours.mean(1), theirs.mean(1)), np.cov(ours.mean(0), theirs.mean(0))
    covariance = rows / len(ours) + columns / ours.shape[1]
    contrast = np.array([1, -1])
    return float(ours.mean() - theirs.mean()), float(np.sqrt(contrast @ covariance @ contrast))


@pytest.mark.parametrize(("column", "difference", "error", "p"),
                         [(0, 0.0108, 0.0953, 0.9102), (1, -0.0780, 0.1046, 0.4561)])  # fmt: skip
def test_delong_gives_the_published_figures(
    column: int, difference: float, error: float, p: float
) -> None:
    """SAS/STAT's example of PROC LOGISTIC, comparing receiver operating characteristic curves."""
    table = np.array(list(map(float, PATIENTS.split()))).reshape(-1, 4)
    actual = delong(table[:, column], -table[:, 2], table[:, 3].astype(int))
    assert actual == pytest.approx((difference, error, p), abs=5e-5)


@pytest.mark.parametrize("levels", [5, 10**6])
def test_delong_is_the_definition_over_all_pairs(levels: int) -> None:
    draws = np.random.default_rng(0)
    label_N = draws.integers(0, 2, 157)
    first_N, second_N = (draws.integers(0, levels, 157) / levels + k * label_N for k in (0.3, 0.2))
    assert delong(first_N, second_N, label_N)[:2] == pytest.approx(
        over_all_pairs(first_N, second_N, label_N), abs=1e-9
    )


def test_delong_of_scores_that_rank_alike_and_of_single_samples() -> None:
    score_N, label_N = np.array([0.1, 0.4, 0.3, 0.9]), np.array([0, 1, 0, 1])
    assert delong(score_N, 2 * score_N, label_N) == (0.0, 0.0, 1.0)
    assert np.isnan(delong(score_N, -score_N, np.array([0, 0, 0, 1]))[2])


def predictions(seed: int, classes: int, size: int = 120, shift: float = 1.0) -> Predictions:
    draws = np.random.default_rng(seed)
    label_N = np.arange(size) % classes
    logits_NC = draws.normal(size=(size, classes)) + shift * np.eye(classes)[label_N]
    return Predictions(torch.log_softmax(torch.from_numpy(logits_NC), 1).numpy(), label_N)


@pytest.mark.parametrize("classes", [2, 3])
def test_a_resampled_test_set_gives_scikit_learns_numbers(classes: int) -> None:
    """Every class is drawn from its own samples, so that repeating the drawn samples gives the same."""
    said = predictions(0, classes, 30)
    drawn = resampled(said, np.random.default_rng(3), 2)
    draws, weights_N = np.random.default_rng(3), np.zeros(30, int)
    for label in range(classes):
        members = np.flatnonzero(said.labels_N == label)
        weights_N[members] = draws.multinomial(
            len(members), np.full(len(members), 1 / len(members)), 2
        )[0]
    labels_N, probabilities = (
        said.labels_N.repeat(weights_N),
        np.exp(said.log_probabilities_NC).repeat(weights_N, 0),
    )
    areas = [roc_auc_score(labels_N == label, probabilities[:, label]) for label in range(classes)]
    precisions = [
        average_precision_score(labels_N == label, probabilities[:, label])
        for label in range(classes)
    ]
    assert drawn["auroc"][0] == pytest.approx(np.mean(areas), abs=1e-9)
    assert drawn["auprc"][0] == pytest.approx(np.mean(precisions), abs=1e-9)
    expected = measured(
        Scores.of_probabilities(torch.from_numpy(np.log(probabilities)), torch.from_numpy(labels_N))
    )
    assert drawn["brier"][0] == pytest.approx(expected["brier"], abs=1e-9)


@pytest.fixture
def with_predictions(tmp_path: Path) -> Gathered:
    """The frozen experiment, its runs of one column with predictions of two classes."""
    columns = {"LDA 0.5": {"alpha": 0.5, "imbalance-factor": 10}}
    known, kept = (
        gathered(tmp_path, columns=columns, cells={}, notes={}, claims=[]),
        dict[Path, dict[str, State]](),
    )
    changed = {}
    for place, runs in known.measured.items():
        changed[place] = list(runs)
        for number, run in enumerate(runs):
            said = predictions(run.cell.seed, 2, shift=2.0 if run.cell.row == "creff" else 0.8)
            parts = dict(zip(("log-probabilities", "labels"), map(torch.tensor, said), strict=True))
            kept.setdefault(run.run.settings.folder, {})[run.cell.deployed] = parts
            numbers = measured(Scores.of_probabilities(*parts.values()))
            changed[place][number] = replace(
                run, points=(replace(run.points[-1], numbers=numbers),)
            )
    for folder, states in kept.items():
        write_predictions(RunFolder(folder), states)
    return replace(known, measured=changed)


def test_the_report_has_intervals_and_delongs_test(with_predictions: Gathered) -> None:
    numbers, tests = ranking_tables(with_predictions)
    assert [heading.text for heading in numbers.headings[1:3]] == ["AUROC", "AUPRC"]
    for row in numbers.rows:
        mean, (low, high) = (
            float(row[1].text.split()[0]),
            map(float, row[1].below.strip("[]").split(", ")),
        )
        assert low < mean < high
    assert "DeLong" in tests.caption and [row[0].text for row in tests.rows].count("creff") >= 2


def test_without_predictions_only_auroc_has_an_interval(with_predictions: Gathered) -> None:
    runs = with_predictions.of("creff", "LDA 0.5")
    assert len(intervals(runs, 0)) == 5
    for run in runs:
        RunFolder(run.run.settings.folder).predictions_file.unlink()
    assert intervals(runs, 0).keys() == {"auroc"}
    assert len(ranking_tables(with_predictions)) == 1
