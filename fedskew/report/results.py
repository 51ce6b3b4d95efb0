"""Reads the records of an experiment's runs, and warns about missing, damaged and differing ones."""

import math
import re
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data import DataError, require
from data.readers.catalog import is_own, is_sites, members
from data.renamed_settings import renamed
from fedskew.experiments.experiments import Experiment
from fedskew.experiments.plan import Cell, plan
from fedskew.experiments.plan import runs as runs_of
from fedskew.experiments.tuning import Tuned, TuningRun, trials, values_of_rows
from fedskew.formatting import site_names
from server_app.evaluation import OF_POSITIVE, PositiveClass, positive_class
from server_app.record import BY_CLASS, RoundRecord
from server_app.round_selection import Point, points_of, select
from server_app.run_folder import RunFolder, rounds_run, why_ended_early
from server_app.run_settings import WITHOUT_EFFECT_ON_NUMBERS, RunSettings, Scalar
from server_app.settings import defaults

VERSIONS = ("code", "torch", "flwr", "numpy", "cpu")
"""What a run's numbers depend on beside its settings; a difference is a warning."""
SPREAD_PARTS = ("mean", "worst", "worst-decile")
"""What a number over the clients has beside each client's."""


def short_name(dataset: str) -> str:
    """Return a data set's name without the folders of the user's own files: domains:npz:/a/b.npz,... is b.npz, ..."""
    names = list(members(dataset))
    shown = []
    for name in names:
        if is_own(name) or is_sites(name):
            _, _, path = name.partition(":")
            shown.append(Path(path).name)
        else:
            shown.append(name)
    return ", ".join(shown) if shown != names else dataset


