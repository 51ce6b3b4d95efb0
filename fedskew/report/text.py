"""The report as Markdown, CSV, JSON, and as tables for a terminal."""

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from fedskew.formatting import escaped, terminal_table
from fedskew.report.claims import SAYS, Verdict
from fedskew.report.document import Document, counted
from fedskew.report.format import Table, TableCell, ends_words, signed
from fedskew.report.inference import Summary, summarize_seeds
from fedskew.report.rounds_to_target import reached, takes_training
from server_app.keys import SELECTIONS

SHOWN = ("claims", "differences", "reach")
"""The sections that a terminal gets."""


def markdown(documents: Sequence[Document]) -> str:
    """Return the reports one below the other, without figures."""
    parts = []
    for document in documents:
        parts += [
            f"## {escaped(document.results.experiment.title)}",
            escaped(document.subtitle),
            escaped(document.headline),
            "\n".join(verdict_lines(document)),
        ]
        parts.append("\n".join(f"> {escaped(warning)}" for warning in document.results.warnings))
        parts.append(
            "\n".join(f"- {heading}: {escaped(said)}" for heading, said in document.setup.items())
        )
        parts.append(markdown_table(document.main))
        parts.append(
            "\n".join(f"{number}. {escaped(note)}" for number, note in enumerate(document.notes, 1))
        )
        parts.append(escaped(assumed(document)))
        for section in document.sections:
            if section.tables:
                parts += [
                    f"### {section.title}",
                    section.about,
                    *map(markdown_table, section.tables),
                ]
        parts.append(f"`{document.results.command}`" if document.results.command else "")
    return "\n\n".join(part for part in parts if part) + "\n"


def assumed(document: Document) -> str:
    """Return the settings that the paper leaves open; empty where there are none."""
    stated = ", ".join(f"{key} = {value}" for key, value in document.results.assumed.items())
    return f"The paper leaves open, and these runs have: {stated}." if stated else ""


def verdict_lines(document: Document) -> list[str]:
    """Return a line a claim, and below them one for each that nothing here can judge."""
    lines = []
    for verdict in document.verdicts:
        remark = (
            "" if verdict.claim.expected else f" (not expected at this scale: {verdict.claim.why})"
        )
        lines.append(
            f"- {escaped(verdict.claim.says)}: **{SAYS[verdict.status]}**{seeds_words(verdict)}{escaped(remark)}"
        )
    lines += [f"- {escaped(says)}: **not judged**" for says in document.results.experiment.unjudged]
    return lines


def seeds_words(verdict: Verdict) -> str:
    """Return in how many seeds a claim holds, the two rows' difference with its interval, and that of every seed; of a
    claim that can never be measured why."""
    if not verdict.n:
        return f": {verdict.why_not}" if verdict.why_not else ""
    missing = f", {verdict.unmeasured} not measured yet" if verdict.unmeasured else ""
    if verdict.why_not:
        missing = f", {verdict.unmeasured} cannot be measured ({verdict.why_not})"
    differences = ", ".join(signed(margin, verdict.metric) for margin in verdict.margins.values())
    seeds = f"in {verdict.holds} of {verdict.n} seed{'s' * (verdict.n > 1)}"
    ends = (
        ends_words(verdict.interval.low, verdict.interval.high, verdict.metric)
        if verdict.interval
        else ""
    )
    effect = f"{signed(verdict.estimate, verdict.metric)} {verdict.unit}".rstrip() + ends
    return f", {seeds}{missing}: {effect}" + (f"; by seed {differences}" if verdict.n > 1 else "")


def markdown_table(table: Table) -> str:
    """Return one table with its caption above it."""
    caption = table.caption[0].upper() + table.caption[1:]
    alignment = ":--" if table.wordy else "--:"  # sentences to the left, numbers to the right
    rule = [":--"]
    rule += [alignment for _ in table.headings[1:]]

    lines = [markdown_row(map(markdown_cell, table.headings)), markdown_row(rule)]
    for row in table.rows:
        lines.append(markdown_row(map(markdown_cell, row)))
    return "\n".join([escaped(caption), "", *lines])


