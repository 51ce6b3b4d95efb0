"""Files on the disk: which only their owner may read, which was replaced, and logs that do not fill the disk."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

LARGEST = 10 * 2**20
"""Bytes of a log at which the next one begins."""
KEPT = 5
"""Former logs beside the one that is written: 60 MiB in all."""
FileStamp = tuple[int, int, int] | None
"""Time of change in nanoseconds, inode and size in bytes; None where there is no file."""


@contextlib.contextmanager
def owner_only() -> Iterator[None]:
    """Create files as 0600 and folders as 0700 within this context.

    The file mode mask belongs to the whole process, so files that other threads create meanwhile are closed too.
    """
    before = os.umask(0o077)
    os.umask(before | 0o077)  # a mask that closes more than this one stays as it is
    try:
        yield
    finally:
        os.umask(before)


def stamp_of(file: Path) -> FileStamp:
    """Return what is another value after a file was changed or replaced, None where it cannot be looked at."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size


def rotate(log: Path, largest: int = LARGEST, kept: int = KEPT) -> bool:
    """Copy a log that is too large to LOG.1 and empty it, and return whether it was; LOG.1 becomes LOG.2, and so on.

    For logs that another process writes, as its standard output: it must have opened the file to append, and then goes
    on at its beginning. A line that it writes between the copy and the cut is lost. Every file is its owner's alone.

    Raises:
        OSError: the disk has no room for the copy, or the file is another user's. The log is then as it was.
    """
    try:
        if log.stat().st_size <= largest:
            return False
    except FileNotFoundError:
        return False
    whole = former(log, 0)  # not among the former logs until it is complete
    try:
        with owner_only(), log.open("rb") as source, whole.open("wb") as copy:
            shutil.copyfileobj(source, copy)
    except OSError:
        whole.unlink(missing_ok=True)
        raise
    for number in range(kept, 0, -1):
        older = former(log, number - 1)
        if older.exists():
            older.replace(former(log, number))
    os.truncate(log, 0)
    return True


def former(log: Path, number: int) -> Path:
    """Return the file of a former log; 1 is the youngest."""
    return log.with_name(f"{log.name}.{number}")
