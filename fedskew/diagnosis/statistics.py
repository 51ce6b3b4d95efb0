"""Statistics of skew in a table of counts.

Letters: K sites, C classes, n_kc samples of class c at site k, n_k and n_c its margins, N all of them.

Where it is known whose the samples are, a test of chance counts subjects: eight rows of one patient say less than
eight patients. S are the subjects, n_sc the samples of class c of subject s. Every formula is that of single samples
where each subject has one.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import chdtrc, entr, fdtrc, rel_entr

from fedskew.diagnosis.table import Counts, Floats, Moments, Subjects

LIKELY = 0.01
"""p above which chance explains what is seen."""
EXPECTED = 5
"""Samples of a class expected at a site, n_k n_c / N, from which their absence says something (Cochran, 1954)."""
LOCAL_TAIL = 5
"""Largest over smallest n_kc / expected of a site's classes from which it has a tail of its own."""

MEAN_SHIFT, DEVIATION_RATIO = 0.5, 1.5
"""Standard deviations between a site's mean and all (Cohen's medium effect); standard deviations over each other."""


@dataclass(frozen=True)
class Statistics:
    """Of a table without empty rows and columns."""

    sites: int
    classes: int
    samples: int
    subjects: int
    """Whose the samples are; as many as samples where that is not known."""
    design_effect: float
    """How many samples say as much of the classes as one independent sample does: see `design_effects`."""
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
    """Of sites that see the same classes: Pearson's chi-square over the design effect (Rao and Scott, 1984)."""
    resolution: float
    """The information share that sampling alone exceeds once in about a thousand tables: less cannot be seen."""
    missing_share: float
    """Of the classes at sites where `EXPECTED` samples or more should be: the share that is missing."""
    local_tail_share: float
    """Share of the samples that are at sites with a tail of their own, beyond the pooled one."""
    one_class_sites: tuple[int, ...]
    """Indices of the sites that hold one class alone."""
    single_site_classes: tuple[int, ...]
    """Indices of the classes at one site alone that chance would hardly put there (p <= 0.01 over all classes)."""
    smallest: int
    median: float
    largest: int
    """Samples of a site."""
    size_ratio: float
    """The largest site over the median of the others."""
    size_range: float
    """The largest site over the smallest."""
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


def statistics(counts_KC: Counts, subjects: Subjects | None = None) -> Statistics:
    """Return the statistics of a table without empty rows and columns.

    Args:
        counts_KC: (sites, classes) samples.
        subjects: Whose the samples are; None where every sample counts as a subject.
    """
    sizes_K, pooled_C = counts_KC.sum(1), counts_KC.sum(0)
    sites, classes = counts_KC.shape
    samples = int(sizes_K.sum())
    expected_KC = np.outer(sizes_K, pooled_C) / samples
    entropy = float(entr(pooled_C / samples).sum())
    class_effect, size_effect = (1.0, 1.0) if subjects is None else design_effects(subjects)

    freedom = (sites - 1) * (classes - 1)
    by_chance = freedom * class_effect / (2 * samples)
    plugged_in = float(rel_entr(counts_KC, expected_KC).sum()) / samples
    information = max(0.0, plugged_in - by_chance)
    # 2 N times the plug-in information is about chi-square (Wilks, 1938), whose standard deviation is sqrt(2 freedom);
    # a normal number exceeds its mean by 3.1 standard deviations once in a thousand times.
    resolution = 3.1 * math.sqrt(2 * freedom) * class_effect / (2 * samples * entropy)
    # Only where samples should be does their absence say something.
    counted_KC = expected_KC / class_effect >= EXPECTED
    missing = int((counted_KC & (counts_KC == 0)).sum())
    others = np.sort(sizes_K)[:-1]  # all but the largest
    return Statistics(
        sites=sites,
        classes=classes,
        samples=samples,
        subjects=samples if subjects is None else len(subjects.site_S),
        design_effect=class_effect,
        imbalance=float(pooled_C.max() / pooled_C.min()),
        effective_classes=math.exp(entropy),
        tail_p=chi_square_p(pooled_C, pooled_C.mean(), classes - 1, class_effect),
        information=information,
        information_share=min(1.0, information / entropy),
        information_p=chi_square_p(counts_KC, expected_KC, freedom, class_effect),
        resolution=resolution,
        missing_share=missing / max(1, int(counted_KC.sum())),
        local_tail_share=local_tail_share(counts_KC, expected_KC, class_effect),
        one_class_sites=tuple(np.flatnonzero((counts_KC > 0).sum(1) == 1).tolist()),
        single_site_classes=single_site_classes(counts_KC, subjects),
        smallest=int(sizes_K.min()),
        median=float(np.median(sizes_K)),
        largest=int(sizes_K.max()),
        size_ratio=float(sizes_K.max() / np.median(others)),
        size_range=float(sizes_K.max() / sizes_K.min()),
        effective_sites=math.exp(entr(sizes_K / samples).sum()),
        size_p=chi_square_p(sizes_K, sizes_K.mean(), sites - 1, size_effect),
    )


