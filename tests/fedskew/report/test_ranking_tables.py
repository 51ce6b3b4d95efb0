"""DeLong's test against published figures and the definition; intervals; what the report says of rankings."""

from pathlib import Path

import numpy as np
import pytest
import torch
from frozen import ONE_COLUMN, frozen_results, predictions, tensors_of, with_predictions
from sklearn.metrics import average_precision_score, roc_auc_score

from client_app.metrics import Scores
from fedskew.experiments.plan import Cell
from fedskew.report.ranking import (
    delong,
    drawn_weights,
    intervals,
    ranking_tables,
    resampled,
)
from fedskew.report.results import SeedResult
from fedskew.report.run_records import RunRecords
from server_app.evaluation import PositiveClass, metrics_from
from server_app.predictions import Predictions, write_predictions
from server_app.record import RoundRecord
from server_app.round_selection import points_of
from server_app.run_folder import RunFolder
from server_app.settings import parse

PATIENTS = """
    3.0 5.8 10 0  3.2 6.3 5 1  3.9 6.8 3 1  2.8 4.8 6 0  3.2 5.8 3 1  0.9 4.0 5 0  2.5 5.7 8 0  1.6 5.6 5 1  3.8 5.7 5 1
    3.7 6.7 6 1  3.2 5.4 4 1  3.8 6.6 6 1  4.1 6.6 5 1  3.6 5.7 5 1  4.3 7.0 4 1  3.6 6.7 4 0  2.3 4.4 6 1  4.2 7.6 4 0
    4.0 6.6 6 0  3.5 5.8 6 1  3.8 6.8 7 1  3.0 4.7 8 0  4.5 7.4 5 1  3.7 7.4 5 1  3.1 6.6 6 1  4.1 8.2 6 1  4.3 7.0 5 1
    4.3 6.5 4 1  3.2 5.1 5 1  2.6 4.7 6 1  3.3 6.8 6 0  1.7 4.0 7 0  3.7 6.1 5 1  3.3 6.3 7 1  4.2 7.7 6 1  3.5 6.2 5 1
    2.9 5.7 9 0  2.1 4.8 7 1  2.8 6.2 8 0  4.0 7.0 7 1  3.3 5.7 6 1  3.7 6.9 5 1  3.6 6.6 5 1"""
"""Albumin, total protein, Krebs-Goplerud score (less is better) and whether surgery helped: the 43 of DeLong, DeLong
and Clarke-Pearson's (1988) 49 patients of whom all three are known."""


@pytest.mark.parametrize(("column", "difference", "error", "p"),
                         [(0, 0.0108, 0.0953, 0.9102), (1, -0.0780, 0.1046, 0.4561)])  # fmt: skip
def test_delong_gives_the_published_figures(
    column: int, difference: float, error: float, p: float
) -> None:
    """SAS/STAT's example of PROC LOGISTIC, comparing receiver operating characteristic curves."""
    table = np.array(list(map(float, PATIENTS.split()))).reshape(-1, 4)
    actual = delong(table[:, column], -table[:, 2], table[:, 3].astype(int))
    assert actual == pytest.approx((difference, error, p), abs=5e-5)


def test_delong_of_scores_that_rank_alike_and_of_single_samples() -> None:
    score_N, label_N = np.array([0.1, 0.4, 0.3, 0.9]), np.array([0, 1, 0, 1])
    assert delong(score_N, 2 * score_N, label_N) == (0.0, 0.0, 1.0)
    assert np.isnan(delong(score_N, -score_N, np.array([0, 0, 0, 1]))[2])


@pytest.mark.parametrize("classes", [2, 3])
def test_a_resampled_test_set_gives_scikit_learns_numbers(classes: int) -> None:
    """Every class is drawn from its own samples, so that repeating the drawn samples gives the same."""
    said = predictions(0, classes, 30)
    drawn = resampled(said, np.random.default_rng(3), 2, positive=1)
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
    of_class = [(labels_N == label, probabilities[:, label]) for label in range(classes)]
    areas = [roc_auc_score(*of_one) for of_one in of_class]
    precisions = [average_precision_score(*of_one) for of_one in of_class]
    assert drawn["auroc"][0] == pytest.approx(np.mean(areas), abs=1e-9)
    expected_precision = precisions[1] if classes == 2 else np.mean(precisions)
    assert drawn["auprc"][0] == pytest.approx(expected_precision, abs=1e-9)
    expected = metrics_from(
        Scores.of_probabilities(torch.from_numpy(np.log(probabilities)), torch.from_numpy(labels_N))
    )
    assert drawn["brier"][0] == pytest.approx(expected["brier"], abs=1e-9)


