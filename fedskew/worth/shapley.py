"""Shapley values of sites, from how many test samples the model of each coalition gets right.

The value of a coalition is a mean over test samples, so a site's Shapley value is one too. It is computed sample by
sample: the test samples then give its standard error, and whole numbers keep it exact.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Coalition = frozenset[int]
Outcomes = Callable[[list[Coalition]], list[Integers]]
"""Returns for each coalition (T,) how right its model is on each test sample, in whole units, such as 0 or 1."""

MOST_EXACT = 12
"""Up to this number of sites all coalitions are evaluated: 4,096."""
TOGETHER = 32
"""Coalitions per batch: their heads are applied to the test samples in one matrix product."""


@dataclass(frozen=True)
class Contributions:
    """What each site contributes to the result on each test sample."""

    scaled_KT: Integers | Floats
    """phi of each site on each test sample, times `scale`."""
    scale: int
    errors_K: Floats
    """Standard error of the mean over permutations, in units of the outcomes; 0 if all coalitions were evaluated."""

    @property
    def shares_KT(self) -> Floats:
        """The contributions in units of the outcomes."""
        return self.scaled_KT / self.scale


def exact(sites: int, outcomes: Outcomes) -> Contributions:
    """Return the Shapley values over all 2^K coalitions.

        phi_i = sum over S without i of |S|! (K - |S| - 1)! / K! (v(S + i) - v(S))

    All factors are multiples of 1 / scale, so that equal sites get equal values, a site that changes nothing gets 0,
    and the values sum to v(all) - v(none), without rounding.

    Raises:
        ValueError: more than MOST_EXACT sites.
    """
    if sites > MOST_EXACT:
        raise ValueError(f"{2**sites} coalitions of {sites} sites, at most {MOST_EXACT} sites")
    # |S|! (K - |S| - 1)! / K! is 1 / (K * comb(K - 1, |S|)): all are whole multiples of 1 / (K * lcm).
    ways = [math.comb(sites - 1, size) for size in range(sites)]
    common = math.lcm(*ways)
    factors = [common // way for way in ways]
    total_KT: Integers | None = None
    for coalition, outcome_T in evaluated(all_coalitions(sites), outcomes):
        if total_KT is None:
            total_KT = np.zeros((sites, len(outcome_T)), np.int64)
        for site in range(sites):
            if site in coalition:
                total_KT[site] += factors[len(coalition) - 1] * outcome_T
            else:
                total_KT[site] -= factors[len(coalition)] * outcome_T
    assert total_KT is not None, "the empty coalition is always there"
    return Contributions(total_KT, sites * common, np.zeros(sites))


def all_coalitions(sites: int) -> Iterator[Coalition]:
    """Yield all coalitions, each different in one site from the one before (Gray code)."""
    coalition: set[int] = set()
    yield frozenset()
    for number in range(1, 2**sites):
        lowest_bit = (number & -number).bit_length() - 1
        coalition ^= {lowest_bit}
        yield frozenset(coalition)


def sampled(
    sites: int,
    outcomes: Outcomes,
    pairs: int,
    weights_T: Floats,
    draws: np.random.Generator,
) -> Contributions:
    """Return estimated Shapley values, from sites that join in random order.

    Orders come in pairs, one the reverse of the other (antithetic sampling: Mitchell et al., JMLR 2022), and their mean
    counts as one draw. `weights_T` are the weights of the test samples in a value; the standard error is that of the
    mean over the pairs of a site's contribution to it.

    Raises:
        ValueError: fewer than two pairs, which give no standard error.
    """
    if pairs < 2:
        raise ValueError(f"{pairs} pairs of permutations, at least 2")
    total_KT: Integers | None = None
    values_PK = np.zeros((pairs, sites))
    for pair in range(pairs):
        order = [int(site) for site in draws.permutation(sites)]
        gains_KT = gains(order, outcomes) + gains(order[::-1], outcomes)
        values_PK[pair] = gains_KT @ weights_T / 2
        total_KT = gains_KT if total_KT is None else total_KT + gains_KT
    assert total_KT is not None, "there are at least two pairs"
    errors_K = values_PK.std(axis=0, ddof=1) / math.sqrt(pairs)
    return Contributions(total_KT, 2 * pairs, errors_K)


def gains(order: list[int], outcomes: Outcomes) -> Integers:
    """Return (K, T): what each site adds when the sites join in this order."""
    sites = len(order)
    growing = [frozenset(order[:size]) for size in range(sites + 1)]
    outcomes_by_size = [outcome_T for _, outcome_T in evaluated(iter(growing), outcomes)]
    samples = len(outcomes_by_size[0])
    gains_KT = np.zeros((sites, samples), np.int64)
    for size, site in enumerate(order):
        before_T = outcomes_by_size[size]
        after_T = outcomes_by_size[size + 1]
        gains_KT[site] = after_T - before_T
    return gains_KT


def evaluated(
    coalitions: Iterator[Coalition], outcomes: Outcomes
) -> Iterator[tuple[Coalition, Integers]]:
    """Yield each coalition with its outcome; `outcomes` gets TOGETHER of them at a time."""
    batch: list[Coalition] = []
    for coalition in coalitions:
        batch.append(coalition)
        if len(batch) == TOGETHER:
            yield from zip(batch, outcomes(batch), strict=True)
            batch = []
    if batch:
        yield from zip(batch, outcomes(batch), strict=True)


@dataclass(frozen=True)
class Estimate:
    """A mean over test samples, with its 95 % interval."""

    value: float
    low: float
    high: float

    def as_json(self) -> Mapping[str, float]:
        """Return the three numbers by name."""
        return {"value": self.value, "low": self.low, "high": self.high}


def estimate(
    shares_T: Floats,
    weights_T: Floats,
    strata_T: Integers,
    subjects_T: Integers,
    error: float = 0.0,
) -> Estimate:
    """Return the weighted sum of a number of each test sample, with a 95 % interval.

    The interval is a normal one, for other test samples of the same classes. Samples of one subject count as one draw.
    `error` is a further standard error, as that of sampled permutations.

    Args:
        shares_T: the number of each sample.
        weights_T: the weight of each, which sum to 1.
        strata_T: the class of each: the shares of the classes are given, not drawn.
        subjects_T: whose the samples are, as whole numbers from 0.
        error: added as a variance.
    """
    value = float(shares_T @ weights_T)
    sizes_C = np.bincount(strata_T)
    means_C = np.bincount(strata_T, shares_T) / np.maximum(sizes_C, 1)
    residuals_T = weights_T * (shares_T - means_C[strata_T])
    by_subject = np.bincount(subjects_T, residuals_T)
    reach = 1.96 * math.sqrt(float((by_subject**2).sum()) + error**2)
    return Estimate(value, value - reach, value + reach)
