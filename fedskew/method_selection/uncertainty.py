"""How certain a score is, and a difference of two: over seeds and over the samples that were measured.

A score is nearly a mean over independent units, samples or subjects: each unit adds a part to it (its influence), and
the parts' squares add up to the score's variance over other samples. Two runs with one seed are measured on the same
samples, so the parts of their difference are the differences of their parts.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]
MANY = 1000
"""Units that are assumed where they are not recorded; it enters the degrees of freedom alone."""


@dataclass(frozen=True, eq=False)
class Measurement:
    """A score of one run, in points."""

    score: float
    parts_U: Floats | None = None
    """What each unit adds to the score, less the mean over its class; None where the units are not recorded."""
    sample_set: str = ""
    """Two measurements with the same word are on the same samples, or name their units alike; empty where that is not
    known."""
    variance: float = 0.0
    """Of the score over other samples, in squared points; where there are parts, these count instead."""
    units_U: Ids | None = None
    """Which units the parts are of; None where those with the same word have the same ones in the same order."""
    overlap: float = 0.0
    """Which share of the samples another seed's measurement has in common with this one, where there are no parts."""

    @property
    def units(self) -> Ids:
        """Which units the parts are of."""
        if self.units_U is not None:
            return self.units_U
        return np.arange(0 if self.parts_U is None else len(self.parts_U))


BySeed = Mapping[int, Measurement]


