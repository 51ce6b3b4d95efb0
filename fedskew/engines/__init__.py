"""The engines that run clients: this process, worker processes, or Ray."""

import multiprocessing
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data import require
from data.package_files import ROOT
from data.readers.catalog import is_sites
from data.text import LineSink
from fedskew.signals import one_interrupt

if TYPE_CHECKING:  # they import torch, which the gateway and most federation commands do not need
    from fedskew.scheduling import Resources
    from server_app.run_settings import RunSettings

APP = ROOT
"""The folder of the Flower app: the clone that this package is installed from."""


def execute(
    settings: "RunSettings",
    resources: "Resources",
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


def grid_of(settings: "RunSettings", resources: "Resources", sites: str) -> Any:
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
