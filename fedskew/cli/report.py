"""`fedskew report`: results of experiments and other runs; `fedskew keep`: the records of finished runs."""

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from data import SettingError, require
from fedskew.cli.options import (
    AsJson,
    ExperimentsFile,
    RecordsFolder,
    Results,
    Settings,
    check_settings,
    choose,
)
from fedskew.experiments import (
    Suite,
    find_all,
    papers_suite,
)
from fedskew.experiments.entries import defaults
from fedskew.formatting import console, to_stdout
from server_app.keys import read_texts
from server_app.methods import Setting as Scalar

if TYPE_CHECKING:
    from fedskew.report.document import Document
    from fedskew.report.results import ExperimentResults

OF_PAPERS = {"", "--markdown", "--json"}
"""The forms of the papers' page."""
WITHOUT_WARNINGS = {"--csv", "--latex"}
"""The forms that do not contain the reports' warnings, which then go to stderr."""


def report(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Experiments to report; default: all runs, one table per data set."),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write one HTML file that opens offline.")
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
    csv: Annotated[
        bool, typer.Option("--csv", help="Print one CSV line per row, column and selection.")
    ] = False,
    as_json: AsJson = False,
    latex: Annotated[
        bool, typer.Option("--latex", help="Print the tables as LaTeX, with intervals.")
    ] = False,
    figures: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Write every figure as FOLDER/EXPERIMENT/NAME.svg, .pdf and .png.",
        ),
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Also print what was run, and more tables.")
    ] = False,
    results: Results = None,
    experiments: ExperimentsFile = None,
    records: RecordsFolder = None,
    settings: Settings = None,
) -> None:
    """Report the results of experiments and of other runs, with intervals and costs."""
    forms = {
        "--markdown": markdown,
        "--csv": csv,
        "--json": as_json,
        "--latex": latex,
    }
    chosen = [option for option, is_given in forms.items() if is_given]
    if len(chosen) > 1:
        raise SettingError("report", " ".join(forms), "must be one of them")
    form = "".join(chosen)
    overrides = read_texts(settings or [], defaults())
    check_settings(overrides, alone=False)
    if results is not None:
        overrides["results"] = results
    folder = results_folder(overrides)
    suite = papers_suite(names or [], experiments)
    if suite is not None:
        others = {
            "--html": html,
            form: form not in OF_PAPERS,
        }
        for option in others:
            if others[option]:
                rule = f"is for experiments: {suite.name} is about statements"
                raise SettingError(option, "", rule)
        report_papers(suite, overrides, experiments, records, form, figures)
        return
    if records is not None:
        raise SettingError("--records", str(records), "is for papers and its like")
    found = chosen_results(names or [], folder, overrides, experiments)
    from fedskew.report.document import document

    documents = [document(one) for one in found]
    write(documents, html, figures, form, verbose)


def write(
    documents: "Sequence[Document]",
    html: Path | None,
    figures: Path | None,
    form: str,
    verbose: bool,
) -> None:
    """Write the reports to files, and print them in a form, or without one as text for a terminal."""
    from fedskew.report import render

    if html is not None:
        page = render.html(documents)
        try:
            html.write_text(page, encoding="utf-8")
        except OSError as error:
            rule = f"cannot be written: {error.strerror}"
            raise SettingError("--html", str(html), rule) from error
        to_stderr(f"written: {html}")
    if figures is not None:
        written = render.write_figures(documents, figures)
        to_stderr(f"written: {len(written)} files in {figures}")
    only_files = not form and (html is not None or figures is not None)
    if only_files or form in WITHOUT_WARNINGS:
        for one in documents:
            for warning in one.results.warnings:
                to_stderr(f"{one.results.experiment.name}: {warning}")
    if only_files:
        return
    with to_stdout():
        terminal = console()
        if form:
            sys.stdout.write(render.FORMS[form](documents))
        else:
            terminal.print(render.terminal_text(documents, terminal.width, verbose), end="")