@dataclass(frozen=True)
class Difference:
    """A mean difference of two scores over their common seeds, in points."""

    mean: float
    of_seeds: float
    """Its variance over other seeds; 0 for a single seed, which says nothing of them."""
    seeds: int
    of_samples: float = 0.0
    """Its variance over other samples, as far as that is not among the first."""
    units: int = 1
    """Of the samples."""
    covers: str = "seeds"
    """seeds, samples, or seeds and samples."""

    @property
    def error(self) -> float:
        """The standard error."""
        return math.sqrt(self.of_seeds + self.of_samples)

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Return the ends of an interval of the mean difference.

        Each of the two errors has its own Student's quantile, and the halves add up as errors do. One quantile for
        both, with Satterthwaite's degrees of freedom, covers too little with few seeds.
        """
        from scipy.stats import t

        half_squared = 0.0
        for variance, freedom in (
            (self.of_seeds, self.seeds - 1),
            (self.of_samples, self.units - 1),
        ):
            if variance:
                half_squared += float(t.ppf((1 + level) / 2, max(1, freedom))) ** 2 * variance
        half = math.sqrt(half_squared)
        return self.mean - half, self.mean + half


def difference(first: BySeed, second: BySeed) -> Difference | None:
    """Return the first score less the second over their common seeds; None without a common seed.

    With S seeds, d_s the difference in seed s, and p_su what unit u adds to it where u is measured in seed s:

        error^2 = s^2(d_s) / S + mean over pairs of seeds s < t of sum_u p_su p_tu

    The second sum is over the units that both seeds have. It is what two seeds' differences have in common, so the
    spread over seeds does not show it. Where all seeds are measured on the same samples, it is the variance over
    samples less its part in the first term; where no two seeds share a sample, it is 0. Validation samples that are
    drawn anew in each seed lie in between.

    Where the units are not recorded, the variances of both scores stand for the second sum, times the share of samples
    that two seeds have in common. That is careful. If not even the share is known, the spread over seeds counts, and no
    less than the samples' variance. A single seed says nothing of other seeds: its error is over samples alone.
    """
    seeds = sorted(first.keys() & second.keys())
    if not seeds:
        return None
    differences_S = np.array([first[seed].score - second[seed].score for seed in seeds])
    mean = float(differences_S.mean())
    pairs = [(first[seed], second[seed]) for seed in seeds]
    parts = [parts_of(*pair) for pair in pairs]
    sampled = [sampling_variance(*pair) for pair in pairs]
    if len(seeds) == 1:
        units = MANY if parts[0] is None else len(parts[0])
        return Difference(mean, 0.0, 1, sampled[0], units, "samples")

    number = len(seeds)
    of_seeds = float(differences_S.var(ddof=1)) / number
    covers = "seeds and samples"
    known = [part for part in parts if part is not None]
    if len(known) == number:
        of_samples, units = common_variance(pairs, known)
        return Difference(mean, of_seeds, number, of_samples, units, covers)
    overlap = min(min(one.overlap, other.overlap) for one, other in pairs)
    if same_samples(pairs):
        overlap = 1.0
    of_samples = float(np.mean(sampled))
    if overlap:
        return Difference(mean, of_seeds, number, overlap * of_samples, MANY, covers)
    covers = covers if of_samples else "seeds"
    return Difference(mean, max(of_seeds, of_samples / number), number, covers=covers)


def common_variance(
    pairs: Sequence[tuple[Measurement, Measurement]], parts: Sequence[Floats]
) -> tuple[float, int]:
    """Return the mean over pairs of seeds of sum_u p_su p_tu, and how many units there are in all; see `difference`.

    sum_(s < t) p_su p_tu is half of (sum_s p_su)^2 - sum_s p_su^2. The estimate may be below 0, which no variance is.
    """
    by_set: dict[str, list[tuple[Ids, Floats]]] = {}
    for (measurement, _), part_U in zip(pairs, parts, strict=True):
        by_set.setdefault(measurement.sample_set, []).append((measurement.units, part_U))
    products = 0.0
    units = 0
    for of_set in by_set.values():
        all_units = np.concatenate([units_U for units_U, _ in of_set])
        all_parts = np.concatenate([part_U for _, part_U in of_set])
        _, unit_of_part = np.unique(all_units, return_inverse=True)
        sum_U = np.bincount(unit_of_part, all_parts)
        products += float(np.square(sum_U).sum() - np.square(all_parts).sum())
        units += len(sum_U)
    number = len(pairs)
    return max(0.0, products / (number * (number - 1))), units


def parts_of(first: Measurement, second: Measurement) -> Floats | None:
    """Return (U,) what each unit adds to the difference of two scores; None unless both are of the same units."""
    if first.parts_U is None or second.parts_U is None:
        return None
    if first.sample_set != second.sample_set or not np.array_equal(first.units, second.units):
        return None
    return first.parts_U - second.parts_U


def sampling_variance(first: Measurement, second: Measurement) -> float:
    """Return the variance of a difference over other samples; unpaired, which is careful, where units are not known."""
    parts_U = parts_of(first, second)
    if parts_U is not None:
        return float(np.square(parts_U).sum())
    total = 0.0
    for one in (first, second):
        total += one.variance if one.parts_U is None else float(np.square(one.parts_U).sum())
    return total


def same_samples(pairs: Sequence[tuple[Measurement, Measurement]]) -> bool:
    """Return whether the measurements of all seeds are on the same samples."""
    words = {measurement.sample_set for pair in pairs for measurement in pair}
    return len(words) == 1 and "" not in words


# ---- parts of a target -----------------------------------------------------------------------------------------------


def parts_of_recalls(
    log_probabilities_NC: Floats, labels_N: NDArray[np.int64], weights_C: Floats
) -> Floats:
    """Return (N,) what each sample adds to sum_c w_c recall_c, in points.

    That is 100 w_y (right - recall_y) / sqrt(n_y (n_y - 1)): with n_y in place of the root the squares' sum would be a
    little below the variance.
    """
    right_N = (log_probabilities_NC.argmax(1) == labels_N).astype(np.float64)
    return 100 * weights_C[labels_N] * centered_by_class(right_N, labels_N)


def parts_of_brier(log_probabilities_NC: Floats, labels_N: NDArray[np.int64]) -> Floats:
    """Return (N,) what each sample adds to the negative Brier score, in points."""
    samples, classes = log_probabilities_NC.shape
    errors_NC = np.exp(log_probabilities_NC)
    errors_NC[np.arange(samples), labels_N] -= 1
    scores_N = np.square(errors_NC).sum(1)
    if classes == 2:
        scores_N = scores_N / 2  # the error of one class is that of the other
    centered_N = scores_N - scores_N.mean()
    scale = math.sqrt(samples * max(1, samples - 1))
    return np.asarray(-100 * centered_N / scale)


def parts_of_auroc(log_probabilities_NC: Floats, labels_N: NDArray[np.int64]) -> Floats:
    """Return (N,) what each sample adds to the mean over the classes of AUROC, in points (DeLong et al. 1988).

    A sample of the class adds the share of the others below it, another one the share of the class above it, each less
    its mean and over its number; half of what is equal counts.
    """
    from scipy.stats import rankdata

    samples, classes = log_probabilities_NC.shape
    parts_N = np.zeros(samples)
    measured = 0
    for label in range(classes):
        is_label_N = labels_N == label
        positives = int(is_label_N.sum())
        negatives = samples - positives
        if not positives or not negatives:
            continue
        measured += 1
        scores_N = log_probabilities_NC[:, label]
        rank_N = rankdata(scores_N)  # the mean rank of equal ones
        rank_within_P = rankdata(scores_N[is_label_N])
        rank_within_M = rankdata(scores_N[~is_label_N])
        placement_N = np.empty(samples)
        placement_N[is_label_N] = (rank_N[is_label_N] - rank_within_P) / negatives
        placement_N[~is_label_N] = 1 - (rank_N[~is_label_N] - rank_within_M) / positives
        parts_N += centered_by_class(placement_N, is_label_N.astype(np.int64))
    return 100 * parts_N / max(1, measured)


def centered_by_class(values_N: Floats, labels_N: NDArray[np.int64]) -> Floats:
    """Return (N,) each value less the mean of its class, over sqrt(n (n - 1)) of the class's n; 0 for a single one."""
    counts_C = np.bincount(labels_N)
    sums_C = np.bincount(labels_N, values_N)
    means_C = sums_C / np.maximum(counts_C, 1)
    others_C = np.maximum(counts_C - 1.0, 1.0)
    scale_C = np.sqrt(counts_C * others_C)
    centered_N = values_N - means_C[labels_N]
    return np.asarray(centered_N / scale_C[labels_N])


def by_subject(parts_N: Floats, subjects_N: Ids | None) -> Floats:
    """Return the parts of the subjects, each the sum over its samples; without subjects every sample is one."""
    if subjects_N is None:
        return parts_N
    _, subject_N = np.unique(subjects_N, return_inverse=True)
    return np.asarray(np.bincount(subject_N, parts_N))


def name_of_samples(labels_N: NDArray[np.int64]) -> str:
    """Return a word for the samples that were measured, by their labels in order.

    Other samples with the same labels in the same order get the same word. Their parts then do not go together, and the
    error is over seeds, as it should be.
    """
    return hashlib.sha256(np.ascontiguousarray(labels_N, np.int64).tobytes()).hexdigest()[:16]
