"""What a command may use of the machine, and how its runs share that."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from client_app.state import cores
from data import require
from server_app.run_folder import RunFolder
from server_app.run_settings import RunSettings

ENGINES = ("inprocess", "workers", "ray")


@dataclass(frozen=True)
class Resources:
    """What a command may use: its options --engine, --jobs, --workers, --client-gpus and --ray-address."""

    engine: str = ""
    """One of ENGINES; empty is chosen: by `shared`, and inprocess for a run alone."""
    jobs: int = 0
    """Runs at a time; 0 is chosen by cores and memory."""
    workers: int = 0
    """Processes of each run that run clients; 0 is one per core."""
    client_gpus: float = 0.0
    """With Ray, the share of a GPU that each client has."""
    ray_address: str = ""
    """With Ray, HOST:PORT of a running cluster, or auto; empty starts Ray on this machine."""

    def check(self) -> None:
        """Raise SettingError for an unknown engine, or an option of another engine."""
        engines = ", ".join(ENGINES)
        known = not self.engine or self.engine in ENGINES
        require(known, "--engine", self.engine, f"must be one of {engines}")
        is_ray = self.engine == "ray"
        rule = "is for --engine ray"
        require(is_ray or not self.client_gpus, "--client-gpus", self.client_gpus, rule)
        require(is_ray or not self.ray_address, "--ray-address", self.ray_address, rule)
        rule = "must be 1 with --engine ray, which takes the machine for one run"
        require(not is_ray or self.jobs <= 1, "--jobs", self.jobs, rule)

    def shared(self, runs: Sequence[RunSettings]) -> "Resources":
        """Return how the runs share the machine; what is 0 or empty is chosen so that the last run ends soonest.

        That is one in-process run a core, as a run in one process has no idle core while it averages and evaluates;
        where there are more cores than runs, the runs divide them.
        """
        self.check()
        if self.engine == "ray":
            return replace(self, jobs=1)
        by_cores = cores() // max(1, self.workers)
        jobs = self.jobs or max(1, min(len(runs), by_cores))
        # On a GPU one worker is enough: each would take memory of the GPU.
        own_workers = 1 if wants_gpu(runs) and visible_gpus() else max(1, cores() // jobs)
        workers = self.workers or own_workers
        engine = self.engine or ("workers" if workers > 1 else "inprocess")
        return replace(self, engine=engine, jobs=jobs, workers=workers)


ANY = Resources()
"""All is chosen."""


@dataclass(frozen=True)
class Job:
    """A run of a sweep."""

    settings: RunSettings
    label: str
    """What the user calls it: method, column, seed."""

    @property
    def folder(self) -> RunFolder:
        """The run's folder."""
        return RunFolder(self.settings.folder)


@dataclass(frozen=True)
class JobResult:
    """How a job ended: with a summary, or with the reason why there is none."""

    summary: Mapping[str, Any] | None = None
    reason: str = ""
    is_busy: bool = False
    """Whether another process, here or on another machine, is working on the run."""


def wants_gpu(runs: Sequence[RunSettings]) -> bool:
    """Return whether a run computes on a GPU where there is one."""
    return any(run.general.device != "cpu" for run in runs)


def visible_gpus() -> dict[str, int]:
    """Return the GPUs that this process may use and the bytes of each one's memory, without touching any.

    One whose memory nvidia-smi does not know ("[N/A]") counts as of none, and so takes one run.
    """
    if torch.version.cuda is None:
        return {}
    query = ["nvidia-smi", "--query-gpu=index,uuid,memory.total", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return {}
    memory = {}
    names = []
    for line in answer.stdout.splitlines():
        index, uuid, mebibytes, *_ = [word.strip() for word in line.split(",")]
        known = int(mebibytes) * 2**20 if mebibytes.isdigit() else 0
        memory[index] = memory[uuid] = known
        names.append(index)
    if not memory:
        return {}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        names = [name.strip() for name in visible.split(",")]
    smallest = min(memory.values())  # for a name that nvidia-smi does not list, as of a MIG slice
    gpus = {}
    for name in names:
        if name in ("", "-1"):  # CUDA sees the GPUs before the first invalid name
            break
        gpus[name] = memory.get(name, smallest)
    return gpus
