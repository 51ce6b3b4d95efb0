"""Races whose runs are shared: what one race has trained, the next one counts by its recorded seconds.

The six targets' races at 1, 3 and 10 minutes train mostly the same runs. A race here decides as `fedskew select` does,
step by step, by the same code; only its clock is another one. It counts, for every run, the seconds in that run's
records, whichever race trained it.
"""

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from rich.console import Console

from fedskew.cli.select_execution import outcome_of, trainer_of
from fedskew.experiments.plan import runs
from fedskew.method_selection.candidates import Entrant, all_methods, from_best_head
from fedskew.method_selection.conduct import Runs
from fedskew.method_selection.planning import Cost
from fedskew.method_selection.race import Race, Results
from fedskew.method_selection.race_log import RaceLog
from server_app.continuation import can_continue, rounds_taken_over, without_rounds
from server_app.run_folder import RunFolder
from server_app.run_settings import RunSettings, Scalar
from server_app.versions import commit

STARTING = 2.0
"""Seconds in which the engines' processes start, before that was measured."""


@dataclass
class Beside:
    """What races take beside the recorded rounds of their runs, in seconds, as measured so far."""

    starting: float | None = None
    """In the first step, in which the engines' processes start."""
    steps: list[float] = field(default_factory=list)
    """Of every later step in which all runs were trained."""

    @property
    def start(self) -> float:
        """Of the first step."""
        return STARTING if self.starting is None else self.starting

    @property
    def usual(self) -> float:
        """Of a usual step."""
        return statistics.median(self.steps) if self.steps else 0.0


class SharedRuns:
    """Trains for a race what no earlier one has trained, by a clock that counts every run of this race.

    Args:
        runs: trains.
        seconds: that the race has taken before its first run.
        beside: what it counts beside its runs; new measurements are added.
    """

    def __init__(self, runs: Runs, seconds: float, beside: Beside) -> None:
        self.runs = runs
        self.seconds = seconds
        self.beside = beside
        self.counted = set[str]()
        """The runs of this race, by id."""
        self.latest: dict[str, RunSettings] = {}
        """Of those that differ in their rounds alone, the last one."""

    def clock(self) -> float:
        """Return the seconds of the race so far."""
        return self.seconds

    def train(
        self, entrants: Sequence[Entrant], rounds: int, seeds: Sequence[int], last: bool
    ) -> Results:
        """Train as `Runs.train`, and count the time."""
        cells = chain.from_iterable(
            self.runs.cells(entrant, rounds, seeds, last) for entrant in entrants
        )
        wanted = runs(list(cells))
        fresh = [run for run in wanted if RunFolder(run.folder).finished(rounds) is None]
        before = time.monotonic()
        results = self.runs.train(entrants, rounds, seeds, last)
        elapsed = time.monotonic() - before
        if len(fresh) == len(wanted):
            self.measure(elapsed - math.fsum(self.recorded(run) for run in fresh))
        self.seconds += self.beside.usual if self.counted else self.beside.start
        for run in wanted:
            if run.run_id not in self.counted:
                self.seconds += self.recorded(run)
            self.counted.add(run.run_id)
            self.latest[without_rounds(run)] = run
        return results

    def measure(self, beside: float) -> None:
        """Note what a step in which all runs were trained has taken beside them."""
        if self.beside.starting is None:
            self.beside.starting = beside
        else:
            self.beside.steps.append(beside)

    def recorded(self, run: RunSettings) -> float:
        """Return the seconds of a run's rounds, but for those that it takes over from a shorter run of this race."""
        shorter = self.latest.get(without_rounds(run))
        spared = 0
        if shorter is not None and can_continue(run, shorter):
            spared = rounds_taken_over(shorter.general.rounds)
        records = RunFolder(run.folder).rounds()
        return math.fsum(record.seconds.round for record in records[spared:])


class Replays:
    """The races of a federation, which share their runs.

    Args:
        settings: of all runs.
        folder: of their results.
    """

    def __init__(self, settings: Mapping[str, Scalar], folder: Path) -> None:
        self.folder = folder
        self.settings = {**settings, "results": str(folder)}
        self.beside = Beside()
        self.guess: dict[str, Cost] = {}

    def race(self, target: str, minutes: float) -> dict[str, Any]:
        """Return how a race ends, as in its result.json, with its commit and its `race-seconds` by this clock."""
        before = time.monotonic()
        methods = from_best_head(all_methods(), self.settings, [])
        trainer = trainer_of(self.settings, methods, [], target, Console(quiet=True), jobs=1)
        guess = trainer.guess()  # in every race, as it takes a part of the minutes
        self.guess = self.guess or guess  # the first one in all races, so that they plan alike
        shared = SharedRuns(trainer, time.monotonic() - before, self.beside)
        file = self.folder / f"{target}-{minutes:g}.plan.json"
        file.unlink(missing_ok=True)
        race = Race(
            trainer.contenders,
            trainer.conditions(minutes),
            self.guess,
            shared,
            RaceLog(file),
            clock=shared.clock,
            began=0.0,
        )
        ended = race.run()
        return {**outcome_of(ended), "commit": commit()[:8], "race-seconds": shared.seconds}
