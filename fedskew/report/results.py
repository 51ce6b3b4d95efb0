"""The results of an experiment: its runs as their folders have them, by row, column and seed."""

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from data import InputError, SettingError
from fedskew.experiments import Experiment
from fedskew.experiments.claims import Better
from fedskew.experiments.plan import Cell, Tuned, plan, trials, values_of_rows
from fedskew.experiments.plan import runs as runs_of
from fedskew.formatting import plural
from fedskew.report.format import chance_of, named, plain, scale_of
from fedskew.report.inference import Estimate
from fedskew.report.runs import Run, values_of, warnings_of
from server_app.evaluation import PositiveClass, positive_class
from server_app.round_selection import Point, points_of, select
from server_app.run_folder import Predictions, RunFolder
from server_app.run_settings import WITHOUT_EFFECT_ON_NUMBERS, RunSettings, Scalar

SPREAD_PARTS = {"mean": "mean", "worst": "worst", "worst-decile": "worst_decile"}
"""What a number over the clients has beside each client's."""
ROUNDING = 1e-9
"""A mean of recalls may round upwards."""


@dataclass(frozen=True)
class SeedResult:
    """One cell of the table for one seed: a finished run, the rounds of one of its models, and the number shown."""

    cell: Cell
    run: Run
    points: tuple[Point, ...]
    metric: str = ""
    selection: str = "last"
    """Of which rounds the number is."""

    @property
    def seed(self) -> int:
        return self.cell.seed

    @property
    def selected(self) -> Sequence[Point]:
        """The rounds that the number is of; none where the run has no such rounds."""
        return select(self.points, self.selection)

    @property
    def number(self) -> float | None:
        """The mean over the rounds that are selected, in percent where it is a share."""
        mean = self.mean(self.metric)
        return None if mean is None else mean * scale_of(self.metric)

    @property
    def by_round(self) -> dict[int, float]:
        """The number by evaluated round, of the rounds that have it, in percent where it is a share."""
        values = {point.round: self.value(point, self.metric) for point in self.points}
        scale = scale_of(self.metric)
        return {round: scale * value for round, value in values.items() if value is not None}

    @property
    def chance(self) -> float | None:
        """The number of a constant prediction; None where it depends on more than how many classes are tested."""
        tested = [0]
        for point in self.selected:
            tested.append(sum(not math.isnan(recall) for recall in point.numbers.recall))
        # Without recalls all classes count as tested.
        return chance_of(self.metric, max(tested) or self.run.settings.data.num_classes)

    def mean(self, metric: str) -> float | None:
        """Return the mean of a number over the rounds that are selected; None where one of them does not have it."""
        values = [self.value(point, metric) for point in self.selected]
        known = [value for value in values if value is not None]
        # A round that diverged has no number.
        return math.fsum(known) / len(known) if known and len(known) == len(values) else None

    def value(self, point: Point, metric: str) -> float | None:
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
            traffic = {"bytes-down": record.bytes_down, "bytes-up": record.bytes_up}
            of_round = {"loss": record.loss, **traffic, **record.metrics}
            value = (of_round | dict(point.numbers.means)).get(metric)
        if isinstance(value, int | float) and math.isfinite(value):
            return float(value)
        return None

    @property
    def positive_class(self) -> PositiveClass | None:
        """The class of two that AUPRC, sensitivity and specificity are about; None for more classes."""
        chosen = self.points[-1].numbers.positive_class
        return positive_class(self.run.settings.data.class_names, chosen) if chosen else None

    @property
    def predictions(self) -> Predictions | None:
        """The final model's predictions on the test samples; None where the run kept none."""
        return RunFolder(self.run.settings.folder).predictions(self.cell.deployed)

    def site(self, metric: str) -> int:
        """Return the client that a number's last part names. Raises SettingError when it names none."""
        site = metric.partition(".")[2]
        sites = self.run.sites
        if site not in sites:
            dataset = self.run.settings.data.dataset
            rule = f"{site} is no client of {dataset}, whose clients are {', '.join(sites)}"
            key = f"experiments.yaml: {self.cell.experiment}: metric"
            raise SettingError(key, metric, rule)
        return sites.index(site)


