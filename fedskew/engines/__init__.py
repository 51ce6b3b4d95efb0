"""The engines that run clients: this process, worker processes, or Ray; and what a command may use of the machine."""

import multiprocessing
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data import require
from data.packages import ROOT
from data.readers.catalog import is_sites
from data.text import LineSink
from fedskew.signals import one_interrupt

if TYPE_CHECKING:  # it imports torch, which the gateway and most federation commands do not need
    from server_app.run_settings import RunSettings

APP = ROOT
"""The folder of the Flower app: the clone that this package is installed from."""
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

    def shared(self, runs: Sequence["RunSettings"]) -> "Resources":
        """Return how the runs share the machine; what is 0 or empty is chosen so that the last run ends soonest.

        That is one in-process run a core, as a run in one process has no idle core while it averages and evaluates;
        where there are more cores than runs, the runs divide them.
        """
        self.check()
        if self.engine == "ray":
            return replace(self, jobs=1)
        from client_app.state import cores  # with torch

        by_cores = cores() // max(1, self.workers)
        jobs = self.jobs or max(1, min(len(runs), by_cores))
        # On a GPU one worker is enough: each would take memory of the GPU.
        workers = self.workers or (1 if gpus_for(runs) else max(1, cores() // jobs))
        engine = self.engine or ("workers" if workers > 1 else "inprocess")
        return replace(self, engine=engine, jobs=jobs, workers=workers)


@dataclass(frozen=True)
class JobResult:
    """How a run of a sweep ended: with a summary, or with the reason why there is none."""

    summary: dict[str, Any] | None = None
    reason: str = ""
    is_to_go_on: bool = False
    """Whether the run is to be begun again: its process has died, or another one, on any machine, works on it."""


def gpus_for(runs: Sequence["RunSettings"]) -> list[str]:
    """Return the GPUs that the runs may use, by the names of CUDA_VISIBLE_DEVICES; nothing on them is touched."""
    if all(run.general.device == "cpu" for run in runs):
        return []
    import torch

    count = torch.cuda.device_count()
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = map(str, range(count)) if listed is None else listed.split(",")
    return list(islice(names, count))  # CUDA sees the GPUs before the first invalid name


def execute(
    settings: "RunSettings",
    resources: Resources,
    report_line: LineSink,
    sites: str = "",
) -> dict[str, Any]:
    """Run the settings' experiment on an engine and return its summary.

    No process of the run is left when this returns or raises, but for Ray's, which the next run uses again.

    Args:
        settings: of the run.
        resources: the engine, and what the run may use of the machine.
        report_line: gets one line per round.
        sites: a folder with one SITE/site.toml per site of dataset = sites:FILE, to rehearse them in this process.

    Raises:
        SettingError: an unknown engine, or an option of another engine.
        RuntimeError: a client that a GPU has no memory for, and the errors of `server_app.app.run`.
    """
    resources.check()
    from server_app.app import run

    with one_interrupt(), grid_of(settings, resources, sites) as grid:
        return run(grid, settings, report_line)


def grid_of(settings: "RunSettings", resources: Resources, sites: str) -> Any:
    """Return the grid that runs the clients; to be used as a context manager."""
    if is_sites(settings.data.dataset) or sites:
        return rehearsal_grid(settings, resources.engine, sites)
    from client_app.state import cores
    from fedskew.engines.workers import WorkersGrid

    clients = settings.data.clients
    if resources.engine == "ray":
        from fedskew.engines.ray_grid import RayGrid

        workers = min(resources.workers or clients, clients)
        return RayGrid(workers, resources.client_gpus, resources.ray_address)
    if resources.engine != "workers":
        return WorkersGrid()
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        # This process is a worker that imports a user's script without `if __name__ == "__main__":`. It must not start
        # workers of its own; the parent process reports the mistake.
        sys.exit(1)
    return WorkersGrid(min(resources.workers or cores(), clients))


def rehearsal_grid(settings: "RunSettings", engine: str, folder: str) -> Any:
    """Return the grid that runs a federation's sites in this process, each with its own site.toml.

    Raises SettingError for another engine than inprocess, or if the sites have approved another federation.toml than
    the run's; DataError as `read_sites`.
    """
    agreement = settings.agreement
    require(agreement is not None, "--sites", folder, "needs dataset = sites:FILE")
    assert agreement is not None
    rule = "must be a folder that holds a SITE/site.toml for each site, which are then run in this process"
    require(Path(folder).is_dir() and bool(folder), "--sites", folder, rule)
    require(engine in ("", "inprocess"), "--engine", engine, "must be inprocess with --sites")
    from fedskew.engines.local import RehearsalGrid
    from site_agent.config import read_sites

    sites = read_sites(Path(folder))
    approved = next(iter(sites.values())).agreement.sha256
    rule = f"is not what the sites of {folder} have approved, whose sha256 is {approved[:16]}..."
    require(approved == agreement.sha256, "dataset", settings.data.dataset, rule)
    return RehearsalGrid(sites, agreement)
