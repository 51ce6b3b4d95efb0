"""Changes of federation.toml: people edit it, and `fedskew federation agree` puts it into force.

FOLDER/federation.toml is the text that is edited and that sites get. FOLDER/agreed.toml is its copy in force: its sites
are let in, and runs state its hash. Former texts are kept below superseded/.
"""

import difflib
import hashlib
import re
from dataclasses import dataclass
from datetime import UTC, datetime

from data import DataError
from data.agreement import Agreement, read_agreement, subtraction_warning
from data.toml_file import read_toml
from fedskew.federation.folder import FederationFolder, lines_of
from site_agent.app_files import app_files, app_hash

SUPERSEDED = "superseded"
"""Folder of the former texts, below the federation's folder."""
ANY_HEADER = re.compile(r"^[ \t]*\[", re.MULTILINE)
APP_LINE = re.compile(r"^[ \t]*app\s*=.*$", re.MULTILINE)


@dataclass(frozen=True)
class Proposal:
    """Federation.toml as it was edited, with the app that is installed here."""

    text: bytes
    agreement: Agreement
    former: bytes
    """The text in force; empty where there is none yet."""
    difference: str
    """A unified diff of the two; empty where nothing changes."""
    warning: str
    """What the masked sums of both texts tell together, empty where they tell nothing more."""


def proposed(folder: FederationFolder) -> Proposal:
    """Return what `put_into_force` would put into force.

    Raises DataError for a text that cannot be agreed to, another federation's name, or a key that a site had before.
    """
    edited = read_agreement(folder.agreement_file)
    app = app_hash(app_files(folder.app))
    text = with_app(folder.agreement_file.read_text(encoding="utf-8"), app)
    agreement = edited.model_copy(update={"app": app})
    former, warning = b"", ""
    if folder.agreed_file.exists():
        former = folder.agreed_file.read_bytes()
        before = folder.agreement
        if agreement.name != before.name:
            rule = f"must be that of the federation, {before.name}"
            where = str(folder.agreement_file)
            raise DataError(rule, where=where, key="name", value=agreement.name)
        check_new_keys(folder, before, agreement)
        warning = subtraction_warning(before, agreement)
    difference = difflib.unified_diff(
        former.decode().splitlines(keepends=True), text.splitlines(keepends=True), "agreed", "new"
    )
    return Proposal(text.encode(), agreement, former, "".join(difference), warning)


def put_into_force(folder: FederationFolder, proposal: Proposal) -> None:
    """Write federation.toml and its copy in force, after the former text was kept."""
    if proposal.former:
        stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H%M%SZ")
        code = hashlib.sha256(proposal.former).hexdigest()[:16]
        file = folder.path / SUPERSEDED / f"{stamp}-{code}.toml"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(proposal.former)
    for file in (folder.agreement_file, folder.agreed_file):
        draft = file.with_name(f"{file.name}.tmp")
        draft.write_bytes(proposal.text)
        draft.replace(file)
    folder.__dict__.pop("agreement", None)  # where cached_property keeps it


def with_app(text: str, code: str) -> str:
    """Return the text of a federation.toml with another app's hash."""
    first = ANY_HEADER.search(text)  # what follows a header is not of the file's own table
    end = first.start() if first else len(text)
    return (
        APP_LINE.sub(lambda found: lines_of({"app": code}).rstrip("\n"), text[:end], count=1)
        + text[end:]
    )


def check_new_keys(folder: FederationFolder, before: Agreement, after: Agreement) -> None:
    """Raise DataError for a key that a site had before: the SuperLink takes no key twice."""
    former = set()
    for file in (folder.path / SUPERSEDED).glob("*.toml"):
        for site in read_toml(file)[1].get("site", []):
            former.add(without_comment(str(site.get("key", ""))))
    former -= {without_comment(site.key) for site in before.sites}
    for site in after.sites:
        if without_comment(site.key) in former:
            reason = "was a site's before and is not valid any more; `fedskew-site key` makes another in a new folder"
            raise DataError(reason, where=str(folder.agreement_file), key="key", value=site.key)


def without_comment(key: str) -> str:
    """Return a public key's kind and its base64 form."""
    return " ".join(key.split()[:2])