@dataclass(frozen=True)
class RowResults:
    """One row of the table in one column, by one number."""

    row: str
    column: str
    metric: str
    selection: str
    runs: Sequence[SeedResult]
    """The finished ones, in the order of the seeds."""
    diverged: Mapping[int, Mapping[str, Any]]
    """By seed how runs diverged."""
    lacking: Mapping[int, str]
    """By seed the model that the row is about, where a finished run does not have it."""
    seeds: int
    """How many the table has."""

    def by(self, metric: str, selection: str = "") -> "RowResults":
        """Return the row by another number, of the same rounds where none are named."""
        selection = selection or self.selection
        runs = [replace(run, metric=metric, selection=selection) for run in self.runs]
        return replace(self, metric=metric, selection=selection, runs=runs)

    def of_seed(self, seed: int) -> SeedResult | None:
        """Return the finished run of one seed; None where there is none."""
        return next((run for run in self.runs if run.seed == seed), None)

    @property
    def numbers(self) -> dict[int, float]:
        """The number by seed, of the seeds that have it."""
        by_seed = {run.seed: run.number for run in self.runs}
        return {seed: number for seed, number in by_seed.items() if number is not None}

    @property
    def estimate(self) -> Estimate | None:
        """The number over the seeds that have it; None where none has."""
        return Estimate(self.numbers) if self.numbers else None

    @property
    def divergence(self) -> str:
        """In how many seeds the row diverged: "fedavg diverged in 1 of 3 seeds"; empty where it did in none."""
        if not self.diverged:
            return ""
        return f"{self.row} diverged in {len(self.diverged)} of {plural(self.seeds, 'seed')}"

    @property
    def at_chance(self) -> str:
        """The mean beside chance where it is no better: "40.3 where chance is 50.0 percent"; empty where it is."""
        chances = [run.chance for run in self.runs if run.chance is not None]
        mean = self.estimate.mean if self.estimate else math.inf
        if not chances or mean > min(chances) + ROUNDING:
            return ""
        return f"{plain(mean)} where chance is {plain(min(chances))} percent"

    def seeds_with(self, n: int) -> str:
        """Return that n of the seeds have a number, and how many diverged; empty where all have one."""
        if n == self.seeds:
            return ""
        diverged = f", {len(self.diverged)} diverged" if self.diverged else ""
        return f"{n} of {plural(self.seeds, 'seed')}{diverged}"

    @property
    def unfit(self) -> str:
        """Why the row leads no headline and is never the best; empty where it may."""
        return self.divergence or (f"{self.row} is no better than chance" if self.at_chance else "")


