"""The work of `fedskew run`: print the plan and its cost, or execute the runs and print their table."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from data import DataError, SettingError, federate
from data.data_warnings import refuse_untrainable
from data.dataset import missing_names
from fedskew.cli.results_table import (
    clients_tables,
    kept_lines,
    lines,
    results_table,
    unseen_table,
)
from fedskew.cli.run_selection import Choice
from fedskew.cli.terminal import BAD_INPUT, FAILED, complain, console, fits
from fedskew.data_warnings import print_warnings
from fedskew.experiments.plan import Cell, runs, selected, tune_in_force
from fedskew.experiments.tuning import trials, values_of_rows
from fedskew.formatting import duration
from fedskew.report.kept_records import kept_runs as read_kept_runs
from fedskew.report.kept_records import origins, records_folder
from fedskew.report.run_records import Run
from fedskew.sweep import divergence_of, labels, refuse_missing_gpus, run_all
from server_app.best_round import refuse_unvalidated
from server_app.plugins import check_new_methods
from server_app.run_folder import RunFolder
from server_app.run_settings import RunSettings, model_line
from server_app.settings import parse


def run_choice(
    choice: Choice,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    engine: str,
    jobs: int,
    workers: int,
    cluster: str,
    federation_config: str,
    sites: str,
    within: float,
    records: Path | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Execute the selected runs, or print their cost; exit with FAILED if some failed."""
    cells = selected(choice.cells(), rows, columns)
    out = console(stderr=as_json)
    kept: dict[str, Run] = {}
    of_kept: list[Cell] = []
    tried = trial_cells(choice, rows, columns)
    untuned: dict[str, str] = {}
    if not dry_run:
        run_trials(tried, out, engine, jobs, workers, federation_config, cluster)
        cells, untuned = tuned_cells(choice, cells, out)
    if choice.suite is not None:
        cells = one_seed_first(
            cells
        )  # before kept runs go: a bench's second seed waits for every bench's first
        kept = kept_runs(cells, records, out)
        of_kept = [cell for cell in cells if cell.run.run_id in kept]
        cells = [cell for cell in cells if cell.run.run_id not in kept]
        cells = with_data(cells, out) if cells else []
        if within and cells:
            cells = fitting(cells, within, out, engine, jobs, workers)
        if dry_run and not cells:
            out.print("every run is finished or kept: nothing is left to train", markup=False)
            return
    planned = runs(cells) if choice.experiments else [parse(choice.overrides)]
    if dry_run:
        planned = [*runs(tried), *planned]
        cells = [*tried, *cells]
        show_forecast(planned, cells, out, engine, jobs, workers, as_json)
        return

    summaries: dict[str, dict[str, Any]]
    failed: dict[str, str] = {}
    if choice.experiments:
        for line in dict.fromkeys(map(model_line, planned)):
            out.print(f"model {line}", markup=False)
        summaries, failed = run_all(
            planned,
            cells,
            out,
            engine,
            jobs,
            workers,
            federation_config,
            cluster,
        )
        summaries = {name: dict(run.summary or {}) for name, run in kept.items()} | summaries
        failed |= untuned
    else:
        (single,) = planned
        default_engine = "inprocess" if sites else "workers"
        summary = run_one(single, engine or default_engine, out, workers, federation_config, sites)
        summaries = {single.run_id: summary}

    if not as_json:
        show_results([*of_kept, *cells], planned, summaries, out)
    elif choice.experiments:
        failures = [{"run": name, "failed": reason} for name, reason in failed.items()]
        print(json.dumps([*summaries.values(), *failures], indent=2))
    else:
        print(json.dumps(summaries[planned[0].run_id], indent=2))
    exit_if_failed(failed, len(planned) + len(untuned))


def exit_if_failed(failed: Mapping[str, str], runs: int) -> None:
    """Print why runs failed, by name, and exit with FAILED; return where none of so many did."""
    if not failed:
        return
    complain(f"{len(failed)} of {runs} runs failed", FAILED)
    for name, reason in failed.items():
        complain(f"{name}: {reason}", FAILED)
    raise typer.Exit(FAILED)


def trial_cells(choice: Choice, rows: Sequence[str], columns: Sequence[str]) -> list[Cell]:
    """Return the trials of these rows and columns; naming none is naming all. Most experiments have none."""
    cells = []
    for experiment in choice.experiments:
        for trial in trials(experiment, choice.overrides):
            in_rows = not rows or trial.row in rows
            in_columns = not columns or trial.column in columns
            if in_rows and in_columns:
                cells.append(trial.cell)
    return cells


