"""Runs in processes of their own, several at a time; a run whose process dies resumes once, in another one.

A run on which another process works, here or on another machine that shares the results folder, waits for its turn: the
lock of its folder is the queue. A terminal has a bar meanwhile, and a line per result.
"""

import logging
import multiprocessing
import os
import signal
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import psutil
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from data.packages import module_name
from data.text import LineAboutData, LineAboutRun, LineSink, printable, sentence
from fedskew.engines import JobResult, Resources, execute, gpus_for
from fedskew.engines.workers import end_with, fork_server, one_thread_each
from fedskew.formatting import duration, percent
from fedskew.signals import end_children, one_interrupt
from server_app.composition import row_name
from server_app.round_selection import selected
from server_app.run_folder import FolderBusy, RunFolder, tidy
from server_app.run_settings import RunSettings

INTERVAL = 0.5
"""Seconds between two looks whether another run may begin."""
ATTEMPTS = 2
"""Attempts of a run whose process dies; it resumes from its last round."""
UNMEASURED = 2 * 2**30
"""Bytes of memory that a run is expected to need before any of the sweep has trained a round."""
FAREWELL = 5.0
"""Seconds that a process has to end after its result."""
CUDA_CONTEXT = 600 * 2**20
"""Bytes of a GPU's memory that a process takes before it computes anything."""
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


@dataclass
class Running:
    """A job and the process that executes it."""

    job: Job
    gpu: str
    connection: Connection
    process: BaseProcess
    is_measured: bool = False
    """Whether it has trained a round, and so has taken most of the memory that it needs."""

    def end(self) -> None:
        """End the process, those below it, and what it was writing."""
        if self.process.is_alive():
            end_children(self.process.pid)
            self.process.kill()
        self.process.join()
        self.connection.close()
        if self.process.exitcode:
            tidy(self.job.settings.folder)


