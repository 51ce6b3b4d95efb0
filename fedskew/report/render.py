"""Reports for a terminal and as HTML, Markdown, LaTeX, CSV and JSON, from the same tables; figures as files."""

import csv
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import jinja2
import yaml
from markupsafe import Markup
from rich.console import Console, JustifyMethod

from data import SettingError
from fedskew.formatting import escaped, terminal_table
from fedskew.report.claims import claim_json
from fedskew.report.document import Document, claims_in_words
from fedskew.report.format import Table, TableCell, first_upper
from fedskew.report.runs import slug
from fedskew.report.tables import numbers

if TYPE_CHECKING:
    from fedskew.report.drawing import Figure

HERE = Path(__file__).parent
SIGNS = {"holds": "✓", "unclear": "?", "fails": "✗", "open": "…", "never": "\N{EN DASH}"}
"""By the status of a claim."""
PUBLISHED = ("claims", "differences")
"""The sections whose tables go into a paper, after the main table."""
LATEX_CHARACTERS: dict[str, str | int | None] = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"$<$",
    ">": r"$>$",
    "|": r"$|$",
    "\N{MINUS SIGN}": "$-$",
    "\N{PLUS-MINUS SIGN}": r"$\pm$",
    "\N{MULTIPLICATION SIGN}": r"$\times$",
    "\N{MIDDLE DOT}": r"$\cdot$",
    "\N{EN DASH}": "--",
    "\N{EM DASH}": "---",
    "\N{GREEK SMALL LETTER ALPHA}": r"$\alpha$",
    "\N{GREEK SMALL LETTER TAU}": r"$\tau$",
    "\N{NO-BREAK SPACE}": "~",
}


def terminal_text(documents: Sequence[Document], width: int = 80, verbose: bool = False) -> str:
    """Return the reports as a terminal of so many columns shows them.

    The short form has verdicts, warnings and one table, in at most 40 lines of 80 columns for an experiment of ten
    cells; the verbose one also what was run and the tables of claims, differences and rounds.
    """
    return rendered(
        "report.txt", documents=documents, overall=overall(documents), width=width, verbose=verbose
    )


def overall(documents: Sequence[Document]) -> str:
    """Return how many claims of several reports hold; empty for one report and without claims."""
    verdicts = [*chain.from_iterable(document.verdicts for document in documents)]
    return claims_in_words(verdicts) if len(documents) > 1 and verdicts else ""


def text_table(table: Table, width: int) -> str:
    """Return a table's headings and rows in lines of a terminal."""
    shown = terminal_table()
    for number, heading in enumerate(table.headings):
        name = number == 0
        justify: JustifyMethod = "left" if name or table.wordy else "right"
        shown.add_column(text_cell(heading), justify=justify, no_wrap=name and not table.wordy)
    for row in table.rows:
        shown.add_row(*map(text_cell, row))
    terminal = Console(width=width, markup=False, emoji=False, highlight=False, file=io.StringIO())
    with terminal.capture() as captured:
        terminal.print(shown)
    return "\n".join(line.rstrip() for line in captured.get().strip("\n").splitlines())


def text_cell(cell: TableCell) -> str:
    """Return a cell with its second line below the first."""
    return f"{cell.text}\n{cell.below}" if cell.below else cell.text


