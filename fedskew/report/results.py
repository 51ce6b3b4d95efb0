"""From an experiment to the records of its runs, and what is wrong with them."""

import math
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data import DataError, require
from data.readers.catalog import is_own, is_sites, members
from data.renamed_settings import renamed
from fedskew.experiments.experiments import Experiment
from fedskew.experiments.plan import Cell, plan
from fedskew.experiments.plan import runs as runs_of
from fedskew.formatting import site_names
from server_app.evaluation import OF_POSITIVE, PositiveClass, positive_class
from server_app.record import BY_CLASS, RoundRecord
from server_app.round_selection import Point, points_of
from server_app.run_folder import RunFolder
from server_app.run_settings import WITHOUT_EFFECT_ON_NUMBERS, RunSettings, Scalar

VERSIONS = ("code", "torch", "flwr", "numpy", "cpu")
"""What a run's numbers depend on beside its settings; a difference is told."""
SPREAD_PARTS = ("mean", "worst", "worst-decile")
"""What a number over the clients has beside each client's."""


def short_name(dataset: str) -> str:
    """Return a data set's name without the folders of the user's own files: domains:npz:/a/b.npz,... is b.npz, ..."""
    names = members(dataset)
    shown = [
        Path(name.partition(":")[2]).name if is_own(name) or is_sites(name) else name
        for name in names
    ]
    return ", ".join(shown) if shown != list(names) else dataset


def slug(name: str) -> str:
    """Return a name as a run's id has it."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


@dataclass(frozen=True)
class RunRecords:
    """What a run has left in its folder so far."""

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
        """The run's name without the user's path: a data set of one's own is called by its file or folder."""
        data = self.settings.data.dataset
        return (
            self.name.replace(slug(data)[:40], slug(short_name(data)), 1)
            if short_name(data) != data
            else self.name
        )

    @property
    def finished(self) -> bool:
        """Whether the run has a summary and the record of its last round; else another round would seem its last."""
        return self.summary is not None and self.settings.general.rounds not in self.lost

    @property
    def lost(self) -> list[int]:
        """The rounds without a record, of all that a finished run has had."""
        rounds = self.settings.general.rounds if self.summary is not None else 0
        return sorted({*range(1, rounds + 1)} - {record.round for record in self.records})

    @property
    def state(self) -> str:
        """finished, damaged, missing, or how far it is."""
        if self.summary is not None:
            return "finished" if self.finished else "damaged"
        rounds = self.settings.general.rounds
        return f"round {self.records[-1].round} of {rounds}" if self.records else "missing"

    @property
    def samples(self) -> Mapping[str, Any]:
        """Training and test samples by class and client; empty where there are too many, or an old run has none."""
        return self.origin.get("samples") or {}

    @property
    def agreement(self) -> Mapping[str, Any]:
        """Name, sha256 and sites of the federation.toml of a run between sites, whose samples nobody knows here."""
        return self.origin.get("agreement") or {}

    @property
    def data_name(self) -> str:
        """What the data are called: between sites by the federation, as several may have had its file in turn."""
        if agreement := self.agreement:
            return f"sites-{agreement['name']}-{agreement['sha256'][:8]}"
        return short_name(self.settings.data.dataset)

    @property
    def sites(self) -> list[str]:
        """The clients' names; none where there are too many, or an old run has none."""
        return list(self.agreement.get("sites", ())) or site_names(self.samples.get("clients", ()))

    @property
    def versions(self) -> dict[str, str]:
        """What the numbers depend on beside the settings."""
        versions = self.origin.get("versions", {})
        devices = {
            str(worker.get("device")) for record in self.records for worker in record.workers
        }
        return {
            **{name: str(versions.get(name, "unknown")) for name in VERSIONS},
            "device": "+".join(sorted(devices)),
        }


