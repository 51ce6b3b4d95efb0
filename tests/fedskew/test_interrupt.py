"""Signals at every moment of every engine: the command ends with one sentence and 130, and leaves nothing behind."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from fedskew.engines.local import LocalGrid
from fedskew.interrupt import SENTENCE, SIGNALS, held_back, one_interrupt

ROOT = Path(__file__).resolve().parents[2]
WAIT = 120.0
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
}
PAIRS = [(number, group) for number in SIGNALS for group in (False, True)]


class Command:
    """`fedskew run`, in a session and with a temporary folder of its own, that halts at a moment."""

    def __init__(self, folder: Path, words: Sequence[str], moment: str) -> None:
        (folder / "sitecustomize.py").write_text(SITE)
        (folder / "halting.py").write_text(MODEL)
        self.folder, self.mark, self.temporary = folder, folder / "mark", Path(tempfile.mkdtemp(dir="/tmp"))
        self.environment = {
            "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]),
            "HALT_AT": MOMENTS[moment],
            "HALT_MARK": str(self.mark),
            "TMPDIR": str(self.temporary),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        }
        settings = {"results": folder / "results", "model": "halting:build", "rounds": 1, "device": "cpu"}
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
            assert self.process.poll() is None, "it ended before"
            assert time.monotonic() < deadline, "the moment never came"
            time.sleep(0.02)

    def processes(self) -> list[psutil.Process]:
        """Return what is left of it."""
        left = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("HALT_MARK") == str(self.mark) and process.status() != psutil.STATUS_ZOMBIE:
                    left.append(process)
        return left

    def signal(self, number: signal.Signals, group: bool) -> None:
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if group else os.kill)(self.process.pid, number)


@pytest.fixture
def halting(tmp_path: Path) -> Iterator[list[Command]]:
    commands: list[Command] = []
    yield commands
    for command in commands:
        for process in command.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()
        command.process.wait()
        shutil.rmtree(command.temporary)


def ends(command: Command, number: signal.Signals, group: bool) -> None:
    command.halted()
    command.signal(number, group)
    errors = command.process.communicate(timeout=WAIT)[1]
    assert (command.process.returncode, errors) == (130, SENTENCE.decode())
    deadline = time.monotonic() + WAIT
    while (left := command.processes()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left
    assert list(command.temporary.iterdir()) == []


@pytest.mark.parametrize(("number", "group"), PAIRS[::2] + PAIRS[1:2])
def test_a_signal_while_modules_load(
    tmp_path: Path, halting: list[Command], number: signal.Signals, group: bool
) -> None:
    halting.append(Command(tmp_path, [], "import"))
    ends(halting[0], number, group)


@pytest.mark.signals
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_signal_at_every_moment(tmp_path: Path, halting: list[Command], engine: str, moment: str) -> None:
    """Every engine meets every moment, and every signal to the command alone and to its group."""
    shift = int(os.environ.get("SHIFT", "0"))  # with 0 to 5 all 36 pairings of a moment and a signal
    pair = PAIRS[(list(MOMENTS).index(moment) + list(ENGINES).index(engine) + shift) % len(PAIRS)]
    halting.append(Command(tmp_path, ENGINES[engine], moment))
    ends(halting[0], *pair)


@pytest.mark.signals
@pytest.mark.parametrize("engine", ["inprocess", "workers", "sweep"])
def test_ctrl_c_again_and_again(tmp_path: Path, halting: list[Command], engine: str) -> None:
    halting.append(Command(tmp_path, ENGINES[engine], "round"))
    halting[0].halted()
    for _ in range(3):
        halting[0].signal(signal.SIGINT, group=True)
        time.sleep(0.05)
    ends(halting[0], signal.SIGINT, group=True)


def test_nobody_waits_for_a_worker_that_is_busy() -> None:
    with LocalGrid(workers=1) as grid:
        assert grid.pool is not None
        worker = psutil.Process(grid.pool.submit(os.getpid).result())
        grid.pool.submit(time.sleep, 1000)
    assert not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE


def test_one_interrupt_interrupts_once_and_restores_the_handlers() -> None:
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


def test_what_goes_on_for_too_long_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    import fedskew.interrupt

    monkeypatch.setattr(fedskew.interrupt, "PATIENCE", 0.0)
    abandoned: list[bool] = []
    with one_interrupt(lambda: abandoned.append(True)):
        with contextlib.suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)
        while not abandoned:
            time.sleep(0.01)


def test_a_process_started_while_signals_are_held_back_gets_none_and_this_one_gets_it_later() -> None:
    code = "import signal; print(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])))"
    with pytest.raises(KeyboardInterrupt), one_interrupt():
        with held_back():
            os.kill(os.getpid(), signal.SIGTERM)
            process = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True)
        pytest.fail("the signal was lost")
    assert all(str(number.value) in process.stdout for number in SIGNALS)
