"""The jobs of a sweep, and how many run at the same time."""

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from client_app.state import cores
from data import require
from server_app.run_settings import RunSettings

CUDA_CONTEXT = 600 * 2**20
"""Bytes of a GPU's memory that a process takes before it computes anything."""


@dataclass(frozen=True)
class Job:
    """A run of the sweep."""

    settings: RunSettings
    label: str
    """What the user calls it: method, column, seed."""
    memory_bytes: int = 0
    """Bytes that it is expected to need."""
    work: float = 0.0
    """How long it takes beside other runs of the same data, in no unit."""


@dataclass(frozen=True)
class JobResult:
    """How a job ended: with a summary, or with the reason why there is none."""

    summary: dict[str, Any] | None = None
    reason: str = ""


@dataclass(frozen=True)
class Allocation:
    """How a machine is shared among runs."""

    engine: str
    jobs: int
    """Runs at a time."""
    workers: int
    """Processes of each that run clients; of no meaning in-process."""
    gpus: tuple[str, ...] = ()
    """One entry a run that a GPU's memory holds; empty leaves everything visible."""


def allocate(
    jobs: Sequence[Job],
    engine: str = "",
    at_once: int = 0,
    workers: int = 0,
) -> Allocation:
    """Return how the machine is shared; what is 0 or empty is chosen so that the last run ends soonest.

    That is one in-process run a core, as a run in one process has no idle core while it averages and evaluates; where
    there are more cores than runs, the runs divide them. On GPUs no more in-process runs than their memory holds.
    """
    own_cores = cores()
    if engine == "ray":
        rule = "must be 1 with --engine ray, which takes the machine for one run"
        require(at_once <= 1, "--jobs", at_once, rule)
        return Allocation(engine, 1, workers)
    wants_gpu = any(job.settings.general.device != "cpu" for job in jobs)
    gpus = visible_gpus() if wants_gpu else {}
    need = largest(jobs) + CUDA_CONTEXT
    slots: list[str] = []
    for name, memory in gpus.items():
        fitting = max(1, memory // need)  # unknown memory counts as none, and takes one run
        slots.extend([name] * fitting)
    if not at_once:
        by_cores = own_cores // max(1, workers)
        by_gpus = len(slots) or len(jobs)
        at_once = max(1, min(len(jobs), by_cores, by_gpus))
    if not workers:
        # On a GPU one is enough: each would take memory of the GPU.
        workers = 1 if gpus else max(1, own_cores // at_once)
    if not engine:
        engine = "workers" if workers > 1 else "inprocess"
    return Allocation(engine, at_once, workers, tuple(slots))


def emptiest(slots: Sequence[str], used: Sequence[str | None]) -> str | None:
    """Return the GPU of which the smallest share of slots is in use; None where there are none."""

    def share_in_use(gpu: str) -> float:
        return used.count(gpu) / slots.count(gpu)

    return min(slots, key=share_in_use, default=None)


def largest(jobs: Sequence[Job]) -> int:
    """Return the bytes of the job that needs most."""
    return max((job.memory_bytes for job in jobs), default=0)


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


def ordered(jobs: Sequence[Job]) -> list[Job]:
    """Return the jobs with those of the same data and partition one after the other: a process then loads them once.

    Of those the one with most work comes first, so that it is not left for the end while other cores have none.
    """
    by_data: dict[object, list[Job]] = {}
    for job in jobs:
        of_data = by_data.setdefault(same_data(job.settings), [])
        of_data.append(job)
    result: list[Job] = []
    for of_data in by_data.values():
        result += sorted(of_data, key=lambda job: -job.work)
    return result


def same_data(settings: RunSettings) -> object:
    """Return what is equal for runs of the same data and partition."""
    return settings.data, settings.general.seed
