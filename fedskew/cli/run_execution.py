"""The work of `fedskew run`: print the plan and its cost, or execute the runs and print their table."""

import json
from collections.abc import Sequence
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from data import federate
from data.data_warnings import refuse_untrainable
from fedskew.cli.results_table import lines, results_table, unseen_table
from fedskew.cli.run_selection import Choice
from fedskew.cli.terminal import BAD_INPUT, FAILED, complain, console, fits
from fedskew.data_warnings import print_warnings
from fedskew.experiments.plan import Cell, runs, selected
from fedskew.sweep import labels, refuse_missing_gpus, run_all
from server_app.plugins import check_new_methods
from server_app.run_folder import RunFolder
from server_app.run_settings import RunSettings
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
    dry_run: bool,
    as_json: bool,
) -> None:
    """Conduct what is chosen, or print its cost; runs that failed end with FAILED."""
    cells = selected(choice.cells(), rows, columns)
    planned = runs(cells) if choice.experiments else [parse(choice.overrides)]
    out = console(stderr=as_json)
    if dry_run:
        show_forecast(planned, cells, out, engine, jobs, workers, as_json)
        return
    usual = "inprocess" if sites else "workers"
    if not choice.experiments:
        done = {
            planned[0].run_id: run_one(
                planned[0], engine or usual, out, workers, federation_config, sites
            )
        }
        failed: dict[str, str] = {}
    else:
        done, failed = run_all(
            planned, cells, out, engine, jobs, workers, federation_config, cluster
        )
    if as_json:
        lost = [{"run": name, "failed": reason} for name, reason in failed.items()]
        print(
            json.dumps(
                [*done.values(), *lost] if choice.experiments else done[planned[0].run_id], indent=2
            )
        )
    else:
        shown = lines(cells, planned, done)
        tables = (
            results_table(shown),
            results_table(shown, whole=False),
            results_table(shown, by_class=False),
        )
        out.print(next((table for table in tables if fits(table, out)), tables[-1]))
        if any("unseen" in summary for summary in done.values()):
            out.print(unseen_table(planned, done))
        for config in planned:
            out.print(str(config.folder), style="dim")
    if failed:
        complain(f"{len(failed)} of {len(planned)} runs failed", FAILED)
        for name, reason in failed.items():
            complain(f"{name}: {reason}", FAILED)
        raise typer.Exit(FAILED)


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

    whole = forecast(planned, labels(planned, cells), engine, jobs, workers)
    if in_json:
        print(json.dumps(as_json(whole), indent=2))
    else:
        out.print(as_table(whole))
        for line in as_lines(whole):
            out.print(line, markup=False)
    for refusal in whole.refusals:
        complain(refusal, BAD_INPUT)
    if whole.refusals:
        raise typer.Exit(BAD_INPUT)


def is_finished(settings: RunSettings) -> bool:
    """Return whether a run is done, so that nobody looks at its data any more, or its folder cannot be read."""
    try:
        done = RunFolder(settings.folder).finished(settings.general.rounds) is not None
    except OSError:  # the run itself says why
        return True
    return done and not settings.general.overwrite


def run_one(
    settings: RunSettings,
    engine: str,
    out: Console,
    workers: int,
    federation_config: str,
    sites: str,
) -> dict[str, Any]:
    """Run one experiment with a line a round."""
    refuse_missing_gpus([settings], engine)
    if not is_finished(settings):
        check_new_methods(settings.general.method)
        federation = federate(settings.data, settings.general.seed)
        refuse_untrainable(settings.data, federation)
        print_warnings(settings.data, federation, out)
    from fedskew.engines import (
        execute,
    )  # flwr takes a moment to import; wrong settings should be told at once

    title = f"{settings.general.method} on {settings.data.dataset}, seed {settings.general.seed}, engine {engine}"
    out.print(title, style="bold")
    with out.status(Text(title)):
        return execute(
            settings,
            engine,
            out.print,
            workers=workers,
            federation_config=federation_config,
            sites=sites,
        )
