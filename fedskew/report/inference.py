"""Means over seeds, and how certain they and differences between two rows are: one interval and one test everywhere."""

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedskew.report.format import in_percent
from fedskew.report.results import SeedResult
from server_app.evaluation import shot_groups
from server_app.record import Spread
from server_app.round_selection import Point, select

Floats = NDArray[np.float64]
RESAMPLES = 1000
LEVEL = 0.05
"""A p-value below it, corrected for what is judged beside it, tells a difference from none."""
MOST_SEEDS_SOUGHT = 1000
"""Beyond so many seeds a number that would decide is not sought any further."""


def measure(measured: SeedResult, selection: str, metric: str) -> float | None:
    """Return a number of one run, in percent where it is a share: the mean over the rounds selected."""
    number = measured.selected(selection, metric)
    return number * 100 if number is not None and in_percent(metric) else number


@dataclass(frozen=True)
class Summary:
    """A number over the seeds."""

    by_seed: Mapping[int, float]

    @property
    def n(self) -> int:
        return len(self.by_seed)

    @property
    def mean(self) -> float:
        return math.fsum(self.by_seed.values()) / self.n

    @property
    def sd(self) -> float | None:
        """Sample standard deviation; None for a single seed."""
        if self.n == 1:
            return None
        return float(np.std(list(self.by_seed.values()), ddof=1))


def summarize_seeds(group: Sequence[SeedResult], selection: str, metric: str) -> Summary | None:
    """Return a number over the seeds that have it; None where none has."""
    numbers = {}
    for measured in group:
        number = measure(measured, selection, metric)
        if number is not None:
            numbers[measured.cell.seed] = number
    return Summary(numbers) if numbers else None


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


Pair = tuple[Strata | None, Strata | None]
"""Test examples of the two numbers of a difference; None where the records do not have them."""


def strata(measured: SeedResult, selection: str, metric: str) -> Strata | None:
    """Return how a run's number comes from its test examples; None where the records do not say that.

    Where all clients are tested on one test set, recall is their mean and the examples count once. An AUROC counts as
    the share of right answers of as many examples as give it its recorded standard error.
    """
    points = select(measured.points, selection)
    samples = measured.run.samples
    if metric == "auroc":
        return auroc_strata(measured, selection)
    if not points or not samples:
        return None
    if metric.startswith("client-accuracy.") and samples["client-test"]:
        return client_strata(measured, points, metric)
    own_models = any("client-accuracy" in point.numbers.spreads for point in points)
    if metric == "local-accuracy.mean" and own_models:
        return None  # recalls are means over the clients' models, which each client weighs by its own classes
    if metric == "client-accuracy.mean":
        metric = "accuracy"  # every client's test set is the same one
    tested_C = np.array(samples.get("tested", samples["test"]))
    weights_C = class_weights(metric, measured, tested_C)
    if weights_C is None:
        return None
    recalls = [np.nan_to_num(point.numbers.recall) for point in points]
    independent_C = np.array(samples.get("independent", tested_C))
    return Strata(np.mean(recalls, axis=0), independent_C, weights_C)


def auroc_strata(measured: SeedResult, selection: str) -> Strata | None:
    """Return the AUROC as a share of so many right answers that it has its recorded standard error."""
    area = measured.selected(selection, "auroc")
    error = measured.selected(selection, "auroc-error")
    if area is None or not error:
        return None
    examples = round(area * (1 - area) / error**2)
    return Strata(np.array([area]), np.array([examples]), np.ones(1))


