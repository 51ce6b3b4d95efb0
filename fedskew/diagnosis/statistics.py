"""What a table of counts says of skew, in numbers.

All are functions of counts and margins alone, summed exactly (math.fsum), so that no order of sites or classes changes
a bit of them. Letters: K sites, C classes, n_kc samples of class c at site k, n_k and n_c its margins, N all of them.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import fdtrc, gammaincc

from fedskew.diagnosis.table import Counts, Floats, Moments

EXPECTED = 5
"""Samples of a class expected at a site, n_k n_c / N, from which their absence says something (Cochran, 1954)."""
DOMINATED = 0.95
"""Share of a site's samples from which one class is all that it has to learn from."""
LOCAL_TAIL = 5
"""Largest over smallest n_kc / expected of a site's classes from which it has a tail of its own."""


@dataclass(frozen=True)
class Statistics:
    """Of a table without empty rows and columns."""

    sites: int
    classes: int
    samples: int
    imbalance: float
    """Largest class over smallest, all sites pooled."""
    effective_classes: float
    """exp of the entropy of the pooled classes: Hill's number of order 1 (Hill, Ecology 1973)."""
    tail_p: float
    """Of equal classes: Pearson's chi-square."""
    information: float
    """Mutual information of site and class in nats, less (K - 1)(C - 1) / 2N, which is what sampling alone gives
    (Miller, 1955; Roulston, Physica D 1999)."""
    information_share: float
    """The same over the classes' entropy (Theil's U): 0 where all sites see the same classes, 1 where the site tells
    the class."""
    information_p: float
    """Of sites that see the same classes, by permutation: see `permutation_p`."""
    resolution: float
    """The information share that sampling alone exceeds once in about a thousand tables: less cannot be seen."""
    missing_share: float
    """Of the classes at sites where `EXPECTED` samples or more should be: the share that is missing."""
    local_tail_share: float
    """Share of the samples that are at sites with a tail of their own, beyond the pooled one."""
    one_class_sites: tuple[int, ...]
    """Indices of the sites that hold one class alone."""
    dominated_sites: tuple[int, ...]
    """Indices of the sites of which one class is `DOMINATED` or more."""
    single_site_classes: tuple[int, ...]
    """Indices of the classes at one site alone that chance would hardly put there (p <= 0.01 over all classes)."""
    smallest: int
    median: float
    largest: int
    """Samples of a site."""
    size_ratio: float
    """The largest site over the median of the others."""
    effective_sites: float
    """exp of the entropy of the sites' sizes."""
    size_p: float
    """Of equal sites: Pearson's chi-square."""


@dataclass(frozen=True)
class Shift:
    """How far sites' features are apart, of the feature where they are furthest."""

    feature: str
    mean: float
    """Largest distance of a site's mean from all, in standard deviations within sites."""
    mean_p: float
    """Of equal means: the F-test, Bonferroni over features."""
    deviation: float
    """Largest standard deviation of a site over the smallest."""
    deviation_p: float
    """Of equal standard deviations of normal features, likewise."""


def statistics(counts_KC: Counts) -> Statistics:
    """Return the statistics of (sites, classes) counts without empty rows and columns."""
    counts_KC = counts_KC.astype(np.int64)
    sizes_K, pooled_C = counts_KC.sum(1), counts_KC.sum(0)
    sites, classes = counts_KC.shape
    samples = int(sizes_K.sum())
    expected_KC = sizes_K[:, None] * (pooled_C / samples)
    entropy = entropy_of(pooled_C)
    by_chance = (sites - 1) * (classes - 1) / (2 * samples)
    information = max(0.0, entropy_of(sizes_K) + entropy - entropy_of(counts_KC) - by_chance)
    # 2 N times the plug-in information is about chi-square with (K - 1)(C - 1) degrees of freedom: Wilks, 1938
    resolution = 3.1 * math.sqrt(2 * (sites - 1) * (classes - 1)) / (2 * samples * entropy)
    counted_KC = expected_KC >= EXPECTED
    missing = int((counted_KC & (counts_KC == 0)).sum())
    others = np.delete(np.sort(sizes_K), -1)
    return Statistics(
        sites=sites,
        classes=classes,
        samples=samples,
        imbalance=float(pooled_C.max() / pooled_C.min()),
        effective_classes=math.exp(entropy),
        tail_p=equal_p(pooled_C),
        information=information,
        information_share=min(1.0, information / entropy),
        information_p=permutation_p(counts_KC),
        resolution=resolution,
        missing_share=missing / max(1, int(counted_KC.sum())),
        local_tail_share=local_tail_share(counts_KC, expected_KC),
        one_class_sites=indices((counts_KC > 0).sum(1) == 1),
        dominated_sites=indices(counts_KC.max(1) >= DOMINATED * sizes_K),
        single_site_classes=single_site_classes(counts_KC),
        smallest=int(sizes_K.min()),
        median=float(np.median(sizes_K)),
        largest=int(sizes_K.max()),
        size_ratio=float(sizes_K.max() / np.median(others)),
        effective_sites=math.exp(entropy_of(sizes_K)),
        size_p=equal_p(sizes_K),
    )


def indices(mask: NDArray[np.bool_]) -> tuple[int, ...]:
    """Return where a mask holds."""
    return tuple(np.flatnonzero(mask).tolist())


def entropy_of(counts: Counts) -> float:
    """Return the plug-in entropy in nats."""
    total = int(counts.sum())
    positive = counts[counts > 0]
    return math.log(total) - math.fsum((positive * np.log(positive)).tolist()) / total


