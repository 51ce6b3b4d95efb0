"""Tables of numbers: ours beside the paper's, every selection, rankings, classes, clients and trials."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from client_app.personal import is_personal
from client_app.ranking import STATED
from fedskew.experiments.experiments import Experiment
from fedskew.experiments.tuning import Tuned
from fedskew.report.format import (
    NONE,
    SELECTION_WORDS,
    Table,
    TableCell,
    ends_words,
    in_percent,
    plain,
    scale_of,
    signed,
    words,
    words_and_unit,
)
from fedskew.report.inference import RESAMPLES, Estimate, Floats, with_interval
from fedskew.report.results import ColumnResults, ExperimentResults, RowResults
from fedskew.report.rounds_to_target import in_rounds, reached, takes_training
from fedskew.report.strata import strata
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
    for index, column in enumerate(results.columns):
        for row in column.rows:
            papers = experiment.cells.get(row.row)
            main = (main_metric(experiment, column.name), experiment.selection)
            estimates = {
                (column.metric, selection): row.by(column.metric, selection).estimate
                for selection in SELECTIONS
            }
            if experiment.reaches:
                estimates[main] = rounds_to_reference(row, column)
            for key, found in estimates.items():
                paper = papers[index] if papers and key == main else None
                # A row that diverged in every seed has no number and stands here once.
                if found is None and paper is None and not (key == main and row.diverged):
                    continue
                by_seed = found.by_seed if found else {}
                mean = found.mean if found else None
                entries.append(
                    {
                        "experiment": experiment.name,
                        "column": column.name,
                        "row": row.row,
                        "metric": key[0],
                        "selection": key[1],
                        "n": len(by_seed),
                        "mean": mean,
                        "sd": found.sd if found else None,
                        "paper": paper,
                        "difference": None if mean is None or paper is None else mean - paper,
                        "seeds": list(by_seed),
                        "values": list(by_seed.values()),
                        "diverged": list(row.diverged),
                    }
                )
    return entries


def main_metric(experiment: Experiment, column: str) -> str:
    """Return what the main table shows in a column: a metric, or the rounds until a row's number is reached."""
    metric = experiment.metric_of(column)
    return f"rounds to {experiment.reaches}'s {metric}" if experiment.reaches else metric


def rounds_to_reference(row: RowResults, column: ColumnResults) -> Estimate | None:
    """Return the rounds over the seeds in which a row reaches the reference's number; None where none does."""
    rounds = reached(row, column.reference) if takes_training(column) else {}
    by_seed = {seed: float(round) for seed, round in rounds.items() if round is not None}
    return Estimate(by_seed) if by_seed else None


def spread_words(found: Estimate | None, metric: str = "") -> str:
    """Return mean and standard deviation."""
    if found is None:
        return NONE
    mean = plain(found.mean, metric)
    return mean if found.sd is None else f"{mean} ± {plain(found.sd, metric)}"


def number_tables(
    results: ExperimentResults,
    caption: str,
    metrics: Mapping[str, str],
    selections: Mapping[str, str] | None = None,
    intervals: bool = False,
) -> list[Table]:
    """Return one table per column with means over seeds, under the headings that any row has a number for.

    Args:
        results: of the experiment.
        caption: of the tables; {metric} stands for the column's number and {positive} for its positive class.
        metrics: by heading; an empty metric is the column's own.
        selections: by heading; without them the experiment's.
        intervals: whether the interval of the mean stands below it.
    """
    tables = []
    for column in results.columns:
        columns = [[TableCell("method"), *(TableCell(row.row) for row in column.measured)]]
        for heading, metric in metrics.items():
            if metric.endswith("worst-decile") and not has_decile(column):
                continue
            selection = selections[heading] if selections else column.selection
            rows = [row.by(metric or column.metric, selection) for row in column.measured]
            if any(row.estimate for row in rows):
                cells = [number_cell(row, intervals) for row in rows]
                columns.append([TableCell(heading), *cells])
        if len(columns) > 1:
            metric, positive = words_and_unit(column.metric), positive_words(column)
            what = column.titled(caption.format(metric=metric, positive=positive))
            headings, *rows_of_cells = zip(*columns, strict=True)
            tables.append(Table(what, headings, rows_of_cells))
    return tables


