"""The numbers behind the tables, from hand-made confusion matrices."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, roc_curve

from client_app.metrics import BINS, Scores
from client_app.ranking import STATED
from data import DataSettings, federate
from server_app.composition import compose, row_name
from server_app.evaluation import (
    PositiveClass,
    by_group,
    local_accuracies,
    metrics_from,
    of_clients,
    of_server,
    positive_class,
    shot_groups,
    sizes,
    spread,
    worth,
)
from server_app.record import ModelNumbers, RoundRecord, Spread, to_json
from server_app.round_selection import Point, select, summarize


def scores(confusion: list[list[int]], loss: float = 1.0) -> Scores:
    """Return scores whose confidence is 0.9 throughout."""
    table = torch.tensor(confusion)
    total, correct = table.sum().item(), table.diagonal().sum().item()
    calibration = torch.zeros(3, BINS).double()
    calibration[:, int(0.9 * BINS)] = torch.tensor([total, correct, 0.9 * total]).double()
    sums = (
        torch.tensor(loss).double(),
        calibration,
        torch.tensor(0.0).double(),
        torch.zeros(len(table), 8).double(),
    )
    return Scores(table, *sums)


def test_metrics_by_hand() -> None:
    actual = metrics_from(
        scores([[8, 2, 0], [1, 3, 0], [0, 1, 5]], loss=10.0), {"many": [0, 1], "few": [2]}
    )
    recall = [0.8, 0.75, 5 / 6]
    assert actual.recall == pytest.approx(recall)
    assert actual["accuracy"] == pytest.approx(16 / 20)
    assert actual["balanced-accuracy"] == pytest.approx(sum(recall) / 3)
    assert actual["macro-f1"] == pytest.approx((16 / 19 + 6 / 10 + 10 / 11) / 3)
    assert actual["loss"] == pytest.approx(0.5)
    assert actual["calibration-error"] == pytest.approx(0.1)
    assert actual["many-recall"] == pytest.approx(0.775) and actual["few-recall"] == pytest.approx(
        5 / 6
    )


def test_class_without_test_samples() -> None:
    actual = metrics_from(
        scores([[3, 1, 0], [0, 0, 0], [0, 0, 4]]), {"medium": [1], "many": [0, 1]}
    )
    assert actual["balanced-accuracy"] == pytest.approx((0.75 + 1) / 2)
    assert actual["macro-f1"] == pytest.approx((6 / 7 + 1) / 2)
    assert math.isnan(actual.recall[1]) and math.isnan(actual["medium-recall"])
    assert actual["many-recall"] == 0.75
    content = json.loads(json.dumps(to_json(actual), allow_nan=False))
    assert content["recall"] == [0.75, None, 1.0] and content["medium-recall"] is None


def test_scores_add_up() -> None:
    left, right = scores([[3, 1], [2, 2]], 2.0), scores([[1, 0], [5, 4]], 3.0)
    together, union = metrics_from(left + right), metrics_from(scores([[4, 1], [7, 6]], 5.0))
    assert together.means == pytest.approx(union.means, nan_ok=True)
    assert together.recall == pytest.approx(union.recall)
    pooled = of_clients({1: left, 2: right}, torch.tensor([[1, 1]] * 4), {})
    assert pooled["accuracy"] == together["accuracy"]
    first, *measured, last = pooled.spreads["client-accuracy"].values
    assert measured == pytest.approx([5 / 8, 0.5])
    assert math.isnan(first) and math.isnan(last), "who was not measured keeps a place"


def test_local_accuracy() -> None:
    counts_KC = torch.tensor([[10, 0, 0], [5, 5, 10], [0, 0, 1]])
    assert local_accuracies([0.5, 1.0, 0.1], counts_KC) == pytest.approx([0.5, 0.425, 0.1])


def test_local_accuracy_without_test_samples_of_a_class() -> None:
    actual = local_accuracies([0.5, math.nan, 0.1], torch.tensor([[3, 4, 1], [0, 2, 0]]))
    assert actual[0] == pytest.approx((3 * 0.5 + 0.1) / 4) and math.isnan(actual[1])


def test_server_evaluation_has_local_accuracy() -> None:
    actual = of_server(scores([[4, 0], [2, 2]]), torch.tensor([[1, 3], [3, 1]]), {"few": [1]}, None)
    assert actual.spreads["local-accuracy"].mean == pytest.approx(0.75)
    assert actual["few-recall"] == 0.5


def test_spread() -> None:
    values = [index / 20 for index in reversed(range(20))]
    actual = spread(values)
    assert actual == Spread(pytest.approx(0.475), 0.0, pytest.approx(0.025), values)
    assert spread([0.3]).worst_decile == 0.3
    assert spread([k / 10 for k in range(19)]).worst_decile == 0.0  # a tenth of 19 is one client
    assert spread([0.4, math.nan, 0.2]).mean == pytest.approx(0.3)
    assert math.isnan(spread([math.nan]).worst)


@pytest.mark.parametrize(
    ("counts", "long_tailed", "groups"),
    [
        ([5000] * 10, False, {}),
        (
            [50, 40, 30, 25, 20, 15, 10, 8, 6, 5],
            True,
            {"many": [0, 1, 2], "medium": [3, 4, 5, 6], "few": [7, 8, 9]},
        ),
        ([101, 100, 20, 19], True, {"many": [0], "medium": [1, 2], "few": [3]}),
        ([500, 200], True, {"many": [0, 1]}),
    ],
)
def test_shot_groups(counts: list[int], long_tailed: bool, groups: dict[str, list[int]]) -> None:
    assert shot_groups(counts, long_tailed) == groups


def test_numbers_by_class_have_means_over_shot_groups() -> None:
    numbers = {"matching-loss": 7.0, "matching-loss-by-class": [0.1, 0.3, math.nan, math.nan]}
    means = by_group(numbers, {"many": [0, 1], "medium": [1, 2], "few": [3]})
    assert means == pytest.approx(
        {"matching-loss-many": 0.2, "matching-loss-medium": 0.3, "matching-loss-few": math.nan},
        nan_ok=True,
    )
    others = {"loss-by-class": 0.5, "class-weights": [1.0, 2.0, 3.0, 4.0]}
    assert by_group(others, {"many": [0, 1]}) == {}


@pytest.mark.parametrize(
    ("method", "deployed", "row"),
    [
        ("creff", "average", "fedavg"),
        ("creff+fedbn", "creff", "fedbn+creff"),
        ("creff+creff-code", "creff-code", "creff-code"),
        ("creff+fedshift+tau-norm", "tau-norm-0.5", "fedshift+tau-norm-0.5"),
        ("iwds+fedbn+fedshift", "average", "fedshift+fedbn+iwds"),
    ],
)
def test_row_names(method: str, deployed: str, row: str) -> None:
    assert row_name(compose(method), deployed) == row


# ---- one positive class of two ---------------------------------------------------------------------------------------


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


def test_all_clients_numbers_are_about_one_class() -> None:
    """Client 1 has more ill than healthy samples; its numbers are about the ill all the same."""
    clients = {0: said(200, 0.2, 1), 1: said(60, 0.7, 2)}
    scores = {client: scores_of(*both) for client, both in clients.items()}
    numbers = of_clients(scores, torch.ones(2, 2).long(), {})
    assert numbers.positive_class == "1"
    expected = [average_precision_score(label_N, score_N) for score_N, label_N in clients.values()]
    assert numbers.spreads["client-auprc"].values == pytest.approx(expected)


# ---- which round counts ----------------------------------------------------------------------------------------------


def record(round: int, **means: float) -> RoundRecord:
    return RoundRecord(round, {"average": ModelNumbers(means, [0.5])} if means else {})


def test_summary_names_last_best_and_means() -> None:
    accuracies = [0.1, 0.9, 0.2, 0.3, 0.4, 0.5, 0.6]
    records = [
        record(k + 1, **{"balanced-accuracy": a, "loss": 1.0}) for k, a in enumerate(accuracies)
    ]
    actual = summarize([*records, record(8)])["average"]
    assert actual["last"]["balanced-accuracy"] == 0.6
    assert (actual["best-test"]["round"], actual["best-test"]["balanced-accuracy"]) == (2, 0.9)
    assert actual["mean-of-last-5"]["balanced-accuracy"] == pytest.approx(0.4)
    assert actual["mean-of-last-10"]["balanced-accuracy"] == pytest.approx(3 / 7)
    assert summarize([]) == {} == summarize([record(1)])


def test_summary_of_a_run_that_diverged_for_a_while() -> None:
    records = [
        record(1, **{"balanced-accuracy": 0.1, "loss": math.nan}),
        record(2, **{"balanced-accuracy": 0.3, "loss": 1.5}),
        record(3, **{"balanced-accuracy": math.nan, "loss": 1.5}),
    ]
    actual = summarize(records[:2])["average"]
    assert actual["mean-of-last-5"] == {"balanced-accuracy": pytest.approx(0.2), "loss": None}
    assert summarize(records)["average"]["best-test"]["round"] == 2


def points(accuracies: list[float]) -> list[Point]:
    """Return a run's evaluated rounds, of these accuracies on the test set and on the validation set."""
    rounds = []
    for round, accuracy in enumerate(accuracies, start=1):
        measured = ModelNumbers({"balanced-accuracy": accuracy})
        rounds.append(Point(RoundRecord(round), replace(measured, validation=measured)))
    return rounds