@dataclass(frozen=True)
class ColumnResults:
    """One column of the table: all rows by one number."""

    name: str
    metric: str
    selection: str
    rows: Sequence[RowResults]
    reference: RowResults
    """The row that the others are compared with."""

    @property
    def measured(self) -> list[RowResults]:
        """The rows with finished runs."""
        return [row for row in self.rows if row.runs]

    @property
    def runs(self) -> list[SeedResult]:
        """The finished runs, row by row."""
        return [*chain.from_iterable(row.runs for row in self.rows)]

    def titled(self, text: str) -> str:
        """Return a caption or sentence with the column's name before it; a single column has none."""
        return named(self.name) + text


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
    warnings: tuple[str, ...] = ()
    command: str = ""
    """The command that makes the missing runs."""
    tuned: Sequence[Tuned] = ()
    """What the trials gave, by row and column; empty where nothing is tuned."""

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

    @property
    def reference(self) -> str:
        """The row that the others are compared with.

        That is the experiment's own choice, else plain FedAvg, else a claim's row, else the first.
        """
        experiment = self.experiment
        if experiment.reaches:
            return experiment.reaches
        for row in experiment.rows:
            if row.method == "fedavg" and not row.settings:
                return row.label
        than = [claim.than for claim in experiment.claims if isinstance(claim, Better)]
        return than[0] if than else experiment.rows[0].label

    @property
    def columns(self) -> list[ColumnResults]:
        """The table, column by column."""
        return [self.column(name) for name in self.experiment.columns]

    def column(self, name: str) -> ColumnResults:
        """Return a column by the number that the table shows there."""
        experiment = self.experiment
        return ColumnResults(
            name=name,
            metric=experiment.metric_of(name),
            selection=experiment.selection,
            rows=[self.of(row.label, name) for row in experiment.rows],
            reference=self.of(self.reference, name),
        )

    def of(self, row: str, column: str, metric: str = "", selection: str = "") -> RowResults:
        """Return a row in a column, by the table's number where none is named."""
        runs = self.measured.get((row, column), ())
        diverged = {}
        lacking = {}
        for cell in self.cells:
            if (cell.row, cell.column) != (row, column):
                continue
            run = self.runs[cell.run.run_id]
            if run.divergence is not None:
                diverged[cell.seed] = run.divergence
            elif run.finished:
                lacking[cell.seed] = cell.deployed
        for measured in runs:
            lacking.pop(measured.seed, None)
        own = self.experiment.selection
        found = RowResults(row, column, "", own, runs, diverged, lacking, len(self.seeds))
        return found.by(metric or self.experiment.metric_of(column), selection)


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
    tuned = tuned_by(trials(experiment, overrides), experiment)
    cells = plan(experiment, overrides, tuned=values_of_rows(tuned))
    runs = {}
    for settings in runs_of(cells):
        run = Run.read(settings)
        if kept is not None and not run.finished:
            run = kept(settings) or run
        runs[settings.run_id] = run
    warnings = warnings_of(cells, runs)
    unchanged: Sequence[Cell] = ()
    # Without the settings it may be no plan, as where a method needs their model.
    with suppress(InputError):
        unchanged = plan(experiment) if overrides else ()
    differing = []
    for key in overrides if unchanged else ():
        ours, planned = values_of(key, cells), values_of(key, unchanged)
        if ours != planned and key not in WITHOUT_EFFECT_ON_NUMBERS:
            differing.append(f"{key} = {ours} instead of {planned}")
    states_settings = experiment.settings or experiment.assumed or any(experiment.columns.values())
    # The paper's numbers are not for such runs. Of methods named on the command line there are none to differ from.
    if differing and states_settings:
        warnings.insert(0, f"Differs from the experiment: {', '.join(differing)}.")
    return ExperimentResults(
        experiment=experiment,
        cells=cells,
        runs=runs,
        measured=measured_runs(cells, runs),
        warnings=tuple(warnings),
        command=command([experiment.name], overrides, file),
        tuned=tuned,
    )


def measured_runs(
    cells: Sequence[Cell], runs: Mapping[str, Run]
) -> dict[tuple[str, str], list[SeedResult]]:
    """Return the finished runs of cells by row and column."""
    measured: dict[tuple[str, str], list[SeedResult]] = {}
    for cell in cells:
        result = seed_result(cell, runs[cell.run.run_id])
        if result is not None:
            measured.setdefault((cell.row, cell.column), []).append(result)
    return measured


def seed_result(cell: Cell, run: Run, selection: str = "last") -> SeedResult | None:
    """Return a finished run as a cell's result; None for another run, and without the model that the cell deploys."""
    points = points_of(run.records, cell.deployed) if run.finished else ()
    return SeedResult(cell, run, points, selection=selection) if points else None


def tuned_by(tried: Sequence[Cell], experiment: Experiment) -> list[Tuned]:
    """Return what trials gave, in the order of the experiment's columns and rows; only finished runs count."""
    by_cell: dict[tuple[str, str], list[Cell]] = {}
    for trial in tried:
        by_cell.setdefault((trial.row, trial.column), []).append(trial)
    found = []
    for (row, column), of_cell in by_cell.items():
        metric = experiment.metric_of(column)
        scores = {}
        diverged = []
        for trial in of_cell:
            run = Run.read(trial.run)
            result = seed_result(trial, run, experiment.selection)
            number = result.mean(metric) if result else None
            scores[trial.tried] = math.nan if number is None else number
            if run.divergence is not None:
                diverged.append(trial.tried)
        found.append(Tuned(row, column, scores, metric, diverged))
    return found


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
