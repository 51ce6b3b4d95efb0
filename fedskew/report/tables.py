"""Tables of numbers: ours beside the paper's, every selection, classes, clients, and comparisons with baselines."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from client_app.personal import is_personal
from data import federate
from data.dataset import missing_names
from fedskew.diagnosis.planned import diagnosis_of_federation
from fedskew.diagnosis.rules import Diagnosis, diagnose, line, plan_of
from fedskew.diagnosis.table import TableError, table_of_samples
from fedskew.report.claims import why_never
from fedskew.report.format import (
    NONE,
    SELECTION_WORDS,
    Table,
    TableCell,
    first_upper,
    fitted,
    in_percent,
    named,
    plain,
    signed,
    words,
    words_and_unit,
)
from fedskew.report.inference import Floats, Summary, summarize_seeds
from fedskew.report.results import ExperimentResults, SeedResult
from fedskew.report.rounds_to_target import (
    first_had,
    mean_or_never,
    reach_cell,
    reached,
    seeds_below,
    takes_training,
)
from fedskew.report.run_records import LEAST_CLIENTS_OF_DECILE, RunRecords
from fedskew.report.unfit_rows import chance_words, seeds_words, unfit_words
from server_app.keys import SELECTIONS
from server_app.record import Spread
from server_app.round_selection import select

MOST_CLASSES = 20
"""More classes than these have no table of recalls; the figure shows them."""
BY_CLIENT = {"accuracy": "client-accuracy", "AUROC": "client-auroc"}
"""The numbers that have a table of clients."""


def spread_words(summary: Summary | None, metric: str = "") -> str:
    """Return mean and standard deviation."""
    if summary is None:
        return NONE
    mean = plain(summary.mean, metric)
    if summary.sd is None:
        return mean
    return f"{mean} ± {plain(summary.sd, metric)}"


def per_column(
    results: ExperimentResults,
    caption: Callable[[str], str],
    headings: Callable[[str], Sequence[str]],
    cell: Callable[[str, str, str], TableCell],
) -> list[Table]:
    """Return one table per column with headings; `cell` gets row, column and heading."""
    tables = []
    for column in results.experiment.columns:
        shown = headings(column)
        if not shown:
            continue
        rows = []
        for row in results.experiment.rows:
            diverged = seeds_words(results, row.label, column)
            if results.of(row.label, column):
                cells = [cell(row.label, column, heading) for heading in shown]
                rows.append([TableCell(row.label, diverged), *cells])
            elif diverged:
                rows.append([TableCell(row.label, diverged), *[TableCell("diverged")] * len(shown)])
        heading_cells = [TableCell("method"), *map(TableCell, shown)]
        tables.append(Table(named(column) + caption(column), heading_cells, rows))
    return tables


def summary_tables(
    results: ExperimentResults,
    caption: Callable[[str], str],
    headings: Callable[[str], Iterable[str]],
    number: Callable[[str, str], tuple[str, str]],
) -> list[Table]:
    """Return one table per column of means over seeds, with the headings that any row has.

    Args:
        results: of the experiment.
        caption: of a column's table.
        headings: gives those of a column's table.
        number: gives for a column and a heading the selection and the metric.
    """

    def summary(row: str, column: str, heading: str) -> Summary | None:
        selection, metric = number(column, heading)
        return summarize_seeds(results.of(row, column), selection, metric)

    def available(column: str) -> list[str]:
        rows = [row.label for row in results.experiment.rows]
        return [
            heading
            for heading in headings(column)
            if any(summary(row, column, heading) for row in rows)
        ]

    def cell(row: str, column: str, heading: str) -> TableCell:
        _, metric = number(column, heading)
        over_the_seeds = summary(row, column, heading)
        return TableCell(spread_words(over_the_seeds, metric))

    return per_column(results, caption, available, cell)


def number_tables(
    results: ExperimentResults,
    caption: str,
    metrics: Mapping[str, str],
) -> list[Table]:
    """Return one table per column with the given metrics, by heading, where they are recorded.

    Of a few clients there is no worst decile.
    """
    selection = results.experiment.selection

    def headings(column: str) -> list[str]:
        shown = []
        for heading, metric in metrics.items():
            if has_decile(results, column) or not metric.endswith(".worst-decile"):
                shown.append(heading)
        return shown

    return summary_tables(
        results,
        lambda _: caption,
        headings,
        lambda _, heading: (selection, metrics[heading]),
    )


def has_decile(results: ExperimentResults, column: str) -> bool:
    """Return whether a run of the column has clients enough for a worst decile."""
    runs = (measured.run for measured in results.in_column(column))
    return any(run.clients >= LEAST_CLIENTS_OF_DECILE for run in runs)


def selection_tables(results: ExperimentResults) -> list[Table]:
    """Return ours by every selection."""
    metric_of = results.experiment.metric_of
    selections = {SELECTION_WORDS[selection]: selection for selection in SELECTIONS}

    def caption(column: str) -> str:
        return f"{words_and_unit(metric_of(column))}, by which round is read."

    def number(column: str, heading: str) -> tuple[str, str]:
        return selections[heading], metric_of(column)

    return summary_tables(results, caption, lambda _: selections, number)


def tuning_tables(results: ExperimentResults) -> list[Table]:
    """Return one table per column: the number of every trial by row and value; none where nothing is tuned."""
    experiment = results.experiment
    tables = []
    for column in experiment.columns:
        of_column = [one for one in results.tuned if one.column == column]
        if not of_column or experiment.tune is None:
            continue
        metric = experiment.metric_of(column)
        scale = 100 if in_percent(metric) else 1
        rows = []
        for one in of_column:
            cells = [TableCell(one.row)]
            for value, number in one.scores.items():
                best = value == one.value
                text = NONE if math.isnan(number) else plain(number * scale, metric)
                if value in one.diverged:
                    text = "diverged"
                star = "*" if best and one.at_an_end else ""
                cells.append(TableCell(text + star, strong=best))
            rows.append(cells)
        headings = [TableCell("method")]
        headings += [
            TableCell(f"{experiment.tune.key} {value}") for value in experiment.tune.values
        ]
        caption = (
            f"{named(column)}{words_and_unit(metric)} of the trials, seed {experiment.tune.seed}."
        )
        tables.append(Table(caption, headings, rows))
    return tables


def main_table(results: ExperimentResults) -> Table:
    """Return ours beside the paper's: the experiment's number, or the rounds until a row's number is reached."""
    experiment = results.experiment
    marks = {about: f" [{number}]" for number, about in enumerate(experiment.notes, 1)}
    columns = list(experiment.columns)
    rows = []
    for row in experiment.rows:
        paper = experiment.cells.get(row.label, (None,) * len(columns))
        cells = [TableCell(row.label + marks.get(row.label, ""))]
        for column, number in zip(columns, paper, strict=True):
            cell = None
            if experiment.reaches:
                cell = rounds_cell(results, row.label, column, number)
            if cell is None:
                cell = number_cell(results, row.label, column, number)
            mark = marks.get(f"{row.label}, {column}", "")
            cells.append(replace(cell, text=cell.text + mark))
        rows.append(cells)

    selected = SELECTION_WORDS[experiment.selection]
    metrics = {experiment.metric_of(column) for column in columns}
    one_metric = len(metrics) == 1
    headings = [TableCell("method")]
    for column in columns:
        shown = words(experiment.metric_of(column))
        below = f"{shown}, {selected}" if column and not one_metric else selected
        headings.append(TableCell(column or shown, below))
    return Table(main_caption(results, one_metric), headings, rows)