def run_trials(
    tried: Sequence[Cell],
    out: Console,
    engine: str,
    jobs: int,
    workers: int,
    federation_config: str,
    cluster: str,
) -> None:
    """Execute the trials; one that fails, as a rate may be too large, only does not count."""
    if not tried:
        return
    planned = runs(tried)
    out.print(f"{len(planned)} trials come first", markup=False)
    _, failed = run_all(planned, tried, out, engine, jobs, workers, federation_config, cluster)
    for name, reason in failed.items():
        out.print(f"{name}: does not count, as the trial failed: {reason}", markup=False)


def tuned_cells(
    choice: Choice, cells: Sequence[Cell], out: Console
) -> tuple[list[Cell], dict[str, str]]:
    """Return the cells with the values that finished trials chose, and why others cannot be run.

    Args:
        choice: the experiments.
        cells: those that were selected, with any value.
        out: gets a line per row and column.
    """
    from fedskew.report.results import tuned_by  # reads records, which most commands need not

    if all(tune_in_force(entry, choice.overrides) is None for entry in choice.experiments):
        return list(cells), {}
    selected_rows = {(cell.experiment, cell.row, cell.column) for cell in cells}
    values = {}
    untuned = {}
    for experiment in choice.experiments:
        tune = tune_in_force(experiment, choice.overrides)
        if tune is None:
            continue
        tuned = tuned_by(trials(experiment, choice.overrides), experiment)
        values[experiment.name] = values_of_rows(tuned)
        for one in tuned:
            if (experiment.name, one.row, one.column) not in selected_rows:
                continue
            name = ", ".join(filter(None, [experiment.name, one.row, one.column]))
            if one.value is None:
                untuned[name] = "none of its trials has finished"
                continue
            scores = ", ".join(f"{value}: {number:.4g}" for value, number in one.scores.items())
            out.print(f"{name}: {tune.key} = {one.value} ({scores})", markup=False)
    kept = []
    for cell in choice.cells(values):
        if (cell.experiment, cell.row, cell.column) in selected_rows:
            kept.append(cell)
    return kept, untuned


def show_results(
    cells: Sequence[Cell],
    planned: Sequence[RunSettings],
    summaries: Mapping[str, dict[str, Any]],
    out: Console,
) -> None:
    """Print the most detailed table that fits the terminal, and the runs' folders."""
    shown = lines(cells, planned, summaries)
    tables = (
        results_table(shown),
        results_table(shown, full_names=False),
        results_table(shown, by_class=False),
    )
    fitting = [table for table in tables if fits(table, out)]
    out.print(fitting[0] if fitting else tables[-1])
    for table in clients_tables(shown):
        out.print(table)
    if any("unseen" in summary for summary in summaries.values()):
        out.print(unseen_table(planned, summaries))
    for line in kept_lines(planned, summaries):
        out.print(line, markup=False)
    for settings in planned:
        out.print(str(settings.folder), style="dim")


def kept_runs(cells: Sequence[Cell], records: Path | None, out: Console) -> dict[str, Run]:
    """Return the kept runs among cells that are not finished in the results folder, and say where they come from.

    Raises DataError for a file of records that is damaged or is wrong, and SettingError for a folder that is none.
    """
    unfinished = [settings for settings in runs(cells) if not is_finished(settings)]
    kept = read_kept_runs(records_folder(records), unfinished)
    if kept:
        sources = "; ".join(origins(kept.values()))
        line = (
            f"{len(kept)} of {len(runs(cells))} runs are kept records, not trained here: {sources}"
        )
        out.print(line, markup=False)
    return kept


