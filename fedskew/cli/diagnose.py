"""The command line's `fedskew diagnose`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from data import DataError, Federation, federate, require
from fedskew.cli.terminal import console, to_stdout
from fedskew.diagnosis.rules import Diagnosis, Plan, as_json, diagnose, failing, line, plan_of
from fedskew.diagnosis.skews import counted
from fedskew.diagnosis.table import SiteTable, TableError, read_counts, read_moments, site_table, table_of_samples
from fedskew.experiments.experiments import find_all
from fedskew.experiments.plan import plan
from server_app.results import RunFolder
from server_app.run_settings import RunSettings, Scalar
from server_app.settings import defaults, parse, parse_texts

Sources = Iterator[tuple[str, SiteTable, Plan]]


def diagnose_source(
    source: Annotated[
        str, typer.Argument(help="A CSV file of counts, a run's folder, or an experiment; none is what --set plans.")
    ] = "",
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting, as of run.")
    ] = None,
    moments: Annotated[
        Path | None, typer.Option(metavar="FILE", help="CSV: mean and std of the features of each site.")
    ] = None,
    in_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Say which skew it is, from counts alone, how sure that is, and what is known to fail there."""
    overrides = parse_texts(settings or [])
    try:
        sources = list(sources_of(source, overrides))
        require(moments is None or len(sources) == 1, "--moments", str(moments), "is for one table of counts")
        diagnoses = {
            title: diagnose(table, None if moments is None else read_moments(moments, table.sites), context)
            for title, table, context in sources
        }
    except TableError as error:
        raise DataError(str(error)) from error
    with to_stdout():
        if in_json:
            print(json.dumps([{"of": title, **as_json(diagnosis)} for title, diagnosis in diagnoses.items()], indent=2))
            return
        for title, diagnosis in diagnoses.items():
            show(title, diagnosis, console())


def sources_of(source: str, overrides: dict[str, Scalar]) -> Sources:
    """Yield what is to be diagnosed, by title: one table, or one for each column of an experiment's first seed."""
    path = Path(source)
    if source and path.is_dir():
        yield of_run(path)
    elif source and path.is_file():
        yield source, read_counts(path), plan_of(parse(overrides))
    elif source and (path.suffix or len(path.parts) > 1):
        raise DataError(f"{source}: there is no such file or folder")
    elif source:
        for experiment in find_all([source]):
            columns = {cell.column: cell.run for cell in reversed(plan(experiment, overrides))}
            for column, run in reversed(columns.items()):
                yield ", ".join(filter(None, (experiment.name, column))), planned(run), plan_of(run)
    else:
        run = parse(overrides)
        title = f"{run.data.dataset}, partition {run.data.partition_in_force}, seed {run.general.seed}"
        yield title, planned(run), plan_of(run)


def of_run(folder: Path) -> tuple[str, SiteTable, Plan]:
    """Return what a run's settings.json says of its data."""
    origin = RunFolder(folder, moved=True).origin()
    if not origin:
        raise DataError(f"{folder}: holds no settings.json that is whole")
    if (table := table_of_samples(str(folder), origin.get("samples"))) is None:
        raise DataError(f"{folder}: its settings.json has no counts, as of more than 100 clients or classes")
    stated = {**defaults(), **origin["settings"]}
    return str(folder), table, Plan(stated["batch-size"], stated["participation"])


def planned(run: RunSettings) -> SiteTable:
    """Return the counts that settings would deal out; the data's labels are read."""
    return table_of_federation(federate(run.data, run.general.seed))


def table_of_federation(federation: Federation) -> SiteTable:
    """Return the counts of a federation. Raises TableError for one client."""
    return site_table("these settings", federation.client_names, federation.dataset.class_names, federation.counts_KC)


def line_of(federation: Federation) -> str:
    """Return the diagnosis of a federation in a line; of a single client there is none."""
    try:
        return line(diagnose(table_of_federation(federation)))
    except TableError:
        return ""


def show(title: str, diagnosis: Diagnosis, out: Console) -> None:
    """Print a diagnosis."""
    numbers, small = diagnosis.numbers, diagnosis.small_sites
    out.print(title, style="bold")
    sizes = f"{numbers.smallest} to {numbers.largest} a site"
    out.print(f"{numbers.samples} samples of {numbers.classes} classes at {numbers.sites} sites, {sizes}")
    for skew in diagnosis.skews:
        out.print(f"{skew.name} skew, {skew.sure}: {skew.because}", style="yellow")
    if not diagnosis.skews:
        out.print("no skew", style="green")
    if small:
        out.print(
            f"{counted(len(small), 'site')} of a batch ({diagnosis.plan.batch_size}) or less: {', '.join(small[:5])}"
        )
    if diagnosis.table.without:
        out.print(f"without samples, and left out: {', '.join(diagnosis.table.without[:10])}")
    if diagnosis.remark:
        out.print(diagnosis.remark, style="dim")
    for rule in failing(diagnosis):
        out.print(f"known to fail here: {rule.method}: {rule.why} ({rule.experiment})")
    out.print(line(diagnosis))
