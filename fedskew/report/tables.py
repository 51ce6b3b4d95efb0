"""Tables of numbers: ours beside the paper's, every selection, rankings, classes, clients and trials."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
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
    named,
    plain,
    signed,
    words,
    words_and_unit,
)
from fedskew.report.inference import (
    RESAMPLES,
    Floats,
    Summary,
    interval_of,
    strata,
    summarize_seeds,
)
from fedskew.report.results import ExperimentResults, SeedResult
from fedskew.report.rounds_to_target import in_rounds, reached, takes_training
from fedskew.report.run_records import Run
from fedskew.report.unfit_rows import chance_words, seeds_words
from server_app.evaluation import MOST_LISTED
from server_app.keys import SELECTIONS
from server_app.record import BY_CLASS, Spread
from server_app.round_selection import select
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
    for index, column in enumerate(experiment.columns):
        for row in experiment.rows:
            papers = experiment.cells.get(row.label)
            diverged = list(results.diverged(row.label, column))
            main = (main_metric(experiment, column), experiment.selection)
            for key, summary in summaries_of(results, row.label, column).items():
                paper = papers[index] if papers and key == main else None
                # A row that diverged in every seed has no number and stands here once.
                if summary is None and paper is None and not (key == main and diverged):
                    continue
                by_seed = summary.by_seed if summary else {}
                mean = summary.mean if summary else None
                metric, selection = key
                entries.append(
                    {
                        "experiment": experiment.name,
                        "column": column,
                        "row": row.label,
                        "metric": metric,
                        "selection": selection,
                        "n": len(by_seed),
                        "mean": mean,
                        "sd": summary.sd if summary else None,
                        "paper": paper,
                        "difference": None if mean is None or paper is None else mean - paper,
                        "seeds": list(by_seed),
                        "values": list(by_seed.values()),
                        "diverged": diverged,
                    }
                )
    return entries


def main_metric(experiment: Experiment, column: str) -> str:
    """Return what the main table shows in a column: a metric, or the rounds until a row's number is reached."""
    metric = experiment.metric_of(column)
    return f"rounds to {experiment.reaches}'s {metric}" if experiment.reaches else metric


def summaries_of(
    results: ExperimentResults, row: str, column: str
) -> dict[tuple[str, str], Summary | None]:
    """Return a row's numbers over the seeds by metric and selection, with the rounds where the table has these."""
    experiment = results.experiment
    metric = experiment.metric_of(column)
    group = results.of(row, column)
    summaries = {
        (metric, selection): summarize_seeds(group, selection, metric) for selection in SELECTIONS
    }
    if experiment.reaches:
        rounds = reached(results, row, column) if takes_training(results, column) else {}
        by_seed = {seed: float(round) for seed, round in rounds.items() if round is not None}
        key = (main_metric(experiment, column), experiment.selection)
        summaries[key] = Summary(by_seed) if by_seed else None
    return summaries


def spread_words(summary: Summary | None, metric: str = "") -> str:
    """Return mean and standard deviation."""
    if summary is None:
        return NONE
    mean = plain(summary.mean, metric)
    return mean if summary.sd is None else f"{mean} ± {plain(summary.sd, metric)}"


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
    for column in results.experiment.columns:
        own_metric = results.experiment.metric_of(column)
        runs = results.in_column(column)
        groups = groups_of(results, column)
        columns = []
        for heading, metric in metrics.items():
            selection = selections[heading] if selections else results.experiment.selection
            too_few = metric.endswith("worst-decile") and not has_decile(results, column)
            if not too_few and summarize_seeds(runs, selection, metric or own_metric):
                cell = partial(number_cell, selection=selection, metric=metric or own_metric)
                cells = [cell(group, interval=intervals) for group in groups.values()]
                columns.append([TableCell(heading), *cells])
        if columns:
            names = map(TableCell, ("method", *groups))
            headings, *rows = zip(names, *columns, strict=True)
            what = caption.format(metric=words_and_unit(own_metric), positive=positive_words(runs))
            tables.append(Table(named(column) + what, headings, rows))
    return tables


def groups_of(results: ExperimentResults, column: str) -> dict[str, Sequence[SeedResult]]:
    """Return the finished runs of a column by row, of the rows that have some."""
    groups = {}
    for row in results.experiment.rows:
        group = results.of(row.label, column)
        if group:
            groups[row.label] = group
    return groups


