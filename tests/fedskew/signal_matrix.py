"""Every signal at every moment on every engine and on sweeps: `python tests/fedskew/signal_matrix.py` prints the table.

A command comes to rest, for ever, at a moment of its work; then a signal reaches it, alone or with all of its process
group. It has to end within 5 s, with exit status 130 and one sentence, and to leave neither processes nor files.
"""

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from fedskew.signals import SENTENCE, SIGNALS

ROOT = Path(__file__).resolve().parents[2]
WAIT = 600.0
"""Seconds for what comes in a few on a quiet machine."""

SITE = """
import os, sys, time

def halt(event, arguments):
    kind, name = os.environ["HALT_AT"].split(":")
    if event == kind and name in str(arguments[0]):
        open(os.environ["HALT_MARK"], "w").close()
        time.sleep(1000)

sys.addaudithook(halt)
"""
"""A `sitecustomize` for every process of a command: it comes to rest, for ever, at the event that HALT_AT names."""

MODEL = """
import os, time
from torch import nn
from client_app.models import Classifier

class Halting(nn.Module):
    def forward(self, x):
        if len(x) > 2 and os.environ["HALT_AT"] == ("round:" if self.training else "evaluation:"):
            open(os.environ["HALT_MARK"], "w").close()
            time.sleep(1000)
        return x.flatten(1)

def build(shape, classes):
    return Classifier(Halting(), nn.Linear(64, classes))
"""

MOMENTS = {
    "import": "import:torch",
    "data": "open:digits.csv",
    "round": "round:",
    "evaluation": "evaluation:",
    "checkpoint": "os.rename:.checkpoint.safetensors.",
    "end": "open:.summary.json.",
}
ENGINES = {
    "inprocess": ["--engine", "inprocess"],
    "workers": ["--engine", "workers", "--workers", "2"],
    "ray": ["--engine", "ray", "--workers", "2"],
    "sweep": ["demo-missing", "--engine", "inprocess", "--jobs", "2"],
    "sweep of workers": ["demo-missing", "--engine", "workers", "--workers", "2", "--jobs", "2"],
    "sweep on ray": ["demo-missing", "--engine", "ray", "--workers", "2"],
}
WHOM = ("command", "group", "group, 4 times")
PAIRS = [(number, whom) for number in SIGNALS for whom in WHOM[:2]]


class Command:
    """`fedskew run`, in a session and with a temporary folder of its own, that halts at a moment."""

    def __init__(self, folder: Path, words: Sequence[str], moment: str) -> None:
        (folder / "sitecustomize.py").write_text(SITE)
        (folder / "halting.py").write_text(MODEL)
        self.folder, self.mark = folder, folder / "mark"
        self.temporary = Path(
            tempfile.mkdtemp(prefix="s", dir="/tmp")
        )  # short, as for the sockets of Ray it has to be
        self.environment = {
            "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]),
            "HALT_AT": MOMENTS[moment],
            "HALT_MARK": str(self.mark),
            "TMPDIR": str(self.temporary),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        }
        self.shared: set[str] = set()
        """Its semaphores and shared memory at the moment."""
        settings = {
            "results": folder / "results",
            "model": "halting:build",
            "rounds": 1,
            "device": "cpu",
        }
        changes = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fedskew", "run", *words, *changes],
            env=os.environ | self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def halted(self) -> None:
        """Return once one of its processes has come to the moment."""
        deadline = time.monotonic() + WAIT
        while not self.mark.exists():
            assert self.process.poll() is None, (
                f"it ended before: {self.process.communicate()[1][-200:]!r}"
            )
            assert time.monotonic() < deadline, "the moment never came"
            time.sleep(0.02)
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                self.shared |= {
                    part.path for part in process.memory_maps() if part.path.startswith("/dev/shm/")
                }

    def signal(self, number: signal.Signals, whom: str) -> None:
        """Send a signal to the command, or to all of its process group, once or again and again."""
        for _ in range(4 if whom == WHOM[2] else 1):
            with contextlib.suppress(ProcessLookupError):
                (os.kill if whom == WHOM[0] else os.killpg)(self.process.pid, number)
            time.sleep(0.05 * (whom == WHOM[2]))

    def ended(self) -> tuple[int, str]:
        """Return exit status and stderr."""
        errors = self.process.communicate(timeout=WAIT)[1]
        return self.process.returncode, errors

    def processes(self) -> list[psutil.Process]:
        """Return what is left of it."""
        left = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if (
                    process.environ().get("HALT_MARK") == str(self.mark)
                    and process.status() != psutil.STATUS_ZOMBIE
                ):
                    left.append(process)
        return left

    def left(self, seconds: float) -> list[str]:
        """Return the processes and files that it has left and that so many seconds later are still there."""
        deadline = time.monotonic() + seconds
        while True:
            left = []
            for process in self.processes():
                with contextlib.suppress(psutil.Error):
                    left.append(" ".join(process.cmdline())[:60])
            left += [str(file) for file in self.temporary.iterdir()]
            left += [str(file) for file in self.folder.glob("results/**/.*")]
            left += sorted(file for file in self.shared if Path(file).exists())
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(0.05)

    def clear(self) -> None:
        """End and delete all that is left of it."""
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()
        self.process.wait()
        shutil.rmtree(self.temporary)


