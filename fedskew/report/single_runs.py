"""Runs that belong to no experiment, as one table per data set: columns by the data's settings, rows by the others."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from data import DataSettings
from data.readers.catalog import SITES_PREFIX, is_sites
from fedskew.experiments.experiments import Experiment, Row
from fedskew.experiments.plan import Cell
from fedskew.report.result_warnings import mismatches, state_warnings
from fedskew.report.results import ExperimentResults, SeedResult
from fedskew.report.run_records import RunRecords
from server_app.methods import METHODS
from server_app.round_selection import points_of
from server_app.run_folder import RunFolder
from server_app.run_settings import WITHOUT_EFFECT_ON_NUMBERS, RunSettings, Scalar
from server_app.settings import defaults, parse

OF_COLUMNS = {field.name.replace("_", "-") for field in fields(DataSettings)} | {
    "rounds",
    "participation",
}
"""The settings that two methods are compared under; the others name a row."""


@dataclass(frozen=True)
class ModelRun:
    """A model of a run, with its row and column."""

    row: str
    column: str
    deployed: str
    run: RunRecords


def single_runs(
    results: Path, planned: Collection[str]
) -> tuple[list[ExperimentResults], list[str]]:
    """Return the reports on the runs of a folder, and a sentence for each run that is left out.

    Args:
        results: the folder of the runs' folders.
        planned: the ids of runs that belong to experiments, which have their own reports.
    """
    runs: list[RunRecords] = []
    left_out: list[str] = []
    if results.is_dir():
        folders = sorted(path for path in results.iterdir() if path.is_dir())
    else:
        folders = []
    for path in folders:
        if path.name in planned:
            continue
        recorded = RunFolder(path).origin().get("settings")
        if recorded is None:
            continue
        try:
            runs.append(RunRecords.read(settings_of(path, recorded)))
        except (ValueError, ImportError, OSError) as error:
            # The run is of another version, or its data are gone.
            left_out.append(f"{path.name}: left out, as its settings cannot be read: {error}")

    by_data: dict[tuple[str, str], list[RunRecords]] = {}
    for run in runs:
        data = run.agreement.get("sha256") or run.settings.data.dataset
        by_data.setdefault((data, run.settings.data.classes), []).append(run)
    tables = [table(group) for group in by_data.values()]
    return [one for one in tables if one.has_ended], left_out


def settings_of(path: Path, recorded: Mapping[str, Scalar]) -> RunSettings:
    """Return a run's settings as its settings.json has them, its folder being `path`. Raises as `parse` does."""
    unusable = WITHOUT_EFFECT_ON_NUMBERS - {"data-root", "results"}
    usable = {key: value for key, value in recorded.items() if key not in unusable}
    usable["results"] = str(path.parent)

    dataset = str(recorded.get("dataset", ""))
    agreement = RunFolder(path).agreement_file
    if is_sites(dataset) and agreement.exists():
        # The run's own copy: the federation may have changed its file since, or be elsewhere.
        _, _, digest = dataset.rpartition("#")
        usable["dataset"] = f"{SITES_PREFIX}{agreement}#{digest}"
    settings = parse(usable)
    if is_sites(dataset):
        data = replace(settings.data, dataset=dataset)
        settings = replace(settings, data=data)
    # The id of a changed plugin file would be another one.
    return replace(settings, known_run_id=path.name)


def differing(runs: Iterable[RunRecords]) -> list[str]:
    """Return the settings that have more than one value among the runs, but for method and seed."""
    values: dict[str, set[Scalar]] = {}
    for run in runs:
        for key, value in run.settings.flat().items():
            of_key = values.setdefault(key, set())
            of_key.add(value)
    several = [key for key, of_key in values.items() if len(of_key) > 1]
    left_out = WITHOUT_EFFECT_ON_NUMBERS | {"method", "seed", "dataset"}
    return [key for key in several if key not in left_out]