def number_cell(
    group: Sequence[SeedResult], selection: str, metric: str, interval: bool
) -> TableCell:
    """Return mean and standard deviation over the seeds, and where asked for the 95 % interval of the mean below."""
    summary = summarize_seeds(group, selection, metric)
    if summary is None or not interval:
        return TableCell(spread_words(summary, metric))
    examples = [strata(one, selection, metric) for one in group]
    cell = group[0].cell
    found = interval_of(list(summary.by_seed.values()), [examples], (cell.row, cell.column))
    ends = ""
    if found is not None:
        low, high = found.low, found.high
        if in_percent(metric):
            low, high = max(low, 0.0), min(high, 100.0)
        ends = ends_words(low, high, metric).replace("+", "").strip()  # no differences
    return TableCell(spread_words(summary, metric), ends)


def positive_words(runs: Sequence[SeedResult]) -> str:
    """Return the positive class of two that runs have; empty where they have more."""
    positives = [run.positive_class for run in runs]
    names = dict.fromkeys(positive.name for positive in positives if positive is not None)
    of_class = f"; AUPRC, sensitivity and specificity of class {' and '.join(names)}"
    return of_class if names else ""


def has_decile(results: ExperimentResults, column: str) -> bool:
    """Return whether a run of the column has clients enough for a worst decile."""
    runs = (measured.run for measured in results.in_column(column))
    return any(run.clients >= LEAST_CLIENTS_OF_DECILE for run in runs)


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
    for column in results.experiment.columns:
        rows = []
        for row, group in groups_of(results, column).items():
            share_C = recalls(group, selection, key)
            if share_C is not None and len(share_C) == len(names):
                shares = share_C.tolist()
                rows.append([TableCell(row), *map(share_cell, shares)])
        if rows:
            tables.append(Table(named(column) + caption, headings, rows))
    return tables


def share_cell(percent: float) -> TableCell:
    """Return a share in whole percent, shaded by it; NaN is none."""
    if math.isnan(percent):
        return TableCell(NONE)
    return TableCell(f"{percent:.0f}", heat=percent / 100)


def recalls(group: Iterable[SeedResult], selection: str, key: str = "recall") -> Floats | None:
    """Return (C,): the recall, or another number by class, in percent, a mean over rounds and seeds that have it.

    NaN for a class without test samples. None where no run has it, or runs have it of different numbers of classes.
    """
    by_round = []
    for measured in group:
        for point in select(measured.points, selection):
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
    one_metric = len({experiment.metric_of(column) for column in experiment.columns}) == 1
    entry_of = {}
    for entry in numbers(results):
        column = entry["column"]
        is_main = entry["metric"] == main_metric(experiment, column)
        if is_main and entry["selection"] == experiment.selection:
            entry_of[entry["row"], column] = entry

    headings = [TableCell("method")]
    rows = [[TableCell(row.label + marks.get(row.label, ""))] for row in experiment.rows]
    for column in experiment.columns:
        metric = words(experiment.metric_of(column))
        below = f"{metric}, {selected}" if column and not one_metric else selected
        headings.append(TableCell(column or metric, below))
        best = best_mean(results, column, entry_of)
        for row, cells in zip(experiment.rows, rows, strict=True):
            cell = main_cell(results, row.label, column, entry_of.get((row.label, column)), best)
            mark = marks.get(f"{row.label}, {column}", "")
            cells.append(replace(cell, text=cell.text + mark))
    return Table(main_caption(results, one_metric), headings, rows)


def best_mean(
    results: ExperimentResults, column: str, entry_of: Mapping[tuple[str, str], Mapping[str, Any]]
) -> float | None:
    """Return the highest mean of a column's rows that have all seeds; None where there are no two, or of a loss."""
    experiment = results.experiment
    means = []
    for (_, of_column), entry in entry_of.items():
        if of_column == column and entry["n"] == len(results.seeds):
            means.append(entry["mean"])
    comparable = in_percent(experiment.metric_of(column)) and not experiment.reaches
    return max(means) if comparable and len(means) > 1 else None


