"""The table of results that ends `fedskew run`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.table import Table

from fedskew.experiments.plan import Cell
from fedskew.numbers import percent
from server_app.settings import RunSettings

SHOWN_CLASSES = 10
"""Classes whose recall fits beside the means."""


@dataclass(frozen=True)
class Line:
    """One line of the table: a model of a finished run."""

    experiment: str
    row: str
    column: str
    settings: RunSettings
    models: Mapping[str, Any]
    """The model's numbers by the selection of the round."""


def lines(cells: Sequence[Cell], planned: Sequence[RunSettings], summaries: Mapping[str, dict[str, Any]]) -> list[Line]:
    """Return a line a cell of experiments, or a model of runs without any; of finished runs alone."""
    if cells:  # columns that read other numbers of the same runs are one line
        once = {(cell.experiment, cell.row, cell.run.run_id, cell.deployed): cell for cell in reversed(cells)}
        return [
            Line(cell.experiment, cell.row, cell.column, cell.run, models[cell.deployed])
            for cell in reversed(once.values())
            for models in (summaries.get(cell.run.run_id, {"models": {}})["models"],)
            if cell.deployed in models
        ]
    return [
        Line("", summary["rows"][name], "", one, models)
        for one in planned
        for summary in (summaries[one.run_id],)
        for name, models in summary["models"].items()
    ]


def results_table(shown: Sequence[Line], by_class: bool = True) -> Table:
    """Return one row a deployed model, in percent: balanced accuracy, macro-F1, AUROC of two classes, recalls."""
    table = Table(
        title="Last round (best: the round that was best on the test set). Percent"
        + "; right: recall by class" * by_class,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    named = {line.settings.data.classes for line in shown}
    classes = named.pop().split(",") if len(named) == 1 else []
    recalls = classes if by_class and len(classes) <= SHOWN_CLASSES else []
    means = {"balanced-accuracy": "balanced", "best": "best", "macro-f1": "F1"}
    if all(len(line.settings.data.classes.split(",")) == 2 for line in shown):
        means["auroc"] = "AUROC"
    experiments = len({line.experiment for line in shown}) > 1
    columns = any(line.column for line in shown)
    seeds = len({line.settings.general.seed for line in shown}) > 1
    for heading in (*(["experiment"] * experiments), "method", *(["column"] * columns)):
        table.add_column(heading, no_wrap=True)
    for heading in (*(["seed"] * seeds), *means.values(), *recalls):
        table.add_column(heading[:8], justify="right", no_wrap=True)
    for line in shown:
        last = line.models["last"]
        shares = {**last, "best": line.models["best-test"]["balanced-accuracy"]}
        table.add_row(
            *([line.experiment] * experiments),
            line.row,
            *([line.column] * columns),
            *([str(line.settings.general.seed)] * seeds),
            *(percent(shares.get(key)) for key in means),
            *([percent(value, 0) for value in last["recall"]] if recalls else ()),
        )
    return table


def unseen_table(planned: Sequence[RunSettings], summaries: Mapping[str, dict[str, Any]]) -> Table:
    """Return one row a deployed model and way to its batch norm on the site nobody trained with, in percent."""
    table = Table(
        title="A site nobody trained with, last round. Percent.",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    for heading in ("site", "method", "seed", "batch norm"):
        table.add_column(heading, no_wrap=True)
    for heading in ("balanced", "F1"):
        table.add_column(heading, justify="right", no_wrap=True)
    shown: set[tuple[str, ...]] = set()
    for one in planned:
        summary = summaries.get(one.run_id, {})
        unseen = summary.get("unseen", {"models": {}})
        for deployed, ways in unseen["models"].items():
            cells = (unseen["domain"], summary["rows"][deployed], str(one.general.seed))
            if cells in shown:
                continue
            shown.add(cells)
            for way, numbers in ways.items():
                of_whom = f" ({unseen['nearest']['domain']})" if way == "nearest" else ""
                means = (numbers["balanced-accuracy"], numbers["macro-f1"])
                table.add_row(*cells, way + of_whom, *map(percent, means))
            for way, why in unseen.get("unavailable", {}).items():
                table.add_row(*cells, f"{way}: {why}", "-", "-")
    return table