def table(runs: Sequence[RunRecords]) -> ExperimentResults:
    """Return the report on the runs of one data set, as if they had been planned."""
    by_method: dict[str, list[RunRecords]] = {}
    for run in runs:
        by_method.setdefault(run.settings.general.method, []).append(run)
    column_keys = [key for key in differing(runs) if key in OF_COLUMNS]
    row_keys = {}
    for method, group in by_method.items():
        row_keys[method] = [key for key in differing(group) if key not in OF_COLUMNS]

    models: dict[tuple[str, str, int], ModelRun] = {}
    warnings: list[str] = []
    # Runs with one model first: they are a method's own, while others deploy it beside theirs.
    for run in sorted(runs, key=number_of_models):
        general = run.settings.general
        for model in models_of(run, column_keys, row_keys[general.method]):
            first = models.setdefault((model.row, model.column, general.seed), model)
            if first.run is not run and first.run.settings.general.method == general.method:
                warnings.append(
                    f"{run.label}: left out, it differs from {first.run.label} in its model's file alone."
                )
    return results_of(list(models.values()), runs, warnings)


def number_of_models(run: RunRecords) -> int:
    """Return how many models a run deploys; 0 before it is finished."""
    return len((run.summary or {}).get("models", ()))


def models_of(
    run: RunRecords,
    column_keys: Sequence[str],
    row_keys: Sequence[str],
) -> list[ModelRun]:
    """Return the models of a run, named by the settings with these keys that it has; by a row only if changed."""
    flat = run.settings.flat()
    usual = defaults()
    column = ", ".join(f"{key} {flat[key]}" for key in column_keys if key in flat)
    suffix = ""
    for key in row_keys:
        if key in flat and flat[key] != usual[key]:
            suffix += f", {key} {flat[key]}"
    rows = {"": run.settings.general.method}
    if run.finished:
        rows = (run.summary or {}).get("rows", {})
    return [ModelRun(row + suffix, column, deployed, run) for deployed, row in rows.items()]


def where(run: RunRecords) -> str:
    """Return in words on which data a run is, or between whose sites."""
    agreement = run.agreement
    return f"between the sites of {agreement['name']}" if agreement else f"on {run.data_name}"


def results_of(
    models: Sequence[ModelRun],
    runs: Sequence[RunRecords],
    warnings: Sequence[str],
) -> ExperimentResults:
    """Return the report's contents; FedAvg comes first, then the methods as they are listed."""
    order = list(METHODS)

    def rank(model: ModelRun) -> tuple[int, str]:
        name = model.row.partition(",")[0]
        position = order.index(name) if name in order else len(order)
        return position, model.row

    rows = {}
    for model in sorted(models, key=rank):
        method = model.row.partition(",")[0]
        rows[model.row] = Row(model.row, method)
    columns: dict[str, Mapping[str, Any]] = {}
    for column in sorted({model.column for model in models}):
        columns[column] = {}
    data = runs[0].data_name
    experiment = Experiment(
        name=f"runs-{data}",
        title=f"Runs {where(runs[0])}",
        rows=tuple(rows.values()),
        columns=columns,
        seeds=tuple(sorted({run.settings.general.seed for run in runs})),
    )

    cells = []
    for model in models:
        settings = model.run.settings
        seed = settings.general.seed
        cells.append(Cell(experiment.name, model.row, model.column, seed, settings, model.deployed))
    measured: dict[tuple[str, str], list[SeedResult]] = {}
    for cell, model in sorted(zip(cells, models, strict=True), key=lambda pair: pair[0].seed):
        run = model.run
        points = points_of(run.records, model.deployed) if run.finished else ()
        if points:
            group = measured.setdefault((model.row, model.column), [])
            group.append(SeedResult(cell, run, points))

    by_id = {run.name: run for run in runs}
    all_warnings = (*warnings, *state_warnings(runs), *mismatches(cells, by_id))
    return ExperimentResults(experiment, cells, by_id, measured, all_warnings, "")
