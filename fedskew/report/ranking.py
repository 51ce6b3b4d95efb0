"""How well the final models rank the test samples: with intervals, by class, and two methods on the same samples."""

import math
from collections.abc import Sequence
from functools import partial

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
from fedskew.report.inference import Floats, summarize_seeds
from fedskew.report.results import ExperimentResults, SeedResult
from fedskew.report.rounds_to_target import by_seed, reference
from fedskew.report.tables import per_column, spread_words
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
    """Return what the final model said of the test samples; None where the run kept nothing of it."""
    return read_predictions(RunFolder(measured.run.settings.folder), measured.cell.deployed)


def positive_of(measured: SeedResult) -> PositiveClass | None:
    """Return the positive class of two in a run's last round; None for more classes."""
    return measured.positive_class(measured.points[-1])


def resampled(
    said: Predictions, draws: np.random.Generator, number: int = DRAWS, positive: int | None = None
) -> dict[str, Floats]:
    """Return by key the numbers on `number` test sets, (number,), drawn with replacement from every class.

    Where the samples' subjects are known, subjects are drawn, with all their samples: of those with samples of the same
    classes as many as there are.
    They are macro means over the classes. Of two classes those of OF_POSITIVE are of the class `positive`, left out of
    the one with fewer samples.
    """
    labels_N, log_NC = said.labels_N, said.log_probabilities_NC
    if positive is None:
        rarer = positive_class(("0", "1"), tested_C=np.bincount(labels_N).tolist())
        positive = 1 if rarer is None else rarer.label
    weights_BN = drawn_weights(labels_N, said.subjects_N, draws, number)
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
    result = {"brier": weights_BN @ errors_N / weights_BN.sum(1)}
    for key, values in zip(HEADINGS.values(), zip(*by_class, strict=True), strict=False):
        of_one = key in OF_POSITIVE and log_NC.shape[1] == 2
        result[key] = values[positive] if of_one else np.mean(values, 0)
    return result


def drawn_weights(
    labels_N: NDArray[np.int64],
    subjects_N: NDArray[np.int64] | None,
    draws: np.random.Generator,
    number: int,
) -> Floats:
    """Return (number, N): how often each sample is in each drawn test set; see `resampled`."""
    if subjects_N is None:
        subjects_N = np.arange(len(labels_N))
    place_N = np.unique(subjects_N, return_inverse=True)[1]
    classes_S: list[set[int]] = [set() for _ in range(int(place_N.max()) + 1)]
    for place, label in zip(place_N.tolist(), labels_N.tolist(), strict=True):
        classes_S[place].add(label)
    strata: dict[tuple[int, ...], list[int]] = {}
    for subject, labels in enumerate(classes_S):
        strata.setdefault(tuple(sorted(labels)), []).append(subject)

    weights_BS = np.zeros((number, len(classes_S)))
    for _, members in sorted(strata.items()):
        even = np.full(len(members), 1 / len(members))
        weights_BS[:, members] = draws.multinomial(len(members), even, number)
    return np.asarray(weights_BS[:, place_N])


def intervals(group: Sequence[SeedResult], seed: int) -> dict[str, tuple[float, float]]:
    """Return by key the 95 % interval of the mean over seeds; of AUROC alone where no run kept its predictions."""
    draws = np.random.default_rng(seed)
    known = [said for measured in group if (said := predictions_of(measured)) is not None]
    if len(known) < len(group) or any(len(np.unique(said.labels_N)) < 2 for said in known):
        return by_errors(group)
    by_run = [
        resampled(said, draws, positive=None if positive is None else positive.label)
        for said, positive in zip(known, map(positive_of, group), strict=True)
    ]
    chosen_BS = draws.integers(len(by_run), size=(DRAWS, len(by_run)))
    result = {}
    for key in HEADINGS.values():
        values_RB = np.stack([numbers[key] for numbers in by_run])
        means_B = values_RB[chosen_BS, draws.integers(DRAWS, size=chosen_BS.shape)].mean(1)
        low, high = np.percentile(means_B, [2.5, 97.5]) * (1 if key == "brier" else 100)
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
    rows = [row.label for row in results.experiment.rows]
    known = {
        (row, column): intervals(results.of(row, column), number)
        for column in results.experiment.columns
        for number, row in enumerate(rows)
        if results.of(row, column)
    }

    def cell(row: str, column: str, heading: str) -> TableCell:
        key = HEADINGS[heading]
        ends = known[row, column].get(key, (math.nan, math.nan))
        text = spread_words(summarize_seeds(results.of(row, column), "last", key), key)
        return TableCell(text, ends_words(*ends, key).replace("+", "").strip())

    def shown(column: str) -> list[str]:
        runs = [run for row in rows for run in results.of(row, column)]
        return [heading for heading, key in HEADINGS.items() if summarize_seeds(runs, "last", key)]

    tables = per_column(
        results,
        lambda column: (
            f"how the final models rank, mean ± standard deviation over seeds{of_class(results, column)}."
        ),
        shown,
        cell,
    )
    return [*tables, *class_tables(results), *delong_tables(results)]


