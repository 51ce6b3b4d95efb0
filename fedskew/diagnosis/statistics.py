"""Statistics of skew in a table of counts.

All are functions of counts and margins alone, summed exactly (math.fsum), so that no order of sites or classes changes
a bit of them. Letters: K sites, C classes, n_kc samples of class c at site k, n_k and n_c its margins, N all of them.

Where it is known whose the samples are, a test of chance counts subjects: eight rows of one patient say less than
eight patients. S are the subjects, n_sc the samples of class c of subject s. Every formula is that of single samples
where each subject has one.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import fdtrc, gammaincc

from fedskew.diagnosis.table import Counts, Floats, Moments, Subjects

LIKELY = 0.01
"""p above which chance explains what is seen."""
EXPECTED = 5
"""Samples of a class expected at a site, n_k n_c / N, from which their absence says something (Cochran, 1954)."""
DOMINATED = 0.95
"""Share of a site's samples from which one class is all that it has to learn from."""
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
    """How many samples say as much of the classes as one independent sample does (Kish, 1965): 1 where every sample is
    a subject, the samples of a subject where these are all of one class."""
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
    counts_KC = counts_KC.astype(np.int64)
    sizes_K, pooled_C = counts_KC.sum(1), counts_KC.sum(0)
    sites, classes = counts_KC.shape
    samples = int(sizes_K.sum())
    expected_KC = sizes_K[:, None] * (pooled_C / samples)
    entropy = entropy_of(pooled_C)

    if subjects is None:
        class_effect = size_effect = 1.0
        information_p = permutation_p(counts_KC)
    else:
        class_effect, size_effect = design_effects(subjects)
        information_p = subject_permutation_p(counts_KC, subjects)
    independent = samples / class_effect

    freedom = (sites - 1) * (classes - 1)
    by_chance = freedom / (2 * independent)
    information = max(0.0, entropy_of(sizes_K) + entropy - entropy_of(counts_KC) - by_chance)
    # 2 N times the plug-in information is about chi-square (Wilks, 1938), whose standard deviation is sqrt(2 freedom);
    # a normal number exceeds its mean by 3.1 standard deviations once in a thousand times.
    resolution = 3.1 * math.sqrt(2 * freedom) / (2 * independent * entropy)
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
        tail_p=equal_p(pooled_C, class_effect),
        information=information,
        information_share=min(1.0, information / entropy),
        information_p=information_p,
        resolution=resolution,
        missing_share=missing / max(1, int(counted_KC.sum())),
        local_tail_share=local_tail_share(counts_KC, expected_KC, class_effect),
        one_class_sites=indices((counts_KC > 0).sum(1) == 1),
        dominated_sites=indices(counts_KC.max(1) >= DOMINATED * sizes_K),
        single_site_classes=single_site_classes(counts_KC, subjects),
        smallest=int(sizes_K.min()),
        median=float(np.median(sizes_K)),
        largest=int(sizes_K.max()),
        size_ratio=float(sizes_K.max() / np.median(others)),
        size_range=float(sizes_K.max() / sizes_K.min()),
        effective_sites=math.exp(entropy_of(sizes_K)),
        size_p=equal_p(sizes_K, size_effect),
    )


def design_effects(subjects: Subjects) -> tuple[float, float]:
    """Return by how much the subjects inflate the variance of the classes' counts, and of the sites' sizes.

    Of the classes it is sum_s sum_c (n_sc - n_s n_c / N)^2 / (n_c / N) over N (C - 1), the first-order correction of
    Rao and Scott (Annals of Statistics, 1984); of the sizes sum_s n_s^2 / N (Kish, 1965). Both are 1 where every
    subject has one sample. Below 1, as where every subject has each class once, 1 is returned: the careful choice.
    """
    counts_SC = subjects.counts_SC
    classes = counts_SC.shape[1]
    sizes_S = counts_SC.sum(1)
    total = int(sizes_S.sum())
    squares = math.fsum(squares_of(counts_SC).tolist())
    class_effect = squares / (total * (classes - 1))
    size_effect = int((sizes_S**2).sum()) / total
    return max(1.0, class_effect), max(1.0, size_effect)


def squares_of(counts_SC: Counts) -> Floats:
    """Return (S,): sum_c (n_sc - n_s n_c / N)^2 / (n_c / N), how far each subject is from the pooled classes."""
    scaled_SC = scaled_deviations(counts_SC)
    return np.array([math.fsum(row) for row in (scaled_SC**2).tolist()])


