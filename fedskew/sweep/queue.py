"""Conducting a sweep: worker processes pull runs from a queue, and no run costs another one anything."""

import os
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import wait

import psutil

from data.text import printable, sentence
from fedskew.engines.local import fork_server
from fedskew.interrupt import one_interrupt
from fedskew.jobs import Job, Outcome, Shares, emptiest, ordered
from fedskew.sweep.overview import Overview
from fedskew.sweep.worker import Worker
from server_app.results import RunFolder

INTERVAL = 0.5
"""Seconds between two looks at the memory and at the clock when no run says anything."""
ATTEMPTS = 2
"""Times that a run is begun whose process dies; it goes on from its last round."""


def conduct(jobs: Sequence[Job], shares: Shares, overview: Overview, federation_config: str = "") -> dict[str, Outcome]:
    """Conduct the jobs, `shares.jobs` at a time, and return how each ended, by the run's id.

    Whatever ends this, KeyboardInterrupt included, no process is left.
    """
    with one_interrupt(), overview:
        if shares.engine == "ray":
            return one_by_one(jobs, shares, overview, federation_config)
        queue = Queue(jobs, shares, overview)
        try:
            return queue.run()
        finally:
            queue.end()


def one_by_one(jobs: Sequence[Job], shares: Shares, overview: Overview, federation_config: str) -> dict[str, Outcome]:
    """Conduct the jobs in this process, where an engine has processes enough of its own."""
    from fedskew.engines import execute

    outcomes: dict[str, Outcome] = {}
    for job in ordered(jobs):
        overview.started(job)
        try:
            summary = execute(
                job.settings,
                shares.engine,
                lambda line, job=job: overview.heard(job, line),  # type: ignore[misc]
                workers=shares.workers,
                federation_config=federation_config,
            )
            outcomes[job.settings.run_id] = Outcome(summary)
        except Exception as error:
            outcomes[job.settings.run_id] = Outcome(reason=printable(sentence(error)))
        overview.ended(job, outcomes[job.settings.run_id])
    return outcomes


class Queue:
    """The jobs that wait and the workers that have one."""

    def __init__(self, jobs: Sequence[Job], shares: Shares, overview: Overview) -> None:
        self.waiting = deque(ordered(jobs))
        self.shares, self.overview = shares, overview
        self.outcomes: dict[str, Outcome] = {}
        self.attempts: dict[str, int] = {}
        self.crew: list[Worker] = []
        for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ.setdefault(variable, "1")
        self.context = fork_server("server_app.app", "client_app.app")

    @property
    def busy(self) -> list[Worker]:
        """The workers that have a job."""
        return [worker for worker in self.crew if worker.job is not None]

    def run(self) -> dict[str, Outcome]:
        """Conduct everything."""
        while self.waiting or self.busy:
            while self.waiting and len(self.busy) < self.shares.jobs and room(self.waiting[0].memory_bytes, self.busy):
                self.begin(self.waiting.popleft())
            ready = wait([worker.connection for worker in self.busy], INTERVAL)
            for worker in self.busy:
                if worker.connection in ready:
                    self.heed(worker)
        return self.outcomes

    def begin(self, job: Job) -> None:
        """Give a job to a worker, a new one where all have theirs."""
        self.overview.started(job)
        try:
            job = replace(job, settings=RunFolder(job.settings.folder).begin_anew(job.settings))
        except Exception as error:
            self.settle(job, Outcome(reason=printable(sentence(error))))
            return
        for dead in [worker for worker in self.crew if worker.job is None and not worker.process.is_alive()]:
            self.dismiss(dead)  # killed while it waited, which costs no run an attempt
        worker = next((worker for worker in self.crew if worker.job is None), None)
        if worker is None:
            gpu = emptiest(self.shares.gpus, [worker.gpu for worker in self.crew])
            worker = Worker(self.context, self.shares, gpu)
            self.crew.append(worker)
        name = job.settings.run_id
        self.attempts[name] = self.attempts.get(name, 0) + 1
        worker.take(job)

    def heed(self, worker: Worker) -> None:
        """Take notice of what a worker says, or of its end."""
        kind, said = worker.event()
        job = worker.job
        assert job is not None, "only workers with a job are listened to"
        name = job.settings.run_id
        if kind == "line":
            self.overview.heard(job, said)
            return
        worker.job = None
        if kind == "died":
            self.dismiss(worker)
            if self.attempts[name] < ATTEMPTS:
                self.overview.heard(job, f"{said}; another one goes on from the last finished round")
                self.waiting.appendleft(job)
                return
            said = f"{said}, and so had the one before"
        self.settle(job, Outcome(said) if kind == "finished" else Outcome(reason=said))

    def dismiss(self, worker: Worker) -> None:
        """Do without a worker whose process is gone."""
        worker.end()
        self.crew.remove(worker)

    def settle(self, job: Job, outcome: Outcome) -> None:
        """Note how a job ended."""
        self.outcomes[job.settings.run_id] = outcome
        self.overview.ended(job, outcome)

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
    promised = sum(max(0, worker.job.memory_bytes - worker.memory_bytes()) for worker in busy if worker.job is not None)
    return psutil.virtual_memory().available - promised >= need
