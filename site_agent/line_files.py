"""Files that only grow, line by line. A loss of power can leave part of a line at their end.

Every line is on the disk before the next one is written, so only the last one can be incomplete: it lacks its newline,
or has NUL bytes where the disk has reserved room and written nothing. It was never answered for: readers leave it out,
and the next line takes its place.
"""

import os
from pathlib import Path
from typing import BinaryIO

BLOCK = 2**16
"""Bytes at a file's end that are read first to find its last line."""


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
