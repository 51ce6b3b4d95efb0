"""`fedskew run`: experiments, or one run from settings."""

import re
from enum import StrEnum
from typing import Annotated

import typer

from data import require
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
            help="Experiments to run; without one, a single run, or one per --method and --seed.",
            autocompletion=completion.experiments,
        ),
    ] = None,
    engine: Annotated[
        Engine | None,
        typer.Option(
            help="Where clients run; default: workers, or inprocess if parallel runs have one core each."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        completion.set_option("Set one of the settings of `fedskew list settings`."),
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
        str | None,
        typer.Option(help="Folder in which every run gets its own folder (the setting results)."),
    ] = None,
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Run finished and interrupted runs again from the start."),
    ] = False,
    workers: Annotated[
        int, typer.Option(min=0, help="Processes that run clients (0 = one per core).")
    ] = 0,
    jobs: Annotated[int, typer.Option(min=0, help="Parallel runs (0 = choose automatically).")] = 0,
    cluster: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Head of a Ray cluster: spread several runs over its machines (experimental).",
        ),
    ] = "",
    federation_config: Annotated[
        str,
        typer.Option(
            help="With --engine ray: as `flwr run --federation-config`; GPUs are experimental."
        ),
    ] = "",
    within: Annotated[
        str,
        typer.Option(
            metavar="8h",
            help="For `papers`: time limit; the last seeds are left out until the estimate fits.",
        ),
    ] = "",
    records: RecordsFolder = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan and its cost; run nothing.")
    ] = False,
    tensorboard: Annotated[
        bool,
        typer.Option(
            "--tensorboard", help="Write live curves for TensorBoard (the setting tensorboard)."
        ),
    ] = False,
    sites: Annotated[
        str,
        typer.Option(
            metavar="FOLDER",
            help="Rehearse a run between sites in this process; FOLDER holds SITE/site.toml.",
        ),
    ] = "",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summaries as JSON, progress to stderr.")
    ] = False,
) -> None:
    """Run experiments, or one run from settings, and print the results."""
    options = {
        "results": results,
        "overwrite": overwrite or None,
        "tensorboard": tensorboard or None,
    }
    choice = choose(
        names or [],
        experiments,
        settings or [],
        method or [],
        seed or [],
        options,
        need_data=not dry_run,
    )
    several = bool(choice.experiments)
    require(several or not jobs, "--jobs", jobs, "is for several runs")
    require(several or not cluster, "--cluster", cluster, "is for several runs")
    rule = "does not go with --dry-run, which estimates this machine"
    require(not (dry_run and cluster), "--cluster", cluster, rule)
    require(not (several and sites), "--sites", sites, "is for one run")
    hours = hours_of(within)
    for option, value in (("--within", within), ("--records", str(records or ""))):
        is_allowed = not value or choice.suite is not None
        require(is_allowed, option, value, "is for papers and its like")
    # This import loads torch, which takes a second. It comes last, so that a mistyped option is refused at once.
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
    """Convert a duration such as 8h, 45m or 0.5h to hours; "" is 0. Raises SettingError for anything else."""
    if not text:
        return 0.0
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(h|m)", text)
    require(match is not None, "--within", text, "must be hours or minutes, as 8h or 45m")
    assert match is not None
    hours = float(match[1])
    if match[2] == "m":
        hours /= 60
    require(hours > 0, "--within", text, "must be more than 0")
    return hours
