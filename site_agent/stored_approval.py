"""The approval that a site keeps: STATE/approved/ with federation.toml, app.fab and approval.json."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from data import DataError
from data.agreement import Agreement, read_agreement
from site_agent.app_files import app_hash, packed_files

APPROVED = "approved"
TEXT, APP, RECORD = "federation.toml", "app.fab", "approval.json"


@dataclass(frozen=True)
class StoredApproval:
    """A folder with an approval: one federation.toml and one app."""

    folder: Path
    agreement: Agreement
    files: Mapping[str, bytes]
    """The app's files, by name."""

    @property
    def sha256(self) -> str:
        """The sha256 of federation.toml."""
        return self.agreement.sha256

    @cached_property
    def app(self) -> str:
        """The hash of the app."""
        return app_hash(self.files)


def read_approval(folder: Path) -> StoredApproval:
    """Return the approval in a folder. Raises DataError where there is none, or its files do not belong together."""
    try:
        record = json.loads((folder / RECORD).read_text())
        content = (folder / TEXT).read_bytes()
        fab = (folder / APP).read_bytes()
        stated = record["federation"], record["app"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        reason = f"holds no complete approval ({type(error).__name__})"
        raise DataError(reason, where=str(folder)) from None
    agreement = read_agreement(folder / TEXT)
    stored = StoredApproval(folder, agreement, packed_files(fab, str(folder / APP)))
    here = hashlib.sha256(content).hexdigest(), stored.app
    if here != stated or here != (agreement.sha256, agreement.app):
        raise DataError("its federation.toml, app and approval.json differ", where=str(folder))
    return stored


def store(folder: Path, content: bytes, fab: bytes, record: Mapping[str, Any]) -> None:
    """Write an approval's files into a folder, each at once; approval.json is the last, and makes the others count."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {TEXT: content, APP: fab, RECORD: json.dumps(dict(record)).encode()}
    for name, text in texts.items():
        part = folder / f"{name}.part"
        part.write_bytes(text)
        part.replace(folder / name)
