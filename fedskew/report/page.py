"""The report as one HTML file that opens offline: tables and figures in a Jinja2 template, no script."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import jinja2
import numpy as np
import yaml
from markupsafe import Markup

from fedskew.report import figures
from fedskew.report.claims import SAYS, Verdict
from fedskew.report.detail_tables import (
    MOST_CLASSES,
    PARTS,
    class_names,
    recalls,
    seconds_split,
    trainings,
)
from fedskew.report.differences import differences
from fedskew.report.document import Document, counted
from fedskew.report.format import in_percent, words
from fedskew.report.results import ExperimentResults
from fedskew.report.svg import Figure
from fedskew.report.text import seeds_words
from server_app.record import Spread
from server_app.round_selection import select

TEMPLATES: dict[str, str] = yaml.safe_load((Path(__file__).parent / "page.yaml").read_text())
"""The style sheet, `style`, and the Jinja2 template, `page`."""
Drawings = list[tuple[str, list[Figure]]]
"""By title, the panels that belong together."""


def html(documents: Sequence[Document]) -> str:
    """Return the page."""
    environment = jinja2.Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.globals |= {"svg": Markup, "says": SAYS, "seeds_words": seeds_words}
    parts = [
        {
            "document": document,
            "experiment": document.results.experiment,
            "drawings": drawings(document, f"e{number}"),
            "styles": list(figures.styles(document.results).values()),
            "split": [(part, f"var(--series-{index + 1})") for index, part in enumerate(PARTS)],
        }
        for number, document in enumerate(documents)
    ]
    claimed = [verdict for document in documents for verdict in document.verdicts]
    overall = counted(claimed) if claimed else ""
    style = Markup(TEMPLATES["style"])
    return environment.from_string(TEMPLATES["page"]).render(
        parts=parts, overall=overall, style=style
    )


def drawings(document: Document, prefix: str) -> dict[str, Drawings]:
    """Return the figures of every section; `prefix` makes their ids unique in the page."""
    results = document.results
    columns = list(results.experiment.columns)

    def panels(key: str, draw: Callable[[str, str], Figure | None]) -> list[Figure]:
        drawn = [draw(column, f"{prefix}-{key}-{number}") for number, column in enumerate(columns)]
        return [figure for figure in drawn if figure is not None]

    def curves(number: str) -> list[Figure]:
        key = re.sub(r"\W", "-", f"curve-{number}")
        return panels(key, lambda c, n: figures.curves(results, c, number or metric_of(c), n))

    metric_of = results.experiment.metric_of
    metrics = set(map(metric_of, columns))
    shown = {words(min(metrics)) if len(metrics) == 1 else "the table's numbers": ""}
    shown |= {words(number): number for number in results.experiment.series}
    sections: dict[str, Drawings] = {
        "claims": [("", forests(document.verdicts, prefix))],
        "differences": [("", panels("effect", lambda c, n: effects(results, c, n)))],
        "curves": [
            (title[0].upper() + title[1:], curves(number)) for title, number in shown.items()
        ],
        "classes": [("", panels("recall", lambda c, n: recall_curve(results, c, n)))],
        "ranking": [("Confusion of the classes", confusions(results, f"{prefix}-confusion"))],
        "clients": [
            ("Who holds what", panels("matrix", lambda c, n: matrix(results, c, n))),
            ("Spread over the clients", panels("spread", lambda c, n: spread(results, c, n))),
        ],
        "time": [("", panels("time", lambda c, n: time(results, c, n)))],
    }
    return {
        key: [(title, group) for title, group in groups if group]
        for key, groups in sections.items()
    }


def forests(verdicts: Sequence[Verdict], prefix: str) -> list[Figure]:
    """Return the claims' differences, those in points apart from those in rounds."""
    drawn = []
    for unit in ("points", "rounds"):
        effects = [
            figures.Effect(f"{number}. {verdict.claim.better} \N{MINUS SIGN} {verdict.claim.than}", verdict.estimate,
                           list(verdict.margins.values()),
                           (verdict.interval.low, verdict.interval.high) if verdict.interval else None,
                           verdict.claim.by, verdict.status in ("holds", "fails"))
            for number, verdict in enumerate(verdicts, 1) if verdict.n and verdict.unit == unit
        ]  # fmt: skip
        if effects:
            drawn.append(figures.forest(effects, unit, "", f"{prefix}-forest-{unit}"))
    return drawn


