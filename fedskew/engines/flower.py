"""flwr's processes: their environment, when they listen, and why a run of theirs failed."""

import contextlib
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

DEFAULTS = {  # the user's environment goes before them
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",  # else every run installs torch anew, and fails offline
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "PYTHONUNBUFFERED": "1",
}
START_TIMEOUT = 60.0
"""Seconds until a process has to listen."""


class LaunchFailed(RuntimeError):
    """A run that ended without a result, or could not be started; the message is the reason."""


def search_path() -> str:
    """Return where programs are looked for: beside this Python first."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def listening(process: subprocess.Popen[bytes], port: int, name: str, output: Path) -> None:
    """Return once somebody listens on the port. Raises LaunchFailed with the process's last words when nobody does."""
    deadline = time.monotonic() + START_TIMEOUT
    while True:
        if process.poll() is not None or time.monotonic() > deadline:
            last_words = output.read_text(errors="replace")[-1000:].strip()
            raise LaunchFailed(f"{name} did not start: {last_words}")
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", port), timeout=0.5),
        ):
            return
        time.sleep(0.02)


def reason(details: str) -> str:
    """Return why a run failed: flwr's status-details without their preamble before str(exception)."""
    return re.sub(r"^\w+ failed with exception: ?", "", details.strip())
