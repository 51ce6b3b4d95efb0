"""A folder's lock, which falls with the process that holds it, however that ends."""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from data import SettingError

LOCK_WAIT = 2.0
"""Seconds to wait for a lock: a process that has just been killed holds it until its last thread is gone."""


class FolderBusy(RuntimeError):
    """Another process is working in the folder."""


@contextmanager
def locked(folder: Path, file: str = "lock", shared: bool = False) -> Iterator[None]:
    """Hold the lock of a folder, which is made first; `shared` locks go beside each other and beside no other.

    Raises FolderBusy when another process holds it, and SettingError when the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        opened = (folder / file).open("a+")
    except OSError as error:
        raise SettingError("results", str(folder), f"cannot be written: {error.strerror}") from error
    with opened:
        deadline = time.monotonic() + LOCK_WAIT
        while not acquired(opened, shared):
            if time.monotonic() > deadline:
                opened.seek(0)
                raise FolderBusy(f"process {opened.read().strip()} is working on {folder}")
            time.sleep(0.05)
        with contextlib.suppress(OSError):  # only for whom it keeps out: a full disk is told where it does harm
            os.ftruncate(opened.fileno(), 0)
            os.write(opened.fileno(), str(os.getpid()).encode())
        yield


def acquired(file: IO[str], shared: bool) -> bool:
    """Take the file's lock if it is free, and return whether it was."""
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
