"""A run's files: in which order they are written, beside what, and what a full disk or a second process changes."""

import contextlib
import errno
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from in_process import FinishedRun, experiment, small

import client_app.handlers
import client_app.tensor_files
import server_app.run_folder
from client_app.state import digest
from client_app.tensor_files import WriteFailed
from data import SettingError
from fedskew.engines.local import LocalGrid
from server_app.app import Run, run
from server_app.checkpoint import Checkpoint
from server_app.run_folder import FolderBusy, RunFolder
from strategies.core.exchange import TooFewReplies

Train = Callable[..., FinishedRun]


# ---- in which order --------------------------------------------------------------------------------------------------


THREADS = """
import ctypes
from pathlib import Path
import torch
from server_app.checkpoint import Writer
(library,) = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "gomp" in line}
with Writer() as writer:
    writer.begin(lambda: print(ctypes.CDLL(library).omp_get_max_threads()))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="asks the library of GCC's OpenMP")
def test_the_writer_computes_with_one_thread_whatever_the_machine_has() -> None:
    """Two would add up what a record says of the clients in another order at times."""
    command, environment = [sys.executable, "-c", THREADS], {**os.environ, "OMP_NUM_THREADS": "2"}
    assert subprocess.check_output(command, env=environment, text=True) == "1\n"


def test_no_later_round_changes_what_is_being_written(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, kept = Run.checkpoint, list[tuple[Checkpoint, str]]()

    def code(part: Checkpoint) -> str:
        states = [part.shared, *part.states.values(), *part.deployed.values()]
        return digest(states, repr((part.round, part.client_states)))

    def keep(run: Run) -> Checkpoint:
        made = checkpoint(run)
        kept.append((made, code(made)))
        return made

    monkeypatch.setattr(Run, "checkpoint", keep)
    train(method="scaffold+fedavgm+silobn+creff", rounds=3)
    assert len({before for _, before in kept}) >= 3
    assert all(code(part) == before for part, before in kept)


def test_a_run_that_ends_early_has_written_what_it_has_told(tmp_path: Path) -> None:
    """And lets its folder go only then."""
    settings = small(tmp_path, method="fedbn")

    def interrupt(line: str) -> None:
        if line.startswith("round   1"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), LocalGrid() as grid:
        run(grid, settings, interrupt)
    folder = RunFolder(settings.folder)
    assert Checkpoint.load(folder.checkpoint_file).round == len(folder.rounds()) == 1
    assert experiment(tmp_path, method="fedbn").summary["rounds"] == 2


# ---- a full disk and a second process --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["checkpoint.safetensors", "rounds.jsonl", "summary.json"])
def test_a_full_disk_ends_the_run_and_harms_nothing(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The disk is full when a file of that name is written in or after round 2, or at last."""
    changes = {"method": "fedbn", "rounds": 2}
    whole = train("whole", **changes)
    real, folder = client_app.tensor_files.writing, small(tmp_path / "full", **changes).folder

    @contextlib.contextmanager
    def full(path: Path) -> Iterator[None]:
        with real(path):
            begun = path.exists() and len(RunFolder(folder).rounds()) >= 1
            if path.name == name and (begun or name == "summary.json"):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            yield

    with monkeypatch.context() as patch:
        for module in (client_app.tensor_files, server_app.run_folder):
            patch.setattr(module, "writing", full)
        with pytest.raises((WriteFailed, TooFewReplies)) as ended:
            train("full", **changes)
    assert f"{name} cannot be written: No space left on device" in str(ended.value)
    resumed = train("full", **changes)
    assert (resumed.hash, resumed.records) == (whole.hash, whole.records)


def hold(folder: Path, other: Connection) -> None:
    """Hold a folder's lock until somebody says so."""
    with RunFolder(folder).locked():
        other.send("held")
        other.recv()


@pytest.mark.slow
def test_lock_refuses_a_second_process(train: Train, tmp_path: Path) -> None:
    folder, context = small(tmp_path / "results").folder, multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe()
    holder = context.Process(target=hold, args=(folder, theirs))
    holder.start()
    assert ours.poll(60) and ours.recv() == "held"
    with pytest.raises(FolderBusy) as refused:
        train()
    assert f"process {holder.pid} is working on {folder}" in str(refused.value)
    ours.send("enough")
    holder.join()
    assert train().summary["rounds"] == 2  # the lock falls with the process


def test_a_folder_that_cannot_be_written_is_refused(train: Train, tmp_path: Path) -> None:
    (tmp_path / "results").write_text("a file")
    with pytest.raises(SettingError) as refused:
        train()
    assert refused.value.key == "results"
