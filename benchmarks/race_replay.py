"""Races whose runs are shared: what one race has trained, the next one counts by its recorded seconds.

The six targets' races at 1, 3 and 10 minutes train mostly the same runs. A race here decides as `fedskew select` does,
step by step, by the same code; only its clock is another one. It counts, for every run, the seconds in that run's
records, whichever race trained it.
"""

import math
import time
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from rich.console import Console

from fedskew.cli.select import outcome_of, trainer_of
from fedskew.experiments.plan import runs
from fedskew.method_selection.candidates import Entrant, all_methods, from_best_head
from fedskew.method_selection.conduct import Runs
from fedskew.method_selection.race import Race, Results
from fedskew.method_selection.race_log import RaceLog
from server_app.continuation import can_continue, rounds_taken_over, without_rounds
from server_app.run_folder import RunFolder
from server_app.run_settings import RunSettings, Scalar

BESIDE = 0.1
"""Seconds of a run beside its recorded rounds, before one was measured."""


class SharedRuns:
    """Trains for a race what no earlier one has trained, by a clock that counts every run of this race.

    Args:
        runs: trains.
        seconds: that the race has taken before its first run.
        beside: seconds of each run beside its recorded rounds, as measured so far; new ones are added.
    """

    def __init__(self, runs: Runs, seconds: float, beside: list[float]) -> None:
        self.runs = runs
        self.seconds = seconds
        self.beside = beside
        self.counted: dict[str, RunSettings] = {}
        """The runs of this race, by id."""

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
        if fresh:
            recorded = math.fsum(self.recorded(run) for run in fresh)
            self.beside.append(max(0.0, elapsed - recorded) / len(fresh))
        beside = sorted(self.beside)[len(self.beside) // 2] if self.beside else BESIDE
        for run in wanted:
            if run.run_id not in self.counted:
                self.seconds += self.recorded(run) + beside
        self.counted.update({run.run_id: run for run in wanted})
        return results

    def recorded(self, run: RunSettings) -> float:
        """Return the seconds of a run's rounds, but for those that it takes over from a shorter run of this race."""
        spared = 0
        for shorter in self.counted.values():
            if without_rounds(shorter) == without_rounds(run) and can_continue(run, shorter):
                spared = max(spared, rounds_taken_over(shorter.general.rounds))
        records = RunFolder(run.folder).rounds()
        return math.fsum(record.seconds.round for record in records[spared:])


class Replays:
    """The races of a federation, which share their runs.

    Args:
        settings: of all runs, the results folder among them.
        target: whose warnings and candidates are prepared first.
    """

    def __init__(self, settings: Mapping[str, Scalar]) -> None:
        self.settings = dict(settings)
        self.beside: list[float] = []
        self.guess: dict[str, Any] = {}

    def race(self, target: str, minutes: float, race_seed: int = 0) -> dict[str, Any]:
        """Return how a race ends, as in its result.json, with `race-seconds` by its clock."""
        before = time.monotonic()
        methods = from_best_head(all_methods(), self.settings, [])
        trainer = trainer_of(self.settings, methods, [], target, Console(quiet=True), jobs=1)
        guess = trainer.guess()
        self.guess = self.guess or guess  # the same in all races, as its ratios alone count
        shared = SharedRuns(trainer, time.monotonic() - before, self.beside)
        file = Path(str(self.settings["results"])) / f"{target}-{minutes:g}-{race_seed}.plan.json"
        file.unlink(missing_ok=True)
        race = Race(
            trainer.contenders,
            trainer.conditions(minutes, race_seed),
            self.guess,
            shared,
            RaceLog(file),
            clock=shared.clock,
            began=0.0,
        )
        ended = race.run()
        return {**outcome_of(ended), "race-seconds": shared.seconds}