def number_cell(row: RowResults, interval: bool) -> TableCell:
    """Return mean and standard deviation over the seeds, and where asked for the 95 % interval of the mean below."""
    found = row.estimate
    ends = ""
    if found is not None and interval:
        examples = [(strata(run),) for run in row.runs if run.number is not None]
        low, high = with_interval(found.by_seed, examples, (row.row, row.column)).ends
        if in_percent(row.metric):
            low, high = max(low, 0.0), min(high, 100.0)
        ends = ends_words(low, high, row.metric).replace("+", "").strip()  # no differences
    return TableCell(spread_words(found, row.metric), ends)


def positive_words(column: ColumnResults) -> str:
    """Return the positive class of two that runs have; empty where they have more."""
    positives = [run.positive_class for run in column.runs]
    names = dict.fromkeys(positive.name for positive in positives if positive is not None)
    of_class = f"; AUPRC, sensitivity and specificity of class {' and '.join(names)}"
    return of_class if names else ""


def has_decile(column: ColumnResults) -> bool:
    """Return whether a run of the column has clients enough for a worst decile."""
    return any(run.run.clients >= LEAST_CLIENTS_OF_DECILE for run in column.runs)


def selection_tables(results: ExperimentResults) -> list[Table]:
    """Return ours by every selection."""
    selections = {SELECTION_WORDS[selection]: selection for selection in SELECTIONS}
    caption = "{metric}, by which round is read."
    return number_tables(results, caption, dict.fromkeys(selections, ""), selections)


def ranking_tables(results: ExperimentResults) -> list[Table]:
    """Return how the final models rank the test samples, and AUROC and AUPRC by class where these are few."""
    caption = "how the final models rank, mean ± standard deviation over seeds{positive}."
    last = dict.fromkeys(RANKING, "last")
    tables = number_tables(results, caption, RANKING, last, intervals=True)
    if 2 < len(class_names(results)) <= MOST_LISTED:
        for heading in ("AUROC", "AUPRC"):
            about = (
                f"{heading} by class, against the rest, in percent, last round, mean over seeds."
            )
            tables += class_tables(results, about, "last", RANKING[heading] + BY_CLASS)
    return tables


def recall_tables(results: ExperimentResults) -> list[Table]:
    """Return the recall of every class, for few classes."""
    selection = results.experiment.selection
    caption = f"recall by class in percent, {SELECTION_WORDS[selection]}, mean over seeds."
    few = len(class_names(results)) <= MOST_CLASSES
    return class_tables(results, caption, selection, "recall") if few else []


def class_names(results: ExperimentResults) -> list[str]:
    """Return the names of the classes; none when columns have different ones."""
    names = {run.settings.data.class_names for run in results.runs.values()}
    return list(names.pop()) if len(names) == 1 else []


def class_tables(results: ExperimentResults, caption: str, selection: str, key: str) -> list[Table]:
    """Return one table per column of a number by class, in percent."""
    names = class_names(results)
    headings = list(map(TableCell, ("method", *names)))
    tables = []
    for column in results.columns:
        rows = []
        for row in column.measured:
            share_C = recalls(row.by(column.metric, selection).points, key)
            if share_C is not None and len(share_C) == len(names):
                rows.append([TableCell(row.row), *map(share_cell, share_C.tolist())])
        if rows:
            tables.append(Table(column.titled(caption), headings, rows))
    return tables


def share_cell(percent: float) -> TableCell:
    """Return a share in whole percent, shaded by it; NaN is none."""
    if math.isnan(percent):
        return TableCell(NONE)
    return TableCell(f"{percent:.0f}", heat=percent / 100)


