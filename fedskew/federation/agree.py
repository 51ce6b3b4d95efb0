"""Changes of federation.toml: people edit it, and `fedskew federation agree` puts it into force.

FOLDER/federation.toml is the text that is edited and that sites get. FOLDER/agreed.toml is its copy in force: its sites
are let in, and runs state its hash. Former texts are kept below superseded/.
"""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from data import DataError
from data.agreement import (
    AgreedSites,
    Agreement,
    Member,
    read_agreement,
    subtraction_warning,
)
from data.toml_file import parse_toml, read_toml, table_of
from fedskew.federation.folder import FederationFolder, lines_of, write
from site_agent.app_files import app_files, app_hash

SUPERSEDED = "superseded"
"""Folder of the former texts, below the federation's folder."""
ANY_HEADER = re.compile(r"^[ \t]*\[", re.MULTILINE)
APP_LINE = re.compile(r"^[ \t]*app\s*=.*$", re.MULTILINE)


@dataclass(frozen=True)
class Proposal:
    """Federation.toml as it was edited, with the app that is installed here."""

    text: bytes
    difference: str
    """A unified diff from the text in force; empty where nothing changes."""
    warning: str
    """What the masked sums of both texts tell together, empty where they tell nothing more."""


def add_site(folder: FederationFolder, entries: Mapping[str, object]) -> Member:
    """Write a site into federation.toml, under the next number, with these entries.

    Raises DataError for a name or a key that the agreement could not hold; the file is then as it was.
    """
    file = folder.agreement_file
    # First: the entries may be of a site's own file, and a quoted key there can be lines of TOML.
    table_of(Member, entries, f"{file}: the new site")
    before = read_toml(file)[0].decode()
    text = f"{before.rstrip()}\n\n[[site]]\n{lines_of(entries)}"

    # The text is checked before it is written. It may still hold fewer sites than an agreement needs.
    tables = parse_toml(text.encode(), str(file))["site"]
    sites = table_of(AgreedSites, {"site": tables}, str(file)).sites
    write(file, text.encode())
    return sites[-1]


def proposed(folder: FederationFolder) -> Proposal:
    """Return what `put_into_force` would put into force.

    Raises DataError for a text that cannot be agreed to, another federation's name, or a key that a site had before.
    """
    file = folder.agreement_file
    edited = read_agreement(file)
    text = with_app(file.read_text(encoding="utf-8"), app_hash(app_files(folder.app)))
    former = warning = ""
    if folder.agreed_file.exists():
        former = folder.agreed_file.read_text(encoding="utf-8")
        before = folder.agreement
        if edited.name != before.name:
            rule = f"must be that of the federation, {before.name}"
            raise DataError(rule, where=str(file), key="name", value=edited.name)
        check_new_keys(folder, before, edited)
        warning = subtraction_warning(before, edited)
    texts = former.splitlines(keepends=True), text.splitlines(keepends=True)
    lines = difflib.unified_diff(texts[0], texts[1], "agreed", "new")
    return Proposal(text.encode(), "".join(lines), warning)


def with_text_in_force(path: Path) -> FederationFolder:
    """Return a federation's folder, with federation.toml put into force if no text is.

    Raises DataError as `proposed`.
    """
    folder = FederationFolder(path)
    if not folder.agreed_file.exists():
        put_into_force(folder, proposed(folder))
    return folder


def put_into_force(folder: FederationFolder, proposal: Proposal) -> None:
    """Write federation.toml and its copy in force, after the former text was kept."""
    if folder.agreed_file.exists():
        stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H%M%SZ")
        file = folder.path / SUPERSEDED / f"{stamp}-{folder.agreement.sha256[:16]}.toml"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(folder.agreed_file.read_bytes())
    write(folder.agreement_file, proposal.text)
    write(folder.agreed_file, proposal.text)
    folder.__dict__.pop("agreement", None)  # where cached_property keeps it


def with_app(text: str, code: str) -> str:
    """Return the text of a federation.toml with another app's hash."""
    first = ANY_HEADER.search(text)  # what follows a header is not of the file's own table
    end = first.start() if first else len(text)
    return APP_LINE.sub(f'app = "{code}"', text[:end], count=1) + text[end:]


def check_new_keys(folder: FederationFolder, before: Agreement, after: Agreement) -> None:
    """Raise DataError for a key that a site had before: the SuperLink takes no key twice."""
    former = set()
    for file in (folder.path / SUPERSEDED).glob("*.toml"):
        for site in read_toml(file)[1].get("site", []):
            former.add(" ".join(site["key"].split()[:2]))  # a comment may follow
    former -= {site.key for site in before.sites}
    for site in after.sites:
        if site.key in former:
            reason = "was a site's before and is not valid any more; `fedskew-site key` makes another in a new folder"
            raise DataError(reason, where=str(folder.agreement_file), key="key", value=site.key)