@pytest.mark.parametrize("selection", ["best-test", "best-validation"])
@pytest.mark.parametrize(
    ("accuracies", "round"),
    [
        ([0.5, 0.9, 0.9, 0.2], 2),
        ([0.9, 0.95], 2),
        ([math.nan, 0.0, math.nan], 1),
        ([math.nan, 0.1, 0.1], 2),
    ],
)
def test_of_several_best_rounds_the_first_counts(
    selection: str, accuracies: list[float], round: int
) -> None:
    (chosen,) = select(points(accuracies), selection)
    assert chosen.round == round


def test_a_selection_means_its_rounds_or_none() -> None:
    five = points([0.1, 0.2, 0.3, 0.4, 0.5])
    assert [point.round for point in select(five, "last")] == [5]
    assert select(five, "mean-of-last-5") == five and select(five[1:], "mean-of-last-5") == ()
    assert select(five[1:], "mean-of-last-5", fewer=True) == five[1:]
    twelve = points([0.1] * 12)
    assert select(twelve, "mean-of-last-10") == twelve[2:]
    for selection in ("best-test", "best-validation", "last"):
        assert not select([], selection)


def test_clients_choose_the_best_round_on_validation_by_their_mean_accuracy() -> None:
    rounds = []
    for round, (pooled, mean) in enumerate([(0.9, 0.1), (0.1, 0.9)], start=1):
        of_clients = {"client-accuracy": spread([mean])}
        measured = ModelNumbers({"balanced-accuracy": pooled}, spreads=of_clients)
        rounds.append(Point(RoundRecord(round), ModelNumbers(validation=measured)))
    (chosen,) = select(rounds, "best-validation")
    assert chosen.round == 2
    assert select([Point(RoundRecord(1), ModelNumbers())], "best-validation") == ()


