"""Ranking metrics of the final models: with intervals, by class, and for two methods on the same samples."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from client_app.ranking import (
    STATED,
    clustered_variance,
    margins,
    order_of,
    placements,
    ranked,
)
from fedskew.formatting import p_value
from fedskew.report.format import (
    NONE,
    Table,
    TableCell,
    ends_words,
    fitted,
    named,
    plain,
    signed,
)
from fedskew.report.inference import Floats, seed_of_names, summarize_seeds
from fedskew.report.results import ExperimentResults, SeedResult
from fedskew.report.rounds_to_target import by_seed, reference
from fedskew.report.tables import class_names, per_column, spread_words
from server_app.evaluation import MOST_LISTED, OF_POSITIVE, PositiveClass, positive_class
from server_app.predictions import Predictions, read_predictions
from server_app.record import BY_CLASS
from server_app.run_folder import RunFolder

DRAWS = 200
HEADINGS = {
    "AUROC": "auroc",
    "AUPRC": "auprc",
    f"sensitivity at {100 * STATED:.0f} % specificity": f"sensitivity-at-specificity-{100 * STATED:.0f}",
    f"specificity at {100 * STATED:.0f} % sensitivity": f"specificity-at-sensitivity-{100 * STATED:.0f}",
    "Brier score": "brier",
}
"""The numbers by their headings; those by class are the first four."""
ABOUT = (
    "Of the last round, in percent but for the Brier score, of which less is better. Of two classes AUPRC, "
    "sensitivity and specificity are about the positive class (the rarer one, or the setting positive-class), as "
    "the captions say; of more every class stands against the rest, and the numbers are macro means over the "
    f"classes. The 95 % interval is a bootstrap of {DRAWS} draws: seeds, and within a seed the test samples of "
    "each class, or the subjects where the data name them. Where clients measure they send sums, no scores: AUROC "
    "then has its standard error over test samples, is over the pairs within a client, and the rest has no "
    "interval. Chance is an AUROC of 50 and an AUPRC of the class's share."
)


def predictions_of(measured: SeedResult) -> Predictions | None:
    """Return the final model's predictions on the test samples; None where the run kept none."""
    return read_predictions(RunFolder(measured.run.settings.folder), measured.cell.deployed)


def positive_of(measured: SeedResult) -> PositiveClass | None:
    """Return the positive class of two in a run's last round; None for more classes."""
    return measured.positive_class(measured.points[-1])


def resampled(
    predictions: Predictions,
    draws: np.random.Generator,
    number: int = DRAWS,
    positive: int | None = None,
) -> dict[str, Floats]:
    """Return by key the numbers on `number` test sets, (number,), drawn with replacement from every class.

    They are macro means over the classes; see `drawn_weights` for what is drawn.

    Args:
        predictions: of a run's final model on its test samples.
        draws: gives the test sets.
        number: of test sets.
        positive: of two classes the one that the numbers in OF_POSITIVE are about; without it the one with fewer
            samples.
    """
    labels_N = predictions.labels_N
    log_NC = predictions.log_probabilities_NC
    classes = log_NC.shape[1]
    if positive is None:
        rarer = positive_class(("0", "1"), tested_C=np.bincount(labels_N).tolist())
        positive = 1 if rarer is None else rarer.label
    weights_BN = drawn_weights(labels_N, predictions.subjects_N, draws, number)

    errors_NC = np.exp(log_NC) - np.eye(classes)[labels_N]
    brier_N = (errors_NC**2).sum(1)
    if classes == 2:
        brier_N = brier_N / 2  # the usual Brier score of two classes counts one of them
    result = {"brier": weights_BN @ brier_N / weights_BN.sum(1)}

    margin_NC = margins(torch.from_numpy(log_NC))
    by_class = []
    for label in np.unique(labels_N):
        order_N, starts_G = order_of(margin_NC[:, label])
        sorted_BN = weights_BN[:, order_N]
        positive_N = labels_N[order_N] == label
        hits_BG = np.add.reduceat(sorted_BN * positive_N, starts_G, axis=1)
        others_BG = np.add.reduceat(sorted_BN * ~positive_N, starts_G, axis=1)
        numbers = ranked(hits_BG, others_BG)
        by_class.append((numbers.auroc, numbers.auprc, numbers.sensitivity, numbers.specificity))
    for key, values in zip(HEADINGS.values(), zip(*by_class, strict=True), strict=False):
        of_one = key in OF_POSITIVE and classes == 2
        result[key] = values[positive] if of_one else np.mean(values, 0)
    return result


