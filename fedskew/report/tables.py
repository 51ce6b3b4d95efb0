"""Tables of numbers: ours beside the paper's, every selection, rankings, classes, clients and trials."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from client_app.personal import is_personal
from client_app.ranking import STATED
from fedskew.experiments import Experiment
from fedskew.report.differences import differences, estimated, in_rounds, reached, takes_training
from fedskew.report.format import (
    NONE,
    SELECTION_WORDS,
    Line,
    Table,
    TableCell,
    ends_words,
    in_percent,
    plain,
    scale_of,
    signed,
    spread_words,
    table,
    words,
    words_and_unit,
)
from fedskew.report.inference import RESAMPLES, Estimate, Floats
from fedskew.report.results import ColumnResults, ExperimentResults, RowResults
from server_app.keys import SELECTIONS
from server_app.record import Spread
from server_app.round_selection import lower_is_better

MOST_CLASSES = 20
"""More classes than these have no table of recalls; the figure shows them."""
LEAST_CLIENTS_OF_DECILE = 20
"""Of fewer clients the lowest tenth is one client, and is called the worst client."""
BY_CLIENT = {"accuracy": "client-accuracy", "AUROC": "client-auroc"}
"""The numbers that have a table of clients."""
RANKING = {
    "AUROC": "auroc",
    "AUPRC": "auprc",
    f"sensitivity at {100 * STATED:.0f} % specificity": f"sensitivity-at-specificity-{100 * STATED:.0f}",
    f"specificity at {100 * STATED:.0f} % sensitivity": f"specificity-at-sensitivity-{100 * STATED:.0f}",
    "Brier score": "brier",
}
ABOUT_RANKING = (
    "Of the last round, in percent but for the Brier score, of which less is better. Of two classes AUPRC, "
    "sensitivity and specificity are about the positive class (the rarer one, or the setting positive-class), as "
    "the captions say; of more every class stands against the rest, and the numbers are macro means over the "
    "classes. The 95 % interval is that of differences and claims: the wider of Student's over the seeds and a "
    f"bootstrap of {RESAMPLES:,} draws; within a seed it draws AUROC by its standard error over test samples, or over "
    "subjects, and the other numbers not at all. Where clients measure, AUROC is over the pairs within a client. "
    "Chance is an AUROC of 50 and an AUPRC of the class's share."
)


def numbers(results: ExperimentResults) -> list[dict[str, Any]]:
    """Return one entry per row, column, metric and selection: the report's list of numbers, which CSV and JSON are.

    An entry has our mean, standard deviation and values by seed, the seeds that diverged, and, for the metric and
    selection that the paper used, the paper's number and ours minus it.
    """
    experiment = results.experiment
    entries = []
    for column in results.columns:
        main = (column.metric, column.selection)
        if experiment.reaches:
            main = (f"rounds to {experiment.reaches}'s {column.metric}", column.selection)
        for row in column.rows:
            estimates = {}
            for selection in SELECTIONS:
                estimates[column.metric, selection] = row.by(column.metric, selection).estimate
            estimates[main] = main_estimate(experiment, row, column)
            for (metric, selection), found in estimates.items():
                is_main = (metric, selection) == main
                paper = papers_number(experiment, row) if is_main else None
                # A row that diverged in every seed has no number and stands here once.
                if found is None and paper is None and not (is_main and row.diverged):
                    continue
                by_seed = found.by_seed if found else {}
                mean = found.mean if found else None
                entry = {
                    "experiment": experiment.name,
                    "column": column.name,
                    "row": row.row,
                    "metric": metric,
                    "selection": selection,
                    "n": len(by_seed),
                    "mean": mean,
                    "sd": found.sd if found else None,
                    "paper": paper,
                    "difference": None if mean is None or paper is None else mean - paper,
                    "seeds": list(by_seed),
                    "values": list(by_seed.values()),
                    "diverged": list(row.diverged),
                }
                entries.append(entry)
    return entries


def main_estimate(
    experiment: Experiment, row: RowResults, column: ColumnResults
) -> Estimate | None:
    """Return what the main table shows of a row over the seeds; None where no seed has it."""
    if not experiment.reaches:
        return row.estimate
    rounds = reached(row, column.reference) if takes_training(column) else {}
    by_seed = {seed: float(round) for seed, round in rounds.items() if round is not None}
    return Estimate(by_seed) if by_seed else None


def papers_number(experiment: Experiment, row: RowResults) -> float | None:
    """Return the number that the paper has in the main table; None where it has none."""
    place = [*experiment.columns].index(row.column)
    papers = experiment.cells.get(row.row)
    return papers[place] if papers else None


def main_table(results: ExperimentResults, with_differences: bool = False) -> Table:
    """Return ours beside the paper's: mean and standard deviation, below them the paper's number and what is missing.

    A number is strong where it is the highest of the column's rows that have all seeds, and better than chance.

    Args:
        results: of an experiment.
        with_differences: whether each row's difference from the reference row stands below; of rounds there is none.
    """
    experiment = results.experiment
    metrics = {column.metric for column in results.columns}
    headings: Line = ["method"]
    lines: list[Line] = [[row.label + mark(experiment, row.label)] for row in experiment.rows]
    for column in results.columns:
        metric = words(column.metric)
        below = SELECTION_WORDS[experiment.selection]
        if column.name and len(metrics) > 1:
            below = f"{metric}, {below}"
        headings.append(TableCell(column.name or metric, below))
        best = best_mean(experiment, column)
        beside = {}
        if with_differences and not experiment.reaches:
            for one in differences(column):
                beside[one.row.row] = one.in_words + "*" * one.distinguishable
        for row, line in zip(column.rows, lines, strict=True):
            cell = main_cell(experiment, row, column, best)
            texts = [cell.below, beside.get(row.row, "")]
            line.append(replace(cell, below="; ".join(filter(None, texts))))

    seeds = ", ".join(map(str, results.seeds))
    what = words_and_unit(experiment.metric) if len(metrics) == 1 else "each column's number"
    over = f"mean ± standard deviation over seeds {seeds}"
    if experiment.reaches:
        what = f"rounds until {experiment.reaches}'s {words(experiment.metric)} is reached"
        over = f"over seeds {seeds}"
    if len(results.seeds) == 1:
        over = f"of seed {seeds}"
    papers = "; below, the paper's number and ours minus it" if experiment.cells else ""
    caption = f"{what}, {over}{papers}."
    if with_differences and not experiment.reaches:
        last = f"the difference from {results.reference} (95 % interval; * distinguishable)"
        caption += f" Last, {last}."
    return table(caption, headings, lines)


def mark(experiment: Experiment, about: str) -> str:
    """Return the mark of the note about a row, or about a row in a column; empty where there is none."""
    notes = [*experiment.notes]
    return f" [{notes.index(about) + 1}]" if about in notes else ""


def best_mean(experiment: Experiment, column: ColumnResults) -> float | None:
    """Return the highest mean of the rows that have all seeds; None where they cannot be, or less is better."""
    means = [row.estimate.mean for row in column.rows if row.estimate and is_complete(row)]
    comparable = in_percent(column.metric) and not experiment.reaches and len(means) > 1
    return max(means) if comparable and not lower_is_better(column.metric) else None


def is_complete(row: RowResults) -> bool:
    """Return whether a row has a number in every seed."""
    return len(row.numbers) == row.seeds


def main_cell(
    experiment: Experiment, row: RowResults, column: ColumnResults, best: float | None
) -> TableCell:
    """Return a row's number with the mark of a note, strong where it is the best mean."""
    found = main_estimate(experiment, row, column)
    text = "diverged" if row.diverged else NONE
    difference = ""
    paper = papers_number(experiment, row)
    if found is not None:
        text = in_rounds(found.mean) if experiment.reaches else spread_words(found, row.metric)
        if paper is not None:
            difference = f", {signed(found.mean - paper, row.metric)}"
    at_chance = bool(row.at_chance)
    below = [
        "" if paper is None else f"paper {plain(paper, row.metric)}{difference}",
        row.seeds_with(found.n if found else 0),
        "no better than chance" if at_chance else "",
    ]
    is_best = found is not None and found.mean == best and is_complete(row) and not at_chance
    text += mark(experiment, f"{row.row}, {column.name}")
    return TableCell(text, "; ".join(filter(None, below)), is_best)


