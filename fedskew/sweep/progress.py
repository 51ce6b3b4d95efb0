"""The progress display of a sweep: one live table in a terminal, plain lines elsewhere."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from data.text import LineAboutData, LineAboutRun
from fedskew.formatting import duration, percent, terminal_table
from fedskew.scheduling import Job, JobResult
from server_app.composition import row_name
from server_app.record import ModelNumbers, RoundRecord
from server_app.round_selection import selected
from server_app.run_folder import RunFolder


@dataclass
class JobProgress:
    """How far a job is."""

    job: Job
    round: int = 0
    seconds: float = 0.0
    """Of the rounds that were seen to finish."""
    rounds: int = 0
    """Rounds that were seen to finish."""
    numbers: str = ""
    """The models' balanced accuracies in percent, when last measured."""

    @property
    def left(self) -> int:
        """Rounds to go."""
        return self.job.settings.general.rounds - self.round

    @property
    def pace(self) -> float | None:
        """Seconds of a round, the mean over those that were seen to finish; None before the first."""
        return self.seconds / self.rounds if self.rounds else None

    def take(self, records: Sequence[RoundRecord]) -> bool:
        """Update the progress by the records so far, and return whether there is a new round."""
        if not records or records[-1].round <= self.round:
            return False
        last = records[-1]
        self.round = last.round
        self.seconds += last.seconds.round
        self.rounds += 1
        if last.models:
            self.numbers = accuracies(self.job, last.models)
        return True


class Overview:
    """Shows the state of all jobs, whose events it is called with; a context manager."""

    def __init__(
        self,
        console: Console,
        jobs: Sequence[Job],
        at_once: int,
        finished: int = 0,
    ) -> None:
        self.console = console
        self.at_once = at_once
        self.finished = finished
        self.failed = 0
        self.total = finished + len(jobs)
        self.printed: set[str] = set()
        """The lines about data that were printed."""
        self.waiting = {job.settings.run_id: job for job in jobs}
        self.running: dict[str, JobProgress] = {}
        self.pace: list[tuple[float, int]] = []
        """Seconds and rounds of the runs that have ended."""
        self.width = max((len(job.label) for job in jobs), default=0)
        self.live = Live(
            console=console,
            get_renderable=self.table,
            refresh_per_second=2,
            transient=True,
        )

    def __enter__(self) -> "Overview":
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(
        self,
        kind: type | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.live.stop()

    def started(self, job: Job) -> None:
        """A job begins, or goes on."""
        self.waiting.pop(job.settings.run_id, None)
        job_progress = JobProgress(job)
        records = RunFolder(job.settings.folder).rounds()
        if records and not job.settings.general.overwrite:
            job_progress.round = records[-1].round
        self.running[job.settings.run_id] = job_progress

    def on_line(self, job: Job, line: str) -> None:
        """Print a line of a job, but for lines about rounds.

        A terminal's table shows the rounds, and elsewhere one line per round would hide the results.
        """
        records = RunFolder(job.settings.folder).rounds()
        is_round = self.running[job.settings.run_id].take(records)
        if is_round or isinstance(line, LineAboutRun):
            return
        if not isinstance(line, LineAboutData):
            self.say(job, line)
        elif line not in self.printed:
            self.printed.add(line)
            self.console.print(line, markup=False)

    def ended(self, job: Job, result: JobResult) -> None:
        """A job is over."""
        job_progress = self.running.pop(job.settings.run_id)
        self.pace.append((job_progress.seconds, job_progress.rounds))
        if result.summary is None:
            self.failed += 1
            words = f"failed: {result.reason}"
        else:
            self.finished += 1
            last = {name: selected(result.summary, name) for name in result.summary["models"]}
            words = f"finished  {accuracies(job, last)}"
        if not self.console.is_terminal:  # whose table has the counts
            words += f"  ({self.counts()})"
        self.say(job, words)

    def say(self, job: Job, words: str) -> None:
        """Print a line about a job."""
        self.console.print(f"{job.label:<{self.width}}  {words}", markup=False)

    def seconds_a_round(self) -> float | None:
        """Return the mean over all rounds seen to finish; None before the first."""
        finished = sum(count for _, count in self.pace)
        rounds = finished + sum(job.rounds for job in self.running.values())
        if not rounds:
            return None
        seconds = sum(seconds for seconds, _ in self.pace)
        seconds += sum(job.seconds for job in self.running.values())
        return seconds / rounds

    def time_left(self) -> float | None:
        """Return the seconds until all is done, by the rounds finished so far."""
        pace = self.seconds_a_round()
        if pace is None:
            return None
        seconds = 0.0
        for job_progress in self.running.values():
            seconds += job_progress.left * (job_progress.pace or pace)
        for job in self.waiting.values():
            seconds += job.settings.general.rounds * pace
        jobs = len(self.running) + len(self.waiting)
        return seconds / max(1, min(self.at_once, jobs))

    def counts(self) -> str:
        """Return one line about all jobs."""
        words = [f"{self.finished} of {self.total} done", f"{len(self.running)} running"]
        if self.waiting:
            words.append(f"{len(self.waiting)} waiting")
        if self.failed:
            words.append(f"{self.failed} failed")
        left = self.time_left()
        if left is not None and (self.running or self.waiting):
            words.append(f"about {duration(left)} left")
        return ", ".join(words)

    def table(self) -> RenderableType:
        """Return the live table: one row per running job."""
        table = terminal_table(header=False)
        running = list(self.running.values())  # a copy: another thread draws this
        for job_progress in running:
            job = job_progress.job
            pace = job_progress.pace or self.seconds_a_round()
            left = "" if pace is None else f"{duration(job_progress.left * pace)} left"
            rounds = f"round {job_progress.round}/{job.settings.general.rounds}"
            table.add_row(job.label, rounds, job_progress.numbers, left)
        title = f"{time.strftime('%H:%M:%S')}  {self.counts()}"
        return Group(Text(title, style="bold"), table)


def accuracies(job: Job, models: Mapping[str, ModelNumbers]) -> str:
    """Return the balanced accuracy of every model, in percent."""
    words = []
    for name, numbers in models.items():
        row = row_name(job.settings.parts, name)
        words.append(f"{row} {percent(numbers['balanced-accuracy'])}")
    return "  ".join(words)
