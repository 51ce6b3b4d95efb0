"""The command line: `fedskew run` and `fedskew list`; its other commands are in data_cli, export_cli and report_cli."""

import json
import logging
import sys
from enum import StrEnum
from typing import Annotated, Any

import click
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from data import DataError, SettingError, require
from server_app import data_cli, export_cli, report_cli
from server_app.experiments import find_all, listed
from server_app.grid import labels, refuse_missing_gpus, results_lock, run_all
from server_app.methods import METHODS
from server_app.plan import Cell, plan, runs, selected
from server_app.settings import RunSettings, Scalar, defaults, explanations, parse, parse_text
from server_app.tables import lines, results_table, unseen_table
from server_app.terminal import console, fits

BAD_INPUT, FAILED, INTERRUPTED = 2, 1, 130

application = typer.Typer(
    help="Federated learning on skewed data.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
application.add_typer(data_cli.application, name="data")
application.command(name="report")(report_cli.report)
errors = console(stderr=True)


class Engine(StrEnum):
    """Where the clients are played."""

    inprocess = "inprocess"
    workers = "workers"
    ray = "ray"


class Topic(StrEnum):
    """What can be listed."""

    methods = "methods"
    settings = "settings"
    models = "models"
    experiments = "experiments"


@application.command()
def run(
    names: Annotated[list[str] | None, typer.Argument(help="Experiments of experiments.yaml; none is one run.")] = None,
    engine: Annotated[
        Engine | None,
        typer.Option(help="Where the clients are played; left out, workers, or inprocess for several runs at a time."),
    ] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting.")] = None,
    row: Annotated[list[str] | None, typer.Option(help="Only that row of the experiments' tables.")] = None,
    column: Annotated[list[str] | None, typer.Option(help="Only that column of the experiments' tables.")] = None,
    seed: Annotated[int | None, typer.Option(help="The setting seed.")] = None,
    results: Annotated[str | None, typer.Option(help="The setting results: the folder of the runs' folders.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Repeat what is finished.")] = False,
    workers: Annotated[int, typer.Option(min=0, help="Processes that play clients; 0 is one a core.")] = 0,
    jobs: Annotated[int, typer.Option(min=0, help="Runs at a time; 0 is what ends soonest on this machine.")] = 0,
    federation_config: Annotated[str, typer.Option(help="For Ray, as of `flwr run`.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and its cost, run nothing.")] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="The setting tensorboard: curves, live.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summaries as JSON, progress to stderr.")] = False,
) -> None:
    """Run experiments, or one run from settings, and print the results."""
    require(bool(names) or not jobs, "--jobs", jobs, "is for named experiments")
    overrides: dict[str, Scalar] = dict(parse_text(text) for text in settings or [])
    stated = {"seed": seed, "results": results, "fresh": fresh or None, "tensorboard": tensorboard or None}
    overrides |= {key: value for key, value in stated.items() if value is not None}
    cells = [cell for experiment in find_all(names or []) for cell in plan(experiment, overrides)]
    cells = selected(cells, row or (), column or ())
    planned = runs(cells) if names else [parse(overrides)]
    out = console(stderr=as_json)
    chosen = engine.value if engine else ""
    if dry_run:
        show_plan(planned, cells, out, chosen, jobs, workers, as_json)
        return
    if not names:
        with results_lock(planned, alone=False):
            done = {planned[0].run_id: conduct(planned[0], chosen or "workers", out, workers, federation_config)}
        failed: dict[str, str] = {}
    else:
        with results_lock(planned, alone=True):
            done, failed = run_all(planned, cells, out, chosen, jobs, workers, federation_config)
    if as_json:
        lost = [{"run": name, "failed": reason} for name, reason in failed.items()]
        print(json.dumps([*done.values(), *lost] if names else done[planned[0].run_id], indent=2))
    else:
        shown = lines(cells, planned, done)
        table = results_table(shown)
        out.print(table if fits(table, out) else results_table(shown, by_class=False))
        if any("unseen" in summary for summary in done.values()):
            out.print(unseen_table(planned, done))
        for one in planned:
            out.print(str(one.folder), style="dim")
    if failed:
        told(f"{len(failed)} of {len(planned)} runs failed", FAILED)
        for name, reason in failed.items():
            told(f"{name}: {reason}", FAILED)
        raise typer.Exit(FAILED)