# ---- tables of a column ----------------------------------------------------------------------------------------------


def of_columns(
    results: ExperimentResults, of_column: Callable[[ColumnResults], Table]
) -> list[Table]:
    """Return the tables of the columns that have rows there, each with the column's name before its caption."""
    tables = []
    for column in results.columns:
        found = of_column(column)
        if found.rows:
            tables.append(replace(found, caption=column.titled(found.caption)))
    return tables


def number_table(
    column: ColumnResults,
    caption: str,
    numbers: Mapping[str, tuple[str, str]],
    intervals: bool = False,
) -> Table:
    """Return means over seeds, under the headings that any row has a number for.

    Args:
        column: of the experiment.
        caption: of the table.
        numbers: metric and selection by heading; empty ones are the column's own.
        intervals: whether the interval of the mean stands below it.
    """
    headings = ["method"]
    lines: list[Line] = [[row.row] for row in column.measured]
    for heading, (metric, selection) in numbers.items():
        most = max((run.run.clients for run in column.runs), default=0)
        if metric.endswith("worst-decile") and most < LEAST_CLIENTS_OF_DECILE:
            continue
        rows = [row.by(metric or column.metric, selection) for row in column.measured]
        if any(row.estimate for row in rows):
            headings.append(heading)
            for row, line in zip(rows, lines, strict=True):
                found = estimated(row) if intervals else row.estimate
                ends = ""
                if intervals and found:
                    low, high = found.ends
                    if in_percent(row.metric):
                        low, high = max(low, 0.0), min(high, 100.0)
                    ends = (
                        ends_words(low, high, row.metric).replace("+", "").strip()
                    )  # no differences
                line.append(TableCell(spread_words(found, row.metric), ends))
    return table(caption, headings, lines if len(headings) > 1 else [])


