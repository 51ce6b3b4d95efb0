"""Changes of a federation.toml that is in use: a site leaves or gets another key or name, or the app is another.

Each change is made in the file's text, so that comments stay. The former file is kept below superseded/. The gateway
takes the change over with its next request. Sites approve the new text before their next run.
"""

import difflib
import hashlib
import re
from collections.abc import Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from data import DataError
from data.agreement import Agreement, read_agreement, subtraction_warning
from data.sites import FORMER_TEXTS
from data.toml_file import parse_toml, read_toml
from fedskew.federation.folder import FederationFolder, lines_of
from site_agent.app_files import app_files, app_hash

SUPERSEDED = FORMER_TEXTS
"""Folder of the former texts of federation.toml, below the federation's folder."""
STAMP = "%Y-%m-%dT%H%M%SZ"
"""The form of the time that a former text's name begins with. The names' order is the order of the changes."""
SITE_HEADER = re.compile(r"^[ \t]*\[\[\s*site\s*\]\]", re.MULTILINE)
ANY_HEADER = re.compile(r"^[ \t]*\[", re.MULTILINE)


@dataclass(frozen=True)
class Change:
    """What a command has made of federation.toml."""

    before: Agreement
    after: Agreement
    difference: str
    """A unified diff of the two texts; empty where nothing changes."""
    kept: str
    """Name of the former text's file, below the federation's folder."""

    @property
    def warning(self) -> str:
        """What the masked sums of both federations tell together, empty where they tell nothing more."""
        return subtraction_warning(self.before, self.after)


def remove(folder: FederationFolder, name: str) -> Change:
    """Take a site out of federation.toml. Raises DataError for an unknown site, and where too few would be left."""
    number = site_number(folder, name)
    text, entries = read(folder)
    begin, end = site_block(folder, text, number)
    wanted = deepcopy(entries)
    del wanted["site"][number]
    return supersede(folder, text[:begin].rstrip() + "\n\n" + text[end:].lstrip(), wanted)


def rekey(folder: FederationFolder, name: str, key: str, mask_key: str = "") -> Change:
    """Give a site another key, and another key for masked sums if there is one.

    Raises DataError for an unknown site, and for a key that the agreement cannot hold or that a site had before.
    """
    check_is_new(folder, key)
    changes = {"key": key.strip()}
    if mask_key:
        changes["mask-key"] = mask_key
    return change_site(folder, name, changes)


def rename(folder: FederationFolder, name: str, new_name: str) -> Change:
    """Give a site another name; its key and number stay. Raises DataError for an unknown site, and for no name."""
    return change_site(folder, name, {"name": new_name})


def update(folder: FederationFolder, file: Path | None = None) -> Change:
    """Agree to the app as it is installed here, or to the app.fab of the folder.

    Args:
        folder: The federation's.
        file: Another federation.toml, whose text takes the place of the one that is agreed to; its app is replaced as
            well. None changes the app alone.

    Raises DataError for a text that cannot be agreed to, has another federation's name, or a key that is not valid.
    """
    if file is None:
        text, entries = read(folder)
    else:
        text, entries = new_text(folder, file)
    code = app_hash(app_files(folder.app))
    first = SITE_HEADER.search(text)
    end = first.start() if first else len(text)
    changed = with_values(text[:end], {"app": code}) + text[end:]
    return supersede(folder, changed, {**entries, "app": code})


def replace_run_key(folder: FederationFolder, key: str) -> Change:
    """Agree to another key that signs runs, or to the first one. Raises DataError for a key that is none."""
    text, entries = read(folder)
    first = ANY_HEADER.search(text)  # what follows a header is not of the file's own table
    end = first.start() if first else len(text)
    changed = with_values(text[:end], {"run-key": key}) + text[end:]
    return supersede(folder, changed, {**entries, "run-key": key})


def new_text(folder: FederationFolder, file: Path) -> tuple[str, dict[str, Any]]:
    """Return the text of another federation.toml, and what it says. Raises DataError as `update`."""
    content, entries = read_toml(file)
    proposed = read_agreement(file)
    name = folder.agreement.name
    if proposed.name != name:
        rule = f"must be that of the federation, {name}"
        raise DataError(rule, where=str(file), key="name", value=proposed.name)
    for site in proposed.sites:
        check_is_new(folder, site.key)
    return content.decode(), entries


def change_site(folder: FederationFolder, name: str, changes: dict[str, str]) -> Change:
    """Write other values into a site's entry."""
    number = site_number(folder, name)
    text, entries = read(folder)
    begin, end = site_block(folder, text, number)
    changed = text[:begin] + with_values(text[begin:end], changes) + text[end:]
    wanted = deepcopy(entries)
    wanted["site"][number] |= changes
    return supersede(folder, changed, wanted)


def read(folder: FederationFolder) -> tuple[str, dict[str, Any]]:
    """Return the text of federation.toml, and what it says."""
    content, entries = read_toml(folder.agreement_file)
    return content.decode(), entries


def site_number(folder: FederationFolder, name: str) -> int:
    """Return a site's place in the file. Raises DataError for a site that is none of it."""
    try:
        return folder.agreement.number(name)
    except LookupError as error:
        raise DataError(
            str(error), where=str(folder.agreement_file), key="name", value=name
        ) from None


