"""The results of an experiment: the records of its runs by row, column and seed, with what its trials gave."""

import math
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data import require
from fedskew.experiments.experiments import Experiment
from fedskew.experiments.plan import Cell, plan
from fedskew.experiments.plan import runs as runs_of
from fedskew.experiments.tuning import Tuned, TuningRun, trials, values_of_rows
from fedskew.report.result_warnings import (
    changes,
    mismatches,
    state_warnings,
    trial_warnings,
    values_of,
)
from fedskew.report.run_records import RunRecords
from server_app.evaluation import OF_POSITIVE, PositiveClass, positive_class
from server_app.record import BY_CLASS
from server_app.round_selection import Point, points_of, select
from server_app.run_settings import WITHOUT_EFFECT_ON_NUMBERS, RunSettings, Scalar

SPREAD_PARTS = ("mean", "worst", "worst-decile")
"""What a number over the clients has beside each client's."""


@dataclass(frozen=True)
class SeedResult:
    """One cell of the table for one seed: a finished run, and the rounds of one of its models."""

    cell: Cell
    run: RunRecords
    points: tuple[Point, ...]

    def number(self, point: Point, metric: str) -> float | None:
        """Return a number of the model, or of the round: NAME, or of one over the clients NAME.mean, NAME.worst,
        NAME.worst-decile or NAME.SITE. None where there is none, or NaN. Raises SettingError for an unknown site."""
        value = self.recorded(point, metric)
        if isinstance(value, int | float) and math.isfinite(value):
            return float(value)
        return None

    def recorded(self, point: Point, metric: str) -> object:
        """Return what the records have for `number`."""
        name, _, part = metric.partition(".")
        spread = point.numbers.spreads.get(name)
        if spread is not None and part in SPREAD_PARTS:
            return getattr(spread, part.replace("-", "_"))
        if spread is not None and part and self.run.sites:
            site = self.site(metric)
            # Kept records have the clients' values of some rounds alone.
            return spread.values[site] if spread.values else None

        if metric in OF_POSITIVE:
            positive = self.positive_class(point)
            if positive is not None:
                # Records of earlier versions have the mean over both classes in `means`, and each class's own here.
                of_class = point.numbers.by_class.get(f"{metric}{BY_CLASS}", ())
                return of_class[positive.label] if len(of_class) == 2 else None

        record = point.record
        of_round: dict[str, object] = {
            "loss": record.loss,
            "bytes-down": record.bytes_down,
            "bytes-up": record.bytes_up,
        }
        return {**of_round, **record.metrics, **point.numbers.means}.get(metric)

    def positive_class(self, point: Point) -> PositiveClass | None:
        """Return the positive class of two in a round's numbers; None for more classes."""
        settings = self.run.settings
        names = settings.data.class_names
        chosen = point.numbers.positive_class or settings.general.positive_class
        train_KC = self.run.samples.get("train", ())
        trained_C = [sum(counts_K) for counts_K in zip(*train_KC, strict=True)]
        confusion_CC = point.numbers.confusion or ()
        tested_C = [sum(row) for row in confusion_CC]
        by_counts = positive_class(names, "", trained_C, tested_C)
        if chosen not in names:
            return by_counts
        if by_counts is not None and by_counts.name == chosen:
            return by_counts  # the counts are the better reason to give for it
        return positive_class(names, chosen)

    def site(self, metric: str) -> int:
        """Return the client that a number's last part names. Raises SettingError when it names none."""
        site = metric.partition(".")[2]
        sites = self.run.sites
        dataset = self.run.settings.data.dataset
        key = f"experiments.yaml: {self.cell.experiment}: metric"
        rule = f"{site} is no client of {dataset}, whose clients are {', '.join(sites)}"
        require(site in sites, key, metric, rule)
        return sites.index(site)


@dataclass(frozen=True)
class ExperimentResults:
    """The records of an experiment's runs."""

    experiment: Experiment
    cells: Sequence[Cell]
    """The plan."""
    runs: Mapping[str, RunRecords]
    """Every run of the plan by its id, missing ones too."""
    measured: Mapping[tuple[str, str], Sequence[SeedResult]]
    """By row and column the finished runs, in the order of the seeds."""
    warnings: tuple[str, ...]
    command: str
    """The command that makes the missing runs."""
    tuned: Sequence[Tuned] = ()
    """What the trials gave, by row and column; empty where nothing is tuned."""
    trial_runs: Collection[str] = ()
    """The ids of the trials' runs, which are no runs of the table."""

    @property
    def assumed(self) -> dict[str, str]:
        """The settings that the paper leaves open, with their values in these runs."""
        return {key: values_of(key, self.cells) for key in self.experiment.assumed}

    @property
    def seeds(self) -> list[int]:
        return sorted({cell.seed for cell in self.cells})

    @property
    def finished(self) -> list[RunRecords]:
        return [run for run in self.runs.values() if run.finished]

    @property
    def lacks_runs(self) -> bool:
        """Whether there are runs to make: that have neither finished nor diverged."""
        return not all(run.finished or run.divergence is not None for run in self.runs.values())

    @property
    def has_ended(self) -> bool:
        """Whether any run has finished or diverged, so that there is something to report."""
        return any(run.finished or run.divergence is not None for run in self.runs.values())

    def of(self, row: str, column: str) -> Sequence[SeedResult]:
        """Return the finished runs of a row in a column."""
        return self.measured.get((row, column), ())

    def diverged(self, row: str, column: str) -> dict[int, Mapping[str, Any]]:
        """Return by seed how the runs of a row in a column diverged."""
        by_seed = {}
        for cell in self.cells:
            divergence = self.runs[cell.run.run_id].divergence
            if (cell.row, cell.column) == (row, column) and divergence is not None:
                by_seed[cell.seed] = divergence
        return by_seed

    def in_column(self, column: str) -> list[SeedResult]:
        """Return the finished runs of a column, row by row."""
        runs: list[SeedResult] = []
        for row in self.experiment.rows:
            runs += self.of(row.label, column)
        return runs


