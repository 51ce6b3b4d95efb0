"""From an experiment to its runs: one training for all rows that differ only in what is deployed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from client_app.client import affects_training
from client_app.variants import VARIANTS
from data import SettingError, require
from fedskew.experiments.experiments import Experiment, Row
from server_app.composition import compose
from server_app.methods import METHODS
from server_app.run_settings import RunSettings, Scalar
from server_app.settings import defaults, parse
from strategies.core.round_result import AVERAGE


@dataclass(frozen=True)
class Cell:
    """One number of the experiment's table for one seed: a run, and which of its models."""

    experiment: str
    row: str
    column: str
    seed: int
    run: RunSettings
    deployed: str
    """The model's name in the run's records."""


@dataclass
class Training:
    """A training under way of being planned: what trains, and the methods that ride on it with their settings."""

    method: str
    settings: dict[str, Scalar]
    riders: dict[str, dict[str, Scalar]] = field(default_factory=dict)

    def takes(
        self,
        method: str,
        settings: Mapping[str, Scalar],
        riders: Mapping[str, Mapping[str, Scalar]],
    ) -> bool:
        """Return whether a row could be one more model of this training."""
        same = self.method == method and self.settings == settings
        return same and all(
            self.riders.get(name, stated) == stated for name, stated in riders.items()
        )

    def parse(self) -> RunSettings:
        """Return the run's settings."""
        method = "+".join([self.method, *self.riders])
        settings: dict[str, Scalar] = {}
        for of_rider in self.riders.values():
            settings |= of_rider
        return parse({**self.settings, **settings, "method": method})


def plan(
    experiment: Experiment, overrides: Mapping[str, Scalar] | None = None, seeds: Sequence[int] = ()
) -> list[Cell]:
    """Return every cell of the experiment's table, column by column and seed by seed.

    `overrides` win over the file, and `seeds`, where there are any, over its own.

    A setting of a method's own section counts for the rows that use it. Raises SettingError for one that no row uses,
    and as `parse` does.
    """
    overrides = dict(overrides or {})
    if "method" in overrides:
        raise SettingError(
            "method", overrides["method"], f"experiment {experiment.name} names its methods itself"
        )
    chosen = [overrides.pop("seed")] if "seed" in overrides else seeds or experiment.seeds
    refuse_unused(experiment, overrides)
    cells: list[Cell] = []
    for column, settings in experiment.columns.items():
        for seed in chosen:
            stated = {**experiment.assumed, **experiment.settings, **settings}
            cells += planned(experiment, column, stated, {**overrides, "seed": seed})
    return cells


def data_sets(experiment: Experiment, overrides: Mapping[str, Scalar]) -> set[str]:
    """Return the data sets that the experiment's runs are of: values of the setting dataset."""
    if "dataset" in overrides:
        return {str(overrides["dataset"])}
    shared = {**experiment.assumed, **experiment.settings}
    names = set()
    for column in experiment.columns.values():
        for row in experiment.rows:
            stated = {**shared, **column, **row.settings}
            names.add(str(stated.get("dataset", defaults()["dataset"])))
    return names


def planned(
    experiment: Experiment,
    column: str,
    settings: Mapping[str, Scalar],
    overrides: Mapping[str, Scalar],
) -> list[Cell]:
    """Return the cells of one column and seed, which is among the overrides."""
    trainings: list[Training] = []
    chosen: list[tuple[Row, Training, str]] = []
    for row in experiment.rows:
        method, riders = split(row)
        every = {**settings, **row.settings, **overrides}
        stated = used(every, compose(method).sections)
        ridden = {
            name: only(every, compose(name).sections, base=compose(method).sections)
            for name in riders
        }
        training = next(
            (training for training in trainings if training.takes(method, stated, ridden)), None
        )
        if training is None:
            training = Training(method, stated)
            trainings.append(training)
        training.riders |= ridden
        chosen.append(
            (row, training, row.deployed or (METHODS[riders[-1]].deploy if riders else AVERAGE))
        )
    runs = {id(training): training.parse() for training in trainings}
    return [
        Cell(
            experiment.name,
            row.label,
            column,
            runs[id(training)].general.seed,
            runs[id(training)],
            deployed,
        )
        for row, training, deployed in chosen
    ]


def split(row: Row) -> tuple[str, tuple[str, ...]]:
    """Return what of a row's method trains, and what only deploys another model of that training."""
    names = compose(row.method).names
    riders = tuple(
        name
        for name in names
        if METHODS[name].deploy
        and not any(affects_training(VARIANTS[variant]) for variant in METHODS[name].variants)
    )
    if len(riders) > 1:
        rule = f"deploys {' and '.join(riders)}"
        remedy = "name each in a row of its own"
        raise SettingError("methods", row.method, rule, remedy=remedy)
    return "+".join(name for name in names if name not in riders) or "fedavg", riders


def used(settings: Mapping[str, Scalar], sections: Iterable[str]) -> dict[str, Scalar]:
    """Return the settings without those of sections that a method does not use."""
    known = set(sections)
    return {
        key: value
        for key, value in settings.items()
        if "." not in key or key.rpartition(".")[0] in known
    }


def only(
    settings: Mapping[str, Scalar], sections: Iterable[str], base: Iterable[str]
) -> dict[str, Scalar]:
    """Return the settings of a rider's own sections."""
    known = set(sections) - set(base)
    return {
        key: value
        for key, value in settings.items()
        if "." in key and key.rpartition(".")[0] in known
    }


def refuse_unused(experiment: Experiment, overrides: Mapping[str, Scalar]) -> None:
    """Raise SettingError for a section's setting that no row uses, or that a row states and does not use itself."""
    sections = {row.label: set(compose(row.method).sections) for row in experiment.rows}
    every = set().union(*sections.values())
    common = (experiment.assumed, experiment.settings, overrides, *experiment.columns.values())
    stated = [(settings, every) for settings in common]
    for settings, known in [
        *stated,
        *((row.settings, sections[row.label]) for row in experiment.rows),
    ]:
        for key, value in settings.items():
            if "." in key and key.rpartition(".")[0] not in known:
                raise SettingError(
                    key,
                    value,
                    f"has no effect: no such method in experiment {experiment.name} uses it",
                )


def selected(
    cells: Sequence[Cell], rows: Sequence[str] = (), columns: Sequence[str] = ()
) -> list[Cell]:
    """Return the cells of those rows and columns; naming none is naming all.

    A cell keeps its run, so that part of a table trains nothing that the whole table would train again. Raises
    SettingError for a label that no cell has.
    """
    for key, labels, known in (
        ("--row", rows, dict.fromkeys(cell.row for cell in cells)),
        ("--column", columns, dict.fromkeys(cell.column for cell in cells)),
    ):
        for label in labels:
            require(
                label in known,
                key,
                label,
                f"must be one of {', '.join(known) or 'a named experiment'}",
            )
    return [
        cell
        for cell in cells
        if cell.row in (rows or [cell.row]) and cell.column in (columns or [cell.column])
    ]


def runs(cells: Iterable[Cell]) -> list[RunSettings]:
    """Return the distinct runs behind the cells, in their order."""
    return list({cell.run.run_id: cell.run for cell in cells}.values())
