"""From confusion matrices to the numbers that papers report."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from client_app.metrics import Scores, local_accuracies
from client_app.ranking import MOST_RANKED, STATED
from data import Federation
from server_app.record import BY_CLASS, ModelNumbers, Spread

MOST_SIZES = 100
"""More clients or classes than these are not worth a matrix in every run's settings.json."""
MOST_LISTED = 20
"""More classes than these have no ranking and no confusion matrix of their own in a record."""
OF_POSITIVE = (
    "auprc",
    f"sensitivity-at-specificity-{100 * STATED:.0f}",
    f"specificity-at-sensitivity-{100 * STATED:.0f}",
)
"""The numbers of a ranking that differ between the two classes of two: a mean over both is neither's. Sensitivity and
specificity of the one are specificity and sensitivity of the other, so that their means would be equal."""
BY_CLIENT = ("accuracy", "balanced-accuracy", "auroc", "auroc-error", "auprc", "brier")
"""The numbers that are recorded of every client that measures."""
FULL_LONG_TAIL = {"many": range(3), "medium": range(3, 7), "few": range(7, 10)}
"""Shot groups of a ten-class long tail, by class index as on CIFAR-10-LT with factor 100, also when it is shrunken."""


def shot_groups(counts_C: Sequence[int], long_tailed: bool) -> dict[str, list[int]]:
    """Return the classes of each shot group; none without a long tail.

    Ten classes go by index; else by training samples: more than 100, 20 to 100, fewer than 20 (ImageNet-LT's rule).
    """
    if not long_tailed:
        return {}
    if len(counts_C) == 10:
        return {name: list(classes) for name, classes in FULL_LONG_TAIL.items()}
    groups: dict[str, list[int]] = {"many": [], "medium": [], "few": []}
    for label, count in enumerate(counts_C):
        name = "many" if count > 100 else "medium" if count >= 20 else "few"
        groups[name].append(label)
    return {name: classes for name, classes in groups.items() if classes}


def sizes(federation: Federation) -> dict[str, Any] | None:
    """Return what a report needs of the data, so that it need not have them; None beyond 100 clients or classes.

    Training samples by client and class; test samples by class, and by client where clients have their own test sets.
    Where the data name the subjects of test samples, also what is `tested` by class (subjects, where these are tested
    as one, else samples), and how many `independent` ones these are worth, by class and by client.
    """
    clients, classes = federation.counts_KC.shape
    if max(clients, classes) > MOST_SIZES:
        return None
    labels_N = federation.dataset.test.labels[federation.global_test]
    tests = federation.test_indices
    tested = np.bincount(labels_N, minlength=classes).tolist()
    run: dict[str, Any] = {
        "clients": federation.client_names,
        "train": federation.counts_KC.tolist(),
        "test": tested,
        "client-test": None if tests is None else [len(indices) for indices in tests],
    }
    subjects_N = federation.subjects("test")
    if subjects_N is None:
        return run
    as_one = federation.dataset.tests_subjects
    independent = [worth(subjects_N[labels_N == label], as_one) for label in range(classes)]
    run["tested"] = independent if as_one else tested
    run["independent"] = independent
    run["client-independent"] = None
    if tests is not None:
        by_client = [federation.subjects("test", client) for client in range(clients)]
        run["client-independent"] = [
            worth(subjects_M, as_one) for subjects_M in by_client if subjects_M is not None
        ]
    return run


def worth(subjects_N: NDArray[np.int64], as_one: bool) -> int:
    """Return how many independent samples the samples of these subjects are worth.

    Subjects that are tested as one count once each. Samples that are tested one by one count as if those of a subject
    were all alike (Kish's effective size, (sum of sizes)^2 / sum of squared sizes), which is never too many.
    """
    _, sizes_S = np.unique(subjects_N, return_counts=True)
    if as_one or not len(sizes_S):
        return len(sizes_S)
    squares = (sizes_S**2).sum()
    effective = float(sizes_S.sum() ** 2 / squares)
    return max(1, round(effective))


