"""`fedskew report`: results of experiments and other runs."""

import itertools
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from data import DataError, SettingError, require
from fedskew.cli import completion
from fedskew.cli.run_selection import check_settings
from fedskew.cli.terminal import ExperimentsFile, RecordsFolder, console, to_stdout
from fedskew.experiments.entries import defaults
from fedskew.experiments.experiments import Experiment, Suite
from fedskew.experiments.lookup import find_all, known_entries, sized_suite
from server_app.keys import check_round, read_texts
from server_app.methods import Setting as Scalar

if TYPE_CHECKING:
    from fedskew.report.document import Document
    from fedskew.report.results import ExperimentResults


def report(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="Experiments to report; default: all finished runs.",
            autocompletion=completion.experiments,
        ),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write one HTML file that opens offline.")
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
    csv: Annotated[
        bool, typer.Option("--csv", help="Print one CSV line per row, column and selection.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
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
    round: Annotated[
        str,
        typer.Option(
            "--round",
            help="The round that numbers are of: last, or best, which keep-best kept. Default: the experiment's own.",
        ),
    ] = "",
    results: Annotated[
        str | None, typer.Option(help="The setting results: the folder of the runs' folders.")
    ] = None,
    experiments: ExperimentsFile = None,
    records: RecordsFolder = None,
    settings: Annotated[
        list[str] | None,
        completion.set_option("A setting, as given to `fedskew run`."),
    ] = None,
) -> None:
    """Report the results of experiments and of other runs, with intervals and costs."""
    forms = {
        "--markdown": markdown,
        "--csv": csv,
        "--json": as_json,
        "--latex": latex,
        "--bibtex": bibtex,
    }
    chosen_forms = [option for option, chosen in forms.items() if chosen]
    if len(chosen_forms) > 1:
        raise SettingError("report", " ".join(forms), "must be one of them")
    errors = console(stderr=True)
    overrides = read_texts(settings or [], defaults())
    check_settings(overrides, alone=False)
    overrides |= {"results": results} if results is not None else {}
    folder = results_folder(overrides)
    if round:
        check_round("--round", round)
    if suite := sized_suite(names or [], experiments):
        files_of_experiments = ["--figures"] if figures is not None else []
        files_of_experiments += ["--round"] if round else []
        forms_of_suite = chosen_forms + files_of_experiments
        report_papers(suite, overrides, experiments, records, html, forms_of_suite)
        return
    require(records is None, "--records", str(records), "is for papers and its like")
    chosen = find_all(names or list(known_entries(experiments)), experiments)
    # These draw and test, and take a moment to import: a mistyped name is refused before.
    from fedskew.report.document import document
    from fedskew.report.results import command, gather

    if names:
        reports = [gather(experiment, overrides, experiments) for experiment in chosen]
        missing = f"of {', '.join(names)} in {folder}"
        remedy = command(names, overrides, experiments)
    else:
        chosen = with_runs(chosen, folder, overrides)
        reports = all_finished(chosen, Path(folder), overrides, experiments, errors)
        missing = f"in {folder}"
        remedy = f"fedskew run NAME --results {folder}"
    if not any(of_experiment.has_ended for of_experiment in reports):
        raise RuntimeError(f"no finished run {missing}; make them with `{remedy}`")
    if round:
        reports = [of_round(of_experiment, round) for of_experiment in reports]
    documents = [document(of_experiment) for of_experiment in reports]

    if html is not None:
        write_page(documents, html)
        errors.print(f"written: {html}", markup=False)
    if figures is not None:
        from fedskew.report.render import write_figures

        written = write_figures(documents, figures)
        errors.print(f"written: {len(written)} files in {figures}", markup=False)
    if not chosen_forms and (html is not None or figures is not None):
        print_warnings(documents, errors)  # only files were asked for
        return
    print_documents(documents, chosen_forms[0] if chosen_forms else "", verbose, errors)


def of_round(results: "ExperimentResults", round: str) -> "ExperimentResults":
    """Return the results with the numbers of the last or the best round, whatever the experiment itself selects.

    Raises SettingError where no finished run keeps its best round.
    """
    from server_app.round_selection import select

    name = results.experiment.name
    if round == "best":
        measured = itertools.chain.from_iterable(results.measured.values())
        kept = any(select(of_seed.points, "best") for of_seed in measured)
        rule = f"is not there: no finished run of {name} has keep-best, which keeps its best round"
        require(kept, "--round", round, rule)
    experiment = replace(results.experiment, selection=round)
    return replace(results, experiment=experiment)


def print_documents(
    documents: "Sequence[Document]", form: str, verbose: bool, errors: Console
) -> None:
    """Print the reports in a form, an option's name; as text for a terminal where it is empty.

    The forms that do not contain the reports' warnings get them on `errors`.
    """
    from fedskew.report import render, text

    if form in ("--csv", "--latex", "--bibtex"):
        print_warnings(documents, errors)
    with to_stdout():
        match form:
            case "--markdown":
                sys.stdout.write(render.markdown(documents))
            case "--csv":
                sys.stdout.write(text.csv_text(documents))
            case "--json":
                print(json.dumps(text.as_json(documents), indent=2))
            case "--latex":
                sys.stdout.write(render.latex(documents))
            case "--bibtex":
                sys.stdout.write(render.bibtex(documents))
            case _:
                terminal = console()
                shown = render.terminal_text(documents, terminal.width, verbose)
                terminal.print(shown, end="")


def report_papers(
    suite: Suite,
    overrides: Mapping[str, Scalar],
    file: Path | None,
    records: Path | None,
    html: Path | None,
    forms: Sequence[str],
) -> None:
    """Print the verdicts on what the papers say, or write them as a page.

    Raises SettingError for a form, an option's name, that is for experiments alone.
    """
    from fedskew.report import papers
    from fedskew.report.kept_records import records_folder

    for form in forms:
        rule = f"is for experiments: {suite.name} is about statements"
        require(form in ("--markdown", "--json"), form, "", rule)
    judged = papers.papers_report(suite, overrides, file, records_folder(records))
    if html is not None:
        write_text(papers.html(judged), html)
        console(stderr=True).print(f"written: {html}", markup=False)
    with to_stdout():
        if "--markdown" in forms:
            sys.stdout.write(papers.markdown(judged, date.today()))
        elif "--json" in forms:
            print(json.dumps(papers.as_json(judged), indent=2))
        elif html is None:
            for line in papers.terminal_lines(judged):
                console().print(line, markup=False)


def all_finished(
    experiments: Sequence[Experiment],
    folder: Path,
    overrides: Mapping[str, Scalar],
    file: Path | None,
    errors: Console,
) -> "list[ExperimentResults]":
    """Return the results of every experiment with a finished or diverged run, and of the runs that belong to none.

    What is left out is printed to `errors`, with the reason.
    """
    from fedskew.report.results import gather
    from fedskew.report.single_runs import single_runs

    everything: list[ExperimentResults] = []
    refused = []
    for experiment in experiments:
        try:
            everything.append(gather(experiment, overrides, file))
        except (SettingError, DataError) as error:
            # Its data or its model refuse it: it can never have been run so.
            if experiment is experiments[-1] and not everything:
                raise
            refused.append(f"{experiment.name}: left out, as it cannot be run: {error}")

    planned: set[str] = set()
    for of_experiment in everything:
        planned |= of_experiment.runs.keys()
        planned.update(of_experiment.trial_runs)
    singles, left_out = single_runs(folder, planned)
    for sentence in [*refused, *left_out]:
        errors.print(sentence, markup=False)
    return [of_experiment for of_experiment in everything if of_experiment.has_ended] + singles


def print_warnings(documents: "Sequence[Document]", errors: Console) -> None:
    """Print the documents' warnings, each with its experiment."""
    for document in documents:
        name = document.results.experiment.name
        for warning in document.results.warnings:
            errors.print(f"{name}: {warning}", markup=False)


def results_folder(overrides: Mapping[str, Scalar]) -> str:
    """Return the folder of the runs' folders, which may not be there yet. Raises SettingError for what is no folder."""
    folder = str(overrides.get("results", defaults()["results"]))
    require(folder != "", "--results", folder, "must name a folder")
    path = Path(folder)
    require(path.is_dir() or not path.exists(), "--results", folder, "is no folder")
    return folder


def with_runs(
    experiments: list[Experiment],
    folder: str,
    overrides: Mapping[str, Scalar],
) -> list[Experiment]:
    """Return the experiments of whose data sets the results folder holds runs.

    Planning an experiment to find that none of its runs is there takes much longer than reading settings.json files.
    A run whose settings.json is damaged could be of any experiment, so then all are planned.
    """
    # Both import torch, which a mistyped name must not wait for.
    from fedskew.experiments.plan import data_sets
    from server_app.run_folder import RunFolder

    recorded = set()
    begun = [*Path(folder).glob("*/rounds.jsonl"), *Path(folder).glob("*/diverged.json")]
    for file in begun:
        origin = RunFolder(file.parent).origin()
        if not origin:
            return experiments
        recorded.add(origin["settings"].get("dataset"))
    return [entry for entry in experiments if data_sets(entry, overrides) & recorded]


def write_page(documents: "Sequence[Document]", file: Path) -> None:
    """Write the reports as one page. Raises SettingError where the file cannot be written."""
    from fedskew.report.render import html

    write_text(html(documents), file)


def write_text(text: str, file: Path) -> None:
    """Write a page. Raises SettingError where the file cannot be written."""
    try:
        file.write_text(text)
    except OSError as error:
        raise SettingError("--html", str(file), f"cannot be written: {error.strerror}") from error
