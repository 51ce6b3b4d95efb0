"""A federation on this machine whose app is another than FedSkew's, and the same app on flwr's own SuperNodes.

attacks/any_app.py attacks the first, and compares it with the second.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from local_federation import BIN, LocalFederation, fedskew, fedskew_site
from stock_nodes import StockNodes

from fedskew.engines.processes import free_port
from fedskew.federation.coordinator_key import DECLARED

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
SITES = ("east", "north", "west")
TRAINED = ("east", "north")
"""The sites that take part in a run; the third is online as well, and has no part in it."""
SITE = """\
federation = "federation.toml"
name = "{name}"
data = "folder:data"
state = "state"

[app]
arrays = ["arrays", "upload/*"]
configs = ["fedskew", "answer", "config"]
max-bytes = 10_000_000
max-norm = {max_norm}
min-samples = {min_samples}
node-config = {{ partition-id = {number}, num-partitions = 2 }}

[link]
address = "{address}"
key = "node.key"
ca = "ca.crt"
"""
MAX_NORM, MIN_SAMPLES = 1e6, 8
PATIENCE = 900.0
"""Seconds until processes have to be online, and a run to be over."""


def copied_app(name: str, folder: Path) -> Path:
    """Copy an example to a folder, the quickstart with CReFF's patch, and return the folder.

    The copy's run config has a place for the signature of its runs.
    """
    shutil.copytree(EXAMPLES / name, folder, ignore=shutil.ignore_patterns("__pycache__"))
    pyproject = folder / "pyproject.toml"
    table = "[tool.flwr.app.config]\n"
    before, _, after = pyproject.read_text().partition(table)
    pyproject.write_text(f"{before}{table}{DECLARED}\n{after}")
    patch = folder / "patches" / "creff.diff"
    if patch.exists():
        environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)}
        subprocess.run(
            ["git", "apply", str(patch.resolve())],
            cwd=folder,
            env=environment,
            check=True,
        )
    return folder


def model_hash(file: Path) -> str:
    """Return the sha256 of a saved model's tensors."""
    digest = hashlib.sha256()
    for name, tensor in sorted(torch.load(file).items()):
        digest.update(name.encode() + tensor.numpy().tobytes())
    return digest.hexdigest()


class AppFederation(LocalFederation):
    """A coordinator and three sites, of an app of examples/."""

    def __init__(self, work: Path, name: str) -> None:
        super().__init__(work)
        self.name = name
        self.app = copied_app(name, self.work / "app")
        self.address = f"127.0.0.1:{free_port()}"
        self.numbers = {site: min(number, 1) for number, site in enumerate(SITES)}

    @property
    def places(self) -> dict[str, Path]:
        """The sites' folders by name."""
        return {name: self.sites / name for name in SITES}

    def prepare_app(self) -> None:
        """Make the coordinator's folder and the sites', and let every site approve the app."""
        words = ["--name", "any", "--address", self.address, "--listen", "127.0.0.1"]
        words += ["--min-sites", "2"]
        fedskew("federation", "new", self.folder, *words, "--app", self.app)
        for name, place in self.places.items():
            (place / "data").mkdir(parents=True)
            lines = fedskew_site("key", place / "node.key", "--name", name)
            fedskew("federation", "add", self.folder, name, lines.split('key = "')[1].rstrip('"\n'))
        for name, place in self.places.items():
            for file in ("federation.toml", "ca.crt"):
                shutil.copy(self.folder / file, place)
            self.write_policy(name)
            site = place / "site.toml"
            fedskew_site("approve", place / "federation.toml", self.app, "--site", site, "--yes")

    def write_policy(
        self,
        name: str,
        max_norm: float = MAX_NORM,
        min_samples: int = MIN_SAMPLES,
    ) -> None:
        """Write a site's site.toml, which counts from its next start."""
        text = SITE.format(
            name=name,
            number=self.numbers[name],
            address=self.address,
            max_norm=float(max_norm),
            min_samples=min_samples,
        )
        (self.places[name] / "site.toml").write_text(text)

    def restart(self, name: str) -> None:
        """Stop a site and start it again."""
        self.stop(name)
        self.start(name)
        time.sleep(2)  # until the SuperLink has the site's end
        self.wait_for_sites(name)

    def submit(self, model: Path | None = None, rounds: int = 2) -> int:
        """Run the app on TRAINED and return the exit status; its words go to submit.log."""
        config = f'num-server-rounds={rounds} local-epochs=1 model-file="{model or ""}"'
        command = [str(BIN / "fedskew"), "federation", "submit", str(self.folder)]
        command += ["--config", config]
        for name in TRAINED:
            command += ["--site", name]
        with (self.work / "submit.log").open("ab") as log:
            ended = subprocess.run(command, stdout=log, stderr=log, timeout=PATIENCE)
        return ended.returncode

    def audit(self, name: str) -> list[dict[str, Any]]:
        """Return the entries of a site's audit log."""
        lines = (self.places[name] / "state" / "audit.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]


def stock_run(app: Path, work: Path, rounds: int = 2) -> str:
    """Run an app on flwr's own SuperLink and two SuperNodes, and return its model's hash."""
    model = work / "model.pt"
    with StockNodes(
        work, [f"partition-id={number} num-partitions=2" for number in range(2)]
    ) as nodes:
        nodes.run(app, f'num-server-rounds={rounds} local-epochs=1 model-file="{model}"')
    return model_hash(model)


if __name__ == "__main__":
    print(stock_run(copied_app(sys.argv[1], Path(sys.argv[2], "app")), Path(sys.argv[2], "stock")))
