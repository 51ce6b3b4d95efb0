"""`fedskew report`: results of experiments and other runs."""

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from data import DataError, SettingError
from fedskew.cli.options import AsJson, ExperimentsFile, RecordsFolder, Results, Settings
from fedskew.cli.records import check_folder
from fedskew.cli.run_selection import check_settings
from fedskew.cli.terminal import console, to_stdout
from fedskew.experiments.entries import defaults
from fedskew.experiments.experiments import (
    Experiment,
    Suite,
    find_all,
    known_entries,
    sized_suite,
)
from server_app.keys import read_texts
from server_app.methods import Setting as Scalar

if TYPE_CHECKING:
    from fedskew.report.document import Document
    from fedskew.report.results import ExperimentResults

OF_PAPERS = {"", "--markdown", "--json"}
"""The forms of the papers' page."""
WITHOUT_WARNINGS = {"--csv", "--latex", "--bibtex"}
"""The forms that do not contain the reports' warnings, which then go to stderr."""


def report(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Experiments to report; default: all finished runs."),
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
    bibtex: Annotated[
        bool,
        typer.Option("--bibtex", help="Print what to cite: the methods, data sets and FedSkew."),
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
        "--bibtex": bibtex,
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
    suite = sized_suite(names or [], experiments)
    if suite is not None:
        others = {
            "--html": html,
            "--figures": figures,
            form: form not in OF_PAPERS,
        }
        for option in others:
            if others[option]:
                rule = f"is for experiments: {suite.name} is about statements"
                raise SettingError(option, "", rule)
        report_papers(suite, overrides, experiments, records, form)
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
        write_text(render.html(documents), html)
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
    """Return the results of named experiments, or without names of all runs of a folder.

    Raises RuntimeError where no run has finished or diverged.
    """
    experiments = find_all(names or list(known_entries(file)), file)
    # This tests and takes a moment to import: a mistyped name is refused before.
    from fedskew.report.results import command, gather

    if names:
        found = [gather(experiment, overrides, file) for experiment in experiments]
        missing, remedy = f"of {', '.join(names)} in {folder}", command(names, overrides, file)
    else:
        found = all_finished(experiments, folder, overrides, file)
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
) -> None:
    """Print the verdicts on what the papers say."""
    from fedskew.report import papers
    from fedskew.report.kept_records import records_folder

    judged = papers.papers_report(suite, overrides, file, records_folder(records))
    with to_stdout():
        if form == "--markdown":
            sys.stdout.write(papers.markdown(judged, date.today()))
        elif form:
            print(json.dumps(papers.as_json(judged), indent=2))
        else:
            for line in papers.terminal_lines(judged):
                console().print(line)


def all_finished(
    experiments: Sequence[Experiment],
    folder: str,
    overrides: Mapping[str, Scalar],
    file: Path | None,
) -> "list[ExperimentResults]":
    """Return the results of every experiment with a finished or diverged run, and of the runs that belong to none.

    What is left out is printed to stderr, with the reason. Planning an experiment to find that none of its runs is
    there takes much longer than reading settings.json files, so that only those on the runs' data sets are planned.
    """
    from fedskew.experiments.plan import data_sets
    from fedskew.report.results import gather
    from fedskew.report.single_runs import single_runs
    from server_app.run_folder import RunFolder

    begun = [*Path(folder).glob("*/rounds.jsonl"), *Path(folder).glob("*/diverged.json")]
    recorded = {RunFolder(one.parent).origin().get("settings", {}).get("dataset") for one in begun}
    found: list[ExperimentResults] = []
    planned: set[str] = set()
    for experiment in experiments:
        # A run whose settings.json is damaged could be of any experiment.
        if None not in recorded and not data_sets(experiment, overrides) & recorded:
            continue
        try:
            results = gather(experiment, overrides, file)
        except (SettingError, DataError) as error:
            # Its data or its model refuse it: it can never have been run so.
            to_stderr(f"{experiment.name}: left out, as it cannot be run: {error}")
            continue
        planned |= {*results.runs, *results.trial_runs}
        if results.has_ended:
            found.append(results)
    singles, unreadable = single_runs(Path(folder), planned)
    for sentence in unreadable:
        to_stderr(sentence)
    return found + singles


def results_folder(overrides: Mapping[str, Scalar]) -> str:
    """Return the folder of the runs' folders, which may not be there yet. Raises SettingError for what is no folder."""
    folder = str(overrides.get("results", defaults()["results"]))
    if folder == "":
        raise SettingError("--results", folder, "must name a folder")
    check_folder("--results", Path(folder))
    return folder


def write_text(text: str, file: Path) -> None:
    """Write a page and say so. Raises SettingError where the file cannot be written."""
    try:
        file.write_text(text)
    except OSError as error:
        raise SettingError("--html", str(file), f"cannot be written: {error.strerror}") from error
    to_stderr(f"written: {file}")