Cell = tuple[str, signal.Signals, str]
"""A moment, a signal, and whom it reaches."""


def cells(engine: str) -> list[Cell]:
    """Return every signal, to the command and to its group, at every moment, and Ctrl-C again and again.

    What differs from another engine only in who conducts it meets every moment, and every signal once.
    """
    if engine in ("sweep of workers", "sweep on ray"):
        return [(moment, *PAIRS[place]) for place, moment in enumerate(MOMENTS)]
    every = [(moment, *pair) for moment in MOMENTS for pair in PAIRS]
    return [*every, ("round", signal.SIGINT, WHOM[2])]


def row(command: Command, engine: str, cell: Cell, within: float) -> tuple[str, bool]:
    """Send the signal to the halted command; return a row of the table, and whether all is as it should be."""
    moment, number, whom = cell
    begun = time.monotonic()
    command.signal(number, whom)
    status, errors = command.ended()
    seconds = time.monotonic() - begun
    left = command.left(max(1.0, within - seconds))
    good = status == 130 and errors == SENTENCE.decode() and seconds <= within and not left
    said = "" if errors == SENTENCE.decode() else f"; said {errors[-300:]!r}"
    columns = [engine, moment, number.name, whom, f"{seconds:.1f}", f"{status}{said}"]
    columns += [", ".join(left) or "nothing", "" if good else "MISS"]
    return f"| {' | '.join(columns)} |", good


def main() -> int:
    """Print the table; the exit status is 1 when anything is not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engines", nargs="*", default=[*ENGINES], metavar="ENGINE")
    help_of_within = "seconds; more on a machine with other work"
    parser.add_argument("--within", type=float, default=5.0, help=help_of_within)
    asked = parser.parse_args()
    # A shell has what it starts in the background ignore these.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, lambda *given: sys.exit(1))  # so that what was started is ended
    heads = ("engine", "moment", "signal", "to", "seconds", "exit", "left over", "")
    print(f"| {' | '.join(heads)} |\n{'| --- ' * len(heads)}|")
    results = []
    for engine in asked.engines:
        for cell in cells(engine):
            with tempfile.TemporaryDirectory() as folder:
                command = Command(Path(folder), ENGINES[engine], cell[0])
                try:
                    command.halted()
                    text, good = row(command, engine, cell, asked.within)
                finally:
                    command.clear()
            print(text, flush=True)
            results.append(good)
    missed = results.count(False)
    print(f"\n{len(results)} signals, {missed} missed")
    return min(missed, 1)


if __name__ == "__main__":
    sys.exit(main())
