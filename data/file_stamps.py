"""What tells a file from the one that has taken its place, without reading either."""

from pathlib import Path

FileStamp = tuple[int, int, int] | None
"""Time of change in nanoseconds, inode and size in bytes; None where there is no file."""


def stamp_of(file: Path) -> FileStamp:
    """Return what is another value after a file was changed or replaced, None where it cannot be looked at."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size
