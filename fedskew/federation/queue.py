"""The queue of a federation's runs: one trains, the others wait for their turn.

FOLDER/runs/N/run.json     what was asked for, by whom and when, and the process that does it
             /output.log   what a detached run has printed
             /end.json     how it ended; missing until then
"""

import contextlib
import getpass
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import psutil

from data import DataError
from data.private_files import owner_only
from data.text import LineSink, printable
from fedskew.engines.processes import identity, process_of
from fedskew.federation import PASSPHRASE
from fedskew.federation.folder import FederationFolder
from server_app.run_folder import write_text

POLL = 0.5
"""Seconds between two looks at the queue."""
STOP_TIMEOUT = 30.0
"""Seconds that a run has to end after it was asked to; then it is killed."""
WAITING, RUNNING, LOST = "waiting", "running", "lost"
FINISHED, FAILED, STOPPED = "finished", "failed", "stopped"
RUN_FILE, LOG_FILE, END_FILE = "run.json", "output.log", "end.json"


@dataclass(frozen=True)
class QueuedRun:
    """A run that somebody has asked for."""

    number: int
    words: tuple[str, ...]
    """Its settings, each KEY=VALUE."""
    results: str
    """The folder of the runs' folders."""
    wait: float | None
    """Minutes that it waits for sites that are away; None is the default."""
    user: str
    asked: str
    """When it was asked for, in UTC."""
    detached: bool
    process: str
    """What names the process that does it, and no later one with its process id."""
    signature: str = ""
    """The coordinator's, made when the run was asked for; empty where federation.toml has no run-key."""
    text: str = ""
    """The sha256 of the federation.toml that it keeps; empty in a file of an earlier version."""


@dataclass(frozen=True)
class QueueStatus:
    """How a queued run stands."""

    state: str
    """waiting, running, finished, failed, stopped, or lost: its process is gone, as after a restart of the machine."""
    reason: str = ""
    """Why it failed."""

    @property
    def is_over(self) -> bool:
        """Whether it needs no turn any more."""
        return self.state in (FINISHED, FAILED, STOPPED)


