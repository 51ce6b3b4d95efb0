"""`fedskew select`: compare methods on a federation."""

from typing import Annotated

import typer

from data import require
from fedskew.cli.options import Jobs, Settings
from fedskew.cli.run_selection import check_settings, words
from fedskew.cli.terminal import console
from fedskew.experiments.entries import defaults
from server_app.keys import read_texts


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
