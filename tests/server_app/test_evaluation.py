"""The numbers behind the tables, from hand-made confusion matrices."""

import json
import math
from pathlib import Path

import pytest
import torch

from client_app.scores import BINS, Scores
from data import DataSettings
from server_app.evaluation import (
    by_group,
    local_accuracies,
    measured,
    of_clients,
    of_server,
    shot_groups,
    spread,
)
from server_app.parts import compose, row_name
from server_app.record import ModelNumbers, RoundRecord, Spread, to_json
from server_app.results import RunFolder
from server_app.selection import summarize


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
    actual = measured(
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
    actual = measured(scores([[3, 1, 0], [0, 0, 0], [0, 0, 4]]), {"medium": [1], "many": [0, 1]})
    assert actual["balanced-accuracy"] == pytest.approx((0.75 + 1) / 2)
    assert actual["macro-f1"] == pytest.approx((6 / 7 + 1) / 2)
    assert math.isnan(actual.recall[1]) and math.isnan(actual["medium-recall"])
    assert actual["many-recall"] == 0.75
    content = json.loads(json.dumps(to_json(actual), allow_nan=False))
    assert content["recall"] == [0.75, None, 1.0] and content["medium-recall"] is None


def test_scores_add_up() -> None:
    left, right = scores([[3, 1], [2, 2]], 2.0), scores([[1, 0], [5, 4]], 3.0)
    together, union = measured(left + right), measured(scores([[4, 1], [7, 6]], 5.0))
    assert together.means == pytest.approx(
        union.means, nan_ok=True
    ) and together.recall == pytest.approx(union.recall)
    pooled = of_clients({4: left, 7: right}, torch.tensor([[1, 1]] * 8), {})
    assert pooled["accuracy"] == together["accuracy"]
    values = pooled.spreads["client-accuracy"].values
    assert [values[4], values[7]] == pytest.approx([5 / 8, 0.5]) and len(values) == 8
    assert [k for k in range(8) if math.isnan(values[k])] == [
        0,
        1,
        2,
        3,
        5,
        6,
    ]  # who was not measured keeps a place


def test_client_evaluation_uses_each_clients_own_classes() -> None:
    actual = of_clients(
        {1: scores([[4, 0], [2, 2]]), 0: scores([[0, 4], [0, 4]])},
        torch.tensor([[1, 3], [3, 1]]),
        {},
    )
    assert actual.spreads["local-accuracy"].values == pytest.approx([0.75, 0.75 + 0.125])


def test_local_accuracy() -> None:
    counts_KC = torch.tensor([[10, 0, 0], [5, 5, 10], [0, 0, 1]])
    assert local_accuracies([0.5, 1.0, 0.1], counts_KC) == pytest.approx(
        [0.5, 0.25 * 0.5 + 0.25 + 0.05, 0.1]
    )


def test_local_accuracy_without_test_samples_of_a_class() -> None:
    actual = local_accuracies([0.5, math.nan, 0.1], torch.tensor([[3, 4, 1], [0, 2, 0]]))
    assert actual[0] == pytest.approx((3 * 0.5 + 0.1) / 4) and math.isnan(actual[1])


def test_server_evaluation_has_local_accuracy() -> None:
    actual = of_server(scores([[4, 0], [2, 2]]), torch.tensor([[1, 3], [3, 1]]), {"few": [1]})
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


def test_imagenet_lt_has_shot_groups_without_a_cut() -> None:
    assert DataSettings("imagenet-lt").long_tailed
    assert DataSettings("cifar10", imbalance_factor=10).long_tailed
    assert not DataSettings("cifar10").long_tailed


def test_numbers_by_class_have_means_over_shot_groups() -> None:
    numbers = {"matching-loss": 7.0, "matching-loss-by-class": [0.1, 0.3, math.nan, math.nan]}
    means = by_group(numbers, {"many": [0, 1], "medium": [1, 2], "few": [3]})
    assert means == pytest.approx(
        {"matching-loss-many": 0.2, "matching-loss-medium": 0.3, "matching-loss-few": math.nan},
        nan_ok=True,
    )


@pytest.mark.parametrize(
    ("method", "deployed", "row"),
    [
        ("fedavg", "average", "fedavg"),
        ("creff", "average", "fedavg"),
        ("creff", "creff", "creff"),
        ("creff+fedbn", "average", "fedbn"),
        ("creff+fedbn", "creff", "fedbn+creff"),
        ("tau-norm+fedshift", "average", "fedshift"),
        ("tau-norm+fedshift", "tau-norm", "fedshift+tau-norm"),
        ("creff+ccvr+tau-norm", "average", "fedavg"),
        ("creff+ccvr+tau-norm", "creff", "creff"),
        ("creff+ccvr+tau-norm", "ccvr", "ccvr"),
        ("creff+ccvr+tau-norm", "tau-norm", "tau-norm"),
        ("creff+fedshift+tau-norm", "tau-norm-0.5", "fedshift+tau-norm-0.5"),
        ("feddf+real-features", "average", "feddf"),
        ("feddf+real-features", "real-features", "real-features+feddf"),
        ("iwds+fedbn+fedshift", "average", "fedshift+fedbn+iwds"),
    ],
)
def test_row_names(method: str, deployed: str, row: str) -> None:
    assert row_name(compose(method), deployed) == row


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


def test_rounds_file_survives_a_cut_line(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for number in (1, 2, 3):
        folder.add_round(RoundRecord(number, loss=math.inf))
    with folder.rounds_file.open("a") as file:
        file.write('{"round": 4, "lo')
    assert [record.round for record in folder.rounds()] == [1, 2, 3]
    folder.cut_after(2)
    folder.add_round(RoundRecord(3, loss=0.5))
    assert [(record.round, to_json(record.loss)) for record in folder.rounds()] == [
        (1, None),
        (2, None),
        (3, 0.5),
    ]
