"""Supervision of a submitted run from outside the app: its SuperExec and the gateway.

A run that waits must say what for. `fedskew federation run` and `status` look with these classes while they wait.
"""

import time

from data.text import LineSink
from fedskew.engines.flower import LaunchFailed
from fedskew.federation.database import anew
from fedskew.federation.folder import FederationFolder
from fedskew.federation.services import SUPEREXEC, handshake, restart_superexec
from fedskew.federation.superlink import Control, RunStatus

PENDING = 120.0
"""Seconds that a run may be pending. A SuperExec takes one within a second, and needs some itself where it was just
started on a busy machine."""
SILENCE = 20.0
"""Seconds without a TLS handshake after which the gateway counts as silent: one slow answer is no fault."""


class PendingRun:
    """A submitted run that nothing has begun yet; `report_line` takes a line for the user."""

    def __init__(
        self,
        folder: FederationFolder,
        control: Control,
        number: int,
        report_line: LineSink,
    ) -> None:
        self.folder = folder
        self.control = control
        self.number = number
        self.report_line = report_line
        self.since = time.monotonic()

    def check(self, status: RunStatus) -> None:
        """Restart a SuperExec that has ended. Raises LaunchFailed, the run stopped, after PENDING seconds."""
        if status.status != "pending":
            return
        if restart_superexec(self.folder):
            self.since = time.monotonic()
            line = f"{SUPEREXEC} had ended, which begins runs at the SuperLink: started again"
            self.report_line(line)
        elif time.monotonic() - self.since > PENDING:
            # Stopped, or it would begin when nobody follows it any more.
            self.control.stop(self.number)
            raise LaunchFailed(
                f"run {self.number} was pending for {PENDING:g} s: {SUPEREXEC}, which begins runs at the SuperLink, "
                f"does not take it ({self.folder.state}/superlink.log may say why); {anew(self.folder)}"
            )


class GatewayWatch:
    """Whether the gateway answers this machine, and so could answer the sites; `report_line` takes a user's line."""

    def __init__(self, folder: FederationFolder, report_line: LineSink) -> None:
        self.folder = folder
        self.report_line = report_line
        self.answered = time.monotonic()
        """When it last did."""
        self.silence = 0.0
        """Its longest silence, in seconds."""
        self.is_reported = False
        """Whether the silence of now has been reported."""

    @property
    def was_silent(self) -> bool:
        """Whether it was silent for so long that sites may have gone."""
        return self.silence > SILENCE

    def check(self) -> None:
        """Shake hands with the gateway; report a silence once, and its end."""
        now = time.monotonic()
        if gateway_answers(self.folder):
            self.answered = now
            if self.is_reported:
                self.is_reported = False
                self.report_line("the gateway answers again")
            return
        self.silence = max(self.silence, now - self.answered)
        if self.was_silent and not self.is_reported:
            self.is_reported = True
            line = "the gateway does not answer: no site can reach this coordinator"
            self.report_line(f"{line}; {anew(self.folder)}")

    def reason(self, why: str) -> str:
        """Return why a run failed during the gateway's silence."""
        return (
            f"no site could reach this coordinator, whose gateway did not answer for {self.silence:.0f} s "
            f"(the run says: {why})"
        )


def gateway_answers(folder: FederationFolder) -> bool:
    """Return whether the gateway shakes hands."""
    try:
        handshake(folder)
    except OSError:
        return False
    return True
