"""Processes of a run: found by their mark, ended whatever they do, and claimed from a launcher that is dead."""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Listener
from multiprocessing.util import get_temp_dir
from pathlib import Path

import psutil
import pytest

import fedskew.engines.processes
from fedskew.engines import workers
from fedskew.engines.processes import (
    LAUNCHER,
    OWNER,
    PREFIX,
    RUN,
    SEMAPHORES,
    SWEEP,
    alive,
    beginning,
    claim,
    clear_leftovers,
    end,
    identity,
    mark,
    marked,
    note_owner,
)
from fedskew.engines.workers import fork_server, temporary_folder
from server_app.lock import FolderBusy

SLEEP = "import time; print('up', flush=True); time.sleep(60)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEP}"
PARENT = (
    f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {SLEEP!r}], "
    "env=dict()); time.sleep(60)"
)
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


def test_only_the_folders_processes_are_marked(start: Start, tmp_path: Path) -> None:
    mine = start(SLEEP)
    start(SLEEP, **{RUN: str(tmp_path / "other")})
    assert [process.pid for process in marked(tmp_path)] == [mine.pid]
    assert len(marked(tmp_path / "other")) == 1
    end(tmp_path / "other")
    assert mine.poll() is None


def test_this_process_and_its_ancestors_are_spared(tmp_path: Path) -> None:
    code = f"""
from pathlib import Path
from processes import end
end(Path({str(tmp_path)!r}))
print('up', flush=True)
"""
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}], check=True)"
    room = Path(
        fedskew.engines.processes.__file__
    ).parent  # from there without the package, which imports torch
    environment = os.environ | mark(tmp_path) | {"PYTHONPATH": str(room)}
    done = subprocess.run(
        [sys.executable, "-c", parent], env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "up\n"), done.stderr


@pytest.mark.parametrize("code", [SLEEP, STUBBORN, PARENT, ORPHAN, FORKING])
def test_end_leaves_none(start: Start, tmp_path: Path, code: str) -> None:
    start(code)
    assert marked(tmp_path)
    below = {child for process in marked(tmp_path) for child in process.children(recursive=True)}
    end(tmp_path, 0.2)
    assert not marked(tmp_path)
    assert not any(alive(process) for process in below)


def test_end_without_processes_waits_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sleep(seconds: float) -> None:
        raise AssertionError(f"slept for {seconds} s")

    monkeypatch.setattr(time, "sleep", sleep)
    end(tmp_path)