def markdown_row(cells: Iterable[str]) -> str:
    """Return a row of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def markdown_cell(cell: TableCell) -> str:
    """Return a cell in one line."""
    text = f"**{escaped(cell.text)}**" if cell.strong else escaped(cell.text)
    return text + (f" ({escaped(cell.below)})" if cell.below else "")


COLUMNS = (
    "experiment", "column", "row", "metric", "selection", "n", "mean", "sd", "paper", "difference", "seeds", "values",
)  # fmt: skip


def lines(document: Document) -> list[dict[str, Any]]:
    """Return a line a row, column and selection; the paper's number and the difference stand at its own selection."""
    results, experiment = document.results, document.results.experiment
    result = []
    for index, column in enumerate(experiment.columns):
        for row in experiment.rows:
            paper = experiment.cells.get(row.label, (None,) * len(experiment.columns))[index]
            group, metric = results.of(row.label, column), experiment.metric_of(column)
            summaries = {
                (metric, chosen): summarize_seeds(group, chosen, metric) for chosen in SELECTIONS
            }
            compared = (metric, experiment.selection)
            if experiment.reaches:
                rounds = {
                    seed: float(r.round)
                    for seed, r in reached(results, row.label, column).items()
                    if r
                }
                rounds = rounds if takes_training(results, column) else {}
                compared = (f"rounds to {experiment.reaches}'s {metric}", experiment.selection)
                summaries[compared] = Summary(rounds) if rounds else None
            for (name, selection), ours in summaries.items():
                beside = paper if (name, selection) == compared else None
                if ours or beside is not None:
                    place = (experiment.name, column, row.label, name, selection)
                    result.append(dict(zip(COLUMNS, (*place, *line(ours, beside)), strict=True)))
    return result


def line(ours: Summary | None, paper: float | None) -> tuple[Any, ...]:
    """Return the numbers of a line."""
    if ours is None:
        return (0, None, None, paper, None, [], [])
    difference = None if paper is None else ours.mean - paper
    return (
        ours.n,
        ours.mean,
        ours.sd,
        paper,
        difference,
        list(ours.by_seed),
        list(ours.by_seed.values()),
    )


def csv_text(documents: Sequence[Document]) -> str:
    """Return `lines` of all experiments; several numbers in a field are apart by spaces."""
    file = io.StringIO()
    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for document in documents:
        for row in lines(document):
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
    """Return everything that the tables are made of."""
    return [
        {
            "experiment": document.results.experiment.name,
            "title": document.results.experiment.title,
            "headline": document.headline,
            "what-was-run": document.setup,
            "warnings": list(document.results.warnings),
            "numbers": lines(document),
            "claims": [
                asdict(verdict) | {"status": verdict.status, "holds": verdict.holds, "n": verdict.n}
                for verdict in document.verdicts
            ],
            "not-judged": list(document.results.experiment.unjudged),
            "assumed": document.results.assumed,
            "runs": {
                run.name: {"state": run.state, **run.versions}
                for run in document.results.runs.values()
            },
            "command": document.results.command,
        }
        for document in documents
    ]


def show(documents: Sequence[Document], console: Console) -> None:
    """Print what matters most: verdicts, warnings, ours beside the paper's, claims; of several, all verdicts last."""
    for document in documents:
        console.print(
            Text(document.results.experiment.title, "bold"),
            Text(f"\n{document.subtitle}", "dim"),
            end="\n",
        )
        for said in (document.headline, *verdict_lines(document)):
            console.print(unmarked(said), markup=False)
        for warning in document.results.warnings:
            console.print(Text(warning, "yellow"))
        for heading, said in document.setup.items():
            console.print(Text(f"{heading}: {said}", "dim"))
        console.print(rich_table(document.main))
        for number, note in enumerate(document.notes, 1):
            console.print(f"[{number}] {note}", markup=False, style="dim")
        if stated := assumed(document):
            console.print(stated, markup=False, style="dim")
        for section in document.sections:
            if section.key in SHOWN:
                for table in section.tables:
                    console.print(rich_table(table))
        if document.results.command and len(document.results.finished) < len(document.results.runs):
            console.print(f"What is missing is made by: {document.results.command}", markup=False)
    if len(documents) > 1 and (
        verdicts := [verdict for document in documents for verdict in document.verdicts]
    ):
        console.print(Text(counted(verdicts), "bold"))
        for document in documents:
            for said in verdict_lines(document):
                console.print(unmarked(said), markup=False)


def unmarked(line: str) -> str:
    """Return a line without Markdown."""
    return line.replace("**", "").replace("\\", "")


def rich_table(table: Table) -> RichTable:
    """Return a table for a terminal."""
    shown = terminal_table(title=table.caption)
    for number, heading in enumerate(table.headings):
        left = number == 0 or table.wordy
        shown.add_column(
            rich_cell(heading),
            justify="left" if left else "right",
            no_wrap=number == 0 and not table.wordy,
        )
    for row in table.rows:
        shown.add_row(*map(rich_cell, row))
    return shown


def rich_cell(cell: TableCell) -> Text:
    """Return a cell with its second line below the first."""
    return Text.assemble(
        (cell.text, "bold" if cell.strong else ""), (f"\n{cell.below}" if cell.below else "", "dim")
    )
