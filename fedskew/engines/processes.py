"""Processes of a service or an app: their environment, found by a mark in it, ended by process id.

Neither process group nor process tree holds all that flwr and Ray start: flower-superexec opens its own session, and
Ray's agents outlive their parents. But all inherit the environment, so the mark is there.
"""

import contextlib
import os
import re
import socket
import sys
import time
from pathlib import Path

import psutil

DEFAULTS = {  # the user's environment goes before them
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",  # else every run installs torch anew, and fails offline
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "PYTHONUNBUFFERED": "1",
}
RUN = "FEDSKEW_RUN"
PATIENCE = 1.0
"""Seconds between asking a process to end and killing it: short, as checkpoints on disk are whole at any moment."""
_UNREADABLE = (psutil.NoSuchProcess, psutil.AccessDenied)  # a zombie is a NoSuchProcess, too


class LaunchFailed(RuntimeError):
    """A run that ended without a result, or could not be started; the message is the reason."""


def search_path() -> str:
    """Return where programs are looked for: beside this Python first."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def mark(folder: Path) -> dict[str, str]:
    """Return the environment variables that mark a process as one of the run in `folder`."""
    return {
        RUN: str(folder.resolve()),
        "SPT_NOENV": "1",  # else Ray's agents write their process title over the environment that others can read
    }


def marked(folder: Path) -> list[psutil.Process]:
    """Return the live processes that carry the mark of the run in `folder`, and their descendants.

    This process and its ancestors are never among them. Processes of other users are not seen.
    """
    wanted = str(folder.resolve())
    own = psutil.Process()
    spared = {own, *own.parents()}
    members: dict[psutil.Process, None] = {}
    psutil.process_iter.cache_clear()  # it hides a new process under a used-up id
    for process in psutil.process_iter():
        with contextlib.suppress(*_UNREADABLE):
            if process not in spared and process.environ().get(RUN) == wanted:
                members |= dict.fromkeys([process, *process.children(recursive=True)])
    return [process for process in members if process not in spared and alive(process)]


def running(folder: Path, program: str) -> list[psutil.Process]:
    """Return those of the marked processes that are a program's, by its file's or module's name."""
    processes = []
    for process in marked(folder):
        with contextlib.suppress(*_UNREADABLE):
            # A script is the second word, behind its interpreter, and a module the third or fourth.
            words = process.cmdline()[:4]
            if program in [Path(word).name for word in words]:
                processes.append(process)
    return processes


def free_port() -> int:
    """Return a port of the loopback address that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def alive(process: psutil.Process) -> bool:
    """Return whether `process` still runs; a zombie, which only waits for its parent, does not."""
    with contextlib.suppress(*_UNREADABLE):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def end(folder: Path, patience: float = PATIENCE) -> None:
    """End every marked process of the run in `folder`: ask (SIGTERM), and after `patience` seconds kill (SIGKILL).

    Searches again until none is left, as processes may be started meanwhile.
    Raises TimeoutError, naming the process ids, when some are still there 10 seconds after they were first killed.
    """
    found: set[psutil.Process] = set()
    asked: set[psutil.Process] = set()
    kill_at = time.monotonic() + patience
    # Remembered, as a descendant without a readable mark is lost once its parent is gone.
    while found := {process for process in found.union(marked(folder)) if alive(process)}:
        late = time.monotonic() - kill_at
        if late > 10:
            pids = sorted(process.pid for process in found)
            raise TimeoutError(f"processes {pids} of {folder} cannot be ended")
        for process in found - asked:
            with contextlib.suppress(*_UNREADABLE):
                process.terminate()
        asked |= found
        if late > 0:
            for process in found:
                with contextlib.suppress(*_UNREADABLE):
                    process.kill()
        time.sleep(0.02)


def reason(details: str) -> str:
    """Return why a run failed: flwr's status-details without their preamble before str(exception)."""
    return re.sub(r"^\w+ failed with exception: ?", "", details.strip())
