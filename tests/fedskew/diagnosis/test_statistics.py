"""The statistics of a table of counts, in closed form and against permutations that are really drawn."""

import math

import numpy as np
import pytest

from fedskew.diagnosis.rules import Diagnosis, as_json, diagnose, line
from fedskew.diagnosis.statistics import permutation_p, shift_of, spread, statistics
from fedskew.diagnosis.table import Counts, Moments, site_table


def table_of(counts_KC: Counts) -> Diagnosis:
    """Return the diagnosis of counts whose sites and classes are numbered."""
    sites, classes = counts_KC.shape
    names = [
        [f"{kind}{index}" for index in range(number)]
        for kind, number in (("s", sites), ("c", classes))
    ]
    return diagnose(site_table("counts", *names, counts_KC))


def test_by_hand() -> None:
    numbers = statistics(np.array([[30, 10], [10, 30]]))
    plain = 2 * 0.375 * math.log(0.375 / 0.25) + 2 * 0.125 * math.log(0.125 / 0.25)
    assert numbers.information == pytest.approx(plain - 1 / 160, rel=1e-12)
    assert numbers.information_share == pytest.approx(numbers.information / math.log(2), rel=1e-12)
    assert (numbers.effective_classes, numbers.imbalance, numbers.size_ratio) == (
        pytest.approx(2),
        1,
        1,
    )
    assert statistics(np.array([[5, 0], [0, 5]])).one_class_sites == (0, 1)
    long_tail = statistics(np.array([[80, 10, 10]] * 2))
    expected = math.exp(-0.8 * math.log(0.8) - 0.2 * math.log(0.1))
    assert (
        long_tail.effective_classes == pytest.approx(expected, rel=1e-12)
        and long_tail.imbalance == 8
    )
    assert long_tail.information == 0 and long_tail.information_p == 1


def test_the_permutations_mean_variance_and_p_are_those_of_drawn_ones() -> None:
    generator = np.random.default_rng(0)
    sizes_K, pooled_C = np.array([3, 9, 28]), np.array([20, 12, 5, 3])
    labels_N, sites_N = np.repeat(np.arange(4), pooled_C), np.repeat(np.arange(3), sizes_K)
    drawn = generator.permuted(np.tile(labels_N, (20_000, 1)), axis=1)
    counts_DKC = np.stack(
        [(drawn[:, sites_N == site, None] == np.arange(4)).sum(1) for site in range(3)], axis=1
    )
    expected_KC = sizes_K[:, None] * pooled_C / 40
    chi_square_D = ((counts_DKC - expected_KC) ** 2 / expected_KC).sum((1, 2))
    (v, w), (x, y) = spread(sizes_K, 40.0), spread(pooled_C, 40.0)
    variance = 80 / 37 * (v - w) * (x - y) + 1600 / 39 * w * y
    assert chi_square_D.mean() == pytest.approx(40 * 2 * 3 / 39, rel=0.01)
    assert chi_square_D.var() == pytest.approx(variance, rel=0.05)
    for share in (0.5, 0.9, 0.99):
        counts_KC = counts_DKC[np.argsort(chi_square_D)[int(share * 20_000)]]
        assert permutation_p(counts_KC) == pytest.approx(1 - share, abs=0.03)


def test_iid_tables_are_called_skewed_in_at_most_five_percent() -> None:
    """Of 1,000 in docs/diagnose.md; here 200, of which a test at exactly 5 % would call 20 or more in 1 of 500."""
    generator = np.random.default_rng(7)
    tables = [
        np.maximum(generator.multinomial(600, np.full(40, 1 / 40)).reshape(8, 5), 0)
        for _ in range(200)
    ]
    assert sum(bool(table_of(counts_KC).skews) for counts_KC in tables) < 20


@pytest.mark.parametrize("seed", range(5))
def test_no_order_of_sites_or_classes_changes_anything(seed: int) -> None:
    generator = np.random.default_rng(seed)
    counts_KC = np.maximum(1, generator.negative_binomial(0.3, 0.01, (7, 6)))
    counts_KC[0], counts_KC[1:, 0] = [400, 0, 0, 0, 0, 0], 0
    rows, columns = generator.permutation(7), generator.permutation(6)
    sites, classes = [f"s{row}" for row in range(7)], [f"c{column}" for column in range(6)]
    moments = Moments(("",), generator.normal(size=(7, 1)), generator.uniform(1, 2, (7, 1)))
    first = diagnose(site_table("", sites, classes, counts_KC), moments)
    other = diagnose(
        site_table(
            "",
            [sites[row] for row in rows],
            [classes[column] for column in columns],
            counts_KC[rows][:, columns],
        ),
        Moments(("",), moments.means_KF[rows], moments.deviations_KF[rows]),
    )
    assert as_json(first) == as_json(other) and line(first) == line(other) and len(first.skews) > 1


def test_a_shift_of_moments_by_hand() -> None:
    sizes_K = np.array([100, 100])
    shift = shift_of(
        Moments(("a", "b"), np.array([[0.0, 5], [2, 5]]), np.array([[1.0, 1], [1, 1]])), sizes_K
    )
    assert (shift.feature, shift.mean, shift.deviation) == ("a", 1, 1) and shift.mean_p < 1e-20
    assert shift.deviation_p == 1
    shift = shift_of(Moments(("",), np.array([[0.0], [0]]), np.array([[1.0], [2]])), sizes_K)
    assert shift.deviation == pytest.approx(2) and shift.deviation_p < 1e-6 and shift.mean_p == 1
    alike = shift_of(Moments(("",), np.array([[0.0], [0.1]]), np.array([[1.0], [1.05]])), sizes_K)
    assert alike.mean_p > 0.05 and alike.deviation_p > 0.05


def test_what_so_few_samples_cannot_show_is_said() -> None:
    diagnosis = table_of(np.array([[2, 1, 1], [1, 1, 2], [2, 2, 1]]))
    assert not diagnosis.skews and "too few" in diagnosis.remark
    assert line(diagnosis).startswith("Skew: none that so few samples show.")
    assert "too few" not in table_of(np.full((3, 3), 500)).remark
