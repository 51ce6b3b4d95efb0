"""Of two classes one is positive: AUPRC, sensitivity and specificity are its own, not a mean that is neither's."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from in_process import FinishedRun, small
from sklearn.metrics import average_precision_score, roc_curve
from test_subjects import ABIDE, root

from client_app.metrics import Scores
from client_app.ranking import STATED
from data import SettingError
from fedskew.experiments.plan import Cell
from fedskew.report.results import SeedResult
from fedskew.report.run_records import RunRecords
from server_app.evaluation import (
    OF_POSITIVE,
    PositiveClass,
    metrics_from,
    of_clients,
    positive_class,
)
from server_app.record import ModelNumbers, RoundRecord, to_json
from server_app.round_selection import points_of
from server_app.run_evaluation import RunEvaluation
from server_app.settings import parse

NAMES = ("control", "autism")
__all__ = ["root"]  # a fixture
Train = Callable[..., FinishedRun]


def said(size: int = 300, share: float = 0.3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return scores of class 1 and labels, class 1 being so large a share; its scores are skewed."""
    draws = np.random.default_rng(seed)
    label_N = (draws.random(size) < share).astype(int)
    return draws.gumbel(size=size) + 1.2 * label_N * draws.exponential(size=size), label_N


def scores_of(score_N: np.ndarray, label_N: np.ndarray) -> Scores:
    logits = np.stack([np.zeros(len(score_N)), score_N], 1)
    log_NC = torch.log_softmax(torch.from_numpy(logits), 1)
    return Scores.of_probabilities(log_NC, torch.from_numpy(label_N))


def sensitivity(label_N: np.ndarray, score_N: np.ndarray) -> float:
    """Return the highest sensitivity at a specificity of STATED, by scikit-learn's ROC curve."""
    false_positives, true_positives, _ = roc_curve(label_N, score_N, drop_intermediate=False)
    return float(true_positives[1 - false_positives >= STATED - 1e-12].max())


@pytest.mark.parametrize("label", [0, 1])
def test_the_numbers_of_two_classes_are_the_positive_ones(label: int) -> None:
    score_N, label_N = said()
    numbers = metrics_from(scores_of(score_N, label_N), positive=PositiveClass(label, "ill"))
    own_score_N, own_N = (score_N if label else -score_N), label_N == label
    assert numbers["auprc"] == pytest.approx(average_precision_score(own_N, own_score_N))
    at_specificity = numbers["sensitivity-at-specificity-90"]
    at_sensitivity = numbers["specificity-at-sensitivity-90"]
    assert at_specificity == pytest.approx(sensitivity(own_N, own_score_N))
    assert at_sensitivity == pytest.approx(sensitivity(~own_N, -own_score_N))
    assert abs(at_specificity - at_sensitivity) > 0.02, "a mean over both classes makes them equal"
    assert to_json(numbers)["positive-class"] == "ill"
    assert ModelNumbers.of(to_json(numbers)).positive_class == "ill"


def test_the_rarer_class_is_the_positive_one() -> None:
    names = ("normal", "pneumonia")
    assert positive_class(names, "", (1214, 3494), (234, 390)) == PositiveClass(0, "normal")
    assert positive_class(names, "", (90, 10), (50, 50)) == PositiveClass(1, "pneumonia")
    assert positive_class(names, "", (0, 0), (5, 9)) == PositiveClass(0, "normal")
    assert positive_class(names, "", (7, 7), (9, 9)) == PositiveClass(1, "pneumonia")
    assert positive_class(names, "pneumonia", (90, 100)) == PositiveClass(1, "pneumonia")
    assert positive_class(("a", "b", "c"), "", (1, 2, 3)) is None


def test_neither_of_two_equal_classes_is_called_the_rarer_one() -> None:
    said_lines: list[str] = []
    settings = SimpleNamespace(general=SimpleNamespace(positive_class=""), agreement=None)
    for trained_C, why in (
        ((90, 10), "the rarer one"),
        ((7, 7), "the second one, as neither is rarer"),
    ):
        positive = positive_class(("well", "ill"), "", trained_C, (9, 9))
        RunEvaluation.report_positive(
            SimpleNamespace(settings=settings, positive=positive, report_line=said_lines.append)
        )
        assert said_lines.pop().startswith(f"positive class: ill ({why} of the samples): ")


def test_more_classes_keep_their_macro_means() -> None:
    draws = torch.Generator().manual_seed(0)
    log_NC = torch.log_softmax(torch.randn(90, 3, generator=draws).double(), 1)
    numbers = metrics_from(Scores.of_probabilities(log_NC, torch.arange(90) % 3))
    assert numbers.positive_class is None
    for key in OF_POSITIVE:
        assert numbers[key] == pytest.approx(np.mean(numbers.by_class[f"{key}-by-class"]))


