"""A disk that is full or cannot be written, and a folder that another process works in: one sentence, no harm."""

import contextlib
import errno
import multiprocessing
import os
import resource
import sys
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from command_line import FedSkew
from in_process import (
    FinishedRun,
    small,
)

import client_app.tensor_files
import server_app.app
import server_app.run_folder
from client_app.tensor_files import WriteFailed
from data import SettingError
from fedskew.cli.main import main
from server_app.checkpoint import Checkpoint
from server_app.lock import FolderBusy
from server_app.run_folder import RunFolder
from strategies.core.exchange import TooFewReplies

Train = Callable[..., FinishedRun]


def test_a_record_is_on_the_disk_before_its_checkpoint(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    order, fsync, save = list[str](), os.fsync, Checkpoint.save
    monkeypatch.setattr(os, "fsync", lambda file: order.append("record") or fsync(file))
    monkeypatch.setattr(
        Checkpoint, "save", lambda *given: order.append("checkpoint") or save(*given)
    )
    train(method="fedavg")
    assert order == ["record", "checkpoint"] * 2


@pytest.mark.parametrize(
    "name", ["checkpoint.safetensors", "rounds.jsonl", "summary.json", "round-000003.safetensors"]
)
def test_a_full_disk_is_one_sentence_and_harms_nothing(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The disk is full when a file of that name is written in or after round 3."""
    changes = {"method": "fedbn", "rounds": 4}
    whole = train("whole", **changes)
    real, folder = client_app.tensor_files.writing, small(tmp_path / "full", **changes).folder

    @contextlib.contextmanager
    def full(path: Path) -> Iterator[None]:
        with real(path):
            begun = name == "summary.json" or (
                path.exists() and len(RunFolder(folder).rounds()) >= 2
            )
            if path.name == name and (begun or name == "round-000003.safetensors"):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            yield

    with monkeypatch.context() as patch:
        for module in (client_app.tensor_files, server_app.run_folder):
            patch.setattr(module, "writing", full)
        with pytest.raises(
            (WriteFailed, TooFewReplies),
            match=rf"{name} cannot be written: No space left on device",
        ):
            train("full", **changes)
    resumed = train("full", **changes)
    assert (resumed.hash, resumed.records) == (whole.hash, whole.records)


def limited(words: list[str], errors: Path) -> None:
    """Run a command whose files cannot grow beyond 40,000 bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
    sys.argv, sys.stderr = ["fedskew", *words], errors.open("w")
    main()


def test_a_file_that_grows_too_large_is_one_sentence(tmp_path: Path, fedskew: FedSkew) -> None:
    """The operating system itself refuses, in the middle of a file."""
    results, errors = tmp_path / "results", tmp_path / "errors"
    words = [
        "run",
        "--engine",
        "inprocess",
        "--results",
        str(results),
        "--set",
        "rounds=2",
        "--set",
        "local-steps=1",
    ]
    process = multiprocessing.get_context("forkserver").Process(
        target=limited, args=(words, errors)
    )
    process.start()
    process.join()
    assert process.exitcode == 1
    assert errors.read_text().count("\n") == 1
    assert (
        "checkpoint.safetensors cannot be written" in errors.read_text()
        and "File too large" in errors.read_text()
    )
    (folder,) = (file for file in results.iterdir() if file.is_dir())
    assert not [file for file in folder.iterdir() if file.name.startswith(".")]
    assert fedskew(*words)[0] == 0


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
    with pytest.raises(FolderBusy, match=rf"process {holder.pid} is working on {folder}"):
        train()
    ours.send("enough")
    holder.join()
    assert train().summary["rounds"] == 2  # the lock falls with the process


def test_folder_that_cannot_be_written(train: Train, tmp_path: Path) -> None:
    (tmp_path / "results").write_text("a file")
    with pytest.raises(SettingError, match=r"results = .*cannot be written"):
        train()
