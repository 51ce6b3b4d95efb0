"""What the runs of a plan take: seconds and bytes of the rounds that are left, by rounds that were observed.

`fedskew run --dry-run` prints this. The rounds of a run cost what those of any other run with the same settings cost,
but for seed, learning rates and the like; `--probe` first trains one round of each training that nobody has observed.
"""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.table import Table

from data.dataset import missing
from data.renamed_settings import stored
from fedskew.formatting import duration, in_bytes, named, numeric, plural, terminal_table
from server_app.record import RoundRecord
from server_app.run_folder import RunFolder, rounds_run
from server_app.run_settings import WITHOUT_EFFECT_ON_NUMBERS, RunSettings, Scalar, model_line

PROBES = "probes"
"""The folder of the probes' runs, below that of the results."""
WITHOUT_EFFECT_ON_COSTS = (WITHOUT_EFFECT_ON_NUMBERS - {"device"}) | {
    "seed", "rounds", "evaluate-every", "keep-best", "patience", "alpha",
    "learning-rate", "learning-rate-decay", "learning-rate-decay-every",
    "schedule", "schedule-unit", "schedule-rounds", "warm-up", "second-momentum", "epsilon",
    "momentum", "weight-decay", "server-learning-rate", "server-momentum", "server-momentum-form",
    "server-optimizer", "server-second-momentum", "server-adaptivity",
}  # fmt: skip
"""Settings that change neither the seconds nor the bytes of a round."""


@dataclass(frozen=True)
class Cost:
    """What the rounds that a run has left take."""

    seconds: float
    up: float
    """Bytes from the clients to the server."""
    down: float
    """Bytes from the server to the clients."""


@dataclass(frozen=True)
class PlannedRun:
    """A run of the plan."""

    run: str
    """The run id."""
    label: str
    rounds: int
    left: int
    """Rounds to go at most: patience may end a run earlier."""
    missing: str
    """Why its data are missing; empty where they are there."""
    cost: Cost | None
    """None where no round was observed."""


def rounds_left(settings: RunSettings) -> int:
    """Return the rounds that a run has to go at most; 0 for one that diverged, as it is not repeated.

    A run without rounds computes its heads in one step, which counts as a round.
    """
    rounds = settings.general.rounds
    if settings.general.overwrite:
        return max(rounds, 1)
    folder = RunFolder(settings.folder)
    if folder.divergence() is not None:
        return 0
    return max(rounds_run(folder.summary(), rounds), 1) - len(folder.rounds())


def cost_settings(settings: Mapping[str, Scalar]) -> frozenset[tuple[str, Scalar]]:
    """Return the settings that decide what a round costs, of a run's settings by key."""
    items = settings.items()
    return frozenset(item for item in items if item[0] not in WITHOUT_EFFECT_ON_COSTS)


class ObservedRounds:
    """The records of the rounds in a results folder, by what decides their cost."""

    def __init__(self, results: str) -> None:
        self.folders: dict[frozenset[tuple[str, Scalar]], list[RunFolder]] = {}
        for pattern in ("*/settings.json", f"{PROBES}/*/settings.json"):
            for file in Path(results).glob(pattern):
                folder = RunFolder(file.parent)
                recorded = folder.origin().get("settings", {})
                self.folders.setdefault(cost_settings(recorded), []).append(folder)

    def like(self, settings: RunSettings) -> list[RoundRecord]:
        """Return the records of rounds that cost what the run's rounds do."""
        records = []
        for folder in self.folders.get(cost_settings(stored(settings.flat())), []):
            records += folder.rounds()
        return records

    def cost(self, settings: RunSettings, left: int) -> Cost | None:
        """Return what a run's last `left` rounds take; None where no such round was observed."""
        if not left:
            return Cost(0.0, 0.0, 0.0)
        records = self.like(settings)
        if not records:
            return None
        rounds = settings.general.rounds
        last_rounds = range(rounds - left + 1, rounds + 1)
        evaluated = sum(settings.general.is_evaluated(round) for round in last_rounds)
        seconds = [record.seconds.round - record.seconds.evaluation for record in records]
        evaluations = [record.seconds.evaluation for record in records if record.models]
        return Cost(
            seconds=left * statistics.fmean(seconds)
            + evaluated * statistics.fmean(evaluations or [0.0]),
            up=left * statistics.fmean(record.bytes_up for record in records),
            down=left * statistics.fmean(record.bytes_down for record in records),
        )


