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

if TYPE_CHECKING:  # with torch, which the gateway and most commands between sites do without
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

    Whatever ends the run, no process of it is left.

    Args:
        settings: of the run.
        engine: one of ENGINES.
        report_line: gets one line per round.
        workers: processes that run clients; 0 for one per core.
        federation_config: for Ray, as of `flwr run`.
        sites: a folder of SITE/site.toml; the sites of dataset = sites:FILE are then rehearsed in this process.
        ray_sweep: for Ray, what the run shares with the runs before and after it; None for a run alone.

    Raises:
        SettingError: an option that is for another engine.
        LaunchFailed: the run failed on Ray; on other engines what `server_app.app.run` raises.
    """
    if engine not in ENGINES:
        raise SettingError("--engine", engine, f"must be one of {', '.join(ENGINES)}")
    if is_sites(settings.data.dataset) or sites:
        return rehearse(settings, engine, report_line, sites)
    workers = min(workers or os.cpu_count() or 1, settings.data.clients)
    if engine == "ray":
        return on_ray(settings, report_line, workers, federation_config, ray_sweep)
    if federation_config:
        raise SettingError("--federation-config", federation_config, "is for --engine ray")
    from fedskew.engines.workers import WorkersGrid
    from server_app.app import run

    is_starting = getattr(multiprocessing.current_process(), "_inheriting", False)
    if engine == "workers" and is_starting:
        # A worker that imports a script without `if __name__ == "__main__":`; its parent reports that.
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
    """Run all sites of a folder in this process, each by its own site.toml."""
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
    """Run through `flwr run`, of its own or of the sweep's, and follow the run by its records."""
    from data import federate
    from server_app.best_round import refuse_unvalidated
    from server_app.run_folder import RunFolder

    folder = RunFolder(settings.folder)
    claim(folder.path)  # processes of a killed launcher would still have the folder's lock
    # Wrong data are refused here, before Ray starts.
    federation = federate(settings.data, settings.general.seed)
    refuse_unvalidated(settings.general.keep_best, federation)
    # The ServerApp takes the lock when this block releases it.
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
    assert summary is not None, "the launcher returns once the summary is there"
    return summary


@contextmanager
def following(folder: "RunFolder", report_line: LineSink) -> Iterator[None]:
    """Within this context, report the line of every round that another process records."""
    from server_app.run_folder import ROUND, verified

    _, position = appended(folder.rounds_file, 0)

    def report_new() -> None:
        nonlocal position
        lines, position = appended(folder.rounds_file, position)
        for line in lines:
            with contextlib.suppress(ValueError):  # a damaged record
                record = verified(line, ROUND)
                report_line(str(record["line"]))

    with repeatedly(report_new):
        yield


def appended(file: Path, position: int) -> tuple[list[str], int]:
    """Return the complete lines of a file after its first `position` bytes, and where the last of them ends.

    A resumed run truncates its records; of a file that is shorter than `position`, only what follows is new.
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
