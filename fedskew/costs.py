"""What the runs of a plan take: seconds and bytes of the rounds that are left, by rounds that were observed.

`fedskew run --dry-run` prints this. The rounds of a run cost what those of any other run with the same settings cost,
but for seed, number of rounds, learning rates and the like.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from rich.table import Table

from data.dataset import missing
from fedskew.formatting import duration, in_bytes, named, numeric, plural, terminal_table
from server_app.record import RoundRecord
from server_app.run_folder import RunFolder
from server_app.run_settings import WITHOUT_EFFECT_ON_NUMBERS, RunSettings, Scalar, model_line

WITHOUT_EFFECT_ON_COSTS = (WITHOUT_EFFECT_ON_NUMBERS - {"device"}) | {
    "seed", "rounds", "evaluate-every", "alpha",
    "learning-rate", "learning-rate-decay", "learning-rate-decay-every",
    "schedule", "schedule-rounds",
    "momentum", "weight-decay", "server-learning-rate", "server-momentum", "server-momentum-form",
    "server-optimizer", "server-adaptivity",
}  # fmt: skip
"""Settings that change neither the seconds nor the bytes of a round."""
Training = frozenset[tuple[str, Scalar]]
"""The other settings of a run, with their values."""


@dataclass(frozen=True)
class Cost:
    """What the rounds that a run has left take."""

    seconds: float
    up: float
    """Bytes from the clients to the server."""
    down: float
    """Bytes from the server to the clients."""

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.seconds + other.seconds, self.up + other.up, self.down + other.down)


NOTHING = Cost(0.0, 0.0, 0.0)


@dataclass(frozen=True)
class PlannedRun:
    """A run of the plan."""

    run: str
    """The run id."""
    label: str
    model: str
    """The model's name and size, and what a client uploads of it."""
    rounds: int
    left: int
    """Rounds to go."""
    missing: str
    """Why its data are missing; empty where they are there."""
    cost: Cost | None
    """None where no round was observed."""


def rounds_left(settings: RunSettings) -> int:
    """Return the rounds that a run has to go; 0 for one that diverged, as it is not repeated.

    A run without rounds computes its heads in one step, which counts as a round.
    """
    rounds = settings.general.rounds
    if settings.general.overwrite:
        return max(rounds, 1)
    folder = RunFolder(settings.folder)
    if folder.divergence() is not None:
        return 0
    return max(rounds, 1) - len(folder.rounds())


def training_of(settings: Mapping[str, Scalar]) -> Training:
    """Return the settings that decide what a round costs, of a run's settings by key."""
    items = settings.items()
    return frozenset(item for item in items if item[0] not in WITHOUT_EFFECT_ON_COSTS)


class ObservedRounds:
    """The records of the rounds in a results folder, by what decides their cost."""

    def __init__(self, results: str) -> None:
        self.folders: dict[Training, list[RunFolder]] = {}
        for file in Path(results).glob("*/settings.json"):
            folder = RunFolder(file.parent)
            training = training_of(folder.origin().get("settings", {}))
            self.folders.setdefault(training, []).append(folder)

    def like(self, settings: RunSettings) -> list[RoundRecord]:
        """Return the records of rounds that cost what the run's rounds do."""
        records = []
        for folder in self.folders.get(training_of(settings.flat()), []):
            records += folder.rounds()
        return records

    def cost(self, settings: RunSettings, left: int) -> Cost | None:
        """Return what a run's last `left` rounds take; None where no such round was observed."""
        if not left:
            return NOTHING
        records = self.like(settings)
        if not records:
            return None
        rounds = settings.general.rounds
        evaluated = sum(map(settings.general.is_evaluated, range(rounds - left + 1, rounds + 1)))
        training = [record.seconds.round - record.seconds.evaluation for record in records]
        evaluation = [record.seconds.evaluation for record in records if record.models] or [0.0]
        return Cost(
            seconds=left * fmean(training) + evaluated * fmean(evaluation),
            up=left * fmean(record.bytes_up for record in records),
            down=left * fmean(record.bytes_down for record in records),
        )


def plan_costs(planned: Sequence[RunSettings], labels: Mapping[str, str]) -> list[PlannedRun]:
    """Return the runs of a plan with what they take; `labels` by run id. Nothing is trained or downloaded."""
    observed = ObservedRounds(planned[0].general.results)
    entries = []
    for settings in planned:
        left = rounds_left(settings)
        entry = PlannedRun(
            run=settings.run_id,
            label=labels[settings.run_id],
            model=model_line(settings),
            rounds=settings.general.rounds,
            left=left,
            missing="; ".join(missing(settings.data).values()),
            cost=observed.cost(settings, left),
        )
        entries.append(entry)
    return entries


def table(entries: Sequence[PlannedRun], at_once: int) -> Table:
    """Return a table with one row per run, and below it what all take together, `at_once` in parallel.

    Of no run with a known cost the sum is unknown, too: 0 seconds would read as an estimate.
    """
    shown = terminal_table(*named("run"), *numeric("rounds", "left", "time", "up", "down"))
    for entry in entries:
        shown.add_row(entry.label, str(entry.rounds), str(entry.left), *words(entry.cost))
    known = [entry.cost for entry in entries if entry.cost is not None]
    total = sum(known, NOTHING)
    together = replace(total, seconds=total.seconds / at_once) if known else None
    label = f"{plural(len(entries), 'run')}, {at_once} at a time"
    shown.add_section()
    shown.add_row(label, "", "", *words(together))
    return shown


def words(cost: Cost | None) -> tuple[str, str, str]:
    """Return time and bytes, up and down, in the units that suit them."""
    if cost is None:
        return "?", "?", "?"
    return duration(cost.seconds), in_bytes(cost.up), in_bytes(cost.down)


def remarks(entries: Sequence[PlannedRun]) -> list[str]:
    """Return the lines below the table: models, missing data, and runs whose cost is not known."""
    found = [f"model {model}" for model in dict.fromkeys(entry.model for entry in entries)]
    found += dict.fromkeys(entry.missing for entry in entries if entry.missing)
    unknown = sum(entry.cost is None for entry in entries)
    if unknown:
        without = f"{plural(unknown, 'run')} without observed rounds, which count as nothing"
        found.append(f"{without}: the command with --set rounds=1 --seed 0 makes some")
    return found
