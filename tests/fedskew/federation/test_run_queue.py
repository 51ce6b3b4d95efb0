"""The queue of a federation's runs: whose turn it is, what is recorded, and what is done from outside."""

import json
import multiprocessing
import os
import stat
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from data import DataError
from fedskew.engines.flower import LaunchFailed
from fedskew.engines.processes import identity
from fedskew.federation import queue as queue_module
from fedskew.federation import run as run_module
from fedskew.federation.folder import FederationFolder
from fedskew.federation.queue import (
    FAILED,
    FINISHED,
    LOST,
    RUNNING,
    STOPPED,
    WAITING,
    QueuedRun,
    QueueStatus,
    RunQueue,
)
from fedskew.federation.run import SITES_LOOK, wait_for_sites
from fedskew.federation.superlink import Failing, Unreachable

GONE = "1/0.5"
"""The name of a process that has ended: process 1 began at another time."""


@pytest.fixture
def queue(tmp_path: Path) -> RunQueue:
    return RunQueue(FederationFolder(tmp_path))


def enter(queue: RunQueue, process: str = "", **changes: Any) -> QueuedRun:
    """Put a run into the queue, done by this process or another one."""
    run = queue.enter(["rounds=2"], "results", None, detached=True)
    run = replace(run, process=process or run.process, **changes)
    queue.write(run)
    return run


def states(queue: RunQueue) -> list[str]:
    return [queue.status(run).state for run in queue.runs()]


def nothing() -> None:
    """Stand for the end of the server process."""


def test_the_first_that_is_not_over_has_its_turn(queue: RunQueue) -> None:
    first, second, third = enter(queue), enter(queue, GONE), enter(queue)
    assert [first.number, second.number, third.number] == [1, 2, 3]
    assert states(queue) == [RUNNING, LOST, WAITING]
    assert queue.ahead(3) == [1], "a lost run holds up nobody"
    queue.end(1, FINISHED)
    assert states(queue) == [FINISHED, LOST, RUNNING] and queue.ahead(3) == []
    assert enter(queue).number == 4


def test_a_run_waits_for_its_turn(queue: RunQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_module, "POLL", 0.01)
    enter(queue), enter(queue), enter(queue)
    lines: list[str] = []
    waiter = threading.Thread(target=queue.wait_for_turn, args=(3, lines.append))
    waiter.start()
    waiter.join(0.2)
    assert waiter.is_alive() and lines == ["run 3 waits for its turn, after 1, 2"]
    queue.end(2, STOPPED)
    queue.end(1, FAILED, "a reason")
    waiter.join(30)
    assert not waiter.is_alive()
    assert set(lines[1:]) <= {"run 3 waits for its turn, after 1"}
    assert queue.status(queue.get(1)) == QueueStatus(FAILED, "a reason")


def number_of(path: Path) -> int:
    return RunQueue(FederationFolder(path)).enter([], "results", None, detached=False).number


def test_commands_given_at_once_get_different_numbers(tmp_path: Path) -> None:
    with multiprocessing.get_context("fork").Pool(4) as pool:
        numbers = pool.map(number_of, [tmp_path] * 40)
    assert sorted(numbers) == list(range(1, 41))


def test_how_a_run_ends_is_recorded(queue: RunQueue) -> None:
    ended: list[int] = []
    for _ in range(4):
        enter(queue)
    with queue.recorded(1, nothing):
        pass
    with pytest.raises(LaunchFailed), queue.recorded(2, nothing):
        raise LaunchFailed("no space\nleft")
    with pytest.raises(KeyboardInterrupt), queue.recorded(3, lambda: ended.append(3)):
        raise KeyboardInterrupt
    with pytest.raises(SystemExit), queue.recorded(4, nothing):
        raise SystemExit("the disk is full")
    assert states(queue) == [FINISHED, FAILED, STOPPED, FAILED] and ended == [3]
    assert queue.status(queue.get(2)).reason == "no space left"


def test_one_that_is_interrupted_while_it_waits_ends_no_process_of_another(queue: RunQueue) -> None:
    enter(queue), enter(queue)
    ended: list[int] = []
    with pytest.raises(KeyboardInterrupt), queue.recorded(2, lambda: ended.append(2)):
        raise KeyboardInterrupt
    assert ended == [] and states(queue) == [RUNNING, STOPPED]


def sleeping(*, stubborn: bool = False) -> subprocess.Popen[bytes]:
    """Start a process that sleeps, and return it once it has set its handler."""
    ignore = "signal.signal(signal.SIGTERM, signal.SIG_IGN);" if stubborn else ""
    code = f"import signal, time; {ignore} print('up', flush=True); time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return process


@pytest.mark.parametrize("stubborn", [False, True])
def test_stop_ends_the_process_and_says_so_once(
    queue: RunQueue, monkeypatch: pytest.MonkeyPatch, stubborn: bool
) -> None:
    monkeypatch.setattr(queue_module, "STOP_TIMEOUT", 0.2 if stubborn else 30.0)
    with sleeping(stubborn=stubborn) as process:
        enter(queue, identity(process.pid))
        assert states(queue) == [RUNNING]
        assert queue.stop(1) == "run 1 is stopped; the same settings resume it"
        process.wait(30)  # psutil has taken its exit status
    assert states(queue) == [STOPPED]
    assert queue.stop(1) == "run 1 has ended: stopped"