def scaled_deviations(counts_SC: Counts) -> Floats:
    """Return (S, C): (n_sc - n_s n_c / N) / sqrt(n_c / N)."""
    pooled_C = counts_SC.sum(0)
    shares_C = pooled_C / int(pooled_C.sum())
    sizes_S1 = counts_SC.sum(1)[:, None]
    expected_SC = sizes_S1 * shares_C
    scaled_SC: Floats = (counts_SC - expected_SC) / np.sqrt(shares_C)
    return scaled_SC


def indices(mask: NDArray[np.bool_]) -> tuple[int, ...]:
    """Return where a mask holds."""
    return tuple(np.flatnonzero(mask).tolist())


def entropy_of(counts: Counts) -> float:
    """Return the plug-in entropy in nats."""
    total = int(counts.sum())
    positive = counts[counts > 0]
    logs = positive * np.log(positive)
    return math.log(total) - math.fsum(logs.tolist()) / total


def equal_p(counts: Counts, design_effect: float = 1.0) -> float:
    """Return p of equal expected counts, by Pearson's chi-square with one degree of freedom less than counts.

    Args:
        counts: Samples.
        design_effect: How many samples say as much as one independent sample does.
    """
    mean = int(counts.sum()) / len(counts)
    terms = (counts - mean) ** 2 / mean
    statistic = math.fsum(terms.tolist()) / design_effect
    freedom = len(counts) - 1
    # The upper tail of chi-square is a regularized incomplete gamma function.
    return float(gammaincc(freedom / 2, statistic / 2))


def permutation_p(counts_KC: Counts) -> float:
    """Return p of Pearson's chi-square when the samples' classes are permuted over the sites.

    No permutation is drawn: the statistic's mean and variance over all permutations are known (Haldane, Biometrika
    1940; Dawson, Biometrika 1954), and a gamma distribution with the same two approximates theirs, which for large
    counts is the chi-square distribution.
    """
    rows, columns = counts_KC.shape
    sizes_K, pooled_C = counts_KC.sum(1), counts_KC.sum(0)
    n = float(sizes_K.sum())
    if n < 4:  # the variance has n - 3 in its denominator
        return 1.0
    statistic = chi_square(counts_KC)
    mean = n * (rows - 1) * (columns - 1) / (n - 1)
    v_sites, w_sites = spread(sizes_K, n)
    v_classes, w_classes = spread(pooled_C, n)
    variance = 2 * n / (n - 3) * (v_sites - w_sites) * (v_classes - w_classes)
    variance += n * n / (n - 1) * w_sites * w_classes
    if variance <= 0:  # as of a table with a sample in every row: no permutation differs
        return 1.0
    return gamma_p(statistic, mean, variance)


def gamma_p(statistic: float, mean: float, variance: float) -> float:
    """Return the probability that a gamma variable of this mean and variance exceeds a statistic."""
    shape = mean**2 / variance
    return float(gammaincc(shape, statistic * mean / variance))


def chi_square(counts_KC: Counts) -> float:
    """Return Pearson's chi-square of a table: sum_kc (n_kc - n_k n_c / N)^2 / (n_k n_c / N)."""
    sizes_K1 = counts_KC.sum(1, keepdims=True)
    shares_C = counts_KC.sum(0) / int(counts_KC.sum())
    expected_KC = sizes_K1 * shares_C
    squares_KC = (counts_KC - expected_KC) ** 2 / expected_KC
    return math.fsum(squares_KC.ravel().tolist())


def spread(margin: Counts, n: float) -> tuple[float, float]:
    """Return Dawson's v and w of one margin."""
    parts = len(margin)
    inverses = 1 / margin
    sum_of_inverses = math.fsum(inverses.tolist())
    v = (parts - 1) * (n - parts) / (n - 1)
    w = (n * sum_of_inverses - parts**2) / (n - 2)
    return v, w


