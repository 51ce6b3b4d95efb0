"""How well the final models rank the test samples: with intervals, by class, and two methods on the same samples."""

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from client_app.ranking import STATED, margins, order_of, ranked
from fedskew.numbers import p_value
from fedskew.report.gather import Gathered, Measured
from fedskew.report.levels import by_seed, reference
from fedskew.report.statistics import Floats, summarize_seeds
from fedskew.report.table import (
    NONE,
    Table,
    TableCell,
    ends_words,
    fitted,
    named,
    per_column,
    plain,
    signed,
    spread_words,
)
from server_app.evaluation import MOST_LISTED
from server_app.predictions import Predictions, read_predictions
from server_app.record import BY_CLASS
from server_app.results import RunFolder

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
    "Of the last round, one class against the rest, macro means over the classes; in percent but for the Brier score, "
    f"of which less is better. The 95 % interval is a bootstrap of {DRAWS} draws: seeds, and within a seed the test "
    "samples of each class. Where clients measure they send sums, no scores: AUROC then has its standard error over "
    "test samples, is over the pairs within a client, and the rest has no interval. Chance is an AUROC of 50 and an "
    "AUPRC of the class's share."
)


def predictions_of(measured: Measured) -> Predictions | None:
    """Return what the final model said of the test samples; None where the run kept nothing of it."""
    return read_predictions(RunFolder(measured.run.settings.folder), measured.cell.deployed)


def resampled(
    said: Predictions, draws: np.random.Generator, number: int = DRAWS
) -> dict[str, Floats]:
    """Return by key the macro means on `number` test sets, (number,), drawn with replacement from every class."""
    labels_N, log_NC = said.labels_N, said.log_probabilities_NC
    weights_BN = np.zeros((number, len(labels_N)))
    for label in np.unique(labels_N):
        members = np.flatnonzero(labels_N == label)
        weights_BN[:, members] = draws.multinomial(
            len(members), np.full(len(members), 1 / len(members)), number
        )
    margin_NC, by_class = margins(torch.from_numpy(log_NC)), []
    for label in np.unique(labels_N):
        order_N, starts_G = order_of(margin_NC[:, label])
        sorted_BN, positive_N = weights_BN[:, order_N], labels_N[order_N] == label
        hits_BG, others_BG = (
            np.add.reduceat(sorted_BN * chosen_N, starts_G, axis=1)
            for chosen_N in (positive_N, ~positive_N)
        )
        numbers = ranked(hits_BG, others_BG)
        by_class.append((numbers.auroc, numbers.auprc, numbers.sensitivity, numbers.specificity))
    errors_N = ((np.exp(log_NC) - np.eye(log_NC.shape[1])[labels_N]) ** 2).sum(1) / (
        2 if log_NC.shape[1] == 2 else 1
    )
    means = [np.mean(values, axis=0) for values in zip(*by_class, strict=True)]
    return dict(
        zip(HEADINGS.values(), [*means, weights_BN @ errors_N / len(labels_N)], strict=True)
    )


def intervals(group: Sequence[Measured], seed: int) -> dict[str, tuple[float, float]]:
    """Return by key the 95 % interval of the mean over seeds; of AUROC alone where no run kept its predictions."""
    draws = np.random.default_rng(seed)
    known = [said for measured in group if (said := predictions_of(measured)) is not None]
    if len(known) < len(group) or any(len(np.unique(said.labels_N)) < 2 for said in known):
        return by_errors(group)
    by_run = [resampled(said, draws) for said in known]
    chosen_BS = draws.integers(len(by_run), size=(DRAWS, len(by_run)))
    result = {}
    for key in HEADINGS.values():
        values_RB = np.stack([numbers[key] for numbers in by_run])
        means_B = values_RB[chosen_BS, draws.integers(DRAWS, size=chosen_BS.shape)].mean(1)
        low, high = np.percentile(means_B, [2.5, 97.5]) * (1 if key == "brier" else 100)
        result[key] = (float(low), float(high))
    return result


def by_errors(group: Sequence[Measured]) -> dict[str, tuple[float, float]]:
    """Return the interval of the mean AUROC by its recorded standard errors."""
    area, error = (summarize_seeds(group, "last", key) for key in ("auroc", "auroc-error"))
    if area is None or error is None:
        return {}
    half = 1.96 * math.sqrt(sum(value**2 for value in error.by_seed.values())) / error.n
    return {"auroc": (max(0.0, area.mean - half), min(100.0, area.mean + half))}


def ranking_tables(gathered: Gathered) -> list[Table]:
    """Return the rankings' numbers, by class where these are few, and DeLong's test of two classes."""
    rows = [row.label for row in gathered.experiment.rows]
    known = {
        (row, column): intervals(gathered.of(row, column), number)
        for column in gathered.experiment.columns
        for number, row in enumerate(rows)
        if gathered.of(row, column)
    }

    def cell(row: str, column: str, heading: str) -> TableCell:
        key = HEADINGS[heading]
        ends = known[row, column].get(key, (math.nan, math.nan))
        text = spread_words(summarize_seeds(gathered.of(row, column), "last", key), key)
        return TableCell(text, ends_words(*ends, key).replace("+", "").strip())

    def shown(column: str) -> list[str]:
        runs = [run for row in rows for run in gathered.of(row, column)]
        return [heading for heading, key in HEADINGS.items() if summarize_seeds(runs, "last", key)]

    tables = per_column(
        gathered,
        lambda _: "how the final models rank, mean ± standard deviation over seeds.",
        shown,
        cell,
    )
    return [*tables, *class_tables(gathered), *delong_tables(gathered)]