def gather(
    experiment: Experiment,
    overrides: Mapping[str, Scalar],
    file: Path | None = None,
    kept: Callable[[RunSettings], RunRecords | None] | None = None,
) -> ExperimentResults:
    """Return the records of the experiment's runs; only finished ones are measured.

    Args:
        experiment: to report.
        overrides: settings that replace the file's.
        file: the user's file of experiments, which `command` then names.
        kept: returns the kept run of settings; asked where the results folder has no finished one.

    Raises:
        SettingError, DataError: as `plan`, `RunRecords.read` and `kept` raise them.
    """
    tried = trials(experiment, overrides)
    tuned = tuned_by(tried, experiment)
    cells = plan(experiment, overrides, tuned=values_of_rows(tuned))
    runs = {}
    for settings in runs_of(cells):
        run = RunRecords.read(settings)
        if kept is not None and not run.finished:
            run = kept(settings) or run
        runs[settings.run_id] = run

    measured: dict[tuple[str, str], list[SeedResult]] = {}
    for cell in cells:
        run = runs[cell.run.run_id]
        if not run.finished:
            continue
        points = points_of(run.records, cell.deployed)
        if points:
            of_cell = measured.setdefault((cell.row, cell.column), [])
            of_cell.append(SeedResult(cell, run, points))

    counting = [key for key in overrides if key not in WITHOUT_EFFECT_ON_NUMBERS]
    changed = changes(plan(experiment), cells, counting) if counting else []
    untried = trial_warnings(tuned)
    warnings = (*changed, *untried, *state_warnings(runs.values()), *mismatches(cells, runs))
    return ExperimentResults(
        experiment=experiment,
        cells=cells,
        runs=runs,
        measured=measured,
        warnings=warnings,
        command=command([experiment.name], overrides, file),
        tuned=tuned,
        trial_runs={trial.cell.run.run_id for trial in tried},
    )


def tuned_by(tried: Sequence[TuningRun], experiment: Experiment) -> list[Tuned]:
    """Return what trials gave, in the order of the experiment's columns and rows; only finished runs count."""
    runs = {}
    for settings in runs_of(trial.cell for trial in tried):
        runs[settings.run_id] = RunRecords.read(settings)

    # By row and column, the number of each value that was tried.
    numbers: dict[tuple[str, str], dict[Scalar, float]] = {}
    diverged: dict[tuple[str, str], list[Scalar]] = {}
    for trial in tried:
        run = runs[trial.cell.run.run_id]
        of_cell = numbers.setdefault((trial.row, trial.column), {})
        of_cell[trial.value] = score(trial, run, experiment)
        if run.divergence is not None:
            diverged.setdefault((trial.row, trial.column), []).append(trial.value)
    return [
        Tuned(row, column, of_cell, experiment.metric_of(column), diverged.get((row, column), ()))
        for (row, column), of_cell in numbers.items()
    ]


def score(trial: TuningRun, run: RunRecords, experiment: Experiment) -> float:
    """Return the experiment's number of a trial, as the record has it; NaN where there is none."""
    if not run.finished:
        return math.nan
    result = SeedResult(trial.cell, run, points_of(run.records, trial.cell.deployed))
    metric = experiment.metric_of(trial.column)
    numbers = []
    for point in select(result.points, experiment.selection):
        number = result.number(point, metric)
        if number is None:
            return math.nan
        numbers.append(number)
    return math.fsum(numbers) / len(numbers) if numbers else math.nan


def command(names: Sequence[str], overrides: Mapping[str, Scalar], file: Path | None = None) -> str:
    """Return the command that makes the runs of experiments, from the user's `file` where there is one."""
    words = ["fedskew", "run", *names]
    if file:
        words += ["--experiments", str(file)]
    for key, value in overrides.items():
        if key == "results":
            words += ["--results", str(value)]
        else:
            words += ["--set", f"{key}={value}"]
    return shlex.join(words)
