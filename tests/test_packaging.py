"""The wheel is one package beside a user's own `data`, the Flower bundle is whole; both compute what the clone does."""

import io
import json
import runpy
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from built_wheel import copy_of_the_clone

from data.packages import canonical

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {"client_app", "data", "fedskew", "server_app", "site_agent", "strategies"}
TRIAL = """
import json, sys
import fedskew
from fedskew.cli.main import main

def call(*words):
    sys.argv = ["fedskew", *words]
    try:
        main()
    except SystemExit as ended:
        assert not ended.code, ended.code

if OF_USER:
    import data, strategies
    assert data.OWNER == strategies.OWNER == "user"
run = fedskew.run({
    "method": "creff+fedshift", "model": "mlp-bn", "clients": 2, "rounds": 1, "local-epochs": 1, "device": "cpu",
    "train-images": 60, "test-images": 40, "results": "out", "creff.head-steps": 2, "creff.feature-steps": 2,
})
call("export", str(run.folder), "--output", "model")
call("report", "--results", "out", "--html", "report.html")
call("list", "experiments")
print(json.dumps([run.hash, json.loads((run.folder / "settings.json").read_text())["versions"]["code"]]))
"""
"""A run that is exported and reported, in Python that finds FedSkew in a clone, in a bundle or in a wheel."""

EVERY_MODULE = """
import importlib, pkgutil, sys
from importlib.metadata import distribution
import fedskew
skipped = ("fedskew.server_app.wandb_tracker",)  # needs a package of an extra
for module in pkgutil.walk_packages(fedskew.__path__, "fedskew."):
    if not module.name.endswith("__main__") and module.name not in skipped:
        importlib.import_module(module.name)
for command in distribution("fedskew").entry_points:
    command.load()
    print(command.name)
places = {module.__file__ for name, module in sys.modules.items() if name.startswith("fedskew")}
assert all(place.startswith(sys.argv[1]) for place in places), places
"""


SUPERNODE = """
import sys
from importlib.util import find_spec
sys.path[:0] = sys.argv[1:]
from fedskew.site_agent.service import process_of
command = process_of("flower-supernode")
assert command[1] == "-m" and find_spec(command[2]), command
"""
"""The process that a site starts for its SuperNode, in Python that finds no clone."""


def python(folder: Path, program: Path | str, code: str, *words: str, path: str = "") -> str:
    """Return what a Python prints that runs a file in this folder, where it also looks for modules first."""
    (folder / "main.py").write_text(code)
    environment = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "HOME": str(folder)}
    command = [str(program), "-W", "ignore", "main.py", *words]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def trial(folder: Path, program: Path | str, path: str = "", *, of_user: bool = False) -> list[str]:
    """Return the hash of the model and of the code of a run, once its model and its report are written."""
    printed = python(folder, program, f"OF_USER = {of_user}\n{TRIAL}", path=path)
    assert (folder / "model" / "README.md").read_text().startswith("---\n")
    assert "<style>" in (folder / "report.html").read_text()
    hashes: list[str] = json.loads(printed.splitlines()[-1])
    return hashes


@pytest.fixture(scope="module")
def of_clone(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The hashes of the trial in the clone."""
    return trial(tmp_path_factory.mktemp("clone"), sys.executable, str(ROOT))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the app bundle that flwr builds of a clone."""
    from flwr.cli.build import build_fab_from_disk

    published = copy_of_the_clone(tmp_path_factory.mktemp("published"))
    folder = tmp_path_factory.mktemp("bundle")
    zipfile.ZipFile(io.BytesIO(build_fab_from_disk(published))).extractall(folder)
    return folder


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of flwr's typer and pathspec
def test_the_bundle_is_the_packages_with_every_file_of_theirs(bundle: Path) -> None:
    beside = {"pyproject.toml", "experiments.yaml", "README.md", "LICENSE", ".info"}
    assert {file.name for file in bundle.iterdir()} == PACKAGES | beside
    listed = subprocess.run(
        ["git", "ls-files", *PACKAGES], cwd=ROOT, capture_output=True, text=True, check=True
    )
    missing = [name for name in listed.stdout.splitlines() if not (bundle / name).exists()]
    assert not [name for name in missing if (ROOT / name).exists()], "of a type that is left out"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_run_of_the_bundle_has_the_hash_of_the_clone(
    bundle: Path, of_clone: list[str], tmp_path: Path
) -> None:
    assert trial(tmp_path, sys.executable, str(bundle)) == of_clone


@pytest.mark.slow
def test_a_run_of_the_wheel_beside_a_user_s_own_data_has_the_hash_of_the_clone(
    fresh_environment: Path, of_clone: list[str], tmp_path: Path
) -> None:
    """The wheel holds one package; in a user's folder lie modules of the names that the clone's packages have."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "__init__.py").write_text("OWNER = 'user'\n")
    (tmp_path / "strategies.py").write_text("OWNER = 'user'\n")
    assert trial(tmp_path, fresh_environment, of_user=True) == of_clone

    (packages,) = fresh_environment.parents[1].glob("lib/python*/site-packages")
    installed = {file.name for file in packages.iterdir() if "dist-info" not in file.name}
    assert installed - {"__pycache__"} == {"fedskew", "bin", "dependencies.pth"}
    commands = python(tmp_path, fresh_environment, EVERY_MODULE, str(packages))
    assert {"fedskew", "fedskew-site"} <= {*commands.split()}


def test_a_site_with_the_wheel_starts_its_supernode(tmp_path: Path) -> None:
    write = runpy.run_path(str(ROOT / "scripts" / "one_package.py"))["write"]
    write(tmp_path)
    # Without the site module Python does not see the clone, whose packages an editable install adds.
    command = [sys.executable, "-I", "-S", "-W", "ignore", "-c", SUPERNODE, str(tmp_path)]
    packages = Path(pytest.__file__).parents[1]
    done = subprocess.run([*command, str(packages)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_only_imports_are_rewritten_in_the_wheel() -> None:
    source = (
        "import data.rules as rules\nfrom data import Rule\n"
        "def f():\n    from client_app.client import (\n        Client,\n    )\n"
        "name = 'data.rules'\nfrom database import x\n"
    )
    expected = source.replace("import data.rules", "import fedskew.data.rules")
    expected = expected.replace("\nfrom data ", "\nfrom fedskew.data ")
    expected = expected.replace("from client_app", "from fedskew.client_app")
    rewritten = runpy.run_path(str(ROOT / "scripts" / "one_package.py"))["rewritten"]
    assert rewritten(source, "x.py") == expected
    assert canonical(expected.encode()) == source.encode()
    with pytest.raises(ValueError):
        rewritten("import data.rules\n", "x.py")
