"""The commands that train: `fedskew run`, experiments or one run from settings, and `fedskew select`."""

from typing import Annotated

import typer

from data import require
from fedskew.cli.options import (
    AsJson,
    ExperimentsFile,
    Jobs,
    RecordsFolder,
    Results,
    Settings,
    check_settings,
    choose,
    words,
)
from fedskew.experiments.entries import defaults
from fedskew.formatting import console
from server_app.keys import read_texts


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
    method: Annotated[
        list[str] | None, typer.Option(metavar="A,B", help="Methods, each with every seed.")
    ] = None,
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
    from fedskew.execution import Options, run_experiments, run_single

    chosen = Options(resources, records, dry_run, as_json)
    if several:
        run_experiments(choice, row or (), column or (), chosen)
        return
    run_single(choice.overrides, chosen, sites)


def select(
    minutes: Annotated[
        float, typer.Option(min=0, help="Minutes after which none of the three experiments begins.")
    ],
    method: Annotated[
        list[str] | None,
        typer.Option(metavar="A,B", help="Compare only these methods with FedAvg and CCVR."),
    ] = None,
    target: Annotated[
        str,
        typer.Option(
            help="The number that decides: balanced-accuracy, accuracy, site-mean, worst-site, auroc."
        ),
    ] = "balanced-accuracy",
    without: Annotated[
        list[str] | None,
        typer.Option(
            metavar="A,B",
            help="What must not be uploaded, as class-counts,class-statistics: such methods are left out.",
        ),
    ] = None,
    settings: Settings = None,
    results: Annotated[
        str, typer.Option(help="The setting results: the folder of the runs' folders.")
    ] = "results",
    jobs: Jobs = 0,
) -> None:
    """Find the best method for a federation, by three experiments on validation data."""
    given = read_texts(settings or [], defaults())
    require("results" not in given, "results", given.get("results", ""), "is stated by --results")
    given["results"] = results
    for key in ("method", "seed", "evaluate-every", "evaluate-on"):
        rule = "is what a selection sets itself: methods are stated by --method"
        require(key not in given, key, given.get(key, ""), rule)
    methods = words("method", method or [])
    check_settings(given, methods)
    # with torch, which takes seconds
    from fedskew import select as selection

    selection.select(
        given, methods, target, words("without", without or []), minutes, jobs, console()
    )