def subject_permutation_p(counts_KC: Counts, subjects: Subjects) -> float:
    """Return p of Pearson's chi-square when subjects are permuted over the sites, each with all its samples.

    The statistic is sum_st a_st b_st over pairs of subjects: a_st is 1 / n_k where both are at site k, else 0, and b_st
    the product of their deviations from the pooled classes. Its mean and variance over all permutations of the subjects
    are known (Kazi-Aoual, Hitier, Sabatier and Lebreton, Computational Statistics & Data Analysis 1995), and a gamma
    distribution with the same two approximates theirs, as in `permutation_p`, which this is where every subject has
    one sample.
    """
    number = len(subjects.site_S)
    if number < 4:  # the variance has number - 3 in its denominator
        return 1.0
    of_sites = form_of_sites(counts_KC.sum(1), subjects.site_S)
    of_subjects = form_of_subjects(subjects.counts_SC)

    statistic = chi_square(counts_KC)
    expectation = of_sites.trace * of_subjects.trace / (number - 1)
    variance = permutation_variance(of_sites, of_subjects, number)
    if variance <= 1e-12 * expectation**2:  # no permutation differs but by rounding
        return 1.0
    return gamma_p(statistic, expectation, variance)


@dataclass(frozen=True)
class QuadraticForm:
    """What the variance over permutations needs of a symmetric matrix whose rows sum to zero."""

    trace: float
    squares: float
    """The sum of its squared entries."""
    diagonal_squares: float
    """The sum of its squared diagonal entries."""


def form_of_sites(sizes_K: Counts, site_S: Counts) -> QuadraticForm:
    """Return a_st of `subject_permutation_p`, its rows and columns centered.

    It is constant for all pairs of subjects of the same two sites, so that sites are summed, not subjects.
    """
    number = len(site_S)
    subjects_K = np.bincount(site_S, minlength=len(sizes_K)).astype(np.float64)
    means_K = subjects_K / sizes_K / number
    mean = fsum_of(subjects_K * means_K) / number
    diagonal_K = 1 / sizes_K - 2 * means_K + mean
    pairs_KK = np.diag(1 / sizes_K) - means_K[:, None] - means_K + mean
    weights_KK = subjects_K[:, None] * subjects_K
    return QuadraticForm(
        trace=fsum_of(subjects_K * diagonal_K),
        squares=fsum_of(weights_KK * pairs_KK**2),
        diagonal_squares=fsum_of(subjects_K * diagonal_K**2),
    )


def fsum_of(values: Floats) -> float:
    """Return the exact sum of all values, rounded once: it does not depend on the order of the sites."""
    return math.fsum(values.ravel().tolist())


def form_of_subjects(counts_SC: Counts) -> QuadraticForm:
    """Return b_st of `subject_permutation_p`."""
    scaled_SC = scaled_deviations(counts_SC)
    squares_S = squares_of(counts_SC)
    products_CC = scaled_SC.T @ scaled_SC
    return QuadraticForm(
        trace=math.fsum(squares_S.tolist()),
        squares=math.fsum((products_CC**2).ravel().tolist()),
        diagonal_squares=math.fsum((squares_S**2).tolist()),
    )


def permutation_variance(a: QuadraticForm, b: QuadraticForm, n: int) -> float:
    """Return the variance of sum_ij a_ij b_p(i)p(j) over all permutations p of n (Kazi-Aoual et al., 1995)."""
    off_diagonal = 2.0
    on_diagonal = 1.0
    for form in (a, b):
        squared_trace = form.trace**2
        off_diagonal *= (n - 1) * form.squares - squared_trace
        expected = (n - 1) * (squared_trace + 2 * form.squares)
        on_diagonal *= n * (n + 1) * form.diagonal_squares - expected
    off_diagonal /= (n - 1) ** 2 * (n + 1) * (n - 2)
    on_diagonal /= (n + 1) * n * (n - 1) * (n - 2) * (n - 3)
    return off_diagonal + on_diagonal


def local_tail_share(counts_KC: Counts, expected_KC: Floats, design_effect: float = 1.0) -> float:
    """Return the share of the samples that are at sites with a tail of their own: see `LOCAL_TAIL`.

    Args:
        counts_KC: Samples of each class at each site.
        expected_KC: The same if the site said nothing of the class.
        design_effect: How many samples say as much as one independent sample does.
    """
    enough_KC = expected_KC / design_effect >= EXPECTED
    smoothed_KC = (counts_KC + 0.5) / (expected_KC + 0.5)  # an absent class has a ratio as well
    ratio_KC = np.where(enough_KC, smoothed_KC, np.nan)
    measured_K = np.isfinite(ratio_KC).sum(1) >= 2
    ratio_MC = ratio_KC[measured_K]
    if not len(ratio_MC):
        return 0.0
    highest_M = np.nanmax(ratio_MC, 1)
    lowest_M = np.nanmin(ratio_MC, 1)
    tailed_M = highest_M >= LOCAL_TAIL * lowest_M
    in_tails = int(counts_KC[measured_K][tailed_M].sum())
    return in_tails / int(counts_KC.sum())


