"""The table of results that ends `fedskew run`."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from fedskew.experiments.plan import Cell
from fedskew.formatting import named, numbered, numeric, percent, terminal_table
from server_app.record import ModelNumbers, unseen_of
from server_app.round_selection import selected
from server_app.run_settings import RunSettings

SHOWN_CLASSES = 10
"""Classes whose recall fits beside the means."""


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


def lines(
    cells: Sequence[Cell], planned: Sequence[RunSettings], summaries: Mapping[str, dict[str, Any]]
) -> list[Line]:
    """Return a line a cell of experiments, or a model of runs without any; of finished runs alone."""

    def line(experiment: str, row: str, column: str, settings: RunSettings, deployed: str) -> Line:
        summary = summaries[settings.run_id]
        best = selected(summary, deployed, "best-test")["balanced-accuracy"]
        return Line(experiment, row, column, settings, selected(summary, deployed), best)

    if cells:  # columns that read other numbers of the same runs are one line
        once = {
            (cell.experiment, cell.row, cell.run.run_id, cell.deployed): cell
            for cell in reversed(cells)
        }
        return [
            line(cell.experiment, cell.row, cell.column, cell.run, cell.deployed)
            for cell in reversed(once.values())
            if cell.deployed in summaries.get(cell.run.run_id, {"models": {}})["models"]
        ]
    lines = []
    for settings in planned:
        summary = summaries[settings.run_id]
        for name in summary["models"]:
            lines.append(line("", summary["rows"][name], "", settings, name))
    return lines


def results_table(shown: Sequence[Line], by_class: bool = True, whole: bool = True) -> Table:
    """Return one row a deployed model, in percent: balanced accuracy, macro-F1, AUROC of two classes, and recalls by
    class, whose names are whole or numbers with a legend below."""
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
    headings, legend = (recalls, "") if whole else numbered(recalls)
    seed_heading = ["seed"] if seeds else []
    numbers = numeric(*seed_heading, *means.values(), *headings)
    title = "Last round (best: the round that was best on the test set). Percent"
    table = terminal_table(
        *named(*names),
        *numbers,
        title=f"{title}; right: recall by class" if recalls else title,
    )
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


def unseen_table(planned: Sequence[RunSettings], summaries: Mapping[str, dict[str, Any]]) -> Table:
    """Return one row a deployed model and way to its batch norm on the site nobody trained with, in percent."""
    headings = (*named("site", "method", "seed", "batch norm"), *numeric("balanced", "F1"))
    table = terminal_table(*headings, title="A site nobody trained with, last round. Percent.")
    shown: set[tuple[str, ...]] = set()
    for settings in planned:
        summary = summaries.get(settings.run_id, {})
        if "unseen" not in summary:
            continue
        unseen = unseen_of(summary["unseen"])
        for deployed, ways in unseen.models.items():
            cells = (unseen.domain, summary["rows"][deployed], str(settings.general.seed))
            if cells in shown:
                continue
            shown.add(cells)
            for way, numbers in ways.items():
                if unseen.nearest and way == "nearest":
                    of_whom = f" ({unseen.nearest.domain})"
                else:
                    of_whom = ""
                means = (percent(numbers["balanced-accuracy"]), percent(numbers["macro-f1"]))
                table.add_row(*cells, way + of_whom, *means)
            for way, why in (unseen.unavailable or {}).items():
                table.add_row(*cells, f"{way}: {why}", "-", "-")
    return table
