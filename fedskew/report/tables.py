"""Tables of numbers: ours beside the paper's, every selection, rankings, classes, clients and trials."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from client_app.personal import is_personal
from client_app.ranking import STATED
from fedskew.experiments.experiments import Experiment
from fedskew.experiments.plan import Tuned
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
    table,
    words,
    words_and_unit,
)
from fedskew.report.inference import RESAMPLES, Estimate, Floats
from fedskew.report.results import ColumnResults, ExperimentResults, RowResults
from fedskew.report.rounds_to_target import in_rounds, reached, takes_training
from fedskew.report.strata import estimated
from fedskew.report.unfit_rows import chance_words, seeds_words
from server_app.evaluation import MOST_LISTED
from server_app.keys import SELECTIONS
from server_app.record import BY_CLASS, Spread
from server_app.round_selection import Point
from server_app.run_settings import Scalar

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
            by_round = [row.by(column.metric, selection) for selection in SELECTIONS]
            estimates = {(one.metric, one.selection): one.estimate for one in by_round}
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


def spread_words(found: Estimate | None, metric: str = "") -> str:
    """Return mean and standard deviation."""
    if found is None:
        return NONE
    mean = plain(found.mean, metric)
    return mean if found.sd is None else f"{mean} ± {plain(found.sd, metric)}"


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
    metrics: Mapping[str, str],
    selections: Mapping[str, str] | None = None,
    intervals: bool = False,
) -> Table:
    """Return means over seeds, under the headings that any row has a number for.

    Args:
        column: of the experiment.
        caption: of the table; {metric} stands for the column's number and {positive} for its positive class.
        metrics: by heading; an empty metric is the column's own.
        selections: by heading; without them the experiment's.
        intervals: whether the interval of the mean stands below it.
    """
    headings = ["method"]
    lines: list[Line] = [[row.row] for row in column.measured]
    for heading, metric in metrics.items():
        if metric.endswith("worst-decile") and not has_decile(column):
            continue
        selection = selections[heading] if selections else column.selection
        rows = [row.by(metric or column.metric, selection) for row in column.measured]
        if any(row.estimate for row in rows):
            headings.append(heading)
            for row, line in zip(rows, lines, strict=True):
                line.append(number_cell(row, intervals))
    texts = {"metric": words_and_unit(column.metric), "positive": positive_words(column)}
    return table(caption.format(**texts), headings, lines if len(headings) > 1 else [])


def number_cell(row: RowResults, interval: bool) -> TableCell:
    """Return mean and standard deviation over the seeds, and where asked for the 95 % interval of the mean below."""
    found = estimated(row) if interval else row.estimate
    if found is None or not interval:
        return TableCell(spread_words(found, row.metric))
    low, high = found.ends
    if in_percent(row.metric):
        low, high = max(low, 0.0), min(high, 100.0)
    ends = ends_words(low, high, row.metric).replace("+", "").strip()  # no differences
    return TableCell(spread_words(found, row.metric), ends)


def positive_words(column: ColumnResults) -> str:
    """Return the positive class of two that runs have; empty where they have more."""
    positives = [run.positive_class for run in column.runs]
    names = " and ".join(dict.fromkeys(one.name for one in positives if one is not None))
    return f"; AUPRC, sensitivity and specificity of class {names}" if names else ""


def has_decile(column: ColumnResults) -> bool:
    """Return whether a run of the column has clients enough for a worst decile."""
    return any(run.run.clients >= LEAST_CLIENTS_OF_DECILE for run in column.runs)


def selection_tables(results: ExperimentResults) -> list[Table]:
    """Return ours by every selection."""
    selections = {SELECTION_WORDS[selection]: selection for selection in SELECTIONS}
    own = dict.fromkeys(selections, "")
    caption = "{metric}, by which round is read."
    return of_columns(results, lambda column: number_table(column, caption, own, selections))


def ranking_tables(results: ExperimentResults) -> list[Table]:
    """Return how the final models rank the test samples, and AUROC and AUPRC by class where these are few."""
    caption = "how the final models rank, mean ± standard deviation over seeds{positive}."
    last = dict.fromkeys(RANKING, "last")
    tables = of_columns(results, lambda one: number_table(one, caption, RANKING, last, True))
    for heading in ("AUROC", "AUPRC"):
        about = f"{heading} by class, against the rest, in percent, last round, mean over seeds."
        if len(class_names(results)) > 2:
            key = RANKING[heading] + BY_CLASS
            tables += class_tables(results, about, "last", key, MOST_LISTED)
    return tables


def recall_tables(results: ExperimentResults) -> list[Table]:
    """Return the recall of every class, for few classes."""
    selection = results.experiment.selection
    caption = f"recall by class in percent, {SELECTION_WORDS[selection]}, mean over seeds."
    return class_tables(results, caption, selection, "recall", MOST_CLASSES)


def class_names(results: ExperimentResults) -> list[str]:
    """Return the names of the classes; none when columns have different ones."""
    names = {run.settings.data.class_names for run in results.runs.values()}
    return list(names.pop()) if len(names) == 1 else []


def class_tables(
    results: ExperimentResults, caption: str, selection: str, key: str, most: int
) -> list[Table]:
    """Return one table per column of a number by class, in percent; none of more classes than `most`."""
    names = class_names(results)

    def of_column(column: ColumnResults) -> Table:
        lines: list[Line] = []
        for row in column.measured:
            share_C = by_class(row.by(column.metric, selection).points, key)
            if share_C is not None and len(share_C) == len(names):
                cells = []
                for percent in share_C.tolist():
                    shaded = TableCell(f"{percent:.0f}", heat=percent / 100)
                    cells.append(TableCell(NONE) if math.isnan(percent) else shaded)
                lines.append([row.row, *cells])
        return table(caption, ["method", *names], lines)

    return of_columns(results, of_column) if len(names) <= most else []


def by_class(points: Sequence[Point], key: str = "recall") -> Floats | None:
    """Return (C,): the recall, or another number by class, in percent, a mean over rounds and seeds that have it.

    NaN for a class without test samples. None where no run has it, or runs have it of different numbers of classes.
    """
    by_round = []
    for point in points:
        shares = point.numbers.recall if key == "recall" else point.numbers.by_class.get(key)
        if shares:
            by_round.append(shares)
    if len({len(shares) for shares in by_round}) != 1:
        return None
    return np.asarray(100 * np.array(by_round, float).mean(0))


def main_table(results: ExperimentResults) -> Table:
    """Return ours beside the paper's: mean and standard deviation, below them the paper's number and what is missing.

    A number is strong where it is the highest of the column's rows that have all seeds, and better than chance.
    """
    experiment = results.experiment
    marks = {about: f" [{number}]" for number, about in enumerate(experiment.notes, 1)}
    selected = SELECTION_WORDS[experiment.selection]
    one_metric = len({column.metric for column in results.columns}) == 1
    headings: Line = ["method"]
    lines: list[Line]
    lines = [[row.label + marks.get(row.label, "")] for row in experiment.rows]
    for column in results.columns:
        metric = words(column.metric)
        below = f"{metric}, {selected}" if column.name and not one_metric else selected
        headings.append(TableCell(column.name or metric, below))
        estimates = [main_estimate(experiment, row, column) for row in column.rows]
        means = [found.mean for found in estimates if found and found.n == len(results.seeds)]
        comparable = in_percent(column.metric) and not experiment.reaches and len(means) > 1
        best = max(means) if comparable else None
        for row, found, line in zip(column.rows, estimates, lines, strict=True):
            mark = marks.get(f"{row.row}, {column.name}", "")
            line.append(main_cell(experiment, row, found, best, mark))
    return table(main_caption(results, one_metric), headings, lines)


def main_cell(
    experiment: Experiment,
    row: RowResults,
    found: Estimate | None,
    highest: float | None,
    mark: str,
) -> TableCell:
    """Return a row's number with the mark of a note, strong where it has all seeds and the highest mean."""
    paper, diverged = papers_number(experiment, row), seeds_words(row)
    text, n, below = "diverged" if diverged else NONE, 0, []
    if found is not None:
        n = found.n
        text = in_rounds(found.mean) if experiment.reaches else spread_words(found, row.metric)
    if paper is not None:
        difference = f", {signed(found.mean - paper, row.metric)}" if found else ""
        below.append(f"paper {plain(paper, row.metric)}{difference}")
    if diverged or n < row.seeds:
        below.append(diverged or f"{n} of {row.seeds} seeds")
    at_chance = bool(chance_words(row))
    if at_chance:
        below.append("no better than chance")
    best = found is not None and n == row.seeds and found.mean == highest and not at_chance
    return TableCell(text + mark, "; ".join(below), best)


