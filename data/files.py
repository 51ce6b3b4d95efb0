"""Files on the disk: bound by their hash, read by their owner alone, replaced, and logs that do not fill the disk."""

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from data.errors import DataError

BOUND = re.compile(r"(?P<path>.+)#(?P<sha256>[0-9a-f]{64})")
"""FILE#SHA256: how resolved settings name a file, so that it cannot be changed under a run."""
LARGEST = 30 * 2**20
"""Bytes of a log at which the next one begins; one former log is kept."""
FileStamp = tuple[int, int, int] | None
"""Time of change in nanoseconds, inode and size in bytes; None where there is no file."""


def bound_path(setting: str) -> Path:
    """Return the absolute path in FILE or FILE#SHA256."""
    bound = BOUND.fullmatch(setting)
    return Path(bound["path"] if bound else setting).expanduser().absolute()


def check_bound(setting: str, sha256: str, what: str) -> None:
    """Raise DataError if the setting is FILE#SHA256 and the file's sha256 is another by now."""
    bound = BOUND.fullmatch(setting)
    if bound and bound["sha256"] != sha256:
        found = f"its sha256 is {sha256[:16]}..., not {bound['sha256'][:16]}..."
        rule = f"is not the {what} that the run began with: {found}; start a new run"
        raise DataError(rule, where=bound["path"])


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


def rotate(log: Path, largest: int = LARGEST) -> None:
    """Copy a log that is too large to LOG.1 and empty it.

    For logs that another process writes, as its standard output: it must have opened the file to append, and then goes
    on at its beginning. A line that it writes between the copy and the cut is lost. Every file is its owner's alone.

    Raises:
        OSError: the disk has no room for the copy, or the file is another user's. The log is then as it was.
    """
    if not log.exists() or log.stat().st_size <= largest:
        return
    partial = log.with_name(f"{log.name}.0")  # the former log stays until the copy is complete
    try:
        with owner_only():
            shutil.copyfile(log, partial)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
    partial.replace(log.with_name(f"{log.name}.1"))
    os.truncate(log, 0)
