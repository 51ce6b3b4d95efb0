"""The runs of a folder by their data, whatever made them: columns by the data's settings, rows by the others."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path

from data import DataSettings
from data.readers.catalog import SITES_PREFIX, is_sites
from fedskew.experiments import Experiment, Row
from fedskew.experiments.plan import Cell
from fedskew.report.results import ExperimentResults, measured_runs
from fedskew.report.runs import Run, warnings_of
from server_app.methods import METHODS
from server_app.plugins import register
from server_app.run_folder import RunFolder
from server_app.run_settings import WITHOUT_EFFECT_ON_NUMBERS, RunSettings, Scalar
from server_app.settings import defaults, parse

OF_COLUMNS = {field.name.replace("_", "-") for field in fields(DataSettings)} | {
    "rounds",
    "participation",
}
"""The settings that two methods are compared under; the others name a row."""


def single_runs(results: Path) -> tuple[list[ExperimentResults], list[str]]:
    """Return the reports on the runs of a folder, one per data set, and a sentence for each run that is left out."""
    by_data: dict[tuple[str, str], list[Run]] = {}
    left_out: list[str] = []
    for path in sorted(results.iterdir()) if results.is_dir() else ():
        try:
            recorded = RunFolder(path).origin().get("settings")
            if recorded is None:
                if RunFolder(path).rounds_file.exists():
                    rule = "left out, as its settings.json is missing or damaged"
                    left_out.append(f"{path.name}: {rule}")
                continue
            run = Run.read(settings_of(path, recorded))
        except (ValueError, ImportError, OSError) as error:
            # The run is of another version, its data are gone, or its files are another user's.
            left_out.append(f"{path.name}: left out, as its settings cannot be read: {error}")
            continue
        data = run.settings.data
        place = (run.agreement.get("sha256") or data.dataset, data.classes)
        by_data.setdefault(place, []).append(run)
    # By data, so that a number in a name does not move with the next run.
    tables = [table(group) for _, group in sorted(by_data.items())]
    return named_apart([one for one in tables if one.has_ended]), left_out


def named_apart(tables: Sequence[ExperimentResults]) -> list[ExperimentResults]:
    """Return the tables, with a number in the names of those that are called as one before: data.npz of two sites."""
    named: list[ExperimentResults] = []
    times = Counter[str]()
    for one in tables:
        entry = one.experiment
        times[entry.name] += 1
        number = times[entry.name]
        if number > 1:
            entry = replace(entry, name=f"{entry.name}-{number}", title=f"{entry.title} ({number})")
        named.append(replace(one, experiment=entry))
    return named


def settings_of(path: Path, recorded: Mapping[str, Scalar]) -> RunSettings:
    """Return a run's settings as its settings.json has them, its folder being `path`. Raises as `parse` does.

    Settings that this version lacks are left out where the run's id, a hash of what is not at its default, is the same.
    """
    unusable = WITHOUT_EFFECT_ON_NUMBERS - {"data-root", "results"}
    usable = {key: value for key, value in recorded.items() if key not in unusable}
    usable["results"] = str(path.parent)

    dataset = str(recorded.get("dataset", ""))
    agreement = RunFolder(path).agreement_file
    if is_sites(dataset) and agreement.exists():
        # The run's own copy: the federation may have changed its file since, or be elsewhere.
        _, _, digest = dataset.rpartition("#")
        usable["dataset"] = f"{SITES_PREFIX}{agreement}#{digest}"
    register(*(str(usable.get(key, "")) for key in ("method", "model", "dataset")))
    known = defaults()
    settings = parse({key: value for key, value in usable.items() if key in known})
    if usable.keys() - known.keys() and settings.run_id != path.name:
        parse(usable)  # raises SettingError for such a setting
    data = replace(settings.data, dataset=dataset) if is_sites(dataset) else settings.data
    # The id of a changed plugin file would be another one.
    return replace(settings, data=data, known_run_id=path.name)


def table(runs: Sequence[Run]) -> ExperimentResults:
    """Return the report on the runs of one data set, as if they had been planned."""
    cells: dict[tuple[str, str, int], Cell] = {}
    differing = differing_settings(runs)
    # Runs with one model first: they are a method's own, while others deploy it beside theirs. What did not finish has
    # no number that could stand in their place.
    for run in sorted(runs, key=order_in_table):
        flat = run.settings.flat()
        of_column = [f"{key} {flat[key]}" for key in differing if key in OF_COLUMNS]
        changed = ""
        for key in differing:
            if key not in OF_COLUMNS and key in flat and flat[key] != defaults()[key]:
                changed += f", {key} {flat[key]}"
        general = run.settings.general
        rows = {"": general.method}
        if run.finished and run.summary:
            rows = run.summary.get("rows", {})
        for deployed, method in rows.items():
            place = (method + changed, ", ".join(of_column), general.seed)
            cells.setdefault(place, Cell("", *place, run.settings, deployed))
    by_seed = sorted(cells.values(), key=lambda cell: cell.seed)
    by_id = {run.name: run for run in runs}
    return ExperimentResults(
        experiment=experiment_of(by_seed, runs[0]),
        cells=by_seed,
        runs=by_id,
        measured=measured_runs(by_seed, by_id),
        warnings=tuple(warnings_of(by_seed, by_id)),
    )


def order_in_table(run: Run) -> tuple[bool, int]:
    """Return the key by which a table takes runs: unfinished ones last, then by how many models they deploy."""
    return not run.finished, len((run.summary or {}).get("models", ()))


def differing_settings(runs: Sequence[Run]) -> list[str]:
    """Return the settings that have more than one value among the runs, but for method and seed."""
    values: dict[str, set[Scalar]] = {}
    for run in runs:
        for key, value in run.settings.flat().items():
            values.setdefault(key, set()).add(value)
    for key in WITHOUT_EFFECT_ON_NUMBERS | {"method", "seed", "dataset"}:
        values.pop(key, None)
    return [key for key, of_key in values.items() if len(of_key) > 1]


def experiment_of(cells: Sequence[Cell], run: Run) -> Experiment:
    """Return the experiment that these cells would be of; methods come as they are listed, FedAvg first."""
    order = [*METHODS]
    rows = [Row(label, label.partition(",")[0]) for label in sorted({cell.row for cell in cells})]
    rows.sort(key=lambda row: order.index(row.method) if row.method in order else len(order))
    title = f"Runs on {run.data_name}"
    if run.agreement:
        title = f"Runs between the sites of {run.agreement['name']}"
    return Experiment(
        name=f"runs-{run.data_name}",
        title=title,
        rows=tuple(rows),
        columns={column: {} for column in sorted({cell.column for cell in cells})},
        seeds=tuple(sorted({cell.seed for cell in cells})),
    )