def test_the_report_has_intervals_and_delongs_test(tmp_path: Path) -> None:
    known = with_predictions(frozen_results(tmp_path, **ONE_COLUMN), 2)
    numbers, tests = ranking_tables(known)
    assert [heading.text for heading in numbers.headings[1:3]] == ["AUROC", "AUPRC"]
    for row in numbers.rows:
        low, high = map(float, row[1].below.strip("[]").split(", "))
        assert low < float(row[1].text.split()[0]) < high
    assert "DeLong" in tests.caption and [row[0].text for row in tests.rows].count("creff") == 3

    # Without predictions only AUROC has an interval, by its standard errors.
    runs = known.of("creff", "LDA 0.5")
    assert len(intervals(runs, 0)) == 5
    for run in runs:
        RunFolder(run.run.settings.folder).predictions_file.unlink()
    means = [100 * run.points[-1].numbers["auroc"] for run in runs]
    errors = [100 * run.points[-1].numbers["auroc-error"] for run in runs]
    half = 1.96 * np.sqrt(np.square(errors).sum()) / 3
    low, high = intervals(runs, 0).pop("auroc")
    assert low == pytest.approx(np.mean(means) - half)
    assert high == pytest.approx(min(100, np.mean(means) + half))
    assert len(ranking_tables(known)) == 1


def test_samples_of_one_subject_are_no_more_than_one() -> None:
    """Every sample eight times, as eight slices of one patient: nothing is known better than without the copies."""
    draws = np.random.default_rng(0)
    label_N = np.arange(60) % 2
    first_N, second_N = (draws.normal(size=60) + k * label_N for k in (1.2, 0.7))
    alone = delong(first_N, second_N, label_N)
    copies = [part.repeat(8) for part in (first_N, second_N, label_N, np.arange(60))]
    assert delong(*copies) == pytest.approx(alone, abs=1e-12)
    assert delong(*copies[:3])[1] < alone[1] / 2, "rows as the unit would halve the error"
    assert np.isnan(delong(*copies[:3], label_N.repeat(8))[2]), "one subject per class"


@pytest.mark.parametrize(("label", "name"), [(0, "well"), (1, "ill")])
def test_an_interval_is_about_the_positive_class_of_the_run(
    tmp_path: Path, label: int, name: str
) -> None:
    """One in five is ill: the AUPRC of either class lies outside of the other's interval."""
    said = predictions(0, 2, 480)
    kept_N = (said.labels_N == 0) | (np.arange(480) % 8 == 1)
    said = Predictions(said.log_probabilities_NC[kept_N], said.labels_N[kept_N])
    two = {"dataset": "abide", "data-root": "/nowhere", "classes": "well,ill"}
    settings = parse({**two, "positive-class": name, "results": str(tmp_path)})
    settings.folder.mkdir()
    parts = tensors_of(said)
    write_predictions(RunFolder(settings.folder), {"average": parts})
    scores = Scores.of_probabilities(parts["log-probabilities"], parts["labels"])
    numbers = metrics_from(scores, positive=PositiveClass(label, name))
    records = [RoundRecord(1, {"average": numbers})]
    (point,) = points_of(records, "average")
    run = RunRecords(settings, {}, records, None)
    measured = SeedResult(Cell("", "fedavg", "", 0, settings, "average"), run, (point,))
    low, high = intervals([measured], 0)["auprc"]
    by_class = [100 * value for value in numbers.by_class["auprc-by-class"]]
    assert low < by_class[label] < high
    assert not low < by_class[1 - label] < high


def test_subjects_are_drawn_as_a_whole() -> None:
    subject_N = np.repeat(np.arange(20), 3)
    labels_N = np.where(subject_N < 10, 0, 1)
    labels_N[-3:] = [0, 1, 0]  # the last one has samples of both
    weights_BN = drawn_weights(labels_N, subject_N, np.random.default_rng(0), 50)
    by_subject = weights_BN.reshape(50, 20, 3)
    assert (by_subject == by_subject[..., :1]).all() and by_subject.max() > 1
    drawn_BS = by_subject[..., 0]
    assert (drawn_BS[:, :10].sum(1) == 10).all() and (drawn_BS[:, 10:19].sum(1) == 9).all()
    assert (drawn_BS[:, 19] == 1).all(), "the only one with samples of both classes"
