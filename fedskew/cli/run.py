"""`fedskew run`: experiments, or one run from settings."""

import json
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from data import require
from fedskew.cli.choice import choose
from fedskew.cli.results_table import lines, results_table, unseen_table
from fedskew.cli.terminal import BAD_INPUT, FAILED, ExperimentsFile, complain, console, fits
from fedskew.experiments.plan import Cell, runs, selected
from fedskew.sweep import labels, refuse_missing_gpus, run_all
from server_app.run_settings import RunSettings
from server_app.settings import parse


class Engine(StrEnum):
    """Where the clients are played."""

    inprocess = "inprocess"
    workers = "workers"
    ray = "ray"


def run(
    names: Annotated[list[str] | None, typer.Argument(help="Experiments; none is one run, or one a method.")] = None,
    engine: Annotated[
        Engine | None,
        typer.Option(help="Where the clients are played; left out, workers, or inprocess for several runs at a time."),
    ] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting.")] = None,
    row: Annotated[list[str] | None, typer.Option(help="Only that row of the experiments' tables.")] = None,
    column: Annotated[list[str] | None, typer.Option(help="Only that column of the experiments' tables.")] = None,
    method: Annotated[list[str] | None, typer.Option(metavar="A,B", help="Methods, each with every seed.")] = None,
    seed: Annotated[list[str] | None, typer.Option(metavar="0,1", help="Seeds, for the experiments' own.")] = None,
    experiments: ExperimentsFile = None,
    results: Annotated[str | None, typer.Option(help="The setting results: the folder of the runs' folders.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Repeat what is finished.")] = False,
    workers: Annotated[int, typer.Option(min=0, help="Processes that play clients; 0 is one a core.")] = 0,
    jobs: Annotated[int, typer.Option(min=0, help="Runs at a time; 0 is what ends soonest on this machine.")] = 0,
    federation_config: Annotated[str, typer.Option(help="For Ray, as of `flwr run`.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and its cost, run nothing.")] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="The setting tensorboard: curves, live.")] = False,
    sites: Annotated[str, typer.Option(metavar="FOLDER", help="Rehearse dataset = sites:FILE: SITE/site.toml.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the summaries as JSON, progress to stderr.")] = False,
) -> None:
    """Run experiments, or one run from settings, and print the results."""
    options = {"results": results, "fresh": fresh or None, "tensorboard": tensorboard or None}
    choice = choose(names or [], experiments, settings or [], method or [], seed or [], options)
    several = bool(choice.experiments)
    require(several or not jobs, "--jobs", jobs, "is for several runs")
    require(not (several and sites), "--sites", sites, "is for one run")
    cells = selected(choice.cells(), row or (), column or ())
    planned = runs(cells) if several else [parse(choice.overrides)]
    out = console(stderr=as_json)
    chosen = engine.value if engine else ""
    if dry_run:
        show_forecast(planned, cells, out, chosen, jobs, workers, as_json)
        return
    usual = "inprocess" if sites else "workers"
    if not several:
        done = {planned[0].run_id: run_one(planned[0], chosen or usual, out, workers, federation_config, sites)}
        failed: dict[str, str] = {}
    else:
        done, failed = run_all(planned, cells, out, chosen, jobs, workers, federation_config)
    if as_json:
        lost = [{"run": name, "failed": reason} for name, reason in failed.items()]
        print(json.dumps([*done.values(), *lost] if several else done[planned[0].run_id], indent=2))
    else:
        shown = lines(cells, planned, done)
        tables = (results_table(shown), results_table(shown, whole=False), results_table(shown, by_class=False))
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


def run_one(
    settings: RunSettings, engine: str, out: Console, workers: int, federation_config: str, sites: str
) -> dict[str, Any]:
    """Run one experiment with a line a round."""
    refuse_missing_gpus([settings], engine)
    from fedskew.engines import execute  # flwr takes a moment to import; wrong settings should be told at once

    title = f"{settings.general.method} on {settings.data.dataset}, seed {settings.general.seed}, engine {engine}"
    out.print(title, style="bold")
    with out.status(Text(title)):
        return execute(settings, engine, out.print, workers=workers, federation_config=federation_config, sites=sites)
