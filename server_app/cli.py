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

from data import DataError, SettingError
from server_app import data_cli, export_cli, report_cli
from server_app.experiments import find_all, listed
from server_app.methods import METHODS
from server_app.plan import plan, runs, selected
from server_app.settings import RunSettings, Scalar, defaults, explanations, parse, parse_text

BAD_INPUT, FAILED, INTERRUPTED = 2, 1, 130

application = typer.Typer(
    help="Federated learning on skewed data.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
application.add_typer(data_cli.application, name="data")
application.command(name="report")(report_cli.report)
errors = Console(stderr=True, highlight=False)


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
    engine: Annotated[Engine, typer.Option(help="Where the clients are played.")] = Engine.workers,
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting.")] = None,
    row: Annotated[list[str] | None, typer.Option(help="Only that row of the experiments' tables.")] = None,
    column: Annotated[list[str] | None, typer.Option(help="Only that column of the experiments' tables.")] = None,
    seed: Annotated[int | None, typer.Option(help="The setting seed.")] = None,
    results: Annotated[str | None, typer.Option(help="The setting results: the folder of the runs' folders.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Repeat what is finished.")] = False,
    workers: Annotated[int, typer.Option(help="Processes that play clients; 0 is one a core.")] = 0,
    federation_config: Annotated[str, typer.Option(help="For Ray, as of `flwr run`.")] = "",
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="The setting tensorboard: curves, live.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summaries as JSON, progress to stderr.")] = False,
) -> None:
    """Run experiments, or one run from settings, and print the results."""
    overrides: dict[str, Scalar] = dict(parse_text(text) for text in settings or [])
    stated = {"seed": seed, "results": results, "fresh": fresh or None, "tensorboard": tensorboard or None}
    overrides |= {key: value for key, value in stated.items() if value is not None}
    cells = [cell for experiment in find_all(names or []) for cell in plan(experiment, overrides)]
    cells = selected(cells, row or (), column or ())
    planned = runs(cells) if names else [parse(overrides)]
    console = Console(stderr=as_json, highlight=False, soft_wrap=True)
    summaries = [conduct(one, engine.value, console, workers, federation_config) for one in planned]
    if as_json:
        print(json.dumps(summaries if names else summaries[0], indent=2))
        return
    console.print(results_table(planned, summaries))
    if any("unseen" in summary for summary in summaries):
        console.print(unseen_table(planned, summaries))
    for one in planned:
        console.print(str(one.folder), style="dim")


def conduct(
    settings: RunSettings, engine: str, console: Console, workers: int, federation_config: str
) -> dict[str, Any]:
    """Run one experiment with a line a round."""
    from server_app.engines import execute  # flwr takes a moment to import; wrong settings should be told at once

    title = f"{settings.general.method} on {settings.data.dataset}, seed {settings.general.seed}, engine {engine}"
    console.print(title, style="bold")
    with console.status(title):
        return execute(settings, engine, console.print, workers=workers, federation_config=federation_config)


def results_table(planned: list[RunSettings], summaries: list[dict[str, Any]]) -> Table:
    """Return one row a deployed model, in percent: balanced accuracy, macro-F1, AUROC of two classes, the recalls."""
    classes = planned[0].data.classes.split(",")
    recalls = len(classes) <= 10 and all(one.data.classes == planned[0].data.classes for one in planned)
    means = {"balanced-accuracy": "balanced", "best": "best", "macro-f1": "F1"}
    if all(len(one.data.classes.split(",")) == 2 for one in planned):
        means["auroc"] = "AUROC"
    table = Table(
        title="Last round (best: the round that was best on the test set). Percent; right: recall by class.",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    several = len({one.general.seed for one in planned}) > 1
    table.add_column("method", no_wrap=True)
    for heading in (*(["seed"] * several), *means.values(), *(classes if recalls else ())):
        table.add_column(heading[:8], justify="right", no_wrap=True)
    shown: set[tuple[str, int, str]] = set()
    for one, summary in zip(planned, summaries, strict=True):
        for deployed, numbers in summary["models"].items():
            row, last = summary["rows"][deployed], numbers["last"]
            if (key := (row, one.general.seed, one.data.dataset)) in shown:
                continue
            shown.add(key)
            shares = {**last, "best": numbers["best-test"]["balanced-accuracy"]}
            cells = [percent(shares.get(key), 1) for key in means]
            recall = [percent(value, 0) for value in last["recall"]] if recalls else []
            table.add_row(row, *([str(one.general.seed)] * several), *cells, *recall)
    return table


def percent(share: float | None, digits: int) -> str:
    """Return a share in percent, or a dash where there is none: a class without samples, or an AUROC without pairs."""
    return "-" if share is None else f"{100 * share:.{digits}f}"


def unseen_table(planned: list[RunSettings], summaries: list[dict[str, Any]]) -> Table:
    """Return one row a deployed model and way to its batch norm on the site nobody trained with, in percent."""
    table = Table(
        title="A site nobody trained with, last round. Percent.",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    for heading in ("site", "method", "seed", "batch norm"):
        table.add_column(heading, no_wrap=True)
    for heading in ("balanced", "F1"):
        table.add_column(heading, justify="right", no_wrap=True)
    shown: set[tuple[str, ...]] = set()
    for one, summary in zip(planned, summaries, strict=True):
        unseen = summary.get("unseen", {"models": {}})
        for deployed, ways in unseen["models"].items():
            cells = (unseen["domain"], summary["rows"][deployed], str(one.general.seed))
            if cells in shown:
                continue
            shown.add(cells)
            for way, numbers in ways.items():
                of_whom = f" ({unseen['nearest']['domain']})" if way == "nearest" else ""
                means = (numbers["balanced-accuracy"], numbers["macro-f1"])
                table.add_row(*cells, way + of_whom, *(f"{100 * mean:.1f}" for mean in means))
            for way, why in unseen.get("unavailable", {}).items():
                table.add_row(*cells, f"{way}: {why}", "-", "-")
    return table


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
    Console(highlight=False).print(table)


application.command()(export_cli.export)
application.command()(export_cli.predict)


def main() -> None:
    """Run the command line; the exit status is 0 only for complete success."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("flwr").setLevel(logging.ERROR)
    try:
        if application(standalone_mode=False) == INTERRUPTED:  # typer makes a return value of a KeyboardInterrupt
            sys.exit(told("interrupted; the same command goes on from the last finished round", INTERRUPTED))
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
