"""Means over seeds, and how certain they and differences between two rows are: one interval and one test everywhere.

A number of one run is made of shares of right answers in groups of test examples, which the interval draws anew.
"""

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
RESAMPLES = 1000
LEVEL = 0.05
"""A p-value below it, corrected for what is judged beside it, tells a difference from none."""
MOST_SEEDS_SOUGHT = 1000
"""Beyond so many seeds a number that would decide is not sought any further."""


class Strata(NamedTuple):
    """A number of one run as a weighted sum of shares of right answers in groups of test examples.

    The groups are the classes, or the clients with test sets of their own. Examples of one subject are alike, so that
    sizes count independent examples.
    """

    rates_G: Floats
    sizes_G: NDArray[np.int64]
    weights_G: Floats
    ascending: bool = False
    """Whether the weights are those of the lowest share, the second lowest and so on."""


def resample(
    runs: Sequence[Strata],
    chosen_BS: NDArray[np.int64],
    draws: np.random.Generator,
) -> Floats:
    """Return (B, S): the number of each chosen run in percent, with its test examples drawn anew in every group.

    n examples drawn with replacement out of n, of which a share is right, are right binomially often.
    """
    sizes_BSG = np.stack([run.sizes_G for run in runs])[chosen_BS]
    rates_RG = np.stack([run.rates_G for run in runs])
    rates_BSG = np.clip(rates_RG[chosen_BS], 0.0, 1.0)  # rounding can lead outside
    right_BSG = draws.binomial(sizes_BSG, rates_BSG)
    drawn_BSG = right_BSG / np.maximum(sizes_BSG, 1)  # a group can be empty
    if runs[0].ascending:
        drawn_BSG = np.sort(drawn_BSG)
    weights_RG = np.stack([run.weights_G for run in runs])
    return np.asarray(100 * (drawn_BSG * weights_RG[chosen_BS]).sum(-1))


@dataclass(frozen=True)
class Interval:
    """A 95 % interval of a mean over seeds, and the p-value of its test against a margin."""

    low: float
    high: float
    p: float | None
    """Two-sided, of the paired t-test that the mean is the margin; None for one seed."""
    resampled: str
    """What the bootstrap draws."""


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds: of a number, or of the difference between two rows."""

    by_seed: Mapping[int, float]
    """In percent or percentage points, or in the number's own unit."""
    interval: Interval | None = None
    """None for one seed whose test examples are not recorded."""
    rounding: float = 0.0
    """Standard deviation that rounding alone gives a seed's number."""
    margin: float = 0.0
    """What a difference is to exceed."""

    @property
    def n(self) -> int:
        return len(self.by_seed)

    @property
    def mean(self) -> float:
        """NaN without seeds."""
        return math.fsum(self.by_seed.values()) / self.n if self.n else math.nan

    @property
    def sd(self) -> float | None:
        """The sample standard deviation, no less than what rounding gives; None for a single seed."""
        return deviation_of([*self.by_seed.values()], self.rounding) if self.n > 1 else None

    @property
    def ends(self) -> tuple[float, float]:
        """The ends of the 95 % interval; NaN without one."""
        return (self.interval.low, self.interval.high) if self.interval else (math.nan, math.nan)

    @property
    def p(self) -> float | None:
        """The interval's p-value; None where there is no interval or one seed."""
        return self.interval.p if self.interval else None

    @property
    def side(self) -> str:
        """On which side of the margin the whole interval lies: above, below or unclear.

        One seed is always unclear: its interval says nothing about other seeds.
        """
        low, high = self.ends
        if self.n > 1 and low > self.margin:
            return "above"
        return "below" if self.n > 1 and high < self.margin else "unclear"

    @property
    def is_refuted(self) -> bool:
        """Whether no part of the interval lies above the margin, over several seeds.

        A difference that is the margin itself in every seed is refuted as well, whatever the rounding of rounds adds.
        """
        if self.n < 2 or self.interval is None:
            return False
        is_tie = self.rounding > 0 and set(self.by_seed.values()) == {self.margin}
        return self.interval.high <= self.margin or is_tie


def is_significant(p_holm: float | None) -> bool:
    """Return whether a corrected p-value tells; None, of one seed, does not."""
    return p_holm is not None and p_holm < LEVEL


def p_of_several(estimates: Sequence[Estimate], among: int) -> float | None:
    """Return the p-value of the claim that several differences exceed their margins; None where one has none.

    It is the largest of theirs, as such a claim is true only if each of its parts is (an intersection-union test,
    Berger 1982). Of a claim about `among` of them it is the largest of the `among` that speak most for the claim, times
    how many could be that one by chance: those that are left, and itself (Benjamini and Heller 2008).
    """
    speaking = []  # first how much against: one-sided, small where the difference is clearly above its margin
    for one in estimates:
        if one.p is None:
            return None
        speaking.append((one.p / 2 if one.mean > one.margin else 1 - one.p / 2, one.p))
    largest = max(p for _, p in sorted(speaking)[:among])
    return min(1.0, (len(speaking) - among + 1) * largest)