def slug(name: str) -> str:
    """Return a name as a run's id has it."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


@dataclass(frozen=True)
class RunRecords:
    """What a run has written to its folder so far."""

    settings: RunSettings
    origin: Mapping[str, Any]
    """settings.json: settings, partition-hash, versions, samples; empty before the first round."""
    records: Sequence[RoundRecord]
    summary: Mapping[str, Any] | None
    """None before the run is finished."""

    @staticmethod
    def read(settings: RunSettings) -> "RunRecords":
        """Return what is in the folder of a run, which need not be there. Raises DataError for what is no file."""
        folder = RunFolder(settings.folder)
        try:
            return RunRecords(settings, folder.origin(), folder.rounds(), folder.summary())
        except OSError as error:
            raise DataError(f"{error.filename}: cannot be read: {error.strerror}") from error

    @property
    def name(self) -> str:
        return self.settings.run_id

    @property
    def label(self) -> str:
        """The run's name without the user's path: the user's own data set is called by its file or folder."""
        data = self.settings.data.dataset
        short = short_name(data)
        if short == data:
            return self.name
        in_name = slug(data)[:40]  # run ids have so many characters of it
        return self.name.replace(in_name, slug(short), 1)

    @property
    def rounds(self) -> int:
        """The rounds that the run has when it is finished: fewer than in its settings where it ended early."""
        return rounds_run(self.summary, self.settings.general.rounds)

    @property
    def finished(self) -> bool:
        """Whether the run has a summary and the record of its last round; else another round would seem its last."""
        return self.summary is not None and self.rounds not in self.lost

    @property
    def lost(self) -> list[int]:
        """The rounds without a record, of all that a finished run has had."""
        rounds = self.rounds if self.summary is not None else 0
        recorded = {record.round for record in self.records}
        return [round for round in range(1, rounds + 1) if round not in recorded]

    @property
    def state(self) -> str:
        """finished, damaged, missing, or how far it is."""
        if self.summary is not None:
            return "finished" if self.finished else "damaged"
        rounds = self.settings.general.rounds
        if self.records:
            return f"round {self.records[-1].round} of {rounds}"
        return "missing"

    @property
    def ended(self) -> str:
        """Why a finished run has fewer rounds than its settings ask for; empty where it has all of them."""
        reason = why_ended_early(self.summary)
        if not reason:
            return ""
        return f"round {self.rounds} of {self.settings.general.rounds} was the last, {reason}"

    @property
    def samples(self) -> Mapping[str, Any]:
        """Training and test samples by class and client; empty where there are too many, or an old run has none."""
        return self.origin.get("samples") or {}

    @property
    def agreement(self) -> Mapping[str, Any]:
        """Name, sha256 and sites of the federation.toml of a run between sites, whose samples are not recorded here."""
        return self.origin.get("agreement") or {}

    @property
    def data_name(self) -> str:
        """The data's name: between sites the federation's, as its file can change between runs."""
        if agreement := self.agreement:
            return f"sites-{agreement['name']}-{agreement['sha256'][:8]}"
        return short_name(self.settings.data.dataset)

    @property
    def sites(self) -> list[str]:
        """The clients' names; none where there are too many, or an old run has none."""
        of_agreement = list(self.agreement.get("sites", ()))
        return of_agreement or site_names(self.samples.get("clients", ()))

    @property
    def versions(self) -> dict[str, str]:
        """What the numbers depend on beside the settings."""
        recorded = self.origin.get("versions", {})
        versions = {name: str(recorded.get(name, "unknown")) for name in VERSIONS}
        devices: set[str] = set()
        for record in self.records:
            devices.update(str(worker.get("device")) for worker in record.workers)
        versions["device"] = "+".join(sorted(devices))
        return versions


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

    def of(self, row: str, column: str) -> Sequence[SeedResult]:
        """Return the finished runs of a row in a column."""
        return self.measured.get((row, column), ())

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
    for trial in tried:
        run = runs[trial.cell.run.run_id]
        of_cell = numbers.setdefault((trial.row, trial.column), {})
        of_cell[trial.value] = score(trial, run, experiment)
    return [
        Tuned(row, column, of_cell, experiment.metric_of(column))
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


def trial_warnings(tuned: Iterable[Tuned]) -> list[str]:
    """Return a sentence for trials that have not finished, and one for rows of which no trial has."""
    lacking = []
    without_value = []
    for one in tuned:
        name = f"{one.column}: {one.row}" if one.column else one.row
        unfinished = [str(value) for value, number in one.scores.items() if math.isnan(number)]
        if one.value is None:
            without_value.append(name)
        elif unfinished:
            lacking.append(f"{name} ({', '.join(unfinished)})")
    warnings = []
    if without_value:
        warnings.append(f"No trial has finished, so the row is left out: {listed(without_value)}.")
    if lacking:
        warnings.append(f"Trials that have not finished do not count: {listed(lacking, 8)}.")
    return warnings


def values_of(key: str, cells: Iterable[Cell]) -> str:
    """Return the values of a setting in the runs that have it, in the order of the cells."""
    values = []
    for cell in cells:
        settings = cell.run.flat()
        if key in settings:
            values.append(str(settings[key]))
    return ", ".join(dict.fromkeys(values))


def changes(experiment: Sequence[Cell], cells: Sequence[Cell], keys: Iterable[str]) -> list[str]:
    """Return a sentence for the settings that are not the experiment's: the paper's numbers are not for such runs."""
    differences = []
    for key in keys:
        ours = values_of(key, cells)
        planned = values_of(key, experiment)
        if ours != planned:
            differences.append(f"{key} = {ours} instead of {planned}")
    if differences:
        return [f"Differs from the experiment: {', '.join(differences)}."]
    return []


def state_warnings(runs: Iterable[RunRecords]) -> list[str]:
    """Return a sentence for runs that are missing, not finished or damaged, and for those that left clients out."""
    runs = list(runs)
    warnings = []
    missing = [run.label for run in runs if run.state == "missing"]
    if missing:
        warnings.append(f"{len(missing)} of {len(runs)} runs are missing: {listed(missing)}.")
    for run in runs:
        if run.state == "damaged":
            rounds = f"{len(run.records)} of {run.rounds} rounds"
            warnings.append(
                f"{run.label}: rounds.jsonl is damaged, {rounds}: left out; its own command mends it."
            )
        elif run.finished and run.lost:
            rounds = ", ".join(map(str, run.lost[:10]))
            if len(run.lost) > 10:
                rounds += ", ..."
            warnings.append(
                f"{run.label}: the records of rounds {rounds} are lost; curves, bests and means lack them."
            )
        elif run.state not in ("missing", "finished"):
            warnings.append(f"Unfinished and left out: {run.label}, {run.state}.")
    warnings += filter(None, map(failure_warning, runs))
    return warnings


def failure_warning(run: RunRecords) -> str:
    """Return a sentence for the clients that failed and were left out of rounds; empty where none did."""
    failures = int(run.summary.get("failures", 0)) if run.summary else 0
    if not failures:
        return ""
    times_of = Counter[int]()
    for record in run.records:
        times_of.update(record.failures.keys())
    sites = run.agreement.get("sites")
    clients = []
    for client, times in times_of.most_common():
        name = sites[client] if sites else f"client {client}"
        clients.append(f"{name} ({times})")
    times_failed = f"{failures} times a client failed in a round and was left out of it"
    return f"{run.label}: {times_failed}: {listed(clients)}."


def mismatches(cells: Sequence[Cell], runs: Mapping[str, RunRecords]) -> list[str]:
    """Return a sentence for every difference between runs that are compared or averaged."""
    finished = [run for run in runs.values() if run.finished]
    warnings = []
    for run in finished:
        warnings += origin_warnings(run)

    paired: dict[tuple[str, int], dict[str, RunRecords]] = {}
    for cell in cells:
        run = runs[cell.run.run_id]
        if run.finished:
            paired.setdefault((cell.column, cell.seed), {})[run.name] = run
    for (column, seed), group in paired.items():
        hashes = grouped(group.values(), partition_hash)
        if len(hashes) > 1:
            where = f"{column}, seed {seed}".removeprefix(", ")
            warnings.append(
                f"Not the same samples at the same clients ({where}): partition {versus(hashes)}."
            )

    for name in (*VERSIONS, "device"):
        values = grouped(finished, version_of(name))
        if len(values) > 1:
            warnings.append(f"Runs were made with different {name}: {versus(values)}.")
    return warnings


def origin_warnings(run: RunRecords) -> list[str]:
    """Return a sentence for what is wrong with a run's settings.json."""
    if not run.origin:
        return [
            f"{run.label}: settings.json is missing or damaged; its own command writes it anew."
        ]
    warnings = []
    planned = run.settings.flat()
    recorded = renamed(run.origin["settings"])
    keys = (planned.keys() | recorded.keys()) - WITHOUT_EFFECT_ON_NUMBERS
    different = []
    for key in sorted(keys):
        # A run of older code does not know newer settings: it ran with what is their default.
        default = defaults().get(key)
        if planned.get(key, default) != recorded.get(key, default):
            different.append(key)
    if different:
        warnings.append(
            f"{run.label}: its settings.json differs from the experiment in {', '.join(different)}."
        )
    made_with = [run.origin["versions"], *run.origin.get("earlier-versions", ())]
    changed = []
    for name in VERSIONS:
        values = {str(versions.get(name)) for versions in made_with}
        if len(values) > 1:
            changed.append(name)
    if changed:
        warnings.append(
            f"{run.label}: begun and finished with different {', '.join(changed)}, see its settings.json."
        )
    return warnings


def version_of(name: str) -> Callable[[RunRecords], str]:
    """Return what gives the version `name` of a run."""
    return lambda run: run.versions[name]


def partition_hash(run: RunRecords) -> str:
    """Return the first digits of the hash of who has which samples."""
    return str(run.origin.get("partition-hash", "unknown"))[:12]


def grouped(runs: Iterable[RunRecords], key: Callable[[RunRecords], str]) -> dict[str, list[str]]:
    """Return the runs' names by their key."""
    result: dict[str, list[str]] = {}
    for run in runs:
        labels = result.setdefault(key(run), [])
        labels.append(run.label)
    return result


def versus(groups: Mapping[str, Sequence[str]]) -> str:
    """Return every value with the runs that have it."""
    return "; ".join(f"{value} in {listed(names)}" for value, names in groups.items())


def listed(names: Iterable[str], most: int = 4) -> str:
    """Return the first names, and how many more there are."""
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


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
