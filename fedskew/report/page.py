"""The report as one HTML file that opens offline: tables and figures in a Jinja2 template, no script."""

import functools
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import jinja2
import numpy as np
import yaml
from markupsafe import Markup

from fedskew.report import figures
from fedskew.report.claims import SAYS, Verdict
from fedskew.report.cost_figures import by_bytes, by_core_seconds
from fedskew.report.differences import differences
from fedskew.report.document import Document, counted
from fedskew.report.format import SELECTION_WORDS, first_upper, in_percent, named, words
from fedskew.report.inference import Floats
from fedskew.report.prediction_figures import precision_by_recall, reliability, roc
from fedskew.report.rank_diagram import rank_diagram
from fedskew.report.results import ExperimentResults, SeedResult
from fedskew.report.run_summary import PARTS, mean_split, trainings
from fedskew.report.svg import Figure
from fedskew.report.tables import MOST_CLASSES, class_names, has_decile, recalls
from fedskew.report.text import seeds_words
from server_app.record import Spread
from server_app.round_selection import select

TEMPLATES: dict[str, str] = yaml.safe_load((Path(__file__).parent / "page.yaml").read_text())
"""The style sheet, `style`, and the Jinja2 template, `page`."""
Drawings = list[tuple[str, list[Figure]]]
"""By title, the panels that belong together."""
LEAST_ROUNDS = 3
"""Evaluated rounds from which on a figure of recalls by round says more than the table."""


def html(documents: Sequence[Document]) -> str:
    """Return the page."""
    environment = jinja2.Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.globals |= {
        "svg": Markup,
        "says": SAYS,
        "seeds_words": seeds_words,
        "selected": SELECTION_WORDS.__getitem__,
    }
    split = [(part, f"var(--series-{number})") for number, part in enumerate(PARTS, 1)]
    parts = []
    verdicts: list[Verdict] = []
    for number, document in enumerate(documents):
        part = {
            "document": document,
            "experiment": document.results.experiment,
            "drawings": drawings(document, f"e{number}"),
            "styles": list(figures.styles(document.results).values()),
            "split": split,
        }
        parts.append(part)
        verdicts += document.verdicts
    overall = counted(verdicts) if verdicts else ""
    template = environment.from_string(TEMPLATES["page"])
    return template.render(
        parts=parts,
        overall=overall,
        style=Markup(TEMPLATES["style"]),
    )


def drawings(document: Document, prefix: str) -> dict[str, Drawings]:
    """Return the figures of every section; `prefix` makes their ids unique in the page."""
    results = document.results
    columns = list(results.experiment.columns)
    metric_of = results.experiment.metric_of

    def panels(
        key: str, draw: Callable[[ExperimentResults, str, str], Figure | None]
    ) -> list[Figure]:
        """Return one panel per column; `draw` gets results, column and an id."""
        drawn = []
        for number, column in enumerate(columns):
            figure = draw(results, column, f"{prefix}-{key}-{number}")
            if figure is not None:
                drawn.append(figure)
        return drawn

    metrics = {metric_of(column) for column in columns}
    main = words(min(metrics)) if len(metrics) == 1 else "the table's numbers"
    curves = {main: panels("curve-", main_curves)}
    for metric in results.experiment.series:
        key = re.sub(r"\W", "-", f"curve-{metric}")
        draw = functools.partial(series_curves, metric=metric)
        curves[words(metric)] = panels(key, draw)

    sections: dict[str, Drawings] = {
        "claims": [("", forests(document.verdicts, prefix))],
        "differences": [
            ("", panels("effect", effects)),
            ("Ranks over the columns", rank_diagrams(results, f"{prefix}-ranks")),
        ],
        "curves": [(first_upper(title), group) for title, group in curves.items()],
        "reach": [
            ("By bytes", panels("bytes", by_bytes)),
            ("By core seconds", panels("core-seconds", by_core_seconds)),
        ],
        "classes": [
            ("", panels("recall", recall_curve)),
            ("Recall by round", recalls_by_round(results, f"{prefix}-recall-round")),
        ],
        "ranking": [
            ("ROC", panels("roc", roc)),
            ("Precision by recall", panels("precision", precision_by_recall)),
            ("Confusion of the classes", confusions(results, f"{prefix}-confusion")),
        ],
        "calibration": [("Reliability", panels("reliability", reliability))],
        "clients": [
            ("Who holds what", panels("matrix", matrix)),
            ("Spread over the clients", panels("spread", spread)),
        ],
        "time": [("", panels("time", time))],
    }
    for key, groups in sections.items():
        sections[key] = [(title, group) for title, group in groups if group]
    return sections


def main_curves(results: ExperimentResults, column: str, name: str) -> Figure | None:
    """Return the curves of a column's own number."""
    return figures.curves(results, column, results.experiment.metric_of(column), name)


def series_curves(results: ExperimentResults, column: str, name: str, metric: str) -> Figure | None:
    """Return the curves of a further number."""
    return figures.curves(results, column, metric, name)


def forests(verdicts: Sequence[Verdict], prefix: str) -> list[Figure]:
    """Return the claims' differences, those in points apart from those in rounds."""
    drawn = []
    for unit in ("points", "rounds"):
        shown = []
        for number, verdict in enumerate(verdicts, 1):
            if not verdict.n or verdict.unit != unit:
                continue
            interval = verdict.interval
            effect = figures.Effect(
                name=f"{number}. {verdict.claim.relation}",
                estimate=verdict.estimate,
                by_seed=list(verdict.margins.values()),
                ends=(interval.low, interval.high) if interval else None,
                beyond=verdict.claim.by,
                decided=verdict.status in ("holds", "fails"),
            )
            shown.append(effect)
        if shown:
            drawn.append(figures.forest(shown, unit, "", f"{prefix}-forest-{unit}"))
    return drawn


