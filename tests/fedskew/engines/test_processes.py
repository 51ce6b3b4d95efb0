"""Processes of a run: found by their mark, ended whatever they do, and claimed from a launcher that is dead."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedskew.engines.processes import (
    LAUNCHER,
    OWNER,
    PREFIX,
    SEMAPHORES,
    alive,
    beginning,
    claim,
    clear_leftovers,
    end,
    mark,
    marked,
    note_owner,
)
from server_app.lock import FolderBusy

SLEEP = "import time; print('up', flush=True); time.sleep(60)"
ORPHAN = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SLEEP!r}], start_new_session=True)"
FORKING = """
import os, signal, time
signal.signal(signal.SIGTERM, lambda *_: None if os.fork() else signal.signal(signal.SIGTERM, signal.SIG_IGN))
print('up', flush=True)
end = time.monotonic() + 60
while time.monotonic() < end: time.sleep(0.01)
"""
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start Python code with the run folder's mark, and wait until it (or its child) prints a line."""
    started: list[subprocess.Popen[str]] = []

    def start(code: str, **environment: str) -> subprocess.Popen[str]:
        words = [sys.executable, "-S", "-c", code]
        process = subprocess.Popen(
            words, env=os.environ | mark(tmp_path) | environment, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        return process

    yield start
    end(tmp_path, 0)
    for process in started:
        process.kill()
        process.communicate()


def test_end_leaves_none_however_it_clings(start: Start, tmp_path: Path) -> None:
    """SIGTERM has it fork, the second one nothing."""
    start(FORKING)
    assert marked(tmp_path)
    below = {child for process in marked(tmp_path) for child in process.children(recursive=True)}
    end(tmp_path, 0.2)
    assert not marked(tmp_path)
    assert not any(alive(process) for process in below)


def test_claim_ends_what_a_dead_launcher_left(start: Start, tmp_path: Path) -> None:
    start(ORPHAN, **{LAUNCHER: dead()})
    claim(tmp_path)
    assert not marked(tmp_path)


def test_claim_refuses_a_folder_whose_launcher_lives(start: Start, tmp_path: Path) -> None:
    with sleeper() as other:
        process = start(SLEEP, **{LAUNCHER: f"{other.pid}/{beginning(other.pid)}"})
        with pytest.raises(FolderBusy) as busy:
            claim(tmp_path)
        assert str(tmp_path) in str(busy.value)
        assert str(other.pid) in str(busy.value)
        assert process.poll() is None


def test_temporary_folders_of_killed_commands_are_deleted_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folders = {name: tmp_path / name for name in ("mine", "dead", "used", "elsewhere", "unmarked")}
    for folder in folders.values():
        folder.mkdir()
        note_owner(folder)
    mine = (folders["mine"] / OWNER).read_text()
    host = mine.split()[0]
    for name in ("dead", "used"):
        (folders[name] / OWNER).write_text(f"{host} {dead()}")
    (folders["elsewhere"] / OWNER).write_text(f"not-{host} {dead()}")
    (folders["unmarked"] / OWNER).unlink()
    environment = os.environ | {"FLWR_HOME": str(folders["used"])}
    with subprocess.Popen(
        [sys.executable, "-S", "-c", SLEEP], env=environment, stdout=subprocess.PIPE
    ) as user:
        assert user.stdout is not None and user.stdout.readline()
        clear_leftovers()
        user.kill()
    assert sorted(folder.name for folder in tmp_path.iterdir()) == sorted(folders.keys() - {"dead"})


LOCKING = """
import multiprocessing, time
from fedskew.engines.processes import name_semaphores
name_semaphores()
lock = multiprocessing.get_context("forkserver").Lock()
print("there", flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(not SEMAPHORES.is_dir(), reason="only Linux shows semaphores")
def test_semaphores_of_a_killed_command_go_with_the_next_one() -> None:
    """With its process group, so that nobody of it is left to delete them."""
    words = [sys.executable, "-c", LOCKING]
    with subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None and process.stdout.readline()
        pattern = f"sem.{PREFIX}*-{process.pid}-*"
        clear_leftovers()
        assert list(SEMAPHORES.glob(pattern)), "its owner lives"
        os.killpg(process.pid, signal.SIGKILL)
    assert list(SEMAPHORES.glob(pattern))
    clear_leftovers()
    assert not list(SEMAPHORES.glob(pattern))


def dead() -> str:
    """Return the identity of a process that has ended."""
    with sleeper() as process:
        return f"{process.pid}/{beginning(process.pid)}"


@contextlib.contextmanager
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"]) as process:
        try:
            yield process
        finally:
            process.kill()