def test_all_clients_numbers_are_about_one_class() -> None:
    """Client 1 has more ill than healthy samples; its numbers are about the ill all the same."""
    clients = {0: said(200, 0.2, 1), 1: said(60, 0.7, 2)}
    scores = {client: scores_of(*both) for client, both in clients.items()}
    numbers = of_clients(scores, torch.ones(2, 2).long(), {})
    assert numbers.positive_class == "1"
    expected = [average_precision_score(label_N, score_N) for score_N, label_N in clients.values()]
    assert numbers.spreads["client-auprc"].values == pytest.approx(expected)


@pytest.mark.parametrize("stated", ["", "control", "autism"])
def test_a_run_says_its_positive_class_and_keeps_it(train: Train, root: str, stated: str) -> None:
    config = {**ABIDE, "rounds": 1, "positive_class": stated}
    outcome = train("one", method="fedavg", data_root=root, **config)
    numbers = outcome.records[-1]["models"]["average"]
    named = numbers["positive-class"]
    assert named == (stated or named) and named in NAMES
    for key in OF_POSITIVE:
        assert numbers[key] == numbers[f"{key}-by-class"][NAMES.index(named)], key
    assert outcome.summary["models"]["average"]["last"]["positive-class"] == named


def test_a_class_that_is_none_of_two_is_one_sentence() -> None:
    two = {"dataset": "abide", "data-root": "/nowhere", "classes": "ill,well"}
    assert parse({"positive-class": ""}).run_id == parse({}).run_id
    with pytest.raises(SettingError, match=r"^positive-class = 'dead': must be one of ill, well$"):
        parse({**two, "positive-class": "dead"})
    with pytest.raises(SettingError, match=r"^positive-class = '3': has no effect: digits has 10"):
        parse({"positive-class": "3"})
    assert parse({**two, "positive-class": "ill"}).run_id != parse(two).run_id


def test_records_of_earlier_versions_give_the_positive_class_too(tmp_path: Path) -> None:
    """They have the mean over both classes, and beside it each class's own."""
    score_N, label_N = said()
    new = metrics_from(scores_of(score_N, label_N), positive=PositiveClass(1, "autism"))
    macro = {
        key: float(np.mean(new.by_class[f"{key}-by-class"])) if key in OF_POSITIVE else value
        for key, value in new.means.items()
    }
    old = ModelNumbers.of(to_json(replace(new, means=macro, positive_class=None)))
    settings = small(tmp_path, method="fedavg", **ABIDE)
    records = [RoundRecord(1, {"average": old})]
    (point,) = points_of(records, "average")
    run = RunRecords(settings, {"samples": {"train": [[50, 20], [40, 10]]}}, records, None)
    was = SeedResult(Cell("", "fedavg", "", 0, settings, "average"), run, (point,))
    for key in OF_POSITIVE:
        assert old[key] != new[key] and was.number(point, key) == new[key]


def test_between_sites_the_first_evaluation_decides_for_the_whole_run() -> None:
    """Nobody knows the sites' training samples; a site that is missing later must not change what is measured."""
    said_lines: list[str] = []
    general = SimpleNamespace(positive_class="")
    data = SimpleNamespace(class_names=("well", "ill"))
    settings = SimpleNamespace(general=general, data=data, agreement="there is one")
    run = SimpleNamespace(
        settings=settings, positive=None, report_line=said_lines.append, folder=Folder()
    )
    run.report_positive = lambda: RunEvaluation.report_positive(run)
    assert RunEvaluation.known_positive(run) is None
    first = {"average": {0: scores_of(*said(200, 0.2, 1)), 1: scores_of(*said(200, 0.4, 2))}}
    RunEvaluation.decide_positive(run, first)
    assert run.positive == PositiveClass(1, "ill")
    assert said_lines == [
        "positive class: ill (the rarer one of the test samples of the sites): "
        "AUPRC, sensitivity and specificity are about it"
    ]
    RunEvaluation.decide_positive(run, {"average": {1: scores_of(*said(200, 0.9, 3))}})
    assert run.positive == PositiveClass(1, "ill") and len(said_lines) == 1
    numbers = metrics_from(scores_of(*said()), positive=PositiveClass(0, "well"))
    run.folder = Folder([RoundRecord(1, {"average": numbers})])
    assert RunEvaluation.known_positive(run) == PositiveClass(0, "well"), (
        "resumed: as the records say"
    )
    general.positive_class = "ill"
    assert RunEvaluation.known_positive(run) == PositiveClass(1, "ill")


class Folder:
    """A run's folder with these records."""

    def __init__(self, records: Sequence[RoundRecord] = ()) -> None:
        self.records = records

    def rounds(self) -> Sequence[RoundRecord]:
        return self.records
