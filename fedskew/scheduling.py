"""What a command may use of the machine, and how its runs share that."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
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
        of_ray = {"--client-gpus": self.client_gpus, "--ray-address": self.ray_address}
        for option, value in of_ray.items():
            require(is_ray or not value, option, value, "is for --engine ray")
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
        workers = self.workers or (1 if gpus_for(runs) else max(1, cores() // jobs))
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

    summary: dict[str, Any] | None = None
    reason: str = ""
    is_to_go_on: bool = False
    """Whether the run is to be begun again: its process has died, or another one, on any machine, works on it."""


def gpus_for(runs: Sequence[RunSettings]) -> list[str]:
    """Return the GPUs that the runs may use, by the names of CUDA_VISIBLE_DEVICES; nothing on them is touched."""
    if all(run.general.device == "cpu" for run in runs):
        return []
    count = torch.cuda.device_count()
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = map(str, range(count)) if listed is None else listed.split(",")
    return list(islice(names, count))  # CUDA sees the GPUs before the first invalid name
