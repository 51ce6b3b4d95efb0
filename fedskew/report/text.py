"""The report as Markdown, CSV, JSON, and as tables for a terminal."""

import csv
import html
import io
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from fedskew.formatting import escaped, p_value, plural, terminal_table
from fedskew.report.claims import SAYS, Verdict
from fedskew.report.document import Document, counted
from fedskew.report.format import Table, TableCell, ends_words, first_upper, signed
from fedskew.report.inference import Summary, summarize_seeds
from fedskew.report.results import ExperimentResults
from fedskew.report.rounds_to_target import reached, takes_training
from fedskew.report.run_records import RunRecords
from server_app.keys import SELECTIONS

SHOWN = ("claims", "differences", "reach")
"""The sections that a terminal gets."""


def markdown(documents: Sequence[Document]) -> str:
    """Return the reports one below the other, without figures."""
    parts: list[str] = []
    for document in documents:
        parts += markdown_parts(document)
    return "\n\n".join(part for part in parts if part) + "\n"


def markdown_parts(document: Document) -> list[str]:
    """Return the paragraphs and tables of one report. `markdown` drops the empty ones."""
    results = document.results
    warnings = [f"> {escaped(warning)}" for warning in results.warnings]
    setup = [f"- {heading}: {escaped(text)}" for heading, text in document.what_was_run.items()]
    notes = [f"{number}. {escaped(note)}" for number, note in enumerate(document.notes, 1)]
    parts = [
        f"## {escaped(results.experiment.title)}",
        escaped(document.subtitle),
        escaped(document.headline),
        "\n".join(line.as_markdown() for line in verdict_lines(document)),
        "\n".join(warnings),
        "\n".join(setup),
        markdown_table(document.main),
        "\n".join(notes),
        escaped(assumed(document)),
    ]
    for section in document.sections:
        if section.tables:
            parts += [f"### {section.title}", section.about, *map(markdown_table, section.tables)]
    if results.command:
        parts.append(f"`{results.command}`")
    return parts


def assumed(document: Document) -> str:
    """Return the sentence on the settings that the paper leaves open; empty if there are none."""
    settings = ", ".join(f"{key} = {value}" for key, value in document.results.assumed.items())
    if settings:
        return f"Not specified by the paper; these runs use: {settings}."
    return ""


@dataclass(frozen=True)
class VerdictLine:
    """A claim and its verdict, which Markdown and the terminal show in one line."""

    says: str
    """The claim as a sentence."""
    status: str
    """The verdict in words."""
    detail: str = ""
    """What follows the status: seeds, difference and interval, or the reason why there are none."""

    def as_markdown(self) -> str:
        """Return the item of a list, with the status in bold."""
        return f"- {escaped(self.says)}: **{self.status}**{escaped(self.detail)}"

    def as_text(self) -> str:
        """Return the line for a terminal."""
        line = f"- {self.says}: {self.status}{self.detail}"
        return " ".join(line.splitlines())


def verdict_lines(document: Document) -> list[VerdictLine]:
    """Return one line per claim, then one per statement of the paper that is not judged."""
    lines = []
    for verdict in document.verdicts:
        claim = verdict.claim
        detail = seeds_words(verdict)
        if not claim.expected:
            detail += f" (not expected at this scale: {claim.why})"
        lines.append(VerdictLine(claim.says, SAYS[verdict.status], detail))
    for says in document.results.experiment.unjudged:
        lines.append(VerdictLine(says, "not judged"))
    return lines


def seeds_words(verdict: Verdict) -> str:
    """Return the words after a verdict's status.

    They say in how many seeds the claim holds, and give the difference with its interval and its
    values by seed. A claim that can never be measured has the reason instead.
    """
    if not verdict.judged or not verdict.n:
        reason = verdict.why_not if verdict.judged else verdict.unfit
        return f": {reason}" if reason else ""
    seeds = f"in {verdict.holds} of {plural(verdict.n, 'seed')}"
    if verdict.why_not:
        seeds += f", {verdict.unmeasured} cannot be measured ({verdict.why_not})"
    elif verdict.unmeasured:
        seeds += f", {verdict.unmeasured} not measured yet"

    metric = verdict.metric
    effect = f"{signed(verdict.estimate, metric)} {verdict.unit}".rstrip()
    if verdict.interval:
        effect += ends_words(verdict.interval.low, verdict.interval.high, metric)
    above = verdict.interval is not None and verdict.interval.low > verdict.claim.by
    if above and verdict.status == "unclear" and verdict.p_holm is not None:
        effect += f", p {p_value(verdict.p_holm)} after Holm"
    if verdict.n > 1:
        differences = ", ".join(signed(margin, metric) for margin in verdict.margins.values())
        effect += f"; by seed {differences}"
    unfit = f" ({verdict.unfit})" if verdict.unfit else ""
    return f", {seeds}: {effect}{unfit}"


