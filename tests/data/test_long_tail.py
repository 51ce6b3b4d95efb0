"""The long tail: the published class sizes, to the image."""

import re

import numpy as np
import pytest

from data import SettingError
from data.long_tail import long_tail, long_tail_counts


@pytest.mark.parametrize(
    ("factor", "counts", "total"),
    [
        (100, [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50], 12406),
        (50, [5000, 3237, 2096, 1357, 878, 568, 368, 238, 154, 100], 13996),
        (10, [5000, 3871, 2997, 2320, 1796, 1391, 1077, 834, 645, 500], 20431),
        (1, [5000] * 10, 50000),
    ],
)
def test_cifar10(factor, counts, total):
    actual = long_tail_counts(5000, factor, 10)
    assert actual.tolist() == counts
    assert actual.sum() == total


@pytest.mark.parametrize(
    ("factor", "first", "last", "total"),
    [
        (100, [500, 477, 455, 434, 415], [6, 5, 5, 5, 5], 10847),
        (50, [500, 480, 462, 444, 426], [11, 11, 10, 10, 10], 12608),
        (10, [500, 488, 477, 466, 455], [54, 53, 52, 51, 50], 19573),
    ],
)
def test_cifar100(factor, first, last, total):
    actual = long_tail_counts(500, factor, 100)
    assert (actual[:5].tolist(), actual[-5:].tolist(), actual.sum()) == (first, last, total)
    assert (np.diff(actual) <= 0).all()


def test_fashion_mnist_shrunk():
    actual = long_tail_counts(1200, 100, 10)
    assert actual.tolist() == [1200, 719, 431, 258, 154, 92, 55, 33, 20, 12]
    assert actual.sum() == 2974


LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(4), [60, 50, 40, 55]))


def draw(factor, largest, seed=0):
    return long_tail(LABELS, 4, factor, largest, np.random.default_rng(seed))


def test_factor_one_leaves_everything():
    assert np.array_equal(draw(1.0, 0), np.arange(205))


@pytest.mark.parametrize(("largest", "first"), [(0, 40), (60, 60), (30, 30)])
def test_the_largest_class_is_the_smallest_available_unless_set(largest, first):
    chosen = draw(8.0, largest)
    actual = np.bincount(LABELS[chosen])
    assert actual.tolist() == [first, first // 2, first // 4, int(first / 8)]
    assert np.array_equal(chosen, np.unique(chosen))


def test_factor_one_with_a_largest_class_cuts_all_alike():
    assert np.bincount(LABELS[draw(1.0, 30)]).tolist() == [30] * 4


def test_the_seed_decides_which_samples():
    assert np.array_equal(draw(8.0, 0, 1), draw(8.0, 0, 1))
    assert not np.array_equal(draw(8.0, 0, 1), draw(8.0, 0, 2))


@pytest.mark.parametrize(
    ("factor", "largest", "message"),
    [
        (2.0, 61, "largest-class = 61: needs 61 images of class 0, which has 60"),
        (
            100.0,
            50,
            "imbalance-factor = 100.0: would leave class 3 without an image, as class 0 has 50",
        ),
    ],
)
def test_errors(factor, largest, message):
    with pytest.raises(SettingError, match=f"^{re.escape(message)}$"):
        draw(factor, largest)


def test_a_class_without_samples_cannot_have_a_tail():
    with pytest.raises(
        SettingError, match="would leave class 0 without an image, as class 0 has 0"
    ):
        long_tail(np.zeros(10, np.int64), 2, 10.0, 0, np.random.default_rng(0))
