"""A process that executes runs one after the other, and the sweep's handle of it."""

import contextlib
import logging
import multiprocessing
import os
import signal
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from typing import Any

import psutil

from data.text import LineSink, printable, sentence
from fedskew.engines.workers import end_with
from fedskew.scheduling import Allocation, Job, same_data
from fedskew.signals import end_children
from server_app.lock import tidy
from server_app.run_settings import RunSettings

Event = tuple[str, Any]
"""("line", line), ("finished", summary), ("failed", reason) or ("died", reason)."""


FAREWELL = 1.0
"""Seconds that a process has to end by itself."""


class Worker:
    """A worker process and the job it has."""

    def __init__(self, context: ForkServerContext, allocation: Allocation, gpu: str | None) -> None:
        self.gpu = gpu
        self.connection, theirs = context.Pipe()
        self.process = context.Process(
            target=work, args=(theirs, allocation.engine, allocation.workers, gpu)
        )
        self.process.start()
        theirs.close()
        self.job: Job | None = None

    def take(self, job: Job) -> None:
        """Give the process a job."""
        self.job = job
        with contextlib.suppress(OSError):  # it died meanwhile, which `event` says
            self.connection.send(job.settings)

    def event(self) -> Event:
        """Return the process's next event; to be called when its connection is ready, or the process is gone."""
        try:
            event: Event = self.connection.recv()
            return event
        except (EOFError, OSError):
            self.process.join()
            code = self.process.exitcode or 0
            reason = f"its process ended with exit status {code}"
            if code < 0:
                reason = f"its process ended by signal {-code} ({signal.Signals(-code).name})"
            if code == -signal.SIGKILL:  # Linux kills so what takes the last memory
                reason += "; out of memory?"
            return "died", reason

    def memory_bytes(self) -> int:
        """Return the bytes that are the process's own."""
        with contextlib.suppress(psutil.Error):
            return int(psutil.Process(self.process.pid).memory_full_info().uss)
        return 0

    def let_go(self) -> None:
        """Let the process end by itself, if it has no job: killed, it would leave its engine's semaphores behind."""
        if self.job is None:  # one that has would still write into the pipe
            self.connection.close()

    def end(self) -> None:
        """End the process and those below it, at once if it has a job; the file that this was writing is deleted."""
        self.let_go()
        if self.job is None:
            self.process.join(FAREWELL)
        if self.process.is_alive():
            end_children(self.process.pid)
        self.process.kill()
        self.process.join()
        self.connection.close()
        if self.job is not None:
            tidy(self.job.settings.folder)


class Teller(logging.Handler):
    """Hands log records to the sweep, which has the terminal."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(logging.WARNING)
        self.connection = connection

    def emit(self, record: logging.LogRecord) -> None:
        self.connection.send(("line", record.getMessage()))


def work(connection: Connection, engine: str, workers: int, gpu: str | None) -> None:
    """Execute the runs whose settings arrive, until no more can."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "this is the main function of a worker process"
    end_with(parent.sentinel)
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    logging.getLogger("flwr").setLevel(logging.ERROR)
    logging.getLogger().addHandler(Teller(connection))
    runs = Executor()

    def report_line(line: str) -> None:
        connection.send(("line", line))

    with contextlib.suppress(EOFError):  # the sweep has closed its end
        while True:
            settings = connection.recv()
            event = runs.execute(settings, engine, workers, report_line)
            connection.send(event)


class Executor:
    """Executes runs one after the other, and loads data once for consecutive runs on the same data."""

    def __init__(self) -> None:
        self.last: RunSettings | None = None

    def execute(
        self,
        settings: RunSettings,
        engine: str,
        workers: int,
        report_line: LineSink,
    ) -> Event:
        """Execute a run and return how it ended."""
        from client_app.runtime import simulation_runtime
        from data import federate
        from fedskew.engines import execute

        if self.last is None or same_data(self.last) != same_data(settings):
            federate.cache_clear()  # the data of the runs so far
        self.last = settings
        try:
            return "finished", execute(settings, engine, report_line, workers=workers)
        except Exception as error:
            return "failed", printable(sentence(error))
        finally:
            simulation_runtime.cache_clear()  # no other run has the same clients