def main_cell(
    results: ExperimentResults,
    row: str,
    column: str,
    entry: Mapping[str, Any] | None,
    highest: float | None,
) -> TableCell:
    """Return the cell of an entry of `numbers`, strong where it has all seeds and the highest mean."""
    metric = results.experiment.metric_of(column)
    seeds = len(results.seeds)
    mean, n = (entry["mean"], entry["n"]) if entry else (None, 0)
    diverged = seeds_words(results, row, column)
    text = NONE
    if results.experiment.reaches and mean is not None:
        text = in_rounds(mean)
    elif entry and mean is not None:
        text = plain(mean, metric) + (f" ± {plain(entry['sd'], metric)}" if n > 1 else "")
    elif diverged:
        text = "diverged"
    below = []
    if entry and entry["paper"] is not None:
        difference = f", {signed(entry['difference'], metric)}" if mean is not None else ""
        below.append(f"paper {plain(entry['paper'], metric)}{difference}")
    if diverged or n < seeds:
        below.append(diverged or f"{n} of {seeds} seeds")
    at_chance = bool(chance_words(results, row, column))
    if at_chance:
        below.append("no better than chance")
    best = n == seeds and mean == highest and not at_chance
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
    for column in results.experiment.columns:
        metric = results.experiment.metric_of(column)
        rows = []
        for one in results.tuned:
            if one.column == column:
                cells = [trial_cell(one, value, metric) for value in one.scores]
                rows.append([TableCell(one.row), *cells])
        if rows and tune is not None:
            headings = ["method", *(f"{tune.key} {value}" for value in tune.values)]
            caption = f"{named(column)}{words_and_unit(metric)} of the trials, seed {tune.seed}."
            tables.append(Table(caption, list(map(TableCell, headings)), rows))
    return tables


def trial_cell(tuned: Tuned, value: Scalar, metric: str) -> TableCell:
    """Return the number of one trial, strong for the best one, with a star at an end of what was tried."""
    score = tuned.scores[value]
    if value in tuned.diverged:
        return TableCell("diverged")
    if math.isnan(score):
        return TableCell(NONE)
    text = plain(score * 100 if in_percent(metric) else score, metric)
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
    for column in results.experiment.columns:
        keys = BY_CLIENT
        for one in results.in_column(column):
            personal = is_personal(one.cell.deployed, one.run.settings.variants)
            if personal and not one.run.own_test_sets:
                keys = {"accuracy on its own mix of classes": "local-accuracy", **BY_CLIENT}
        tables += [client_table(results, column, what, key) for what, key in keys.items()]
    return [table for table in tables if table.rows]


def client_table(results: ExperimentResults, column: str, what: str, key: str) -> Table:
    """Return one table of `client_tables`, without rows where runs do not have it of the same clients."""
    selection = results.experiment.selection
    by_row = {}
    runs: list[Run] = []
    for row, group in groups_of(results, column).items():
        values_SK = at_clients(group, selection, key)
        if values_SK is not None:
            by_row[row] = values_SK
            runs += [measured.run for measured in group]
    names = runs[0].sites if runs else []
    sizes = runs[0].samples.get("client-test") if runs else None
    same_clients = all(run.sites == names for run in runs)
    if any(run.samples.get("client-test") != sizes for run in runs):
        sizes = None  # of other sizes in another row or seed
    headings = ["client", *by_row]
    rows = []
    for client, name in enumerate(names if same_clients else ()):
        cells = [TableCell(name)]
        for values_SK in by_row.values():
            if values_SK.shape[1] == len(names):
                cells.append(over_seeds(values_SK[:, client], key))
        rows.append(cells)
    if rows:
        lowest = [np.fmin.reduce(values_SK, axis=1) for values_SK in by_row.values()]
        worst = [over_seeds(lowest_S, key) for lowest_S in lowest]
        rows.append([TableCell("worst client"), *worst])
    if sizes:
        headings.insert(1, "test samples")
        for cells, size in zip(rows, [*sizes, ""], strict=False):
            cells.insert(1, TableCell(str(size)))
    rows = [cells for cells in rows if len(cells) == len(headings)]
    caption = f"{named(column)}{what} in percent at each client, {SELECTION_WORDS[selection]}, over seeds."
    return Table(caption, list(map(TableCell, headings)), rows)


def at_clients(group: Sequence[SeedResult], selection: str, key: str) -> Floats | None:
    """Return (seeds, clients): a number that clients measured, a mean over the rounds selected.

    It is NaN where a client has none. None where it is not recorded, or not of the same clients in every seed.
    """
    by_seed = []
    clients = set()
    for measured in group:
        values = []
        for point in select(measured.points, selection):
            spread = point.numbers.spreads.get(key, Spread())
            values.append(spread.values)
            clients.add(len(spread.values))
        if values:
            by_seed.append(values)
    if len(clients) != 1 or clients == {0}:
        return None
    return np.array([np.mean(values, axis=0) for values in by_seed])


def over_seeds(value_S: Floats, key: str) -> TableCell:
    """Return mean and standard deviation of a share over the seeds that have one, shaded by it."""
    percent = 100 * value_S[~np.isnan(value_S)]
    if not len(percent):
        return TableCell(NONE)
    summary = Summary(dict(enumerate(percent.tolist())))
    return TableCell(spread_words(summary, key), heat=summary.mean / 100)