def main_caption(results: ExperimentResults, one_metric: bool) -> str:
    """Return what the main table shows, over which seeds, and what stands below."""
    experiment, seeds = results.experiment, results.seeds
    if experiment.reaches:
        what = f"rounds until {experiment.reaches}'s {words(experiment.metric)} is reached"
    elif one_metric:
        what = words_and_unit(experiment.metric)
    else:
        what = "each column's number"
    over = f"of seed {seeds[0]}"
    if len(seeds) > 1:
        over = f"over seeds {', '.join(map(str, seeds))}"
        if not experiment.reaches:
            over = f"mean ± standard deviation {over}"
    beside = "; below, the paper's number and ours minus it" if experiment.cells else ""
    return f"{what}, {over}{beside}."


def number_cell(
    results: ExperimentResults,
    row: str,
    column: str,
    paper: float | None,
) -> TableCell:
    """Return mean and standard deviation, below them the paper's number.

    The cell is strong where it is the highest of the column's rows that have all seeds, and better than chance.
    """
    experiment = results.experiment
    metric = experiment.metric_of(column)
    seeds = len(results.seeds)
    ours = None
    complete_means = {}
    for other in experiment.rows:
        group = results.of(other.label, column)
        summary = summarize_seeds(group, experiment.selection, metric)
        if other.label == row:
            ours = summary
        if summary is not None and summary.n == seeds:
            complete_means[other.label] = summary.mean

    below = []
    if paper is not None:
        below.append(beside_paper(paper, ours.mean if ours else None, metric))
    finished = ours.n if ours else 0
    diverged = seeds_words(results, row, column)
    if diverged:
        below.append(diverged)
    elif finished < seeds:
        below.append(missing_seeds(results, row, column, finished))
    at_chance = chance_words(results, row, column)
    if at_chance:
        below.append("no better than chance")

    comparable = len(complete_means) > 1 and in_percent(metric)  # of a loss the lowest is the best
    best = comparable and complete_means.get(row) == max(complete_means.values())
    text = "diverged" if ours is None and diverged else spread_words(ours, metric)
    return TableCell(text, "; ".join(below), best and not at_chance)


