"""Shapley values against their definition, their axioms, and their intervals."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from fedskew.worth.shapley import (
    MOST_EXACT,
    Coalition,
    Integers,
    Outcomes,
    all_coalitions,
    estimate,
    exact,
    sampled,
)


def game(sites: int, tests: int = 5, seed: int = 0) -> dict[Coalition, Integers]:
    """Return an arbitrary outcome of every coalition on every test sample."""
    draws = np.random.default_rng(seed)
    return {
        frozenset(members): draws.integers(0, 3, tests)
        for size in range(sites + 1)
        for members in itertools.combinations(range(sites), size)
    }


def outcomes_of(table: dict[Coalition, Integers]) -> Outcomes:
    return lambda coalitions: [table[coalition] for coalition in coalitions]


def by_definition(table: dict[Coalition, Integers], sites: int) -> list[list[Fraction]]:
    """Return phi of each site on each test sample: the mean gain over all orders of joining."""
    tests = len(table[frozenset()])
    orders = list(itertools.permutations(range(sites)))
    phi = [[Fraction(0)] * tests for _ in range(sites)]
    for order in orders:
        for place, site in enumerate(order):
            before, after = frozenset(order[:place]), frozenset(order[: place + 1])
            for t in range(tests):
                gain = int(table[after][t]) - int(table[before][t])
                phi[site][t] += Fraction(gain, len(orders))
    return phi


@pytest.mark.parametrize("sites", [1, 2, 3, 4, 5])
def test_they_are_the_mean_gain_over_all_orders_exactly(sites: int) -> None:
    table = game(sites)
    found = exact(sites, outcomes_of(table))
    ours = [[Fraction(int(value), found.scale) for value in row] for row in found.scaled_KT]
    assert ours == by_definition(table, sites)


def test_they_sum_to_what_all_sites_gain_together() -> None:
    table = game(7, tests=40)
    found = exact(7, outcomes_of(table))
    gained_T = table[frozenset(range(7))] - table[frozenset()]
    assert (found.scaled_KT.sum(0) == found.scale * gained_T).all()


def test_equal_sites_have_equal_values_and_one_that_changes_nothing_has_none() -> None:
    sizes = (3, 3, 0, 5)
    table = {
        coalition: np.array([round(10 * math.sqrt(sum(sizes[site] for site in coalition)))])
        for coalition in all_coalitions(4)
    }
    values = exact(4, outcomes_of(table)).scaled_KT[:, 0]
    assert values[0] == values[1] > 0 and values[2] == 0


def test_coalitions_come_once_each_and_differ_in_one_site() -> None:
    coalitions = list(all_coalitions(6))
    assert len(coalitions) == len(set(coalitions)) == 64 and coalitions[0] == frozenset()
    steps = [len(one ^ other) for one, other in itertools.pairwise(coalitions)]
    assert set(steps) == {1}


def test_too_many_sites_for_all_coalitions_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 12 sites"):
        exact(MOST_EXACT + 1, lambda coalitions: [])


def test_random_orders_come_near_the_exact_values_as_their_errors_say() -> None:
    table = game(6, tests=30, seed=3)
    weights_T = np.full(30, 1 / 30)
    truth_K = exact(6, outcomes_of(table)).shares_KT @ weights_T
    inside = []
    for seed in range(40):
        found = sampled(6, outcomes_of(table), 60, weights_T, np.random.default_rng(seed))
        guess_K = found.shares_KT @ weights_T
        everything = (table[frozenset(range(6))] - table[frozenset()]) @ weights_T
        assert guess_K.sum() == pytest.approx(everything, abs=1e-12)
        inside += list(np.abs(guess_K - truth_K) < 2 * found.errors_K)
    assert 0.9 < np.mean(inside) < 0.99


def test_a_single_pair_of_orders_has_no_error_and_is_refused() -> None:
    table, weights_T = game(3), np.full(5, 0.2)
    with pytest.raises(ValueError, match="at least 2"):
        sampled(3, outcomes_of(table), 1, weights_T, np.random.default_rng(0))
    assert len(sampled(3, outcomes_of(table), 2, weights_T, np.random.default_rng(0)).errors_K) == 3


class TestIntervals:
    def test_of_a_plain_mean_is_the_textbook_s(self) -> None:
        shares_T = np.random.default_rng(0).normal(size=200)
        one_class, own = np.zeros(200, np.int64), np.arange(200)
        found = estimate(shares_T, np.full(200, 1 / 200), one_class, own)
        error = shares_T.std() / math.sqrt(200)
        assert found.value == pytest.approx(shares_T.mean())
        assert found.high - found.value == pytest.approx(1.96 * error)
        assert found.value - found.low == pytest.approx(1.96 * error)

    def test_of_balanced_accuracy_counts_the_spread_within_each_class(self) -> None:
        shares_T = np.array([0.0, 1.0, 1.0, 1.0, 0.0, 1.0])
        classes_T = np.array([0, 0, 0, 0, 1, 1])
        weights_T = np.array([1 / 8] * 4 + [1 / 4] * 2)
        found = estimate(shares_T, weights_T, classes_T, np.arange(6))
        assert found.value == pytest.approx((3 / 4 + 1 / 2) / 2)
        error = math.sqrt((3 / 16 / 4 + 1 / 4 / 2) / 4)
        assert found.high - found.value == pytest.approx(1.96 * error)

    def test_is_wider_where_samples_are_of_the_same_subjects(self) -> None:
        shares_T = np.repeat([0.0, 1.0, 1.0, 0.0], 5)
        one_class, weights_T = np.zeros(20, np.int64), np.full(20, 1 / 20)
        alone = estimate(shares_T, weights_T, one_class, np.arange(20))
        shared = estimate(shares_T, weights_T, one_class, np.repeat(np.arange(4), 5))
        ratio = (shared.high - shared.value) / (alone.high - alone.value)
        assert ratio == pytest.approx(math.sqrt(5))

    def test_has_the_error_of_sampled_orders_added_as_a_variance(self) -> None:
        shares_T = np.array([0.0, 1.0] * 8)
        about = np.full(16, 1 / 16), np.zeros(16, np.int64), np.arange(16)
        error = 0.5 / math.sqrt(16)
        found = estimate(shares_T, *about, error=2 * error)
        assert found.high - found.value == pytest.approx(1.96 * error * math.sqrt(5))
