"""`fedskew diagnose`: name the skew of a federation."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from data import DataError
from fedskew.cli.options import AsJson, Settings, checked_texts
from fedskew.diagnosis.rules import (
    Diagnosis,
    Plan,
    Source,
    as_json,
    diagnose,
    heads_first,
    known_failures,
    line,
)
from fedskew.diagnosis.table import read_counts, read_moments
from fedskew.formatting import console, plural, to_stdout


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
    found = source_of(source, settings or [])
    features = found.moments
    if moments is not None:
        features = read_moments(moments, found.table.sites)
    diagnosis = diagnose(found.table, features, found.plan)
    with to_stdout():
        if in_json:
            print(json.dumps([{"of": found.title, **as_json(diagnosis)}], indent=2))
        else:
            show(found.title, diagnosis, console())


def source_of(source: str, overrides: Sequence[str]) -> Source:
    """Return what is to be diagnosed. Raises DataError for a file that is not there."""
    path = Path(source)
    if not overrides and path.is_file():
        return Source(source, read_counts(path), Plan())
    checked_texts(overrides, alone=not source)
    if source and not path.is_file():
        raise DataError("there is no such file", where=source)
    from fedskew.diagnosis.planned import planned_source  # with torch, which takes seconds

    return planned_source(source, overrides)


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
    small = diagnosis.small_sites
    if small:
        sites = plural(len(small), "site")
        batch = f"of a batch ({diagnosis.plan.batch_size}) or less"
        out.print(f"{sites} {batch}: {', '.join(small[:5])}")
    empty = diagnosis.table.without
    if empty:
        out.print(f"without samples, and left out: {', '.join(empty[:10])}")
    if diagnosis.remark:
        out.print(diagnosis.remark, style="dim")
    for rule in known_failures(diagnosis):
        out.print(f"known to fail here: {rule.method}: {rule.why} ({rule.experiment})")
    for method, uploads in heads_first(diagnosis).items():
        out.print(f"try first, as the features stay as they are: {method}, which uploads {uploads}")
    out.print(line(diagnosis))