def one_seed_first(cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells with the first seed of every entry before any second one, in the order of the entries."""
    seeds: dict[str, list[int]] = {}
    for cell in cells:
        of_entry = seeds.setdefault(cell.experiment, [])
        if cell.seed not in of_entry:
            of_entry.append(cell.seed)
    return sorted(cells, key=lambda cell: seeds[cell.experiment].index(cell.seed))


def with_data(cells: Sequence[Cell], out: Console) -> list[Cell]:
    """Return the cells whose data sets are there, or whose runs are finished; say which data sets are not there.

    Raises DataError where none is left.
    """
    left, lacking = [], Counter[str]()
    counted: set[str] = set()
    for cell in cells:
        names = [] if is_finished(cell.run) else missing_names(cell.run.data)
        if not names:
            left.append(cell)
        elif cell.run.run_id not in counted:
            counted.add(cell.run.run_id)
            lacking.update(names)
    for name, count in lacking.items():
        out.print(f"{name} is not in data-root: {count} runs are left out", markup=False)
    if not left:
        raise DataError(f"no data set of these runs is in data-root: {', '.join(lacking)}")
    return left


def fitting(
    cells: Sequence[Cell],
    hours: float,
    out: Console,
    engine: str,
    jobs: int,
    workers: int,
) -> list[Cell]:
    """Return the cells that fit into so many hours: whole seeds of whole entries, in the order of the cells.

    Raises SettingError where not even one seed of every entry fits.
    """
    from fedskew.costs.forecast import forecast

    planned = runs(cells)
    whole = forecast(planned, labels(planned, cells), engine, jobs, workers)
    seconds = {
        entry.settings.run_id: entry.cost.seconds if entry.cost is not None else 0.0
        for entry in whole.entries
    }
    groups: dict[tuple[str, int], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.experiment, cell.seed), []).append(cell)

    budget = hours * 3600 * whole.allocation.jobs
    spent = 0.0
    kept: list[Cell] = []
    counted: set[str] = set()
    dropped: dict[str, list[int]] = {}
    first_seeds = dict(reversed(list(groups)))
    for (name, seed), group in groups.items():
        new = {cell.run.run_id for cell in group} - counted
        needed = sum(seconds[run_id] for run_id in new)
        if name in dropped or spent + needed > budget:
            dropped.setdefault(name, []).append(seed)
            continue
        spent += needed
        counted |= new
        kept += group
    if any(first_seeds[name] == seeds[0] for name, seeds in dropped.items()):
        first = sum(
            seconds[run_id]
            for run_id in {
                cell.run.run_id for cell in cells if cell.seed == first_seeds[cell.experiment]
            }
        )
        rule = f"is too short: one seed of every entry takes about {duration(first / whole.allocation.jobs)}"
        raise SettingError("--within", f"{hours:g}h", rule)
    for name, seeds in dropped.items():
        of_entry = ", ".join(map(str, seeds))
        out.print(f"left out to fit into {hours:g} h: {name}, seeds {of_entry}", markup=False)
    return kept


def show_forecast(
    planned: list[RunSettings],
    cells: list[Cell],
    out: Console,
    engine: str,
    jobs: int,
    workers: int,
    in_json: bool,
) -> None:
    """Print what a command would do and what it would cost; runs that cannot fit end with BAD_INPUT."""
    from fedskew.costs.forecast import as_json, as_lines, as_table, forecast

    estimate = forecast(planned, labels(planned, cells), engine, jobs, workers)
    if in_json:
        print(json.dumps(as_json(estimate), indent=2))
    else:
        out.print(as_table(estimate))
        for line in as_lines(estimate):
            out.print(line, markup=False)
    for refusal in estimate.refusals:
        complain(refusal, BAD_INPUT)
    if estimate.refusals:
        raise typer.Exit(BAD_INPUT)


def is_finished(settings: RunSettings) -> bool:
    """Return whether a run is done, so that its data need no check; also True where its folder cannot be read."""
    try:
        summary = RunFolder(settings.folder).finished(settings.general.rounds)
    except OSError:  # the run itself reports why
        return True
    return summary is not None and not settings.general.overwrite


def run_one(
    settings: RunSettings,
    engine: str,
    out: Console,
    workers: int,
    federation_config: str,
    sites: str,
) -> dict[str, Any]:
    """Run one experiment with a line a round. Raises RuntimeError for one that has diverged: it would do so again."""
    diverged = divergence_of(settings)
    if diverged:
        raise RuntimeError(diverged)
    refuse_missing_gpus([settings], engine)
    if not is_finished(settings):
        check_new_methods(settings.general.method)
        federation = federate(settings.data, settings.general.seed)
        refuse_untrainable(settings.data, federation)
        refuse_unvalidated(settings.general.keep_best, federation)
        print_warnings(settings.data, federation, out)
    # flwr takes a moment to import: wrong settings are refused before.
    from fedskew.engines import execute

    general = settings.general
    title = f"{general.method} on {settings.data.dataset}, seed {general.seed}, engine {engine}"
    out.print(f"{title}; model {model_line(settings)}", style="bold")
    with out.status(Text(title)):
        return execute(
            settings,
            engine,
            out.print,
            workers=workers,
            federation_config=federation_config,
            sites=sites,
        )
