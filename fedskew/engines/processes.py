"""Processes of a service or an app: found by a mark in their environment, ended by process id.

Neither process group nor process tree holds all that flwr and Ray start: flower-superexec opens its own session, and
Ray's agents outlive their parents. But all inherit the environment, so the mark is there.
"""

import contextlib
import os
import socket
import time
from collections import defaultdict
from pathlib import Path

import psutil

RUN = "FEDSKEW_RUN"
PATIENCE = 1.0
"""Seconds between asking a process to end and killing it: short, as checkpoints on disk are whole at any moment."""
_UNREADABLE = (psutil.NoSuchProcess, psutil.AccessDenied)  # a zombie is a NoSuchProcess, too


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
    ancestors = [process.pid for process in psutil.Process().parents()]
    spared = {os.getpid(), *ancestors}
    members: list[psutil.Process] = []
    children: defaultdict[int, list[psutil.Process]] = defaultdict(list)
    for pid in psutil.pids():  # not process_iter: its cache hides a new process under a used-up id
        if pid in spared:
            continue
        with contextlib.suppress(*_UNREADABLE):
            process = psutil.Process(pid)
            children[process.ppid()].append(process)
            if process.environ().get(RUN) == wanted:
                members.append(process)
    for process in members:  # the loop also goes through the children that it appends
        members += [child for child in children[process.pid] if child not in members]
    return [process for process in members if alive(process)]


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
    # Remembered, as a descendant without a readable mark is lost once its parent is gone.
    found: set[psutil.Process] = set()
    asked: set[psutil.Process] = set()
    kill_at = time.monotonic() + patience
    while True:
        found = {process for process in found.union(marked(folder)) if alive(process)}
        if not found:
            return
        late = time.monotonic() - kill_at
        if late > 10:
            pids = sorted(process.pid for process in found)
            raise TimeoutError(f"processes {pids} of {folder} cannot be ended")
        if late > 0:
            for process in found:
                with contextlib.suppress(*_UNREADABLE):
                    process.kill()
        else:
            for process in found - asked:
                with contextlib.suppress(*_UNREADABLE):
                    process.terminate()
        asked |= found
        time.sleep(0.02)


def identity(pid: int | None = None) -> str:
    """Return what names a process, PID/BEGINNING, and no later one of its process id; this process without `pid`."""
    pid = pid or os.getpid()
    return f"{pid}/{beginning(pid)}"


def beginning(pid: int) -> float:
    """Return when a process began; on Linux in ticks since the machine did, which setting the clock does not change."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
        # The second field, the program's name, may itself have spaces; the start time is the 22nd.
        _, _, fields = text.rpartition(")")
        return float(fields.split()[19])
    except OSError:
        return psutil.Process(pid).create_time()


def process_of(identity: str) -> psutil.Process | None:
    """Return the live process that `identity` names, or None."""
    pid, _, began = identity.partition("/")
    with contextlib.suppress(ValueError, *_UNREADABLE):
        process = psutil.Process(int(pid))
        if beginning(process.pid) == float(began) and alive(process):
            return process
    return None
