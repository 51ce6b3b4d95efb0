"""Runs of a federation: submitted, followed by their records, and submitted again where their process was lost."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from client_app.local_site import RUN_SIGNATURE
from data import DataError, federate
from data.agreement import Agreement
from data.text import LineSink, printable
from fedskew.engines import APP
from fedskew.engines.processes import LaunchFailed, alive, reason, running
from fedskew.federation.control import (
    Control,
    Failing,
    RunLost,
    RunStatus,
    Unreachable,
    restart,
)
from fedskew.federation.flower_internals import fused_config, run_config_of
from fedskew.federation.folder import FederationFolder
from fedskew.federation.service import SERVER_APP
from fedskew.federation.signing import signature
from server_app.run_folder import RunFolder, locked
from server_app.run_settings import RunSettings
from server_app.sites import two_sites_warning
from site_agent.app_files import app_files
from site_agent.run_approval import signed_app_text, signed_text

POLL, LOOK = 0.2, 5.0
"""Seconds between two looks for the result, and for the run's status."""
FAREWELL = 3.0
"""Seconds that a run's status may need to tell of an end that its process has met."""
ATTEMPTS = 5
"""Submissions in a row that may be lost without a round in between."""
PATIENCE = 600.0
"""Seconds without a word from the SuperLink after which the run is given up; it may take 180 to start."""
SITES_LOOK = 10.0
"""Seconds between two looks whether enough sites are online again."""
PENDING = 120.0
"""Seconds that a run may be pending. A SuperExec takes one within a second, and needs some itself where it was just
started on a busy machine."""
LOST = (
    "no heartbeat received from the task",
    "task failed with unknown error",
    "superlink was restarted",
)
"""How flwr's details of a run begin whose process was lost, and did not fail. The second is that of a process that a
signal ended, which it gets when its SuperLink is gone. What an app raises has a preamble of flwr's before it, so no
sentence of an app can begin like this."""


def run(
    folder: FederationFolder,
    settings: RunSettings,
    report_line: LineSink,
    wait: float | None = None,
    key: Path | None = None,
) -> dict[str, Any]:
    """Run the settings in the federation and return the summary.

    The checkpoint is the server's, the memory the sites'; so a run that is submitted again goes on where it was.

    Args:
        folder: the federation's, at its coordinator.
        settings: of the run.
        report_line: gets a line about each round, and about what holds the run up.
        wait: seconds to wait for a SuperLink that does not answer, and for sites where fewer than min-sites are
            online; None is PATIENCE for the SuperLink, and for sites no longer than node-wait.
        key: the file of the key that signs runs, where it is not kept in the folder.

    Raises:
        DataError: the key does not sign the federation's runs.
        LaunchFailed: the app itself failed, is lost again and again or is never begun, or the SuperLink stays away or
            fails.
        FolderBusy: another run of the federation is followed already: it would end this one's process as an orphan.
    """
    text = signed_text(folder.agreement.sha256, settings.run_spec().to_json())
    signed = signature(folder.agreement, text, key or folder.coordinator_key)
    results = RunFolder(settings.folder)
    federation = federate(settings.data, settings.general.seed)
    with results.begin(settings, federation, report_line) as finished:
        if finished is not None:
            return finished
    warning = two_sites_warning(settings)
    if warning:
        report_line(warning)
    config = {**settings.going_on().run_config(), RUN_SIGNATURE: signed}
    with locked(folder.state):
        lines = RoundLines(results, report_line)
        try:
            return complete(folder, config, lines, wait)
        finally:  # also the rounds before a failure
            lines.report()


