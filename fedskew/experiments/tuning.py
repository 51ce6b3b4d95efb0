"""Trials of an experiment that tunes a setting: each row and column with every value, on a seed of their own."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fedskew.experiments.experiments import Experiment
from fedskew.experiments.plan import Cell, TunedValues, plan, tune_in_force
from server_app.round_selection import is_better
from server_app.run_settings import Scalar


@dataclass(frozen=True)
class TuningRun:
    """One value of the tuned setting, tried for one row and column."""

    row: str
    column: str
    value: Scalar
    cell: Cell
    """Its run; the cell's column also names the value."""


@dataclass(frozen=True)
class Tuned:
    """What the trials of one row and column gave."""

    row: str
    column: str
    scores: Mapping[Scalar, float]
    """The experiment's number by value, in the order of the file; NaN where the trial has not finished."""
    metric: str
    """The name of these numbers: of loss, brier and calibration-error the lowest is the best."""
    diverged: Sequence[Scalar] = ()
    """The values whose trial diverged."""

    @property
    def value(self) -> Scalar | None:
        """The value of the best number, of equal ones the first; None where no trial has finished."""
        name = self.metric.rpartition(".")[2]  # validation.loss is a loss
        best: Scalar | None = None
        for value, score in self.scores.items():
            if math.isnan(score):
                continue
            if best is None or is_better(score, self.scores[best], name):
                best = value
        return best

    @property
    def at_an_end(self) -> bool:
        """Whether the value is the first or the last that was tried, so that a better one may lie beyond."""
        tried = list(self.scores)
        return self.value in (tried[0], tried[-1])


def trials(experiment: Experiment, overrides: Mapping[str, Scalar]) -> list[TuningRun]:
    """Return the trials of an experiment; none where nothing is tuned. Raises SettingError as `plan` does."""
    tune = tune_in_force(experiment, overrides)
    if tune is None:
        return []
    others = {key: value for key, value in overrides.items() if key != "seed"}
    found = []
    for value in tune.values:
        for cell in plan(experiment, {**others, tune.key: value}, [tune.seed]):
            label = f"{tune.key} = {value}"
            shown = f"{cell.column}, {label}" if cell.column else label
            found.append(TuningRun(cell.row, cell.column, value, replace(cell, column=shown)))
    return found


def values_of_rows(tuned: Sequence[Tuned]) -> TunedValues:
    """Return the chosen values by row and column, without the rows of which no trial has finished."""
    values = {}
    for one in tuned:
        value = one.value
        if value is not None:
            values[one.row, one.column] = value
    return values
