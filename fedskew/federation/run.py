"""A run of a federation: submitted, followed by its records, and submitted again where its process was lost."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import psutil

from client_app.local_site import RUN_SIGNATURE
from data import federate
from data.agreement import Agreement
from data.text import LineSink, printable
from fedskew.engines import APP, following
from fedskew.engines.processes import LaunchFailed, alive, reason, running
from fedskew.federation.database import anew, explained
from fedskew.federation.folder import FederationFolder
from fedskew.federation.services import LOG, SERVER_APP
from fedskew.federation.superlink import Control, Failing, RunStatus, UnknownRun, Unreachable
from server_app.run_folder import FolderBusy, RunFolder, locked
from server_app.run_settings import RunSettings
from server_app.sites import two_sites_warning

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
LOST = (
    "no heartbeat received from the task",
    "task failed with unknown error",
    "superlink was restarted",
)
"""How flwr's details of a run begin whose process was lost, and did not fail. The second is that of a process that a
signal ended, which it gets when its SuperLink is gone. What an app raises has a preamble of flwr's before it, so no
sentence of an app can begin like this."""


PENDING = 120.0
"""Seconds that a run may be pending. A SuperExec takes one within a second, and needs some itself where it was just
started on a busy machine."""


class RunLost(ConnectionError):
    """The run's process or its SuperLink is gone; the run can be submitted again."""


def run(
    folder: FederationFolder,
    settings: RunSettings,
    report_line: LineSink,
    wait: float | None = None,
    signature: str = "",
) -> dict[str, Any]:
    """Run the settings in the federation and return the summary.

    The checkpoint is the server's, the memory the sites'; so a run that is submitted again goes on where it was.

    Args:
        folder: the federation's, at its coordinator.
        settings: of the run.
        report_line: gets a line about each round, and about what holds the run up.
        wait: seconds to wait for a SuperLink that does not answer, and for sites where fewer than min-sites are
            online; None is PATIENCE for the SuperLink, and for sites no longer than node-wait.
        signature: the coordinator's of the run; a run that is submitted again has the same.

    Raises:
        LaunchFailed: the app itself failed, is lost again and again or is never begun, or the SuperLink stays away or
            fails.
        FolderBusy: another run of the federation is followed already.
    """
    patience = PATIENCE if wait is None else wait
    results = RunFolder(settings.folder)
    federation = federate(settings.data, settings.general.seed)
    with results.begin(settings, federation, report_line) as finished:
        if finished is not None:
            return finished
    warning = two_sites_warning(settings)
    if warning:
        report_line(warning)
    control = Control(folder)
    config = {**settings.going_on().run_config(), RUN_SIGNATURE: signature}
    minutes = f"{patience / 60:g} minutes"
    losses: list[int] = []  # the size of the records at each loss
    away: float | None = None  # since when the SuperLink has not answered
    with exclusive(folder), following(results, report_line):
        while results.summary() is None:
            end_orphans(folder)
            results.note_waiting("")  # of a process that was killed while it waited
            try:
                with explained(folder):
                    number = control.submit(APP, config)
                    away = None
                    follow(folder, control, number, results, report_line)
            except Unreachable as error:
                if away is None:
                    away = time.monotonic()
                    report_line(
                        f"{error}: the run is submitted again when it does, within {minutes}"
                    )
                elif time.monotonic() - away > patience:
                    raise LaunchFailed(
                        f"the SuperLink has not answered for {minutes}: `fedskew federation up "
                        f"{folder.path}` starts it, and the same command then goes on where the run stands"
                    ) from None
                time.sleep(LOOK)
            except RunLost as error:
                size = results.rounds_file.stat().st_size if results.rounds_file.exists() else 0
                losses.append(size)
                if losses[-ATTEMPTS:] == [size] * ATTEMPTS:  # no round was recorded in between
                    raise LaunchFailed(
                        f"{error}, {ATTEMPTS} times in a row without a round in between: {folder.state}/superlink.log "
                        "may say why; the same command goes on where the run stands"
                    ) from None
                report_line(f"{error}: submitting the run again")
                time.sleep(LOOK)
            except LaunchFailed as error:
                wait_for_sites(settings.agreement, control, wait or 0.0, error, report_line)
    summary = results.summary()
    assert summary is not None
    return summary


