"""`fedskew run --dry-run`: every run of the plan with its cost and its obstacles."""

import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.table import Table

from data import DataSettings, SettingError
from data.dataset import missing
from fedskew.costs.estimate import Cost, cost_of, rounds_left
from fedskew.costs.footprint import refuse_what_cannot_fit
from fedskew.costs.pace import Records, timed
from fedskew.costs.sizes import Sizes, sizes_of
from fedskew.formatting import duration, in_bytes, named, numeric, terminal_table
from fedskew.scheduling import Resources
from server_app.run_folder import RunFolder
from server_app.run_settings import RunSettings, model_line

RAY_START = 15.0
"""Seconds that the runs on Ray take together before the first round of all and after the last one."""
START = 8.0
"""Seconds until the command, and the process that its workers are forked from, have imported torch and flwr."""


@dataclass(frozen=True)
class Entry:
    """A run of the plan."""

    settings: RunSettings
    label: str
    missing: str = ""
    """Why its data are missing; empty if they are present."""
    refused: str = ""
    """Why the run does not fit on this machine; empty if it does."""
    cost: Cost | None = None
    """None if the run is refused, or its data are missing and not in the catalog."""
    recorded: bool = False
    """Whether the time comes from finished rounds of similar runs, not from a timed step."""


@dataclass(frozen=True)
class Forecast:
    """The runs of a command, with their cost and their division over processes."""

    entries: Sequence[Entry]
    allocation: Resources

    @property
    def costs(self) -> list[Cost]:
        """The costs that are known."""
        return [entry.cost for entry in self.entries if entry.cost is not None]

    @property
    def seconds(self) -> float:
        """Estimated seconds of the command, all runs together."""
        runs = [cost.seconds for cost in self.costs]
        start = START
        if self.allocation.engine == "ray" and any(cost.left for cost in self.costs):
            start += RAY_START
        return start + max(sum(runs) / self.allocation.jobs, *runs, 0.0)

    @property
    def refusals(self) -> list[str]:
        """The reasons why the command cannot run, each once."""
        refusals = dict.fromkeys(entry.refused for entry in self.entries if entry.refused)
        results = self.entries[0].settings.general.results
        needed = sum(cost.disk for cost in self.costs if cost.left)
        free = free_disk(Path(results))
        if needed > free:
            rule = f"the runs need {in_bytes(needed)} of disk, and {in_bytes(free)} are free"
            error = SettingError("results", results, rule)
            refusals[str(error)] = None
        return list(refusals)


def forecast(
    planned: Sequence[RunSettings],
    names: Mapping[str, str],
    engine: str = "",
    at_once: int = 0,
    workers: int = 0,
) -> Forecast:
    """Return the cost of the planned runs.

    `names` has each run's label by its id. `engine`, `at_once` (parallel runs) and `workers` are the command's options;
    empty and 0 leave the choice to FedSkew.
    """
    sizes: dict[DataSettings, Sizes | None] = {}
    jobs = []
    for settings in planned:
        if settings.data not in sizes:
            sizes[settings.data] = sizes_of(settings.data, settings.general.seed)
        if rounds_left(settings):
            jobs.append(settings)
    allocation = Resources(engine or "inprocess", 1, 1)
    if jobs:
        allocation = Resources(engine, at_once, workers).shared(jobs)
    records = Records(Path(planned[0].general.results))
    entries = []
    for settings in planned:
        label = names[settings.run_id]
        entries.append(entry_of(settings, label, sizes[settings.data], records, allocation))
    return Forecast(entries, allocation)


def entry_of(
    settings: RunSettings,
    label: str,
    sizes: Sizes | None,
    records: Records,
    allocation: Resources,
) -> Entry:
    """Return one run with its cost."""
    entry = Entry(settings, label, missing(settings.data))
    if not rounds_left(settings):
        files = [file for file in settings.folder.rglob("*") if file.is_file()]
        disk = sum(file.stat().st_size for file in files)
        return replace(entry, cost=Cost(0, 0.0, disk, 0.0, 0.0, 0.0))
    try:
        refuse_what_cannot_fit(settings, sizes)
    except SettingError as error:
        return replace(entry, refused=str(error))
    if sizes is None:
        return entry
    recorded = records.pace(settings)
    pace = recorded or timed(settings, sizes)
    cost = cost_of(settings, sizes, pace, allocation.workers if allocation.jobs else 1)
    return replace(entry, cost=cost, recorded=recorded is not None)


def free_disk(folder: Path) -> int:
    """Return the free bytes of the disk that the folder is on, or would be on."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def as_table(forecast: Forecast) -> Table:
    """Return a table with one row per run."""
    headings = ("rounds", "left", "time", "memory", "disk", "up", "down")
    table = terminal_table(*named("run"), *numeric(*headings))
    for entry in forecast.entries:
        rounds = str(entry.settings.general.rounds)
        cost = entry.cost
        if cost is None:
            left = str(rounds_left(entry.settings))
            time = "cannot fit" if entry.refused else "?"
            table.add_row(entry.label, rounds, left, time, "?", "?", "?", "?")
            continue
        table.add_row(
            entry.label,
            rounds,
            str(cost.left),
            duration(cost.seconds),
            in_bytes(cost.memory_bytes),
            in_bytes(cost.disk),
            in_bytes(cost.up),
            in_bytes(cost.down),
        )
    return table


def as_lines(forecast: Forecast) -> list[str]:
    """Return the lines below the table: the totals, how rough the time is, and which data are missing."""
    costs = forecast.costs
    disk = in_bytes(sum(cost.disk for cost in costs))
    up = in_bytes(sum(cost.up for cost in costs))
    down = in_bytes(sum(cost.down for cost in costs))
    ended = [entry.settings for entry in forecast.entries if entry.cost and not entry.cost.left]
    diverged = sum(RunFolder(settings.folder).divergence() is not None for settings in ended)
    planned = f"{runs(len(forecast.entries))}, {len(ended) - diverged} of them finished"
    if diverged:
        planned += f", {diverged} diverged and not repeated"
    allocation = forecast.allocation
    how = f"{allocation.jobs} at a time on engine {allocation.engine}"
    time = f"about {duration(forecast.seconds)} with {how}"
    lines = [f"{planned}: {time}, {disk} of disk, {up} up and {down} down"]

    models = Counter(model_line(entry.settings) for entry in forecast.entries)
    for line, count in models.items():
        lines.append(f"model, {runs(count)}: {line}")
    recorded = sum(entry.recorded for entry in forecast.entries)
    by = "by a timed step"
    if recorded:
        by = f"by finished rounds for {runs(recorded)}, else {by}"
    lines.append(f"the time is rough, within a factor of three on a quiet machine ({by})")

    reasons = Counter(entry.missing for entry in forecast.entries if entry.missing)
    for reason, count in reasons.items():
        lines.append(f"missing data, {runs(count)}: {reason}")
    return lines


def runs(count: int) -> str:
    """Return a number of runs in words."""
    return "1 run" if count == 1 else f"{count} runs"


def as_json(forecast: Forecast) -> list[dict[str, Any]]:
    """Return the forecast for other programs."""
    result = []
    for entry in forecast.entries:
        fields = {
            "run": entry.settings.run_id,
            "label": entry.label,
            "rounds": entry.settings.general.rounds,
            "missing": entry.missing,
            "refused": entry.refused,
            "cost": None if entry.cost is None else asdict(entry.cost),
        }
        result.append(fields)
    return result
