"""Attacks by who holds the gateway's machine, its keys, its SuperLink and its state, and not the coordinator's key."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from attacks.by_the_coordinator import ask, settings_of
from attacks.stage import ALONE, AT_WORK, Attack, ControlFailed, Refusal, Stage, Succeeded, Untried
from client_app.local_site import QUESTION, RUN_SIGNATURE
from fedskew.engines import APP
from fedskew.federation.coordinator_key import make_key, read_key, sign_run
from server_app.run_settings import RunSettings
from site_agent.keys import public_text
from strategies.core.exchange import QUERY

SITE = 0
"""The site whose logs are read."""
PATIENCE = 600.0
"""Seconds for a run to end."""
SEEDS = {"honest": 101, "unsigned": 102, "other key": 103, "other settings": 104}
"""By request, the seed of its run: each is a run of its own."""


def planned(stage: Stage, request: str) -> RunSettings:
    """Return the settings of a run of one round."""
    settings: RunSettings = settings_of(
        stage, "past-the-command", method="fedavg", rounds=1, seed=SEEDS[request]
    )
    return settings


def started(stage: Stage, settings: RunSettings, signature: str) -> tuple[int, str]:
    """Start a run at the SuperLink, past the coordinator's command; return its number there and how it has ended."""
    run = stage.control.submit(APP, {**settings.run_config(), RUN_SIGNATURE: signature})
    until = time.monotonic() + PATIENCE
    while not (status := stage.control.status(run)).finished:
        if time.monotonic() > until:
            raise Untried(f"run {run} is {status.status} after {PATIENCE:g} s")
        time.sleep(0.5)
    return run, f"{status.status} {status.details}".strip()


def signed_by_coordinator(stage: Stage, settings: RunSettings) -> str:
    """Return the signature that the coordinator makes where its key is."""
    key = stage.folder.coordinator_key
    return sign_run(stage.folder.agreement, settings.run_spec().to_json(), key)


def signed_run(stage: Stage) -> str:
    """Start a run at the SuperLink with the coordinator's signature, once for all rows."""
    settings = planned(stage, "honest")
    if not (settings.folder / "summary.json").exists():
        _, ended = started(stage, settings, signed_by_coordinator(stage, settings))
        if ended != "finished:completed":
            raise ControlFailed(ended)
    summary: Path = settings.folder / "summary.json"
    if not summary.exists():
        raise ControlFailed(f"{settings.run_id} has no summary")
    return f"{settings.run_id}, started at the SuperLink with the coordinator's signature, has its round"


def refused(stage: Stage, settings: RunSettings, signature: str) -> list[Refusal]:
    """Start a run at the SuperLink, and return the site's line on it."""
    log = stage.site_log(SITE)
    run, ended = started(stage, settings, signature)
    left = [
        row["name"]
        for entry in stage.audit(SITE)
        if int(entry.get("run", -1)) == run
        for row in entry.get("left", [])
    ]
    if ended == "finished:completed" or set(left) != {f"{SITE}/error"}:
        raise Succeeded(f"the run is {ended}, and the site has sent {left}")
    line = log.wait_for("RunNotSigned: ")
    return [Refusal("RunNotSigned", line)]


def unsigned(stage: Stage) -> list[Refusal]:
    return refused(stage, planned(stage, "unsigned"), "")


def by_another_key(stage: Stage) -> list[Refusal]:
    """Sign with a key that is made here, as federation.toml's own is not."""
    settings = planned(stage, "other key")
    file = stage.federation.work / "another.key"
    agreement = stage.folder.agreement
    public = make_key(file) if not file.exists() else public_text(read_key(file).public_key())
    # Signed as by a coordinator whose federation.toml has this key, and whose text has the same sha256.
    pretended = replace(agreement, run_key=public)
    return refused(stage, settings, sign_run(pretended, settings.run_spec().to_json(), file))


def of_other_settings(stage: Stage) -> list[Refusal]:
    """Take the signature of the honest run for one with another seed."""
    signature = signed_by_coordinator(stage, planned(stage, "honest"))
    return refused(stage, planned(stage, "other settings"), signature)


def asked_as_status(stage: Stage, assignment: str) -> dict[str, Any]:
    """Return the run config of `fedskew federation status`, which has no signature."""
    return {QUESTION: "answers.json"}


def readiness(stage: Stage) -> str:
    """Ask whether the site is ready, as `fedskew federation status` does."""
    content, words = ask(stage, kind=QUERY, question=QUESTION, run_config=asked_as_status)
    if f"{SITE}/upload/{QUESTION}" not in content:
        raise ControlFailed(f"the reply holds {', '.join(content)}; {'; '.join(words.lines)}")
    return f"the reply holds {', '.join(content)}"


def training_as_status(stage: Stage) -> list[Refusal]:
    """Ask for training in such a run."""
    content, words = ask(stage, run_config=asked_as_status)
    if list(content) != [f"{SITE}/error"] or not words.kinds:
        raise Succeeded(f"the reply holds {', '.join(content)}")
    return [Refusal(words.kinds[-1], words.lines[-1])]


WHO = "who holds the gateway's machine"
NOBODY = (Refusal("RunNotSigned", "federation.toml has a run-key, and nobody has signed"),)
WRONG = (Refusal("RunNotSigned", "is not one of the run-key in federation.toml"),)
AT_WORK_ATTACKS = [
    Attack("a run started at the SuperLink, without a signature", WHO, AT_WORK, signed_run, unsigned, NOBODY),
    Attack("a run started at the SuperLink, with the signature of another key", WHO, AT_WORK, signed_run,
           by_another_key, WRONG),
    Attack("a run started at the SuperLink, with the signature of another run", WHO, AT_WORK, signed_run,
           of_other_settings, WRONG),
]  # fmt: skip
ATTACKS = [
    Attack("training without a signature in a run that only asks who is ready", WHO, ALONE, readiness,
           training_as_status, NOBODY),
]  # fmt: skip
