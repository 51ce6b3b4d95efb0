"""A folder's lock, which is released when its process ends, however it ends."""

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import gethostname

from filelock import FileLock, Timeout

from data import SettingError

LOCK_WAIT = 2.0
"""Seconds to wait for a lock: a process that has just been killed holds it until its last thread is gone."""


class FolderBusy(RuntimeError):
    """Another process is working in the folder."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, which is made first.

    Raises FolderBusy when another process holds it, and SettingError when the folder cannot be written.
    """
    file = folder / "lock"
    lock = FileLock(file, timeout=LOCK_WAIT)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout as error:
        process, _, machine = file.read_text().partition(" ")
        is_remote = machine not in ("", gethostname())
        elsewhere = f" of machine {machine}" if is_remote else ""
        raise FolderBusy(f"process {process}{elsewhere} is working on {folder}") from error
    except OSError as error:
        rule = f"cannot be written: {error.strerror}"
        raise SettingError("results", str(folder), rule) from error
    try:
        # A full disk is reported where it does harm: this text is only for the error of a process that waits.
        with contextlib.suppress(OSError):
            file.write_text(f"{os.getpid()} {gethostname()}")
        yield
    finally:
        lock.release()


def delete_partial_files(folder: Path) -> None:
    """Delete what a killed process was writing into a run's folder; for who holds its lock."""
    for partial in folder.glob(".*.[0-9]*"):
        partial.unlink(missing_ok=True)


def tidy(folder: Path) -> None:
    """Delete what a killed process was writing into a run's folder, unless another one is at work there by now."""
    if folder.is_dir():
        with contextlib.suppress(FolderBusy, SettingError), locked(folder):
            delete_partial_files(folder)
