"""Signals at every moment of every engine: the command ends with one sentence and 130, and leaves nothing behind.

A command comes to rest, for ever, at a moment of its work; then a signal reaches it, alone or with all of its process
group. `make signals` tries these, which needs a quiet machine: it has to end within seconds.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from fedskew.engines.processes import alive, end, mark, marked
from fedskew.engines.workers import WorkersGrid
from fedskew.signals import SENTENCE, SIGNALS, blocked, one_interrupt

ROOT = Path(__file__).resolve().parents[2]
WAIT = 600.0
"""Seconds for what comes, or goes, in a few on a quiet machine."""

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
    "inprocess": "--engine inprocess",
    "workers": "--engine workers --workers 2",
    "ray": "--engine ray --workers 2",
    "sweep": "demo-missing --engine inprocess --jobs 2",
    "sweep of workers": "demo-missing --engine workers --workers 2 --jobs 2",
    "sweep on ray": "demo-missing --engine ray --workers 2",
}
WAYS = [(number, to_group) for number in SIGNALS for to_group in (False, True)]
"""The signals, each to the command alone and to all of its process group."""


class Command:
    """`fedskew run`, in a session and with a temporary folder of its own, that halts at a moment."""

    def __init__(self, folder: Path, words: str, moment: str) -> None:
        (folder / "sitecustomize.py").write_text(SITE)
        (folder / "halting.py").write_text(MODEL)
        self.folder, self.mark = folder, folder / "mark"
        # The sockets of Ray need a short path.
        self.temporary = Path(tempfile.mkdtemp(prefix="s", dir="/tmp"))
        environment = {
            "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]),
            "HALT_AT": MOMENTS[moment],
            "HALT_MARK": str(self.mark),
            "TMPDIR": str(self.temporary),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        }
        self.shared: set[str] = set()
        """Its semaphores and shared memory at the moment."""
        changes = ["model=halting:build", "rounds=1", "device=cpu", f"results={folder / 'results'}"]
        settings = [word for change in changes for word in ("--set", change)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fedskew", "run", *words.split(), *settings],
            env=os.environ | environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def halted(self) -> None:
        """Return once one of its processes has come to the moment."""
        deadline = time.monotonic() + WAIT
        while not self.mark.exists():
            assert self.process.poll() is None, self.process.communicate()[1][-200:]
            assert time.monotonic() < deadline, "the moment never came"
            time.sleep(0.02)
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                paths = {part.path for part in process.memory_maps()}
                self.shared |= {path for path in paths if path.startswith("/dev/shm/")}

    def ended(self, number: signal.Signals, to_group: bool) -> tuple[int, str]:
        """Return exit status and stderr after a signal."""
        (os.killpg if to_group else os.kill)(self.process.pid, number)
        errors = self.process.communicate(timeout=60)[1]
        return self.process.returncode, errors

    def processes(self) -> list[psutil.Process]:
        """Return what is left of it."""
        left = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                is_ours = process.environ().get("HALT_MARK") == str(self.mark)
                if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                    left.append(process)
        return left

    def left(self, seconds: float) -> list[str]:
        """Return the processes and files that it has left and that so many seconds later are still there."""
        deadline = time.monotonic() + seconds
        while True:
            left = [str(process) for process in self.processes()]
            left += map(str, self.temporary.iterdir())
            left += map(str, self.folder.glob("results/**/.*"))
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


@pytest.fixture
def halting():
    commands: list[Command] = []
    yield commands
    for command in commands:
        command.clear()


CELLS = [("inprocess", "import", *WAYS[0]), ("inprocess", "import", *WAYS[3])]
"""Engine, moment, signal, and whether it is sent to the group. `make signals` has every second cell of the table."""
OTHERS = [
    pytest.param(engine, moment, *WAYS[(row + column) % len(WAYS)], marks=pytest.mark.signals)
    for row, engine in enumerate(ENGINES)
    for column, moment in enumerate(MOMENTS)
    if (row + column) % 2
]


@pytest.mark.parametrize(("engine", "moment", "number", "to_group"), [*CELLS, *OTHERS])
def test_a_signal_ends_a_command_with_a_sentence_and_nothing_is_left(
    tmp_path, halting, engine, moment, number, to_group
):
    command = Command(tmp_path, ENGINES[engine], moment)
    halting.append(command)
    command.halted()
    assert command.ended(number, to_group) == (130, SENTENCE.decode())
    assert command.left(60.0) == []


def test_nobody_waits_for_a_worker_that_is_busy():
    with WorkersGrid(1) as grid:
        worker = psutil.Process(grid.pool.submit(os.getpid).result())
        grid.pool.submit(time.sleep, 1000)
    assert not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE


def test_one_interrupt_interrupts_once_and_restores_the_handlers():
    before = [signal.getsignal(number) for number in SIGNALS]
    cleaned = False
    with pytest.raises(KeyboardInterrupt), one_interrupt() as arrived:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)
        finally:
            for number in SIGNALS:
                os.kill(os.getpid(), number)
            time.sleep(0.05)
            cleaned = True
    assert cleaned and arrived.is_set()
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_a_process_started_while_signals_are_held_back_gets_none_and_this_one_gets_it_later():
    code = "import signal; print(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])))"
    with pytest.raises(KeyboardInterrupt), one_interrupt():
        with blocked():
            os.kill(os.getpid(), signal.SIGTERM)
            command = [sys.executable, "-S", "-c", code]
            process = subprocess.run(command, capture_output=True, text=True, check=True)
        pytest.fail("the signal was lost")
    assert all(str(number.value) in process.stdout for number in SIGNALS)


FORKING = """
import os, signal, time
signal.signal(signal.SIGTERM, lambda *_: None if os.fork() else signal.signal(signal.SIGTERM, signal.SIG_IGN))
print('up', flush=True)
end = time.monotonic() + 60
while time.monotonic() < end: time.sleep(0.01)
"""
"""SIGTERM has it fork, the second one nothing."""


def test_marked_processes_are_ended_however_they_cling(tmp_path):
    words = [sys.executable, "-S", "-c", FORKING]
    environment = os.environ | mark(tmp_path)
    process = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "up\n"
        found = marked(tmp_path)
        assert found
        below = {child for one in found for child in one.children(recursive=True)}
        end(tmp_path, 0.2)
        assert not marked(tmp_path)
        assert not any(alive(one) for one in below)
    finally:
        end(tmp_path, 0)
        process.kill()
        process.communicate()