def missing_seeds(results: ExperimentResults, row: str, column: str, finished: int) -> str:
    """Return how many seeds a cell has, or that it never will have any."""
    experiment, seeds = results.experiment, results.seeds
    metric = experiment.metric_of(column)
    reasons = [
        why_never(results, row, column, seed, experiment.selection, metric) for seed in seeds
    ]
    if finished or not all(reasons):
        return f"{finished} of {len(seeds)} seeds"
    planned = {(cell.row, cell.column) for cell in results.cells}
    return "cannot be measured" if (row, column) in planned else "not run"


def rounds_cell(
    results: ExperimentResults,
    row: str,
    column: str,
    paper: float | None,
) -> TableCell | None:
    """Return the rounds until the reference's number is reached, below them the paper's; None without any run."""
    rounds = reached(results, row, column)
    if not rounds:
        return None
    fair = takes_training(results, column)
    below = seeds_below(results, row, column)
    shown = reach_cell(rounds, first_had(results, column), fair, below=below)
    diverged = seeds_words(results, row, column)
    if diverged:
        return replace(shown, below=diverged)
    if paper is None:
        return replace(shown, below="") if fair else shown
    if not fair:
        return TableCell(shown.text, f"{beside_paper(paper, None)}; {shown.below}")
    ours = mean_or_never(list(rounds.values()), "round")
    return TableCell(shown.text, beside_paper(paper, ours))


def beside_paper(paper: float, ours: float | None, metric: str = "") -> str:
    """Return the paper's number and ours minus it."""
    text = f"paper {plain(paper, metric)}"
    return text if ours is None else f"{text}, {signed(ours - paper, metric)}"


def class_names(results: ExperimentResults) -> list[str]:
    """Return the names of the classes; none when columns have different ones."""
    names = {run.settings.data.class_names for run in results.runs.values()}
    return list(names.pop()) if len(names) == 1 else []


def recalls(group: Iterable[SeedResult], selection: str) -> Floats | None:
    """Return (C,): the recall of every class in percent, a mean over seeds; NaN for a class without test samples."""
    rates = []
    for measured in group:
        rates += [point.numbers.recall for point in select(measured.points, selection)]
    if not rates:
        return None
    mean_C: Floats = 100 * np.array(rates, float).mean(0)
    return mean_C