def probes(planned: Sequence[RunSettings]) -> list[RunSettings]:
    """Return a run of one round for each distinct training whose rounds nobody has observed."""
    observed = ObservedRounds(planned[0].general.results)
    chosen: dict[frozenset[tuple[str, Scalar]], RunSettings] = {}
    for settings in planned:
        if rounds_left(settings) and not observed.like(settings):
            chosen.setdefault(cost_settings(stored(settings.flat())), of_one_round(settings))
    return list(chosen.values())


def of_one_round(settings: RunSettings) -> RunSettings:
    """Return the settings of a run's probe."""
    general = replace(
        settings.general,
        rounds=min(settings.general.rounds, 1),
        results=str(Path(settings.general.results) / PROBES),
        keep_best="",
        patience=0,
        overwrite=False,
        tensorboard=False,
        mlflow=False,
        wandb=False,
    )
    return replace(settings, general=general)


def plan_costs(planned: Sequence[RunSettings], labels: Mapping[str, str]) -> list[PlannedRun]:
    """Return the runs of a plan with what they take; `labels` by run id. Nothing is trained or downloaded."""
    observed = ObservedRounds(planned[0].general.results)
    entries = []
    for settings in planned:
        left = rounds_left(settings)
        entry = PlannedRun(
            run=settings.run_id,
            label=labels[settings.run_id],
            rounds=settings.general.rounds,
            left=left,
            missing=missing(settings.data),
            cost=observed.cost(settings, left),
        )
        entries.append(entry)
    return entries


def table(entries: Sequence[PlannedRun]) -> Table:
    """Return a table with one row per run."""
    shown = terminal_table(*named("run"), *numeric("rounds", "left", "time", "up", "down"))
    for entry in entries:
        costs = ["?", "?", "?"]
        if entry.cost is not None:
            cost = entry.cost
            costs = [duration(cost.seconds), in_bytes(cost.up), in_bytes(cost.down)]
        shown.add_row(entry.label, str(entry.rounds), str(entry.left), *costs)
    return shown


def lines(entries: Sequence[PlannedRun], planned: Sequence[RunSettings], at_once: int) -> list[str]:
    """Return the lines below the table: totals of `at_once` parallel runs, models, and what is missing."""
    known = [entry.cost for entry in entries if entry.cost is not None]
    seconds = [cost.seconds for cost in known]
    together = max(sum(seconds) / at_once, *seconds, 0.0)
    up = in_bytes(sum(cost.up for cost in known))
    down = in_bytes(sum(cost.down for cost in known))
    ended = [run for run, entry in zip(planned, entries, strict=True) if not entry.left]
    diverged = sum(RunFolder(run.folder).divergence() is not None for run in ended)
    found = [f"{plural(len(entries), 'run')}, {len(ended) - diverged} of them finished"]
    if diverged:
        found[0] += f", {diverged} diverged and not repeated"
    if known:
        found[0] += (
            f": about {duration(together)} with {at_once} at a time, {up} up and {down} down"
        )
    unknown = len(entries) - len(known)
    if unknown:
        found.append(
            f"{plural(unknown, 'run')} without observed rounds: --probe trains one of each kind"
        )
    for line, count in Counter(map(model_line, planned)).items():
        found.append(f"model, {plural(count, 'run')}: {line}")
    for reason, count in Counter(entry.missing for entry in entries if entry.missing).items():
        found.append(f"missing data, {plural(count, 'run')}: {reason}")
    return found


def as_json(entries: Sequence[PlannedRun]) -> list[dict[str, Any]]:
    """Return the plan for other programs."""
    return [asdict(entry) for entry in entries]