class RoundLines:
    """The lines of the rounds that another process adds to a run's records."""

    def __init__(self, results: RunFolder, report_line: LineSink) -> None:
        self.results = results
        self.report_line = report_line
        self.reported = {record.round for record in results.rounds()}
        self.size_reported = -1

    @property
    def size(self) -> int:
        """Bytes of the records so far."""
        file = self.results.rounds_file
        return file.stat().st_size if file.exists() else 0

    def report(self) -> None:
        """Report the lines of new rounds."""
        size = self.size
        if size == self.size_reported:
            return
        self.size_reported = size
        for record in self.results.rounds():
            if record.round not in self.reported:
                self.reported.add(record.round)
                self.report_line(record.line)


def complete(
    folder: FederationFolder,
    config: Mapping[str, Any],
    lines: RoundLines,
    wait: float | None,
) -> dict[str, Any]:
    """Submit a run until it has a summary, and return that. The arguments and errors are those of `run`."""
    results, report_line = lines.results, lines.report_line
    patience = PATIENCE if wait is None else wait
    minutes = f"{patience / 60:g} minutes"
    control = Control(folder)
    losses: list[int] = []  # the size of the records at each loss
    away: float | None = None  # since when the SuperLink has not answered
    while (summary := results.summary()) is None:
        end_orphans(folder)
        results.note_waiting("")  # of a process that was killed while it waited
        try:
            number = control.submit(APP, config)
            away = None
            follow(folder, control, number, lines)
        except Unreachable as error:
            if away is None:
                away = time.monotonic()
                report_line(f"{error}: the run is submitted again when it does, within {minutes}")
            elif time.monotonic() - away > patience:
                raise LaunchFailed(
                    f"the SuperLink has not answered for {minutes}: `fedskew federation up "
                    f"{folder.path}` starts it, and the same command then goes on where the run stands"
                ) from None
            time.sleep(LOOK)
        except RunLost as error:
            size = lines.size
            losses.append(size)
            if losses[-ATTEMPTS:] == [size] * ATTEMPTS:  # no round was recorded in between
                raise LaunchFailed(
                    f"{error}, {ATTEMPTS} times in a row without a round in between: {folder.log} "
                    "may say why; the same command goes on where the run stands"
                ) from None
            report_line(f"{error}: submitting the run again")
            time.sleep(LOOK)
        except Failing:
            raise
        except LaunchFailed as error:
            wait_for_sites(folder.agreement, control, wait or 0.0, error, report_line)
    return summary


def follow(folder: FederationFolder, control: Control, number: int, lines: RoundLines) -> None:
    """Return once there is a summary; meanwhile report new rounds, and whatever holds the run up.

    Raises RunLost for a process that is gone, LaunchFailed for an app that failed or that nothing begins.
    """
    results = lines.results
    process: psutil.Process | None = None
    submitted = last_look = time.monotonic()
    ended = float("inf")  # when the process was first seen to have ended
    waits_for = ""
    while not results.summary_file.exists():
        lines.report()
        now = time.monotonic()
        process = process or next(iter(running(folder.path, SERVER_APP)), None)
        if process is not None and not alive(process):
            ended = min(ended, now)
        is_gone = now - ended > FAREWELL
        if now - last_look > LOOK or is_gone:
            last_look = now
            status = begun(folder, control, number, submitted)
            before = waits_for
            waits_for = waiting_line(results)
            if waits_for not in ("", before):
                lines.report_line(waits_for)
            if status.finished and not results.summary_file.exists():
                # By flwr's own details; an app's failure is no loss, whatever it says.
                if status.details.strip().lower().startswith(LOST):
                    raise RunLost(f"run {number} was lost ({status.details})")
                why = reason(status.details) or f"run {number} ended: {status.status}"
                raise LaunchFailed(why)
            if is_gone:
                raise RunLost(f"the process of run {number} is gone")
        time.sleep(POLL)


def begun(folder: FederationFolder, control: Control, number: int, submitted: float) -> RunStatus:
    """Return how a run stands. Stops one that nothing begins within PENDING seconds, and raises LaunchFailed."""
    status = control.status(number)
    if status.status == "pending" and time.monotonic() - submitted > PENDING:
        # Stopped, or it would begin when nobody follows it any more.
        control.stop(number)
        raise LaunchFailed(
            f"run {number} was pending for {PENDING:g} s: flower-superexec, which begins runs at the "
            f"SuperLink, does not take it ({folder.log} may say why); {restart(folder)}"
        )
    return status


