"""Whether two rows are distinguishable: by hand, against scipy, and on methods that are the same."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from frozen import frozen_results
from scipy.stats import ttest_1samp

from fedskew.report import inference
from fedskew.report.differences import comparison, differences
from fedskew.report.inference import student
from fedskew.report.results import ExperimentResults, SeedResult
from server_app.record import ModelNumbers, RoundRecord
from server_app.round_selection import Point

TESTED_C = np.full(10, 40)


def drawn(measured: SeedResult, accuracy: float, draws: np.random.Generator) -> SeedResult:
    """Return the run with the recalls of a model whose training and whose test set are drawn."""
    trained_C = np.clip(accuracy + draws.normal(0, 0.04) + draws.normal(0, 0.05, 10), 0, 1)
    recall_C = draws.binomial(TESTED_C, trained_C) / TESTED_C
    numbers = ModelNumbers({"balanced-accuracy": float(recall_C.mean())}, recall_C.tolist())
    samples = {**measured.run.samples, "test": TESTED_C.tolist()}
    run = replace(measured.run, origin={**measured.run.origin, "samples": samples})
    return replace(
        measured, run=run, points=(Point(RoundRecord(2, {"average": numbers}), numbers),)
    )


@pytest.fixture
def frozen_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ExperimentResults:
    """Two rows with three seeds each, in one column and without claims."""
    monkeypatch.setattr(inference, "RESAMPLES", 100)
    columns = {"": {"alpha": 0.5, "imbalance-factor": 10}}
    rows = ["fedavg", {"the same again": {"method": "creff"}}]
    with_runs = frozen_results(
        tmp_path, columns=columns, methods=rows, claims=[], cells={}, notes={}, series=[]
    )
    fedavg = frozen_results(tmp_path).of("fedavg", "LDA 0.5")
    return replace(
        with_runs, measured={(row.label, ""): fedavg for row in with_runs.experiment.rows}
    )


def headline(two: ExperimentResults, accuracies: Sequence[float], seed: int) -> str:
    draws = np.random.default_rng(seed)
    measured = {
        place: [drawn(run, accuracy, draws) for run in runs]
        for (place, runs), accuracy in zip(two.measured.items(), accuracies, strict=True)
    }
    return comparison(replace(two, measured=measured), "")


def test_two_names_of_one_method_are_not_distinguishable(frozen_two: ExperimentResults) -> None:
    """In 95 of 100 cases: of 1,500 such draws 96 % are."""
    said = [headline(frozen_two, (0.7, 0.7), seed) for seed in range(100, 200)]
    assert (
        sum("the same again is not distinguishable from fedavg" in sentence for sentence in said)
        >= 95
    )


def test_a_method_far_above_is(frozen_two: ExperimentResults) -> None:
    said = [headline(frozen_two, (0.5, 0.9), seed) for seed in range(10)]
    assert sum("the same again is above fedavg" in sentence for sentence in said) >= 8


def test_students_interval_and_p_are_scipys() -> None:
    margins = [0.2, -13.7, 16.7, 4.0]
    expected = ttest_1samp(margins, 0)
    low, high, p = student(margins)
    assert (low, high) == pytest.approx(tuple(expected.confidence_interval(0.95)), abs=1e-9)
    assert p == pytest.approx(expected.pvalue, abs=1e-9)
    assert student([2.0, 2.0]) == (2.0, 2.0, 0.0) and student([0.0, 0.0])[2] == 1.0


def test_the_same_numbers_twice_are_no_difference(frozen_two: ExperimentResults) -> None:
    (difference,) = differences(frozen_two, "")
    assert difference.estimate == 0 and not difference.distinguishable and difference.n == 3
