"""What `pip install fedskew[site]` installs is enough for a site; any other package is named where it is missing."""

import ast
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from data.packages import EXTRAS, explained
from tests.only_core import brought_by, core, plain
from tests.site_files import site_folders

ROOT = Path(__file__).resolve().parents[2]
ON_DEMAND = {"timm"}
"""Packages that a site's code imports in the one function that needs them: for backbones."""
NAMES = {
    "PIL": "pillow",
    "prometheus_client": "prometheus-client",
    "annotated_types": "annotated-types",
}
NOT_AT_A_SITE = {"matplotlib", "ray", "scipy", "sklearn"}
"""What made an install large and is hidden below; flwr itself brings uvicorn, starlette and httpx."""
TRAIN = """
import sys
from pathlib import Path
from fedskew.engines import execute
from fedskew.engines import Resources
from server_app.settings import parse
from site_agent import check, executor, export, pool, service
folder = Path(sys.argv[1])
run = {"method": "fedshift+fedbn", "model": "resnet-8", "rounds": 1, "batch-size": 8, "device": "cpu",
       "dataset": f"sites:{folder}/federation.toml", "results": str(folder / "results")}
print(execute(parse(run), Resources("inprocess"), lambda line: None, sites=str(folder))["hash"]["shared"])
print("loaded", *sorted({name.split(".")[0] for name in sys.modules}))
"""
RUN = "import sys; from fedskew.cli.main import main; sys.argv[0] = 'fedskew'; main()"
CHECK = "import sys; from fedskew.site_command import main; sys.argv[0] = 'fedskew-site'; main()"


def hidden(
    folder: Path, code: str, *words: str | Path, also: str = "fedskew", extra: str = "site"
) -> subprocess.CompletedProcess[str]:
    """Run code in a Python that has the core's packages alone, and those of an extra."""
    file = folder / "code.py"
    file.write_text(code)
    shown = {"PYTHONPATH": str(ROOT), "ALSO": also, "EXTRA": extra}
    environment = {**os.environ, **shown, "OMP_NUM_THREADS": "1"}
    script = str(ROOT / "tests/only_core.py")
    command = [sys.executable, "-W", "ignore", script, str(file), *map(str, words)]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900
    )


def imported() -> set[str]:
    """Return what the packages of a site import, wherever in a file, as distributions."""
    names: set[str] = set()
    for package in ("data", "client_app", "site_agent"):
        for file in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Import):
                    names |= {alias.name.split(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module:
                    names.add(node.module.split(".")[0])
    names -= {*sys.stdlib_module_names, "data", "client_app", "site_agent", "fedskew"}
    return {NAMES.get(name, name) for name in names}


def test_what_a_site_imports_is_what_is_installed_without_an_extra() -> None:
    """One more is one more that every hospital has to install and to watch."""
    assert imported() == {plain(name) for name in core()} | ON_DEMAND
    assert not {"matplotlib", "psutil", "ray", "scikit-learn", "scipy"} & brought_by(core())


def test_every_package_of_a_sentence_is_in_its_extra_and_all_of_them_in_all() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    declared = {
        extra: {Requirement(text).name for text in texts} for extra, texts in extras.items()
    }
    for package, extra in EXTRAS.items():
        assert {"sklearn": "scikit-learn"}.get(package, package) in declared[extra]
    (everything,) = map(Requirement, extras["all"])
    assert everything.extras == {*EXTRAS.values()} and extras["site"] == []
    assert explained(ModuleNotFoundError("No module named 'stratgies'", name="stratgies")) == ""
    assert "fedskew[report]" in explained(ModuleNotFoundError(name="matplotlib.pyplot"))


@pytest.mark.slow
def test_a_site_checks_itself_and_trains_a_round_with_them_alone(tmp_path: Path) -> None:
    folder = site_folders(tmp_path / "sites")
    done = hidden(tmp_path, CHECK, "check", "--site", folder / "north/site.toml")
    assert "ok  data" in done.stdout, done.stderr
    assert done.returncode == 1 and "NO  approval" in done.stdout  # nothing was approved, no more
    # The coordinator's half is in the same process, and its engines need psutil.
    done = hidden(tmp_path, TRAIN, folder, also="psutil")
    assert done.returncode == 0, done.stderr
    loaded = done.stdout.splitlines()[-1].split()
    assert {"torch", "flwr"} <= {*loaded} and not NOT_AT_A_SITE & {*loaded}


@pytest.mark.slow
def test_a_run_on_one_machine_ends_with_its_table_by_the_extra_simulation_alone(
    tmp_path: Path,
) -> None:
    words = ["run", "--engine", "inprocess", "--set", "model=mlp-bn", "--set", "method=fedbn"]
    done = hidden(tmp_path, RUN, *words, "--set", "rounds=1", extra="simulation")
    assert done.returncode == 0, done.stderr
    assert "balanced accuracy" in done.stdout and "results/digits-fedbn-seed0" in done.stdout
    # What draws is not there, and is named.
    done = hidden(tmp_path, RUN, "report", "--html", "page.html", extra="simulation")
    assert done.returncode == 2 and "pip install 'fedskew[report]'" in done.stderr