def markdown_table(table: Table) -> str:
    """Return one table with its caption above it."""
    caption = first_upper(table.caption)
    alignment = ":--" if table.wordy else "--:"  # sentences to the left, numbers to the right
    rule = [":--"]
    rule += [alignment for _ in table.headings[1:]]

    headings = map(markdown_cell, table.headings)
    lines = [markdown_row(headings), markdown_row(rule)]
    for row in table.rows:
        cells = map(markdown_cell, row)
        lines.append(markdown_row(cells))
    return "\n".join([escaped(caption), "", *lines])


def markdown_row(cells: Iterable[str]) -> str:
    """Return a row of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def markdown_cell(cell: TableCell) -> str:
    """Return a cell in one line."""
    text = escaped(cell.text)
    if cell.strong:
        text = f"**{text}**"
    return f"{text} ({escaped(cell.below)})" if cell.below else text


def html_table(table: Table) -> str:
    """Return one table as an HTML element with its caption."""
    headings = "".join(f"<th>{html_cell(cell)}</th>" for cell in table.headings)
    rows = []
    for row in table.rows:
        cells = "".join(f"<td>{html_cell(cell)}</td>" for cell in row)
        rows.append(f"<tr>{cells}</tr>")
    caption = html.escape(first_upper(table.caption))
    body = "\n".join(rows)
    return f"<table>\n<caption>{caption}</caption>\n<tr>{headings}</tr>\n{body}\n</table>"


def html_cell(cell: TableCell) -> str:
    """Return the contents of a cell, its second line below the first."""
    text = html.escape(cell.text)
    if cell.strong:
        text = f"<strong>{text}</strong>"
    if cell.below:
        text += f"<br><small>{html.escape(cell.below)}</small>"
    return text


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


def show(documents: Sequence[Document], console: Console, verbose: bool = False) -> None:
    """Print the reports' main contents; after several reports, all verdicts."""
    for document in documents:
        show_document(document, console, verbose)
    verdicts: list[Verdict] = []
    for document in documents:
        verdicts += document.verdicts
    if len(documents) > 1 and verdicts:
        console.print(Text(counted(verdicts), "bold"))
        for document in documents:
            show_verdicts(document, console)


def show_document(document: Document, console: Console, verbose: bool = False) -> None:
    """Print verdicts, warnings, what was run, ours beside the paper's, and the sections in SHOWN."""
    results = document.results
    title = Text(results.experiment.title, "bold")
    console.print(title, Text(f"\n{document.subtitle}", "dim"), end="\n")
    console.print(document.headline, markup=False)
    show_verdicts(document, console)
    for warning in results.warnings:
        console.print(Text(warning, "yellow"))
    for heading, text in document.what_was_run.items():
        console.print(Text(f"{heading}: {text}", "dim"))
    console.print(rich_table(document.main))
    for number, note in enumerate(document.notes, 1):
        console.print(f"[{number}] {note}", markup=False, style="dim")
    left_open = assumed(document)
    if left_open:
        console.print(left_open, markup=False, style="dim")
    for section in document.sections:
        if verbose or section.key in SHOWN:
            for table in section.tables:
                console.print(rich_table(table))
    if results.command and results.lacks_runs:
        console.print(f"To make the missing runs: {results.command}", markup=False)


def show_verdicts(document: Document, console: Console) -> None:
    """Print one line per claim."""
    for line in verdict_lines(document):
        console.print(line.as_text(), markup=False)


def rich_table(table: Table) -> RichTable:
    """Return a table for a terminal."""
    shown = terminal_table(title=table.caption)
    for number, heading in enumerate(table.headings):
        is_name = number == 0
        shown.add_column(
            rich_cell(heading),
            justify="left" if is_name or table.wordy else "right",
            no_wrap=is_name and not table.wordy,
        )
    for row in table.rows:
        shown.add_row(*map(rich_cell, row))
    return shown


def rich_cell(cell: TableCell) -> Text:
    """Return a cell with its second line below the first."""
    text = Text(cell.text, "bold" if cell.strong else "")
    if cell.below:
        text.append(f"\n{cell.below}", "dim")
    return text