def test_end_names_what_cannot_be_ended(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = start(SLEEP)
    for way in ("terminate", "kill"):
        monkeypatch.setattr(psutil.Process, way, lambda self: None)
    with pytest.raises(TimeoutError, match=str(process.pid)):
        end(tmp_path, -10)
    monkeypatch.undo()


def test_a_zombie_is_not_alive(start: Start, tmp_path: Path) -> None:
    process = start("print('up', flush=True)")
    seen = psutil.Process(process.pid)
    while seen.status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    assert not alive(seen)
    assert marked(tmp_path) == []


def test_claim_ends_what_a_dead_launcher_left(start: Start, tmp_path: Path) -> None:
    start(ORPHAN, **{LAUNCHER: _dead()})
    claim(tmp_path)
    assert not marked(tmp_path)


def test_claim_ends_what_a_namesake_of_the_launcher_left(start: Start, tmp_path: Path) -> None:
    with _sleeper() as other:
        start(SLEEP, **{LAUNCHER: f"{other.pid}/{beginning(other.pid) - 100}"})
        claim(tmp_path)
        assert not marked(tmp_path)
        assert other.poll() is None


@pytest.mark.parametrize("identity", ["", "nonsense", "1", "x/y", "-5/1.0"])
def test_claim_ends_what_an_unreadable_launcher_left(
    start: Start, tmp_path: Path, identity: str
) -> None:
    start(SLEEP, **{LAUNCHER: identity})
    claim(tmp_path)
    assert not marked(tmp_path)


def test_claim_ends_what_this_launcher_left(start: Start, tmp_path: Path) -> None:
    start(SLEEP)
    claim(tmp_path)
    assert not marked(tmp_path)


def test_claim_refuses_a_folder_whose_launcher_lives(start: Start, tmp_path: Path) -> None:
    with _sleeper() as other:
        process = start(SLEEP, **{LAUNCHER: f"{other.pid}/{beginning(other.pid)}"})
        with pytest.raises(FolderBusy) as busy:
            claim(tmp_path)
        assert str(tmp_path) in str(busy.value)
        assert str(other.pid) in str(busy.value)
        assert process.poll() is None


def test_claim_ends_what_a_killed_sweep_left_in_the_folder_of_results(
    start: Start, tmp_path: Path
) -> None:
    left, elsewhere = (
        start(SLEEP, **{RUN: str(folder / f"{SWEEP}1"), LAUNCHER: _dead()})
        for folder in (tmp_path, tmp_path / "elsewhere")
    )
    claim(tmp_path / "run")
    assert left.wait(10) and elsewhere.poll() is None
    end(tmp_path / "elsewhere" / f"{SWEEP}1")


def test_claim_spares_a_sweep_whose_launcher_lives(start: Start, tmp_path: Path) -> None:
    process = start(SLEEP, **{RUN: str(tmp_path / f"{SWEEP}{os.getpid()}")})
    claim(tmp_path / "run")
    assert process.poll() is None
    end(tmp_path / f"{SWEEP}{os.getpid()}")


def test_a_launcher_stays_the_same_when_the_clock_is_set(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _sleeper() as other:
        start(SLEEP, **{LAUNCHER: f"{other.pid}/{beginning(other.pid)}"})
        monkeypatch.setattr(psutil.Process, "create_time", lambda self: time.time() + 3600)
        with pytest.raises(FolderBusy):
            claim(tmp_path)


def test_temporary_folders_of_killed_commands_are_deleted_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folders = {
        name: tmp_path / name for name in ("mine", "dead", "used", "elsewhere", "torn", "unmarked")
    }
    for folder in folders.values():
        folder.mkdir()
        note_owner(folder)
    mine = (folders["mine"] / OWNER).read_text()
    host = mine.split()[0]
    for name in ("dead", "used"):
        (folders[name] / OWNER).write_text(f"{host} {_dead()}")
    (folders["elsewhere"] / OWNER).write_text(f"not-{host} {_dead()}")
    (folders["torn"] / OWNER).write_text("")
    (folders["unmarked"] / OWNER).unlink()
    environment = os.environ | {"FLWR_HOME": str(folders["used"])}
    with subprocess.Popen(
        [sys.executable, "-S", "-c", SLEEP], env=environment, stdout=subprocess.PIPE
    ) as user:
        assert user.stdout is not None and user.stdout.readline()
        clear_leftovers()
        user.kill()
    assert sorted(folder.name for folder in tmp_path.iterdir()) == sorted(folders.keys() - {"dead"})


@pytest.mark.parametrize("name", ["short", "long" * 20])
def test_sockets_go_elsewhere_where_the_usual_folder_has_a_long_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as parent:
        usual = Path(parent, name)
        usual.mkdir()
        monkeypatch.setattr("tempfile.tempdir", str(usual))
        monkeypatch.setattr(workers, "get_temp_dir", lambda: tempfile.mkdtemp(prefix="pymp-"))
        folder = temporary_folder()
        with Listener(str(folder / "listener-xxxxxxxx")):
            assert folder.parent == (usual if name == "short" else Path("/tmp"))
        assert tempfile.gettempdir() == str(usual)
        folder.rmdir()


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


def test_a_worker_that_has_workers_leaves_the_folder_to_its_parent() -> None:
    note = Path(get_temp_dir(), OWNER)
    process = multiprocessing.get_context("forkserver").Process(target=fork_server)
    process.start()
    process.join()
    assert process.exitcode == 0
    assert not note.exists() or note.read_text().endswith(f" {identity()}")


def _dead() -> str:
    """Return the identity of a process that has ended."""
    with _sleeper() as process:
        return f"{process.pid}/{beginning(process.pid)}"


@contextlib.contextmanager
def _sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"]) as process:
        try:
            yield process
        finally:
            process.kill()
