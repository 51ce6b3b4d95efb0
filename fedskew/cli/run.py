"""`fedskew run`: experiments, or one run from settings."""

from typing import Annotated

import typer

from data import require
from fedskew.cli.options import (
    AsJson,
    ExperimentsFile,
    Jobs,
    Methods,
    RecordsFolder,
    Results,
    Settings,
)
from fedskew.cli.run_selection import choose


def run(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Experiments; without one, a run from settings."),
    ] = None,
    engine: Annotated[str, typer.Option(metavar="NAME", help="inprocess, workers or ray.")] = "",
    settings: Settings = None,
    row: Annotated[list[str] | None, typer.Option(help="Run only this row of the tables.")] = None,
    column: Annotated[
        list[str] | None, typer.Option(help="Run only this column of the tables.")
    ] = None,
    method: Methods = None,
    seed: Annotated[
        list[str] | None,
        typer.Option(metavar="0,1", help="Seeds, instead of the experiments' own."),
    ] = None,
    experiments: ExperimentsFile = None,
    results: Results = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Run finished runs again from the start.")
    ] = False,
    workers: Annotated[
        int, typer.Option(metavar="N", min=0, help="Processes that run clients.")
    ] = 0,
    jobs: Jobs = 0,
    client_gpus: Annotated[
        float, typer.Option(metavar="X", min=0.0, help="With Ray: share of a GPU for each client.")
    ] = 0.0,
    ray_address: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="With Ray: a running cluster.")
    ] = "",
    records: RecordsFolder = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan and its cost; run nothing.")
    ] = False,
    sites: Annotated[
        str,
        typer.Option(metavar="FOLDER", help="Rehearse a run of SITE/site.toml there."),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Run experiments, or one run from settings, and print the results."""
    options = {"results": results, "overwrite": overwrite or None}
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
    for option, value in (("--jobs", jobs), ("--row", row), ("--column", column)):
        require(several or not value, option, value, "is for several runs")
    require(not (several and sites), "--sites", sites, "is for one run")
    is_allowed = records is None or choice.suite is not None
    require(is_allowed, "--records", str(records), "is for papers and its like")
    from fedskew.engines import Resources

    resources = Resources(engine, jobs, workers, client_gpus, ray_address)
    resources.check()
    # This import loads torch, which takes a second. It comes last, so that a mistyped option is refused at once.
    from fedskew.cli.run_execution import Options, run_experiments, run_single

    chosen = Options(resources, records, dry_run, as_json)
    if several:
        run_experiments(choice, row or (), column or (), chosen)
        return
    run_single(choice.overrides, chosen, sites)
