"""How well scores rank the samples of a class above the others: ROC and precision-recall, from sorted scores alone."""

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
COUNTS = [COLUMNS.index(name) for name in ("pairs", "positives", "negatives")]
"""The columns that follow from the number of samples of each class."""


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
    """Return the variance of an AUROC where samples of one subject correlate.

    Obuchowski (1997), Nonparametric analysis of clustered ROC curve data. With one sample per subject it is that of
    DeLong et al. (1988).

    Args:
        placements: of the samples of class 1 and of the others.
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


def operating_points(score_N: Floats, label_N: NDArray[np.int64]) -> tuple[float, float, float]:
    """Return average precision, and sensitivity and specificity at STATED of the other, as scikit-learn's curves.

    Each is the highest of all thresholds that reach STATED, 0 where none does.
    """
    order_N = np.argsort(-score_N, kind="stable")
    is_last_N = np.diff(score_N[order_N], append=-np.inf) != 0
    last_G = np.flatnonzero(is_last_N)  # of the samples with each distinct score
    hits_G = label_N[order_N].cumsum()[last_G]
    flagged_G = last_G + 1
    alarms_G = flagged_G - hits_G
    new_hits_G = np.diff(hits_G, prepend=0)
    sensitivity_G = hits_G / hits_G[-1]
    specificity_G = 1 - alarms_G / alarms_G[-1]
    enough = STATED - 1e-12  # a share of exactly STATED counts, whatever its rounding
    precision = float((new_hits_G * hits_G / flagged_G).sum() / hits_G[-1])
    sensitivity = sensitivity_G[specificity_G >= enough].max(initial=0.0)
    specificity = specificity_G[sensitivity_G >= enough].max(initial=0.0)
    return precision, float(sensitivity), float(specificity)


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

    The squared error counts the subjects of `subjects_N`, (N,), or without them samples. It is the largest possible
    where a class has one alone.
    """
    samples, classes = log_probabilities_NC.shape
    sums_CS = torch.zeros(classes, len(COLUMNS), dtype=torch.float64)
    if classes > MOST_RANKED:
        return sums_CS
    margin_NC = margins(log_probabilities_NC)
    subject_N = np.arange(samples) if subjects_N is None else subjects_N.numpy()
    for label in np.unique(labels_N.numpy()).tolist():
        score_N = margin_NC[:, label]
        label_N = (labels_N == label).long().numpy()
        positives = int(label_N.sum())
        negatives = samples - positives
        if not negatives:
            continue
        placed = placements(score_N, label_N)
        auroc = float(placed[0].mean())
        clustered = clustered_variance(placed, subject_N, label_N)
        largest = auroc * (1 - auroc)
        variance = largest if np.isnan(clustered) else min(max(clustered, 0.0), largest)
        precision, sensitivity, specificity = operating_points(score_N, label_N)
        pairs = positives * negatives
        sums = {
            "pairs": pairs,
            "ordered": round(2 * pairs * auroc) / 2,  # a whole number of halves, but for rounding
            "squared-error": pairs**2 * variance,
            "positives": positives,
            "precision": positives * precision,
            "sensitivity": positives * sensitivity,
            "negatives": negatives,
            "specificity": negatives * specificity,
        }
        row_S = [float(sums[column]) for column in COLUMNS]
        sums_CS[label] = torch.tensor(row_S, dtype=torch.float64)
    return sums_CS


def contradiction(ranking_CS: Tensor, samples_C: Tensor) -> str:
    """Return how the sums of one set contradict how many samples it has of each class, or an empty sentence."""
    positives_C = samples_C.double()
    negatives_C = positives_C.sum() - positives_C
    pairs_C = positives_C * negatives_C
    of_pairs = [pairs_C, pairs_C, pairs_C**2]
    largest_CS = torch.stack([*of_pairs, *[positives_C] * 3, *[negatives_C] * 2], 1)
    is_ranked_C = (pairs_C > 0) & (len(samples_C) <= MOST_RANKED)
    largest_CS *= is_ranked_C[:, None]
    if not torch.equal(ranking_CS[:, COUNTS], largest_CS[:, COUNTS]):
        return "are over other pairs than their samples make"
    slack = 1 + 1e-9  # for the rounding of sums
    return "have a mean above 1" if (ranking_CS > slack * largest_CS).any() else ""