def recalls(points: Sequence[Point], key: str = "recall") -> Floats | None:
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
    entry_of = {}
    for entry in numbers(results):
        main = (main_metric(experiment, entry["column"]), experiment.selection)
        if (entry["metric"], entry["selection"]) == main:
            entry_of[entry["row"], entry["column"]] = entry

    headings = [TableCell("method")]
    rows = [[TableCell(row.label + marks.get(row.label, ""))] for row in experiment.rows]
    for column in results.columns:
        metric = words(column.metric)
        below = f"{metric}, {selected}" if column.name and not one_metric else selected
        headings.append(TableCell(column.name or metric, below))
        entries = [entry_of.get((row.row, column.name), {}) for row in column.rows]
        means = [entry["mean"] for entry in entries if entry and entry["n"] == len(results.seeds)]
        comparable = in_percent(column.metric) and not experiment.reaches and len(means) > 1
        best = max(means) if comparable else None
        for row, entry, cells in zip(column.rows, entries, rows, strict=True):
            cell = main_cell(row, entry, best, bool(experiment.reaches))
            mark = marks.get(f"{row.row}, {column.name}", "")
            cells.append(replace(cell, text=cell.text + mark))
    return Table(main_caption(results, one_metric), headings, rows)


def main_cell(
    row: RowResults, entry: Mapping[str, Any], highest: float | None, rounds: bool
) -> TableCell:
    """Return the cell of an entry of `numbers`, strong where it has all seeds and the highest mean."""
    mean, n, paper = entry.get("mean"), entry.get("n", 0), entry.get("paper")
    diverged = seeds_words(row)
    text = "diverged" if diverged else NONE
    if mean is not None:
        deviation = f" ± {plain(entry['sd'], row.metric)}" if n > 1 else ""
        text = in_rounds(mean) if rounds else plain(mean, row.metric) + deviation
    below = []
    if paper is not None:
        difference = f", {signed(mean - paper, row.metric)}" if mean is not None else ""
        below.append(f"paper {plain(paper, row.metric)}{difference}")
    if diverged or n < row.seeds:
        below.append(diverged or f"{n} of {row.seeds} seeds")
    at_chance = bool(chance_words(row))
    if at_chance:
        below.append("no better than chance")
    best = n == row.seeds and mean == highest and not at_chance
    return TableCell(text, "; ".join(below), best)


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
    tables = []
    for column in results.columns:
        rows = []
        for one in results.tuned:
            if one.column == column.name:
                cells = [trial_cell(one, value, column.metric) for value in one.scores]
                rows.append([TableCell(one.row), *cells])
        if rows and tune is not None:
            headings = ["method", *(f"{tune.key} {value}" for value in tune.values)]
            caption = f"{words_and_unit(column.metric)} of the trials, seed {tune.seed}."
            tables.append(Table(column.titled(caption), list(map(TableCell, headings)), rows))
    return tables


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
            tables.append(client_table(column, f"{about}, over seeds.", key))
    return [table for table in tables if table.rows]


def client_table(column: ColumnResults, caption: str, key: str) -> Table:
    """Return one table of `client_tables`, without rows where runs do not have it of the same clients."""
    by_row = {row.row: at_clients(row, key) for row in column.measured}
    known = {row: values_SK for row, values_SK in by_row.items() if values_SK is not None}
    runs = [run.run for row in column.measured if row.row in known for run in row.runs]
    sites = {tuple(run.sites) for run in runs}
    names = sites.pop() if len(sites) == 1 else ()
    headings = ["client", *known]
    rows = []
    if names and all(values_SK.shape[1] == len(names) for values_SK in known.values()):
        for client, name in enumerate(names):
            cells = [over_seeds(values_SK[:, client], key) for values_SK in known.values()]
            rows.append([TableCell(name), *cells])
        lowest = [np.fmin.reduce(values_SK, axis=1) for values_SK in known.values()]
        worst = [over_seeds(lowest_S, key) for lowest_S in lowest]
        rows.append([TableCell("worst client"), *worst])
    sizes = [run.samples.get("client-test") for run in runs]
    if (
        rows and sizes[0] and all(one == sizes[0] for one in sizes)
    ):  # else of other sizes in another row or seed
        headings.insert(1, "test samples")
        for cells, size in zip(rows, [*sizes[0], ""], strict=True):
            cells.insert(1, TableCell(str(size)))
    return Table(column.titled(caption), list(map(TableCell, headings)), rows)


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