def recall_tables(results: ExperimentResults) -> list[Table]:
    """Return the recall of every class, for few classes."""
    experiment = results.experiment
    names = class_names(results)
    if not 0 < len(names) <= MOST_CLASSES:
        return []
    positions = {name: index for index, name in enumerate(names)}

    def cell(row: str, column: str, heading: str) -> TableCell:
        recall_C = recalls(results.of(row, column), experiment.selection)
        recall = np.nan if recall_C is None else float(recall_C[positions[heading]])
        if np.isnan(recall):
            return TableCell(NONE)
        return TableCell(f"{recall:.0f}", heat=recall / 100)

    def shown(column: str) -> Sequence[str]:
        any_run = any(results.of(row.label, column) for row in experiment.rows)
        return names if any_run else []

    selected = SELECTION_WORDS[experiment.selection]
    caption = f"recall by class in percent, {selected}, mean over seeds."
    tables = per_column(results, lambda _: caption, shown, cell)
    return [fitted(table, "class") for table in tables]


def client_tables(results: ExperimentResults) -> list[Table]:
    """Return accuracy and AUROC at every client where clients measure: one row per client, mean and spread over
    seeds."""
    tables = []
    for column in results.experiment.columns:
        for what, key in numbers_by_client(results, column).items():
            table = client_table(results, column, what, key)
            if table is not None:
                tables.append(table)
    return tables


def numbers_by_client(results: ExperimentResults, column: str) -> dict[str, str]:
    """Return the numbers of a column that have a table of clients, by what they are called.

    Where clients have models and no test set of their own, accuracy on their own mix of classes comes first.
    """
    for measured in results.in_column(column):
        personal = is_personal(measured.cell.deployed, measured.run.settings.variants)
        own_test = measured.run.agreement or measured.run.samples.get("client-test")
        if personal and not own_test:
            return {"accuracy on its own mix of classes": "local-accuracy", **BY_CLIENT}
    return BY_CLIENT


def client_table(results: ExperimentResults, column: str, what: str, key: str) -> Table | None:
    """Return one table of `client_tables`; None where the rows do not all have it of the same clients."""
    selection = results.experiment.selection
    by_row: dict[str, Floats] = {}
    runs = []
    for row in results.experiment.rows:
        group = results.of(row.label, column)
        values_SK = at_clients(group, selection, key)
        if values_SK is not None:
            by_row[row.label] = values_SK
            runs += [measured.run for measured in group]
    numbers_of_clients = {values_SK.shape[1] for values_SK in by_row.values()}
    sites_of_runs = {tuple(run.sites) for run in runs}
    if len(numbers_of_clients) != 1 or len(sites_of_runs) != 1:
        return None
    (sites,) = sites_of_runs
    if {len(sites)} != numbers_of_clients:
        return None

    tests = runs[0].samples.get("client-test")
    if any(run.samples.get("client-test") != tests for run in runs):
        tests = None  # of other sizes in another row or seed
    rows = []
    for number, site in enumerate(sites):
        cells = [TableCell(site)]
        if tests:
            cells.append(TableCell(str(tests[number])))
        cells += [over_seeds(values_SK[:, number], key) for values_SK in by_row.values()]
        rows.append(cells)
    worst = [TableCell("worst client")]
    if tests:
        worst.append(TableCell(""))
    for values_SK in by_row.values():
        lowest_S = np.where(np.isnan(values_SK), np.inf, values_SK).min(1)
        worst.append(over_seeds(np.where(np.isinf(lowest_S), np.nan, lowest_S), key))
    rows.append(worst)
    headings = ["client", "test samples"] if tests else ["client"]
    caption = f"{named(column)}{what} in percent at each client, {SELECTION_WORDS[selection]}, over seeds."
    return Table(caption, list(map(TableCell, [*headings, *by_row])), rows)


