"""Whether a repeated run gives what its kept record says: the same hash, or the same numbers within their interval."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedskew.experiments.experiments import Experiment
from fedskew.experiments.plan import Cell
from fedskew.report.inference import Interval, compare, measure, strata
from fedskew.report.kept_records import KeptRun, shortened
from fedskew.report.results import SeedResult
from fedskew.report.run_records import RunRecords
from server_app.round_selection import points_of

SAME_BITS = ("cpu", "torch", "numpy", "device")
"""Versions with which a run is bit-identical; the code's own version is not among them, as releases keep the bits."""


@dataclass(frozen=True)
class CellCheck:
    """The number of one cell, kept and repeated."""

    cell: Cell
    metric: str
    kept: float | None
    repeated: float | None
    interval: Interval | None
    """Of repeated minus kept, over the test examples of both; None where the records do not have these."""

    @property
    def agrees(self) -> bool:
        """Whether the interval has 0 in it."""
        return self.interval is not None and self.interval.low <= 0 <= self.interval.high


@dataclass(frozen=True)
class Verification:
    """One kept run beside its repetition."""

    kept: KeptRun
    repeated: RunRecords
    cells: Sequence[CellCheck]

    @property
    def same_hash(self) -> bool:
        """Whether both ended in the same weights, to the bit."""
        return hash_of(self.kept) == hash_of(self.repeated)

    @property
    def same_numbers(self) -> bool:
        """Whether every kept number is the repeated one."""
        return numbers_of(self.kept) == numbers_of(self.repeated)

    @property
    def differing(self) -> list[str]:
        """What the two were run with that may change their bits."""
        repeated = versions_and_device(self.repeated)
        kept = versions_and_device(self.kept)
        return [name for name in SAME_BITS if repeated.get(name) != kept.get(name)]

    @property
    def holds(self) -> bool:
        """Whether the record stands: identical, or within the intervals where bits may differ."""
        if self.same_hash:
            return self.same_numbers
        return bool(self.differing) and all(cell.agrees for cell in self.cells)

    @property
    def words(self) -> str:
        """The result in words."""
        if self.same_hash and self.same_numbers:
            return "identical: the same hash and numbers"
        if self.same_hash:
            return "differs: the same hash, and other numbers than the record's"
        if not self.differing:
            return "differs: another hash with the same CPU type and versions"
        other = f"another {', '.join(self.differing)}"
        if self.holds:
            return f"agrees: {other}, and every number lies within its interval"
        return f"differs: {other}, and a number lies outside its interval"


def verified_run(
    kept: KeptRun, repeated: RunRecords, cells: Sequence[Cell], experiments: dict[str, Experiment]
) -> Verification:
    """Return a kept run beside its repetition, cell by cell.

    Args:
        kept: the record.
        repeated: the finished run of the same settings.
        cells: of the plan; those of other runs are left out.
        experiments: the cells' experiments by name.
    """
    checks = []
    for cell in cells:
        if cell.run.run_id == kept.name:
            checks.append(cell_check(kept, repeated, cell, experiments[cell.experiment]))
    return Verification(kept, repeated, checks)


def cell_check(
    kept: RunRecords, repeated: RunRecords, cell: Cell, experiment: Experiment
) -> CellCheck:
    """Return a cell's kept and repeated number, and the interval of their difference over the test examples."""
    metric = experiment.metric_of(cell.column)
    of_both = []
    examples = []
    for run in (repeated, kept):
        measured = SeedResult(cell, run, points_of(run.records, cell.deployed))
        of_both.append(measure(measured, experiment.selection, metric))
        examples.append(strata(measured, experiment.selection, metric))
    ours, theirs = of_both
    interval = None
    if ours is not None and theirs is not None:
        names = (f"{cell.row} repeated", cell.row)
        pair = (examples[0], examples[1])
        interval = compare({cell.seed: ours - theirs}, [pair], names).interval
    return CellCheck(cell, metric, theirs, ours, interval)


def versions_and_device(run: RunRecords) -> dict[str, str]:
    """Return what a run was made with, by name."""
    return {**run.origin["versions"], "device": run.versions["device"]}


def hash_of(run: RunRecords) -> str:
    """Return the hash of a finished run's weights."""
    summary = run.summary or {}
    return str(summary.get("hash", {}).get("all"))


def numbers_of(run: RunRecords) -> list[dict[str, Any]]:
    """Return what is kept of a run's rounds, without what a repetition may change: times and devices."""
    rounds = []
    for record in run.records:
        kept = shortened(record, run)
        rounds.append({key: kept[key] for key in kept if key not in ("seconds", "workers")})
    return rounds