def effects(results: ExperimentResults, column: str, name: str) -> Figure | None:
    """Return the rows' differences from the one that they are compared with."""
    shown = []
    for difference in differences(results, column):
        effect = figures.Effect(
            name=difference.row,
            estimate=difference.estimate,
            by_seed=list(difference.comparison.by_seed.values()),
            ends=None if np.isnan(difference.ends[0]) else difference.ends,
            decided=difference.distinguishable,
        )
        shown.append(effect)
    unit = "points" if in_percent(results.experiment.metric_of(column)) else ""
    return figures.forest(shown, unit, column, name) if shown else None


def confusions(results: ExperimentResults, prefix: str) -> list[Figure]:
    """Return the confusion matrix of every row and column, summed over the seeds."""
    names = class_names(results)
    if not names:
        return []
    drawn: list[Figure] = []
    for column in results.experiment.columns:
        for row in results.experiment.rows:
            points = [run.points[-1] for run in results.of(row.label, column)]
            matrices = [point.numbers.confusion for point in points]
            if not matrices or any(matrix is None for matrix in matrices):
                continue
            counts_CC = np.sum(np.array(matrices), axis=0)
            title = f"{named(column)}{row.label}"
            drawn.append(figures.confusion(counts_CC, names, title, f"{prefix}-{len(drawn)}"))
    return drawn


def rank_diagrams(results: ExperimentResults, name: str) -> list[Figure]:
    """Return the rank diagram, where there are enough columns for one."""
    diagram = rank_diagram(results, name)
    return [] if diagram is None else [diagram]


def recalls_by_round(results: ExperimentResults, prefix: str) -> list[Figure]:
    """Return the recall of every class by round, one panel per row and column, for few classes and several rounds."""
    names = class_names(results)
    if not 0 < len(names) <= MOST_CLASSES:
        return []
    drawn: list[Figure] = []
    for column in results.experiment.columns:
        for row in results.experiment.rows:
            by_round = recall_by_round(results.of(row.label, column))
            if len(by_round) < LEAST_ROUNDS:
                continue
            recall_RC = np.array(list(by_round.values()))
            title = f"{named(column)}{row.label}"
            name = f"{prefix}-{len(drawn)}"
            drawn.append(figures.recall_by_round(recall_RC, list(by_round), names, title, name))
    return drawn


def recall_by_round(group: Sequence[SeedResult]) -> dict[int, Floats]:
    """Return by round the recall of every class in percent, (C,), a mean over the seeds that evaluated the round."""
    of_round: dict[int, list[Sequence[float]]] = {}
    for measured in group:
        for point in measured.points:
            of_round.setdefault(point.round, []).append(point.numbers.recall)
    means: dict[int, Floats] = {}
    for round in sorted(of_round):
        means[round] = 100 * np.mean(of_round[round], axis=0)
    return means


def matrix(results: ExperimentResults, column: str, name: str) -> Figure | None:
    """Return the samples by class and client for the first seed that has a finished run."""
    runs: list[SeedResult] = []
    for row in results.experiment.rows:
        runs += results.of(row.label, column)
    if not runs:
        return None
    first = min(runs, key=lambda measured: measured.cell.seed)
    return figures.matrix(first, column, name)


def recall_curve(results: ExperimentResults, column: str, name: str) -> Figure | None:
    """Return the recall by class where there are too many classes for a table."""
    classes = len(class_names(results))
    if classes <= MOST_CLASSES:
        return None
    by_row = {}
    runs: list[SeedResult] = []
    for row in results.experiment.rows:
        group = results.of(row.label, column)
        recall_C = recalls(group, results.experiment.selection)
        if recall_C is not None:
            by_row[row.label] = recall_C
            runs += group
    if not runs:
        return None
    order = np.arange(classes)
    counts_KC = runs[0].run.samples.get("train")
    if counts_KC:
        totals_C = np.array(counts_KC).sum(0)
        order = np.argsort(-totals_C, kind="stable")
    return figures.recall_curve(by_row, figures.styles(results), column, order.tolist(), name)


def spread(results: ExperimentResults, column: str, name: str) -> Figure | None:
    """Return the clients' accuracies: on their own test sets where they have some, else on their mix of classes."""
    runs_of_row = {row.label: results.of(row.label, column) for row in results.experiment.rows}
    key = "local-accuracy"
    for runs in runs_of_row.values():
        for measured in runs:
            if measured.run.agreement or measured.run.samples.get("client-test"):
                key = "client-accuracy"

    by_row: dict[str, list[list[float]]] = {}
    for row, runs in runs_of_row.items():
        for measured in runs:
            for point in select(measured.points, results.experiment.selection):
                shares = point.numbers.spreads.get(key, Spread()).values
                percent = [100 * share for share in shares if not np.isnan(share)]
                if percent:
                    by_row.setdefault(row, []).append(percent)
    if not by_row:
        return None
    looks = figures.styles(results)
    decile = has_decile(results, column)
    return figures.spread(by_row, looks, column, words(key), name, decile=decile)


def time(results: ExperimentResults, column: str, name: str) -> Figure | None:
    """Return seconds per round by what they went into."""
    split = {label: mean_split(runs) for label, runs in trainings(results, column).items()}
    return figures.stacked(split, column, name) if split else None
