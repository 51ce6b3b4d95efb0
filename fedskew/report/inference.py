"""Means over seeds, and how certain a difference between two rows is: one interval and one test everywhere."""

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
    numbers = []
    for point in select(measured.points, selection):
        number = measured.number(point, metric)
        if number is None:  # the round diverged, or does not have it
            return None
        numbers.append(number)
    if not numbers:
        return None
    scale = 100 if in_percent(metric) else 1
    return math.fsum(numbers) / len(numbers) * scale


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


@dataclass(frozen=True)
class Strata:
    """A number of one run as a function of shares of right answers in groups of test examples.

    Examples of one subject are alike, so that sizes count independent examples.

    The groups are the classes, with weights, or the clients with test sets of their own, of which the lowest count.
    """

    rates_G: Floats
    sizes_G: NDArray[np.int64]
    weights_G: Floats | None
    lowest: int = 0


def strata(measured: SeedResult, selection: str, metric: str) -> Strata | None:
    """Return how a run's number comes from its test examples; None where the records do not say that.

    Where all clients are tested on one test set, recall is their mean and the examples count once.
    """
    points = select(measured.points, selection)
    samples = measured.run.samples
    if not points or not samples:
        return None
    if metric.startswith("client-accuracy.") and samples["client-test"]:
        return client_strata(measured, points, metric)
    own_models = any("client-accuracy" in point.numbers.spreads for point in points)
    if metric == "local-accuracy.mean" and own_models:
        return None  # recalls are means over the clients' models, which each client weighs by its own classes
    if metric == "client-accuracy.mean":
        metric = "accuracy"  # every client's test set is the same one
    sizes_C = np.array(tested_classes(measured))
    weights_C = class_weights(metric, measured, sizes_C)
    if weights_C is None:
        return None
    recalls = [np.nan_to_num(point.numbers.recall) for point in points]
    independent_C = np.array(samples.get("independent", sizes_C))
    return Strata(np.mean(recalls, axis=0), independent_C, weights_C)


def client_strata(measured: SeedResult, points: Sequence[Point], metric: str) -> Strata | None:
    """Return a number over the clients' own test sets as a function of each client's accuracy."""
    name, _, part = metric.partition(".")
    sizes_K = np.array(independent_clients(measured))
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
        return Strata(rates_K, sizes_K, None, lowest[part])
    of_site = np.eye(clients)[measured.site(metric)]  # the metric names one client
    return Strata(rates_K, sizes_K, of_site)


def tested_classes(measured: SeedResult) -> Sequence[int]:
    """Return what was tested of each class: subjects, where these are tested as one, else samples.

    Runs of earlier versions have written samples down even then; their confusion matrix has the subjects.
    """
    samples = measured.run.samples
    confusion = measured.points[-1].numbers.confusion
    if "tested" not in samples and confusion is not None:
        return [sum(row) for row in confusion]
    return list(samples.get("tested", samples["test"]))


def independent_clients(measured: SeedResult) -> Sequence[int]:
    """Return how many independent samples each client's test set is worth; at most as many as there are subjects.

    Runs of earlier versions have written down samples: where subjects were tested as one, every client gets their
    share.
    """
    samples = measured.run.samples
    recorded = samples.get("client-independent")
    if recorded:
        return list(recorded)
    sizes = list(samples["client-test"])
    total = sum(sizes)
    confusion = measured.points[-1].numbers.confusion
    tested = total if confusion is None else sum(map(sum, confusion))
    if total == 0 or tested == total:
        return sizes
    shares = []
    for size in sizes:
        share = max(1, round(size * tested / total)) if size else 0
        shares.append(share)
    return shares


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
    sizes_RG = np.stack([run.sizes_G for run in runs])
    rates_RG = np.stack([run.rates_G for run in runs])
    sizes_BSG = sizes_RG[chosen_BS]
    rates_BSG = np.clip(rates_RG[chosen_BS], 0.0, 1.0)  # rounding can lead outside
    right_BSG = draws.binomial(sizes_BSG, rates_BSG)
    drawn_BSG = right_BSG / np.maximum(sizes_BSG, 1)  # a group can be empty
    if runs[0].weights_G is None:
        lowest = runs[0].lowest
        lowest_BSG = np.sort(drawn_BSG)[..., :lowest]
        numbers_BS = lowest_BSG.mean(-1)
    else:
        weights_RG = np.stack([run.weights_G for run in runs if run.weights_G is not None])
        weighted_BSG = drawn_BSG * weights_RG[chosen_BS]
        numbers_BS = weighted_BSG.sum(-1)
    return np.asarray(100 * numbers_BS)


Pair = tuple[Strata | None, Strata | None]
"""Test examples of the two numbers of a difference; None where the records do not have them."""


@dataclass(frozen=True)
class Interval:
    """The 95 % interval of a mean difference, and the test that goes with it."""

    low: float
    high: float
    p: float | None
    """Two-sided, of the paired t-test that the difference is the margin; None for one seed."""
    resampled: str
    """The bootstrap's units: seeds and test examples, or seeds."""


@dataclass(frozen=True)
class Comparison:
    """One row's number minus another row's, paired by seed."""

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


def seed_of_names(*names: str) -> int:
    """Return the seed of draws about what has these names, so that they are the same wherever it stands."""
    return zlib.crc32("\n".join(names).encode())


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


