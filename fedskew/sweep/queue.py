"""The queue of a sweep: worker processes take runs from it, and a failed run does not affect the others."""

import functools
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import wait

import psutil

from data.package_files import module_name
from data.text import printable, sentence
from fedskew.engines.workers import fork_server
from fedskew.scheduling import Allocation, Job, JobResult, emptiest, ordered
from fedskew.signals import one_interrupt
from fedskew.sweep.progress import Overview
from fedskew.sweep.worker import Event, Worker
from server_app.run_folder import RunFolder

INTERVAL = 0.5
"""Seconds between two checks of memory and time while no run reports."""
ATTEMPTS = 2
"""Attempts of a run whose process dies; it resumes from its last round."""


def conduct(
    jobs: Sequence[Job],
    allocation: Allocation,
    overview: Overview,
    federation_config: str = "",
) -> dict[str, JobResult]:
    """Run the jobs, `allocation.jobs` in parallel, and return each one's outcome by the run's id.

    Whatever ends this, KeyboardInterrupt included, no process is left.
    """
    with one_interrupt(), overview:
        if allocation.engine == "ray":
            return on_ray(jobs, allocation, overview, federation_config)
        queue = LocalQueue(jobs, allocation, overview)
        try:
            return queue.run()
        finally:
            queue.end()


def on_ray(
    jobs: Sequence[Job],
    allocation: Allocation,
    overview: Overview,
    federation_config: str,
) -> dict[str, JobResult]:
    """Run the jobs one after the other on one Ray, which takes the whole machine for each."""
    from fedskew.engines import APP, execute
    from fedskew.engines.ray_sweep import RaySweep

    outcomes: dict[str, JobResult] = {}
    with RaySweep(APP) as ray_sweep:
        for job in ordered(jobs):
            overview.started(job)
            try:
                summary = execute(
                    job.settings,
                    allocation.engine,
                    functools.partial(overview.on_line, job),
                    workers=allocation.workers,
                    federation_config=federation_config,
                    ray_sweep=ray_sweep,
                )
                result = JobResult(summary)
            except Exception as error:
                result = JobResult(reason=printable(sentence(error)))
            outcomes[job.settings.run_id] = result
            overview.ended(job, result)
    return outcomes


class Queue(ABC):
    """The waiting and the finished jobs."""

    def __init__(self, jobs: Sequence[Job], overview: Overview) -> None:
        self.waiting = deque(ordered(jobs))
        self.overview = overview
        self.outcomes: dict[str, JobResult] = {}
        self.attempts: dict[str, int] = {}

    def begin(self, job: Job) -> None:
        """Start or resume a job."""
        self.overview.started(job)
        try:
            job = replace(job, settings=RunFolder(job.settings.folder).reset(job.settings))
        except Exception as error:
            self.settle(job, JobResult(reason=printable(sentence(error))))
            return
        name = job.settings.run_id
        self.attempts[name] = self.attempts.get(name, 0) + 1
        self.hand_over(job)

    @abstractmethod
    def hand_over(self, job: Job) -> None:
        """Give a job to a process."""

    def on_event(self, job: Job, event: Event) -> None:
        """Handle the end of a job or of its process."""
        kind, content = event
        if kind == "finished":
            self.settle(job, JobResult(content))
        elif kind == "failed":
            self.settle(job, JobResult(reason=content))
        elif self.attempts[job.settings.run_id] < ATTEMPTS:
            line = f"{content}; another one goes on from the last finished round"
            self.overview.on_line(job, line)
            self.waiting.appendleft(job)
        else:
            self.settle(job, JobResult(reason=f"{content}, and so had the one before"))

    def settle(self, job: Job, result: JobResult) -> None:
        """Record a job's outcome."""
        self.outcomes[job.settings.run_id] = result
        self.overview.ended(job, result)


class LocalQueue(Queue):
    """The jobs, and this machine's busy workers."""

    def __init__(self, jobs: Sequence[Job], allocation: Allocation, overview: Overview) -> None:
        super().__init__(jobs, overview)
        self.allocation = allocation
        self.crew: list[Worker] = []
        for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ.setdefault(variable, "1")
        self.context = fork_server(module_name("server_app.app"), module_name("client_app.app"))

    @property
    def busy(self) -> list[Worker]:
        """The workers that have a job."""
        return [worker for worker in self.crew if worker.job is not None]

    def run(self) -> dict[str, JobResult]:
        """Run all jobs."""
        while self.waiting or self.busy:
            while self.can_begin():
                self.begin(self.waiting.popleft())
            ready = wait([worker.connection for worker in self.busy], INTERVAL)
            for worker in self.busy:
                if worker.connection in ready:
                    self.listen(worker)
        return self.outcomes

    def can_begin(self) -> bool:
        """Return whether the next job may begin now."""
        if not self.waiting or len(self.busy) >= self.allocation.jobs:
            return False
        return room(self.waiting[0].memory_bytes, self.busy)

    def hand_over(self, job: Job) -> None:
        """Give a job to an idle worker, or to a new one."""
        for worker in list(self.crew):
            # Killed while it waited, which costs no run an attempt.
            if worker.job is None and not worker.process.is_alive():
                self.dismiss(worker)
        idle = [worker for worker in self.crew if worker.job is None]
        if not idle:
            gpu = emptiest(self.allocation.gpus, [worker.gpu for worker in self.crew])
            idle = [Worker(self.context, self.allocation, gpu)]
            self.crew += idle
        idle[0].take(job)

    def listen(self, worker: Worker) -> None:
        """Handle a worker's message or its end."""
        kind, content = worker.event()
        job = worker.job
        assert job is not None, "only workers with a job are listened to"
        if kind == "line":
            self.overview.on_line(job, content)
            return
        worker.job = None
        if kind == "died":
            self.dismiss(worker)
        self.on_event(job, (kind, content))

    def dismiss(self, worker: Worker) -> None:
        """Remove a worker whose process is gone."""
        worker.end()
        self.crew.remove(worker)

    def end(self) -> None:
        """End every worker; those without a job end by themselves, all at the same time."""
        for worker in self.crew:
            worker.let_go()
        for worker in self.crew:
            worker.end()


def room(need: int, busy: Sequence[Worker]) -> bool:
    """Return whether a run that needs `need` bytes may begin: its memory is free, or it would be the only run."""
    if not busy:
        return True
    promised = 0  # to running jobs, which may not have taken all of theirs yet
    for worker in busy:
        if worker.job is not None:
            promised += max(0, worker.job.memory_bytes - worker.memory_bytes())
    return psutil.virtual_memory().available - promised >= need
