"""Standard errors and intervals: against closed forms, and on made numbers whose truth is known."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from fedskew.method_selection.uncertainty import (
    Difference,
    Floats,
    Measurement,
    by_subject,
    difference,
    name_of_samples,
    parts_of_auroc,
    parts_of_brier,
    parts_of_recalls,
)

Labels = NDArray[np.int64]


def outputs(samples: int, classes: int, seed: int) -> tuple[Floats, Labels]:
    """Return logarithms of probabilities that know something of the labels, and the labels."""
    draws = np.random.default_rng(seed)
    labels_N = draws.integers(classes, size=samples)
    logits_NC = draws.normal(size=(samples, classes))
    logits_NC[np.arange(samples), labels_N] += 1.0
    sums_N1 = np.log(np.exp(logits_NC).sum(1, keepdims=True))
    return logits_NC - sums_N1, labels_N


WEIGHTS = np.array([0.5, 0.3, 0.2])


def recalls(outputs_NC: Floats, labels_N: Labels) -> float:
    right_N = outputs_NC.argmax(1) == labels_N
    return 100 * sum(WEIGHTS[label] * right_N[labels_N == label].mean() for label in range(3))


def brier(outputs_NC: Floats, labels_N: Labels) -> float:
    errors_NC = np.exp(outputs_NC) - np.eye(3)[labels_N]
    return -100 * float((errors_NC**2).sum(1).mean())


def auroc(outputs_NC: Floats, labels_N: Labels) -> float:
    total = 0.0
    for label in range(3):
        of_class = outputs_NC[labels_N == label, label]
        others = outputs_NC[labels_N != label, label]
        above = (of_class[:, None] > others).mean()
        total += above + (of_class[:, None] == others).mean() / 2
    return 100 * total / 3


@pytest.mark.parametrize(
    ("score", "parts"),
    [
        (recalls, lambda one, other: parts_of_recalls(one, other, WEIGHTS)),
        (brier, parts_of_brier),
        (auroc, parts_of_auroc),
    ],
)
def test_the_parts_give_the_variance_that_other_samples_have(
    score: Callable[[Floats, Labels], float], parts: Callable[[Floats, Labels], Floats]
) -> None:
    scores, variances = [], []
    for seed in range(250):
        sample = outputs(240, 3, seed)
        scores.append(score(*sample))
        variances.append(float(np.square(parts(*sample)).sum()))
        assert parts(*sample).sum() == pytest.approx(0, abs=1e-8)
    assert np.mean(variances) == pytest.approx(np.var(scores), rel=0.25)


def test_a_recall_s_variance_is_the_unbiased_binomial_one() -> None:
    outputs_NC, labels_N = outputs(50, 3, 0)
    right_N = outputs_NC.argmax(1) == labels_N
    expected = 0.0
    for label in range(3):
        expected += (
            WEIGHTS[label] ** 2 * right_N[labels_N == label].var(ddof=1) / (labels_N == label).sum()
        )
    parts_N = parts_of_recalls(outputs_NC, labels_N, WEIGHTS)
    assert np.square(parts_N).sum() == pytest.approx(1e4 * expected)


def test_a_class_with_a_single_sample_has_no_variance_and_no_division_by_zero() -> None:
    outputs_NC, _ = outputs(3, 3, 0)
    labels_N = np.array([0, 1, 1])
    for parts_N in (
        parts_of_recalls(outputs_NC, labels_N, WEIGHTS),
        parts_of_auroc(outputs_NC, labels_N),
    ):
        assert np.isfinite(parts_N).all()


def test_samples_of_one_subject_count_as_one_unit() -> None:
    parts_N = np.array([1.0, 2.0, -3.0])
    assert by_subject(parts_N, np.array([7, 7, 2])).tolist() == [-3.0, 3.0]
    assert by_subject(parts_N, None) is parts_N


def test_a_difference_on_the_same_samples_is_paired() -> None:
    """Two models that err on the same samples: their difference is certain, their scores are not."""
    outputs_NC, labels_N = outputs(200, 3, 0)
    parts_U = parts_of_recalls(outputs_NC, labels_N, WEIGHTS)
    name = name_of_samples(labels_N)
    one = {0: Measurement(60.0, parts_U, name)}
    other = {0: Measurement(50.0, parts_U, name)}
    assert difference(one, other) == Difference(10.0, 0.0, 1, 0.0, 200, "samples")
    elsewhere = {0: Measurement(50.0, parts_U, "other samples")}
    unpaired = difference(one, elsewhere)
    assert unpaired is not None
    assert unpaired.error**2 == pytest.approx(2 * np.square(parts_U).sum())


def test_without_units_the_variances_of_both_count() -> None:
    first = {seed: Measurement(60.0 + seed, None, "", 4.0) for seed in (0, 1, 2)}
    second = {seed: Measurement(50.0, None, "", 5.0) for seed in (0, 1, 2)}
    found = difference(first, second)
    assert found is not None
    # Other samples in each seed: at least 9 over three seeds, and the seeds' own variance 1 is less.
    assert found == Difference(11.0, 3.0, 3, covers="seeds and samples")
    same = {seed: Measurement(60.0 + seed, None, "test", 4.0) for seed in (0, 1, 2)}
    others = {seed: Measurement(50.0, None, "test", 5.0) for seed in (0, 1, 2)}
    on_one_set = difference(same, others)
    assert on_one_set is not None and on_one_set.error == pytest.approx(math.sqrt(1 / 3 + 9))
    assert difference(first, {9: Measurement(1.0)}) is None
    alone = difference({0: Measurement(2.0)}, {0: Measurement(1.0)})
    assert alone is not None and (alone.mean, alone.error, alone.covers) == (1.0, 0.0, "samples")


def test_student_s_interval_over_seeds_alone() -> None:
    gain = difference(
        {0: Measurement(82.0), 1: Measurement(84.0)}, {0: Measurement(80.0), 1: Measurement(80.0)}
    )
    assert gain is not None and gain.covers == "seeds"
    # One degree of freedom: 3 points, and 12.7 standard errors of 1 point to either side.
    assert gain.interval() == pytest.approx((3 - 12.706, 3 + 12.706), abs=1e-3)
    # Many units: 1.96 errors of 1 point to either side; of both errors the root of the squares' sum.
    samples = Difference(3.0, 0.0, 1, 1.0, 100_000, "samples")
    assert samples.interval() == pytest.approx((3 - 1.96, 3 + 1.96), abs=1e-3)
    both = Difference(3.0, 1.0, 2, 1.0, 100_000)
    assert both.interval()[1] == pytest.approx(3 + math.hypot(12.706, 1.96), abs=1e-3)


def test_samples_that_two_seeds_share_are_what_the_spread_over_seeds_does_not_show() -> None:
    def of_units(score: float, units: list[int], parts: list[float]) -> Measurement:
        return Measurement(score, np.array(parts), "by number", units_U=np.array(units))

    first = {
        0: of_units(52.0, [1, 2, 3], [3.0, -1.0, -2.0]),
        1: of_units(54.0, [2, 3, 4], [2.0, 1.0, -3.0]),
        2: of_units(59.0, [5, 6, 7], [9.0, -5.0, -4.0]),
    }
    second = {
        seed: of_units(50.0, one.units.tolist(), [0.0, 0.0, 0.0]) for seed, one in first.items()
    }
    found = difference(first, second)
    assert found is not None and found.covers == "seeds and samples" and found.units == 7
    assert found.of_seeds == pytest.approx(13 / 3)  # 2, 4, 9: variance 13
    # Samples 2 and 3 are in seeds 0 and 1: -1 * 2 - 2 * 1 is below 0, which no variance is.
    assert found.of_samples == 0
    first[1] = of_units(54.0, [2, 3, 4], [-2.0, -1.0, 3.0])
    found = difference(first, second)
    assert found is not None and found.of_samples == pytest.approx((2 + 2) / 3)  # of three pairs

    unknown = {seed: Measurement(50.0 + seed, None, "", 9.0, overlap=0.2) for seed in range(3)}
    zeros = {seed: Measurement(0.0, None, "", 1.0, overlap=0.2) for seed in range(3)}
    careful = difference(unknown, zeros)
    assert careful is not None and careful.of_samples == pytest.approx(0.2 * 10)
    assert careful.of_seeds == pytest.approx(1 / 3)