def chi_square_p(counts: Counts, expected: ArrayLike, freedom: int, design_effect: float) -> float:
    """Return p of Pearson's chi-square over the design effect: how many samples say as much as one independent one."""
    statistic = ((counts - np.asarray(expected)) ** 2 / expected).sum()
    return float(chdtrc(freedom, statistic / design_effect))


def design_effects(subjects: Subjects) -> tuple[float, float]:
    """Return by how much the subjects inflate the variance of the classes' counts, and of the sites' sizes.

    Of the classes it is sum_s sum_c (n_sc - n_s n_c / N)^2 / (n_c / N) over N (C - 1), the first-order correction of
    Rao and Scott (Annals of Statistics, 1984); of the sizes sum_s n_s^2 / N (Kish, 1965). Both are 1 where every
    subject has one sample. Below 1, as where every subject has each class once, 1 is returned: the careful choice.
    """
    counts_SC = subjects.counts_SC
    sizes_S = counts_SC.sum(1)
    total = int(sizes_S.sum())
    shares_C = counts_SC.sum(0) / total
    squares_SC = (counts_SC - np.outer(sizes_S, shares_C)) ** 2 / shares_C
    class_effect = float(squares_SC.sum()) / (total * (len(shares_C) - 1))
    size_effect = float((sizes_S**2).sum()) / total
    return max(1.0, class_effect), max(1.0, size_effect)


def local_tail_share(counts_KC: Counts, expected_KC: Floats, design_effect: float) -> float:
    """Return the share of the samples that are at sites with a tail of their own: see `LOCAL_TAIL`.

    Args:
        counts_KC: Samples of each class at each site.
        expected_KC: The same if the site said nothing of the class.
        design_effect: How many samples say as much as one independent sample does.
    """
    enough_KC = expected_KC / design_effect >= EXPECTED
    ratio_KC = (counts_KC + 0.5) / (expected_KC + 0.5)  # an absent class has a ratio as well
    highest_K = np.where(enough_KC, ratio_KC, 0).max(1)
    lowest_K = np.where(enough_KC, ratio_KC, np.inf).min(1)
    tailed_K = highest_K >= LOCAL_TAIL * lowest_K
    return float(counts_KC[tailed_K].sum() / counts_KC.sum())


def single_site_classes(counts_KC: Counts, subjects: Subjects | None) -> tuple[int, ...]:
    """Return the classes at one site that chance would put at a single one with p <= 0.01 over all classes.

    A class of n samples is by chance at one site alone with probability sum_k (n_k / N)^n. Where it is known whose the
    samples are, n counts the subjects who have the class, and n_k and N all subjects.
    """
    sizes_K, pooled_C = counts_KC.sum(1), counts_KC.sum(0)
    if subjects is not None:
        sizes_K = np.bincount(subjects.site_S, minlength=len(counts_KC))
        pooled_C = (subjects.counts_SC > 0).sum(0)
    shares_K1 = (sizes_K / sizes_K.sum())[:, None]
    chance_C = (shares_K1**pooled_C).sum(0)
    at_one_site_C = (counts_KC > 0).sum(0) == 1
    surprising_C = at_one_site_C & (chance_C * len(pooled_C) <= LIKELY)  # Bonferroni
    return tuple(np.flatnonzero(surprising_C).tolist())


