"""A run's files are written while the next round trains: in order, one round's at a time; an error ends the run."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from in_process import FinishedRun, experiment, small

import client_app.handlers
from client_app.state import digest
from client_app.tensor_files import WriteFailed
from fedskew.engines.local import LocalGrid
from server_app.app import Run, run
from server_app.checkpoint import Checkpoint, Writer
from server_app.run_folder import RunFolder

Train = Callable[..., FinishedRun]


def test_what_is_begun_is_done_in_order_and_at_the_end_it_is_done() -> None:
    done, first_may_end = list[int](), threading.Event()

    def first() -> None:
        assert first_may_end.wait(60)
        done.append(1)

    with Writer() as writer:
        writer.begin(first)
        assert done == []
        first_may_end.set()
        writer.begin(lambda: done.append(2))
        assert done[0] == 1, "the second begins when the first has ended"
    assert done == [1, 2]


def test_an_error_is_raised_when_the_next_is_begun_and_at_the_end() -> None:
    def fail() -> None:
        raise WriteFailed("no room")

    done = list[int]()
    with pytest.raises(WriteFailed, match="no room"), Writer() as writer:
        writer.begin(fail)
        with pytest.raises(WriteFailed, match="no room"):
            writer.begin(lambda: done.append(1))
    assert done == []


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
@pytest.mark.skipif(
    sys.platform != "linux", reason="asks the library of GCC's OpenMP, which torch has on Linux"
)
def test_the_writer_computes_with_one_thread_whatever_the_machine_has() -> None:
    """Two would add up what a record says of the clients in another order at times, and get in the training's way."""
    command, environment = [sys.executable, "-c", THREADS], {**os.environ, "OMP_NUM_THREADS": "2"}
    assert subprocess.check_output(command, env=environment, text=True) == "1\n"


def test_the_next_round_trains_while_files_are_written(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_round, save, training = client_app.handlers.train_round, Run.save, threading.Event()

    def train_and_tell(client: Any, *rest: Any) -> Any:
        if client.round == 2:
            training.set()
        return train_round(client, *rest)

    def save_later(run: Run, checkpoint: Checkpoint, *rest: Any) -> None:
        assert training.wait(60), "round 2 waits for the files of round 1"
        assert not run.folder.rounds_file.exists() or checkpoint.round == 2
        save(run, checkpoint, *rest)

    monkeypatch.setattr(client_app.handlers, "train_round", train_and_tell)
    monkeypatch.setattr(Run, "save", save_later)
    late = train("late", method="fedbn")
    monkeypatch.undo()
    assert late.hash == train("other", method="fedbn").hash


@pytest.mark.parametrize("method", ["scaffold+fedavgm+silobn", "creff+fedshift", "feddf"])
def test_no_later_round_changes_what_is_being_written(
    train: Train, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    checkpoint, kept = Run.checkpoint, list[tuple[Checkpoint, str]]()

    def code(part: Checkpoint) -> str:
        about = (
            part.round,
            list(part.states),
            list(part.deployed),
            part.memory_rounds,
            part.digests,
        )
        return digest([part.shared, *part.states.values(), *part.deployed.values()], repr(about))

    def keep(run: Run) -> Checkpoint:
        kept.append((checkpoint(run), code(checkpoint(run))))
        return kept[-1][0]

    monkeypatch.setattr(Run, "checkpoint", keep)
    train(method=method, rounds=3)
    assert len({before for _, before in kept}) == len(kept) >= 3
    assert all(code(part) == before for part, before in kept)


@pytest.mark.parametrize("error", [KeyboardInterrupt, WriteFailed])
def test_a_run_that_ends_early_has_written_what_it_has_told(
    tmp_path: Path, error: type[BaseException]
) -> None:
    """And lets its folder go only then."""
    settings = small(tmp_path, method="fedbn", rounds=3)

    def interrupt(line: str) -> None:
        if line.startswith("round   2"):
            raise error("by the test")

    with pytest.raises(error, match="by the test"), LocalGrid() as grid:
        run(grid, settings, interrupt)
    folder = RunFolder(settings.folder)
    assert Checkpoint.load(folder.checkpoint_file).round == len(folder.rounds()) == 2
    assert not list(folder.path.glob(".checkpoint*"))
    assert experiment(tmp_path, method="fedbn", rounds=3).summary["rounds"] == 3
