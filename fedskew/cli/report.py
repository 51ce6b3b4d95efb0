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

WITHOUT_WARNINGS = {"--csv", "--latex", "--bibtex"}
"""The forms that do not contain the reports' warnings, which then go to stderr."""


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
    overrides = read_texts(settings or [], defaults())
    check_settings(overrides, alone=False)
    overrides |= {"results": results} if results is not None else {}
    folder = results_folder(overrides)
    if round:
        check_round("--round", round)
    if suite := sized_suite(names or [], experiments):
        for_experiments = {"--figures": figures is not None, "--round": bool(round)}
        chosen_forms += [option for option, given in for_experiments.items() if given]
        report_papers(suite, overrides, experiments, records, html, chosen_forms)
        return
    require(records is None, "--records", str(records), "is for papers and its like")
    chosen = find_all(names or list(known_entries(experiments)), experiments)
    # These draw and test, and take a moment to import: a mistyped name is refused before.
    from fedskew.report.document import document

    reports = chosen_results(chosen, names or [], folder, overrides, experiments)
    if round:
        reports = [of_round(of_experiment, round) for of_experiment in reports]
    documents = [document(of_experiment) for of_experiment in reports]
    write_files(documents, html, figures)
    only_files = not chosen_forms and (html is not None or figures is not None)
    if only_files or {*chosen_forms} & WITHOUT_WARNINGS:
        for one in documents:
            for warning in one.results.warnings:
                written_line(f"{one.results.experiment.name}: {warning}")
    if not only_files:
        print_documents(documents, chosen_forms[0] if chosen_forms else "", verbose)


def written_line(line: str) -> None:
    """Print a line to stderr."""
    console(stderr=True).print(line, markup=False)


def write_files(documents: "Sequence[Document]", html: Path | None, figures: Path | None) -> None:
    """Write the reports as one page, and their figures to a folder. Raises SettingError where that cannot be."""
    if html is not None:
        from fedskew.report import render

        write_text(render.html(documents), html)
    if figures is not None:
        from fedskew.report.render import write_figures

        written_line(f"written: {len(write_figures(documents, figures))} files in {figures}")


def chosen_results(
    experiments: Sequence[Experiment],
    names: Sequence[str],
    folder: str,
    overrides: Mapping[str, Scalar],
    file: Path | None,
) -> "list[ExperimentResults]":
    """Return the results of named experiments, or without names of all runs of a folder.

    Raises RuntimeError where no run has finished or diverged.
    """
    from fedskew.report.results import command, gather

    missing, remedy = f"in {folder}", f"fedskew run NAME --results {folder}"
    if names:
        reports = [gather(experiment, overrides, file) for experiment in experiments]
        missing = f"of {', '.join(names)} {missing}"
        remedy = command(names, overrides, file)
    else:
        reports = all_finished(experiments, folder, overrides, file)
    if not any(of_experiment.has_ended for of_experiment in reports):
        raise RuntimeError(f"no finished run {missing}; make them with `{remedy}`")
    return reports


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


def print_documents(documents: "Sequence[Document]", form: str, verbose: bool) -> None:
    """Print the reports in a form, an option's name; as text for a terminal where it is empty."""
    from fedskew.report import render

    with to_stdout():
        match form:
            case "--markdown":
                sys.stdout.write(render.markdown(documents))
            case "--csv":
                sys.stdout.write(render.csv_text(documents))
            case "--json":
                print(json.dumps([*map(render.as_json, documents)], indent=2))
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
    recorded = {
        RunFolder(file.parent).origin().get("settings", {}).get("dataset") for file in begun
    }
    everything: list[ExperimentResults] = []
    left_out = []
    for experiment in experiments:
        # A run whose settings.json is damaged could be of any experiment.
        if None not in recorded and not data_sets(experiment, overrides) & recorded:
            continue
        try:
            everything.append(gather(experiment, overrides, file))
        except (SettingError, DataError) as error:
            # Its data or its model refuse it: it can never have been run so.
            left_out.append(f"{experiment.name}: left out, as it cannot be run: {error}")
    planned: set[str] = set()
    for of_experiment in everything:
        planned |= {*of_experiment.runs, *of_experiment.trial_runs}
    singles, unreadable = single_runs(Path(folder), planned)
    for sentence in [*left_out, *unreadable]:
        written_line(sentence)
    return [of_experiment for of_experiment in everything if of_experiment.has_ended] + singles


def results_folder(overrides: Mapping[str, Scalar]) -> str:
    """Return the folder of the runs' folders, which may not be there yet. Raises SettingError for what is no folder."""
    folder = str(overrides.get("results", defaults()["results"]))
    require(folder != "", "--results", folder, "must name a folder")
    path = Path(folder)
    require(path.is_dir() or not path.exists(), "--results", folder, "is no folder")
    return folder


def write_text(text: str, file: Path) -> None:
    """Write a page and say so. Raises SettingError where the file cannot be written."""
    try:
        file.write_text(text)
    except OSError as error:
        raise SettingError("--html", str(file), f"cannot be written: {error.strerror}") from error
    written_line(f"written: {file}")
