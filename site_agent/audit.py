"""The site's audit log: requests, replies and refusals; each line contains the hash of the line before."""

import hashlib
import json
import logging
import os
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock

from data import DataError

logger = logging.getLogger("fedskew.site")
FIRST = "0" * 64
"""What the first line holds in place of a hash."""
PRIORITY = 10 * 8 + 6
"""Of syslog: the facility authpriv (10) and the severity informational (6), RFC 5424 6.2.1."""
LONGEST_DATAGRAM = 8192
"""Characters of a line for syslog; longer ones are cut, and complete in the file."""
LONGEST = 2**20
"""Bytes at the log's end that hold its last line."""


def digest(line: bytes) -> str:
    """Return the hash of a line, without its end."""
    return hashlib.sha256(line.rstrip(b"\n")).hexdigest()


class Audit:
    """An audit log in a file; `FILE.last` keeps the hash of its last line, so that a missing end is seen as well."""

    def __init__(self, path: Path, syslog: str = "") -> None:
        """`syslog` is where each line goes as well: a socket's path, as /dev/log, or HOST:PORT; empty for nowhere."""
        self.path = path
        self.syslog = syslog
        self.last = path.with_name(f"{path.name}.last")
        self.lock = path.with_name(f"{path.name}.lock")

    def write(self, event: str, **entry: Any) -> None:
        """Append a line, on the disk before this returns. Raises OSError, and leaves the file as it was."""
        self.path.touch(0o600)
        with FileLock(self.lock, mode=0o600), self.path.open("rb+") as file:
            start = max(file.seek(0, os.SEEK_END) - LONGEST, 0)
            file.seek(start)
            end, before = tail(file.read())
            end += start
            stamp = datetime.now(UTC).isoformat(timespec="milliseconds")
            text = json.dumps({"time": stamp, "event": event, **entry, "before": before})
            line = f"{text}\n".encode()
            try:
                file.truncate(end)  # a loss of power can leave part of a line
                file.seek(end)
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
            except OSError:
                file.truncate(end)
                raise
            self.last.write_text(digest(line))
        if self.syslog:
            send_to_syslog(self.syslog, {"time": stamp, "event": event, **entry, "before": before})

    def lines(self) -> list[bytes]:
        """Return the log's lines, oldest first. Raises DataError where it cannot be read."""
        try:
            return self.path.read_bytes().splitlines()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise DataError(f"cannot be read: {error.strerror}", where=str(self.path)) from None

    def verify(self) -> int:
        """Return how many lines follow from each other.

        Raises:
            DataError: a line that was changed, or one before which lines are missing; or the end is missing.
        """
        before = FIRST
        hashes = [FIRST]
        for number, line in enumerate(self.lines(), start=1):
            try:
                recorded = json.loads(line)["before"]
            except (ValueError, TypeError, LookupError, RecursionError):
                reason = f"line {number} is no entry of an audit log"
                raise DataError(reason, where=str(self.path)) from None
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


def send_to_syslog(address: str, entry: dict[str, Any]) -> None:
    """Send an entry to syslog, without the text of a run's settings. A syslog that is not there stops nothing.

    The line in the file is what counts: a datagram can be lost, and nobody answers it.
    """
    shown = {key: value for key, value in entry.items() if key != "text"}
    message = f"<{PRIORITY}>fedskew-site: {json.dumps(shown)}"[:LONGEST_DATAGRAM].encode()
    try:
        if address.startswith("/"):
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
                connection.setblocking(
                    False
                )  # a daemon that reads nothing must not hold up an answer
                connection.sendto(message, address)
            return
        host, _, port = address.rpartition(":")
        family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as connection:
            connection.sendto(message, (host.strip("[]"), int(port)))
    except OSError as error:
        logger.error("syslog at %s gets no lines: %s", address, error.strerror or error)


def tail(content: bytes) -> tuple[int, str]:
    """Return where the last complete line ends, and its hash."""
    end = content.rfind(b"\n") + 1
    if end == 0:
        return 0, FIRST
    begin = content.rfind(b"\n", 0, end - 1) + 1
    return end, digest(content[begin:end])