def of_class(results: ExperimentResults, column: str) -> str:
    """Return the words about the positive class of a column's runs; empty where they have more than two classes."""
    runs = [run for row in results.experiment.rows for run in results.of(row.label, column)]
    names = dict.fromkeys(positive.name for run in runs if (positive := positive_of(run)))
    if len(names) > 1:
        several = " and ".join(names)
        return f"; the positive class is not the same in all runs ({several}): set positive-class"
    return f"; AUPRC, sensitivity and specificity of class {next(iter(names))}" if names else ""


def class_tables(results: ExperimentResults) -> list[Table]:
    """Return AUROC and AUPRC of every class against the rest."""
    names = {run.settings.data.class_names for run in results.runs.values()}
    if len(names) != 1 or not 2 < len(classes := list(names.pop())) <= MOST_LISTED:
        return []
    tables = []
    for heading, key in list(HEADINGS.items())[:2]:

        def cell(row: str, column: str, name: str, key: str = key) -> TableCell:
            values = by_class(results.of(row, column), key)
            value = values[classes.index(name)] if values is not None else math.nan
            return (
                TableCell(NONE)
                if math.isnan(value)
                else TableCell(f"{100 * value:.0f}", heat=value)
            )

        def shown(column: str, key: str = key) -> list[str]:
            runs = [run for row in results.experiment.rows for run in results.of(row.label, column)]
            values = by_class(runs, key)
            return classes if values is not None and len(values) == len(classes) else []

        caption = partial(class_caption, heading)
        tables += per_column(results, caption, shown, cell)
    return [fitted(table, "class") for table in tables]


def class_caption(heading: str, column: str) -> str:
    """Return the caption of a number by class."""
    return f"{heading} by class, against the rest, in percent, last round, mean over seeds."


def by_class(group: Sequence[SeedResult], key: str) -> Floats | None:
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


def delong(
    first_N: Floats,
    second_N: Floats,
    label_N: NDArray[np.int64],
    subject_N: NDArray[np.int64] | None = None,
) -> tuple[float, float, float]:
    """Return the difference of two AUROCs on the same samples, its standard error, and the two-sided p (DeLong et al.
    1988), of scores and labels 0 and 1; with the samples' subjects as Obuchowski (1997) has it for clustered samples.

    p is 1 where the scores rank alike, NaN where a class has a single sample or subject.
    """
    pairs = zip(placements(first_N, label_N), placements(second_N, label_N), strict=True)
    apart_1, apart_0 = (ours - theirs for ours, theirs in pairs)
    difference = float(apart_1.mean())
    subjects = np.arange(len(label_N)) if subject_N is None else subject_N
    variance = clustered_variance((apart_1, apart_0), subjects, label_N)
    if math.isnan(variance):
        return difference, math.nan, math.nan
    error = math.sqrt(max(0.0, variance))
    return (
        difference,
        error,
        math.erfc(abs(difference) / error / math.sqrt(2)) if error else float(difference == 0),
    )


def delong_tables(results: ExperimentResults) -> list[Table]:
    """Return DeLong's test of every row against the one that it is compared with, on each seed's test samples."""
    standard, tables = reference(results.experiment), []
    for column in results.experiment.columns:
        rows, of_subjects = [], False
        for row in results.experiment.rows:
            for measured in results.of(row.label, column) if row.label != standard else ():
                than = by_seed(results, standard, column, measured.cell.seed)
                pair = [predictions_of(run) for run in (measured, than) if run is not None]
                if (
                    len(pair) < 2
                    or pair[0] is None
                    or pair[1] is None
                    or not comparable(pair[0], pair[1])
                ):
                    continue
                of_subjects = of_subjects or pair[0].subjects_N is not None
                scores = [
                    said.log_probabilities_NC[:, 1] - said.log_probabilities_NC[:, 0]
                    for said in pair
                    if said
                ]
                difference, error, p = delong(
                    scores[0], scores[1], pair[0].labels_N, pair[0].subjects_N
                )
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
                f"training each{', with the subject as sampling unit' * of_subjects}."
            )
            tables.append(Table(caption, list(map(TableCell, headings)), rows))
    return tables


def comparable(first: Predictions, second: Predictions) -> bool:
    """Return whether both are of the same samples of two classes."""
    two = first.log_probabilities_NC.shape[1] == 2 and len(np.unique(first.labels_N)) == 2
    same = np.array_equal(first.labels_N, second.labels_N)
    subjects = (first.subjects_N, second.subjects_N)
    if subjects[0] is None or subjects[1] is None:
        return two and same and subjects[0] is subjects[1]
    return two and same and np.array_equal(subjects[0], subjects[1])