def at_clients(group: Sequence[SeedResult], selection: str, key: str) -> Floats | None:
    """Return (seeds, clients): a number that clients measured, a mean over the rounds selected.

    It is NaN where a client has none. None where it is not recorded, or not of the same clients in every seed.
    """
    by_seed = []
    for measured in group:
        points = select(measured.points, selection)
        if points:
            values = [point.numbers.spreads.get(key, Spread()).values for point in points]
            by_seed.append(np.mean(values, axis=0))
    if len({len(values_K) for values_K in by_seed}) != 1:
        return None
    return np.array(by_seed)


def over_seeds(value_S: Floats, key: str) -> TableCell:
    """Return mean and standard deviation of a share over the seeds that have one, shaded by it."""
    percent = {}
    for seed, value in enumerate(value_S.tolist()):
        if not np.isnan(value):
            percent[seed] = 100 * value
    if not percent:
        return TableCell(NONE)
    summary = Summary(percent)
    return TableCell(spread_words(summary, key), heat=summary.mean / 100)


def skew_lines(results: ExperimentResults) -> list[str]:
    """Return which skew the clients' data show, one line per column, of its first run that has counts."""
    lines = []
    for column in results.experiment.columns:
        for measured in results.in_column(column):
            diagnosis = diagnosis_of_records(measured.run)
            if diagnosis is not None:
                lines.append(named(column) + line(diagnosis))
                break
    return lines


def diagnosis_of_records(run: RunRecords) -> Diagnosis | None:
    """Return the diagnosis of a run's data, as `data check` and `diagnose` make it; None for a single client.

    Scanners show in the images alone: where these are no longer there, or are others, the recorded counts are all there
    is, and the diagnosis says so.
    """
    try:
        table = table_of_samples(run.name, run.samples)
    except TableError:  # one client has all samples: there is no skew
        return None
    if table is None:
        return None
    # Nothing is downloaded for a report, and data that cannot be read are no reason to have none.
    with suppress(ValueError, OSError, ImportError):
        data = run.settings.data
        if not missing_names(data):
            federation = federate(data, run.settings.general.seed)
            if federation.hash == run.origin.get("partition-hash"):
                return diagnosis_of_federation(federation, plan_of(run.settings))
    return diagnose(table, plan=plan_of(run.settings))


def bar_lines(results: ExperimentResults) -> list[str]:
    """Return by how much rows are below local and below centralized training, where these rows exist.

    These are mean differences over the seeds in common.
    """
    experiment = results.experiment
    lines = []
    for column in experiment.columns:
        metric = experiment.metric_of(column)
        if not in_percent(metric):
            continue
        summaries: dict[str, Summary] = {}
        for row in experiment.rows:
            summary = summarize_seeds(results.of(row.label, column), experiment.selection, metric)
            if summary is not None and not unfit_words(results, row.label, column):
                summaries[row.label] = summary
        for bar, of_bar in summaries.items():
            what = bar_name(results.of(bar, column)[0])
            if not what:
                continue
            below = []
            for row_label, of_row in summaries.items():
                gap = mean_gap(of_bar, of_row)
                if gap > 0:
                    below.append(f"{row_label} by {plain(gap, metric)}")
            if below:
                words = f"{named(column)}below {bar}, {what}, in points: {', '.join(below)}."
                lines.append(first_upper(words))
    return lines


def bar_name(measured: SeedResult) -> str:
    """Return what a row's run is a bar for; empty where it is an ordinary row."""
    settings = measured.run.settings
    if "singleset" in settings.general.method.split("+"):
        return "each site alone"
    return "centralized training" if settings.data.partition == "pooled" else ""


def mean_gap(of_bar: Summary, of_row: Summary) -> float:
    """Return by how much a row is below a bar, over the seeds that both have; 0 without any."""
    gaps = []
    for seed, value in of_row.by_seed.items():
        if seed in of_bar.by_seed:
            gaps.append(of_bar.by_seed[seed] - value)
    return float(np.mean(gaps)) if gaps else 0.0
