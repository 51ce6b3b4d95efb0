"""A cluster machine's part in a sweep: it shows that it shares the sweep's folder, and executes runs in it.

Called in processes that Ray started, on any machine, with the paths that the sweep has on its own.
"""

import contextlib
import logging
import os
import pickle
import socket
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from client_app.process import code_version
from client_app.user_code import look_in_folder
from data import SettingError
from fedskew.scheduling import visible_gpus
from fedskew.sweep.worker import Event, Executor
from server_app.lock import FolderBusy, locked
from server_app.versions import PACKAGES

PATIENCE = 60.0
"""Seconds that a run which goes on elsewhere waits for the lock of the process that is taken for dead."""


@dataclass(frozen=True)
class SharedFolders:
    """Where a sweep works: what a machine must have under the same names to take a run of it."""

    folder: str
    """The working folder, from which relative paths count."""
    checks: tuple[str, ...]
    """Folders in the results folders, each locked by the sweep."""
    code: str
    """Of the sweep's code."""


@dataclass(frozen=True)
class Machine:
    """What a machine says of itself."""

    name: str
    problem: str = ""
    """Why it can take no run; empty where it can."""
    gpu_memory: tuple[int, ...] = ()
    """Bytes of each GPU."""


def check_node(shared: SharedFolders) -> Machine:
    """Return what this machine is, and what keeps it from taking runs."""
    name = socket.gethostname()
    os.environ.pop(
        "CUDA_VISIBLE_DEVICES", None
    )  # Ray hides the GPUs from a task that asks for none
    gpu_memory = []
    for device, size in visible_gpus().items():
        if not device.isdigit():  # each GPU is there twice: by its index and by its UUID
            gpu_memory.append(size)
    return Machine(name, problem(shared), tuple(gpu_memory))


def problem(shared: SharedFolders) -> str:
    """Return why a process here cannot take runs of the sweep, or nothing."""
    if not Path(shared.folder).is_dir():
        return f"has no folder {shared.folder}: the command's must be on a disk that all machines have under one name"
    if code_version(*PACKAGES) != shared.code:
        return "has another version of FedSkew's code"
    os.chdir(shared.folder)
    for check in shared.checks:
        if not Path(check).is_dir():
            return f"does not see what is written to {Path(check).parent}: results must be on a disk that all share"
        try:
            with locked(Path(check)):
                pass
        except FolderBusy:
            continue
        except SettingError as error:
            return f"has no part in {Path(check).parent}: it {error.rule}"
        return (
            f"takes a lock in {Path(check).parent} that another process holds: two machines could work on one run; "
            "mount it so that flock counts on all machines (NFS 4 without local_lock, Lustre with flock)"
        )
    return ""


@cache
def executor(folder: str) -> Executor:
    """Return what executes this process's runs, one after the other, in the sweep's working folder."""
    os.chdir(folder)
    look_in_folder()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    return Executor()


def run_job(folder: str, settings: bytes, engine: str, workers: int, again: bool) -> Event:
    """Execute a run and return how it ended. Its settings are pickled, as its own modules can be had only here.

    One that goes on, `again`, after its process or machine was lost waits until that has let go of the run's folder.
    """
    runs = executor(folder)
    config = pickle.loads(settings)
    if again:
        await_lock(config.folder)
    return runs.execute(config, engine, workers, lambda line: None)


def await_lock(folder: Path) -> None:
    """Return once nobody holds the lock of a run's folder, or after a while: a process that is cut off ends itself."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        with contextlib.suppress(FolderBusy), locked(folder):
            return