class RunQueue:
    """The runs of a federation, numbered from 1 in the order in which they were asked for."""

    def __init__(self, folder: FederationFolder) -> None:
        self.folder = folder
        self.path = folder.path / "runs"

    def place(self, number: int) -> Path:
        """Return the folder of a run."""
        return self.path / str(number)

    def log(self, number: int) -> Path:
        """Return the file of what a detached run has printed."""
        return self.place(number) / LOG_FILE

    # ---- who is there ------------------------------------------------------------------------------------------------

    def numbers(self) -> list[int]:
        """Return the numbers of all runs, in order."""
        if not self.path.is_dir():
            return []
        return sorted(int(place.name) for place in self.path.iterdir() if place.name.isdecimal())

    def get(self, number: int) -> QueuedRun:
        """Return a run. Raises DataError where there is none of that number, or its file is damaged."""
        file = self.place(number) / RUN_FILE
        try:
            fields = json.loads(file.read_text(encoding="utf-8"))
            return QueuedRun(**{**fields, "words": tuple(fields["words"])})
        except FileNotFoundError:
            rule = f"there is no such run: `fedskew federation runs {self.folder.path}` lists them"
            raise DataError(rule, where=str(self.path), key="RUN", value=str(number)) from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"is damaged: {error}", where=str(file)) from None

    def runs(self) -> list[QueuedRun]:
        """Return all runs, in order."""
        # A folder without a file is of a command that is just being given.
        return [self.get(number) for number in self.numbers() if self.is_written(number)]

    def is_written(self, number: int) -> bool:
        """Return whether the run's file is there."""
        return (self.place(number) / RUN_FILE).exists()

    def status(self, run: QueuedRun) -> QueueStatus:
        """Return how a run stands."""
        file = self.place(run.number) / END_FILE
        if file.exists():
            try:
                end = json.loads(file.read_text(encoding="utf-8"))
                return QueueStatus(str(end["state"]), printable(str(end["reason"])))
            except (ValueError, LookupError, TypeError):
                # It is written when a run is over, and a loss of power can leave it empty.
                return QueueStatus(FAILED, f"{file} is damaged: how the run ended is not known")
        if process_of(run.process) is None:
            return QueueStatus(LOST)
        return QueueStatus(WAITING if self.ahead(run.number) else RUNNING)

    def ahead(self, number: int) -> list[int]:
        """Return the runs before this one that still need their turn; lost ones do not hold it up."""
        before = []
        for other in self.numbers():
            if other >= number or not self.is_written(other):
                continue
            # Looked at twice a second: what is over is not read again.
            if (self.place(other) / END_FILE).exists():
                continue
            if process_of(self.get(other).process) is not None:
                before.append(other)
        return before

    # ---- a run takes its turn ----------------------------------------------------------------------------------------

    def enter(
        self,
        words: Sequence[str],
        results: str,
        wait: float | None,
        detached: bool,
        signature: str = "",
        text: str = "",
    ) -> QueuedRun:
        """Put a run at the end of the queue, done by this process until `start` gives it one of its own."""
        with owner_only():
            number = self.new_place()
            run = QueuedRun(
                number=number,
                words=tuple(words),
                results=results,
                wait=wait,
                user=getpass.getuser(),
                asked=f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}",
                detached=detached,
                process=identity(),
                signature=signature,
                text=text,
            )
            self.write(run)
        return run

    def new_place(self) -> int:
        """Make the folder of the next run and return its number."""
        self.path.mkdir(exist_ok=True)
        while True:
            number = max(self.numbers(), default=0) + 1
            # Of two commands that are given at once one makes it, and the other tries the next number.
            with contextlib.suppress(FileExistsError):
                self.place(number).mkdir()
                return number

    def write(self, run: QueuedRun) -> None:
        """Write a run's file."""
        with owner_only():
            write_text(self.place(run.number) / RUN_FILE, json.dumps(asdict(run), indent=2))

    def start(self, run: QueuedRun) -> QueuedRun:
        """Give a run a process of its own, which goes on when this one ends; it takes its turn by itself."""
        command = [sys.executable, "-m", "fedskew", "federation", "run", str(self.folder.path)]
        for word in run.words:
            command += ["--set", word]
        command += ["--results", run.results, "--queued", str(run.number)]
        if run.wait is not None:
            command += ["--wait", f"{run.wait:g}"]
        with owner_only():
            log = self.log(run.number).open("ab")
        # It has the run's signature, and so no need of the key.
        environment = {key: value for key, value in os.environ.items() if key != PASSPHRASE}
        with log:
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        started = replace(run, process=identity(process.pid))
        self.write(started)
        return started

    def wait_for_turn(self, number: int, report_line: LineSink) -> None:
        """Return once no run before this one needs its turn; `report_line` gets a line when those change."""
        before: list[int] = []
        while ahead := self.ahead(number):
            if ahead != before:
                numbers = ", ".join(map(str, ahead))
                report_line(f"run {number} waits for its turn, after {numbers}")
                before = ahead
            time.sleep(POLL)

    @contextmanager
    def recorded(self, number: int, end_server: Callable[[], None]) -> Iterator[None]:
        """Record how a run ends. One that is interrupted in its turn first ends its server process (`end_server`)."""
        try:
            yield
        except KeyboardInterrupt:
            if not self.ahead(number):
                end_server()
            self.end(number, STOPPED)
            raise
        except BaseException as error:
            # Also SystemExit: the queue must not wait for a run that is over.
            self.end(number, FAILED, " ".join(str(error).split())[:1000])
            raise
        self.end(number, FINISHED)

    def end(self, number: int, state: str, reason: str = "") -> None:
        """Record how a run has ended."""
        with owner_only():
            text = json.dumps({"state": state, "reason": reason})
            write_text(self.place(number) / END_FILE, text)

    # ---- from outside ------------------------------------------------------------------------------------------------

    def stop(self, number: int) -> str:
        """End a run, and return in words what was done. Its records stay, so that it can be asked for again."""
        run = self.get(number)
        status = self.status(run)
        if status.is_over:
            return f"run {number} has ended: {status.state}"
        process = process_of(run.process)
        if process is not None:
            process.terminate()
            _, still_there = psutil.wait_procs([process], timeout=STOP_TIMEOUT)
            for one in still_there:
                one.kill()
        if not self.status(run).is_over:  # it was lost, or killed before it could record its end
            self.end(number, STOPPED)
        return f"run {number} is stopped; the same settings resume it"

    def follow(self, number: int, print_text: Callable[[str], None]) -> QueueStatus:
        """Print what a detached run prints until it has ended, and return how it stands."""
        run = self.get(number)
        if not run.detached:
            rule = "prints into the terminal that it was started in: only a detached run has a log"
            raise DataError(rule, where=str(self.path), key="RUN", value=str(number))
        with self.log(number).open(encoding="utf-8", errors="replace") as log:
            while True:
                # Looked at before the log is read, so that what it prints last is not missed.
                status = self.status(self.get(number))
                text = log.read()
                if text:
                    print_text(text)
                if status.is_over or status.state == LOST:
                    return status
                time.sleep(POLL)

    def restart_lost(self) -> list[int]:
        """Start again the detached runs whose process is gone, as after a restart of the machine."""
        restarted = []
        for run in self.runs():
            if run.detached and self.status(run).state == LOST:
                self.start(run)
                restarted.append(run.number)
        return restarted
