"""`fedskew diagnose`: name the skew of a federation."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from data import DataError, require
from fedskew.cli.options import AsJson, Settings, checked_texts
from fedskew.diagnosis.rules import (
    Diagnosis,
    as_json,
    diagnose,
    known_failures,
    line,
)
from fedskew.diagnosis.table import read_counts, read_moments
from fedskew.formatting import console, to_stdout


def diagnose_source(
    source: Annotated[
        str,
        typer.Argument(help="A CSV file of counts; default: the data that --set names."),
    ] = "",
    settings: Settings = None,
    moments: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="CSV: mean and std of the features of each site."),
    ] = None,
    in_json: AsJson = False,
) -> None:
    """Name the skew of a federation, how certain it is, and the methods known to fail under it."""
    features = None
    if source:
        stated = ", ".join(settings or [])
        require(not stated, "--set", stated, "has no effect on a table of counts")
        title = source
        if not Path(source).is_file():
            raise DataError("is no CSV file of counts", where=source)
        table = read_counts(Path(source))
    else:
        checked_texts(settings)
        from fedskew.diagnosis.planned import planned_table  # with torch, which takes seconds

        title, table, features = planned_table(settings or [])
    if moments is not None:
        features = read_moments(moments, table.sites)
    diagnosis = diagnose(table, features)
    with to_stdout():
        if in_json:
            print(json.dumps([{"of": title, **as_json(diagnosis)}], indent=2))
        else:
            show(title, diagnosis, console())


def show(title: str, diagnosis: Diagnosis, out: Console) -> None:
    """Print a diagnosis."""
    numbers = diagnosis.numbers
    out.print(title, style="bold")
    samples = f"{numbers.samples} samples of {numbers.classes} classes at {numbers.sites} sites"
    out.print(f"{samples}, {numbers.smallest} to {numbers.largest} a site")
    if numbers.subjects != numbers.samples:
        effect = f"{numbers.design_effect:.2g} samples tell as much as an independent one"
        out.print(f"of {numbers.subjects} subjects, whom chance is reckoned by: {effect}")
    for skew in diagnosis.skews:
        out.print(f"{skew.name} skew, {skew.confidence}: {skew.because}", style="yellow")
    if not diagnosis.skews:
        out.print("no skew" if diagnosis.shift else "no skew in the counts", style="green")
    empty = diagnosis.table.without
    if empty:
        out.print(f"without samples, and left out: {', '.join(empty[:10])}")
    if diagnosis.remark:
        out.print(diagnosis.remark, style="dim")
    for rule in known_failures(diagnosis):
        out.print(f"known to fail here: {rule.method}: {rule.why} ({rule.experiment})")
    out.print(line(diagnosis))