def verdict(interval: Interval | None, seeds: int, margin: float) -> str:
    """Return above, below or unclear; see `Comparison.verdict`."""
    if interval is None or seeds < 2:
        return "unclear"
    if interval.low > margin:
        return "above"
    return "below" if interval.high < margin else "unclear"


def compare(
    differences: Mapping[int, float],
    pairs: Sequence[Pair],
    names: tuple[str, str],
    margin: float = 0.0,
    rounding: float = 0.0,
) -> Comparison:
    """Return the comparison of two rows, the interval being the wider of Student's and the hierarchical bootstrap's.

    Student's interval is about seeds. With three seeds a bootstrap of seeds is too narrow, and Student's says nothing
    of a small test set: the wider one covers both.

    Args:
        differences: the first row's number minus the second row's, by seed.
        pairs: what the two numbers are made of, in the order of the seeds.
        names: what is compared with what. They seed the draws, so that the same comparison has the same interval
            wherever it stands in a report; exchanged names give the mirrored interval.
        margin: the difference that the p-value is about.
        rounding: standard deviation that rounding alone gives a difference, as of rounds, which are whole: two seeds
            with the same difference do not make it certain.
    """
    first, second = names
    mirrored = first > second
    sign = -1.0 if mirrored else 1.0
    values = list(differences.values())
    seed = seed_of_names(*sorted(names))

    ordered: Sequence[Pair] = pairs
    if mirrored:
        ordered = [(second_run, first_run) for first_run, second_run in pairs]
    drawn = bootstrap(sign * np.array(values), ordered, seed)
    ends: list[float] = []
    p = None
    if drawn is not None:
        ends += [sign * drawn.low, sign * drawn.high]
    if len(values) > 1:
        low, high, _ = student(values, rounding)
        ends += [low, high]
        # The interval is about the difference, the p-value about what exceeds the margin.
        _, _, p = student([value - margin for value in values], rounding)
    if not ends:
        return Comparison(differences, None)
    units = "seeds" if drawn is None else drawn.what
    return Comparison(differences, Interval(min(ends), max(ends), p, units), rounding)


@dataclass(frozen=True)
class Drawn:
    """A bootstrap's 2.5 and 97.5 percentiles, and what it drew: seeds, or seeds and test examples."""

    low: float
    high: float
    what: str


def bootstrap(differences_S: Floats, pairs: Sequence[Pair], seed: int) -> Drawn | None:
    """Return the bootstrap interval of a mean difference over seeds.

    Seeds are drawn with replacement, the same for both rows; within a seed, test examples (subjects, where these are
    tested) are drawn class by class, unpaired between the rows, though both saw the same ones: that is conservative.
    Without counts of test examples only seeds are drawn, and a single seed then has no interval.

    Args:
        differences_S: by seed.
        pairs: the two runs of every difference.
        seed: of the resampling.
    """
    draws = np.random.default_rng(seed)
    seeds = len(differences_S)
    chosen_BS = draws.integers(seeds, size=(RESAMPLES, seeds))
    first_runs = [first for first, _ in pairs if first is not None]
    second_runs = [second for _, second in pairs if second is not None]
    if len(first_runs) == len(second_runs) == seeds:
        what = "seeds and test examples"
        # The order of the two draws is part of the numbers in every report.
        first_BS = resample(first_runs, chosen_BS, draws)
        second_BS = resample(second_runs, chosen_BS, draws)
        drawn_BS = first_BS - second_BS
    elif seeds == 1:
        return None
    else:
        what = "seeds"
        drawn_BS = differences_S[chosen_BS]
    low, high = np.percentile(drawn_BS.mean(1), [2.5, 97.5])
    return Drawn(float(low), float(high), what)


def deviation_of(differences: Sequence[float], rounding: float) -> float:
    """Return the standard deviation of two or more differences, no less than what rounding alone gives them."""
    return max(rounding, float(np.std(differences, ddof=1)))


def student(differences: Sequence[float], rounding: float = 0.0) -> tuple[float, float, float]:
    """Return the ends of Student's 95 % interval of the mean of two or more paired differences, and its p-value.

    `rounding` is the standard deviation that they have at least.
    """
    from scipy.stats import t

    n = len(differences)
    mean = float(np.mean(differences))
    error = deviation_of(differences, rounding) / math.sqrt(n)
    half = float(t.ppf(0.975, n - 1)) * error
    low = mean - half
    high = mean + half
    if error == 0:  # the same difference in every seed: no t exists
        p = 1.0 if mean == 0 else 0.0
    else:
        p = 2 * float(t.sf(abs(mean) / error, n - 1))
    return low, high, p


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
    if comparison.estimate > margin:
        half = comparison.estimate - interval.low
    else:
        half = interval.high - comparison.estimate
    for seeds in range(n + 1, MOST_SEEDS_SOUGHT):
        student_half = float(t.ppf(0.975, seeds - 1)) * sd / math.sqrt(seeds)
        bootstrap_half = 0.0
        if half > float(t.ppf(0.975, n - 1)) * sd / math.sqrt(n) + 1e-9:
            bootstrap_half = half * math.sqrt(n / seeds)
        if max(student_half, bootstrap_half) < distance:
            return seeds
    return MOST_SEEDS_SOUGHT


def among_highest(values: Floats, number: int) -> Floats:
    """Return the smallest of the `number` highest along the first axis: the smallest of all, where that is all."""
    return np.asarray(np.sort(values, axis=0)[-number])


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
