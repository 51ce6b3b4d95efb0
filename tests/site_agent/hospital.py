"""The site `north` with a small app, and what somebody there does."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from data.agreement import read_agreement
from site_agent import approval
from site_agent.app_files import app_hash, build, packed_files
from site_agent.config import Site, read_site
from tests.site_files import agreed, arrays, site_entries, with_mask_keys, write

CODE = {
    "client_app/app.py": "app = 1\n",
    "data/a.py": "",
    "site_agent/cli.py": "",
    "README.md": "It is.",
}
"""The files of the small app, beside its pyproject.toml."""


def write_app(folder: Path, files: dict[str, str], component: str = "client_app.app:app") -> Path:
    """Write a Flower app's folder and return it."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    described = {
        "publisher": "nobody",
        "components": {"serverapp": component, "clientapp": component},
    }
    project = {"name": "small", "version": "1.0.0", "description": "An app."}
    project |= {"license": {"text": "Apache-2.0"}}
    tables = {"project": project, "tool": {"flwr": {"app": described}}}
    (folder / "pyproject.toml").write_text(tomli_w.dumps(tables))
    return folder


class Hospital:
    """The folder of the site `north`, and what somebody there does."""

    def __init__(self, folder: Path, app: Path) -> None:
        self.folder, self.app = folder, app
        self.site_file = write(folder / "site.toml", site_entries())
        self.federation = folder / "federation.toml"
        np.savez(folder / "data.npz", **arrays(0))  # type: ignore[arg-type]
        self.receive()

    @property
    def site(self) -> Site:
        return read_site(self.site_file)

    @property
    def approved(self) -> Path:
        return self.site.state / "approved"

    def receive(self, **changes: Any) -> str:
        """Put a federation.toml in place that names the app, and return its sha256."""
        code = app_hash(packed_files(build(self.app)))
        write(self.federation, agreed(**{"site": with_mask_keys(), "app": code, **changes}))
        return read_agreement(self.federation).sha256

    def approve(self) -> str:
        """Approve what was received, and return what is shown before."""
        shown: list[str] = []

        def ask(text: str) -> bool:
            shown.append(text)
            return True

        assert approval.approve(self.site, self.federation, self.app, ask)
        return shown[0]

    def entries(self) -> list[dict[str, Any]]:
        """Return the audit log."""
        return [json.loads(line) for line in self.site.audit.lines()]
