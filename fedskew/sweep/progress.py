"""The progress display of a sweep: one live table in a terminal, plain lines elsewhere."""

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from data.text import LineAboutData, LineAboutRun
from fedskew.formatting import duration, percent
from fedskew.scheduling import Job, JobResult
from server_app.composition import row_name
from server_app.record import ModelNumbers
from server_app.round_selection import selected

DAY = 86_400.0
"""Seconds over which the mean pace is taken: all that a sweep has trained."""


class Overview:
    """Shows the state of all jobs, whose events it is called with, while its `progress` is entered."""

    def __init__(self, console: Console, jobs: Sequence[Job], finished: int = 0) -> None:
        self.console = console
        self.jobs = finished + len(jobs)
        self.finished = finished
        self.failed = 0
        self.printed: set[str] = set()
        self.width = max((len(job.label) for job in jobs), default=0)
        self.progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            TextColumn("round"),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}", markup=False),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
            speed_estimate_period=DAY,
        )
        rounds = sum(job.settings.general.rounds for job in jobs)
        self.all = self.progress.add_task("all runs", total=rounds, numbers="")
        self.running: dict[str, TaskID] = {}

    def started(self, job: Job) -> None:
        """A job begins, or goes on."""
        rounds = job.settings.general.rounds
        task = self.progress.add_task(job.label, total=rounds, numbers="")
        self.running[job.settings.run_id] = task
        if not job.settings.general.overwrite:
            self.update(job)

    def update(self, job: Job) -> bool:
        """Show the records of a job so far, and return whether there is a new round."""
        task = self.progress.tasks[self.progress.task_ids.index(self.running[job.settings.run_id])]
        records = job.folder.rounds()
        new = records[-1].round - task.completed if records else 0
        if new <= 0:
            return False
        numbers = accuracies(job, records[-1].models) or task.fields["numbers"]
        self.progress.update(task.id, advance=new, numbers=numbers)
        self.progress.advance(self.all, new)
        return True

    def on_line(self, job: Job, line: str) -> bool:
        """Print a line of a job, but for those about rounds, and return whether it is one about a round.

        A terminal's table shows the rounds, and elsewhere one line per round would hide the results.
        """
        is_round = self.update(job)
        if isinstance(line, LineAboutData):
            self.print(line)
        elif not is_round and not isinstance(line, LineAboutRun):
            self.print(line, job)
        return is_round

    def ended(self, job: Job, result: JobResult) -> None:
        """A job is over, or waits for another attempt."""
        self.progress.remove_task(self.running.pop(job.settings.run_id))
        words = result.reason
        if result.summary is not None:
            self.finished += 1
            last = {name: selected(result.summary, name) for name in result.summary["models"]}
            words = f"finished  {accuracies(job, last)}"
        elif not result.is_to_go_on:
            self.failed += 1
            words = f"failed: {words}"
        # A terminal's table has the counts.
        if not self.console.is_terminal and not result.is_to_go_on:
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
        words = [f"{self.finished} of {self.jobs} done", f"{len(self.running)} running"]
        waiting = self.jobs - self.finished - self.failed - len(self.running)
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
