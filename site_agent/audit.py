"""The site's audit log: requests, replies and refusals; each line contains the hash of the line before.

Files that only grow, line by line, are read and written by the functions at the end. Every line is on the disk before
the next one is written, so a loss of power leaves at most part of the last one: it lacks its newline, or has NUL bytes
where the disk has reserved room and written nothing. It was never answered for: readers leave it out, and the next line
takes its place.
"""

import hashlib
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock

from data import DataError

FIRST = "0" * 64
"""What the first line holds in place of a hash."""
BLOCK = 2**16
"""Bytes at a file's end that are read first to find its last line."""
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
        """Return the log's complete lines, oldest first. Raises OSError where it cannot be read."""
        return complete_lines(self.path)

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


# ---- files of lines --------------------------------------------------------------------------------------------------


def complete(content: bytes) -> bytes:
    """Return the content of a file up to the end of its last complete line. The lines have no NUL bytes."""
    whole = content[: content.rfind(b"\n") + 1]
    last_begin = whole.rfind(b"\n", 0, -1) + 1
    if b"\0" in whole[last_begin:]:
        return whole[:last_begin]
    return whole


def complete_lines(path: Path) -> list[bytes]:
    """Return a file's complete lines without their ends; none if there is no file. Raises OSError."""
    try:
        whole = complete(path.read_bytes())
    except FileNotFoundError:
        return []
    return whole.split(b"\n")[:-1]


def last_line(file: BinaryIO) -> tuple[int, bytes]:
    """Return where a file's last complete line ends, in bytes, and the line without its end; (0, b"") for none."""
    size = file.seek(0, os.SEEK_END)
    block = BLOCK
    while True:
        start = max(size - block, 0)
        file.seek(start)
        whole = complete(file.read())
        begin = whole.rfind(b"\n", 0, -1) + 1
        if begin or start == 0:  # otherwise the line can begin before the block
            return start + len(whole), whole[begin:-1]
        block *= 2


def append(file: BinaryIO, end: int, line: str) -> None:
    """Write a line at `end`, where the last complete line ends; it is on the disk when this returns.

    `file` is open for reading and writing. Raises OSError; the file then ends at `end`.
    """
    try:
        file.truncate(end)
        file.seek(end)
        file.write(f"{line}\n".encode())
        file.flush()
        os.fsync(file.fileno())
    except OSError:
        file.truncate(end)
        raise
