"""docs/guides/add-a-method.md: FedLC's lines are in the sources; two edits add a method with an upload to a copy."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SHOWN = (ROOT / "docs" / "guides" / "add-a-method.md").read_text()
FILE, LIST = "client_app/variants/logit_calibration.py", "server_app/methods.py"
CONTRACT = "tests/client_app/test_variant_contract.py"
SOURCE = '''"""Tempered reweighting, made up: importance weights with an exponent."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge
from torch import Tensor

from client_app.client import Client
from client_app.variants.class_prior import PriorCorrection


@dataclass(frozen=True)
class TemperedReweighting(PriorCorrection):
    """Weight every sample's cross-entropy by (P(y) / P_i(y))^power. Identity: power = 0."""

    name: ClassVar[str] = "tempered-reweighting"

    power: Annotated[float, Ge(0)] = 0.5
    """Exponent of the weights; 0 is plain training."""

    def loss_weights(self, client: Client, logits_BC: Tensor, labels_B: Tensor) -> Tensor:
        weights_C = (self.global_prior(client) / self.local_prior(client)) ** self.power
        return weights_C.to(logits_BC)[labels_B]
'''
LINE = '        Method("tempered", "weights to a power", "made up", "class counts, once", ("tempered-reweighting",)),\n'


def added() -> dict[str, str]:
    """Return the lines that the shown diff adds to each file."""
    files: dict[str, str] = {}
    for part in SHOWN.partition("```diff\n")[2].partition("```")[0].split("+++ b/")[1:]:
        name, *lines = part.splitlines()
        files[name] = "".join(f"{line[1:]}\n" for line in lines if line.startswith("+"))
    return files


def test_the_shown_diff_is_what_the_sources_hold() -> None:
    files = added()
    assert list(files) == [FILE, LIST]
    assert files[FILE] == (ROOT / FILE).read_text()
    assert files[LIST] in (ROOT / LIST).read_text() and files[LIST].count("\n") == 1


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree with one source file and one line more."""
    folder = tmp_path_factory.mktemp("copy")
    for name in (
        "data",
        "client_app",
        "strategies",
        "server_app",
        "fedskew",
        "tests",
        "docs",
        "scripts",
    ):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "mkdocs.yml", "experiments.yaml"):
        shutil.copy(ROOT / name, folder)
    (folder / "client_app" / "variants" / "tempered_reweighting.py").write_text(SOURCE)
    text, before = (folder / LIST).read_text(), "    for method in (\n"
    assert text.count(before) == 1
    (folder / LIST).write_text(text.replace(before, before + LINE))
    return folder


TRIAL = """
import pathlib, runpy, sys
import pytest
import fedskew, server_app.settings
from client_app.models import build
from client_app.variants import VARIANTS

server_app.settings.write_toml(pathlib.Path("pyproject.toml"))
runpy.run_path("scripts/method_tables.py", run_name="__main__")
settings = {"method": "tempered+fedbn", "model": "mlp-bn", "rounds": 1, "local-epochs": 1,
            "tempered-reweighting.power": 0.25}
uploaded = list(VARIANTS["tempered-reweighting"]().upload.tensors(build("mlp-bn", (1, 8, 8), 10, 0), {}))
print(fedskew.run(settings).finished, uploaded)
sys.exit(pytest.main(["-p", "no:cacheprovider", "-p", "no:xdist", "-k", sys.argv[1], *sys.argv[2:]]))
"""
"""In one process, as each takes seconds to import torch: `make config`, a run, the rows of the tests."""


@pytest.mark.slow
def test_a_file_and_a_line_are_a_method_with_settings_contract_and_place_in_the_lists(
    copy: Path,
) -> None:
    words = "tempered or list_of_methods"
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-c",
        TRIAL,
        words,
        CONTRACT,
        "tests/test_reference_pages.py",
    ]
    environment = {"PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1", "HOME": str(copy)}
    environment["PATH"] = os.environ["PATH"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=copy, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("True ['counts']\n") and "skipped" not in done.stdout
    assert int(done.stdout.split(" passed")[0].split()[-1]) >= 7
    config = tomllib.loads((copy / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert config["tempered-reweighting"] == {"smoothing": 1.0, "power": 0.5}
    lists = (copy / "docs" / "reference" / "methods.md").read_text()
    assert "| `tempered` | made up |" in lists
