"""`fedskew report`: results of experiments and other runs."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from data import DataError, SettingError, require
from fedskew.cli import completion
from fedskew.cli.run_selection import refuse_unknown
from fedskew.cli.terminal import ExperimentsFile, console, to_stdout
from fedskew.experiments.entries import defaults
from fedskew.experiments.experiments import Experiment, find_all, known_entries
from server_app.keys import read_texts
from server_app.methods import Setting as Scalar


def report(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="Experiments; none is all finished runs.", autocompletion=completion.experiments
        ),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write one HTML file that opens offline.")
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
    csv: Annotated[
        bool, typer.Option("--csv", help="Print a line a row, column and selection.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    results: Annotated[
        str | None, typer.Option(help="The setting results: the folder of the runs' folders.")
    ] = None,
    experiments: ExperimentsFile = None,
    settings: Annotated[
        list[str] | None,
        completion.set_option("A setting, as it was stated to run."),
    ] = None,
) -> None:
    """Report on experiments, and on runs that belong to none: what came out, how sure that is, and what it took."""
    if markdown + csv + as_json > 1:
        raise SettingError("report", "--markdown --csv --json", "must be one of them")
    errors = console(stderr=True)
    overrides = read_texts(settings or [], defaults())
    refuse_unknown(overrides, ())
    overrides |= {"results": results} if results is not None else {}
    folder = results_folder(overrides)
    chosen = find_all(names or list(known_entries(experiments)), experiments)
    chosen = chosen if names else with_runs(chosen, folder, overrides)
    from fedskew.report import text  # what draws and tests takes a moment to import
    from fedskew.report.document import document
    from fedskew.report.results import ExperimentResults, command, gather
    from fedskew.report.single_runs import single_runs

    everything, refused = list[ExperimentResults](), list[str]()
    for experiment in chosen:
        try:
            everything.append(gather(experiment, overrides, experiments))
        except (
            SettingError,
            DataError,
        ) as error:  # its data or its model refuse it: it can never have been run so
            if names or (experiment is chosen[-1] and not everything):
                raise
            refused.append(f"{experiment.name}: left out, as it cannot be run: {error}")
    finished = [
        experiment_results for experiment_results in everything if experiment_results.finished
    ]
    if not names:
        singles, left_out = single_runs(
            Path(folder),
            {run for experiment_results in everything for run in experiment_results.runs},
        )
        finished += singles
        for sentence in [*refused, *left_out]:
            errors.print(sentence, markup=False)
    if not finished:
        what = f"of {', '.join(names)} " if names else ""
        how = (
            command(names, overrides, experiments)
            if names
            else f"fedskew run NAME --results {folder}"
        )
        raise RuntimeError(f"no finished run {what}in {folder}; make them with `{how}`")
    documents = [
        document(experiment_results) for experiment_results in (everything if names else finished)
    ]
    if html is not None:
        from fedskew.report.page import html as page

        try:
            html.write_text(page(documents))
        except OSError as error:
            raise SettingError(
                "--html", str(html), f"cannot be written: {error.strerror}"
            ) from error
        errors.print(f"written: {html}", markup=False)
    if csv or (
        html is not None and not markdown and not as_json
    ):  # the other forms say them themselves
        for part in documents:
            for warning in part.results.warnings:
                errors.print(f"{part.results.experiment.name}: {warning}", markup=False)
    with to_stdout():
        if markdown:
            sys.stdout.write(text.markdown(documents))
        elif csv:
            sys.stdout.write(text.csv_text(documents))
        elif as_json:
            print(json.dumps(text.as_json(documents), indent=2))
        elif html is None:
            text.show(documents, console())


def results_folder(overrides: Mapping[str, Scalar]) -> str:
    """Return the folder of the runs' folders, which may not be there yet. Raises SettingError for what is no folder."""
    folder = str(overrides.get("results", defaults()["results"]))
    require(folder != "", "--results", folder, "must name a folder")
    require(Path(folder).is_dir() or not Path(folder).exists(), "--results", folder, "is no folder")
    return folder


def with_runs(
    experiments: list[Experiment], folder: str, overrides: Mapping[str, Scalar]
) -> list[Experiment]:
    """Return the experiments of whose data sets the results folder holds runs.

    Planning an experiment to find that none of its runs is there takes much longer than reading settings.json files.
    A run whose settings.json is damaged could be of any experiment, so then all are planned.
    """
    # Both import torch, which a mistyped name must not wait for.
    from fedskew.experiments.plan import data_sets
    from server_app.run_folder import RunFolder

    recorded = set()
    for file in Path(folder).glob("*/rounds.jsonl"):
        origin = RunFolder(file.parent).origin()
        if not origin:
            return experiments
        recorded.add(origin["settings"].get("dataset"))
    return [entry for entry in experiments if data_sets(entry, overrides) & recorded]