class RunPool:
    """The waiting, running and finished jobs of a sweep."""

    def __init__(
        self, jobs: Sequence[Job], resources: Resources, console: Console, finished: int
    ) -> None:
        self.waiting = deque(jobs)
        self.resources = resources
        self.console = console
        self.finished = finished
        """The runs that have a summary, of this sweep and from before."""
        self.all = finished + len(jobs)
        self.running: list[Running] = []
        self.outcomes: dict[str, JobResult] = {}
        self.deaths = Counter[str]()
        self.memory = 0
        """Bytes of memory that the largest run so far has taken."""
        self.gpu_share = 0.0
        """Share of a GPU's memory that the largest run so far has taken."""
        self.rounds = Counter[str]()
        """The rounds that each job has, by run id."""
        self.printed: set[str] = set()
        self.width = max(len(job.label) for job in jobs)
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
        self.bar = self.progress.add_task(
            "", total=sum(job.settings.general.rounds for job in jobs)
        )

    def run_here(self) -> None:
        """Run all jobs in this process, one after the other."""
        while self.waiting:
            job = self.waiting.popleft()
            self.count_earlier_rounds(job)
            report_line = partial(self.on_line, job)
            self.settle(job, result_of(job.settings, self.resources, report_line))

    def run(self) -> None:
        """Run all jobs, each in a process of its own; whatever ends this, no process is left."""
        one_thread_each()
        self.context = fork_server(module_name("server_app.app"), module_name("client_app.app"))
        self.gpus = gpus_for([job.settings for job in self.waiting])
        try:
            while self.waiting or self.running:
                self.begin_jobs()
                ready = wait([one.connection for one in self.running], INTERVAL)
                for one in list(self.running):
                    if one.connection in ready:
                        self.hear(one)
        finally:
            for one in self.running:
                one.end()

    def begin_jobs(self) -> None:
        """Begin as many jobs as there are processes and memory for."""
        while self.waiting and len(self.running) < self.resources.jobs:
            gpu = self.free_gpu()
            if gpu is None or not self.has_memory():
                return
            self.begin(self.waiting.popleft(), gpu)

    def has_memory(self) -> bool:
        """Return whether another run has the memory that the largest one takes."""
        if not self.running:
            return True
        # Of what is free they take theirs, too.
        unmeasured = sum(not one.is_measured for one in self.running)
        need = self.memory or UNMEASURED
        return psutil.virtual_memory().available >= need * (unmeasured + 1)

    def free_gpu(self) -> str | None:
        """Return the GPU with fewest runs; None where another one finds no room there, and "" where there are none."""
        if not self.gpus:
            return ""
        used = Counter(one.gpu for one in self.running)
        gpu = min(self.gpus, key=used.__getitem__)
        # Before a round has shown what a run takes, each has a GPU for itself.
        fitting = int(1 / (self.gpu_share or 1.0))
        return gpu if used[gpu] < fitting else None

    def begin(self, job: Job, gpu: str) -> None:
        """Start or resume a job."""
        self.count_earlier_rounds(job)
        try:
            # Deletes once, for all attempts, what is to be overwritten.
            job = replace(job, settings=job.folder.reset(job.settings))
        except Exception as error:
            self.settle(job, JobResult(reason=printable(sentence(error))))
            return
        ours, theirs = self.context.Pipe()
        arguments = (theirs, job.settings, self.resources, gpu)
        process = self.context.Process(target=work, args=arguments)
        process.start()
        theirs.close()
        self.running.append(Running(job, gpu, ours, process))

    def hear(self, one: Running) -> None:
        """Handle a process's line, its result or its end."""
        try:
            message = one.connection.recv()
            if isinstance(message, JobResult):
                one.process.join(FAREWELL)
        except (EOFError, OSError):
            message = self.after_death(one)
        if isinstance(message, JobResult):
            self.running.remove(one)
            one.end()
            self.settle(one.job, message)
            return
        line, memory, gpu_share = message
        if self.on_line(one.job, line):
            one.is_measured = True
            self.memory = max(self.memory, memory)
            self.gpu_share = max(self.gpu_share, gpu_share)

    def after_death(self, one: Running) -> JobResult:
        """Return how a job ended whose process has died; a first time it goes on later."""
        name = one.job.settings.run_id
        self.deaths[name] += 1
        one.process.join()
        reason = f"its process ended with exit code {one.process.exitcode}"
        if one.process.exitcode == -signal.SIGKILL:  # Linux kills so what takes the last memory
            reason = "its process was killed (SIGKILL); out of memory?"
        if self.deaths[name] == ATTEMPTS:
            return JobResult(reason=f"{reason}, and so had the one before")
        reason = f"{reason}; another one goes on from the last finished round"
        return JobResult(reason=reason, is_to_go_on=True)

    def settle(self, job: Job, result: JobResult) -> None:
        """Record how a job ended and print it, or let it wait for another attempt."""
        words = result.reason
        if result.is_to_go_on:
            self.waiting.append(job)
        else:
            self.outcomes[job.settings.run_id] = result
            if result.summary is None:
                words = f"failed: {words}"
            else:
                self.finished += 1
                words = f"finished  {accuracies(job, result.summary)}"
            words += f"  ({self.counts()})"
        self.print(words, job)

    # ---- progress -----------------------------------------------------------------------------------

    def count_earlier_rounds(self, job: Job) -> None:
        """Count the rounds that a job resumes from."""
        if not job.settings.general.overwrite:
            self.has_new_round(job)

    def has_new_round(self, job: Job) -> bool:
        """Count the rounds of a job so far, and return whether there is a new one."""
        records = job.folder.rounds()
        new = records[-1].round - self.rounds[job.settings.run_id] if records else 0
        if new <= 0:
            return False
        self.rounds[job.settings.run_id] += new
        self.progress.advance(self.bar, new)
        return True

    def on_line(self, job: Job, line: str) -> bool:
        """Print a line of a job, but for those about rounds, and return whether it is one about a round.

        A line per round would hide the results.
        """
        is_round = self.has_new_round(job)
        if isinstance(line, LineAboutData):
            self.print(line)
        elif not is_round and not isinstance(line, LineAboutRun):
            self.print(line, job)
        return is_round

    def print(self, line: str, job: Job | None = None) -> None:
        """Print a line, about a job or all, but once: all runs on the same data say the same of them."""
        if job is not None:
            line = f"{job.label:<{self.width}}  {line}"
        if line not in self.printed:
            self.printed.add(line)
            self.console.print(line, markup=False)

    def counts(self) -> str:
        """Return one line about all jobs."""
        words = [f"{self.finished} of {self.all} done", f"{len(self.running)} running"]
        if self.waiting:
            words.append(f"{len(self.waiting)} waiting")
        failed = sum(result.summary is None for result in self.outcomes.values())
        if failed:
            words.append(f"{failed} failed")
        left = self.progress.tasks[0].time_remaining
        if left is not None and (self.running or self.waiting):
            words.append(f"about {duration(left)} left")
        return ", ".join(words)


