"""The table of results that ends `fedskew run`."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from client_app.personal import FINE_TUNED, is_personal
from fedskew.experiments.plan import Cell
from fedskew.formatting import named, numbered, numeric, percent, site_names, terminal_table
from server_app.record import ModelNumbers, Spread
from server_app.round_selection import selected
from server_app.run_folder import RunFolder
from server_app.run_settings import RunSettings
from strategies.core.round_result import AVERAGE

SHOWN_CLASSES = 10
"""Classes whose recall fits beside the means."""
SHOWN_CLIENTS = 10
"""Clients whose accuracies fit beside mean and worst."""


@dataclass(frozen=True)
class Line:
    """One line of the table: a model of a finished run."""

    experiment: str
    row: str
    column: str
    settings: RunSettings
    numbers: ModelNumbers
    """Of the last round."""
    best: float
    """The highest balanced accuracy on the test set."""
    personal: bool = False
    """Whether the model is another one at each client."""


def lines(
    cells: Sequence[Cell],
    planned: Sequence[RunSettings],
    summaries: Mapping[str, dict[str, Any]],
) -> list[Line]:
    """Return one line per cell of experiments, or per model of runs without any; of finished runs alone."""
    if cells:
        return lines_of_cells(cells, summaries)
    lines = []
    for settings in planned:
        summary = summaries[settings.run_id]
        for name in summary["models"]:
            lines.append(line_of("", summary["rows"][name], "", settings, name, summary))
    return lines


def lines_of_cells(cells: Sequence[Cell], summaries: Mapping[str, dict[str, Any]]) -> list[Line]:
    """Return one line per model of a row; columns that show other numbers of the same run share it."""
    # The line has the first of a model's columns, and stands where the last one does.
    first_cells: dict[tuple[str, ...], Cell] = {}
    for cell in cells:
        model = (cell.experiment, cell.row, cell.run.run_id, cell.deployed)
        first_cells[model] = first_cells.pop(model, cell)

    lines = []
    with_own_row = {cell.run.run_id for cell in cells if cell.deployed == FINE_TUNED}
    for cell in first_cells.values():
        run, deployed = cell.run, cell.deployed
        summary = summaries.get(run.run_id)
        if summary is None or deployed not in summary["models"]:
            continue
        lines.append(line_of(cell.experiment, cell.row, cell.column, run, deployed, summary))

        # The fine-tuned models of a row's run follow it, unless they are a row of their own.
        has_fine_tuned = deployed == AVERAGE and FINE_TUNED in summary["models"]
        if has_fine_tuned and run.run_id not in with_own_row:
            row = f"{cell.row}, {FINE_TUNED}"
            lines.append(line_of(cell.experiment, row, cell.column, run, FINE_TUNED, summary))
    return lines


def line_of(
    experiment: str,
    row: str,
    column: str,
    settings: RunSettings,
    deployed: str,
    summary: dict[str, Any],
) -> Line:
    """Return the line of a deployed model."""
    last = selected(summary, deployed)
    best = selected(summary, deployed, "best-test")["balanced-accuracy"]
    personal = is_personal(deployed, settings.variants)
    return Line(experiment, row, column, settings, last, best, personal)


def results_table(shown: Sequence[Line], by_class: bool = True, full_names: bool = True) -> Table:
    """Return one row per deployed model, in percent: balanced accuracy, macro-F1, AUROC of two classes, and recalls.

    The recalls' headings are the classes' names, or without `full_names` numbers with a legend below.
    """
    class_names = {line.settings.data.class_names for line in shown}
    classes = class_names.pop() if len(class_names) == 1 else ()
    recalls = classes if by_class and len(classes) <= SHOWN_CLASSES else ()
    means = {"balanced-accuracy": "balanced", "best": "best", "macro-f1": "F1"}
    if all(line.settings.data.num_classes == 2 for line in shown):
        means["auroc"] = "AUROC"
    experiments = len({line.experiment for line in shown}) > 1
    columns = any(line.column for line in shown)
    seeds = len({line.settings.general.seed for line in shown}) > 1
    names = ["method"]
    if experiments:
        names.insert(0, "experiment")
    if columns:
        names.append("column")
    headings, legend = (recalls, "") if full_names else numbered(recalls)
    seed_heading = ["seed"] if seeds else []
    numbers = numeric(*seed_heading, *means.values(), *headings)
    title = "Last round (best: the round that was best on the test set). Percent"
    if recalls:
        title += "; right: recall by class"
    table = terminal_table(*named(*names), *numbers, title=title)
    table.caption = f"Classes: {legend}" if legend else None
    for line in shown:
        cells = [line.row]
        if experiments:
            cells.insert(0, line.experiment)
        if columns:
            cells.append(line.column)
        if seeds:
            cells.append(str(line.settings.general.seed))
        shares = {**line.numbers.means, "best": line.best}
        cells += [percent(shares.get(key, math.nan)) for key in means]
        if recalls:
            cells += [percent(value, 0) for value in line.numbers.recall]
        table.add_row(*cells)
    return table


@dataclass(frozen=True)
class MeasuredAt:
    """What a table of clients shows of a run: which number, at which clients."""

    key: str
    clients: tuple[str, ...]


def measured_at(settings: RunSettings) -> MeasuredAt:
    """Return what a run measured at its clients, from its settings.json; without clients where that has no names."""
    origin = RunFolder(settings.folder).origin()
    samples = origin.get("samples") or {}
    sites = list((origin.get("agreement") or {}).get("sites", ()))
    key = "client-accuracy" if sites or samples.get("client-test") else "local-accuracy"
    return MeasuredAt(key, tuple(sites or site_names(samples.get("clients", ()))))


def clients_tables(shown: Sequence[Line]) -> list[Table]:
    """Return tables with one row per model and its accuracy at the clients, in percent: mean, worst, client by client.

    They are for runs where clients have models of their own, beside what each client has alone (singleset) and the
    global models. Runs with other clients, as of other domains, have a table of their own. Of more than SHOWN_CLIENTS
    clients mean and worst are shown.
    """
    of_run = {line.settings.run_id: measured_at(line.settings) for line in shown}
    groups: dict[MeasuredAt, list[Line]] = {}
    for line in shown:
        groups.setdefault(of_run[line.settings.run_id], []).append(line)
    experiments = len({line.experiment for line in shown}) > 1
    columns = any(line.column for line in shown)
    tables = []
    for measured, group in groups.items():
        if any(line.personal for line in group):
            tables.append(clients_table(group, measured, experiments, columns))
    return tables


def clients_table(
    shown: Sequence[Line], measured: MeasuredAt, experiments: bool, columns: bool
) -> Table:
    """Return one table of `clients_tables`, with a column for the experiment and for the experiment's column or not."""
    where = "test set" if measured.key == "client-accuracy" else "mix of classes"
    values = [line.numbers.spreads.get(measured.key, Spread()) for line in shown]
    names = measured.clients
    same_clients = all(len(spread.values) == len(names) for spread in values)
    if len(names) > SHOWN_CLIENTS or not same_clients:
        names = ()
    title = f"Accuracy at each client on its own {where}, last round. Percent"
    labels = ["method"]
    if experiments:
        labels.insert(0, "experiment")
    if columns:
        labels.append("column")
    headings = numeric("seed", "mean", "worst client", *names)
    table = terminal_table(*named(*labels), *headings, title=title)
    for line, spread in zip(shown, values, strict=True):
        cells = [line.row]
        if experiments:
            cells.insert(0, line.experiment)
        if columns:
            cells.append(line.column)
        cells += [str(line.settings.general.seed), percent(spread.mean), percent(spread.worst)]
        if names:
            cells += [percent(value) for value in spread.values]
        table.add_row(*cells)
    return table


def kept_lines(
    planned: Sequence[RunSettings], summaries: Mapping[str, dict[str, Any]]
) -> list[str]:
    """Return a line per model with its best round, where keep-best kept one, and per run that ended early."""
    lines = []
    for settings in planned:
        summary = summaries.get(settings.run_id)
        if summary is None:
            continue
        seed = settings.general.seed
        for name, selections in summary["models"].items():
            if "best" not in selections:
                continue
            best = selections["best"]
            number = percent(ModelNumbers.of(best)["balanced-accuracy"])
            row = f"{summary['rows'][name]}, seed {seed}"
            why = f"the best by {settings.general.keep_best} on validation data"
            lines.append(
                f"{row}: round {best['round']} is {why}: balanced {number} on the test set"
            )
        if "ended" in summary:
            ended = summary["ended"]
            rounds = f"ended after round {ended['round']} of {settings.general.rounds}"
            lines.append(f"{settings.general.method}, seed {seed}: {rounds}, {ended['reason']}")
    return lines
