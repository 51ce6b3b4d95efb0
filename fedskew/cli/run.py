"""`fedskew run`: experiments, or one run from settings."""

import re
from enum import StrEnum
from typing import Annotated

import typer

from data import require
from data.renamed_settings import print_renamed
from fedskew.cli import completion
from fedskew.cli.run_selection import choose
from fedskew.cli.terminal import ExperimentsFile, RecordsFolder
from fedskew.signals import at_once


class Engine(StrEnum):
    """Where the clients run."""

    inprocess = "inprocess"
    workers = "workers"
    ray = "ray"


def run(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="Experiments to run; without a name, one run, or one per --method and --seed.",
            autocompletion=completion.experiments,
        ),
    ] = None,
    engine: Annotated[
        Engine | None,
        typer.Option(
            help="Engine of the clients; default: workers, or inprocess for several runs at a time."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        completion.set_option("A setting."),
    ] = None,
    row: Annotated[
        list[str] | None, typer.Option(help="Run only this row of the experiments' tables.")
    ] = None,
    column: Annotated[
        list[str] | None, typer.Option(help="Run only this column of the experiments' tables.")
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            metavar="A,B",
            help="Methods to run, each with every seed.",
            autocompletion=completion.methods,
        ),
    ] = None,
    seed: Annotated[
        list[str] | None,
        typer.Option(metavar="0,1", help="Seeds, instead of the experiments' own."),
    ] = None,
    experiments: ExperimentsFile = None,
    results: Annotated[
        str | None, typer.Option(help="The setting results: the folder of the runs' folders.")
    ] = None,
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Run finished and interrupted runs again from the start."),
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", hidden=True)] = False,
    workers: Annotated[
        int, typer.Option(min=0, help="Processes that run clients (0 = one per core).")
    ] = 0,
    jobs: Annotated[int, typer.Option(min=0, help="Parallel runs (0 = choose automatically).")] = 0,
    cluster: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT", help="Several runs on a Ray cluster's machines (experimental)."
        ),
    ] = "",
    federation_config: Annotated[
        str, typer.Option(help="For Ray, as of `flwr run`; GPUs are experimental.")
    ] = "",
    within: Annotated[
        str,
        typer.Option(
            metavar="8h",
            help="For `papers`: leave out seeds, the last ones first, to fit into this.",
        ),
    ] = "",
    records: RecordsFolder = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan and its cost; run nothing.")
    ] = False,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="The setting tensorboard: curves, live.")
    ] = False,
    sites: Annotated[
        str,
        typer.Option(
            metavar="FOLDER", help="Rehearse a run between sites: folder of SITE/site.toml."
        ),
    ] = "",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summaries as JSON, progress to stderr.")
    ] = False,
) -> None:
    """Run experiments, or one run from settings, and print the results."""
    if fresh:
        require(not overwrite, "--overwrite", True, "its old name --fresh is given as well")
        print_renamed("--fresh", "--overwrite")
    options = {
        "results": results,
        "overwrite": overwrite or fresh or None,
        "tensorboard": tensorboard or None,
    }
    choice = choose(names or [], experiments, settings or [], method or [], seed or [], options)
    several = bool(choice.experiments)
    require(several or not jobs, "--jobs", jobs, "is for several runs")
    require(several or not cluster, "--cluster", cluster, "is for several runs")
    rule = "does not go with --dry-run, which estimates this machine"
    require(not (dry_run and cluster), "--cluster", cluster, rule)
    require(not (several and sites), "--sites", sites, "is for one run")
    hours = hours_of(within)
    for option, value in (("--within", within), ("--records", str(records or ""))):
        is_for_it = not value or choice.suite is not None
        require(is_for_it, option, value, "is for papers and its like")
    # Imports torch, which takes a second: a mistyped option is refused before.
    with at_once():
        from fedskew.cli.run_execution import run_choice
    run_choice(
        choice,
        row or (),
        column or (),
        engine=engine.value if engine else "",
        jobs=jobs,
        workers=workers,
        cluster=cluster,
        federation_config=federation_config,
        sites=sites,
        within=hours,
        records=records,
        dry_run=dry_run,
        as_json=as_json,
    )


def hours_of(text: str) -> float:
    """Return the hours of 8h, 45m or 0.5h; 0 for no text. Raises SettingError for anything else."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(h|m)", text)
    if not text:
        return 0.0
    require(found is not None, "--within", text, "must be hours or minutes, as 8h or 45m")
    assert found is not None
    hours = float(found[1]) / (60 if found[2] == "m" else 1)
    require(hours > 0, "--within", text, "must be more than 0")
    return hours