def test_stop_of_a_lost_run_ends_no_other_process(queue: RunQueue) -> None:
    """A process id may be another process's by now: its beginning tells."""
    with sleeping() as process:
        enter(queue, f"{process.pid}/0.5")
        assert states(queue) == [LOST]
        queue.stop(1)
        assert states(queue) == [STOPPED] and process.poll() is None
        process.kill()


def test_follow_prints_to_the_end(queue: RunQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_module, "POLL", 0.01)
    enter(queue)
    log = queue.log(1)
    log.write_text("round 1\n")
    printed: list[str] = []

    def print_text(text: str) -> None:
        printed.append(text)
        if text == "round 1\n":
            log.write_text("round 1\nround 2\n")
            queue.end(1, FAILED, "too few sites")

    assert queue.follow(1, print_text) == QueueStatus(FAILED, "too few sites")
    assert "".join(printed) == "round 1\nround 2\n"
    lost = enter(queue, GONE)
    queue.log(lost.number).touch()
    assert queue.follow(lost.number, print_text) == QueueStatus(LOST)


def test_only_a_detached_run_has_a_log(queue: RunQueue) -> None:
    enter(queue, detached=False)
    with pytest.raises(DataError, match="only a detached run has a log") as refused:
        queue.follow(1, print)
    assert refused.value.key == "RUN" and refused.value.value == "1"


@pytest.mark.parametrize("damage", [b"", b'{"state": "fin', b"\xff", bytes(40), b"[]", b"{}"])
def test_a_run_is_over_whatever_a_loss_of_power_left_of_its_end(
    queue: RunQueue, damage: bytes
) -> None:
    run = queue.enter([], "results", None, detached=True)
    queue.end(run.number, FINISHED)
    assert queue.status(run) == QueueStatus(FINISHED)
    (queue.place(run.number) / "end.json").write_bytes(damage)
    status = queue.status(run)
    assert status.is_over and "end.json is damaged" in status.reason
    assert queue.restart_lost() == []


def test_a_number_that_there_is_not_and_a_damaged_file(queue: RunQueue) -> None:
    with pytest.raises(DataError, match="there is no such run: `fedskew federation runs"):
        queue.get(7)
    enter(queue)
    assert queue.get(1).number == 1
    (queue.place(1) / "run.json").write_text("{}")
    with pytest.raises(DataError, match="is damaged"):
        queue.get(1)


def test_lost_detached_runs_are_started_again(
    queue: RunQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []

    def popen(command: list[str], **options: Any) -> Any:
        started.append(command)
        return SimpleNamespace(pid=os.getpid())

    monkeypatch.setattr(subprocess, "Popen", popen)
    enter(queue, GONE), enter(queue), enter(queue, GONE, detached=False)
    enter(queue, GONE, wait=30.0), enter(queue, GONE)
    queue.end(5, FINISHED)
    assert queue.restart_lost() == [1, 4]
    words = ["--set", "rounds=2", "--results", "results", "--queued"]
    folder = str(queue.folder.path)
    assert [command[5:] for command in started] == [
        [folder, *words, "1"],
        [folder, *words, "4", "--wait", "30"],
    ]
    assert states(queue) == [RUNNING, WAITING, LOST, WAITING, FINISHED]


def test_its_files_are_their_owner_s(queue: RunQueue) -> None:
    enter(queue)
    queue.end(1, FINISHED)
    for file in (queue.place(1), *queue.place(1).iterdir()):
        assert stat.S_IMODE(file.stat().st_mode) & 0o077 == 0, file
    assert json.loads((queue.place(1) / "run.json").read_text())["words"] == ["rounds=2"]


# ---- an outage of sites ----------------------------------------------------------------------------------------------


class Sites:
    """A SuperLink that says how many of three sites are online at each look; None does not answer, and -1 fails."""

    def __init__(self, *online: int | None) -> None:
        self.answers = list(online)

    def sites(self, agreement: Any) -> dict[str, str]:
        online = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if online is None:
            raise Unreachable("the SuperLink does not answer")
        if online < 0:
            raise Failing("the SuperLink fails at ListNodes (500)")
        return {f"site-{k}": "online" if k < online else "offline" for k in range(3)}


@pytest.mark.parametrize(
    ("online", "seconds", "resumes"),
    [
        ([1, 1, 2], 60.0, True),
        ([None, 1, None, 3], 60.0, True),
        ([1], 60.0, False),
        ([1, 2], 0.0, False),
        ([3], 60.0, False),
        ([1, -1, 3], 60.0, False),
    ],
    ids=[
        "they come back",
        "the SuperLink too",
        "they stay away",
        "no wait",
        "no outage",
        "it fails",
    ],
)
def test_a_run_waits_for_sites_only_in_an_outage_and_up_to_its_limit(
    monkeypatch: pytest.MonkeyPatch, online: list[int | None], seconds: float, resumes: bool
) -> None:
    now = [0.0]

    def sleep(passed: float) -> None:
        now[0] += passed

    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)
    monkeypatch.setattr(run_module, "time", clock)
    agreement: Any = SimpleNamespace(min_sites=2)
    lines: list[str] = []
    control: Any = Sites(*online)
    failure = LaunchFailed("1 good reply of 2")
    if resumes:
        wait_for_sites(agreement, control, seconds, failure, lines.append)
        assert len(lines) == 2 and lines[0].startswith("1 good reply of 2; site-1, site-2 are away")
    else:
        with pytest.raises(LaunchFailed) as raised:
            wait_for_sites(agreement, control, seconds, failure, lines.append)
        assert raised.value is failure
    assert now[0] <= seconds + SITES_LOOK