@dataclass(frozen=True)
class SeedResult:
    """One cell of the table for one seed: a finished run, and the rounds of one of its models."""

    cell: Cell
    run: RunRecords
    points: tuple[Point, ...]

    def number(self, point: Point, metric: str) -> float | None:
        """Return a number of the model, or of the round: NAME, or of one over the clients NAME.mean, NAME.worst,
        NAME.worst-decile or NAME.SITE. None where there is none, or NaN. Raises SettingError for an unknown site."""
        name, _, part = metric.partition(".")
        record, spread = point.record, point.numbers.spreads.get(name)
        of_round = {
            "loss": record.loss,
            "bytes-down": record.bytes_down,
            "bytes-up": record.bytes_up,
            **record.metrics,
        }
        value: object = {**of_round, **point.numbers.means}.get(metric)
        if metric in OF_POSITIVE and (positive := self.positive_class(point)) is not None:
            # Records of earlier versions have the mean over both classes there, and each class's own beside it.
            of_class = point.numbers.by_class.get(f"{metric}{BY_CLASS}", ())
            value = of_class[positive.label] if len(of_class) == 2 else None
        if spread is not None and part in SPREAD_PARTS:
            value = getattr(spread, part.replace("-", "_"))
        elif spread is not None and part and self.run.sites:
            value = spread.values[self.site(metric)]
        return float(value) if isinstance(value, int | float) and math.isfinite(value) else None

    def positive_class(self, point: Point) -> PositiveClass | None:
        """Return the positive class of two in a round's numbers; None for more classes."""
        names, numbers = self.run.settings.data.class_names, point.numbers
        stated = numbers.positive_class or self.run.settings.general.positive_class
        train_KC = self.run.samples.get("train", ())
        trained_C = [sum(counts) for counts in zip(*train_KC, strict=True)]
        tested_C = [sum(row) for row in numbers.confusion or ()]
        by_counts = positive_class(names, "", trained_C, tested_C)
        if stated not in names or (by_counts is not None and by_counts.name == stated):
            return by_counts
        return positive_class(names, stated)

    def site(self, metric: str) -> int:
        """Return the client that a number's last part names. Raises SettingError when it names none."""
        site, known = metric.partition(".")[2], self.run.sites
        rule = f"{site} is no client of {self.run.settings.data.dataset}, whose clients are {', '.join(known)}"
        require(site in known, f"experiments.yaml: {self.cell.experiment}: metric", metric, rule)
        return known.index(site)


@dataclass(frozen=True)
class ExperimentResults:
    """All that an experiment's runs have left."""

    experiment: Experiment
    cells: Sequence[Cell]
    """The plan."""
    runs: Mapping[str, RunRecords]
    """Every run of the plan by its id, whether there is anything of it or not."""
    measured: Mapping[tuple[str, str], Sequence[SeedResult]]
    """By row and column the finished runs, in the order of the seeds."""
    warnings: tuple[str, ...]
    command: str
    """What makes the missing runs."""

    @property
    def assumed(self) -> dict[str, str]:
        """What the paper leaves open, as it is in force in these runs; several values are those of columns and rows."""
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


def gather(
    experiment: Experiment, overrides: Mapping[str, Scalar], file: Path | None = None
) -> ExperimentResults:
    """Return what the runs of the experiment have left; only finished ones are measured. `file` is the stated one that
    the experiment may stand in.

    Raises as `plan` and `RunRecords.read` do.
    """
    cells = plan(experiment, overrides)
    runs = {settings.run_id: RunRecords.read(settings) for settings in runs_of(cells)}
    measured: dict[tuple[str, str], list[SeedResult]] = {}
    for cell in cells:
        run = runs[cell.run.run_id]
        if not run.finished:
            continue
        if points := points_of(run.records, cell.deployed):
            measured.setdefault((cell.row, cell.column), []).append(SeedResult(cell, run, points))
    counting = [key for key in overrides if key not in WITHOUT_EFFECT_ON_NUMBERS]
    changed = changes(plan(experiment), cells, counting) if counting else []
    warnings = (*changed, *state_warnings(runs.values()), *mismatches(cells, runs))
    return ExperimentResults(
        experiment, cells, runs, measured, warnings, command([experiment.name], overrides, file)
    )


def values_of(key: str, cells: Iterable[Cell]) -> str:
    """Return the values of a setting in the runs that have it, in the order of the cells."""
    values = (settings[key] for settings in (cell.run.flat() for cell in cells) if key in settings)
    return ", ".join(dict.fromkeys(map(str, values)))