def drawn_weights(
    labels_N: NDArray[np.int64],
    subjects_N: NDArray[np.int64] | None,
    draws: np.random.Generator,
    number: int,
) -> Floats:
    """Return (number, N): how often each sample is in each drawn test set.

    Subjects are drawn, with all their samples: of those with samples of the same classes as many as there are. Without
    `subjects_N` every sample is a subject.
    """
    if subjects_N is None:
        subjects_N = np.arange(len(labels_N))
    subjects, index_N = np.unique(subjects_N, return_inverse=True)
    classes_S: list[set[int]] = [set() for _ in subjects]
    for index, label in zip(index_N.tolist(), labels_N.tolist(), strict=True):
        classes_S[index].add(label)
    strata: dict[tuple[int, ...], list[int]] = {}
    for subject, labels in enumerate(classes_S):
        members = strata.setdefault(tuple(sorted(labels)), [])
        members.append(subject)

    weights_BS = np.zeros((number, len(subjects)))
    # The order of the strata is the order of the draws, and so part of the numbers.
    for _, members in sorted(strata.items()):
        size = len(members)
        even = np.full(size, 1 / size)
        weights_BS[:, members] = draws.multinomial(size, even, number)
    return np.asarray(weights_BS[:, index_N])


def intervals(group: Sequence[SeedResult], seed: int) -> dict[str, tuple[float, float]]:
    """Return by key the 95 % interval of the mean over seeds; of AUROC alone where no run kept its predictions."""
    all_predictions = []
    for measured in group:
        predictions = predictions_of(measured)
        if predictions is None or len(np.unique(predictions.labels_N)) < 2:
            return by_errors(group)
        all_predictions.append(predictions)

    draws = np.random.default_rng(seed)
    by_run = []
    for measured, predictions in zip(group, all_predictions, strict=True):
        positive = positive_of(measured)
        label = None if positive is None else positive.label
        by_run.append(resampled(predictions, draws, positive=label))

    runs = len(by_run)
    chosen_BS = draws.integers(runs, size=(DRAWS, runs))
    result = {}
    for key in HEADINGS.values():
        values_RB = np.stack([numbers[key] for numbers in by_run])
        drawn_BS = draws.integers(DRAWS, size=chosen_BS.shape)
        means_B = values_RB[chosen_BS, drawn_BS].mean(1)
        scale = 1 if key == "brier" else 100
        low, high = np.percentile(means_B, [2.5, 97.5]) * scale
        result[key] = (float(low), float(high))
    return result


def by_errors(group: Sequence[SeedResult]) -> dict[str, tuple[float, float]]:
    """Return the interval of the mean AUROC by its recorded standard errors."""
    area = summarize_seeds(group, "last", "auroc")
    error = summarize_seeds(group, "last", "auroc-error")
    if area is None or error is None:
        return {}
    variance = sum(value**2 for value in error.by_seed.values())
    half = 1.96 * math.sqrt(variance) / error.n
    low = max(0.0, area.mean - half)
    high = min(100.0, area.mean + half)
    return {"auroc": (low, high)}


def ranking_tables(results: ExperimentResults) -> list[Table]:
    """Return the rankings' numbers, by class where these are few, and DeLong's test of two classes."""
    ends_of = {}
    for column in results.experiment.columns:
        for row in results.experiment.rows:
            group = results.of(row.label, column)
            if group:
                seed = seed_of_names(row.label, column)
                ends_of[row.label, column] = intervals(group, seed)

    def caption(column: str) -> str:
        ranks = "how the final models rank, mean ± standard deviation over seeds"
        return f"{ranks}{of_class(results, column)}."

    def shown(column: str) -> list[str]:
        runs = results.in_column(column)
        return [heading for heading, key in HEADINGS.items() if summarize_seeds(runs, "last", key)]

    def cell(row: str, column: str, heading: str) -> TableCell:
        key = HEADINGS[heading]
        low, high = ends_of[row, column].get(key, (math.nan, math.nan))
        group = results.of(row, column)
        summary = summarize_seeds(group, "last", key)
        ends = ends_words(low, high, key)
        ends = ends.replace("+", "").strip()  # the numbers are no differences
        return TableCell(spread_words(summary, key), ends)

    tables = per_column(results, caption, shown, cell)
    return [*tables, *class_tables(results), *delong_tables(results)]


def of_class(results: ExperimentResults, column: str) -> str:
    """Return the words about the positive class of a column's runs; empty where they have more than two classes."""
    positives = [positive_of(run) for run in results.in_column(column)]
    names = list(dict.fromkeys(positive.name for positive in positives if positive is not None))
    if not names:
        return ""
    if len(names) == 1:
        return f"; AUPRC, sensitivity and specificity of class {names[0]}"
    several = " and ".join(names)
    return f"; the positive class is not the same in all runs ({several}): set positive-class"


def class_tables(results: ExperimentResults) -> list[Table]:
    """Return AUROC and AUPRC of every class against the rest, for more than two classes and not too many."""
    classes = class_names(results)
    if not 2 < len(classes) <= MOST_LISTED:
        return []
    tables = []
    for heading in ("AUROC", "AUPRC"):
        tables += class_tables_of(results, classes, heading)
    return [fitted(table, "class") for table in tables]


