"""docs/guides/add-a-method.md: FedLC's lines are in the sources; three edits add a method with an upload to a copy."""

import importlib
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from client_app.client import Variant
from client_app.discovery import parts_in

ROOT = Path(__file__).parents[1]
SHOWN = (ROOT / "docs" / "guides" / "add-a-method.md").read_text()
FILE, LIST, ROWS = (
    "client_app/variants/logit_calibration.py", "server_app/methods.py", "tests/client_app/test_variant_contract.py",
)  # fmt: skip
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
ROW = """    Row(
        VARIANTS["tempered-reweighting"](),
        VARIANTS["tempered-reweighting"](power=1.0, smoothing=2.0),
        VARIANTS["tempered-reweighting"](power=0.0),
        SKEWED,
        wrong=({"power": -1.0}, {"smoothing": 1 / 3}),
    ),
"""


def added() -> dict[str, str]:
    """Return the lines that the shown diff adds to each file."""
    files: dict[str, str] = {}
    for part in SHOWN.partition("```diff\n")[2].partition("```")[0].split("+++ b/")[1:]:
        name, *lines = part.splitlines()
        files[name] = "".join(f"{line[1:]}\n" for line in lines if line.startswith("+"))
    return files


def test_the_shown_diff_is_what_the_sources_hold() -> None:
    files = added()
    assert list(files) == [FILE, LIST, ROWS]
    assert files[FILE] == (ROOT / FILE).read_text()
    assert files[LIST] in (ROOT / LIST).read_text() and files[LIST].count("\n") == 1
    assert files[ROWS] in (ROOT / ROWS).read_text()


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree with one source file, one line and one contract row more."""
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
    for name in ("pyproject.toml", "README.md", "experiments.yaml"):
        shutil.copy(ROOT / name, folder)
    (folder / "client_app" / "variants" / "tempered_reweighting.py").write_text(SOURCE)
    for name, before, more in ((LIST, "    for method in (\n", LINE), (ROWS, "ROWS = [\n", ROW)):
        text = (folder / name).read_text()
        assert text.count(before) == 1
        (folder / name).write_text(text.replace(before, before + more))
    return folder


PLAY = """
import pathlib, runpy, sys
import pytest
import fedskew, server_app.settings
from client_app.models import build
from client_app.variants import VARIANTS
from client_app.client import affects_training

server_app.settings.write_toml(pathlib.Path("pyproject.toml"))
runpy.run_path("scripts/method_tables.py", run_name="__main__")
settings = {"method": "tempered+fedbn", "model": "mlp-bn", "rounds": 1, "local-epochs": 1,
            "tempered-reweighting.power": 0.25}
added = VARIANTS["tempered-reweighting"]
uploaded = added().upload.bytes(build("mlp-bn", (1, 8, 8), 10, 0), 3)
print(fedskew.run(settings).finished, affects_training(added), uploaded)
sys.exit(pytest.main(["-p", "no:cacheprovider", "-p", "no:xdist", "-k", sys.argv[1], *sys.argv[2:]]))
"""
"""In one process, as each takes seconds to import torch: `make config`, a run, the rows of the tests."""


@pytest.fixture(scope="module")
def printed(copy: Path) -> str:
    """What PLAY prints in the copy, whose packages go before all others."""
    tests = [
        "test_variant_contract.py",
        "test_settings.py",
        "test_fixed_points.py",
        "test_method_tables.py",
    ]
    files = [str(file.relative_to(copy)) for name in tests for file in (copy / "tests").rglob(name)]
    assert len(files) == len(tests)
    words = "tempered or every_variant or every_key or toml or written_from"
    command = [sys.executable, "-W", "ignore", "-c", PLAY, words, *files]
    environment = {"PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1", "HOME": str(copy)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=copy, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_its_contract_row_its_bytes_and_its_settings_hold(printed: str) -> None:
    assert int(printed.split(" passed")[0].split()[-1]) >= 20 and "skipped" not in printed


@pytest.mark.slow
def test_its_name_works_wherever_a_method_s_does(copy: Path, printed: str) -> None:
    assert printed.startswith("True True 80\n")
    config = tomllib.loads((copy / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert config["tempered-reweighting"] == {"smoothing": 1.0, "power": 0.5}
    assert (
        "| `tempered` | weights to a power | made up |"
        in (copy / "docs" / "reference" / "method-list.md").read_text()
    )


def test_a_file_in_the_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "parts"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "mine.py").write_text(
        "from client_app.client import Variant\n"
        "class Mine(Variant):\n    name = 'mine'\n"
        "class Nameless(Variant):\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert list(parts_in(importlib.import_module("parts"), Variant)) == ["mine"]