def changes(experiment: Sequence[Cell], cells: Sequence[Cell], keys: Iterable[str]) -> list[str]:
    """Return a sentence for the settings that are not the experiment's: the paper's numbers are not for such runs."""
    pairs = {key: (values_of(key, cells), values_of(key, experiment)) for key in keys}
    differences = [
        f"{key} = {ours} instead of {stated}"
        for key, (ours, stated) in pairs.items()
        if ours != stated
    ]
    return [f"Differs from the experiment: {', '.join(differences)}."] if differences else []


def state_warnings(runs: Iterable[RunRecords]) -> list[str]:
    """Return a sentence for runs that are missing, not finished or damaged, and for those that left clients out."""
    runs = list(runs)
    missing = [run for run in runs if run.state == "missing"]
    said = (
        f"{len(missing)} of {len(runs)} runs are missing: {listed(run.label for run in missing)}."
    )
    warnings = [said] * bool(missing)
    for run in runs:
        if run.state == "damaged":
            rounds = f"{len(run.records)} of {run.settings.general.rounds} rounds"
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
    for run in runs:
        if run.summary and (failures := int(run.summary.get("failures", 0))):
            named = Counter(
                client for record in run.records for client in record.failures
            ).most_common()
            sites = run.agreement.get("sites") or {
                client: f"client {client}" for client, _ in named
            }
            who = listed(f"{sites[client]} ({times})" for client, times in named)
            warnings.append(
                f"{run.label}: {failures} times a client failed in a round and was left out of it: {who}."
            )
    return warnings


def mismatches(cells: Sequence[Cell], runs: Mapping[str, RunRecords]) -> list[str]:
    """Return a sentence for every difference between runs that stand beside each other or are averaged."""
    finished = {name: run for name, run in runs.items() if run.finished}
    warnings = []
    for run in finished.values():
        if not run.origin:
            warnings.append(
                f"{run.label}: settings.json is missing or damaged; its own command writes it anew."
            )
            continue
        planned, recorded = run.settings.flat(), renamed(run.origin["settings"])
        different = sorted(
            key for key in planned.keys() | recorded.keys() if planned.get(key) != recorded.get(key)
        )
        if different := [key for key in different if key not in WITHOUT_EFFECT_ON_NUMBERS]:
            warnings.append(
                f"{run.label}: its settings.json differs from the experiment in {', '.join(different)}."
            )
        made_with = [run.origin["versions"], *run.origin.get("earlier-versions", ())]
        if changed := [
            name for name in VERSIONS if len({str(version.get(name)) for version in made_with}) > 1
        ]:
            warnings.append(
                f"{run.label}: begun and finished with different {', '.join(changed)}, see its settings.json."
            )
    paired: dict[tuple[str, int], dict[str, RunRecords]] = {}
    for cell in cells:
        if cell.run.run_id in finished:
            paired.setdefault((cell.column, cell.seed), {})[cell.run.run_id] = finished[
                cell.run.run_id
            ]
    for (column, seed), group in paired.items():
        where = f"{column}, seed {seed}".removeprefix(", ")
        hashes = grouped(
            group.values(), lambda run: str(run.origin.get("partition-hash", "unknown"))[:12]
        )
        if len(hashes) > 1:
            warnings.append(
                f"Not the same samples at the same clients ({where}): partition {versus(hashes)}."
            )
    for name in (*VERSIONS, "device"):
        values = grouped(finished.values(), lambda run, name=name: run.versions[name])
        if len(values) > 1:
            warnings.append(f"Runs were made with different {name}: {versus(values)}.")
    return warnings


def grouped(runs: Iterable[RunRecords], key: Any) -> dict[str, list[str]]:
    """Return the runs' names by what `key` says of them."""
    result: dict[str, list[str]] = {}
    for run in runs:
        result.setdefault(key(run), []).append(run.label)
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
    """Return the command that makes the runs of experiments, of a file that was stated."""
    words = ["fedskew", "run", *names]
    if file:
        words += ["--experiments", str(file)]
    for key, value in overrides.items():
        if key == "results":
            words += ["--results", str(value)]
        else:
            words += ["--set", f"{key}={value}"]
    return shlex.join(words)