def effects(results: ExperimentResults, column: str, name: str) -> Figure | None:
    """Return the rows' differences from the one that they are compared with."""
    shown = [
        figures.Effect(part.row, part.estimate, list(part.comparison.by_seed.values()),
                       None if np.isnan(part.ends[0]) else part.ends, told=part.distinguishable)
        for part in differences(results, column)
    ]  # fmt: skip
    unit = "points" if in_percent(results.experiment.metric_of(column)) else ""
    return figures.forest(shown, unit, column, name) if shown else None


def confusions(results: ExperimentResults, prefix: str) -> list[Figure]:
    """Return the confusion matrix of every row and column, summed over the seeds."""
    drawn, names = list[Figure](), class_names(results)
    for column in results.experiment.columns:
        for row in results.experiment.rows:
            points = [run.points[-1] for run in results.of(row.label, column)]
            known = [
                point.numbers.confusion for point in points if point.numbers.confusion is not None
            ]
            if known and len(known) == len(points) and names:
                title = ": ".join(filter(None, (column, row.label)))
                drawn.append(
                    figures.confusion(np.sum(known, axis=0), names, title, f"{prefix}-{len(drawn)}")
                )
    return drawn


def matrix(results: ExperimentResults, column: str, name: str) -> Figure | None:
    """Return who holds what for the first seed that has a finished run."""
    runs = [
        measured for row in results.experiment.rows for measured in results.of(row.label, column)
    ]
    first = min(runs, key=lambda measured: measured.cell.seed, default=None)
    return figures.matrix(first, column, name) if first else None


def recall_curve(results: ExperimentResults, column: str, name: str) -> Figure | None:
    """Return the recall by class where there are too many classes for a table."""
    rows = {row.label: results.of(row.label, column) for row in results.experiment.rows}
    by_row = {
        row: recall_C
        for row, runs in rows.items()
        if (recall_C := recalls(runs, results.experiment.selection)) is not None
    }
    if not by_row or len(class_names(results)) <= MOST_CLASSES:
        return None
    first = next(runs[0] for runs in rows.values() if runs)
    counts_KC = first.run.samples.get("train")
    order = (
        np.argsort(-np.array(counts_KC).sum(0), kind="stable")
        if counts_KC
        else np.arange(len(class_names(results)))
    )
    return figures.recall_curve(by_row, figures.styles(results), column, order.tolist(), name)


def spread(results: ExperimentResults, column: str, name: str) -> Figure | None:
    """Return the clients' accuracies: on test sets of their own where they have some, else on their mix of classes."""
    rows = {row.label: results.of(row.label, column) for row in results.experiment.rows}
    every = [measured.run for runs in rows.values() for measured in runs]
    by_test_set = any(run.agreement or run.samples.get("client-test") for run in every)
    key = "client-accuracy" if by_test_set else "local-accuracy"
    by_row: dict[str, list[list[float]]] = {}
    for row, runs in rows.items():
        points = [
            point
            for measured in runs
            for point in select(measured.points, results.experiment.selection)
        ]
        spreads = [point.numbers.spreads.get(key, Spread()) for point in points]
        if values := [known for spread in spreads if (known := percent(spread.values))]:
            by_row[row] = values
    return (
        figures.spread(by_row, figures.styles(results), column, words(key), name)
        if by_row
        else None
    )


def percent(values: Iterable[float]) -> list[float]:
    """Return the known shares in percent."""
    return [100 * value for value in values if not np.isnan(value)]


def time(results: ExperimentResults, column: str, name: str) -> Figure | None:
    """Return what a round's seconds went into."""
    split: dict[str, Mapping[str, float]] = {}
    for label, runs in trainings(results, column).items():
        split[label] = {
            part: float(np.mean([seconds_split(measured)[part] for measured in runs]))
            for part in PARTS
        }
    return figures.stacked(split, column, name) if split else None