def by_group(
    numbers: Mapping[str, float | Sequence[float]], groups: Mapping[str, Sequence[int]]
) -> dict[str, float]:
    """Return the mean over every shot group of each number that is recorded by class: `X-few` of `X-by-class`.

    A class without a number, NaN, counts nowhere.
    """
    result = {}
    for name, values_C in numbers.items():
        if not isinstance(values_C, Sequence) or not name.endswith(BY_CLASS):
            continue
        for group, classes in groups.items():
            of_group = [values_C[label] for label in classes]
            result[f"{name.removesuffix(BY_CLASS)}-{group}"] = mean_known(of_group)
    return result


@dataclass(frozen=True)
class PositiveClass:
    """Of two classes the one that AUPRC, sensitivity and specificity are about."""

    label: int
    name: str


def positive_class(
    names: Sequence[str],
    chosen: str = "",
    trained_C: Sequence[int] = (),
    tested_C: Sequence[int] = (),
) -> PositiveClass | None:
    """Return the positive class of two classes; None for more.

    Args:
        names: of the classes.
        chosen: the setting positive-class; empty is the rarer class.
        trained_C: training samples by class, which decide what is rarer; empty or zeros where nobody knows them.
        tested_C: test samples by class, which decide where the training samples do not; in the end it is the second.
    """
    if len(names) != 2:
        return None
    if chosen:
        return PositiveClass(list(names).index(chosen), chosen)
    for counts in (trained_C, tested_C):
        if len(counts) == 2 and counts[0] != counts[1]:
            label = 0 if counts[0] < counts[1] else 1
            return PositiveClass(label, names[label])
    return PositiveClass(1, names[1])


def rarer_tested(scores: Scores) -> PositiveClass | None:
    """Return, of two classes, the one with fewer test samples, called by its number; None for more classes."""
    tested_C = scores.confusion_CC.sum(1).tolist()
    return positive_class([str(label) for label in range(len(tested_C))], tested_C=tested_C)


def metrics_from(
    scores: Scores,
    groups: Mapping[str, Sequence[int]] | None = None,
    positive: PositiveClass | None = None,
) -> ModelNumbers:
    """Return the numbers of one set of scores; a class without test samples has recall NaN and counts nowhere.

    Of at most MOST_RANKED classes also those of their ranking, one class against the rest; NaN without a pair. Each is
    a mean over the classes that have one, but for two classes those of OF_POSITIVE, which are the `positive` class's
    (left out, of the class with fewer samples here). `auroc-error` is the mean of the classes' standard errors: that of
    a mean is not above it, and of two classes it is the standard error.
    """
    confusion_CC = scores.confusion_CC.double()
    samples_C = confusion_CC.sum(1)
    predicted_C = confusion_CC.sum(0)
    correct_C = confusion_CC.diagonal()
    total = samples_C.sum()
    recall_C = correct_C / samples_C
    is_tested_C = samples_C > 0
    f1_C = 2 * correct_C / (samples_C + predicted_C).clamp(min=1)
    means = {
        "accuracy": (correct_C.sum() / total).item(),
        "balanced-accuracy": recall_C[is_tested_C].mean().item(),
        "macro-f1": f1_C[is_tested_C].mean().item(),
        "loss": (scores.loss / total).item(),
        "calibration-error": calibration_error(scores),
        "brier": (scores.brier / total).item(),
    }
    ranks = ranking_numbers(scores.ranking) if len(recall_C) <= MOST_RANKED else {}
    means |= {name: mean_known(values) for name, values in ranks.items()}
    positive = positive or rarer_tested(scores)
    if positive is not None:
        for name in OF_POSITIVE:
            means[name] = ranks[name][positive.label]
    for name, classes in (groups or {}).items():
        of_group = list(classes)
        recall_G = recall_C[of_group][is_tested_C[of_group]]
        means[f"{name}-recall"] = recall_G.mean().item() if len(recall_G) else math.nan
    if len(recall_C) > MOST_LISTED:
        return ModelNumbers(means, recall_C.tolist())
    return ModelNumbers(
        means,
        recall_C.tolist(),
        by_class={f"{name}{BY_CLASS}": values for name, values in ranks.items()},
        confusion=scores.confusion_CC.tolist(),
        positive_class=None if positive is None else positive.name,
    )