def equal_p(counts: Counts) -> float:
    """Return p of equal expected counts, by Pearson's chi-square with one degree of freedom less than counts."""
    mean = int(counts.sum()) / len(counts)
    statistic = math.fsum(((counts - mean) ** 2 / mean).tolist())
    return float(gammaincc((len(counts) - 1) / 2, statistic / 2))


def permutation_p(counts_KC: Counts) -> float:
    """Return p of Pearson's chi-square when the samples' classes are permuted over the sites.

    No permutation is drawn: the statistic's mean and variance over all permutations are known (Haldane, Biometrika
    1940; Dawson, Biometrika 1954), and a gamma distribution with the same two stands for the whole, which for large
    counts is the chi-square distribution.
    """
    sizes_K, pooled_C = counts_KC.sum(1), counts_KC.sum(0)
    total = int(sizes_K.sum())
    (rows, columns), n = counts_KC.shape, float(total)
    if total < 4:
        return 1.0
    expected_KC = sizes_K[:, None] * (pooled_C / n)
    statistic = math.fsum(((counts_KC - expected_KC) ** 2 / expected_KC).ravel().tolist())
    mean = n * (rows - 1) * (columns - 1) / (n - 1)
    v, w = zip(*(spread(margin, n) for margin in (sizes_K, pooled_C)), strict=True)
    variance = 2 * n / (n - 3) * (v[0] - w[0]) * (v[1] - w[1]) + n * n / (n - 1) * w[0] * w[1]
    if variance <= 0:  # as of a table with a sample in every row: no permutation differs
        return 1.0
    return float(gammaincc(mean**2 / variance, statistic * mean / variance))


def spread(margin: Counts, n: float) -> tuple[float, float]:
    """Return Dawson's v and w of one margin."""
    parts = len(margin)
    v = (parts - 1) * (n - parts) / (n - 1)
    return v, (n * math.fsum((1 / margin).tolist()) - parts**2) / (n - 2)


def local_tail_share(counts_KC: Counts, expected_KC: Floats) -> float:
    """Return the share of the samples that are at sites with a tail of their own: see `LOCAL_TAIL`."""
    ratio_KC = np.where(expected_KC >= EXPECTED, (counts_KC + 0.5) / (expected_KC + 0.5), np.nan)
    measured = np.isfinite(ratio_KC).sum(1) >= 2
    ratio_KC = ratio_KC[measured]
    tailed = (
        np.nanmax(ratio_KC, 1) >= LOCAL_TAIL * np.nanmin(ratio_KC, 1)
        if len(ratio_KC)
        else np.zeros(0, bool)
    )
    return int(counts_KC[measured][tailed].sum()) / int(counts_KC.sum())


def single_site_classes(counts_KC: Counts) -> tuple[int, ...]:
    """Return the classes at one site that chance would put at a single one with p <= 0.01 over all classes.

    A class of n samples is by chance at one site alone with probability sum_k (n_k / N)^n.
    """
    shares_K = counts_KC.sum(1) / int(counts_KC.sum())
    alone = indices((counts_KC > 0).sum(0) == 1)
    chance = {c: math.fsum((shares_K ** float(counts_KC[:, c].sum())).tolist()) for c in alone}
    return tuple(c for c in alone if chance[c] * counts_KC.shape[1] <= 0.01)


def shift_of(moments: Moments, sizes_K: Counts) -> Shift:
    """Return how far the sites' features are apart, of the feature where they are furthest.

    The samples are the sites' sizes: where a feature is all pixels of an image, which are correlated, that is the
    careful choice.
    """
    sites, features = moments.means_KF.shape
    samples = int(sizes_K.sum())
    weights_K1 = sizes_K[:, None]
    overall_F = columns_total(weights_K1 * moments.means_KF) / samples
    freedom_K1 = np.maximum(weights_K1 - 1, 0)
    within = max(1, samples - sites)
    pooled_F = np.sqrt(
        np.maximum(columns_total(freedom_K1 * moments.deviations_KF**2) / within, 1e-300)
    )
    distances_F = (np.abs(moments.means_KF - overall_F) / pooled_F).max(0)
    between_F = columns_total(weights_K1 * (moments.means_KF - overall_F) ** 2) / (sites - 1)
    mean_p_F = np.minimum(1, features * fdtrc(sites - 1, within, between_F / pooled_F**2))
    logs_KF = np.log(moments.deviations_KF)
    center_F = columns_total(freedom_K1 * logs_KF) / within
    apart_F = columns_total(
        2 * freedom_K1 * (logs_KF - center_F) ** 2
    )  # the variance of ln s is about 1 / 2(n - 1)
    deviation_p_F = np.minimum(1, features * gammaincc((sites - 1) / 2, apart_F / 2))
    ratios_F = np.exp(logs_KF.max(0) - logs_KF.min(0))
    furthest = int(np.argmax(np.maximum(distances_F / 0.5, np.log(ratios_F) / math.log(1.5))))
    return Shift(
        moments.features[furthest],
        float(distances_F[furthest]),
        float(mean_p_F[furthest]),
        float(ratios_F[furthest]),
        float(deviation_p_F[furthest]),
    )


def columns_total(values_KF: Floats) -> Floats:
    """Return (F,) sums over the sites, the same in every order of them."""
    return np.array([math.fsum(column) for column in values_KF.T.tolist()])