def independent_samples(counts_KC: Counts, subjects: Subjects | None) -> Floats:
    """Return (K,): how many independent samples each site's are worth, for a mean over them.

    Of subjects it is (sum_s n_s)^2 / sum_s n_s^2 (Kish, 1965), as if the samples of one were all alike, which is the
    careful choice; without them the site's samples.
    """
    sizes_K: Floats = counts_KC.sum(1).astype(np.float64)
    if subjects is None:
        return sizes_K
    sizes_S = subjects.counts_SC.sum(1).astype(np.float64)
    squares_K = np.bincount(subjects.site_S, weights=sizes_S**2, minlength=len(sizes_K))
    return sizes_K**2 / squares_K


def shift_of(moments: Moments, sizes_K: Counts | Floats) -> Shift:
    """Return how far the sites' features are apart, of the feature where they are furthest.

    The feature is the furthest of those whose distance chance does not explain, where there are such. Sites of one
    independent sample each tell no distance from chance.

    Args:
        moments: Mean and standard deviation of each feature at each site.
        sizes_K: Independent samples of each site: see `independent_samples`. Where a feature is all pixels of an image,
            which are correlated, a sample is an image, which is the careful choice.
    """
    sites, features = moments.means_KF.shape
    samples = float(sizes_K.sum())
    freedom_K = np.maximum(sizes_K - 1, 0)
    if not freedom_K.any():
        return Shift(moments.features[0], mean=0.0, mean_p=1.0, deviation=1.0, deviation_p=1.0)
    within = max(1.0, samples - sites)

    # The means: the F-test of equal ones, with the variance within sites.
    variance_F = freedom_K @ moments.deviations_KF**2 / within
    apart_KF = moments.means_KF - sizes_K @ moments.means_KF / samples
    distances_F = (np.abs(apart_KF) / np.sqrt(variance_F)).max(0)
    f_F = sizes_K @ apart_KF**2 / (sites - 1) / variance_F
    mean_p_F = np.minimum(1, features * fdtrc(sites - 1, within, f_F))

    # The standard deviations: a chi-square test of equal logarithms.
    # The variance of ln s is about (kurtosis - 1) / 4(n - 1), which is 1 / 2(n - 1) of a normal feature (Layard, 1973).
    kurtosis_F = 3.0 if moments.kurtosis_F is None else moments.kurtosis_F
    logs_KF = np.log(moments.deviations_KF)
    center_F = freedom_K @ logs_KF / within
    chi_square_F = 4 * freedom_K @ (logs_KF - center_F) ** 2 / (kurtosis_F - 1)
    deviation_p_F = np.minimum(1, features * chdtrc(sites - 1, chi_square_F))
    ratios_F = np.exp(logs_KF.max(0) - logs_KF.min(0))

    # A distance that chance explains must not hide another feature's smaller one that it does not.
    far_2F = np.stack([distances_F / MEAN_SHIFT, np.log(ratios_F) / math.log(DEVIATION_RATIO)])
    likely_2F = far_2F * (np.stack([mean_p_F, deviation_p_F]) <= LIKELY)
    furthest = int(np.argmax((likely_2F if likely_2F.any() else far_2F).max(0)))
    return Shift(
        feature=moments.features[furthest],
        mean=float(distances_F[furthest]),
        mean_p=float(mean_p_F[furthest]),
        deviation=float(ratios_F[furthest]),
        deviation_p=float(deviation_p_F[furthest]),
    )
