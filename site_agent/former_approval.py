"""The approval before the one that counts. A site may keep it for some hours, so that runs with its text can end.

STATE/approved/           what counts: federation.toml, app.fab, approval.json
              /former/    the approval before, with `until` in its approval.json; missing where nothing is kept
"""

import hashlib
import json
import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

from data import DataError
from data.agreement import Agreement, read_agreement, subtraction_warning
from site_agent.app_files import app_hash, packed_files
from site_agent.config import Site

APPROVED, FORMER = "approved", "former"
TEXT, APP, RECORD = "federation.toml", "app.fab", "approval.json"
MOST_HOURS = 720.0
"""Hours that a former approval may be kept: 30 days."""


@dataclass(frozen=True)
class StoredApproval:
    """A folder with an approval: one federation.toml and one app."""

    folder: Path
    agreement: Agreement
    content: bytes
    """Of federation.toml."""
    fab: bytes
    files: Mapping[str, bytes]
    """The app's files, by name."""
    record: Mapping[str, Any]
    """What approval.json says."""

    @property
    def sha256(self) -> str:
        """The sha256 of federation.toml."""
        return self.agreement.sha256

    @cached_property
    def app(self) -> str:
        """The hash of the app."""
        return app_hash(self.files)

    @cached_property
    def until(self) -> datetime | None:
        """When a former approval ends; None for one that counts until another takes its place."""
        return datetime.fromisoformat(self.record["until"]) if "until" in self.record else None


def now() -> datetime:
    """Return the time in UTC by this machine's clock, by which a former approval ends."""
    return datetime.now(UTC)


def in_words(time: datetime) -> str:
    """Return a time for people, to the second: a window may be short."""
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def check_hours(hours: float) -> None:
    """Raise DataError for a number of hours for which no approval is kept."""
    fits = math.isfinite(hours) and 0 <= hours <= MOST_HOURS
    if not fits:
        rule = f"must be 0 (not at all) to {MOST_HOURS:g} hours"
        raise DataError(rule, key="--keep-former", value=hours)


def read_approval(folder: Path) -> StoredApproval:
    """Return the approval in a folder. Raises DataError where there is none, or its files do not belong together."""
    try:
        record = json.loads((folder / RECORD).read_text())
        content = (folder / TEXT).read_bytes()
        fab = (folder / APP).read_bytes()
        stated = record["federation"], record["app"]
        if "until" in record:
            datetime.fromisoformat(record["until"]).astimezone(UTC)
    except (OSError, ValueError, LookupError, TypeError) as error:
        reason = f"holds no complete approval ({type(error).__name__})"
        raise DataError(reason, where=str(folder)) from None
    agreement = read_agreement(folder / TEXT)
    stored = StoredApproval(
        folder=folder,
        agreement=agreement,
        content=content,
        fab=fab,
        files=packed_files(fab, str(folder / APP)),
        record=record,
    )
    here = hashlib.sha256(content).hexdigest(), stored.app
    if here != stated or here != (agreement.sha256, agreement.app):
        raise DataError("its federation.toml, app and approval.json differ", where=str(folder))
    return stored


def stored_or_none(folder: Path) -> StoredApproval | None:
    """Return the approval in a folder, None where there is none that is complete."""
    try:
        return read_approval(folder)
    except DataError:
        return None


def kept_former(site: Site) -> StoredApproval | None:
    """Return the former approval that the site keeps, also after its end; None without one, or one that is damaged."""
    stored = stored_or_none(site.state / APPROVED / FORMER)
    return stored if stored is not None and stored.until is not None else None


def former_of(site: Site) -> StoredApproval | None:
    """Return what will be the former approval once the site's federation.toml is approved.

    It is what is approved so far. Where that is the same text already, it is the former approval that is kept.
    """
    folder = site.state / APPROVED
    approved = stored_or_none(folder)
    if approved is None or approved.sha256 == site.agreement.sha256:
        approved = stored_or_none(folder / FORMER)
    if approved is None or approved.sha256 == site.agreement.sha256:
        return None
    return approved


def as_former(site: Site, former: StoredApproval) -> Site:
    """Return the site as a former text has it: under the name and number that its key has there, else its name.

    Everything else, the policy with it, is as site.toml says now.

    Raises DataError where the former text has neither.
    """
    own = site.agreement.sites[site.number]
    members = former.agreement.sites
    with_key = [number for number, member in enumerate(members) if member.key == own.key]
    with_name = [number for number, member in enumerate(members) if member.name == own.name]
    found = with_key or with_name
    if not found:
        rule = f"has no site with the key or the name of {own.name}"
        raise DataError(rule, where=str(former.folder / TEXT))
    number = found[0]
    name = members[number].name
    return replace(site, agreement=former.agreement, number=number, name=name)


def end_of(hours: float) -> datetime:
    """Return when an approval ends that is kept for so many hours from now."""
    return now() + timedelta(hours=hours)


def warning_of(site: Site, former: StoredApproval) -> str:
    """Return what masked sums with both texts tell of a single site, empty where they tell nothing more."""
    return subtraction_warning(former.agreement, site.agreement)


def former_lines(site: Site, former: StoredApproval | None, until: datetime | None) -> list[str]:
    """Return what happens to the former approval, for the one who decides about the new one.

    Args:
        site: With the new text.
        former: What `former_of` returns.
        until: When it ends; None is at once.
    """
    if former is None:
        return []
    name = f"former      {former.sha256[:16]}, app {former.app[:16]}:"
    if until is None:
        return [f"{name} from now on its runs are refused here (--keep-former HOURS keeps it)"]
    lines = [f"{name} its runs are still answered here until {in_words(until)}"]
    # Where the former text is what is approved so far, the line about the change of sites has it already.
    approved = stored_or_none(site.state / APPROVED)
    is_shown_already = approved is not None and approved.sha256 == former.sha256
    warning = warning_of(site, former)
    if warning and not is_shown_already:
        lines.append(f"(!) sites   {warning}")
    return lines


def store_former(site: Site, former: StoredApproval | None, until: datetime | None) -> None:
    """Keep an approval as the former one until a time, in place of the one that is kept; None keeps none."""
    folder = site.state / APPROVED / FORMER
    draft = folder.with_name(f"{FORMER}.part")
    shutil.rmtree(draft, ignore_errors=True)
    if former is None or until is None:
        shutil.rmtree(folder, ignore_errors=True)
        return
    record = {**former.record, "until": until.isoformat()}
    store(draft, former.content, former.fab, record)
    shutil.rmtree(folder, ignore_errors=True)
    draft.rename(folder)


def store(folder: Path, content: bytes, fab: bytes, record: Mapping[str, Any]) -> None:
    """Write an approval's files into a folder, each at once; approval.json is the last, and makes the others count."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {TEXT: content, APP: fab, RECORD: json.dumps(dict(record)).encode()}
    for name, text in texts.items():
        part = folder / f"{name}.part"
        part.write_bytes(text)
        part.replace(folder / name)
