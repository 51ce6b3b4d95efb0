"""docs/guides/plugin.md: its file, its package and a model of one's own on two engines, outside the project."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "docs" / "guides" / "plugin-example"
PAGE = (ROOT / "docs" / "guides" / "plugin.md").read_text()
MODEL = """
from torch import nn
from client_app.models import Classifier

def small(shape, classes):
    return Classifier(nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh()), nn.Linear(8, classes))
"""
SMALL = {
    "model": "my_models:small",
    "rounds": 2,
    "clients": 2,
    "train-images": 60,
    "test-images": 40,
}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the template package is installed into, from a copy: building writes beside the sources."""
    source, target = (
        tmp_path_factory.mktemp("source") / "package",
        tmp_path_factory.mktemp("installed"),
    )
    shutil.copytree(PACKAGE, source)
    words = ["install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--target"]
    words += [str(target), str(source)]
    subprocess.run([sys.executable, "-m", "pip", *words], check=True, timeout=900)
    return target


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The user's folder, with the page's file and a model."""
    (source,) = re.findall(r"```python\n# my_methods.py\n(.*?)```", PAGE, re.S)
    (tmp_path / "my_methods.py").write_text(source.replace("rarity-weights", "page-weights"))
    (tmp_path / "my_models.py").write_text(MODEL)
    return tmp_path


def call(folder: Path, installed: Path, *words: object) -> str:
    """Return what a Python started in the folder prints, which looks for nothing there by itself (-P)."""
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{installed}",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-P", "-W", "ignore", "-m", *map(str, words)]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_own_methods_and_an_own_model_run_on_two_engines_and_stand_in_a_report(
    folder: Path, installed: Path
) -> None:
    method = "tempered+even-mean+my_methods:Tempered"
    stated = {**SMALL, "rarity-weights.power": 0.25, "page-weights.power": 0.75}
    settings = [word for key, value in stated.items() for word in ("--set", f"{key}={value}")]
    words = ["fedskew", "run", "--method", method, "--json", *settings]
    hashes = set()
    for engine in ("inprocess", "ray"):
        summary = json.loads(
            call(folder, installed, *words, "--engine", engine, "--results", engine)
        )
        hashes.add((summary["run"], summary["hash"]["all"]))
    assert len(hashes) == 1
    (file,) = folder.glob("ray/*/settings.json")
    assert json.loads(file.read_text())["method's-files"].keys() == set(method.split("+"))
    page = call(folder, installed, "fedskew", "report", "--results", "ray", "--markdown")
    assert "my_methods:Tempered" in page and "even-mean" in page
    rows = json.loads(call(folder, installed, "fedskew", "list", "methods", "--json"))
    assert {"tempered", "even-mean"} <= {row["method"] for row in rows}


@pytest.mark.slow
def test_the_package_s_own_tests_pass(folder: Path, installed: Path) -> None:
    tests = PACKAGE / "tests"
    words = ["pytest", "-p", "no:cacheprovider", "-c", os.devnull, tests]
    assert "3 passed" in call(folder, installed, *words)


def test_the_page_s_class_is_the_package_s() -> None:
    package = (PACKAGE / "my_fedskew_methods" / "__init__.py").read_text()
    (source,) = re.findall(r"```python\n# my_methods.py\n.*?(@dataclass.*?)```", PAGE, re.S)
    assert re.sub(r' *"""Return.*?"""\n', "", package).count(source) == 1
