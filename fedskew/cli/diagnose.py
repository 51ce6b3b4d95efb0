"""`fedskew diagnose`: name the skew of a federation."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from data import DataError, require
from fedskew.cli.options import AsJson, Settings
from fedskew.cli.run_selection import checked_texts
from fedskew.cli.terminal import console, to_stdout
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
from fedskew.experiments.experiments import find_all
from fedskew.formatting import plural


def diagnose_source(
    source: Annotated[
        str,
        typer.Argument(
            help="A CSV file of counts, a run's folder, or an experiment; default: the data that --set names."
        ),
    ] = "",
    settings: Settings = None,
    moments: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="CSV: mean and std of the features of each site."),
    ] = None,
    in_json: AsJson = False,
) -> None:
    """Name the skew of a federation, how certain it is, and the methods known to fail under it."""
    sources = list(sources_of(source, settings or []))
    alone = moments is None or len(sources) == 1
    require(alone, "--moments", str(moments), "is for one table of counts")
    diagnoses = {}
    for found in sources:
        features = found.moments
        if moments is not None:
            features = read_moments(moments, found.table.sites)
        diagnoses[found.title] = diagnose(found.table, features, found.plan)
    with to_stdout():
        if in_json:
            entries = [{"of": title, **as_json(found)} for title, found in diagnoses.items()]
            print(json.dumps(entries, indent=2))
            return
        for title, diagnosis in diagnoses.items():
            show(title, diagnosis, console())


def sources_of(source: str, overrides: Sequence[str]) -> Iterator[Source]:
    """Yield what is to be diagnosed: one table, or one for each column of an experiment's first seed."""
    path = Path(source)
    if not overrides and path.is_file():
        yield Source(source, read_counts(path), Plan())
        return
    checked_texts(overrides, alone=not source)
    if not path.exists():
        if path.suffix or len(path.parts) > 1:
            raise DataError("there is no such file or folder", where=source)
        find_all([source])  # refuses an unknown name
    from fedskew.diagnosis.planned import planned_sources  # with torch, which takes seconds

    yield from planned_sources(source, overrides)


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