class PendingRun:
    """A submitted run that nothing has begun yet."""

    def __init__(self, folder: FederationFolder, control: Control, number: int) -> None:
        self.folder = folder
        self.control = control
        self.number = number
        self.since = time.monotonic()

    def check(self, status: RunStatus) -> None:
        """Raise LaunchFailed, the run stopped, after PENDING seconds."""
        if status.status == "pending" and time.monotonic() - self.since > PENDING:
            # Stopped, or it would begin when nobody follows it any more.
            self.control.stop(self.number)
            raise LaunchFailed(
                f"run {self.number} was pending for {PENDING:g} s: flower-superexec, which begins runs at the "
                f"SuperLink, does not take it ({self.folder.state / LOG} may say why); {anew(self.folder)}"
            )


@contextmanager
def exclusive(folder: FederationFolder) -> Iterator[None]:
    """Return a context with the federation's lock, because `end_orphans` would end the process of a second run.

    Raises FolderBusy where another run has the lock.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(folder.state))
        except FolderBusy as error:
            raise FolderBusy(f"{error}: a federation trains one run at a time") from None
        yield


def follow(
    folder: FederationFolder,
    control: Control,
    number: int,
    results: RunFolder,
    report_line: LineSink,
) -> None:
    """Return once there is a summary; `report_line` gets a line about whatever holds the run up.

    Raises RunLost for a process that is gone, LaunchFailed for an app that failed or that nothing begins.
    """
    process: psutil.Process | None = None
    last_look = time.monotonic()
    ended = float("inf")  # when the process was first seen to have ended
    pending = PendingRun(folder, control, number)
    waits_for = ""
    while not results.summary_file.exists():
        now = time.monotonic()
        process = process or server_process(folder)
        if process is not None and not alive(process):
            ended = min(ended, now)
        if now - last_look > LOOK or now - ended > FAREWELL:
            try:
                last_look = now
                status = control.status(number)
            except UnknownRun as error:
                raise RunLost(f"run {number} was lost ({error})") from None
            pending.check(status)
            before = waits_for
            waits_for = waiting_line(results)
            if waits_for not in ("", before):
                report_line(waits_for)
            if status.finished and not results.summary_file.exists():
                if is_lost(status):
                    raise RunLost(f"run {number} was lost ({status.details})")
                why = reason(status.details) or f"run {number} ended: {status.status}"
                raise LaunchFailed(why)
            if now - ended > FAREWELL:
                raise RunLost(f"the process of run {number} is gone")
        time.sleep(POLL)


def server_process(folder: FederationFolder) -> psutil.Process | None:
    """Return the process of the run's ServerApp; None before it is started."""
    processes = running(folder.path, SERVER_APP)
    return processes[0] if processes else None


def wait_for_sites(
    agreement: Agreement | None,
    control: Control,
    seconds: float,
    why: LaunchFailed,
    report_line: LineSink,
) -> None:
    """Return once min-sites are online again, where too few were as the run failed; it is then submitted again.

    `agreement` is the run's. Raises `why` where enough sites are online, so that something else failed, where they are
    not after so many seconds, and where the SuperLink itself fails.
    """
    if not seconds or agreement is None:
        raise why
    began = time.monotonic()
    is_outage = False
    while True:
        try:
            states = control.sites(agreement)
        except Unreachable:  # it may come back, as the sites may
            states = {}
        except Failing:
            raise why from None
        if states:
            away = [name for name, state in states.items() if state != "online"]
            if len(states) - len(away) >= agreement.min_sites:
                break
            if not is_outage:
                names = ", ".join(away)
                report_line(f"{why}; {names} are away: waiting {seconds / 60:g} minutes at most")
                is_outage = True
        if time.monotonic() - began >= seconds:
            raise why
        time.sleep(SITES_LOOK)
    if not is_outage:
        raise why
    report_line("enough sites are online: submitting the run again")


def is_lost(status: RunStatus) -> bool:
    """Return whether a run's process was lost, by flwr's own details; an app's failure is none, whatever it says."""
    return status.details.strip().lower().startswith(LOST)


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