def accuracies(job: Job, summary: dict[str, Any]) -> str:
    """Return the balanced accuracy of every model of a finished run, in percent."""
    words = []
    for name in summary["models"]:
        row = row_name(job.settings.parts, name)
        words.append(f"{row} {percent(selected(summary, name)['balanced-accuracy'])}")
    return "  ".join(words)


def conduct(
    jobs: Sequence[Job], resources: Resources, console: Console, finished: int = 0
) -> dict[str, JobResult]:
    """Run the jobs and return each one's outcome by the run's id.

    Args:
        jobs: to be begun in this order.
        resources: as `Resources.shared` returns them.
        console: gets the bar, and a line per result.
        finished: how many runs of the sweep have finished earlier.
    """
    pool = RunPool(jobs, resources, console, finished)
    with one_interrupt(), pool.progress:
        if resources.engine == "ray":
            pool.run_here()  # Ray has the processes, and takes the machine for each run
        else:
            pool.run()
    return pool.outcomes


class Teller(logging.Handler):
    """Reports log records as lines of the run: the sweep has the terminal."""

    def __init__(self, report_line: LineSink) -> None:
        super().__init__(logging.WARNING)
        self.report_line = report_line

    def emit(self, record: logging.LogRecord) -> None:
        """Report a record."""
        self.report_line(record.getMessage())


def work(connection: Connection, settings: RunSettings, resources: Resources, gpu: str) -> None:
    """In a process of its own: execute a run, and send its lines, each with the memory taken so far, and its result."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "this is the main function of a process that a sweep begins"
    end_with(parent.sentinel)
    if gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu

    def report_line(line: str) -> None:
        connection.send((line, memory_taken(), gpu_share_taken()))

    logging.getLogger("flwr").setLevel(logging.ERROR)
    logging.getLogger().addHandler(Teller(report_line))
    connection.send(result_of(settings, resources, report_line))


def memory_taken() -> int:
    """Return the bytes that this process and those below it take."""
    process = psutil.Process()
    members = [process, *process.children(recursive=True)]
    return sum(member.memory_info().rss for member in members)


def gpu_share_taken() -> float:
    """Return the share of its GPU's memory that this process has taken at most."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return 0.0
    _, total = torch.cuda.mem_get_info()
    return min(1.0, (torch.cuda.max_memory_reserved() + CUDA_CONTEXT) / total)


def result_of(settings: RunSettings, resources: Resources, report_line: LineSink) -> JobResult:
    """Execute a run and return how it ended."""
    try:
        return JobResult(execute(settings, resources, report_line))
    except FolderBusy as error:
        return JobResult(reason=f"waits: {error}", is_to_go_on=True)
    except Exception as error:
        return JobResult(reason=printable(sentence(error)))
