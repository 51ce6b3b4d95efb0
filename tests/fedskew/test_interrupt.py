"""Signals at every moment of every engine: the command ends with one sentence and 130, and leaves nothing behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

import psutil
import pytest
from signal_matrix import PAIRS, WAIT, Command

from fedskew.engines.workers import WorkersGrid, fork_server
from fedskew.signals import SENTENCE, SIGNALS, blocked, one_interrupt


@pytest.fixture
def halting(tmp_path: Path) -> Iterator[list[Command]]:
    commands: list[Command] = []
    yield commands
    for command in commands:
        command.clear()


@pytest.mark.parametrize(("number", "whom"), [PAIRS[0], PAIRS[3]])
def test_a_signal_while_modules_load(
    tmp_path: Path, halting: list[Command], number: signal.Signals, whom: str
) -> None:
    halting.append(Command(tmp_path, [], "import"))
    halting[0].halted()
    halting[0].signal(number, whom)
    assert halting[0].ended() == (130, SENTENCE.decode())
    assert halting[0].left(WAIT) == []


def heedless(pid: int) -> set[signal.Signals]:
    """Return the signals that a process blocks or ignores."""
    fields = dict(
        line.split(":\t")
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if ":\t" in line
    )
    mask = int(fields["SigBlk"], 16) | int(fields["SigIgn"], 16)
    return {number for number in SIGNALS if mask >> (number - 1) & 1}


def test_no_process_that_workers_need_takes_a_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Ctrl-C in the terminal reaches them too; whoever starts the tracker of semaphores unblocks signals."""
    monkeypatch.setattr(
        resource_tracker, "ensure_running", resource_tracker.ResourceTracker().ensure_running
    )
    monkeypatch.setattr(forkserver, "ensure_running", forkserver.ForkServer().ensure_running)
    before = set(psutil.Process().children())
    fork_server("json")
    children = set(psutil.Process().children()) - before
    try:
        assert len(children) == 2
        assert all(heedless(child.pid) >= {*SIGNALS} for child in children)
    finally:
        for child in children:
            child.kill()
            child.wait()


def test_nobody_waits_for_a_worker_that_is_busy() -> None:
    with WorkersGrid(1) as grid:
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


def test_a_process_started_while_signals_are_held_back_gets_none_and_this_one_gets_it_later() -> (
    None
):
    code = "import signal; print(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])))"
    with pytest.raises(KeyboardInterrupt), one_interrupt():
        with blocked():
            os.kill(os.getpid(), signal.SIGTERM)
            process = subprocess.run(
                [sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True
            )
        pytest.fail("the signal was lost")
    assert all(str(number.value) in process.stdout for number in SIGNALS)
