"""How well scores rank the samples of a class above the others: ROC and precision-recall, from sorted scores alone.

Scores are reduced to how many samples of the class, and how many of the others, have each distinct score, from the
highest to the lowest. Everything below is exact on these counts, also where they are weights of a resampling.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float64]
STATED = 0.9
"""The specificity at which the sensitivity is given, and the sensitivity at which the specificity is."""
MOST_RANKED = 100
"""More classes than these are not ranked, one by one, in every evaluation."""
COLUMNS = (
    "pairs",
    "ordered",
    "squared-error",
    "positives",
    "precision",
    "sensitivity",
    "negatives",
    "specificity",
)
"""What is summed over sets of samples, of every class: its pairs with other samples, those in the right order, a tie
being half, the squared standard error of these; its samples, and their sums of average precision and of sensitivity;
the other samples, and their sum of specificity. Where a set lacks the class, or others, all are 0."""


class Ranked(NamedTuple):
    """The numbers of a ranking, each (...,) for counts (..., G); NaN without a pair."""

    auroc: Floats
    """The share of pairs in the right order, a tie being half (Hanley and McNeil 1982)."""
    variance: Floats
    """Of `auroc`, by the pairs' structural components (DeLong et al. 1988)."""
    auprc: Floats
    """Average precision: the mean precision at the samples of the class, as scikit-learn's."""
    sensitivity: Floats
    """The highest of all thresholds with a specificity of at least STATED."""
    specificity: Floats
    """The highest of all thresholds with a sensitivity of at least STATED."""


def order_of(score_N: Floats) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the samples' order, the highest score first, and where in it each distinct score begins."""
    order_N = np.argsort(-score_N, kind="stable")
    sorted_N = score_N[order_N]
    begins_N = np.ones(len(sorted_N), dtype=bool)
    begins_N[1:] = sorted_N[1:] != sorted_N[:-1]
    return order_N, np.flatnonzero(begins_N)


