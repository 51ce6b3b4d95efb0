"""What a selection of a method goes by: targets, permissions, measurements with their samples, and counts."""

import math
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from data import DataSettings, SettingError, federate, load
from fedskew.diagnosis.table import read_counts
from fedskew.method_selection.candidates import (
    Entrant,
    contenders_by_training,
    possible,
)
from fedskew.method_selection.conduct import Runs, Trained
from fedskew.method_selection.counts import partition_by_counts
from fedskew.method_selection.targets import TARGETS, scores_of, target_of
from fedskew.method_selection.uploads import excluded, permissions_of
from server_app.record import ModelNumbers, Spread
from server_app.run_settings import Scalar

NUMBERS = ModelNumbers(
    means={"balanced-accuracy": 0.5, "accuracy": 0.6, "auroc": 0.9, "brier": 0.25},
    recall=[0.75, 0.25, math.nan],
    spreads={"local-accuracy": Spread(0.7, 0.4), "client-accuracy": Spread(0.8, 0.3)},
)


@pytest.mark.parametrize(
    ("target", "score", "text"),
    [
        ("balanced-accuracy", 50.0, "50.0"),
        # Nine of ten samples are of the first class; nobody tests the third: (9 * 0.75 + 1 * 0.25) / 10.
        ("accuracy", 70.0, "70.0"),
        ("site-mean", 70.0, "70.0"),
        ("worst-site", 40.0, "40.0"),
        ("auroc", 90.0, "90.0"),
        ("brier", -25.0, "0.250"),
    ],
)
def test_a_target_is_a_score_of_which_more_is_better(target: str, score: float, text: str) -> None:
    scores = scores_of(NUMBERS, [90, 10, 50], own_tests=False)
    assert scores.keys() == TARGETS.keys()
    assert scores[target] == pytest.approx(score)
    assert TARGETS[target].text(scores[target]) == text
    assert TARGETS[target].text(math.nan) == "-"


def test_sites_with_test_samples_of_their_own_are_measured_on_these() -> None:
    scores = scores_of(NUMBERS, None, own_tests=True)
    assert (scores["site-mean"], scores["worst-site"]) == pytest.approx((80.0, 30.0))
    assert scores["accuracy"] == pytest.approx(60.0), "without counts the shares of what was tested"
    assert math.isnan(scores_of(ModelNumbers(), [1], own_tests=False)["worst-site"])
    assert target_of("auroc", 100).name == "auroc"
    with pytest.raises(SettingError) as caught:
        target_of("auroc", 101)
    assert (caught.value.key, caught.value.value) == ("--target", "auroc")


def test_a_permission_that_is_not_given_leaves_methods_out() -> None:
    methods = ["fedshift", "ccvr", "creff", "scaffold", "scaffold+ccvr", "fedlc"]
    runs = possible(methods, {})
    needed = {method: sorted(permissions_of(run)) for method, run in runs.items()}
    assert needed == {
        "fedavg": [],
        "fedshift": ["class-counts"],
        "ccvr": ["class-counts", "class-statistics"],
        "creff": ["head-gradients"],
        "scaffold": ["control-variates"],
        "scaffold+ccvr": ["class-counts", "class-statistics", "control-variates"],
        "fedlc": [],
    }
    without = possible(methods, {}, ["class-statistics"])
    assert list(without) == ["fedavg", "fedshift", "creff", "scaffold", "fedlc"]
    without = possible(methods, {}, ["class-counts"])  # the statistics hold the counts
    assert list(without) == ["fedavg", "creff", "scaffold", "fedlc"]
    with pytest.raises(SettingError) as alone:
        possible(["ccvr"], {}, ["class-statistics"])
    assert alone.value.key == "--without"
    with pytest.raises(SettingError) as unknown:
        excluded(["model"])
    assert unknown.value.value == "model"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trained]:
    """Return two models of a small run that is measured on validation data, by method."""
    settings: dict[str, Scalar] = {
        "model": "mlp-bn",
        "train-images": 200,
        "rounds": 2,
        "local-epochs": 1,
        "min-samples": 5,
        "results": str(tmp_path_factory.mktemp("results")),
    }
    contenders = contenders_by_training(possible(["ccvr"], settings), None)
    validation: dict[str, Scalar] = {"validation-fraction": 0.2}
    runs = Runs(contenders, settings, validation, "balanced-accuracy", Console(quiet=True), 1)
    results = runs.train([Entrant("fedavg", 0.05)], 2, [0], last=False)
    assert set(results.costs) == {"fedavg"} and results.costs["fedavg"].of(2) > 0
    assert {candidate.method for candidate in results.validated} == {"fedavg", "ccvr"}
    return {candidate.method: one for (candidate, _, _), one in runs.trained.items()}


@pytest.mark.parametrize("target", TARGETS)
def test_a_measurement_s_samples_are_those_of_its_score(
    target: str, trained: dict[str, Trained]
) -> None:
    """The score that the record has is what the kept outputs give, and its parts have its variance."""
    one = trained["ccvr"]
    measurement = one.evaluated(target)
    assert measurement.score == scores_of(one.numbers, one.train_C, own_tests=False)[target]
    assert measurement.parts_U is not None and measurement.sample_set
    assert len(measurement.parts_U) == sum(map(sum, one.numbers.confusion or ()))
    by_parts = float(np.square(measurement.parts_U).sum())
    assert by_parts > 0
    weights_C = one.weights(target, one.numbers)
    if target not in ("brier", "auroc"):
        assert weights_C is not None and weights_C.sum() == pytest.approx(1)
        recall_C = np.array(one.numbers.recall)
        sizes_C = np.array(one.samples["test"])
        unbiased_C = recall_C * (1 - recall_C) / (sizes_C - 1)
        assert by_parts == pytest.approx(1e4 * weights_C**2 @ unbiased_C)


def test_a_table_of_counts_is_dealt_exactly(tmp_path: Path) -> None:
    table = tmp_path / "counts.csv"
    table.write_text("site,a,b,c\nnorth,5,0,2\nsouth,1,7,3\n")
    file = tmp_path / "partition.json"
    partition_by_counts(read_counts(table), load(DataSettings()), file, str(table))
    federation = federate(DataSettings(partition_file=str(file)), 0)
    assert (
        federation.counts_KC[:, :3].tolist() == [[5, 0, 2], [1, 7, 3]]
        and federation.counts_KC.sum() == 18
    )
    assert {*federation.dataset.test_labels[federation.global_test].tolist()} == {0, 1, 2}