def wait_for_sites(
    agreement: Agreement,
    control: Control,
    seconds: float,
    why: LaunchFailed,
    report_line: LineSink,
) -> None:
    """Return once min-sites are online again, where too few were as the run failed; it is then submitted again.

    Raises `why` where enough sites are online, so that something else failed, and where they are not after so many
    seconds.
    """
    deadline = time.monotonic() + seconds
    is_outage = False
    while time.monotonic() < deadline:
        try:
            away = control.away(agreement)
        except Unreachable:  # it may come back, as the sites may
            time.sleep(SITES_LOOK)
            continue
        if len(agreement.sites) - len(away) >= agreement.min_sites:
            if not is_outage:
                break
            report_line("enough sites are online: submitting the run again")
            return
        if not is_outage:
            names = ", ".join(away)
            report_line(f"{why}; {names} are away: waiting {seconds / 60:g} minutes at most")
            is_outage = True
        time.sleep(SITES_LOOK)
    raise why


def waiting_line(results: RunFolder) -> str:
    """Return for whom the ServerApp waits, or "" while it does not."""
    try:
        return printable(results.waiting_file.read_text(encoding="utf-8").strip())
    except OSError:
        return ""


def end_orphans(folder: FederationFolder) -> None:
    """End server processes of earlier submissions, which would hold the run's lock: a SuperLink may die before them."""
    orphans = running(folder.path, SERVER_APP)
    for process in orphans:
        process.terminate()
    _, alive_still = psutil.wait_procs(orphans, timeout=5)
    for process in alive_still:
        process.kill()


def submit(
    folder: FederationFolder,
    sites: Sequence[str],
    config: str,
    report_line: LineSink,
    key: Path | None = None,
) -> None:
    """Submit a federation's own Flower app, and wait for its end.

    Args:
        folder: of a federation whose app is not FedSkew's.
        sites: names of those that take part; all of the agreement's where there are none.
        config: the app's run config, as `flwr run --run-config` takes it.
        report_line: gets the run's id and how it ended.
        key: the file of the key that signs runs, where it is not kept in the folder.

    Raises:
        DataError: FedSkew's own app, fewer than min-sites sites, or one that is not the agreement's.
        LaunchFailed: the run did not complete.
    """
    folder.require_own_app(own=True)
    agreement = folder.agreement
    names = [*dict.fromkeys(sites or agreement.names)]
    rule = ""
    if not set(names) <= set(agreement.names):
        rule = f"must be some of {', '.join(agreement.names)}"
    elif len(names) < agreement.min_sites:
        rule = f"must be at least min-sites = {agreement.min_sites} sites"
    if rule:
        where = str(folder.agreement_file)
        raise DataError(rule, where=where, key="--site", value=", ".join(names))
    overrides = run_config_of(config)
    if agreement.run_key:
        whole = fused_config(app_files(folder.app)["pyproject.toml"], overrides)
        whole.pop(RUN_SIGNATURE, None)
        text = signed_app_text(agreement.sha256, names, whole)
        signed = signature(agreement, text, key or folder.coordinator_key)
        overrides[RUN_SIGNATURE] = f"{','.join(names)} {signed}"
    control = Control(folder)
    number = control.submit(folder.app, overrides)
    # The ServerApp's process takes seconds to start, so the door reads this before its first message.
    folder.set_participants(number, names)
    report_line(f"run {number}: {', '.join(names)}")
    while not (status := control.status(number)).finished:
        time.sleep(POLL)
    if status.status != "finished:completed":
        why = printable(status.details) or status.status
        raise LaunchFailed(f"run {number} failed: {why}; see {folder.log}")
    report_line(f"run {number}: completed")
