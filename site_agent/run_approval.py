"""Approval of single runs: with approve-runs in its policy a site takes only runs whose settings it has approved.

Every message holds the run's settings as one JSON text. The text's sha256 stands for it: in the audit log, in what the
coordinator's run prints, and in the site's state, where STATE/runs-asked/NUMBER-SHA256.json waits for somebody
to look at it, and STATE/approved/runs/SHA256.json is approved.
"""

import json
from pathlib import Path
from typing import Any

from client_app.local_site import RunNotAllowed, hash_of
from data import DataError
from site_agent.config import Site

LONGEST = 2**16
"""Characters of the longest settings that are kept for a person to read."""
MOST_WAITING = 100
"""Runs that wait for approval at most: a coordinator must not fill a site's disk with them."""


def waiting_folder(site: Site) -> Path:
    """Return the folder of the runs that wait for approval."""
    return site.state / "runs-asked"


def waiting(site: Site) -> dict[str, Path]:
    """Return the files of the runs that wait for approval, by the hash of their settings, the oldest first."""
    # Their names begin with a number that grows: no order hangs on a clock that may be set back.
    files = sorted(waiting_folder(site).glob("[0-9]*-*.json"))
    return {file.stem.partition("-")[2]: file for file in files}


def approved(site: Site) -> Path:
    """Return the folder of the runs that are approved."""
    return site.approved / "runs"


def check_approved(site: Site, settings: str) -> None:
    """Raise RunNotAllowed where the site's policy asks for approval of a run and nobody has given it."""
    if not site.approve_runs:
        return
    code = hash_of(settings)
    if (approved(site) / f"{code}.json").exists():
        return
    keep_waiting(site, code, settings)
    raise RunNotAllowed("approve-runs", f"look at the run with `fedskew-site approve-run {code}`")


def keep_waiting(site: Site, code: str, settings: str) -> None:
    """Keep a run's settings for somebody to look at; the oldest are deleted where too many wait."""
    if len(settings) > LONGEST:
        raise RunNotAllowed("approve-runs", f"its settings have {len(settings)} characters")
    by_code = waiting(site)
    if code in by_code:
        return
    files = list(by_code.values())
    too_many = max(0, len(files) + 1 - MOST_WAITING)
    for file in files[:too_many]:
        file.unlink(missing_ok=True)
    folder = waiting_folder(site)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    numbers = [int(file.name.partition("-")[0]) for file in files]
    number = max(numbers, default=0) + 1
    part = folder / f"{code}.part"
    part.write_text(settings, encoding="utf-8")
    part.replace(folder / f"{number:09}-{code}.json")


def settings_waiting(site: Site, code: str) -> str:
    """Return the settings of a run that waits. Raises DataError for a hash of none."""
    file = waiting(site).get(code)
    if file is None:
        raise DataError(
            f"{code[:80]}: no run with these settings waits; `fedskew-site runs` lists them"
        )
    settings = file.read_text(encoding="utf-8")
    if hash_of(settings) != code:
        raise DataError("is not what its name says; delete it", where=str(file))
    return settings


def approve(site: Site, code: str) -> None:
    """Approve a run that waits. Raises DataError for a hash of none."""
    settings_waiting(site, code)
    approved(site).mkdir(mode=0o700, parents=True, exist_ok=True)
    waiting(site)[code].replace(approved(site) / f"{code}.json")


def shown(settings: str) -> list[str]:
    """Return a run's settings, a line each, as `training.batch-size = 32`. Raises DataError for what is no JSON."""
    try:
        entries = json.loads(settings)
        return sorted(lines_of("", entries))
    except (ValueError, RecursionError, AttributeError):
        raise DataError("the run's settings are no JSON") from None


def lines_of(prefix: str, entries: dict[str, Any]) -> list[str]:
    """Return a table's settings, a line each."""
    lines: list[str] = []
    for key, value in entries.items():
        name = prefix + key.replace("_", "-")
        if isinstance(value, dict) and value:
            lines += lines_of(f"{name}.", value)
        else:
            lines.append(f"{name} = {json.dumps(value)}")
    return lines