def main_caption(results: ExperimentResults, one_metric: bool) -> str:
    """Return what the main table shows, over which seeds, and what stands below."""
    experiment, seeds = results.experiment, results.seeds
    what = words_and_unit(experiment.metric) if one_metric else "each column's number"
    over = f"over seeds {', '.join(map(str, seeds))}" if len(seeds) > 1 else f"of seed {seeds[0]}"
    if experiment.reaches:
        what = f"rounds until {experiment.reaches}'s {words(experiment.metric)} is reached"
    elif len(seeds) > 1:
        over = f"mean ± standard deviation {over}"
    beside = "; below, the paper's number and ours minus it" if experiment.cells else ""
    return f"{what}, {over}{beside}."


def tuning_tables(results: ExperimentResults) -> list[Table]:
    """Return one table per column: the number of every trial by row and value; none where nothing is tuned."""
    tune = results.experiment.tune
    if tune is None:
        return []

    def of_column(column: ColumnResults) -> Table:
        lines: list[Line] = []
        for one in results.tuned:
            if one.column == column.name:
                cells = [trial_cell(one, value, column.metric) for value in one.scores]
                lines.append([one.row, *cells])
        headings = ["method", *(f"{tune.key} {value}" for value in tune.values)]
        caption = f"{words_and_unit(column.metric)} of the trials, seed {tune.seed}."
        return table(caption, headings, lines)

    return of_columns(results, of_column)


