"""`fedskew federation submit`: a run of a federation's own Flower app, with the sites that take part in it."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from client_app.local_site import RUN_SIGNATURE
from data import DataError
from data.text import LineSink, printable
from fedskew.engines.processes import LaunchFailed
from fedskew.federation.flower_internals import fused_config, run_config_of
from fedskew.federation.folder import FederationFolder
from fedskew.federation.participants import Participants
from fedskew.federation.superlink import Control
from site_agent.app_files import app_files

Sign = Callable[[Sequence[str], Mapping[str, Any]], str]
POLL = 0.5
"""Seconds between two looks for the run's end."""
COMPLETED = "finished:completed"


def unsigned(sites: Sequence[str], config: Mapping[str, Any]) -> str:
    """Return no signature."""
    return ""


def submit(
    folder: FederationFolder,
    sites: Sequence[str] | None,
    config: str,
    report_line: LineSink,
    sign: Sign = unsigned,
) -> int:
    """Submit the app, wait for its end, and return the run's id.

    Args:
        folder: of a federation whose app is not FedSkew's.
        sites: names of those that take part; all of the agreement's where there are none.
        config: the app's run config, as `flwr run --run-config` takes it.
        report_line: gets the run's id and how it ended.
        sign: returns the run's signature for its sites and its run config, "" where no run is signed.

    Raises:
        DataError: FedSkew's own app, fewer than min-sites sites, or one that is not the agreement's.
        LaunchFailed: the run did not complete.
    """
    folder.require_own_app(own=True)
    agreement = folder.agreement
    names = [*dict.fromkeys(sites or agreement.names)]
    where = str(folder.agreement_file)
    for name in names:
        if name not in agreement.names:
            rule = f"must be some of {', '.join(agreement.names)}"
            raise DataError(rule, where=where, key="--site", value=name)
    if len(names) < agreement.min_sites:
        rule = f"must be at least min-sites = {agreement.min_sites} sites"
        raise DataError(rule, where=where, key="--site", value=", ".join(names))
    control = Control(folder)
    overrides = run_config_of(config)
    if agreement.run_key:
        pyproject = app_files(folder.app)["pyproject.toml"]
        whole = fused_config(pyproject, overrides)
        whole.pop(RUN_SIGNATURE, None)
        overrides[RUN_SIGNATURE] = sign(names, whole)
    run = control.submit(folder.app, overrides)
    # The ServerApp's process takes seconds to start, so the door reads this before its first message.
    Participants(folder.state).set(run, names)
    report_line(f"run {run}: {', '.join(names)}")
    while not (status := control.status(run)).finished:
        time.sleep(POLL)
    if status.status != COMPLETED:
        log = folder.state / "superlink.log"
        why = printable(status.details) or status.status
        raise LaunchFailed(f"run {run} failed: {why}; see {log}")
    report_line(f"run {run}: completed")
    return run
