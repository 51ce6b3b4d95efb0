"""ROC, precision by recall and reliability, against scikit-learn and sums by hand."""

from pathlib import Path

import numpy as np
import pytest
import torch
from frozen import frozen_results
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from client_app.metrics import Scores
from fedskew.report.prediction_figures import (
    GRID,
    Detection,
    detections,
    precision_by_recall,
    reliability,
    reliability_of,
    roc,
)
from fedskew.report.results import ExperimentResults
from server_app.evaluation import PositiveClass, metrics_from
from server_app.predictions import Predictions, write_predictions
from server_app.run_folder import RunFolder

COLUMN = "LDA 0.5"


def drawn(samples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return scores with many ties, and labels that they partly tell."""
    draws = np.random.default_rng(seed)
    positive_N = draws.random(samples) < 0.3
    score_N = np.round(draws.normal(size=samples) + positive_N, 1)
    return score_N, positive_N


def test_the_roc_is_that_of_scikit_learn() -> None:
    for seed in range(5):
        score_N, positive_N = drawn(200, seed)
        alarms, recall, _ = roc_curve(positive_N, score_N, drop_intermediate=False)
        curve = Detection.of(score_N, positive_N).roc()
        np.testing.assert_allclose(curve, np.interp(GRID, alarms, recall), atol=1e-12)
        area = float(np.trapezoid(curve, GRID))
        assert area == pytest.approx(roc_auc_score(positive_N, score_N), abs=0.005)


def test_a_vertical_part_of_the_roc_is_at_its_top() -> None:
    """Half of the class is above all others: at no false alarm half of it is found."""
    detection = Detection.of(np.array([3.0, 2.0, 1.0, 0.0]), np.array([True, False, True, False]))
    curve = detection.roc()
    assert curve[0] == 0.5 and curve[-1] == 1
    assert curve[np.searchsorted(GRID, 0.25)] == 0.5
    assert curve[np.searchsorted(GRID, 0.5)] == 1


def test_the_mean_precision_over_recall_is_the_average_precision() -> None:
    for seed in range(5):
        score_N, positive_N = drawn(200, seed)
        detection = Detection.of(score_N, positive_N)
        # The steps between two recalls have the precision of the upper one.
        steps = np.diff(np.r_[0.0, detection.recall_T])
        expected = average_precision_score(positive_N, score_N)
        assert float(steps @ detection.precision_T) == pytest.approx(expected)
        mean = float(detection.precision_by_recall()[1:].mean())
        assert mean == pytest.approx(expected, abs=0.01)


def test_precision_at_a_recall_is_that_of_the_highest_threshold_that_has_it() -> None:
    scores = np.array([4.0, 3.0, 2.0, 1.0])
    curve = Detection.of(scores, np.array([True, False, True, False])).precision_by_recall()
    assert curve[np.searchsorted(GRID, 0.5)] == 1.0, "the first sample has half of the class"
    assert curve[np.searchsorted(GRID, 0.505)] == pytest.approx(2 / 3)
    assert curve[-1] == pytest.approx(2 / 3), "not 2 / 4: the last threshold finds nothing more"


def test_of_two_classes_the_positive_one_is_drawn_and_of_more_each() -> None:
    log_NC = np.log(np.array([[0.7, 0.2, 0.1], [0.2, 0.5, 0.3], [0.1, 0.1, 0.8]]))
    three = Predictions(log_NC, np.array([0, 1, 2]), None)
    assert len(detections(three, None)) == 3
    without_one = Predictions(log_NC, np.array([0, 1, 1]), None)
    assert len(detections(without_one, None)) == 2, "a class without test samples has no curve"
    of_one = Predictions(log_NC, np.array([1, 1, 1]), None)
    assert detections(of_one, None) == []

    log_N2 = np.log(np.array([[0.9, 0.1], [0.4, 0.6], [0.3, 0.7]]))
    two = Predictions(log_N2, np.array([0, 1, 0]), None)
    only = detections(two, PositiveClass(1, "sick"))
    assert len(only) == 1
    assert only[0].recall_T.tolist() == [0, 1, 1], "the highest score of class 1 is no sample of it"


def made_predictions(seed: int) -> Predictions:
    """Return predictions of ten classes, of which the highest is often right."""
    draws = np.random.default_rng(seed)
    labels_N = np.arange(200) % 10
    logits_NC = 2 * draws.normal(size=(200, 10)) + 2 * np.eye(10)[labels_N]
    log_NC = torch.log_softmax(torch.from_numpy(logits_NC), 1).numpy()
    return Predictions(log_NC, labels_N, None)


@pytest.fixture
def results(tmp_path: Path) -> ExperimentResults:
    """The frozen experiment's second column. Each run keeps predictions drawn from its seed."""
    columns = {COLUMN: {"alpha": 0.5, "imbalance-factor": 10}}
    found = frozen_results(tmp_path, columns=columns, cells={}, notes={}, claims=[])
    states: dict[Path, dict[str, dict[str, torch.Tensor]]] = {}
    for group in found.measured.values():
        for measured in group:
            made = made_predictions(measured.cell.seed)
            of_run = states.setdefault(measured.run.settings.folder, {})
            of_run[measured.cell.deployed] = {
                "log-probabilities": torch.from_numpy(made.log_probabilities_NC),
                "labels": torch.from_numpy(made.labels_N),
            }
    for folder, of_run in states.items():
        write_predictions(RunFolder(folder), of_run)
    return found


def test_reliability_gives_the_calibration_error_of_the_metrics(results: ExperimentResults) -> None:
    """Over the samples of all three seeds together."""
    bins = reliability_of(results.of("fedavg", COLUMN))
    assert bins is not None
    samples_B, confidence_B, correct_B = bins
    assert samples_B.sum() == 600
    error = float((samples_B * abs(confidence_B - correct_B)).sum() / 600)

    made = [made_predictions(seed) for seed in (0, 1, 2)]
    log_NC = torch.from_numpy(np.concatenate([one.log_probabilities_NC for one in made]))
    labels_N = torch.from_numpy(np.concatenate([one.labels_N for one in made]))
    expected = metrics_from(Scores.of_probabilities(log_NC, labels_N))
    assert error == pytest.approx(expected["calibration-error"], abs=1e-9)


def test_all_three_are_drawn_with_a_line_per_row(results: ExperimentResults) -> None:
    for draw in (roc, precision_by_recall, reliability):
        figure = draw(results, COLUMN, "figure")
        assert figure is not None and figure.by_row
        assert "fedavg" in figure.alt and "creff" in figure.alt
        assert figure.svg.narrow.startswith("<svg")


def test_without_predictions_nothing_is_drawn(results: ExperimentResults) -> None:
    """Kept records hold none; the test above is the control."""
    for run in results.finished:
        RunFolder(run.settings.folder).predictions_file.unlink()
    for draw in (roc, precision_by_recall, reliability):
        assert draw(results, COLUMN, "figure") is None
