"""The work of `fedskew run`: the plan with its cost, or the runs and then their report."""

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from data import DataError, federate
from data.data_warnings import refuse_untrainable
from data.dataset import missing
from fedskew import costs
from fedskew.cli.run_selection import Choice
from fedskew.cli.terminal import FAILED, complain, console
from fedskew.data_check import print_warnings
from fedskew.engines import Resources
from fedskew.experiments.plan import Cell, TunedValues, runs, selected, trials, values_of_rows
from fedskew.report.kept_records import kept_runs, origins, records_folder
from fedskew.report.runs import Run
from fedskew.sweep import earlier_result, labels, refuse_missing_gpus, run_all
from server_app.run_folder import RunFolder
from server_app.run_settings import RunSettings, Scalar, model_line
from server_app.settings import parse

if TYPE_CHECKING:
    from fedskew.report.results import ExperimentResults


@dataclass(frozen=True)
class Options:
    """How the runs are executed and what is printed."""

    resources: Resources
    records: Path | None
    dry_run: bool
    as_json: bool


def run_single(overrides: Mapping[str, Scalar], options: Options, sites: str) -> None:
    """Execute one run with a line a round, and print its report and its folder; or print its cost.

    Raises RuntimeError for one that has diverged: it would do so again.
    """
    out = console(stderr=options.as_json)
    settings = parse(overrides)
    if options.dry_run:
        show_plan([settings], [], out, options)
        return
    engine = options.resources.engine or ("inprocess" if sites else "workers")
    refuse_missing_gpus([settings], engine)
    if not is_finished(settings):
        earlier = earlier_result(settings)
        if earlier is not None:
            raise RuntimeError(earlier.reason)
        federation = federate(settings.data, settings.general.seed)
        refuse_untrainable(settings.data, federation)
        print_warnings(settings.data, federation, out)
    # flwr takes a moment to import: wrong settings are refused before.
    from fedskew.engines import execute

    general = settings.general
    title = f"{general.method} on {settings.data.dataset}, seed {general.seed}, engine {engine}"
    out.print(f"{title}; model {model_line(settings)}", style="bold")
    with out.status("training"):
        summary = execute(settings, replace(options.resources, engine=engine), out.print, sites)
    if options.as_json:
        print(json.dumps(summary, indent=2))
        return
    from fedskew.report.single_runs import table

    print_reports([table([Run.read(settings)])], out)
    out.print(str(settings.folder), style="dim")


def print_reports(found: "Sequence[ExperimentResults]", out: Console) -> None:
    """Print what `fedskew report` prints of these results."""
    from fedskew.report.document import document
    from fedskew.report.render import terminal_text

    documents = [document(results) for results in found if results.has_ended]
    out.print(terminal_text(documents, out.width, verbose=False), end="")


def run_experiments(
    choice: Choice, rows: Sequence[str], columns: Sequence[str], options: Options
) -> None:
    """Execute the experiments' runs and print their report; or print their cost.

    Raises typer.Exit with FAILED where a run failed.
    """
    out = console(stderr=options.as_json)
    cells = selected(choice.cells(), rows, columns)
    wanted = {cell.place for cell in cells}
    tried = [cell for cell in choice.trials() if cell.place in wanted]
    failed: dict[str, str] = {}
    kept: dict[str, Run] = {}
    if tried and not options.dry_run:
        run_trials(tried, out, options)
        tuned, failed = tuned_cells(choice, wanted, out)
        cells = [cell for cell in tuned if cell.place in wanted]
    if choice.suite is not None:
        # Every entry has its first seed before any has a second one.
        cells = sorted(cells, key=lambda cell: cell.seed)
        kept = kept_runs(records_folder(options.records), unfinished(cells))
        if kept:
            sources = "; ".join(origins(kept.values()))
            line = f"{len(kept)} of {len(runs(cells))} runs are kept records, not trained here"
            out.print(f"{line}: {sources}", markup=False)
        cells = with_data([cell for cell in cells if cell.run.run_id not in kept], out)
    planned = runs(cells)
    if options.dry_run:
        show_plan([*runs(tried), *planned], [*tried, *cells], out, options)
        return

    for line in dict.fromkeys(map(model_line, planned)):
        out.print(f"model {line}", markup=False)
    number = len(planned) + len(failed)
    summaries, failed_runs = run_all(planned, cells, out, options.resources)
    failed = failed_runs | failed
    if options.as_json:
        finished = [*(run.summary for run in kept.values()), *summaries.values()]
        failures = [{"run": name, "failed": reason} for name, reason in failed.items()]
        print(json.dumps([*finished, *failures], indent=2))
    elif summaries or kept:
        show_report(choice, out, options)
    exit_if_failed(failed, number)