# ---- what samples are worth ------------------------------------------------------------------------------------------


def test_lists_by_class_end_at_twenty_classes_and_sizes_at_a_hundred_clients() -> None:
    for classes, is_listed in ((20, True), (21, False)):
        numbers = metrics_from(scores(torch.eye(classes).long().tolist()))
        assert bool(numbers.confusion) == bool(numbers.by_class) == is_listed
    for clients, is_known in ((100, True), (101, False)):
        data = {"dataset": "digits", "partition": "iid", "clients": clients}
        assert (sizes(federate(DataSettings(**data), 0)) is not None) == is_known


def patients(tmp_path: Path) -> DataSettings:
    """Two classes, 5 patients of each with 8 test rows, of which one of class 0 has 16; as an npz file."""
    draws, path = np.random.default_rng(0), tmp_path / "rows.npz"
    subject_N = np.repeat(np.arange(10), [16, *[8] * 9])
    images, labels = draws.random((len(subject_N), 6), np.float32), (subject_N >= 5).astype(int)
    test = {"test_images": images, "test_labels": labels, "test_subjects": subject_N}
    np.savez(path, train_images=images, train_labels=labels, train_subjects=subject_N + 100, **test)
    return DataSettings(
        dataset=f"npz:{path}", classes="well,ill", input_shape="6", clients=2, partition="iid"
    )


def test_a_report_s_sampling_unit_is_the_subject(tmp_path: Path) -> None:
    """88 rows of 10 patients, who are tested as one each, are worth 10."""
    tested_as_one = sizes(federate(patients(tmp_path), 0))
    assert tested_as_one is not None and tested_as_one["test"] == [48, 40]
    assert tested_as_one["tested"] == tested_as_one["independent"] == [5, 5]
    assert worth(np.repeat(np.arange(5), [16, 8, 8, 8, 8]), False) == round(
        48**2 / (16**2 + 4 * 8**2)
    )
    assert worth(np.arange(7), False) == 7 and worth(np.zeros(0, int), False) == 0
