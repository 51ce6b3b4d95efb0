"""The engines that run clients: this process, worker processes, or Ray."""

import multiprocessing
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data import require
from data.package_files import ROOT
from data.readers.catalog import is_sites
from data.text import LineSink
from fedskew.signals import one_interrupt

if TYPE_CHECKING:  # they import torch, which the gateway and most federation commands do not need
    from fedskew.scheduling import Resources
    from server_app.run_folder import RunFolder
    from server_app.run_settings import RunSettings

APP = ROOT
"""The folder of the Flower app: the clone that this package is installed from."""
INTERVAL = 0.1
"""Seconds between two looks for new records of a run that another process executes."""


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
    if is_sites(settings.data.dataset) or sites:
        return rehearse(settings, resources.engine, report_line, sites)
    from client_app.state import cores
    from fedskew.engines.workers import WorkersGrid
    from server_app.app import run

    clients = settings.data.clients
    if resources.engine == "ray":
        from fedskew.engines.ray_grid import RayGrid

        workers = min(resources.workers or clients, clients)
        ray_grid = RayGrid(workers, resources.client_gpus, resources.ray_address)
        with one_interrupt(), ray_grid:
            return run(ray_grid, settings, report_line)
    is_starting_worker = getattr(multiprocessing.current_process(), "_inheriting", False)
    if resources.engine == "workers" and is_starting_worker:
        # This process is a worker that imports a user's script without `if __name__ == "__main__":`. It must not start
        # workers of its own; the parent process reports the mistake.
        sys.exit(1)
    workers = 0
    if resources.engine == "workers":
        workers = min(resources.workers or cores(), clients)
    with one_interrupt(), WorkersGrid(workers) as grid:
        return run(grid, settings, report_line)


def rehearse(
    settings: "RunSettings",
    engine: str,
    report_line: LineSink,
    folder: str,
) -> dict[str, Any]:
    """Run a federation's sites in this process, each with its own site.toml, and return the run's summary.

    Raises SettingError for another engine than inprocess, or if the sites have approved another federation.toml than
    the run's; DataError as `read_sites`.
    """
    require(settings.agreement is not None, "--sites", folder, "needs dataset = sites:FILE")
    rule = "must be a folder that holds a SITE/site.toml for each site, which are then run in this process"
    require(Path(folder).is_dir() and bool(folder), "--sites", folder, rule)
    require(engine in ("", "inprocess"), "--engine", engine, "must be inprocess with --sites")
    from fedskew.engines.rehearsal import RehearsalGrid
    from server_app.app import run
    from site_agent.config import read_sites

    sites = read_sites(Path(folder))
    agreement = settings.agreement
    assert agreement is not None
    approved = next(iter(sites.values())).agreement.sha256
    rule = f"is not what the sites of {folder} have approved, whose sha256 is {approved[:16]}..."
    require(approved == agreement.sha256, "dataset", settings.data.dataset, rule)
    with one_interrupt(), RehearsalGrid(sites, agreement) as grid:
        return run(grid, settings, report_line)


@contextmanager
def following(folder: "RunFolder", report_line: LineSink) -> Iterator[None]:
    """Within this context, report the line of every round that another process adds to the run's records."""
    reported = {record.round for record in folder.rounds()}
    ended = threading.Event()

    def report_new() -> None:
        for record in folder.rounds():
            if record.round not in reported:
                reported.add(record.round)
                report_line(record.line)

    def follow() -> None:
        size = -1
        last = False
        while not last:
            last = ended.wait(INTERVAL)
            now = folder.rounds_file.stat().st_size if folder.rounds_file.exists() else 0
            if now != size:
                size = now
                report_new()

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