def show_report(choice: Choice, out: Console, options: Options) -> None:
    """Print what `fedskew report` prints of the experiments."""
    if choice.suite is not None:
        from fedskew.report import papers

        folder = records_folder(options.records)
        judged = papers.papers_report(choice.suite, choice.overrides, choice.file, folder)
        for line in papers.terminal_lines(judged):
            out.print(line, markup=False)
        return
    from fedskew.report.results import gather

    found = [gather(entry, choice.overrides, choice.file) for entry in choice.experiments]
    print_reports(found, out)


def show_plan(
    planned: Sequence[RunSettings], cells: Sequence[Cell], out: Console, options: Options
) -> None:
    """Print what a command would do and what it would cost, by observed rounds."""
    if not planned:
        out.print("every run is finished or kept: nothing is left to train", markup=False)
        return
    entries = costs.plan_costs(planned, labels(planned, cells))
    if options.as_json:
        print(json.dumps([asdict(entry) for entry in entries], indent=2))
        return
    out.print(costs.table(entries, options.resources.shared(planned).jobs))
    for line in costs.remarks(entries):
        out.print(line, markup=False)


def exit_if_failed(failed: Mapping[str, str], runs: int) -> None:
    """Print why runs failed, by name, and exit with FAILED; return where none of so many did."""
    if not failed:
        return
    complain(f"{len(failed)} of {runs} runs failed", FAILED)
    for name, reason in failed.items():
        complain(f"{name}: {reason}", FAILED)
    raise typer.Exit(FAILED)


def run_trials(tried: Sequence[Cell], out: Console, options: Options) -> None:
    """Execute the trials; one that fails, as a rate may be too large, only does not count."""
    planned = runs(tried)
    out.print(f"{len(planned)} trials come first", markup=False)
    _, failed = run_all(planned, tried, out, options.resources)
    for name, reason in failed.items():
        out.print(f"{name}: does not count, as the trial failed: {reason}", markup=False)


def tuned_cells(
    choice: Choice, wanted: Collection[tuple[str, str, str]], out: Console
) -> tuple[list[Cell], dict[str, str]]:
    """Return the cells with the values that finished trials chose, and why wanted ones cannot be run."""
    from fedskew.report.results import tuned_by  # reads records, which most commands need not

    values: dict[str, TunedValues] = {}
    untuned = {}
    for experiment in choice.experiments:
        tuned = tuned_by(trials(experiment, choice.overrides), experiment)
        values[experiment.name] = values_of_rows(tuned)
        for one in tuned:
            place = (experiment.name, one.row, one.column)
            name = ", ".join(filter(None, place))
            if place in wanted and one.value is None:
                untuned[name] = "none of its trials has finished"
            elif place in wanted and experiment.tune is not None:
                out.print(f"{name}: {experiment.tune.key} = {one.value}", markup=False)
    return choice.cells(values), untuned


def with_data(cells: Sequence[Cell], out: Console) -> list[Cell]:
    """Return the cells whose data sets are there, or whose runs are finished; say which data sets are not there.

    Raises DataError where none of them is.
    """
    lacking = {run.run_id: missing(run.data) for run in unfinished(cells)}
    counts = Counter(chain.from_iterable(lacking.values()))
    for name, count in counts.items():
        out.print(f"{name} is not in data-root: {count} runs are left out", markup=False)
    left = [cell for cell in cells if not lacking.get(cell.run.run_id)]
    if cells and not left:
        raise DataError(f"no data set of these runs is in data-root: {', '.join(counts)}")
    return left


def unfinished(cells: Sequence[Cell]) -> list[RunSettings]:
    """Return the runs that are not done."""
    return [run for run in runs(cells) if not is_finished(run)]


def is_finished(settings: RunSettings) -> bool:
    """Return whether a run is done, so that its data need no check; also True where its folder cannot be read."""
    try:
        summary = RunFolder(settings.folder).finished(settings.general.rounds)
    except OSError:  # the run itself reports why
        return True
    return summary is not None and not settings.general.overwrite