def client_strata(measured: SeedResult, points: Sequence[Point], metric: str) -> Strata | None:
    """Return a number over the clients' own test sets as a function of each client's accuracy."""
    name, _, part = metric.partition(".")
    samples = measured.run.samples
    sizes_K = np.array(samples.get("client-independent") or samples["client-test"])
    clients = len(sizes_K)
    accuracies = []
    for point in points:
        values = point.numbers.spreads.get(name, Spread()).values
        if len(values) != clients or np.isnan(values).any():
            return None
        accuracies.append(values)
    rates_K = np.mean(accuracies, axis=0)
    lowest = {"mean": clients, "worst": 1, "worst-decile": max(1, clients // 10)}
    if part in lowest:
        counted_K = np.arange(clients) < lowest[part]
        return Strata(rates_K, sizes_K, counted_K / lowest[part], ascending=True)
    of_site = np.eye(clients)[measured.site(metric)]  # the metric names one client
    return Strata(rates_K, sizes_K, of_site)


def class_weights(metric: str, measured: SeedResult, sizes_C: NDArray[np.int64]) -> Floats | None:
    """Return the weight of each class's recall in a number; None where it is not a weighted sum of them."""
    tested_C = sizes_C > 0
    train_KC = np.array(measured.run.samples["train"])
    if metric == "balanced-accuracy":
        return np.asarray(tested_C / tested_C.sum())
    if metric == "accuracy":
        return np.asarray(sizes_C / sizes_C.sum())
    if metric == "local-accuracy.mean":
        tested_KC = train_KC * tested_C
        tested_KC = tested_KC[tested_KC.sum(1) > 0]
        shares_KC = tested_KC / tested_KC.sum(1, keepdims=True)
        return np.asarray(shares_KC.mean(0))
    groups = shot_groups(train_KC.sum(0).tolist(), measured.run.settings.data.long_tailed)
    group = metric.removesuffix("-recall")
    if group in groups:
        chosen_C = np.isin(np.arange(len(sizes_C)), groups[group]) & tested_C
        return np.asarray(chosen_C / chosen_C.sum())
    return None


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
class Comparison:
    """Paired differences between two rows, by seed."""

    by_seed: Mapping[int, float]
    """In percentage points, or in the number's own unit."""
    interval: Interval | None
    """None for one seed whose test examples are not recorded."""
    rounding: float = 0.0
    """Standard deviation that rounding alone gives a seed's difference."""

    @property
    def n(self) -> int:
        return len(self.by_seed)

    @property
    def estimate(self) -> float:
        return float(np.mean(list(self.by_seed.values())))

    @property
    def deviation(self) -> float:
        """The standard deviation over seeds, two at least; no less than what rounding gives."""
        return deviation_of(list(self.by_seed.values()), self.rounding)

    def verdict(self, margin: float = 0.0) -> str:
        """Return above, below or unclear: on which side of the margin the whole interval lies.

        One seed is always unclear: its interval says nothing about other seeds.
        """
        return verdict(self.interval, self.n, margin)


def verdict(interval: Interval | None, seeds: int, margin: float) -> str:
    """Return above, below or unclear; see `Comparison.verdict`."""
    if interval is None or seeds < 2:
        return "unclear"
    if interval.low > margin:
        return "above"
    return "below" if interval.high < margin else "unclear"


def p_of(interval: Interval | None) -> float | None:
    """Return an interval's p-value; None where there is no interval or one seed."""
    return None if interval is None else interval.p


def is_significant(p_holm: float | None) -> bool:
    """Return whether a corrected p-value tells; None, of one seed, does not."""
    return p_holm is not None and p_holm < LEVEL


def p_of_several(
    comparisons: Sequence[Comparison], margins: Sequence[float], among: int
) -> float | None:
    """Return the p-value of the claim that several differences exceed their margins; None where one has none.

    It is the largest of theirs, as such a claim is true only if each of its parts is (an intersection-union test,
    Berger 1982). Of a claim about `among` of them it is the largest of the `among` that speak most for the claim.
    """
    p_values = []
    against = []  # one-sided: small where the difference is clearly above its margin
    for comparison, margin in zip(comparisons, margins, strict=True):
        p = p_of(comparison.interval)
        if p is None:
            return None
        p_values.append(p)
        against.append(p / 2 if comparison.estimate > margin else 1 - p / 2)
    most_for_it = sorted(range(len(p_values)), key=lambda number: against[number])
    return max(p_values[number] for number in most_for_it[:among])


def compare(
    differences: Mapping[int, float],
    pairs: Sequence[Pair],
    names: tuple[str, str],
    margin: float = 0.0,
    rounding: float = 0.0,
) -> Comparison:
    """Return the comparison of two rows, with the interval of `interval_of`.

    Args:
        differences: the first row's number minus the second row's, by seed.
        pairs: what the two numbers are made of, in the order of the seeds.
        names: what is compared with what. They seed the draws, so that the same comparison has the same interval
            wherever it stands in a report; exchanged names give the mirrored interval.
        margin: the difference that the p-value is about.
        rounding: standard deviation that rounding alone gives a difference, as of rounds, which are whole: two seeds
            with the same difference do not make it certain.
    """
    sign = 1 if names[0] <= names[1] else -1
    values = [sign * value for value in differences.values()]
    terms = list(zip(*pairs, strict=True))
    interval = interval_of(
        values, terms[::sign], sorted(names), margin=sign * margin, rounding=rounding
    )
    if interval is not None and sign < 0:
        interval = replace(interval, low=-interval.high, high=-interval.low)
    return Comparison(differences, interval, rounding)


def interval_of(
    values: Sequence[float],
    terms: Sequence[Sequence[Strata | None]],
    names: Sequence[str],
    margin: float = 0.0,
    rounding: float = 0.0,
) -> Interval | None:
    """Return the interval of a mean over seeds: the wider of Student's and the hierarchical bootstrap's.

    Student's interval is about seeds. With three seeds a bootstrap of seeds is too narrow, and Student's says nothing
    of a small test set: the wider one covers both. A bootstrap draws seeds with replacement and, within a seed, test
    examples (subjects, where these are tested) class by class; those of a difference's two rows are drawn unpaired,
    though both saw the same ones: that is conservative. Without counts of test examples it draws seeds alone, and a
    single seed has no interval.

    Args:
        values: by seed, the number or the difference.
        terms: what a number is made of, by seed; of a difference both, the second of which is subtracted.
        names: seed the draws.
        margin, rounding: as in `compare`.
    """
    draws = np.random.default_rng(zlib.crc32("\n".join(names).encode()))
    seeds = len(values)
    chosen_BS = draws.integers(seeds, size=(RESAMPLES, seeds))
    known = [[run for run in term if run is not None] for term in terms]
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
    low, high = np.percentile(drawn_BS.mean(1), [2.5, 97.5])
    ends = [float(low), float(high)]
    p = None
    if seeds > 1:
        student_low, student_high, _ = student(values, rounding)
        ends += [student_low, student_high]
        # The interval is about the mean, the p-value about what exceeds the margin.
        _, _, p = student([value - margin for value in values], rounding)
    return Interval(min(ends), max(ends), p, what)


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


def seeds_to_decide(comparison: Comparison, margin: float) -> int | None:
    """Return how many seeds would tell the mean difference from a margin, if it and its spread stay as they are.

    That is the smallest n, above today's, with t(n - 1) sd / sqrt(n) < |mean - margin|. Where the bootstrap's interval
    is the wider one, its half width is taken to shrink with sqrt(n) as well. None for a single seed, which has no
    spread, and for a mean at the margin, which no number of seeds would tell from it.
    """
    from scipy.stats import t

    interval = comparison.interval
    distance = abs(comparison.estimate - margin)
    n = comparison.n
    if n < 2 or interval is None or distance == 0:
        return None
    sd = comparison.deviation
    above = comparison.estimate > margin
    half = comparison.estimate - interval.low if above else interval.high - comparison.estimate
    is_wider = half > float(t.ppf(0.975, n - 1)) * sd / math.sqrt(n) + 1e-9
    for seeds in range(n + 1, MOST_SEEDS_SOUGHT):
        student_half = float(t.ppf(0.975, seeds - 1)) * sd / math.sqrt(seeds)
        bootstrap_half = half * math.sqrt(n / seeds) if is_wider else 0.0
        if max(student_half, bootstrap_half) < distance:
            return seeds
    return MOST_SEEDS_SOUGHT


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Return the p-values corrected for how many there are (Holm 1979); None stays None and counts nowhere."""
    available = [(p, index) for index, p in enumerate(p_values) if p is not None]
    corrected: list[float | None] = list(p_values)
    remaining = len(available)
    highest = 0.0
    for p, index in sorted(available):
        # A corrected value is never below that of a smaller p-value.
        highest = max(highest, min(1.0, remaining * p))
        corrected[index] = highest
        remaining -= 1
    return corrected