def chosen_results(
    names: Sequence[str], folder: str, overrides: Mapping[str, Scalar], file: Path | None
) -> "list[ExperimentResults]":
    """Return the results of named experiments, or without names of all runs of a folder, by their data.

    Raises SettingError for settings or a file without names, RuntimeError where no run has finished or diverged.
    """
    experiments = find_all(names, file)
    stated = {"--set": ", ".join(overrides.keys() - {"results"}), "--experiments": str(file or "")}
    for option, value in stated.items():
        rule = "is for named experiments; without names all runs of the folder are reported"
        require(bool(names) or not value, option, value, rule)
    # These test and take a moment to import: a mistyped name is refused before.
    from fedskew.report.results import command, gather
    from fedskew.report.single_runs import single_runs

    if names:
        found = [gather(experiment, overrides, file) for experiment in experiments]
        missing, remedy = f"of {', '.join(names)} in {folder}", command(names, overrides, file)
    else:
        found, unreadable = single_runs(Path(folder))
        for sentence in unreadable:
            to_stderr(sentence)
        missing, remedy = f"in {folder}", f"fedskew run NAME --results {folder}"
    if not any(results.has_ended for results in found):
        raise RuntimeError(f"no finished run {missing}; make them with `{remedy}`")
    return found


def to_stderr(line: str) -> None:
    """Print a line to stderr."""
    console(stderr=True).print(line)


def report_papers(
    suite: Suite,
    overrides: Mapping[str, Scalar],
    file: Path | None,
    records: Path | None,
    form: str,
    figures: Path | None,
) -> None:
    """Print the verdicts on what the papers say, and write the figures of the page, which then names their files."""
    from fedskew.report import papers, render
    from fedskew.report.kept_records import records_folder

    judged = papers.papers_report(suite, overrides, file, records_folder(records))
    if figures is not None:
        written = render.save_figures(judged.figures, figures)
        to_stderr(f"written: {len(written)} files in {figures}")
    with to_stdout():
        if form == "--markdown":
            sys.stdout.write(papers.markdown(judged, date.today(), figures))
        elif form:
            print(json.dumps(papers.as_json(judged), indent=2))
        else:
            for line in papers.terminal_lines(judged):
                console().print(line)


def results_folder(overrides: Mapping[str, Scalar]) -> str:
    """Return the folder of the runs' folders, which may not be there yet. Raises SettingError for what is no folder."""
    folder = str(overrides.get("results", defaults()["results"]))
    if folder == "":
        raise SettingError("--results", folder, "must name a folder")
    check_folder("--results", Path(folder))
    return folder


def keep(
    name: Annotated[str, typer.Argument(help="A suite of the papers' statements, as papers.")],
    results: Results = None,
    records: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Folder to write; default: benchmarks/papers of the clone."
        ),
    ] = None,
    experiments: ExperimentsFile = None,
    settings: Settings = None,
) -> None:
    """Keep the records of a suite's finished runs as small files without weights."""
    choice = choose([name], experiments, settings or [], [], [], {"results": results})
    if choice.suite is None:
        raise SettingError("suite", name, "is no suite of statements, as papers is")
    from fedskew.experiments.plan import runs  # with torch, for which a mistyped name does not wait
    from fedskew.report import kept_records
    from fedskew.report.runs import Run

    folder = records or kept_records.FOLDER
    check_folder("--records", folder)
    finished = [run for run in map(Run.read, runs(choice.cells())) if run.finished]
    new = [run for run in finished if not kept_records.file_of(folder, run.name).is_file()]
    for run in new:
        kept_records.keep(run, folder)
    there = len(finished) - len(new)
    console().print(f"{len(new)} runs written to {folder}, {there} were there and stay")


def check_folder(option: str, folder: Path) -> None:
    """Raise SettingError for what is there and is no folder."""
    if folder.exists() and not folder.is_dir():
        raise SettingError(option, str(folder), "is no folder")