def show_plan(
    planned: list[RunSettings],
    cells: list[Cell],
    out: Console,
    engine: str,
    jobs: int,
    workers: int,
    as_json: bool,
) -> None:
    """Print what a command would do and what it would cost; runs that cannot fit end with BAD_INPUT."""
    from server_app.costs import dry_run

    found = dry_run.plan_costs(planned, labels(planned, cells), out, engine, jobs, workers)
    if as_json:
        print(json.dumps(dry_run.as_json(found), indent=2))
    else:
        out.print(dry_run.plan_table(found))
        for line in dry_run.told(found):
            out.print(line, markup=False)
    for refusal in found.refusals:
        told(refusal, BAD_INPUT)
    if found.refusals:
        raise typer.Exit(BAD_INPUT)


def conduct(settings: RunSettings, engine: str, out: Console, workers: int, federation_config: str) -> dict[str, Any]:
    """Run one experiment with a line a round."""
    refuse_missing_gpus([settings], engine)
    from server_app.engines import execute  # flwr takes a moment to import; wrong settings should be told at once

    title = f"{settings.general.method} on {settings.data.dataset}, seed {settings.general.seed}, engine {engine}"
    out.print(title, style="bold")
    with out.status(title):
        return execute(settings, engine, out.print, workers=workers, federation_config=federation_config)


@application.command(name="list")
def list_topic(
    topic: Annotated[Topic, typer.Argument(help="What to list.")],
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """List the methods, settings, models or experiments there are."""
    from client_app.models import MODELS

    rows: list[dict[str, Any]]
    if topic is Topic.methods:
        rows = [
            {"method": m.name, "parts": "+".join((*m.variants, *m.serving)) or "fedavg",
             "uploads beside the model": m.reveals, "paper": m.paper}
            for m in METHODS.values()
        ]  # fmt: skip
    elif topic is Topic.settings:
        meaning = explanations()
        rows = [{"key": key, "default": value, "meaning": meaning[key]} for key, value in defaults().items()]
    elif topic is Topic.models:
        rows = [{"model": name, "what": (build.__doc__ or "").splitlines()[0]} for name, build in MODELS.items()]
    else:
        rows = [{"experiment": name, "what": title} for name, title in listed().items()]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for number, heading in enumerate(rows[0]):
        table.add_column(heading, no_wrap=number == 0)  # names are to be copied whole
    for row in rows:
        table.add_row(*(json.dumps(value) if key == "default" else str(value) for key, value in row.items()))
    console().print(table)


application.command()(export_cli.export)
application.command()(export_cli.predict)


def main() -> None:
    """Run the command line; the exit status is 0 only for complete success."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("flwr").setLevel(logging.ERROR)
    try:
        status = application(standalone_mode=False)
        if status == INTERRUPTED:  # typer makes a return value of a KeyboardInterrupt
            told("interrupted; the same command goes on from the last finished round", INTERRUPTED)
        sys.exit(status if isinstance(status, int) else 0)
    except click.ClickException as error:  # a wrong option: the usage and one sentence
        error.show()
        sys.exit(error.exit_code)
    except (SettingError, DataError) as error:
        sys.exit(told(str(error), BAD_INPUT))
    except (RuntimeError, OSError, ValueError, LookupError) as error:
        sys.exit(told(f"{type(error).__name__}: {error}", FAILED))


def told(sentence: str, status: int) -> int:
    """Print one sentence to stderr and return the exit status."""
    errors.print(f"fedskew: {sentence}", markup=False, soft_wrap=True)
    return status


if __name__ == "__main__":
    main()
