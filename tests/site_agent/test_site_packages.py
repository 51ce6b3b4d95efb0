"""What `pip install fedskew[site]` installs is enough for a site; any other package is named where it is missing."""

import ast
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from data.extras import EXTRAS, explained
from tests.only_core import brought_by, core, plain
from tests.site_files import CLASSES, site_folders

ROOT = Path(__file__).resolve().parents[2]
SITE = {
    "annotated-types", "click", "cryptography", "filelock", "flwr", "numpy", "pillow", "prometheus-client",
    "safetensors", "torch", "torchvision", "typer",
}  # fmt: skip
"""The packages that a site imports. One more is one more that every hospital has to install and to watch."""
ON_DEMAND = {"nilearn", "timm"}
"""Packages that a site's code imports in the one function that needs them: for ABIDE's download, and backbones."""
NAMES = {
    "PIL": "pillow",
    "prometheus_client": "prometheus-client",
    "annotated_types": "annotated-types",
}
NOT_AT_A_SITE = ["matplotlib", "psutil", "ray", "scipy", "sklearn"]
"""What made an install large and is hidden below; flwr itself brings uvicorn, starlette and httpx."""
TRAIN = """
import sys
from pathlib import Path
from fedskew.engines import execute
from server_app.settings import parse
from site_agent import executor, export, metrics, online, pool, service, supernode, supernode_watch
folder = Path(sys.argv[1])
run = {"method": "fedshift+fedbn", "model": "resnet-8", "rounds": 1, "batch-size": 8, "device": "cpu", "width": 4,
       "dataset": f"sites:{folder}/federation.toml", "results": str(folder / "results")}
print(execute(parse(run), "inprocess", lambda line: None, sites=str(folder))["hash"]["shared"])
print("loaded", *sorted({name.split(".")[0] for name in sys.modules}))
"""
CHECK = "import sys; from fedskew.site_command import main; sys.argv[0] = 'fedskew-site'; main()"


def hidden(
    folder: Path, code: str, *words: str | Path, also: str = "fedskew"
) -> subprocess.CompletedProcess[str]:
    """Run code in a Python that has the core's packages alone."""
    file = folder / "code.py"
    file.write_text(code)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "ALSO": also, "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable,
        "-W",
        "ignore",
        str(ROOT / "tests/only_core.py"),
        str(file),
        *map(str, words),
    ]
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


def test_the_packages_that_a_site_imports_are_these() -> None:
    assert imported() == SITE | ON_DEMAND


def test_they_are_what_is_installed_without_an_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {plain(name) for name in core()} == SITE
    assert project["optional-dependencies"]["site"] == []
    assert not {"matplotlib", "psutil", "ray", "scikit-learn", "scipy"} & brought_by(core())


def test_every_package_of_a_sentence_is_in_its_extra_and_all_of_them_in_all_and_dev() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    declared = {
        extra: {Requirement(text).name for text in texts} for extra, texts in extras.items()
    }
    for package, extra in EXTRAS.items():
        assert {"sklearn": "scikit-learn"}.get(package, package) in declared[extra]
    (everything,) = map(Requirement, extras["all"])
    assert everything.extras == {*EXTRAS.values()}
    assert any("all" in Requirement(text).extras for text in extras["dev"])
    ray = [Requirement(text) for text in extras["simulation"] if text.startswith("flwr")]
    assert [(need.extras, str(need.specifier)) for need in ray] == [({"simulation"}, "<2,>=1.41")]


@pytest.mark.slow
def test_a_site_trains_a_round_with_them_alone(tmp_path: Path) -> None:
    # The coordinator's half is in the same process, and its engines need psutil.
    done = hidden(tmp_path, TRAIN, site_folders(tmp_path / "sites"), also="psutil")
    assert done.returncode == 0, done.stderr
    loaded = done.stdout.splitlines()[-1].split()
    assert {"torch", "flwr"} <= {*loaded}
    assert not ({*NOT_AT_A_SITE} - {"psutil"}) & {*loaded}


def test_a_site_checks_itself_with_them_alone(tmp_path: Path) -> None:
    folder = site_folders(tmp_path / "sites") / "north"
    done = hidden(tmp_path, CHECK, "check", "--site", folder / "site.toml")
    assert "ok  data" in done.stdout, done.stderr
    assert done.returncode == 1 and "NO  approval" in done.stdout  # nothing was approved, no more


@pytest.mark.slow
def test_numbers_without_a_split_need_one_package_more_and_the_check_names_it(
    tmp_path: Path,
) -> None:
    sites = site_folders(tmp_path / "sites", input_shape="2", mean=[0.0], std=[1.0])
    site = sites / "north/site.toml"
    site.write_text(site.read_text().replace("npz:data.npz", "csv:data.csv"))
    table = sites / "north/data.csv"
    rows = [f"{number},{number % 7},{CLASSES[number % 3]}" for number in range(30)]
    table.write_text("\n".join(["age,count,label", *rows]) + "\n")
    done = hidden(tmp_path, CHECK, "check", "--site", site)
    sentence = "scikit-learn splits it and is not installed: pip install 'fedskew[simulation]'"
    assert sentence in done.stdout and "NO  data" in done.stdout, done.stderr + done.stdout
    halves = [f"{row},{'test' if number % 5 == 0 else 'train'}" for number, row in enumerate(rows)]
    table.write_text("\n".join(["age,count,label,split", *halves]) + "\n")
    done = hidden(tmp_path, CHECK, "check", "--site", site)
    assert "ok  data" in done.stdout, done.stdout


@pytest.mark.parametrize("package", NOT_AT_A_SITE)
def test_the_others_are_hidden(tmp_path: Path, package: str) -> None:
    """The control: without it the two tests above would pass whatever a site imports."""
    done = hidden(tmp_path, f"import {package}")
    assert f"ModuleNotFoundError: No module named '{package}'" in done.stderr


COMMAND = "import sys; from fedskew.cli.main import main; sys.argv[0] = 'fedskew'; main()"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "package", "extra"),
    [
        (["diagnose", "digits"], "scipy", "simulation"),
        (["federation", "up", "."], "psutil", "coordinator"),
        (["run", "demo"], "psutil", "simulation"),
    ],
)  # fmt: skip
def test_a_command_names_the_extra_that_it_needs(
    tmp_path: Path, words: list[str], package: str, extra: str
) -> None:
    done = hidden(tmp_path, COMMAND, *words)
    sentence = f"fedskew: {package} is not installed, and this command needs it: pip install 'fedskew[{extra}]'"
    assert (
        done.returncode == 2 and done.stderr.startswith(sentence) and done.stderr.count("\n") == 1
    )
    assert hidden(tmp_path, COMMAND, "list", "methods").returncode == 0


def test_another_missing_module_stays_an_error_of_the_code() -> None:
    assert explained(ModuleNotFoundError("No module named 'stratgies'", name="stratgies")) == ""
    assert "fedskew[report]" in explained(ModuleNotFoundError(name="matplotlib.pyplot"))
