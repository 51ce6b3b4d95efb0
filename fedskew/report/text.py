"""The numbers of a report as CSV and JSON."""

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from fedskew.report.document import Document
from fedskew.report.inference import Summary, summarize_seeds
from fedskew.report.results import ExperimentResults
from fedskew.report.rounds_to_target import reached, takes_training
from fedskew.report.run_records import RunRecords
from server_app.keys import SELECTIONS

CSV_COLUMNS = (
    "experiment", "column", "row", "metric", "selection", "n", "mean", "sd", "paper", "difference", "seeds", "values",
    "diverged",
)  # fmt: skip


def number_rows(document: Document) -> list[dict[str, Any]]:
    """Return one entry per row, column, metric and selection, for the CSV and the JSON.

    The paper's number and the difference from it are only in the entry of the metric and selection
    that the paper used.
    """
    experiment = document.results.experiment
    columns = list(experiment.columns)
    result = []
    for index, column in enumerate(columns):
        for row in experiment.rows:
            paper = experiment.cells.get(row.label, (None,) * len(columns))[index]
            result += cell_rows(document.results, row.label, column, paper)
    return result


def cell_rows(
    results: ExperimentResults,
    row: str,
    column: str,
    paper: float | None,
) -> list[dict[str, Any]]:
    """Return the entries of one row in one column; `paper` is the paper's number."""
    experiment = results.experiment
    group = results.of(row, column)
    metric = experiment.metric_of(column)
    summaries = {
        (metric, selection): summarize_seeds(group, selection, metric) for selection in SELECTIONS
    }
    paper_key = (metric, experiment.selection)
    if experiment.reaches:
        paper_key = (f"rounds to {experiment.reaches}'s {metric}", experiment.selection)
        summaries[paper_key] = rounds_summary(results, row, column)

    diverged = list(results.diverged(row, column))
    result = []
    for (name, selection), summary in summaries.items():
        is_main = (name, selection) == paper_key
        paper_number = paper if is_main else None
        # A row that diverged in every seed has no number and stands here once.
        if summary is None and paper_number is None and not (is_main and diverged):
            continue
        entry = {
            "experiment": experiment.name,
            "column": column,
            "row": row,
            "metric": name,
            "selection": selection,
        }
        result.append(entry | numbers_of(summary, paper_number) | {"diverged": diverged})
    return result


def rounds_summary(results: ExperimentResults, row: str, column: str) -> Summary | None:
    """Return the rounds until a row has the reference's number, over the seeds that reach it.

    None if no seed does, or if the number takes no training (`takes_training`): in some seed it is
    not above chance, or the reference has it in its first evaluated round.
    """
    if not takes_training(results, column):
        return None
    rounds = {}
    for seed, reach in reached(results, row, column).items():
        if reach is not None:
            rounds[seed] = float(reach.round)
    return Summary(rounds) if rounds else None


def numbers_of(summary: Summary | None, paper: float | None) -> dict[str, Any]:
    """Return the numbers of an entry: ours over the seeds, the paper's, and their difference."""
    if summary is None:
        return {
            "n": 0,
            "mean": None,
            "sd": None,
            "paper": paper,
            "difference": None,
            "seeds": [],
            "values": [],
        }
    difference = None
    if paper is not None:
        difference = summary.mean - paper
    return {
        "n": summary.n,
        "mean": summary.mean,
        "sd": summary.sd,
        "paper": paper,
        "difference": difference,
        "seeds": list(summary.by_seed),
        "values": list(summary.by_seed.values()),
    }


def csv_text(documents: Sequence[Document]) -> str:
    """Return the `number_rows` of all experiments as CSV; lists are separated by spaces."""
    file = io.StringIO()
    writer = csv.DictWriter(file, CSV_COLUMNS, lineterminator="\n")
    writer.writeheader()
    for document in documents:
        for row in number_rows(document):
            writer.writerow({key: csv_field(value) for key, value in row.items()})
    return file.getvalue()


def csv_field(value: Any) -> str:
    """Return a value as text; numbers with four decimals."""
    if isinstance(value, list):
        return " ".join(map(csv_field, value))
    if isinstance(value, float):
        return f"{value:.4f}"
    return "" if value is None else str(value)


def as_json(documents: Sequence[Document]) -> list[dict[str, Any]]:
    """Return all that the tables show."""
    return [document_as_json(document) for document in documents]


def document_as_json(document: Document) -> dict[str, Any]:
    """Return one report; its keys are public."""
    results = document.results
    claims = []
    for verdict in document.verdicts:
        result = {"status": verdict.status, "holds": verdict.holds, "n": verdict.n}
        claims.append(asdict(verdict) | result)
    return {
        "experiment": results.experiment.name,
        "title": results.experiment.title,
        "headline": document.headline,
        "what-was-run": document.what_was_run,
        "warnings": list(results.warnings),
        "numbers": number_rows(document),
        "claims": claims,
        "not-judged": list(results.experiment.unjudged),
        "assumed": results.assumed,
        "runs": {run.name: run_as_json(run) for run in results.runs.values()},
        "command": results.command,
    }


def run_as_json(run: RunRecords) -> dict[str, Any]:
    """Return the state and versions of one run, and how it diverged where it did."""
    entry: dict[str, Any] = {"state": run.state, **run.versions}
    if run.divergence is not None:
        entry["diverged"] = dict(run.divergence)
    return entry