def ranking_numbers(ranking_CS: Tensor) -> dict[str, list[float]]:
    """Return the numbers of every class's ranking against the rest; NaN for one without a pair."""
    pairs, ordered, error, positives, precision, sensitivity, negatives, specificity = (
        ranking_CS.unbind(1)
    )
    numbers = {
        "auroc": ordered / pairs,
        "auroc-error": error.sqrt() / pairs,
        "auprc": precision / positives,
        f"sensitivity-at-specificity-{100 * STATED:.0f}": sensitivity / positives,
        f"specificity-at-sensitivity-{100 * STATED:.0f}": specificity / negatives,
    }
    return {name: values.tolist() for name, values in numbers.items()}


def mean_known(values: Sequence[float]) -> float:
    """Return the mean of the values that are not NaN; NaN where all are."""
    finite = [value for value in values if not math.isnan(value)]
    return math.fsum(finite) / len(finite) if finite else math.nan


def calibration_error(scores: Scores) -> float:
    """Return the expected calibration error (Guo et al. 2017): sum over bins of |correct - confidence| / samples."""
    samples, correct, confidence = scores.calibration
    gaps = (correct - confidence).abs()
    return float(gaps.sum() / samples.sum())


def spread(values: Sequence[float]) -> Spread:
    """Return mean, worst and worst decile (mean of the lowest tenth, at least one) over clients, and the values.

    A NaN, of a client without test samples, is among the values and counts nowhere.
    """
    ordered = sorted(value for value in values if not math.isnan(value)) or [math.nan]
    lowest = ordered[: max(1, len(ordered) // 10)]
    return Spread(
        mean=math.fsum(ordered) / len(ordered),
        worst=ordered[0],
        worst_decile=math.fsum(lowest) / len(lowest),
        values=list(values),
    )


def of_clients(
    scores: Mapping[int, Scores],
    counts_KC: Tensor,
    groups: Mapping[str, Sequence[int]],
    positive: PositiveClass | None = None,
) -> ModelNumbers:
    """Return the numbers of scores that clients measured themselves: pooled, and over the clients.

    `counts_KC` are zeros between sites, whose local accuracy is NaN. The pooled `auroc` is over the pairs within a
    client: the mean of the clients' own, weighted by their pairs. Values over the clients are of all K in order, NaN of
    one without scores.
    """
    first, *others = scores.values()
    together = sum(others, first)
    # Every client's numbers are about the class that is positive for all of them.
    positive = positive or rarer_tested(together)
    pooled = metrics_from(together, groups, positive)
    by_client = {client: metrics_from(part, positive=positive) for client, part in scores.items()}
    columns: dict[str, Mapping[int, float]] = {}
    for name in BY_CLIENT:
        if name in pooled.means:
            columns[f"client-{name}"] = {
                client: numbers[name] for client, numbers in by_client.items()
            }
    columns["local-accuracy"] = {
        client: local_accuracies(numbers.recall, counts_KC[[client]])[0]
        for client, numbers in by_client.items()
    }
    everybody = range(len(counts_KC))
    spreads = {}
    for name, column in columns.items():
        spreads[name] = spread([column.get(client, math.nan) for client in everybody])
    return replace(pooled, spreads=spreads)


def of_server(
    scores: Scores,
    counts_KC: Tensor,
    groups: Mapping[str, Sequence[int]],
    positive: PositiveClass | None,
) -> ModelNumbers:
    """Return the numbers of scores on the global test set, and what they mean for each client's own classes."""
    pooled = metrics_from(scores, groups, positive)
    local = local_accuracies(pooled.recall, counts_KC)
    return replace(pooled, spreads={"local-accuracy": spread(local)})
