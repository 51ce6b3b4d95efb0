"""From an experiment to its runs: one training for all rows that differ only in what is deployed.

An experiment that tunes a setting is planned twice: `trials` are its runs with every value, on a seed of their own, and
`plan` gives each row and column the value that was best there.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from client_app.client import affects_training
from client_app.variants import VARIANTS
from data import SettingError, require
from fedskew.experiments import Experiment, Row, Tune
from server_app.composition import compose, model_of
from server_app.methods import METHODS
from server_app.round_selection import is_better
from server_app.run_settings import RunSettings, Scalar
from server_app.settings import parse
from strategies.core.server import AVERAGE

TunedValues = Mapping[tuple[str, str], Scalar]
"""The value of the tuned setting by row and column."""


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
    tried: Scalar = ""
    """Of a trial: its value of the tuned setting; empty of the table itself."""

    @property
    def place(self) -> tuple[str, str, str]:
        """Experiment, row and column."""
        return self.experiment, self.row, self.column


@dataclass
class Training:
    """A training that is being planned.

    Riders are methods that add another model to the same training, as CCVR does to FedAvg's: they share a run.
    """

    method: str
    settings: dict[str, Scalar]
    riders: dict[str, dict[str, Scalar]] = field(default_factory=dict)
    """The settings of each rider's own section, by its name."""

    def takes(self, riders: Mapping[str, Mapping[str, Scalar]]) -> bool:
        """Return whether riders can be added: those that are there already must have the same settings."""
        return all(self.riders.get(name, own) == own for name, own in riders.items())

    def parse(self) -> RunSettings:
        """Return the run's settings."""
        settings = dict(self.settings)
        for of_rider in self.riders.values():
            settings |= of_rider
        return parse({**settings, "method": "+".join([self.method, *self.riders])})


def plan(
    experiment: Experiment,
    overrides: Mapping[str, Scalar] | None = None,
    seeds: Sequence[int] = (),
    tuned: TunedValues | None = None,
) -> list[Cell]:
    """Return every cell of the experiment's table, column by column and seed by seed.

    A setting of a method's own section counts for the rows that use it.

    Args:
        experiment: to plan.
        overrides: settings that replace the file's.
        seeds: in place of the file's and of its rows', where there are any, as of trials.
        tuned: what trials chose, of an experiment that tunes a setting; a row without a value is left out. None plans
            every row with the first value that is tried, for what does not depend on it, as data and costs.

    Raises:
        SettingError: a setting that no row uses, and as `parse` raises it.
    """
    overrides = dict(overrides or {})
    if "method" in overrides:
        rule = f"experiment {experiment.name} names its methods itself"
        raise SettingError("method", overrides["method"], rule)
    chosen_seeds: Sequence[Scalar] = seeds or experiment.seeds
    if "seed" in overrides:
        chosen_seeds = [overrides.pop("seed")]
    refuse_unused(experiment, overrides)
    tune = tune_in_force(experiment, overrides)
    if tune is not None:
        rule = f"is the seed of {experiment.name}'s trials"
        require(tune.seed not in chosen_seeds, "seed", tune.seed, rule)

    cells: list[Cell] = []
    for column in experiment.columns:
        rows = []
        for row in experiment.rows:
            if row.only and column not in row.only:
                continue
            settings = settings_of(experiment, row, column, overrides)
            if tune is not None:
                value = tune.values[0] if tuned is None else tuned.get((row.label, column))
                if value is None:
                    continue
                settings[tune.key] = value
            rows.append((row, settings))
        for seed in chosen_seeds:
            of_seed = [(row, own) for row, own in rows if seeds or seed in (row.seeds or (seed,))]
            cells += planned(experiment.name, column, of_seed, seed)
    return cells


def settings_of(
    experiment: Experiment, row: Row, column: str, overrides: Mapping[str, Scalar]
) -> dict[str, Scalar]:
    """Return the settings of a row in a column; the narrower table wins, and `overrides` over all."""
    shared = {**experiment.assumed, **experiment.settings}
    return {**shared, **experiment.columns[column], **row.settings, **overrides}


def planned(
    name: str, column: str, rows: Sequence[tuple[Row, Mapping[str, Scalar]]], seed: Scalar
) -> list[Cell]:
    """Return the cells of rows, each with its settings, in one column of an experiment for one seed."""
    trainings: list[Training] = []
    placed: list[tuple[Row, Training, str]] = []
    for row, settings in rows:
        method, riders = split(row)
        sections = set(compose(method).sections)
        of_method = {**in_sections(settings, {"", *sections}), "seed": seed}
        of_riders = {}
        for rider in riders:
            own_sections = set(compose(rider).sections) - sections
            of_riders[rider] = in_sections(settings, own_sections)

        for training in trainings:
            is_same = (training.method, training.settings) == (method, of_method)
            if is_same and training.takes(of_riders):
                break
        else:
            training = Training(method, of_method)
            trainings.append(training)
        training.riders |= of_riders
        default = model_of(METHODS[riders[-1]]) if riders else AVERAGE
        placed.append((row, training, row.deployed or default))

    # A training is complete only now: later rows may have added riders.
    runs = {id(training): training.parse() for training in trainings}
    cells = []
    for row, training, deployed in placed:
        run = runs[id(training)]
        cells.append(Cell(name, row.label, column, run.general.seed, run, deployed))
    return cells


