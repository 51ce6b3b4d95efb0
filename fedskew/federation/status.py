"""Which sites are ready: their own answers, as before round 1 of a run, or the records of the run in progress."""

import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from client_app.local_site import QUESTION
from data.agreement import Agreement
from fedskew.engines import APP
from fedskew.engines.processes import LaunchFailed, reason, running
from fedskew.federation.database import explained
from fedskew.federation.folder import FederationFolder
from fedskew.federation.run import PendingRun
from fedskew.federation.services import SERVER_APP
from fedskew.federation.superlink import Control
from server_app.record import RoundRecord
from server_app.run_folder import RunFolder
from server_app.settings import NOT_SETTINGS, parse
from strategies.core.exchange import is_no_reply
from strategies.core.node_assignment import is_absence_of

log = logging.getLogger("fedskew")
POLL, PARTING = 0.3, 20.0
"""Seconds between two looks for the answers, and until the process that has asked has to be gone."""
TIMEOUT = 120.0
"""Seconds that the sites have for an answer: the first time they may have to read their data."""
QUICK: Mapping[str, Any] = {"method": "fedavg", "node-wait": 0.0, "timeout": TIMEOUT}
"""What is asked where nothing else is stated: of every method the least that has to leave a site."""
READY, AWAY, REFUSES, NOT_ASKED = "ready", "away", "refuses", "not asked"


@dataclass(frozen=True)
class SiteStatus:
    """The state of a site."""

    state: str
    """READY, AWAY, REFUSES or NOT_ASKED."""
    about: str = ""
    """Since when it is away, or the type of reason for which it refuses, with its number in the site's log."""

    def __str__(self) -> str:
        return f"{self.state} {self.about}".strip()


Sites = Mapping[str, SiteStatus]
"""By name."""


def site_status(folder: FederationFolder, given: Mapping[str, Any]) -> tuple[str, Sites]:
    """Return the source of the information, in words, and the status of each site by name.

    While a run is in progress its last record is the source, and for a site that has gone offline since, the SuperLink.
    Otherwise the sites are asked whether they are ready.

    Args:
        folder: of the federation.
        given: settings of the planned run.

    Raises:
        Unreachable: the SuperLink does not answer.
        LaunchFailed: the question was lost.
        SettingError: settings that make no run between sites.
    """
    control = Control(folder)
    agreement = folder.agreement
    with explained(folder):
        states = control.sites(agreement)
        since = control.absent_since(agreement)
    away = {}
    for name, state in states.items():
        if state != "online":
            away[name] = SiteStatus(AWAY, since[name])
    everybody = dict.fromkeys(agreement.names, SiteStatus(NOT_ASKED))
    settings = parse({**QUICK, **given, "dataset": folder.dataset})
    for config in control.unfinished():
        if config.get(QUESTION):
            continue
        stated = {key: value for key, value in config.items() if key not in NOT_SETTINGS}
        going_on = parse(stated)
        run = RunFolder(going_on.folder)
        records = run.rounds()
        if not records:
            return f"{run.run} has begun, and no round of it is over", everybody | away
        source = f"round {records[-1].round} of {run.run}, which goes on"
        sites = dict(recorded(agreement, records))
        for name, status in away.items():
            # A site that was there in the last round may have gone since.
            if name in sites and sites[name].state != AWAY:
                sites[name] = status
        return source, sites
    if len(agreement.names) - len(away) < agreement.min_sites:
        return f"fewer than {agreement.min_sites} sites are online", everybody | away
    answers = ask(folder, control, settings.run_config())
    replied = {}
    for name, why in answers.items():
        replied[name] = SiteStatus(REFUSES, why) if why else SiteStatus(READY)
    return f"asked for method {settings.general.method}", replied | away


def recorded(agreement: Agreement, records: Sequence[RoundRecord]) -> Sites:
    """Return the sites' states in the last round of a run; for a site that is away, since which round."""
    sites: dict[str, SiteStatus] = {}
    for client, name in enumerate(agreement.names):
        why = records[-1].failures.get(client, "")
        if not why:
            sites[name] = SiteStatus(READY)
        elif not is_away(name, why):
            sites[name] = SiteStatus(REFUSES, why)
        else:
            first = records[-1].round
            for record in reversed(records):
                if not is_away(name, record.failures.get(client, "")):
                    break
                first = record.round
            # What a node reported, such as an app that crashed, comes after the semicolon.
            _, _, reported = why.partition("; ")
            sites[name] = SiteStatus(
                AWAY, f"since round {first}" + (f"; {reported}" if reported else "")
            )
    return sites


def is_away(name: str, failure: str) -> bool:
    """Return whether a site was left out of a round because it was not connected or did not reply in time."""
    return is_absence_of(name, failure) or is_no_reply(failure)


def ask(folder: FederationFolder, control: Control, config: Mapping[str, Any]) -> dict[str, str]:
    """Have the app ask the sites, and return by name nothing, or why one is not ready. Raises LaunchFailed."""
    file = (folder.state / f"{QUESTION}.json").resolve()
    file.unlink(missing_ok=True)
    number = control.submit(APP, {**config, QUESTION: str(file)})
    pending = PendingRun(folder, control, number)
    while not (status := control.status(number)).finished:
        pending.check(status)
        time.sleep(POLL)
    # A run that begins now would take the process that asked for its own.
    deadline = time.monotonic() + PARTING
    while running(folder.path, SERVER_APP) and time.monotonic() < deadline:
        time.sleep(POLL)
    try:
        answers: dict[str, str] = json.loads(file.read_text())
    except FileNotFoundError:
        why = reason(status.details) or status.status
        rule = "a run that began meanwhile goes before"
        raise LaunchFailed(f"the sites were not asked ({why}); {rule}") from None
    file.unlink()
    return answers
