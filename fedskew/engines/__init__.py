"""The engines that run clients: this process, worker processes, or Flower's simulation on Ray."""

import contextlib
import multiprocessing
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data import SettingError, require
from data.package_files import ROOT
from data.readers.catalog import is_sites
from data.text import LineSink
from fedskew.engines.launcher import launch
from fedskew.engines.processes import claim
from fedskew.engines.ray_sweep import RaySweep
from fedskew.engines.repeated import repeatedly
from fedskew.signals import one_interrupt

if TYPE_CHECKING:  # they import torch, which the gateway and most federation commands do not need
    from server_app.run_folder import RunFolder
    from server_app.run_settings import RunSettings

APP = ROOT
"""The folder of the Flower app: the clone that this package is installed from."""
ENGINES = ("inprocess", "workers", "ray")


def execute(
    settings: "RunSettings",
    engine: str,
    report_line: LineSink,
    *,
    workers: int = 0,
    federation_config: str = "",
    sites: str = "",
    ray_sweep: RaySweep | None = None,
) -> dict[str, Any]:
    """Run the settings' experiment on an engine and return its summary.

    All processes of the run have ended when this returns or raises.

    Args:
        settings: of the run.
        engine: one of ENGINES.
        report_line: gets one line per round.
        workers: processes that run clients; 0 for one per core.
        federation_config: for Ray, as in `flwr run --federation-config`.
        sites: a folder with one SITE/site.toml per site of dataset = sites:FILE, to rehearse them in this process.
        ray_sweep: for Ray, the processes that the runs of a sweep share; None for a single run.

    Raises:
        SettingError: an unknown engine, or an option of another engine.
        LaunchFailed: the run failed on Ray. The other engines raise the errors of `server_app.app.run`.
    """
    if engine not in ENGINES:
        raise SettingError("--engine", engine, f"must be one of {', '.join(ENGINES)}")
    if is_sites(settings.data.dataset) or sites:
        return rehearse(settings, engine, report_line, sites)
    from client_app.state import cores

    workers = min(workers or cores(), settings.data.clients)
    if engine == "ray":
        return on_ray(settings, report_line, workers, federation_config, ray_sweep)
    if federation_config:
        raise SettingError("--federation-config", federation_config, "is for --engine ray")
    from fedskew.engines.workers import WorkersGrid
    from server_app.app import run

    is_starting_worker = getattr(multiprocessing.current_process(), "_inheriting", False)
    if engine == "workers" and is_starting_worker:
        # This process is a worker that imports a user's script without `if __name__ == "__main__":`. It must not start
        # workers of its own; the parent process reports the mistake.
        sys.exit(1)
    processes = workers if engine == "workers" else 0
    with one_interrupt(), WorkersGrid(processes) as grid:
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
    require(engine == "inprocess", "--engine", engine, "must be inprocess with --sites")
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


def on_ray(
    settings: "RunSettings",
    report_line: LineSink,
    workers: int,
    federation_config: str,
    ray_sweep: RaySweep | None,
) -> dict[str, Any]:
    """Run on Ray with `flwr run`, and report each round once the ServerApp has recorded it. Returns the summary.

    Without `ray_sweep` the run starts its own `flwr run`, else it uses the sweep's.
    """
    from data import federate
    from server_app.best_round import refuse_unvalidated
    from server_app.run_folder import RunFolder

    folder = RunFolder(settings.folder)
    # End processes that a killed launcher left: they would still hold the folder's lock.
    claim(folder.path)
    # Load the data here, so that invalid data are refused before Ray starts.
    federation = federate(settings.data, settings.general.seed)
    refuse_unvalidated(settings.general.keep_best, federation)
    # This block releases the lock at its end: the ServerApp, another process, takes it then.
    with folder.begin(settings, federation, report_line) as finished:
        if finished is not None:
            return finished
    config = settings.going_on().run_config()
    log = folder.path / "flwr.log"
    with following(folder, report_line):
        if ray_sweep is None:
            launch(
                APP,
                config,
                folder.path,
                nodes=workers,
                federation_config=federation_config,
                log=log,
                result=folder.summary_file,
            )
        else:
            ray_sweep.run(
                config,
                folder.path,
                nodes=workers,
                federation_config=federation_config,
                log=log,
            )
    summary = folder.summary()
    assert summary is not None, "the launcher returns only after the summary is written"
    return summary


@contextmanager
def following(folder: "RunFolder", report_line: LineSink) -> Iterator[None]:
    """Within this context, report the line of every round that another process adds to the run's records."""
    from server_app.run_folder import ROUND, verified

    _, position = appended(folder.rounds_file, 0)

    def report_new() -> None:
        nonlocal position
        lines, position = appended(folder.rounds_file, position)
        for line in lines:
            with contextlib.suppress(ValueError):  # skip a damaged record
                record = verified(line, ROUND)
                report_line(str(record["line"]))

    with repeatedly(report_new):
        yield


def appended(file: Path, position: int) -> tuple[list[str], int]:
    """Return the complete lines after the first `position` bytes of a file, and the position after these lines.

    A resumed run truncates its records. If the file is shorter than `position`, no line is new, and the position
    returned is the file's size.
    """
    try:
        with file.open("rb") as opened:
            size = os.fstat(opened.fileno()).st_size
            position = min(position, size)
            opened.seek(position)
            text = opened.read()
    except FileNotFoundError:
        return [], 0
    complete = text[: text.rfind(b"\n") + 1]
    lines = complete.decode(errors="replace").splitlines()
    return lines, position + len(complete)