def site_block(folder: FederationFolder, text: str, number: int) -> tuple[int, int]:
    """Return where a site's entry [[site]] begins and ends. Raises DataError where the sites stand otherwise."""
    begins = [match.start() for match in SITE_HEADER.finditer(text)]
    if number >= len(begins):
        raise other_form(folder)
    following = [
        match.start() for match in ANY_HEADER.finditer(text) if match.start() > begins[number]
    ]
    return begins[number], min(following, default=len(text))


def other_form(folder: FederationFolder) -> DataError:
    """Return the error of a file that these commands do not understand."""
    reason = (
        "cannot be changed by this command; change it by hand, or write one entry [[site]] a site"
    )
    return DataError(reason, where=str(folder.agreement_file))


def with_values(block: str, values: dict[str, str]) -> str:
    """Return a piece of TOML whose keys have other values; a key that is not there comes behind the others."""
    for key, value in values.items():
        line = lines_of({key: value}).rstrip("\n")
        found = re.search(rf"^[ \t]*{re.escape(key)}\s*=.*$", block, re.MULTILINE)
        if found:
            block = block[: found.start()] + line + block[found.end() :]
        else:
            block = f"{block.rstrip()}\n{line}\n\n"
    return block


def supersede(folder: FederationFolder, text: str, wanted: dict[str, Any]) -> Change:
    """Write another text into federation.toml, after the former one was kept.

    Args:
        folder: The federation's.
        text: The new text.
        wanted: What it has to say, by which an unusual file is found that was not understood.

    Raises:
        DataError: the text would be no agreement, or say something else; the file is then as it was.
    """
    file = folder.agreement_file
    former = file.read_bytes()
    before = folder.agreement
    if parse_toml(text.encode(), str(file)) != wanted:
        raise other_form(folder)
    draft = file.with_name(f"{file.name}.tmp")
    draft.write_text(text, encoding="utf-8")
    try:
        after = read_agreement(draft)
    except DataError:
        draft.unlink()
        raise
    difference = "".join(
        difflib.unified_diff(
            former.decode().splitlines(keepends=True),
            text.splitlines(keepends=True),
            "before",
            "after",
        )
    )
    if not difference:
        draft.unlink()
        return Change(before, after, "", "")
    kept = save_former_text(folder, former)
    folder.replace_agreement(draft)
    return Change(before, after, difference, kept)


def save_former_text(folder: FederationFolder, content: bytes) -> str:
    """Save a former text of federation.toml, and return the file's name below the federation's folder."""
    stamp = next_stamp(former_texts(folder))
    file = folder.path / SUPERSEDED / f"{stamp}-{hashlib.sha256(content).hexdigest()[:16]}.toml"
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(content)
    return f"{SUPERSEDED}/{file.name}"


def next_stamp(files: Sequence[Path]) -> str:
    """Return the time of a change, later than those that the names of former texts state.

    Two changes in one second, or a clock that was set back, must not turn the order of the texts round.
    """
    time = datetime.now(UTC)
    if files:
        with suppress(ValueError):
            last = datetime.strptime(files[-1].name.partition("Z-")[0] + "Z", STAMP)
            time = max(time, last.replace(tzinfo=UTC) + timedelta(seconds=1))
    return time.strftime(STAMP)


def former_texts(folder: FederationFolder) -> list[Path]:
    """Return the files of the former texts of federation.toml, the oldest first."""
    return sorted((folder.path / SUPERSEDED).glob("*.toml"))


def former_agreement(folder: FederationFolder) -> Agreement:
    """Return the text before the last change, with which a run can go on.

    Raises DataError where nothing was changed yet, and where the app that is installed here is not that text's: the
    sites would refuse it.
    """
    files = former_texts(folder)
    if not files:
        rule = "has no former text: no command has changed it yet"
        raise DataError(rule, where=str(folder.agreement_file))
    former = read_agreement(files[-1])
    here = app_hash(app_files(folder.app))
    if former.app != here:
        rule = f"is another than the app that is installed here, {here[:16]}..."
        remedy = "run the command of the release that was installed before"
        value = f"{former.app[:16]}..."
        raise DataError(rule, where=str(files[-1]), key="app", value=value, remedy=remedy)
    return former


def check_is_new(folder: FederationFolder, key: str) -> None:
    """Raise DataError for a key that a site had before: the SuperLink takes no key twice."""
    former = former_keys(folder)
    stated = without_comment(key)
    current = {site.key for site in folder.agreement.sites} if former else set()
    if stated in former and stated not in current:
        reason = "was a site's before and is not valid any more; `fedskew-site key` makes another in a new folder"
        raise DataError(reason, where=str(folder.agreement_file), key="key", value=stated)


def former_keys(folder: FederationFolder) -> set[str]:
    """Return the keys in the former texts of federation.toml, without comments."""
    keys = set()
    for file in former_texts(folder):
        for site in read_toml(file)[1].get("site", []):
            keys.add(without_comment(str(site.get("key", ""))))
    return keys


def without_comment(key: str) -> str:
    """Return a public key's kind and its base64 form."""
    return " ".join(key.split()[:2])
