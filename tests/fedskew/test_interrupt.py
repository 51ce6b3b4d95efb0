"""Signals at every moment of every engine: the command ends with one sentence and 130, and leaves nothing behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from signal_matrix import PAIRS, WAIT, Command

from fedskew.engines.workers import WorkersGrid
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