def ranked(positive_G: Floats, negative_G: Floats) -> Ranked:
    """Return the numbers of counts (..., G) by distinct score, from the highest to the lowest."""
    positives = positive_G.sum(-1, keepdims=True)
    negatives = negative_G.sum(-1, keepdims=True)
    # Samples at each score and above: of the class, and of the others.
    hits_G = positive_G.cumsum(-1)
    alarms_G = negative_G.cumsum(-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        # DeLong's components: V10 of a sample of the class, the share of others below it, and V01 of another sample,
        # the share of the class above it. A tie is half.
        below_G = (negatives - alarms_G + negative_G / 2) / negatives
        above_G = (hits_G - positive_G / 2) / positives
        auroc = (positive_G * below_G).sum(-1) / positives[..., 0]
        variance_of_class = component(positive_G, below_G, auroc, positives)
        variance_of_others = component(negative_G, above_G, auroc, negatives)
        flagged_G = np.maximum(hits_G + alarms_G, 1e-300)  # no division by zero without samples
        precision = (positive_G * hits_G / flagged_G).sum(-1) / positives[..., 0]
        sensitivity_G = hits_G / positives
        specificity_G = 1 - alarms_G / negatives
    enough = STATED - 1e-12  # a share of exactly STATED counts, whatever its rounding
    sensitivity_where_specific_G = np.where(specificity_G >= enough, sensitivity_G, 0.0)
    specificity_where_sensitive_G = np.where(sensitivity_G >= enough, specificity_G, 0.0)
    sensitivity = sensitivity_where_specific_G.max(-1, initial=0.0)
    specificity = specificity_where_sensitive_G.max(-1, initial=0.0)
    no_pair = np.isnan(auroc)
    return Ranked(
        auroc=auroc,
        variance=variance_of_class + variance_of_others,
        auprc=np.where(no_pair, np.nan, precision),
        sensitivity=np.where(no_pair, np.nan, sensitivity),
        specificity=np.where(no_pair, np.nan, specificity),
    )


def component(counts_G: Floats, values_G: Floats, mean: Floats, total: Floats) -> Floats:
    """Return the variance of the mean of values that lie in 0 to 1; of a single one the largest it can have."""
    number = total[..., 0]
    deviation_G = values_G - mean[..., None]
    weighted_G = counts_G * deviation_G**2
    freedom = np.maximum(number - 1, 1)  # no division by zero for a single value
    variance = weighted_G.sum(-1) / freedom / number
    largest = mean * (1 - mean)
    several = number > 1
    return np.asarray(np.where(several, variance, largest))


def placements(score_N: Floats, label_N: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Return of every sample of class 1 the share of others below it, and of every other that of class 1 above it."""
    positive = score_N[label_N == 1]
    negative = score_N[label_N == 0]

    def below(others_M: Floats, value_K: Floats) -> Floats:
        sorted_M = np.sort(others_M)
        left_K = np.searchsorted(sorted_M, value_K)
        right_K = np.searchsorted(sorted_M, value_K, "right")
        # Between the two lie equal scores, of which half count as below.
        twice_below_K = left_K + right_K
        return np.asarray(twice_below_K / (2 * len(sorted_M)))

    return below(negative, positive), 1 - below(positive, negative)


def clustered_variance(
    placements: tuple[Floats, Floats], subject_N: NDArray[np.int64], label_N: NDArray[np.int64]
) -> float:
    """Return the variance of an AUROC, or of a difference of two, where samples of one subject correlate.

    Obuchowski (1997), Nonparametric analysis of clustered ROC curve data; with one sample per subject it is DeLong's.

    Args:
        placements: of the samples of class 1 and of the others, or their differences between two scores.
        subject_N: of every sample.
        label_N: 1 for the samples of the class, 0 for the others.

    Returns:
        NaN where the samples of a class are of a single subject.
    """
    names, place_N = np.unique(subject_N, return_inverse=True)
    subjects = len(names)
    sums = []
    variance = 0.0
    for label, values in zip((1, 0), placements, strict=True):
        of_class = place_N[label_N == label]
        number = len(np.unique(of_class))
        if number < 2:
            return float("nan")
        deviations = values - values.mean()
        sum_S = np.bincount(of_class, deviations, subjects) / len(values)
        correction = number / (number - 1)
        variance += correction * float((sum_S**2).sum())
        sums.append(sum_S)
    # Of a subject with samples of both classes both sums move together.
    of_class_S, of_others_S = sums
    covariance = float((of_class_S * of_others_S).sum())
    return variance + 2 * subjects / (subjects - 1) * covariance


def margins(log_probabilities_NC: Tensor) -> Floats:
    """Return (N, C): ln p_c - ln(1 - p_c), which unlike p_c does not become one number for all that are certain."""
    log_NC = log_probabilities_NC
    if log_NC.shape[1] == 2:
        return np.asarray((log_NC - log_NC.flip(1)).numpy())
    # ln(1 - p): no probability but the highest is above 1/2, so of the others the subtraction is exact enough.
    rest_NC = torch.log1p(-log_NC.exp().clamp(max=0.5))
    # Of the highest it is the sum of the others, exactly.
    highest_N1 = log_NC.argmax(1, keepdim=True)
    without_highest_NC = log_NC.scatter(1, highest_N1, -torch.inf)
    rest_of_highest_N1 = without_highest_NC.logsumexp(1, keepdim=True)
    rest_NC = rest_NC.scatter(1, highest_N1, rest_of_highest_N1)
    return np.asarray((log_NC - rest_NC).numpy())


def ranking(
    log_probabilities_NC: Tensor, labels_N: Tensor, subjects_N: Tensor | None = None
) -> Tensor:
    """Return (C, COLUMNS) float64: the sums of one set of samples; zeros for more than MOST_RANKED classes.

    With `subjects_N`, (N,), the squared error counts subjects; it is the largest possible where a class has one alone.
    """
    classes = log_probabilities_NC.shape[1]
    sums_CS = torch.zeros(classes, len(COLUMNS), dtype=torch.float64)
    if classes > MOST_RANKED:
        return sums_CS
    margin_NC = margins(log_probabilities_NC)
    label_N = labels_N.numpy()
    for label in np.unique(label_N):
        score_N = margin_NC[:, label]
        is_positive_N = label_N == label
        if is_positive_N.all():
            continue
        order_N, starts_G = order_of(score_N)
        sorted_N = is_positive_N[order_N]
        positive_G = np.add.reduceat(sorted_N.astype(float), starts_G)
        negative_G = np.add.reduceat((~sorted_N).astype(float), starts_G)
        numbers = ranked(positive_G, negative_G)
        auroc = float(numbers.auroc)
        variance = float(numbers.variance)
        if subjects_N is not None:
            positive = is_positive_N.astype(np.int64)
            placed = placements(score_N, positive)
            clustered = clustered_variance(placed, subjects_N.numpy(), positive)
            largest = auroc * (1 - auroc)
            variance = largest if np.isnan(clustered) else min(max(clustered, 0.0), largest)

        positives = is_positive_N.sum()
        negatives = (~is_positive_N).sum()
        pairs = float(positives * negatives)
        sums = {
            "pairs": pairs,
            "ordered": round(2 * pairs * auroc) / 2,  # a whole number of halves, but for rounding
            "squared-error": pairs**2 * variance,
            "positives": positives,
            "precision": positives * numbers.auprc,
            "sensitivity": positives * numbers.sensitivity,
            "negatives": negatives,
            "specificity": negatives * numbers.specificity,
        }
        row_S = [float(sums[column]) for column in COLUMNS]
        sums_CS[int(label)] = torch.tensor(row_S, dtype=torch.float64)
    return sums_CS


def contradiction(ranking_CS: Tensor, samples_C: Tensor) -> str:
    """Return how the sums of one set contradict how many samples it has of each class, or an empty sentence."""
    pairs, ordered, error, positives, precision, sensitivity, negatives, specificity = (
        ranking_CS.unbind(1)
    )
    others_C = samples_C.sum() - samples_C
    ranks_C = (samples_C > 0) & (others_C > 0) & (len(samples_C) <= MOST_RANKED)
    wanted_3C = torch.stack([samples_C * others_C, samples_C, others_C]).double() * ranks_C
    if not torch.equal(torch.stack([pairs, positives, negatives]), wanted_3C):
        return "are over other pairs than their samples make"
    if (ordered > pairs).any() or (error > pairs**2).any():
        return "have more pairs in the right order than there are"
    slack = 1 + 1e-9  # for the rounding of sums
    most_positives = positives * slack
    most_negatives = negatives * slack
    precise = bool((precision <= most_positives).all())
    sensitive = bool((sensitivity <= most_positives).all())
    specific = bool((specificity <= most_negatives).all())
    return "" if precise and sensitive and specific else "have a mean above 1"
