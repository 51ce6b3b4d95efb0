"""Figures: every kind is drawn from the frozen records, and their numbers are scikit-learn's or sums by hand."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
import torch
from frozen import ONE_COLUMN, frozen_results, predictions, with_predictions
from sklearn.metrics import average_precision_score, roc_curve

from client_app.metrics import Scores
from data import SettingError
from fedskew.report.cost_figures import mean_by_cost, megabytes_until
from fedskew.report.document import Document, document
from fedskew.report.prediction_figures import (
    GRID,
    Detection,
    detections,
    precision_by_recall,
    reliability,
    reliability_of,
    roc,
)
from fedskew.report.publication import captioned_figures, write_figure, write_figures
from fedskew.report.results import ExperimentResults
from fedskew.report.svg import write_file
from server_app.evaluation import PositiveClass, metrics_from
from server_app.predictions import Predictions
from server_app.record import RoundRecord

COLUMN = "LDA 0.5"
LABELS = {
    "claims": ["1. creff \N{MINUS SIGN} fedavg", "difference, points"],
    "differences-lda-0-5": ["creff", "difference, points"],
    "curves-lda-0-5": ["Balanced accuracy: LDA 0.5", "fedavg", "creff", "round"],
    "reach-lda-0-5": ["MB sent, down and up"],
    "ranking-lda-0-5": ["ROC: LDA 0.5", "fedavg"],
    "ranking-confusion-of-the-classes-lda-0-5-creff": ["Confusion of the classes: LDA 0.5: creff"],
    "calibration-lda-0-5": ["Reliability: LDA 0.5"],
    "clients-lda-0-5": ["Who holds what: LDA 0.5"],
    "clients-spread-over-the-clients-lda-0-5": ["Spread over the clients: LDA 0.5"],
    "time-lda-0-5": ["LDA 0.5"],
}
"""By figure what stands in it."""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> ExperimentResults:
    """The frozen experiment's second column. Each run keeps predictions of ten classes drawn from its seed."""
    return with_predictions(frozen_results(tmp_path_factory.mktemp("frozen"), **ONE_COLUMN))


@pytest.fixture(scope="module")
def report(results: ExperimentResults) -> Document:
    return document(results)


def test_every_figure_is_drawn_with_its_labels(report: Document, tmp_path: Path) -> None:
    drawn = captioned_figures(report)
    assert drawn.keys() >= LABELS.keys()
    for name, labels in LABELS.items():
        file = tmp_path / f"{name}.svg"
        write_file(drawn[name].figure, drawn[name].legend, file)
        texts = [element.text for element in ElementTree.parse(file).iter() if element.text]
        for label in labels:
            assert label in texts, (name, texts)

    curve = drawn["curves-lda-0-5"]
    svg, pdf = write_figure(curve.figure, curve.legend, tmp_path / "again")
    assert svg.read_bytes() == (tmp_path / "curves-lda-0-5.svg").read_bytes(), "no date"
    assert pdf.read_bytes().startswith(b"%PDF-")


def test_figures_say_their_numbers(tmp_path: Path) -> None:
    drawn = captioned_figures(document(frozen_results(tmp_path)))
    assert (
        "in round 2: creff 77.6, fedshift 75.7, fedavg 74.9." in drawn["curves-lda-0-5"].figure.alt
    )
    assert "3. creff \N{MINUS SIGN} fedavg +26.5" in drawn["claims"].figure.alt
    assert all(captioned.figure.alt for captioned in drawn.values())


def test_a_folder_that_cannot_be_written_is_refused(report: Document, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(SettingError) as raised:
        write_figures([report], blocked)
    assert raised.value.key == "--figures"


def drawn(samples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return scores with many ties, and labels that they partly tell."""
    draws = np.random.default_rng(seed)
    positive_N = draws.random(samples) < 0.3
    score_N = np.round(draws.normal(size=samples) + positive_N, 1)
    return score_N, positive_N


@pytest.mark.parametrize("seed", [0, 1])
def test_roc_and_precision_are_those_of_scikit_learn(seed: int) -> None:
    score_N, positive_N = drawn(200, seed)
    alarms, recall, _ = roc_curve(positive_N, score_N, drop_intermediate=False)
    detection = Detection.of(score_N, positive_N)
    curve = detection.roc()
    np.testing.assert_allclose(curve, np.interp(GRID, alarms, recall), atol=1e-12)
    # The steps between two recalls have the precision of the upper one.
    steps = np.diff(np.r_[0.0, detection.recall_T])
    expected = average_precision_score(positive_N, score_N)
    assert float(steps @ detection.precision_T) == pytest.approx(expected)


def test_of_two_classes_the_positive_one_is_drawn_and_of_more_each() -> None:
    log_NC = np.log(np.array([[0.7, 0.2, 0.1], [0.2, 0.5, 0.3], [0.1, 0.1, 0.8]]))
    for labels, curves in (([0, 1, 2], 3), ([0, 1, 1], 2), ([1, 1, 1], 0)):
        assert len(detections(Predictions(log_NC, np.array(labels), None), None)) == curves
    log_N2 = np.log(np.array([[0.9, 0.1], [0.4, 0.6], [0.3, 0.7]]))
    two = Predictions(log_N2, np.array([0, 1, 0]), None)
    (only,) = detections(two, PositiveClass(1, "sick"))
    assert only.recall_T.tolist() == [0, 1, 1], "the highest score of class 1 is no sample of it"


def test_reliability_gives_the_calibration_error_of_the_metrics(results: ExperimentResults) -> None:
    """Over the samples of all three seeds together."""
    bins = reliability_of(results.of("fedavg", COLUMN))
    assert bins is not None
    samples_B, confidence_B, correct_B = bins
    assert samples_B.sum() == 360
    error = float((samples_B * abs(confidence_B - correct_B)).sum() / 360)
    made = [predictions(seed, 10, shift=0.8) for seed in (0, 1, 2)]
    log_NC = torch.from_numpy(np.concatenate([one.log_probabilities_NC for one in made]))
    labels_N = torch.from_numpy(np.concatenate([one.labels_N for one in made]))
    expected = metrics_from(Scores.of_probabilities(log_NC, labels_N))
    assert error == pytest.approx(expected["calibration-error"], abs=1e-9)


def test_without_predictions_nothing_is_drawn(tmp_path: Path) -> None:
    """Kept records hold none; `results` is the control."""
    without = frozen_results(tmp_path, **ONE_COLUMN)
    for draw in (roc, precision_by_recall, reliability):
        assert draw(without, COLUMN, "figure") is None


def test_costs_are_sums_up_to_the_round() -> None:
    records = [
        RoundRecord(
            round=round,
            models={},
            bytes_down=1_000_000 * round,
            bytes_up=500_000,
        )
        for round in (1, 2, 3)
    ]
    assert megabytes_until(records, 2) == pytest.approx(1 + 2 + 2 * 0.5)


def test_lines_by_cost_are_means_over_the_seeds(results: ExperimentResults) -> None:
    group = results.of("fedavg", COLUMN)
    line = mean_by_cost(group, "balanced-accuracy", megabytes_until)
    assert line is not None
    costs, values = line
    ends = [run.points[-1] for run in group]
    expected = [100 * end.numbers.means["balanced-accuracy"] for end in ends]
    sent = [megabytes_until(run.run.records, run.points[-1].round) for run in group]
    assert len(costs) == len(group[0].points)
    assert values[-1] == pytest.approx(np.mean(expected))
    assert costs[-1] == pytest.approx(np.mean(sent)) and (np.diff(costs) > 0).all()
