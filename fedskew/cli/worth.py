"""`fedskew worth`: what each site gains by joining, and what it adds."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from data import DataError, require
from fedskew.cli import completion
from fedskew.cli.terminal import console, to_stdout
from fedskew.formatting import numeric, percent, terminal_table
from fedskew.worth.federation import STATISTICS, TARGETS, Worth, settings_of, worth_of
from fedskew.worth.shapley import Estimate
from server_app.run_folder import RunFolder
from server_app.run_settings import Scalar
from server_app.settings import parse_texts


def worth(
    run: Annotated[
        str,
        typer.Argument(
            help="A run's folder, or its name below --results, whose data and model count; default: those of --set."
        ),
    ] = "",
    settings: Annotated[
        list[str] | None,
        completion.set_option("A setting of data, model or head."),
    ] = None,
    head: Annotated[
        str, typer.Option(help=f"The head in closed form: {', '.join(STATISTICS)}.")
    ] = "fed3r",
    target: Annotated[str, typer.Option(help=f"What counts: {' or '.join(TARGETS)}.")] = TARGETS[0],
    all_features: Annotated[
        bool,
        typer.Option(
            "--exact",
            help="Coalitions see all features instead of 256 principal components; at most 12 sites.",
        ),
    ] = False,
    permutations: Annotated[
        int,
        typer.Option(
            min=4,
            max=100_000,
            help="Random orders of joining, an even number, where there are more than 12 sites.",
        ),
    ] = 200,
    results: Annotated[
        Path, typer.Option(help="The setting results: the folder of the runs' folders.")
    ] = Path("results"),
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Show what each site of a simulated federation gains by joining, and what it adds for all."""
    require(head in STATISTICS, "--head", head, f"must be one of {', '.join(STATISTICS)}")
    require(target in TARGETS, "--target", target, f"must be one of {', '.join(TARGETS)}")
    rule = "must be even: orders and their reverses"
    require(permutations % 2 == 0, "--permutations", permutations, rule)
    of_run = settings_of_run(run, results) if run else {}
    chosen = settings_of(head, of_run, parse_texts(settings or []))
    found = worth_of(chosen, target, all_features=all_features, pairs=permutations // 2)
    with to_stdout():
        if as_json:
            print(json.dumps(found.as_json(), indent=2))
        else:
            show(found, console())


def settings_of_run(run: str, results: Path) -> dict[str, Scalar]:
    """Return the settings of a run, by its folder or its name below `results`. Raises DataError where it is none."""
    path = Path(run) if Path(run).is_dir() else results / run
    origin: Mapping[str, Any] = {}
    if path.is_dir():
        origin = RunFolder(path, moved=True).origin()
    if not origin:
        raise DataError("is no run's folder: settings.json is missing or broken", where=str(path))
    return dict(origin["settings"])


def show(found: Worth, out: Console) -> None:
    """Print the worth of the sites as a table."""
    name = found.target.replace("-", " ")
    out.print(f"{found.head}, {name} in percent, with 95 % intervals", style="bold")
    headings = numeric(
        "samples",
        "alone",
        "together",
        "own weighted up",
        "gain",
        "Shapley",
        "as the last",
    )
    table = terminal_table("site", *headings)
    for site in found.sites:
        table.add_row(
            site.name,
            str(site.samples),
            percent(site.alone.value),
            percent(site.together.value),
            percent(site.weighted.value),
            with_interval(site.gain),
            with_interval(site.shapley),
            with_interval(site.last),
        )
    out.print(table)
    out.print(
        f"All sites: {with_interval(found.everybody, sign=False)}. A guess: {percent(found.guess)}. "
        "The Shapley values are the difference, shared out."
    )
    out.print(how(found), style="dim")


def with_interval(number: Estimate, sign: bool = True) -> str:
    """Return a number and its interval in percent."""
    form = "+.1f" if sign else ".1f"
    value = format(100 * number.value, form)
    low = format(100 * number.low, form)
    high = format(100 * number.high, form)
    return f"{value} [{low}, {high}]"


def how(found: Worth) -> str:
    """Return how the Shapley values were computed."""
    coalitions = f"all {2 ** len(found.sites)} coalitions"
    if found.orders:
        coalitions = f"{found.orders} random orders"
    seen = "all features"
    if found.features < found.all_features:
        seen = f"{found.features} principal components of {found.all_features} features"
    return f"Shapley values from {coalitions}, on {seen}."
