"""Means over seeds, and how sure a difference is: a hierarchical bootstrap, and signed-rank tests from six seeds on."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedskew.report.gather import SPREAD_PARTS, Measured
from fedskew.report.units import in_percent
from server_app.evaluation import shot_groups
from server_app.record import Spread
from server_app.selection import select

Floats = NDArray[np.float64]
RESAMPLES = 1000
LEAST_SEEDS = 6
"""Fewer seeds than these cannot give a two-sided p-value below 0.05 in a signed-rank test: 2 / 2^5 is 0.0625."""


def measure(measured: Measured, selection: str, metric: str) -> float | None:
    """Return a number of one run, in percent where it is a share: the mean over the rounds selected."""
    numbers = [measured.number(point, metric) for point in select(measured.points, selection)]
    known = [number for number in numbers if number is not None]
    if not known or len(known) < len(numbers):  # nothing, or a round that diverged
        return None
    return math.fsum(known) / len(known) * (100 if in_percent(metric) else 1)


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
        return float(np.std(list(self.by_seed.values()), ddof=1)) if self.n > 1 else None


def summarize_seeds(group: Sequence[Measured], selection: str, metric: str) -> Summary | None:
    """Return a number over the seeds that have it; None where none has."""
    numbers = {measured.cell.seed: measure(measured, selection, metric) for measured in group}
    known = {seed: number for seed, number in numbers.items() if number is not None}
    return Summary(known) if known else None


@dataclass(frozen=True)
class Strata:
    """A number of one run as a function of shares of right answers in groups of test examples.

    The groups are the classes, with weights, or the clients with test sets of their own, of which the lowest count.
    """

    rates_G: Floats
    sizes_G: NDArray[np.int64]
    weights_G: Floats | None
    lowest: int = 0


def strata(measured: Measured, selection: str, metric: str) -> Strata | None:
    """Return how a run's number comes from its test examples; None where the records do not say that.

    Where all clients are tested on one test set, recall is their mean and the examples count once.
    """
    points, samples = select(measured.points, selection), measured.run.samples
    if not points or not samples:
        return None
    head, _, part = metric.partition(".")
    if head == "client-accuracy" and samples["client-test"]:
        spreads, sizes_G = (
            [point.numbers.spreads.get(head, Spread()) for point in points],
            np.array(samples["client-test"]),
        )
        if any(
            len(spread.values) != len(sizes_G) or np.isnan(spread.values).any()
            for spread in spreads
        ):
            return None
        rates_G = np.mean([spread.values for spread in spreads], axis=0)
        if part not in SPREAD_PARTS:
            return Strata(rates_G, sizes_G, np.eye(len(sizes_G))[measured.site(metric)])
        lowest = {"mean": len(sizes_G), "worst": 1, "worst-decile": max(1, len(sizes_G) // 10)}[
            part
        ]
        return Strata(rates_G, sizes_G, None, lowest)
    sizes_C = np.array(samples["test"])
    weights_C = class_weights(
        "accuracy" if metric == "client-accuracy.mean" else metric, measured, sizes_C
    )
    if weights_C is None:
        return None
    recalls = [np.nan_to_num(point.numbers.recall) for point in points]
    return Strata(np.mean(recalls, axis=0), sizes_C, weights_C)


def class_weights(metric: str, measured: Measured, sizes_C: NDArray[np.int64]) -> Floats | None:
    """Return the weight of each class's recall in a number; None where it is not a weighted sum of them."""
    tested_C = sizes_C > 0
    train_KC = np.array(measured.run.samples["train"])
    if metric == "balanced-accuracy":
        return np.asarray(tested_C / tested_C.sum())
    if metric == "accuracy":
        return np.asarray(sizes_C / sizes_C.sum())
    if metric == "local-accuracy.mean":
        held_KC = train_KC * tested_C
        held_KC = held_KC[held_KC.sum(1) > 0]
        return np.asarray((held_KC / held_KC.sum(1, keepdims=True)).mean(0))
    groups = shot_groups(train_KC.sum(0).tolist(), measured.run.settings.data.long_tailed)
    if (group := metric.removesuffix("-recall")) in groups:
        chosen_C = np.isin(np.arange(len(sizes_C)), groups[group]) & tested_C
        return np.asarray(chosen_C / chosen_C.sum())
    return None


