"""A report's tables as LaTeX, its figures as files, and the papers that it cites as BibTeX."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import yaml

from data import SettingError
from fedskew.report.document import Document
from fedskew.report.figures import styles
from fedskew.report.format import Table, TableCell, first_upper
from fedskew.report.page import drawings
from fedskew.report.run_records import slug
from fedskew.report.svg import Figure, Style, write_file

REFERENCES = Path(__file__).with_name("references.yaml")
PROJECT = "project"
"""Names the entries that every report cites."""
TABLES = ("claims", "differences")
"""The sections whose tables go into a paper, after the main table."""

LATEX_CHARACTERS = {
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


def latex(documents: Sequence[Document]) -> str:
    """Return one LaTeX table per table of the reports, for a document that loads the package booktabs."""
    parts = [r"% \usepackage{booktabs}"]
    for document in documents:
        name = document.results.experiment.name
        parts.append(latex_table(document.main, f"tab:{name}"))
        for section in document.sections:
            if section.key not in TABLES:
                continue
            for number, table in enumerate(section.tables, 1):
                parts.append(latex_table(table, f"tab:{name}-{section.key}-{number}"))
    return "\n\n".join(parts) + "\n"


def latex_table(table: Table, label: str) -> str:
    """Return a table with rules, its caption and the label that \\ref names."""
    columns = len(table.headings)
    alignment = "l" + "r" * (columns - 1)
    if table.wordy:
        # Sentences wrap: the columns share 90 % of the line, and the space between them takes the rest.
        alignment = rf"p{{{0.9 / columns:.2f}\linewidth}}" * columns
    lines = [
        r"\begin{table}",
        r"  \centering",
        rf"  \caption{{{latex_text(first_upper(table.caption))}}}",
        rf"  \label{{{label}}}",
        rf"  \begin{{tabular}}{{{alignment}}}",
        r"    \toprule",
        f"    {latex_row(table.headings)}",
        r"    \midrule",
    ]
    lines += [f"    {latex_row(row)}" for row in table.rows]
    lines += [r"    \bottomrule", r"  \end{tabular}", r"\end{table}"]
    return "\n".join(lines)


def latex_row(cells: Sequence[TableCell]) -> str:
    """Return a row of a LaTeX table."""
    return " & ".join(map(latex_cell, cells)) + r" \\"


def latex_cell(cell: TableCell) -> str:
    """Return a cell in one line: bold where the report is, with its second line in brackets."""
    text = latex_text(cell.text)
    if cell.strong:
        text = rf"\textbf{{{text}}}"
    return f"{text} ({latex_text(cell.below)})" if cell.below else text


def latex_text(text: str) -> str:
    """Return a text whose characters have no meaning to LaTeX."""
    return "".join(LATEX_CHARACTERS.get(character, character) for character in text)


@dataclass(frozen=True)
class Reference:
    """An entry of references.yaml."""

    names: frozenset[str]
    """The methods and data sets that it belongs to."""
    entry: str
    """The entry as BibTeX."""


@lru_cache(maxsize=1)
def references() -> tuple[Reference, ...]:
    """Return the entries of references.yaml, in their order."""
    entries = yaml.safe_load(REFERENCES.read_text())
    return tuple(Reference(frozenset(entry["names"]), entry["entry"].strip()) for entry in entries)


def bibtex(documents: Sequence[Document]) -> str:
    """Return the entries of this project, of Flower, and of the methods and data sets of the reports."""
    cited = {PROJECT}
    for document in documents:
        results = document.results
        for row in results.experiment.rows:
            cited.update(row.method.split("+"))
        cited.update(run.settings.data.dataset for run in results.finished)
    entries = [reference.entry for reference in references() if reference.names & cited]
    return "\n\n".join(entries) + "\n"


def write_figures(documents: Sequence[Document], folder: Path) -> list[Path]:
    """Write every figure of the reports as SVG and as PDF and return the files.

    Each report has a folder of its experiment's name; a file has the figure's name, as `Comparison.figure` takes it.
    Raises SettingError where the folder cannot be written.
    """
    written = []
    try:
        for document in documents:
            of_report = folder / slug(document.results.experiment.name)
            of_report.mkdir(parents=True, exist_ok=True)
            written += write_document_figures(document, of_report)
    except OSError as error:
        rule = f"cannot be written: {error.strerror}"
        raise SettingError("--figures", str(folder), rule) from error
    return written


def write_document_figures(document: Document, folder: Path) -> list[Path]:
    """Write the figures of one report."""
    written = []
    for name, captioned in captioned_figures(document).items():
        written += write_figure(captioned.figure, captioned.legend, folder / name)
    return written


@dataclass(frozen=True)
class CaptionedFigure:
    """A figure that stands alone, outside the page."""

    section: str
    """The key of the section that it is of."""
    figure: Figure
    """With its whole title; nothing is drawn yet."""
    legend: Sequence[Style]
    """The rows, where the figure shows several."""


def captioned_figures(document: Document) -> dict[str, CaptionedFigure]:
    """Return the figures of a report by their names, in its order.

    A name is the section's key, then what the figure shows, from the section's second group on, then its column. Where
    that is not unique, a number follows.
    """
    rows = list(styles(document.results).values())
    captioned = {}
    number_of = Counter[str]()
    for section, groups in drawings(document, document.results.experiment.name).items():
        for group, figures in groups:
            # The first group needs no words: "curves" is the curve of the table's own number.
            shown = "" if group == groups[0][0] else group
            for figure in figures:
                name = slug(f"{section} {shown} {figure.title}")
                number_of[name] += 1
                if number_of[name] > 1:
                    name = f"{name}-{number_of[name]}"
                title = ": ".join(words for words in (group, figure.title) if words)
                whole = replace(figure, title=title)
                legend = rows if figure.by_row else []
                captioned[name] = CaptionedFigure(section, whole, legend)
    return captioned


def write_figure(figure: Figure, legend: Sequence[Style], stem: Path) -> list[Path]:
    """Write one figure as `stem`.svg and `stem`.pdf and return both."""
    files = [stem.with_name(f"{stem.name}.{suffix}") for suffix in ("svg", "pdf")]
    for file in files:
        write_file(figure, legend, file)
    return files