def split(row: Row) -> tuple[str, tuple[str, ...]]:
    """Return the part of a row's method that trains, and its riders: one at most."""
    names = compose(row.method).names
    riders = tuple(name for name in names if only_deploys(name))
    if len(riders) > 1:
        rule = f"deploys {' and '.join(riders)}"
        remedy = "name each in a row of its own"
        raise SettingError("methods", row.method, rule, remedy=remedy)
    training = [name for name in names if name not in riders]
    return "+".join(training) or "fedavg", riders


def only_deploys(name: str) -> bool:
    """Return whether a method adds a model, the server's or the clients' own, and leaves the training as it is."""
    method = METHODS[name]
    changes_training = any(affects_training(VARIANTS[variant]) for variant in method.variants)
    return bool(model_of(method)) and not changes_training


def section_of(key: str) -> str:
    """Return the section of a setting's key; empty for a setting without one."""
    return key.rpartition(".")[0]


def in_sections(settings: Mapping[str, Scalar], sections: set[str]) -> dict[str, Scalar]:
    """Return the settings of these sections."""
    return {key: value for key, value in settings.items() if section_of(key) in sections}


def refuse_unused(experiment: Experiment, overrides: Mapping[str, Scalar]) -> None:
    """Raise SettingError for a section's setting that no row uses, or that a row states and does not use itself."""
    common = {**experiment.assumed, **experiment.settings, **overrides}
    for column in experiment.columns.values():
        common |= column
    if experiment.tune is not None:
        common[experiment.tune.key] = experiment.tune.values[0]
    rule = f"has no effect: no such method in experiment {experiment.name} uses it"
    unused = dict(common)
    for row in experiment.rows:
        sections = {"", *compose(row.method).sections}
        for key, value in row.settings.items():
            require(section_of(key) in sections, key, value, rule)
        unused = {key: unused[key] for key in unused if section_of(key) not in sections}
    for key, value in unused.items():
        raise SettingError(key, value, rule)


def selected(
    cells: Sequence[Cell],
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
) -> list[Cell]:
    """Return the cells of those rows and columns; naming none is naming all.

    A cell keeps its run, so that part of a table trains nothing that the whole table would train again. Raises
    SettingError for a label that no cell has.
    """
    kept = list(cells)
    for option, labels in (("row", rows), ("column", columns)):
        known = dict.fromkeys(getattr(cell, option) for cell in cells)
        for label in labels:
            rule = f"must be one of {', '.join(known) or 'a named experiment'}"
            require(label in known, f"--{option}", label, rule)
        kept = [cell for cell in kept if getattr(cell, option) in (labels or known)]
    return kept


def runs(cells: Iterable[Cell]) -> list[RunSettings]:
    """Return the distinct runs behind the cells, in their order."""
    return list({cell.run.run_id: cell.run for cell in cells}.values())


# ---- tuning ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tuned:
    """What the trials of one row and column gave."""

    row: str
    column: str
    scores: Mapping[Scalar, float]
    """The experiment's number by value, in the order of the file; NaN where the trial has not finished."""
    metric: str
    """The name of these numbers, which says whether the highest or the lowest is the best."""
    diverged: Sequence[Scalar] = ()
    """The values whose trial diverged."""

    @property
    def value(self) -> Scalar | None:
        """The value of the best number, of equal ones the first; None where no trial has finished."""
        best: Scalar | None = None
        for value, score in self.scores.items():
            if math.isnan(score):
                continue
            if best is None or is_better(score, self.scores[best], self.metric):
                best = value
        return best

    @property
    def at_an_end(self) -> bool:
        """Whether the value is the first or the last that was tried, so that a better one may lie beyond."""
        tried = list(self.scores)
        return self.value in (tried[0], tried[-1])


def tune_in_force(experiment: Experiment, overrides: Mapping[str, Scalar]) -> Tune | None:
    """Return what the experiment tunes; None where it tunes nothing, or the user gives that setting a value."""
    tune = experiment.tune
    return None if tune is None or tune.key in overrides else tune


def trials(experiment: Experiment, overrides: Mapping[str, Scalar]) -> list[Cell]:
    """Return the trials of an experiment; none where nothing is tuned. Raises SettingError as `plan` does."""
    tune = tune_in_force(experiment, overrides)
    if tune is None:
        return []
    others = {key: value for key, value in overrides.items() if key != "seed"}
    found = []
    for value in tune.values:
        cells = plan(experiment, {**others, tune.key: value}, [tune.seed])
        found += [replace(cell, tried=value) for cell in cells]
    return found


def values_of_rows(tuned: Sequence[Tuned]) -> TunedValues:
    """Return the chosen values by row and column, without the rows of which no trial has finished."""
    values = {(one.row, one.column): one.value for one in tuned}
    return {place: value for place, value in values.items() if value is not None}
