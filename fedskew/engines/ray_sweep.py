"""The runs of a sweep on Ray: one Ray, one SuperLink and one `flwr run` for all of them."""

import json
import os
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedskew.engines.flower import LaunchFailed
from fedskew.engines.launcher import Simulation, federation_words, simulation
from fedskew.engines.processes import SWEEP
from fedskew.engines.repeated import repeatedly

LAST_LINES = 5.0
"""Seconds that a run's last lines have to arrive after its end: flwr streams a log half a second late or more."""


def order_file(home: Path, number: int) -> Path:
    """Return the file with the settings of a sweep's run, which the launcher writes; `home` is flwr's home."""
    return home / f"order-{number}.json"


def answer_file(home: Path, number: int) -> Path:
    """Return the file with {"reason": why the run failed, or ""}, which the ServerApp writes at the run's end."""
    return home / f"answer-{number}.json"


def end_line(number: int) -> str:
    """Return the line that the ServerApp prints at a run's end: what follows in flwr's log is about the next run."""
    return f"--- end of run {number} ---\n"


@dataclass
class Started:
    """A ServerApp that waits for orders, and how far the sweep is with it."""

    running: Simulation
    federation: str
    """The federation config it was started with."""
    results: Path
    """The folder of the runs' folders; a killed sweep's processes are found by it."""
    orders: int = 0
    copied: int = 0
    """Bytes of flwr's output that are in the logs of runs."""
    is_copied: bool = False
    """Whether the last run's output is whole in its log."""

    @property
    def output(self) -> Path:
        """The file with what `flwr run` prints, of all runs."""
        return self.running.flower.home / "stream.log"

    def copy_output(self, log: Path) -> None:
        """Append to the log of the last ordered run what flwr has printed about it since the last call."""
        if self.is_copied:
            return
        with self.output.open("rb") as file:
            file.seek(self.copied)
            text = file.read()
        lines = text[: text.rfind(b"\n") + 1]
        of_run, end, _ = lines.partition(end_line(self.orders - 1).encode())
        with log.open("ab") as file:
            file.write(of_run)
        self.copied += len(of_run) + len(end)
        self.is_copied = bool(end)


class RaySweep:
    """Executes runs one after the other; only the first one waits for Ray, the SuperLink and the clients' processes.

    All start with the first run, and again after a failed run: that may have cost a client's process, which flwr never
    replaces. They also start again for a run with another number of nodes or another folder of results. To be used as
    a context manager, which leaves no process.

    Args:
        app: the folder of the Flower app.
    """

    def __init__(self, app: Path) -> None:
        self.app = app
        self.stack = ExitStack()
        self.started: Started | None = None

    def __enter__(self) -> "RaySweep":
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def is_done(self) -> bool:
        """Return whether no run is on its way."""
        started = self.started
        if started is None or not started.orders:
            return False
        return answer_file(started.running.flower.home, started.orders - 1).exists()

    def end(self) -> None:
        """End all processes."""
        self.stack.close()
        self.started = None

    def run(
        self,
        config: Mapping[str, Any],
        folder: Path,
        *,
        nodes: int,
        federation_config: str,
        log: Path,
    ) -> None:
        """Execute one run, and return once its summary is there.

        Args:
            config: the run's settings, as of `flwr run`.
            folder: of the run.
            nodes: of the federation, as federation_config overrides them.
            federation_config: as of `flwr run`.
            log: gets what flwr prints during this run.

        Raises:
            LaunchFailed: the run failed, or the processes could not be started.
            ValueError: federation_config is no list of KEY=VALUE.
            KeyboardInterrupt: on Ctrl-C, SIGTERM or a closed terminal.
        """
        from server_app.lock import tidy  # with torch

        federation = federation_words(nodes, federation_config)
        try:
            self.execute(self.start(folder.resolve().parent, federation), config, log)
        except BaseException:
            self.end()
            tidy(folder)
            raise

    def start(self, results: Path, federation: str) -> Started:
        """Return the ServerApp for runs of this federation and folder of results; it is started where there is none."""
        if self.started is not None:
            if (self.started.results, self.started.federation) == (results, federation):
                return self.started
            self.end()
        # No run's folder: another command may work on a run that this sweep has finished or not begun.
        mark = results / f"{SWEEP}{os.getpid()}"
        running = self.stack.enter_context(
            simulation(self.app, mark, self.is_done, "fedskew.engines.ray_server:app")
        )
        started = Started(running, federation, results)
        running.start({}, federation, started.output)
        self.started = started
        return started

    def execute(self, started: Started, config: Mapping[str, Any], log: Path) -> None:
        """Order one run and wait for the answer. Raises LaunchFailed when it failed."""
        from server_app.run_folder import write_text  # with torch

        home = started.running.flower.home
        answer = answer_file(home, started.orders)
        logged = log.stat().st_size if log.exists() else 0
        write_text(order_file(home, started.orders), json.dumps(config))
        started.orders += 1
        started.is_copied = False
        with repeatedly(lambda: started.copy_output(log)):
            died = started.running.wait(answer)
            deadline = time.monotonic() + LAST_LINES
            while answer.exists() and not started.is_copied and time.monotonic() < deadline:
                time.sleep(0.05)
        if not answer.exists():
            raise started.running.failure(died, answer, log, logged)
        reason = json.loads(answer.read_text(encoding="utf-8"))["reason"]
        if reason:
            raise LaunchFailed(reason)
