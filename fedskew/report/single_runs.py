"""Runs without an experiment, as one table per data set: columns for differences of the data, rows for the rest."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from data import DataSettings
from data.readers.catalog import SITES_PREFIX, is_sites
from fedskew.experiments.experiments import Experiment, Row
from fedskew.experiments.plan import Cell
from fedskew.report.results import (
    ExperimentResults,
    RunRecords,
    SeedResult,
    mismatches,
    state_warnings,
)
from server_app.methods import METHODS
from server_app.round_selection import points_of
from server_app.run_folder import RunFolder
from server_app.run_settings import WITHOUT_EFFECT_ON_NUMBERS, RunSettings, Scalar
from server_app.settings import defaults, parse

OF_COLUMNS = {field.name.replace("_", "-") for field in fields(DataSettings)} | {
    "rounds",
    "participation",
}
"""The settings that two methods are compared under; the others are a row's own."""


@dataclass(frozen=True)
class ModelRun:
    """Where a model of a run stands in its table."""

    row: str
    column: str
    deployed: str
    run: RunRecords


def single_runs(results: Path, known: Collection[str]) -> tuple[list[ExperimentResults], list[str]]:
    """Return the reports on the runs of a folder but for the `known` ones, by their ids, and why runs are left out."""
    runs, left_out = list[RunRecords](), list[str]()
    folders = (
        sorted(path for path in results.iterdir() if path.is_dir()) if results.is_dir() else []
    )
    for path in folders:
        stated = RunFolder(path).origin().get("settings") if path.name not in known else None
        if stated is None:
            continue
        try:
            runs.append(RunRecords.read(settings_of(path, stated)))
        except (
            ValueError,
            ImportError,
            OSError,
        ) as error:  # of another version, or data that are no longer there
            left_out.append(f"{path.name}: left out, as its settings cannot be read: {error}")
    by_data: dict[tuple[str, str], list[RunRecords]] = {}
    for run in runs:
        data = run.agreement.get("sha256") or run.settings.data.dataset
        by_data.setdefault((data, run.settings.data.classes), []).append(run)
    return [
        table(group) for group in by_data.values() if any(run.finished for run in group)
    ], left_out


def settings_of(path: Path, stated: Mapping[str, Scalar]) -> RunSettings:
    """Return a run's settings as its settings.json has them, its folder being where it is. Raises as `parse` does."""
    paths, dataset, kept = (
        {"data-root", "results"},
        str(stated.get("dataset", "")),
        RunFolder(path).agreement_file,
    )
    usable = {
        key: value for key, value in stated.items() if key not in WITHOUT_EFFECT_ON_NUMBERS - paths
    }
    if (
        is_sites(dataset) and kept.exists()
    ):  # the federation may have another by now, or be elsewhere
        usable["dataset"] = f"{SITES_PREFIX}{kept}#{dataset.rpartition('#')[2]}"
    settings = parse(usable | {"results": str(path.parent)})
    if is_sites(dataset):
        settings = replace(settings, data=replace(settings.data, dataset=dataset))
    vars(settings)["run_id"] = path.name  # whatever has become of its own model's file
    return settings


def differing(runs: Iterable[RunRecords]) -> list[str]:
    """Return the settings that have more than one value among the runs that have them, but for method and seed."""
    values: dict[str, set[Scalar]] = {}
    for run in runs:
        for key, value in run.settings.flat().items():
            values.setdefault(key, set()).add(value)
    without = WITHOUT_EFFECT_ON_NUMBERS | {"method", "seed", "dataset"}
    return [key for key, known in values.items() if len(known) > 1 and key not in without]


def table(runs: Sequence[RunRecords]) -> ExperimentResults:
    """Return the report on the runs of one data set, as if they had been planned."""
    by_column = [key for key in differing(runs) if key in OF_COLUMNS]
    by_row = {
        method: [key for key in differing(run for run in runs if run.settings.general.method == method)
                 if key not in OF_COLUMNS]
        for method in {run.settings.general.method for run in runs}
    }  # fmt: skip
    models: dict[tuple[str, str, int], ModelRun] = {}
    usual, warnings = defaults(), list[str]()
    for run in sorted(
        runs, key=lambda run: len((run.summary or {}).get("models", ()))
    ):  # a method's own run first
        flat, method = run.settings.flat(), run.settings.general.method
        column = ", ".join(f"{key} {flat[key]}" for key in by_column if key in flat)
        changed = [key for key in by_row[method] if key in flat and flat[key] != usual[key]]
        stated = "".join(f", {key} {flat[key]}" for key in changed)
        rows: Mapping[str, str] = (
            (run.summary or {}).get("rows", {}) if run.finished else {"": method}
        )
        for deployed, row in rows.items():
            model = ModelRun(row + stated, column, deployed, run)
            before = models.setdefault((model.row, column, run.settings.general.seed), model)
            if before.run is not run and before.run.settings.general.method == method:
                warnings.append(
                    f"{run.label}: left out, it differs from {before.run.label} in its model's file alone."
                )
    return results_of(list(models.values()), runs, warnings)


def results_of(
    models: Sequence[ModelRun], runs: Sequence[RunRecords], warnings: Sequence[str]
) -> ExperimentResults:
    """Return the report's contents; FedAvg comes first, then the methods as they are listed."""
    order = list(METHODS)

    def rank(model: ModelRun) -> tuple[int, str]:
        name = model.row.partition(",")[0]
        return (order.index(name) if name in order else len(order)), model.row

    rows = {
        model.row: Row(model.row, model.row.partition(",")[0]) for model in sorted(models, key=rank)
    }
    columns: dict[str, Mapping[str, Any]] = {
        column: {} for column in sorted({model.column for model in models})
    }
    data = runs[0].data_name
    experiment = Experiment(
        name=f"runs-{data}",
        title=f"Runs of no experiment: {data}",
        rows=tuple(rows.values()),
        columns=columns,
        seeds=tuple(sorted({run.settings.general.seed for run in runs})),
    )
    cells = [
        Cell(
            experiment.name,
            p.row,
            p.column,
            p.run.settings.general.seed,
            p.run.settings,
            p.deployed,
        )
        for p in models
    ]
    measured: dict[tuple[str, str], list[SeedResult]] = {}
    for cell, model in sorted(zip(cells, models, strict=True), key=lambda pair: pair[0].seed):
        if model.run.finished and (points := points_of(model.run.records, model.deployed)):
            measured.setdefault((model.row, model.column), []).append(
                SeedResult(cell, model.run, points)
            )
    by_id = {run.name: run for run in runs}
    said = (*warnings, *state_warnings(runs), *mismatches(cells, by_id))
    return ExperimentResults(experiment, cells, by_id, measured, said, "")