def class_tables_of(
    results: ExperimentResults,
    classes: Sequence[str],
    heading: str,
) -> list[Table]:
    """Return one table per column of the number with this heading, by class."""
    key = HEADINGS[heading]

    def cell(row: str, column: str, name: str) -> TableCell:
        values_C = by_class(results.of(row, column), key)
        if values_C is None:
            return TableCell(NONE)
        value = values_C[classes.index(name)]
        if math.isnan(value):
            return TableCell(NONE)
        return TableCell(f"{100 * value:.0f}", heat=value)

    def shown(column: str) -> Sequence[str]:
        values_C = by_class(results.in_column(column), key)
        complete = values_C is not None and len(values_C) == len(classes)
        return classes if complete else []

    caption = f"{heading} by class, against the rest, in percent, last round, mean over seeds."
    return per_column(results, lambda _: caption, shown, cell)


def by_class(group: Sequence[SeedResult], key: str) -> Floats | None:
    """Return (C,): a number of every class, a mean over the seeds that have it.

    None where no run has it, or runs have it of different numbers of classes.
    """
    values_RC = []
    for run in group:
        values_C = run.points[-1].numbers.by_class.get(key + BY_CLASS)
        if values_C:
            values_RC.append(values_C)
    if len({len(values_C) for values_C in values_RC}) != 1:
        return None
    return np.asarray(np.array(values_RC, float).mean(0))


def delong(
    first_N: Floats,
    second_N: Floats,
    label_N: NDArray[np.int64],
    subject_N: NDArray[np.int64] | None = None,
) -> tuple[float, float, float]:
    """Return the difference of two AUROCs on the same samples, its standard error, and the two-sided p.

    The test is DeLong's (DeLong et al. 1988), with subjects Obuchowski's (1997) for clustered samples. p is 1 where
    the scores rank alike, NaN where a class has a single sample or subject.

    Args:
        first_N: scores of the one model.
        second_N: scores of the other.
        label_N: 0 or 1.
        subject_N: whose the samples are; None where each is a subject of its own.
    """
    first_1, first_0 = placements(first_N, label_N)
    second_1, second_0 = placements(second_N, label_N)
    # AUROC is the mean of either class's placements, so their differences give that of the AUROCs and its variance.
    apart_1 = first_1 - second_1
    apart_0 = first_0 - second_0
    difference = float(apart_1.mean())
    subjects = np.arange(len(label_N)) if subject_N is None else subject_N
    variance = clustered_variance((apart_1, apart_0), subjects, label_N)
    if math.isnan(variance):
        return difference, math.nan, math.nan
    error = math.sqrt(max(0.0, variance))  # rounding can leave it a little below 0
    if error == 0:
        p = 1.0 if difference == 0 else 0.0
    else:
        p = math.erfc(abs(difference) / error / math.sqrt(2))
    return difference, error, p


def delong_tables(results: ExperimentResults) -> list[Table]:
    """Return DeLong's test of every row against the one that it is compared with, on each seed's test samples."""
    tables = []
    for column in results.experiment.columns:
        table = delong_table(results, column)
        if table is not None:
            tables.append(table)
    return tables


def delong_table(results: ExperimentResults, column: str) -> Table | None:
    """Return one table of `delong_tables`; None where no two runs have predictions that are comparable."""
    standard = reference(results.experiment)
    rows = []
    of_subjects = False
    for row in results.experiment.rows:
        if row.label == standard:
            continue
        for measured in results.of(row.label, column):
            than = by_seed(results, standard, column, measured.cell.seed)
            ours = predictions_of(measured)
            theirs = None if than is None else predictions_of(than)
            if ours is None or theirs is None or not comparable(ours, theirs):
                continue
            of_subjects = of_subjects or ours.subjects_N is not None
            our_odds = log_odds(ours)
            their_odds = log_odds(theirs)
            difference, error, p = delong(our_odds, their_odds, ours.labels_N, ours.subjects_N)
            row_cells = [
                TableCell(row.label),
                TableCell(str(measured.cell.seed)),
                TableCell(f"{signed(100 * difference)} points"),
                TableCell(plain(100 * error)),
                TableCell(p_value(p)),
            ]
            rows.append(row_cells)
    if not rows:
        return None
    caption = (
        f"{named(column)}DeLong's test against {standard}, on the same test samples; "
        "of one training each"
    )
    if of_subjects:
        caption += ", with the subject as sampling unit"
    headings = ("method", "seed", "AUROC difference", "standard error", "p")
    return Table(f"{caption}.", list(map(TableCell, headings)), rows)


def log_odds(predictions: Predictions) -> Floats:
    """Return (N,): the log odds of class 1 of two."""
    log_NC = predictions.log_probabilities_NC
    return np.asarray(log_NC[:, 1] - log_NC[:, 0])


def comparable(first: Predictions, second: Predictions) -> bool:
    """Return whether both are of the same samples of two classes."""
    classes = first.log_probabilities_NC.shape[1]
    if classes != 2 or len(np.unique(first.labels_N)) != 2:
        return False
    if not np.array_equal(first.labels_N, second.labels_N):
        return False
    if first.subjects_N is None or second.subjects_N is None:
        return first.subjects_N is second.subjects_N
    return np.array_equal(first.subjects_N, second.subjects_N)