def selection_table(column: ColumnResults) -> Table:
    """Return ours by every selection."""
    by_heading = {SELECTION_WORDS[selection]: ("", selection) for selection in SELECTIONS}
    caption = f"{words_and_unit(column.metric)}, by which round is read."
    return number_table(column, caption, by_heading)


def ranking_table(column: ColumnResults) -> Table:
    """Return how the final models rank the test samples."""
    positives = [run.positive_class for run in column.runs]
    names = " and ".join(dict.fromkeys(one.name for one in positives if one is not None))
    about = f"; AUPRC, sensitivity and specificity of class {names}" if names else ""
    caption = f"how the final models rank, mean ± standard deviation over seeds{about}."
    by_heading = {heading: (metric, "last") for heading, metric in RANKING.items()}
    return number_table(column, caption, by_heading, intervals=True)


def recall_table(column: ColumnResults) -> Table:
    """Return the recall of every class; no rows for many classes."""
    lines: list[Line] = []
    names: Sequence[str] = ()
    for row in column.measured:
        names = row.runs[0].run.settings.data.class_names
        shares_SC = vectors(row, "recall")
        if shares_SC is not None and shares_SC.shape[1] == len(names) <= MOST_CLASSES:
            cells = [share_cell(share, f"{100 * share:.0f}") for share in shares_SC.mean(0)]
            lines.append([row.row, *cells])
    caption = f"recall by class in percent, {SELECTION_WORDS[column.selection]}, mean over seeds."
    return table(caption, ["method", *names], lines)