def with_interval(
    by_seed: Mapping[int, float],
    terms: Sequence[Sequence[Strata | None]],
    names: Sequence[str],
    margin: float = 0.0,
    rounding: float = 0.0,
) -> Estimate:
    """Return a mean over seeds with its interval: the wider of Student's and the hierarchical bootstrap's.

    Student's interval is about seeds. With three seeds a bootstrap of seeds is too narrow, and Student's says nothing
    of a small test set: the wider one covers both. A bootstrap draws seeds with replacement and, within a seed, test
    examples (subjects, where these are tested) class by class; those of a difference's two rows are drawn unpaired,
    though both saw the same ones: that is conservative. Without counts of test examples it draws seeds alone, and a
    single seed has no interval.

    Args:
        by_seed: the number, or the difference.
        terms: what a seed's number is made of; of a difference both, the second of which is subtracted.
        names: of what it is about, or what is compared with what. They seed the draws, so that the same comparison has
            the same interval wherever it stands in a report; exchanged names give the mirrored interval.
        margin: the difference that the p-value is about.
        rounding: standard deviation that rounding alone gives a difference, as of rounds, which are whole: two seeds
            with the same difference do not make it certain.
    """
    values = [*by_seed.values()]
    if len(terms[0]) == 2 and names[0] > names[1]:
        negative = [-value for value in values]
        exchanged = [pair[::-1] for pair in terms]
        interval = interval_of(negative, exchanged, names[::-1], -margin, rounding)
        if interval is not None:
            interval = replace(interval, low=-interval.high, high=-interval.low)
    else:
        interval = interval_of(values, terms, names, margin, rounding)
    return Estimate(by_seed, interval, rounding, margin)


def interval_of(
    values: Sequence[float],
    terms: Sequence[Sequence[Strata | None]],
    names: Sequence[str],
    margin: float,
    rounding: float,
) -> Interval | None:
    """Return the interval of `with_interval` for names in this order; None for one seed without test examples."""
    seeds = len(values)
    draws = np.random.default_rng(zlib.crc32("\n".join(names).encode()))
    chosen_BS = draws.integers(seeds, size=(RESAMPLES, seeds))
    known = [[run for run in term if run is not None] for term in zip(*terms, strict=True)]
    if all(len(term) == seeds for term in known):
        what = "seeds and test examples"
        drawn_BS = resample(known[0], chosen_BS, draws)
        for subtracted in known[1:]:
            drawn_BS = drawn_BS - resample(subtracted, chosen_BS, draws)
    elif seeds == 1:
        return None
    else:
        what = "seeds"
        drawn_BS = np.array(values)[chosen_BS]
    low, high = map(float, np.percentile(drawn_BS.mean(1), [2.5, 97.5]))
    p = None
    if seeds > 1:
        # The interval is about the mean, the p-value about what exceeds the margin.
        student_low, student_high, p = student([value - margin for value in values], rounding)
        low, high = min(low, student_low + margin), max(high, student_high + margin)
    return Interval(low, high, p, what)


def deviation_of(values: Sequence[float], rounding: float) -> float:
    """Return the standard deviation of two or more numbers, no less than what rounding alone gives them."""
    return max(rounding, float(np.std(values, ddof=1)))


def student(values: Sequence[float], rounding: float = 0.0) -> tuple[float, float, float]:
    """Return the ends of Student's 95 % interval of the mean of two or more numbers, and its p-value.

    `rounding` is the standard deviation that they have at least.
    """
    from scipy.stats import t

    n = len(values)
    mean = float(np.mean(values))
    error = deviation_of(values, rounding) / math.sqrt(n)
    half = float(t.ppf(0.975, n - 1)) * error
    if error == 0:  # the same number in every seed: no t exists
        p = 1.0 if mean == 0 else 0.0
    else:
        p = 2 * float(t.sf(abs(mean) / error, n - 1))
    return mean - half, mean + half, p


def seeds_to_decide(estimate: Estimate) -> int | None:
    """Return how many seeds would tell the mean difference from its margin, if it and its spread stay as they are.

    That is the smallest n, above today's, with t(n - 1) sd / sqrt(n) < |mean - margin|. Where the bootstrap's interval
    is the wider one, its half width is taken to shrink with sqrt(n) as well. None for a single seed, which has no
    spread, and for a mean at the margin, which no number of seeds would tell from it.
    """
    from scipy.stats import t

    low, high = estimate.ends
    distance = abs(estimate.mean - estimate.margin)
    n, sd = estimate.n, estimate.sd
    if sd is None or estimate.interval is None or distance == 0:
        return None
    half = estimate.mean - low if estimate.mean > estimate.margin else high - estimate.mean
    seeds_S = np.arange(n, MOST_SEEDS_SOUGHT)
    half_S = t.ppf(0.975, seeds_S - 1) * sd / np.sqrt(seeds_S)
    if half > half_S[0] + 1e-9:
        half_S = np.maximum(half_S, half * np.sqrt(n / seeds_S))
    deciding_S = seeds_S[1:][half_S[1:] < distance]
    return int(deciding_S[0]) if len(deciding_S) else MOST_SEEDS_SOUGHT


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Return the p-values corrected for how many there are (Holm 1979); None stays None and counts nowhere."""
    known = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = list(p_values)
    highest = 0.0
    for smaller, (p, index) in enumerate(known):
        # A corrected value is never below that of a smaller p-value.
        highest = max(highest, min(1.0, (len(known) - smaller) * p))
        corrected[index] = highest
    return corrected