def single_site_classes(counts_KC: Counts, subjects: Subjects | None = None) -> tuple[int, ...]:
    """Return the classes at one site that chance would put at a single one with p <= 0.01 over all classes.

    A class of n samples is by chance at one site alone with probability sum_k (n_k / N)^n. Where it is known whose the
    samples are, n counts the subjects who have the class, and n_k and N all subjects.
    """
    sizes_K, pooled_C = counts_KC.sum(1), counts_KC.sum(0)
    if subjects is not None:
        sizes_K = np.bincount(subjects.site_S, minlength=len(counts_KC))
        pooled_C = (subjects.counts_SC > 0).sum(0)
    shares_K = sizes_K / int(sizes_K.sum())
    classes = counts_KC.shape[1]
    surprising = []
    for c in indices((counts_KC > 0).sum(0) == 1):
        powers_K = shares_K ** float(pooled_C[c])
        chance = math.fsum(powers_K.tolist())
        if chance * classes <= LIKELY:  # Bonferroni over the classes
            surprising.append(c)
    return tuple(surprising)


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
    weights_K1 = sizes_K[:, None]
    freedom_K1 = np.maximum(weights_K1 - 1, 0)
    if not freedom_K1.any():
        return Shift(moments.features[0], mean=0.0, mean_p=1.0, deviation=1.0, deviation_p=1.0)
    within = max(1.0, samples - sites)

    # The means: the F-test of equal ones, with the variance within sites.
    overall_F = columns_total(weights_K1 * moments.means_KF) / samples
    variance_F = columns_total(freedom_K1 * moments.deviations_KF**2) / within
    pooled_F = np.sqrt(variance_F)
    apart_KF = moments.means_KF - overall_F
    distances_F = (np.abs(apart_KF) / pooled_F).max(0)
    between_F = columns_total(weights_K1 * apart_KF**2) / (sites - 1)
    f_F = between_F / pooled_F**2
    mean_p_F = np.minimum(1, features * fdtrc(sites - 1, within, f_F))

    # The standard deviations: a chi-square test of equal logarithms.
    # The variance of ln s is about (kurtosis - 1) / 4(n - 1), which is 1 / 2(n - 1) of a normal feature (Layard, 1973).
    kurtosis_F = moments.kurtosis_F
    if kurtosis_F is None:
        kurtosis_F = np.full(features, 3.0)
    logs_KF = np.log(moments.deviations_KF)
    center_F = columns_total(freedom_K1 * logs_KF) / within
    squares_F = columns_total(4 * freedom_K1 * (logs_KF - center_F) ** 2)
    chi_square_F = squares_F / (kurtosis_F - 1)
    deviation_p_F = np.minimum(1, features * gammaincc((sites - 1) / 2, chi_square_F / 2))
    ratios_F = np.exp(logs_KF.max(0) - logs_KF.min(0))

    # A distance that chance explains must not hide another feature's smaller one that it does not.
    far_mean_F = distances_F / MEAN_SHIFT
    far_deviation_F = np.log(ratios_F) / math.log(DEVIATION_RATIO)
    likely_mean_F = far_mean_F * (mean_p_F <= LIKELY)
    likely_deviation_F = far_deviation_F * (deviation_p_F <= LIKELY)
    far_F = np.maximum(likely_mean_F, likely_deviation_F)
    if not far_F.any():
        far_F = np.maximum(far_mean_F, far_deviation_F)
    furthest = int(np.argmax(far_F))
    return Shift(
        feature=moments.features[furthest],
        mean=float(distances_F[furthest]),
        mean_p=float(mean_p_F[furthest]),
        deviation=float(ratios_F[furthest]),
        deviation_p=float(deviation_p_F[furthest]),
    )


def columns_total(values_KF: Floats) -> Floats:
    """Return (F,) sums over the sites, the same in every order of them."""
    return np.array([math.fsum(column) for column in values_KF.T.tolist()])