def trial_cell(tuned: Tuned, value: Scalar, metric: str) -> TableCell:
    """Return the number of one trial, strong for the best one, with a star at an end of what was tried."""
    score = tuned.scores[value]
    if value in tuned.diverged:
        return TableCell("diverged")
    if math.isnan(score):
        return TableCell(NONE)
    text = plain(score * scale_of(metric), metric)
    best = value == tuned.value
    if best and tuned.at_an_end:
        text += "*"
    return TableCell(text, strong=best)


def client_tables(results: ExperimentResults) -> list[Table]:
    """Return accuracy and AUROC at every client where clients measure: one row per client, mean and spread over
    seeds.

    Where clients have models and no test set of their own, accuracy on their own mix of classes comes first.
    """
    tables = []
    for column in results.columns:
        keys = BY_CLIENT
        for run in column.runs:
            personal = is_personal(run.cell.deployed, run.run.settings.variants)
            if personal and not run.run.own_test_sets:
                keys = {"accuracy on its own mix of classes": "local-accuracy", **BY_CLIENT}
        for what, key in keys.items():
            about = f"{what} in percent at each client, {SELECTION_WORDS[column.selection]}"
            tables.append(client_table(column, f"{column.titled(about)}, over seeds.", key))
    return [one for one in tables if one.rows]


def client_table(column: ColumnResults, caption: str, key: str) -> Table:
    """Return one table of `client_tables`, without rows where runs do not have it of the same clients."""
    known = {}
    runs = []
    for row in column.measured:
        values_SK = at_clients(row, key)
        if values_SK is not None:
            known[row.row] = values_SK
            runs += [run.run for run in row.runs]
    names = runs[0].sites if runs else []
    same = all(run.sites == names for run in runs)
    if not same or any(values_SK.shape[1] != len(names) for values_SK in known.values()):
        names = []
    lines: list[Line] = []
    for client, name in enumerate(names):
        lines.append([name, *(over_seeds(values[:, client], key) for values in known.values())])
    if lines:
        lowest = [np.fmin.reduce(values, axis=1) for values in known.values()]
        lines.append(["worst client", *(over_seeds(lowest_S, key) for lowest_S in lowest)])
    headings = ["client", *known]
    sizes = [run.samples.get("client-test") for run in runs]
    # Else they are of other sizes in another row or seed.
    if lines and sizes[0] and all(one == sizes[0] for one in sizes):
        headings.insert(1, "test samples")
        for line, size in zip(lines, [*sizes[0], ""], strict=True):
            line.insert(1, str(size))
    return table(caption, headings, lines)


def at_clients(row: RowResults, key: str) -> Floats | None:
    """Return (seeds, clients): a number that clients measured, a mean over the rounds selected.

    It is NaN where a client has none. None where it is not recorded, or not of the same clients in every seed.
    """
    by_seed = []
    for run in row.runs:
        values = [point.numbers.spreads.get(key, Spread()).values for point in run.selected]
        if values:
            by_seed.append(values)
    clients = {len(of_round) for values in by_seed for of_round in values}
    if len(clients) != 1 or clients == {0}:
        return None
    return np.array([np.mean(values, axis=0) for values in by_seed])


def over_seeds(value_S: Floats, key: str) -> TableCell:
    """Return mean and standard deviation of a share over the seeds that have one, shaded by it."""
    percent = 100 * value_S[~np.isnan(value_S)]
    if not len(percent):
        return TableCell(NONE)
    found = Estimate(dict(enumerate(percent.tolist())))
    return TableCell(spread_words(found, key), heat=found.mean / 100)