def tuning_table(results: ExperimentResults, column: ColumnResults) -> Table:
    """Return the number of every trial by row and value, the best one strong; no rows where nothing is tuned.

    A star marks a best one at an end of what was tried.
    """
    tune = results.experiment.tune
    if tune is None:
        return table("", [], [])
    lines: list[Line] = []
    for one in results.tuned:
        if one.column != column.name:
            continue
        cells = []
        for value, score in one.scores.items():
            is_best = value == one.value
            text = NONE if math.isnan(score) else plain(score * scale_of(one.metric), one.metric)
            if value in one.diverged:
                text = "diverged"
            star = "*" if is_best and one.at_an_end else ""
            cells.append(TableCell(text + star, strong=is_best))
        lines.append([one.row, *cells])
    headings = ["method", *(f"{tune.key} {value}" for value in tune.values)]
    caption = f"{words_and_unit(column.metric)} of the trials, seed {tune.seed}."
    return table(caption, headings, lines)


# ---- clients ---------------------------------------------------------------------------------------------------------


def client_tables(column: ColumnResults) -> list[Table]:
    """Return accuracy and AUROC at every client where clients measure: one row per client, mean and spread over
    seeds.

    Where clients have models and no test set of their own, accuracy on their own mix of classes comes first.
    """
    keys = BY_CLIENT
    for run in column.runs:
        personal = is_personal(run.cell.deployed, run.run.settings.variants)
        if personal and not run.run.own_test_sets:
            keys = {"accuracy on its own mix of classes": "local-accuracy", **BY_CLIENT}
    tables = []
    for what, key in keys.items():
        about = f"{what} in percent at each client, {SELECTION_WORDS[column.selection]}"
        tables.append(client_table(column, f"{column.titled(about)}, over seeds.", key))
    return [one for one in tables if one.rows]


def client_table(column: ColumnResults, caption: str, key: str) -> Table:
    """Return one table of `client_tables`, without rows where runs do not have it of the same clients."""
    known: dict[str, Floats] = {}
    clients = set()
    for row in column.measured:
        values_SK = vectors(row, key)
        if values_SK is not None:
            known[row.row] = values_SK
            clients |= {tuple(run.run.sites) for run in row.runs}
    names = clients.pop() if len(clients) == 1 else ()
    if not names or any(values.shape[1] != len(names) for values in known.values()):
        return table(caption, [], [])
    lines: list[Line] = [[name] for name in (*names, "worst client")]
    for values_SK in known.values():
        lowest_S = np.fmin.reduce(values_SK, axis=1)
        for line, value_S in zip(lines, [*values_SK.T, lowest_S], strict=True):
            line.append(over_seeds(value_S, key))
    return table(caption, ["client", *known], lines)


def over_seeds(value_S: Floats, key: str) -> TableCell:
    """Return mean and standard deviation of a share over the seeds that have one, shaded by it."""
    percent = 100 * value_S[~np.isnan(value_S)]
    if not len(percent):
        return TableCell(NONE)
    found = Estimate(dict(enumerate(percent.tolist())))
    return share_cell(found.mean / 100, spread_words(found, key))


def share_cell(share: float, text: str) -> TableCell:
    """Return a cell that is shaded by its share; a dash where it is NaN."""
    return TableCell(NONE) if math.isnan(share) else TableCell(text, heat=share)


def vectors(row: RowResults, key: str) -> Floats | None:
    """Return (seeds, N): shares by class, or as clients measured them, a mean over the rounds selected.

    A share is NaN where a class or a client has no test samples. None where it is not recorded, or not of as many
    classes or clients in every seed.

    Args:
        row: in a column.
        key: recall, or the name of a number over the clients.
    """
    by_seed = []
    sizes: set[int] = set()
    for run in row.runs:
        of_rounds = []
        for point in run.selected:
            numbers = point.numbers
            shares = numbers.spreads.get(key, Spread()).values
            of_rounds.append(numbers.recall if key == "recall" else shares)
        if any(of_rounds):
            by_seed.append(of_rounds)
            sizes |= set(map(len, of_rounds))
    if len(sizes) != 1:
        return None
    return np.array([np.mean(np.array(of_rounds, float), axis=0) for of_rounds in by_seed])