def resample(
    runs: Sequence[Strata], chosen_BS: NDArray[np.int64], draws: np.random.Generator
) -> Floats:
    """Return (B, S): the number of each chosen run in percent, with its test examples drawn anew in every group.

    n examples drawn with replacement out of n, of which a share is right, are right binomially often.
    """
    sizes_RG = np.stack([run.sizes_G for run in runs])
    rates_RG = np.clip(np.stack([run.rates_G for run in runs]), 0.0, 1.0)
    drawn_BSG = (
        draws.binomial(sizes_RG[chosen_BS], rates_RG[chosen_BS])
        / np.maximum(sizes_RG, 1)[chosen_BS]
    )
    if runs[0].weights_G is None:
        return np.asarray(100 * np.sort(drawn_BSG)[..., : runs[0].lowest].mean(-1))
    weights_RG = np.stack([run.weights_G for run in runs if run.weights_G is not None])
    return np.asarray(100 * (drawn_BSG * weights_RG[chosen_BS]).sum(-1))


@dataclass(frozen=True)
class Interval:
    """What resampling says of a difference."""

    low: float
    high: float
    """The 2.5 and 97.5 percentiles."""
    probability: float
    """The share of resamples in which the difference exceeds what is claimed."""
    resampled: str
    """What was drawn anew."""


def bootstrap(
    differences_LS: Floats,
    pairs: Sequence[Sequence[tuple[Strata | None, Strata | None]]],
    by: float,
    among: int,
    seed: int,
) -> Interval | None:
    """Return the interval of the smallest of the columns' mean differences over seeds, of the `among` highest ones.

    Seeds are drawn with replacement, the same for both methods and all columns; within a seed, test examples are drawn
    class by class, unpaired between the methods, though both saw the same ones: that is conservative. Without counts of
    test examples only seeds are drawn, and a single seed then has no interval.

    Args:
        differences_LS: by column and seed.
        pairs: the two runs of every difference.
        by: what is claimed to be exceeded.
        among: the columns in which it is claimed, any of them.
        seed: of the resampling.
    """
    draws = np.random.default_rng(seed)
    columns, seeds = differences_LS.shape
    chosen_BS = draws.integers(seeds, size=(RESAMPLES, seeds))
    known = [
        [(better, than) for better, than in row if better is not None and than is not None]
        for row in pairs
    ]
    if complete := all(len(row) == seeds for row in known):
        drawn = [
            resample([better for better, _ in row], chosen_BS, draws)
            - resample([than for _, than in row], chosen_BS, draws)
            for row in known
        ]
    elif seeds == 1:
        return None
    else:
        drawn = [differences_LS[column][chosen_BS] for column in range(columns)]
    smallest_B = among_highest(np.stack([differences.mean(1) for differences in drawn]), among)
    low, high = np.percentile(smallest_B, [2.5, 97.5])
    what = "seeds and test examples" if complete else "seeds"
    return Interval(float(low), float(high), float((smallest_B > by).mean()), what)


def student(differences: Sequence[float]) -> tuple[float, float, float]:
    """Return the ends of Student's 95 % interval of the mean of two or more paired differences, and its p-value."""
    from scipy.stats import t

    n, mean = len(differences), float(np.mean(differences))
    error = float(np.std(differences, ddof=1)) / math.sqrt(n)
    half = float(t.ppf(0.975, n - 1)) * error
    p = 2 * float(t.sf(abs(mean) / error, n - 1)) if error else float(mean == 0)
    return mean - half, mean + half, p


def among_highest(values: Floats, number: int) -> Floats:
    """Return the smallest of the `number` highest along the first axis: the smallest of all, where that is all."""
    return np.asarray(np.sort(values, axis=0)[-number])


def signed_rank(margins: Sequence[float]) -> float | None:
    """Return the one-sided p-value of Wilcoxon's signed-rank test that margins are above 0; None below six seeds."""
    if len(margins) < LEAST_SEEDS:
        return None
    from scipy.stats import wilcoxon

    if not any(margins):
        return 1.0
    return float(wilcoxon(margins, alternative="greater", zero_method="wilcox").pvalue)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Return the p-values corrected for how many there are (Holm 1979); None stays None and counts nowhere."""
    order = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    highest = 0.0
    for rank, (p, index) in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - rank) * p))
        corrected[index] = highest
    return corrected
