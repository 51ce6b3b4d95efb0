"""Logs that do not fill a disk: at 10 MiB a log becomes LOG.1, LOG.1 becomes LOG.2, and of LOG.5 nothing is kept.

The audit log is no such log: its lines follow from each other, and none is ever removed.
"""

import os
import shutil
from pathlib import Path

from data.private_files import owner_only

LARGEST = 10 * 2**20
"""Bytes of a log at which the next one begins."""
KEPT = 5
"""Former logs beside the one that is written: 60 MiB in all."""


def rotate(log: Path, largest: int = LARGEST, kept: int = KEPT) -> bool:
    """Copy a log that is too large to LOG.1 and empty it, and return whether it was.

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
