"""Figures: every kind is drawn from the frozen records, and their numbers are the records' or the metrics'."""

import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from frozen import ONE_COLUMN, frozen_results, with_predictions
from sklearn.metrics import average_precision_score, roc_auc_score

from data import SettingError
from fedskew.report.document import document
from fedskew.report.figures import figures, precision, sensitivity
from fedskew.report.render import write_figures

LABELS = {
    "claims": ["1. creff above fedavg", "difference, points"],
    "differences-lda-0-5": ["creff", "difference, points"],
    "curves-lda-0-5": ["By round: LDA 0.5", "fedavg", "creff", "chance", "round"],
    "reach-lda-0-5": ["MB sent, down and up", "fedavg"],
    "ranking-lda-0-5": ["ROC: LDA 0.5", "fedavg"],
    "ranking-precision-by-recall-lda-0-5": ["Precision by recall: LDA 0.5", "creff"],
    "ranking-confusion-of-the-classes-lda-0-5-creff": ["Confusion of the classes: LDA 0.5: creff"],
    "clients-lda-0-5": ["Who holds what: LDA 0.5", "client"],
}
"""By figure what stands in it."""


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The frozen experiment's second column. Each run keeps predictions of ten classes drawn from its seed."""
    return with_predictions(frozen_results(tmp_path_factory.mktemp("frozen"), **ONE_COLUMN))


@pytest.fixture(scope="module")
def report(results):
    return document(results)


def test_every_figure_is_drawn_with_its_labels(report, tmp_path):
    drawn = figures(report)
    assert drawn.keys() >= LABELS.keys()
    for name, labels in LABELS.items():
        root = ElementTree.fromstring(drawn[name].element(name))
        texts = [element.text for element in root.iter() if element.text]
        for label in labels:
            assert label in texts, (name, texts)
    curve = drawn["curves-lda-0-5"]
    files = [curve.save(tmp_path / name) for name in ("first.svg", "second.svg")]
    assert files[0].read_bytes() == files[1].read_bytes(), "no date"


def test_a_folder_that_cannot_be_written_is_refused(report, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(SettingError) as raised:
        write_figures([report], blocked)
    assert raised.value.key == "--figures"


@pytest.mark.parametrize("seed", [0, 1])
def test_areas_below_the_curves_are_the_metrics(seed):
    """Of scores with many ties."""
    draws = np.random.default_rng(seed)
    positive_N = draws.random(200) < 0.3
    score_N = np.round(draws.normal(size=200) + positive_N, 1)
    area = np.trapezoid(sensitivity(positive_N, score_N), dx=1 / 200)
    assert area == pytest.approx(roc_auc_score(positive_N, score_N), abs=0.005)
    mean = precision(positive_N, score_N)[1:].mean()
    assert mean == pytest.approx(average_precision_score(positive_N, score_N), abs=0.01)