def class_tables(gathered: Gathered) -> list[Table]:
    """Return AUROC and AUPRC of every class against the rest."""
    names = {run.settings.data.class_names for run in gathered.runs.values()}
    if len(names) != 1 or not 2 < len(classes := list(names.pop())) <= MOST_LISTED:
        return []
    tables = []
    for heading, key in list(HEADINGS.items())[:2]:

        def cell(row: str, column: str, name: str, key: str = key) -> TableCell:
            values = by_class(gathered.of(row, column), key)
            value = values[classes.index(name)] if values is not None else math.nan
            return (
                TableCell(NONE)
                if math.isnan(value)
                else TableCell(f"{100 * value:.0f}", heat=value)
            )

        def shown(column: str, key: str = key) -> list[str]:
            runs = [
                run for row in gathered.experiment.rows for run in gathered.of(row.label, column)
            ]
            values = by_class(runs, key)
            return classes if values is not None and len(values) == len(classes) else []

        caption = partial(class_caption, heading)
        tables += per_column(gathered, caption, shown, cell)
    return [fitted(table, "class") for table in tables]


def class_caption(heading: str, column: str) -> str:
    """Return the caption of a number by class."""
    return f"{heading} by class, against the rest, in percent, last round, mean over seeds."


def by_class(group: Sequence[Measured], key: str) -> Floats | None:
    """Return (C,): a number of every class, a mean over the seeds that have it."""
    listed = [
        values
        for run in group
        for point in run.points[-1:]
        if (values := point.numbers.by_class.get(key + BY_CLASS))
    ]
    return (
        np.array(listed, float).mean(0)
        if listed and len({len(values) for values in listed}) == 1
        else None
    )


def placements(score_N: Floats, label_N: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Return of every sample of class 1 the share of others below it, and of every other that of class 1 above it."""
    positive, negative = np.sort(score_N[label_N == 1]), np.sort(score_N[label_N == 0])

    def below(sorted_M: Floats, value_K: Floats) -> Floats:
        left_K, right_K = (
            np.searchsorted(sorted_M, value_K),
            np.searchsorted(sorted_M, value_K, "right"),
        )
        return np.asarray((left_K + right_K) / (2 * len(sorted_M)))

    return below(negative, score_N[label_N == 1]), 1 - below(positive, score_N[label_N == 0])


def delong(
    first_N: Floats, second_N: Floats, label_N: NDArray[np.int64]
) -> tuple[float, float, float]:
    """Return the difference of two AUROCs on the same samples, its standard error, and the two-sided p (DeLong et al.
    1988), of scores and labels 0 and 1. p is 1 where the scores rank alike, NaN where a class has a single sample."""
    pairs = zip(placements(first_N, label_N), placements(second_N, label_N), strict=True)
    apart_1, apart_0 = (ours - theirs for ours, theirs in pairs)
    difference = float(apart_1.mean())
    if min(len(apart_1), len(apart_0)) < 2:
        return difference, math.nan, math.nan
    error = math.sqrt(apart_1.var(ddof=1) / len(apart_1) + apart_0.var(ddof=1) / len(apart_0))
    return (
        difference,
        error,
        math.erfc(abs(difference) / error / math.sqrt(2)) if error else float(difference == 0),
    )


def delong_tables(gathered: Gathered) -> list[Table]:
    """Return DeLong's test of every row against the one that it is compared with, on each seed's test samples."""
    standard, tables = reference(gathered.experiment), []
    for column in gathered.experiment.columns:
        rows = []
        for row in gathered.experiment.rows:
            for measured in gathered.of(row.label, column) if row.label != standard else ():
                than = by_seed(gathered, standard, column, measured.cell.seed)
                pair = [predictions_of(run) for run in (measured, than) if run is not None]
                if (
                    len(pair) < 2
                    or pair[0] is None
                    or pair[1] is None
                    or not comparable(pair[0], pair[1])
                ):
                    continue
                scores = [
                    said.log_probabilities_NC[:, 1] - said.log_probabilities_NC[:, 0]
                    for said in pair
                    if said
                ]
                difference, error, p = delong(scores[0], scores[1], pair[0].labels_N)
                cells = (
                    str(measured.cell.seed),
                    f"{signed(100 * difference)} points",
                    plain(100 * error),
                    p_value(p),
                )
                rows.append([TableCell(row.label), *map(TableCell, cells)])
        if rows:
            headings = ("method", "seed", "AUROC difference", "standard error", "p")
            caption = (
                f"{named(column)}DeLong's test against {standard}, on the same test samples; of one "
                "training each."
            )
            tables.append(Table(caption, list(map(TableCell, headings)), rows))
    return tables


def comparable(first: Predictions, second: Predictions) -> bool:
    """Return whether both are of the same samples of two classes."""
    two = first.log_probabilities_NC.shape[1] == 2 and len(np.unique(first.labels_N)) == 2
    return two and np.array_equal(first.labels_N, second.labels_N)
