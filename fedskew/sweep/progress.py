"""The jobs of a sweep and their progress: a bar in a terminal, and a line per result."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from data.text import LineAboutData, LineAboutRun
from fedskew.formatting import duration, percent
from server_app.composition import row_name
from server_app.record import ModelNumbers
from server_app.round_selection import selected
from server_app.run_folder import RunFolder
from server_app.run_settings import RunSettings

DAY = 86_400.0
"""Seconds over which the mean pace is taken: all that a sweep has trained."""


@dataclass(frozen=True)
class Job:
    """A run of a sweep."""

    settings: RunSettings
    label: str
    """What the user calls it: method, column, seed."""

    @property
    def folder(self) -> RunFolder:
        """The run's folder."""
        return RunFolder(self.settings.folder)


@dataclass(frozen=True)
class JobResult:
    """How a job ended: with a summary, or with the reason why there is none."""

    summary: dict[str, Any] | None = None
    reason: str = ""
    is_to_go_on: bool = False
    """Whether the run is to be begun again: its process has died, or another one, on any machine, works on it."""


class Overview:
    """Shows the state of all jobs, whose events it is called with, while its `progress` is entered."""

    def __init__(self, console: Console, jobs: Sequence[Job], finished: int = 0) -> None:
        self.console = console
        self.jobs = finished + len(jobs)
        self.finished = finished
        self.failed = 0
        self.running = 0
        self.rounds = dict.fromkeys((job.settings.run_id for job in jobs), 0)
        """The rounds that each job has, by run id."""
        self.printed: set[str] = set()
        self.width = max((len(job.label) for job in jobs), default=0)
        self.progress = Progress(
            TextColumn("all runs"),
            BarColumn(bar_width=None),
            TextColumn("round"),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
            speed_estimate_period=DAY,
        )
        rounds = sum(job.settings.general.rounds for job in jobs)
        self.all = self.progress.add_task("", total=rounds)

    def started(self, job: Job) -> None:
        """A job begins, or goes on."""
        self.running += 1
        if not job.settings.general.overwrite:
            self.update(job)

    def update(self, job: Job) -> bool:
        """Count the rounds of a job so far, and return whether there is a new one."""
        records = job.folder.rounds()
        new = records[-1].round - self.rounds[job.settings.run_id] if records else 0
        if new <= 0:
            return False
        self.rounds[job.settings.run_id] += new
        self.progress.advance(self.all, new)
        return True

    def on_line(self, job: Job, line: str) -> bool:
        """Print a line of a job, but for those about rounds, and return whether it is one about a round.

        A line per round would hide the results.
        """
        is_round = self.update(job)
        if isinstance(line, LineAboutData):
            self.print(line)
        elif not is_round and not isinstance(line, LineAboutRun):
            self.print(line, job)
        return is_round

    def ended(self, job: Job, result: JobResult) -> None:
        """A job is over, or waits for another attempt."""
        self.running -= 1
        words = result.reason
        if result.summary is not None:
            self.finished += 1
            last = {name: selected(result.summary, name) for name in result.summary["models"]}
            words = f"finished  {accuracies(job, last)}"
        elif not result.is_to_go_on:
            self.failed += 1
            words = f"failed: {words}"
        if not result.is_to_go_on:
            words += f"  ({self.counts()})"
        self.print(words, job)

    def print(self, line: str, job: Job | None = None) -> None:
        """Print a line, about a job or all, but once: all runs on the same data say the same of them."""
        if job is not None:
            line = f"{job.label:<{self.width}}  {line}"
        if line not in self.printed:
            self.printed.add(line)
            self.console.print(line, markup=False)

    def counts(self) -> str:
        """Return one line about all jobs."""
        words = [f"{self.finished} of {self.jobs} done", f"{self.running} running"]
        waiting = self.jobs - self.finished - self.failed - self.running
        if waiting:
            words.append(f"{waiting} waiting")
        if self.failed:
            words.append(f"{self.failed} failed")
        left = self.progress.tasks[0].time_remaining
        if left is not None and (self.running or waiting):
            words.append(f"about {duration(left)} left")
        return ", ".join(words)


def accuracies(job: Job, models: Mapping[str, ModelNumbers]) -> str:
    """Return the balanced accuracy of every model, in percent."""
    words = []
    for name, numbers in models.items():
        row = row_name(job.settings.parts, name)
        words.append(f"{row} {percent(numbers['balanced-accuracy'])}")
    return "  ".join(words)
