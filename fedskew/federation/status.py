"""Which sites are ready: their own answers, as before round 1 of a run, or the records of the run in progress."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from client_app.local_site import QUESTION
from data.agreement import Agreement
from fedskew.engines import APP
from fedskew.engines.processes import LaunchFailed, reason, running
from fedskew.federation.control import Control
from fedskew.federation.folder import FederationFolder
from fedskew.federation.run import begun
from fedskew.federation.service import SERVER_APP
from server_app.record import RoundRecord
from server_app.run_folder import RunFolder
from server_app.settings import NOT_SETTINGS, parse
from strategies.core.exchange import is_no_reply
from strategies.core.node_assignment import is_absence_of

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


def site_status(
    folder: FederationFolder, given: Mapping[str, Any]
) -> tuple[str, dict[str, SiteStatus]]:
    """Return the source of the information, in words, and the status of each site by name.

    While a run is in progress its last record is the source, and for a site that has gone offline since, the SuperLink.
    Otherwise the sites are asked whether they are ready.

    Args:
        folder: of the federation.
        given: settings of the planned run.

    Raises:
        Unreachable: the SuperLink does not answer.
        LaunchFailed: the question was lost, or the SuperLink fails.
        SettingError: settings that make no run between sites.
    """
    folder.require_own_app(own=False)
    control = Control(folder)
    agreement = folder.agreement
    since = control.away(agreement)
    sites = dict.fromkeys(agreement.names, SiteStatus(NOT_ASKED))
    settings = parse({**QUICK, **given, "dataset": folder.dataset})
    going_on = [config for config in control.unfinished() if not config.get(QUESTION)]
    if going_on:
        stated = {key: value for key, value in going_on[0].items() if key not in NOT_SETTINGS}
        run = RunFolder(parse(stated).folder)
        records = run.rounds()
        basis = f"{run.run} has begun, and no round of it is over"
        if records:
            basis = f"round {records[-1].round} of {run.run}, which goes on"
            sites = recorded(agreement, records)
    elif len(sites) - len(since) < agreement.min_sites:
        basis = f"fewer than {agreement.min_sites} sites are online"
    else:
        basis = f"asked for method {settings.general.method}"
        for name, why in ask(folder, control, settings.run_config()).items():
            sites[name] = SiteStatus(REFUSES, why) if why else SiteStatus(READY)
    for name, words in since.items():
        # The records say more of a site that was away in the last round.
        if sites[name].state != AWAY:
            sites[name] = SiteStatus(AWAY, words)
    return basis, sites


def recorded(agreement: Agreement, records: Sequence[RoundRecord]) -> dict[str, SiteStatus]:
    """Return the sites' states in the last round of a run; for a site that is away, since which round."""
    sites: dict[str, SiteStatus] = {}
    for client, name in enumerate(agreement.names):
        why = records[-1].failures.get(client, "")
        since = None  # the first of the last rounds in a row without the site
        for record in reversed(records):
            failure = record.failures.get(client, "")
            if not is_absence_of(name, failure) and not is_no_reply(failure):
                break
            since = record.round
        if not why:
            sites[name] = SiteStatus(READY)
        elif since is None:
            sites[name] = SiteStatus(REFUSES, why)
        else:
            # What a node reported, such as an app that crashed, comes after the semicolon.
            words = [f"since round {since}", *why.split("; ", 1)[1:]]
            sites[name] = SiteStatus(AWAY, "; ".join(words))
    return sites


def ask(folder: FederationFolder, control: Control, config: Mapping[str, Any]) -> dict[str, str]:
    """Have the app ask the sites, and return by name nothing, or why one is not ready. Raises LaunchFailed."""
    file = (folder.state / f"{QUESTION}.json").resolve()
    file.unlink(missing_ok=True)
    number = control.submit(APP, {**config, QUESTION: str(file)})
    submitted = time.monotonic()
    while not (status := begun(folder, control, number, submitted)).finished:
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
