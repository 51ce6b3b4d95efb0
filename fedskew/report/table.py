"""A table of the report as text, and how numbers are written; how it looks is for text.py and page.py."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fedskew.report.results import ExperimentResults
from fedskew.report.statistics import Summary, summarize_seeds
from fedskew.report.units import in_percent, unit_of

SELECTION_WORDS = {
    "last": "last round",
    "best-test": "best test round (oracle)",
    "best-validation": "best validation round",
    "mean-of-last-5": "mean of the last 5",
    "mean-of-last-10": "mean of the last 10",
}
NONE = "—"
WIDEST = 100
"""Characters of headings, side by side, that a page of 1280 pixels holds."""


@dataclass(frozen=True)
class TableCell:
    """A cell of a table."""

    text: str
    below: str = ""
    """A second, smaller line."""
    strong: bool = False
    heat: float | None = None
    """A share to shade by."""


@dataclass(frozen=True)
class Table:
    """A table; the first cell of a row names it."""

    caption: str
    headings: Sequence[TableCell]
    rows: Sequence[Sequence[TableCell]]
    wordy: bool = False
    """Whether cells are sentences rather than numbers."""


def words(metric: str) -> str:
    """Return a metric's key as words."""
    name, _, part = metric.replace("-", " ").partition(".")
    return f"{name} ({part})" if part else name


def words_and_unit(metric: str) -> str:
    """Return a metric's key as words, with its unit where it has one."""
    unit = unit_of(metric)
    return words(metric) + (f" in {unit}" if unit else "")


def plain(number: float | None, metric: str = "") -> str:
    """Return a number with as many digits as its kind deserves."""
    if number is None:
        return NONE
    return f"{number:.{1 if in_percent(metric) else 3}f}".replace("-", "\N{MINUS SIGN}")


def signed(number: float, metric: str = "") -> str:
    """Return a number with its sign."""
    return ("+" if number >= 0 else "") + plain(number, metric)


def ends_words(low: float, high: float, metric: str = "") -> str:
    """Return an interval after the number that it belongs to; nothing where it is NaN."""
    return "" if math.isnan(low) else f" [{signed(low, metric)}, {signed(high, metric)}]"


def spread_words(summary: Summary | None, metric: str = "") -> str:
    """Return mean and standard deviation."""
    if summary is None:
        return NONE
    return plain(summary.mean, metric) + (
        f" ± {plain(summary.sd, metric)}" if summary.sd is not None else ""
    )


def seeds_of(results: ExperimentResults) -> list[int]:
    return sorted({cell.seed for cell in results.cells})


def named(column: str) -> str:
    """Return a caption's words for a column; a single column has no name."""
    return f"{column}: " if column else ""


def per_column(
    results: ExperimentResults,
    caption: Callable[[str], str],
    headings: Callable[[str], Sequence[str]],
    cell: Callable[[str, str, str], TableCell],
) -> list[Table]:
    """Return a table a column, for the headings that the column has; `cell` gets row, column and heading."""
    tables = []
    for column in results.experiment.columns:
        if shown := headings(column):
            rows = [
                [TableCell(row.label), *(cell(row.label, column, heading) for heading in shown)]
                for row in results.experiment.rows
                if results.of(row.label, column)
            ]
            tables.append(
                Table(
                    named(column) + caption(column),
                    [TableCell("method"), *map(TableCell, shown)],
                    rows,
                )
            )
    return tables


def fitted(table: Table, corner: str) -> Table:
    """Return the table, rows and columns exchanged where its headings are wider than a page; `corner` then names the
    rows."""
    if sum(len(heading.text) + 3 for heading in table.headings) <= WIDEST or len(table.rows) >= len(
        table.headings
    ):
        return table
    rows = [[heading, *cells] for heading, *cells in zip(table.headings, *table.rows, strict=True)]
    (_, *methods), rows = rows[0], rows[1:]
    return Table(table.caption, [TableCell(corner), *methods], rows, table.wordy)


def number_tables(
    results: ExperimentResults, caption: str, metrics: Mapping[str, str]
) -> list[Table]:
    """Return a table a column with the given metrics, by heading, where they are recorded."""
    rows, selection = [row.label for row in results.experiment.rows], results.experiment.selection

    def summary(row: str, column: str, heading: str) -> Summary | None:
        return summarize_seeds(results.of(row, column), selection, metrics[heading])

    return per_column(
        results,
        lambda _: caption,
        lambda column: [
            heading for heading in metrics if any(summary(row, column, heading) for row in rows)
        ],
        lambda row, column, heading: TableCell(
            spread_words(summary(row, column, heading), metrics[heading])
        ),
    )
