"""The processes of a run: found by a mark in their environment, ended by process id.

A run on Ray has about fifteen processes, and neither process group nor process tree holds them all: flower-superexec
opens its own session, and Ray's agents outlive their parents. But all inherit the environment, so the mark is there.
"""

import contextlib
import multiprocessing
import os
import shutil
import socket
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import psutil

from server_app.lock import FolderBusy

RUN = "FEDSKEW_RUN"
LAUNCHER = "FEDSKEW_LAUNCHER"
OWNER = "fedskew-owner"
SWEEP = "ray-sweep-"
"""Begins the name that marks a sweep's processes, in place of a run's folder; the launcher's process id follows."""
PREFIX = "fedskew-"
"""Of the names of semaphores and of a run's temporary folder."""
SEMAPHORES = Path("/dev/shm")
"""Where Linux shows the semaphores that have a name."""
SHORTEST = "/tmp"
"""Where temporary folders go whose usual place has too long a name."""
PATIENCE = 1.0
"""Seconds between asking a process to end and killing it: short, as checkpoints on disk are whole at any moment."""
_UNREADABLE = (psutil.NoSuchProcess, psutil.AccessDenied)  # a zombie is a NoSuchProcess, too


def mark(folder: Path) -> dict[str, str]:
    """Return the environment variables that mark a process as started by this launcher for the run in `folder`."""
    return {
        RUN: str(folder.resolve()),
        LAUNCHER: identity(),
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
            environment = process.environ()
            if environment.get(RUN) == wanted and LAUNCHER in environment:
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


def claim(folder: Path) -> None:
    """Make sure that no earlier launcher's processes work on `folder`; to be called before a run is started in it.

    Processes whose launcher has died (kill -9) are ended, so that the same command, given again, takes over. So are
    those of a killed sweep in the same folder of results, which may be at work on any of its runs.
    Raises FolderBusy when their launcher is alive and is not this process.
    """
    leftovers = marked(folder)
    for process in leftovers:
        with contextlib.suppress(*_UNREADABLE):
            launcher = process_of(process.environ().get(LAUNCHER, ""))
            if launcher is not None and launcher.pid != os.getpid():
                busy = f"{folder} is being run by process {launcher.pid}"
                raise FolderBusy(f"{busy}: wait for it, or end it first")
    if leftovers:
        end(folder)
    for sweep in abandoned_sweeps(folder.resolve().parent):
        end(sweep)


def abandoned_sweeps(results: Path) -> set[Path]:
    """Return the marks of processes of sweeps in this folder of results whose launcher has died."""
    marks = set()
    for pid in psutil.pids():
        with contextlib.suppress(*_UNREADABLE):
            environment = psutil.Process(pid).environ()
            folder = Path(environment.get(RUN, ""))
            is_sweep = folder.parent == results and folder.name.startswith(SWEEP)
            if is_sweep and process_of(environment.get(LAUNCHER, "")) is None:
                marks.add(folder)
    return marks


def launcher_lives() -> bool:
    """Return whether the launcher that started this process is still there."""
    return process_of(os.environ.get(LAUNCHER, "")) is not None


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


def note_owner(folder: Path) -> None:
    """Write the owner into a temporary folder of this process, so that it is deleted later if this is killed."""
    with contextlib.suppress(OSError):  # a folder without a note is only never deleted
        (folder / OWNER).write_text(f"{machine()} {identity()}")


def machine() -> str:
    """Return a name of this machine and its process ids, as containers may share a host's name and folders."""
    with contextlib.suppress(OSError):  # only Linux has it
        return f"{socket.gethostname()}/{Path('/proc/self/ns/pid').readlink()}"
    return socket.gethostname()


def name_semaphores() -> None:
    """Give multiprocessing's semaphores this process's name, so that they are deleted later if this is killed.

    Python deletes them with the last process that knows of them, unless kill -9 has hit that one, too.
    """
    if SEMAPHORES.is_dir():
        pid, _, began = identity().partition("/")
        prefix = f"/{PREFIX}{namespace()}-{pid}-{float(began):.0f}"
        with contextlib.suppress(AttributeError):  # no public name for it
            multiprocessing.current_process()._config["semprefix"] = prefix  # type: ignore[attr-defined]


def namespace() -> str:
    """Return the number in `machine`, as a semaphore's name may hold it: containers may share semaphores, too."""
    return "".join(filter(str.isdigit, machine().rpartition("/")[2]))


def short_folder(longest: int) -> str:
    """Return where temporary folders go, or /tmp where that has too long a name: a socket's path has at most 107 bytes.

    Args:
        longest: characters that the name of the place may have.
    """
    usual = tempfile.gettempdir()
    return usual if len(usual) <= longest else SHORTEST


def clear_leftovers() -> None:
    """Delete what this machine's killed commands left: their temporary folders, but for those that Ray's processes
    still use, and their semaphores."""
    for parent in {Path(tempfile.gettempdir()), Path(SHORTEST)}:
        for owner_file in parent.glob(f"*/{OWNER}"):
            with contextlib.suppress(OSError, ValueError):
                host, name = owner_file.read_text().split()
                folder = owner_file.parent
                abandoned = host == machine() and process_of(name) is None
                if abandoned and str(folder) not in homes():
                    shutil.rmtree(folder, ignore_errors=True)
    for semaphore in SEMAPHORES.glob(f"sem.{PREFIX}*"):
        with contextlib.suppress(OSError, ValueError):
            _, space, pid, began, _ = semaphore.name.split("-")
            if space == namespace() and process_of(f"{pid}/{began}") is None:
                semaphore.unlink()


def homes() -> set[str]:
    """Return flwr's home folders of all processes."""
    folders = set()
    for pid in psutil.pids():
        with contextlib.suppress(*_UNREADABLE):
            folders.add(psutil.Process(pid).environ().get("FLWR_HOME", ""))
    return folders
