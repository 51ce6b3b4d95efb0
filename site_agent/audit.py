"""The site's audit log: requests, replies and refusals; each line contains the hash of the line before."""

import hashlib
import json
import logging
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock

from data import DataError
from site_agent.line_files import append, complete_lines, last_line

logger = logging.getLogger("fedskew.site")
FIRST = "0" * 64
"""What the first line holds in place of a hash."""
NO_ENTRY = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""What reading a line raises that is no entry: no JSON, or JSON of something else."""


def digest(line: bytes) -> str:
    """Return the hash of a line, without its end."""
    return hashlib.sha256(line.rstrip(b"\n")).hexdigest()


class Audit:
    """An audit log in a file; `FILE.last` keeps the hash of its last line, so that a missing end is seen as well."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.last = path.with_name(f"{path.name}.last")
        self.lock = path.with_name(f"{path.name}.lock")

    def write(self, event: str, **entry: Any) -> None:
        """Append a line, on the disk before this returns.

        Raises OSError. The file is then as it was, or has the line, where only its hash cannot be written.
        """
        self.path.touch(0o600)
        with FileLock(self.lock, mode=0o600), self.path.open("rb+") as file:
            end, former = last_line(file)
            before = digest(former) if end else FIRST
            stamp = datetime.now(UTC).isoformat(timespec="milliseconds")
            line = json.dumps({"time": stamp, "event": event, **entry, "before": before})
            append(file, end, line)
            self.write_last(digest(line.encode()))

    def write_last(self, code: str) -> None:
        """Write the hash of the last line, on the disk before this returns. Raises OSError."""
        self.last.touch()
        # In place: one sector, so that a loss of power leaves this hash or the former one, and a full disk has room.
        with self.last.open("rb+") as file:
            file.write(code.encode())
            file.truncate()
            file.flush()
            os.fsync(file.fileno())

    def lines(self) -> list[bytes]:
        """Return the log's complete lines, oldest first. Raises DataError where it cannot be read."""
        try:
            return complete_lines(self.path)
        except OSError as error:
            raise DataError(f"cannot be read: {error.strerror}", where=str(self.path)) from None

    def has_partial_line(self) -> bool:
        """Return whether something follows the last complete line."""
        if not self.path.exists():
            return False
        with self.path.open("rb") as file:
            end, _ = last_line(file)
            return file.seek(0, os.SEEK_END) > end

    def no_entry(self, number: int) -> DataError:
        """Return the error of a line that is no entry; the first line is number 1."""
        return DataError(f"line {number} is no entry of an audit log", where=str(self.path))

    def verify(self) -> int:
        """Return how many lines follow from each other. An incomplete last line is none.

        Raises:
            DataError: a line that was changed, or one before which lines are missing; or the end is missing.
        """
        before = FIRST
        hashes = [FIRST]
        for number, line in enumerate(self.lines(), start=1):
            try:
                entry = json.loads(line)
                recorded, _, _ = entry["before"], entry["time"], entry["event"]
            except NO_ENTRY:
                raise self.no_entry(number) from None
            if recorded != before:
                reason = (
                    f"line {number} does not follow from what is before it: line {number - 1} was changed,"
                    " or lines are missing before it"
                )
                raise DataError(reason, where=str(self.path))
            before = digest(line)
            hashes.append(before)
        last = self.last.read_text(errors="replace") if self.last.exists() else FIRST
        if last not in hashes[-2:]:  # a kill between the two writes leaves the hash one line behind
            reason = "its last line was changed, or lines are missing at the end"
            raise DataError(reason, where=str(self.path))
        return len(hashes) - 1