@cache
def environment() -> jinja2.Environment:
    """Return the templates: YAML, because Flower Hub takes no endings such as .css and .j2."""
    made = jinja2.Environment(
        loader=jinja2.DictLoader(yaml.safe_load((HERE / "templates.yaml").read_text())),
        autoescape=lambda name: name is not None and name.endswith(".html"),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    made.filters |= {
        "first_upper": first_upper,
        "latex": latex_text,
        "markdown": escaped,
        "of_section": of_section,
        "shorten": shorten,
        "table": text_table,
    }
    made.globals |= {"svg": Markup, "signs": SIGNS}
    return made


def rendered(template: str, **values: Any) -> str:
    """Return a template of templates.yaml with its values. Of several empty lines, as of an empty list, one stays."""
    text = environment().get_template(template).render(**values)
    return re.sub(r"\n{3,}", "\n\n", text).strip("\n") + "\n"


def html(documents: Sequence[Document]) -> str:
    """Return the page: one file that opens offline, without a script."""
    from fedskew.report.figures import figures  # draws, so it takes a moment to import

    parts = [(document, figures(document)) for document in documents]
    return rendered("page.html", parts=parts, overall=overall(documents))


def of_section(figures: "Mapping[str, Figure]", key: str) -> "dict[str, Figure]":
    """Return the figures of a section, whose names begin with its key."""
    return {name: figures[name] for name in figures if name.partition("-")[0] == key}


def html_table(table: Table) -> str:
    """Return one table as an HTML element with its caption."""
    return rendered("table.html", table=table)


def markdown(documents: Sequence[Document]) -> str:
    """Return the reports one below the other, without figures."""
    return rendered("report.md", documents=documents)


def latex(documents: Sequence[Document]) -> str:
    """Return one LaTeX table per table of the reports, for a document that loads the package booktabs."""
    tables = []
    for document in documents:
        label = f"tab:{document.results.experiment.name}"
        tables.append((label, document.main))
        for section in document.sections:
            if section.key in PUBLISHED:
                for number, table in enumerate(section.tables, 1):
                    tables.append((f"{label}-{section.key}-{number}", table))
    return rendered("report.tex", tables=tables)


def latex_text(text: str) -> str:
    """Return a text whose characters have no meaning to LaTeX."""
    return text.translate(str.maketrans(LATEX_CHARACTERS))


def csv_text(documents: Sequence[Document]) -> str:
    """Return the numbers of all experiments as CSV, with four decimals; lists are separated by spaces."""
    entries = [*chain.from_iterable(numbers(document.results) for document in documents)]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    if entries:  # none where no run has a number
        writer.writerow(entries[0])
    for entry in entries:
        writer.writerow(map(csv_field, entry.values()))
    return file.getvalue()


def csv_field(value: Any) -> str:
    """Return a value as text."""
    if isinstance(value, list):
        return " ".join(map(csv_field, value))
    if isinstance(value, float):
        return f"{value:.4f}"
    return "" if value is None else str(value)


def as_json(document: Document) -> dict[str, Any]:
    """Return all that the tables of a report show; the keys are public."""
    results = document.results
    runs: dict[str, Any] = {}
    for run in results.runs.values():
        runs[run.name] = {"state": run.state, **run.versions}
        if run.divergence is not None:
            runs[run.name]["diverged"] = dict(run.divergence)
    return {
        "experiment": results.experiment.name,
        "title": results.experiment.title,
        "headline": document.headline,
        "what-was-run": document.what_was_run,
        "warnings": list(results.warnings),
        "numbers": numbers(results),
        "claims": [*map(claim_json, document.verdicts)],
        "assumed": results.assumed,
        "runs": runs,
        "command": results.command,
    }


FORMS: Mapping[str, Callable[[Sequence[Document]], str]] = {
    "--markdown": markdown,
    "--csv": csv_text,
    "--json": lambda documents: json.dumps([*map(as_json, documents)], indent=2) + "\n",
    "--latex": latex,
}
"""What `fedskew report` prints instead of text for a terminal, by option."""


def write_figures(documents: Sequence[Document], folder: Path) -> list[Path]:
    """Write every figure of the reports into a folder of the experiment's name; return the files.

    Raises SettingError where the folder cannot be written.
    """
    from fedskew.report.figures import figures

    written = []
    for document in documents:
        of_report = folder / slug(document.results.experiment.name)
        written += save_figures(figures(document), of_report)
    return written


def save_figures(figures: Mapping[str, "Figure"], folder: Path) -> list[Path]:
    """Write figures as SVG, PDF and PNG; return the files. Raises SettingError where the folder cannot be written."""
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, figure in figures.items():
            for form in ("svg", "pdf", "png"):
                written.append(figure.save(folder / f"{name}.{form}"))
    except OSError as error:
        rule = f"cannot be written: {error.strerror}"
        raise SettingError("--figures", str(folder), rule) from error
    return written
