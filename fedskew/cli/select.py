"""`fedskew select`: compare methods on a federation."""

import time
from pathlib import Path
from typing import Annotated

import typer

from data import require
from fedskew.cli import completion
from fedskew.cli.run_selection import check_settings, words
from fedskew.diagnosis.table import read_counts
from fedskew.experiments.entries import defaults
from fedskew.method_selection.targets import DEFAULT, TARGETS, check_target
from fedskew.signals import at_once
from server_app.keys import read_texts


def select(
    minutes: Annotated[float, typer.Option(min=0, help="Minutes that the race may take.")],
    method: Annotated[
        list[str] | None,
        typer.Option(
            metavar="A,B",
            help="Compare only these methods with FedAvg.",
            autocompletion=completion.methods,
        ),
    ] = None,
    target: Annotated[
        str, typer.Option(help=f"The number that decides: {', '.join(TARGETS)}.")
    ] = DEFAULT,
    without: Annotated[
        list[str] | None,
        typer.Option(
            metavar="A,B",
            help="What must not be uploaded, as class-counts,class-statistics: such methods are left out.",
        ),
    ] = None,
    race_seed: Annotated[
        int, typer.Option(min=0, help="Another number races with other seeds.")
    ] = 0,
    settings: Annotated[
        list[str] | None,
        completion.set_option("A setting."),
    ] = None,
    match_counts: Annotated[
        Path | None,
        typer.Option(
            metavar="COUNTS.csv", help="Partition the data set by exactly these class counts."
        ),
    ] = None,
    results: Annotated[
        str, typer.Option(help="The setting results: the folder of the runs' folders.")
    ] = "results",
    jobs: Annotated[int, typer.Option(min=0, help="Parallel runs (0 = choose automatically).")] = 0,
    plan: Annotated[
        Path | None,
        typer.Option(
            metavar="PLAN.json",
            help="Repeat the steps of an earlier race of the same command, by its plan.json.",
        ),
    ] = None,
) -> None:
    """Find the best method for a federation: a race of methods and learning rates with equal budgets."""
    began = time.monotonic()
    given = {**read_texts(settings or [], defaults()), "results": results}
    for key in ("method", "seed", "evaluate-every", "evaluate-on"):
        rule = "is the race's own: methods are stated by --method"
        require(key not in given, key, given.get(key, ""), rule)
    for key in ("keep-best", "patience"):
        rule = "has no effect: a race measures its runs in the last round alone"
        require(key not in given, key, given.get(key, ""), rule)
    methods = words("method", method or [])
    without_words = words("without", without or [])
    check_target(target)
    check_settings(given, methods)
    if match_counts is not None:
        read_counts(match_counts)
    if plan is not None:
        require(plan.is_file(), "--plan", str(plan), "is no file")
    with at_once():  # with torch, which takes seconds
        from fedskew.cli.select_execution import run_race
    run_race(
        given,
        methods,
        without_words,
        target,
        minutes=minutes,
        race_seed=race_seed,
        match_counts=match_counts,
        results=results,
        jobs=jobs,
        plan=plan,
        began=began,
    )
