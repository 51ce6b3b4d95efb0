"""`fedskew run --dry-run`: every run of the plan with what it will cost, and what stands in its way."""

import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from data import SettingError
from data.datasets import missing
from fedskew.costs.estimate import Cost, cost_of, rounds_left
from fedskew.costs.memory import memory_of, refuse_what_cannot_fit
from fedskew.costs.rehearsal import Stage
from fedskew.costs.sizes import Sizes, sizes_of
from fedskew.engines import app_folder
from fedskew.numbers import duration, in_bytes
from fedskew.sweep.jobs import Job, Shares, shares
from server_app.run_settings import RunSettings

RAY_START = 15.0
"""Seconds that a run on Ray takes before its first round and after its last one."""
STARTS = 2
"""Processes that import torch and flwr one after the other: the command, and what its workers are forked from."""


@dataclass(frozen=True)
class Entry:
    """A run of the plan."""

    settings: RunSettings
    label: str
    missing: str
    """Why its data are not there."""
    refused: str
    """Why this machine cannot hold it."""
    cost: Cost | None
    """None where the data are not there and not known, or the run is refused."""


@dataclass(frozen=True)
class Plan:
    """What a command would do."""

    entries: Sequence[Entry]
    share: Shares
    start: float
    """Seconds that a process takes to start."""

    @property
    def costs(self) -> list[Cost]:
        """The costs that are known."""
        return [entry.cost for entry in self.entries if entry.cost is not None]

    @property
    def seconds(self) -> float:
        """From beginning to end."""
        each = [cost.seconds for cost in self.costs]
        return STARTS * self.start + max(sum(each) / self.share.jobs, *each, 0.0)

    @property
    def refusals(self) -> list[str]:
        """What cannot be done, each said once."""
        found = dict.fromkeys(entry.refused for entry in self.entries if entry.refused)
        needed = sum(cost.disk for cost in self.costs if cost.left)
        if needed > (free := free_disk(Path(self.entries[0].settings.general.results))):
            rule = f"the runs need {in_bytes(needed)} of disk, and {in_bytes(free)} are free"
            found[str(SettingError("results", self.entries[0].settings.general.results, rule))] = None
        return list(found)


def plan_costs(
    planned: Sequence[RunSettings], names: Mapping[str, str], console: Console, engine: str, at_once: int, workers: int
) -> Plan:
    """Return the plan; what is not known is measured here, by a rehearsal on made-up data of the runs' shapes."""
    sizes = {one.data: sizes_of(one.data, one.general.seed) for one in reversed(planned)}
    jobs = [Job(one, names[one.run_id], memory_of(one, sizes[one.data])) for one in planned if rounds_left(one)]
    share = shares(jobs, engine, at_once, workers) if jobs else Shares(engine or "inprocess", 1, 1)
    entries = []
    with tempfile.TemporaryDirectory(prefix="fedskew-", ignore_cleanup_errors=True) as folder:
        stage = Stage(Path(folder))
        with console.status("measuring") as status:
            for one in planned:
                status.update(f"measuring {names[one.run_id]}")
                entries.append(entry_of(one, names[one.run_id], sizes[one.data], stage, share))
        return Plan(entries, share, start())


def entry_of(settings: RunSettings, label: str, sizes: Sizes | None, stage: Stage, share: Shares) -> Entry:
    """Return one run with its cost."""
    absent, playing = missing(settings.data), share.workers if share.engine in ("workers", "ray") else 1
    if not rounds_left(settings):
        files = (file.stat().st_size for file in settings.folder.rglob("*") if file.is_file())
        return Entry(settings, label, absent, "", Cost(0, 0.0, sum(files), 0.0, 0.0, 0.0))
    try:
        refuse_what_cannot_fit(settings, sizes)
    except SettingError as error:
        return Entry(settings, label, absent, str(error), None)
    if sizes is None:
        return Entry(settings, label, absent, "", None)
    cost = cost_of(settings, sizes, stage.measure(settings), playing)
    more = RAY_START if share.engine == "ray" else 0.0
    return Entry(settings, label, absent, "", replace(cost, seconds=cost.seconds + more))


def start() -> float:
    """Return the seconds that a process takes to start, by starting one."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import server_app.app"], check=True, cwd=app_folder())
    return time.perf_counter() - began


def free_disk(folder: Path) -> int:
    """Return the bytes that are free where the folder is, or would be."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def plan_table(plan: Plan) -> Table:
    """Return a row a run."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("run", no_wrap=True)
    for heading in ("rounds", "left", "time", "memory", "disk", "up", "down"):
        table.add_column(heading, justify="right", no_wrap=True)
    for entry in plan.entries:
        rounds, cost = str(entry.settings.general.rounds), entry.cost
        if cost is None:
            left = str(rounds_left(entry.settings))
            table.add_row(entry.label, rounds, left, "cannot fit" if entry.refused else "?", *["?"] * 4)
            continue
        counts = (cost.memory, cost.disk, cost.up, cost.down)
        table.add_row(entry.label, rounds, str(cost.left), duration(cost.seconds), *map(in_bytes, counts))
    return table


def told(plan: Plan) -> list[str]:
    """Return the lines below the table: the whole, and which data are missing."""
    share, costs = plan.share, plan.costs
    disk, up, down = (sum(getattr(cost, name) for cost in costs) for name in ("disk", "up", "down"))
    lines = [
        f"{runs(len(plan.entries))}, {sum(cost.left == 0 for cost in costs)} of them finished: about "
        f"{duration(plan.seconds)} with {share.jobs} at a time on engine {share.engine}, {in_bytes(disk)} of disk, "
        f"{in_bytes(up)} up and {in_bytes(down)} down"
    ]
    lost = Counter(entry.missing for entry in plan.entries if entry.missing)
    lines += [f"missing data, {runs(count)}: {reason}" for reason, count in lost.items()]
    return lines


def runs(count: int) -> str:
    """Return a number of runs in words."""
    return f"{count} run{'s' * (count != 1)}"


def as_json(plan: Plan) -> list[dict[str, Any]]:
    """Return the plan for other programs."""
    return [
        {
            "run": entry.settings.run_id,
            "label": entry.label,
            "rounds": entry.settings.general.rounds,
            "missing": entry.missing,
            "refused": entry.refused,
            "cost": None if entry.cost is None else asdict(entry.cost),
        }
        for entry in plan.entries
    ]
