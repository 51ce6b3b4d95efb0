"""The results of an experiment: its runs as their folders have them, by row, column and seed."""

import itertools
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
from fedskew.report.result_warnings import changes, run_warnings, values_of
from fedskew.report.run_records import Run
from server_app.evaluation import PositiveClass, positive_class
from server_app.predictions import Predictions, read_predictions
from server_app.round_selection import Point, points_of, select
from server_app.run_folder import RunFolder
from server_app.run_settings import RunSettings, Scalar

SPREAD_PARTS = {"mean": "mean", "worst": "worst", "worst-decile": "worst_decile"}
"""What a number over the clients has beside each client's."""
LEAST_CLIENTS_OF_DECILE = 20
"""Of fewer clients the lowest tenth is one client, and is called the worst client."""


@dataclass(frozen=True)
class SeedResult:
    """One cell of the table for one seed: a finished run, and the rounds of one of its models."""

    cell: Cell
    run: Run
    points: tuple[Point, ...]

    def number(self, point: Point, metric: str) -> float | None:
        """Return a number of the model, or of the round: NAME, or of one over the clients NAME.mean, NAME.worst,
        NAME.worst-decile or NAME.SITE. None where there is none, or NaN. Raises SettingError for an unknown site."""
        name, _, part = metric.partition(".")
        spread = point.numbers.spreads.get(name)
        value: object = None
        if spread is not None and part in SPREAD_PARTS:
            value = getattr(spread, SPREAD_PARTS[part])
        elif spread is not None and part and self.run.sites:
            site = self.site(metric)
            # Kept records have the clients' values of some rounds alone.
            value = spread.values[site] if spread.values else None
        else:
            record = point.record
            of_round = {
                "loss": record.loss,
                "bytes-down": record.bytes_down,
                "bytes-up": record.bytes_up,
            }
            value = {**of_round, **record.metrics, **point.numbers.means}.get(metric)
        if isinstance(value, int | float) and math.isfinite(value):
            return float(value)
        return None

    def selected(self, selection: str, metric: str) -> float | None:
        """Return the mean of a number over the rounds that are selected; None where one of them does not have it."""
        numbers = []
        for point in select(self.points, selection):
            number = self.number(point, metric)
            if number is None:  # the round diverged, or does not have it
                return None
            numbers.append(number)
        return math.fsum(numbers) / len(numbers) if numbers else None

    @property
    def positive_class(self) -> PositiveClass | None:
        """The class of two that AUPRC, sensitivity and specificity are about; None for more classes."""
        chosen = self.points[-1].numbers.positive_class
        return positive_class(self.run.settings.data.class_names, chosen) if chosen else None

    @property
    def predictions(self) -> Predictions | None:
        """The final model's predictions on the test samples; None where the run kept none."""
        return read_predictions(RunFolder(self.run.settings.folder), self.cell.deployed)

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
    runs: Mapping[str, Run]
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
    def finished(self) -> list[Run]:
        return [run for run in self.runs.values() if run.finished]

    @property
    def lacks_runs(self) -> bool:
        """Whether there are runs to make: that have neither finished nor diverged."""
        return not all(run.has_ended for run in self.runs.values())

    @property
    def has_ended(self) -> bool:
        """Whether any run has finished or diverged, so that there is something to report."""
        return any(run.has_ended for run in self.runs.values())

    def of(self, row: str, column: str) -> Sequence[SeedResult]:
        """Return the finished runs of a row in a column."""
        return self.measured.get((row, column), ())

    def diverged(self, row: str, column: str) -> dict[int, Mapping[str, Any]]:
        """Return by seed how the runs of a row in a column diverged."""
        by_seed = {}
        for cell in self.cells:
            if (cell.row, cell.column) != (row, column):
                continue
            divergence = self.runs[cell.run.run_id].divergence
            if divergence is not None:
                by_seed[cell.seed] = divergence
        return by_seed

    def in_column(self, column: str) -> list[SeedResult]:
        """Return the finished runs of a column, row by row."""
        groups = [self.of(row.label, column) for row in self.experiment.rows]
        return list(itertools.chain.from_iterable(groups))


def gather(
    experiment: Experiment,
    overrides: Mapping[str, Scalar],
    file: Path | None = None,
    kept: Callable[[RunSettings], Run | None] | None = None,
) -> ExperimentResults:
    """Return the records of the experiment's runs; only finished ones are measured.

    Args:
        experiment: to report.
        overrides: settings that replace the file's.
        file: the user's file of experiments, which `command` then names.
        kept: returns the kept run of settings; asked where the results folder has no finished one.

    Raises:
        SettingError, DataError: as `plan`, `Run.read` and `kept` raise them.
    """
    tried = trials(experiment, overrides)
    tuned = tuned_by(tried, experiment)
    cells = plan(experiment, overrides, tuned=values_of_rows(tuned))
    runs = {}
    for settings in runs_of(cells):
        run = Run.read(settings)
        if kept is not None and not run.finished:
            run = kept(settings) or run
        runs[settings.run_id] = run
    differing = changes(plan(experiment), cells, overrides) if overrides else []
    return ExperimentResults(
        experiment=experiment,
        cells=cells,
        runs=runs,
        measured=measured_runs(cells, runs),
        warnings=(*differing, *run_warnings(cells, runs)),
        command=command([experiment.name], overrides, file),
        tuned=tuned,
        trial_runs={trial.cell.run.run_id for trial in tried},
    )


def measured_runs(
    cells: Sequence[Cell], runs: Mapping[str, Run]
) -> dict[tuple[str, str], list[SeedResult]]:
    """Return the finished runs of cells by row and column."""
    measured: dict[tuple[str, str], list[SeedResult]] = {}
    for cell in cells:
        run = runs[cell.run.run_id]
        points = points_of(run.records, cell.deployed) if run.finished else ()
        if points:
            of_cell = measured.setdefault((cell.row, cell.column), [])
            of_cell.append(SeedResult(cell, run, points))
    return measured


def tuned_by(tried: Sequence[TuningRun], experiment: Experiment) -> list[Tuned]:
    """Return what trials gave, in the order of the experiment's columns and rows; only finished runs count."""
    # By row and column, the number of each value that was tried.
    numbers: dict[tuple[str, str], dict[Scalar, float]] = {}
    diverged: dict[tuple[str, str], list[Scalar]] = {}
    for trial in tried:
        run = Run.read(trial.cell.run)
        place = (trial.row, trial.column)
        number = None
        if run.finished:
            result = SeedResult(trial.cell, run, points_of(run.records, trial.cell.deployed))
            number = result.selected(experiment.selection, experiment.metric_of(trial.column))
        numbers.setdefault(place, {})[trial.value] = math.nan if number is None else number
        if run.divergence is not None:
            diverged.setdefault(place, []).append(trial.value)
    return [
        Tuned(*place, of_cell, experiment.metric_of(place[1]), diverged.get(place, ()))
        for place, of_cell in numbers.items()
    ]


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
