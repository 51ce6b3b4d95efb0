"""What is diagnosed beside a table as it is: a run, an experiment, or what settings would deal out."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from data import DataError, Federation, federate
from fedskew.diagnosis.rules import Diagnosis, Plan, Sources, diagnose, line, plan_of
from fedskew.diagnosis.table import (
    Moments,
    SiteTable,
    TableError,
    read_counts,
    site_table,
    table_of_samples,
)
from fedskew.experiments.experiments import find_all
from fedskew.experiments.plan import plan
from server_app.results import RunFolder
from server_app.run_settings import RunSettings
from server_app.settings import defaults, parse, parse_texts


def planned_sources(source: str, texts: Sequence[str]) -> Sources:
    """Yield what is to be diagnosed, by title: one table, or one for each column of an experiment's first seed."""
    path, overrides = Path(source), parse_texts(texts)
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
        title = (
            f"{run.data.dataset}, partition {run.data.partition_in_force}, seed {run.general.seed}"
        )
        yield title, planned(run), plan_of(run)


def of_run(folder: Path) -> tuple[str, SiteTable, Plan]:
    """Return what a run's settings.json says of its data."""
    origin = RunFolder(folder, moved=True).origin()
    if not origin:
        raise DataError(f"{folder}: holds no settings.json that is whole")
    if (table := table_of_samples(str(folder), origin.get("samples"))) is None:
        raise DataError(
            f"{folder}: its settings.json has no counts, as of more than 100 clients or classes"
        )
    stated = {**defaults(), **origin["settings"]}
    return str(folder), table, Plan(stated["batch-size"], stated["participation"])


def planned(run: RunSettings) -> SiteTable:
    """Return the counts that settings would deal out; the data's labels are read."""
    return table_of_federation(federate(run.data, run.general.seed))


def table_of_federation(federation: Federation) -> SiteTable:
    """Return the counts of a federation. Raises TableError for one client."""
    return site_table(
        "these settings",
        federation.client_names,
        federation.dataset.class_names,
        federation.counts_KC,
    )


def line_of(federation: Federation) -> str:
    """Return the diagnosis of a federation in a line; of a single client there is none."""
    try:
        return line(diagnose(table_of_federation(federation)))
    except TableError:
        return ""


def diagnosis_of(run: RunSettings) -> Diagnosis | None:
    """Return the diagnosis of what settings deal out, by counts and by pixels; of a single client there is none."""
    federation = federate(run.data, run.general.seed)
    try:
        return diagnose(table_of_federation(federation), moments_of(federation), plan_of(run))
    except TableError:
        return None


def moments_of(federation: Federation) -> Moments | None:
    """Return mean and standard deviation of each client's pixels; None where the images are not in memory."""
    inputs = federation.dataset.train_inputs
    if not isinstance(inputs, np.ndarray) or len(federation.dataset.shape) < 3:
        return None
    moments = [[(inputs[part].mean(), inputs[part].std())] for part in federation.train_indices]
    means_K1, deviations_K1 = np.moveaxis(np.array(moments, np.float64), 2, 0)
    return Moments(("pixels",), means_K1, np.maximum(deviations_K1, 1e-9))
