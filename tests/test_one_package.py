"""The wheel is one package, beside a user's own `data` and `strategies`; its code hash is the clone's."""

import os
import runpy
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from built_wheel import built_wheel

from client_app.process import code_version
from data.package_files import canonical, sources

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "one_package.py"))
PACKAGES = ("client_app", "data", "fedskew", "server_app", "site_agent", "strategies")
OPTIONAL = ("fedskew.__main__", "fedskew.site_agent.__main__", "fedskew.server_app.wandb_tracker")
"""Modules that run when they are imported, or that need a package of an extra."""
RUN = """
{"method": "creff+fedshift", "model": "mlp-bn", "clients": 2, "rounds": 1, "local-epochs": 1, "device": "cpu",
 "train-images": 60, "test-images": 40, "results": "out", "creff.head-steps": 2, "creff.feature-steps": 2}
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the wheel's package is written into."""
    folder = tmp_path_factory.mktemp("installed")
    SCRIPT["write"](folder)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's folder, with modules of the names that FedSkew's packages have in a clone."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "__init__.py").write_text("OWNER = 'user'\n")
    (tmp_path / "strategies.py").write_text("OWNER = 'user'\n")
    return tmp_path


def python(folder: Path, place: Path, code: str, *options: str) -> str:
    """Return what a Python prints that finds FedSkew in `place` and begins in the user's folder."""
    (folder / "main.py").write_text(code)
    environment = {**os.environ, "PYTHONPATH": str(place), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *options, "-W", "ignore", "main.py"]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_run_of_the_package_has_the_hash_of_the_clone(package: Path, folder: Path) -> None:
    code = (
        "import fedskew\nfrom fedskew.client_app.process import code_version\n"
        "import data, strategies, sys\nassert data.OWNER == strategies.OWNER == 'user'\n"
        "from fedskew.experiments.experiments import load_experiments\n"
        f"print(code_version(*{PACKAGES}), fedskew.run({RUN.strip()}).hash, len(load_experiments()))\n"
        "inner = [m for m in sys.modules if m.split('.')[0] in ('client_app', 'server_app', 'site_agent')]\n"
        "assert not inner, inner\n"
    )
    installed = python(folder, package, code).split()
    clone = folder / "clone"
    clone.mkdir()
    code = code.replace("fedskew.client_app", "client_app")
    in_clone = "\n".join(
        line for line in code.splitlines() if "OWNER" not in line and "inner" not in line
    )
    assert installed == python(clone, ROOT, in_clone).split()
    assert installed[0] == code_version(*PACKAGES)


@pytest.mark.slow
def test_every_module_of_the_package_is_imported_from_it(package: Path, folder: Path) -> None:
    code = (
        "import importlib, pkgutil, sys, fedskew\n"
        "for module in pkgutil.walk_packages(fedskew.__path__, 'fedskew.'):\n"
        f"    if module.name not in {OPTIONAL}:\n"
        "        importlib.import_module(module.name)\n"
        "import fedskew.flower, fedskew.methods\n"
        "for module in (fedskew.flower, fedskew.methods):\n"
        "    for name in module.__all__:\n"
        "        getattr(module, name)\n"
        "names = {m.split('.')[0] for m in sys.modules}\n"
        "print(sorted(names & {'client_app', 'data', 'server_app', 'site_agent', 'strategies'}))\n"
        f"places = [m.__file__ for n, m in sys.modules.items() if n.split('.')[0] == 'fedskew']\n"
        f"assert all(place.startswith({str(package)!r}) for place in places)\n"
        "print(len(places))\n"
    )
    names, modules = python(folder, package, code).splitlines()
    assert names == "[]" and int(modules) > 250


def test_both_commands_start_from_the_package(package: Path, folder: Path) -> None:
    code = "import sys; sys.argv = ['fedskew', 'list', 'methods']\nfrom fedskew.cli.main import main; main()\n"
    assert "fedshift" in python(folder, package, code)
    code = "import sys; sys.argv = ['fedskew-site', '--help']\nfrom fedskew.site_command import main; main()\n"
    assert "preflight" in python(folder, package, code) or "run" in python(folder, package, code)


def test_only_imports_are_rewritten() -> None:
    source = (
        '"""from data import this is prose."""\n'
        "import data.rules as rules\nfrom data import Rule\n"
        "def f():\n    from client_app.client import (\n        Client,\n    )\n"
        "name = 'data.rules'\nfrom database import x\n"
    )
    expected = (
        '"""from data import this is prose."""\n'
        "import fedskew.data.rules as rules\nfrom fedskew.data import Rule\n"
        "def f():\n    from fedskew.client_app.client import (\n        Client,\n    )\n"
        "name = 'data.rules'\nfrom database import x\n"
    )
    assert SCRIPT["rewritten"](source, "x.py") == expected
    assert canonical(expected.encode()) == source.encode()
    with pytest.raises(ValueError, match=r"x.py:1: write `from ... import` for data.rules"):
        SCRIPT["rewritten"]("import data.rules\n", "x.py")


def test_the_canonical_sources_of_a_clone_are_its_files() -> None:
    found = sources("strategies")
    assert set(found) == {
        path.relative_to(ROOT).as_posix() for path in (ROOT / "strategies").rglob("*.py")
    }
    assert found["strategies/creff.py"] == (ROOT / "strategies" / "creff.py").read_bytes()


@pytest.mark.slow
def test_the_wheel_holds_that_package_alone(tmp_path: Path, package: Path) -> None:
    """Built by pip with hatchling, from a copy of the files that git knows."""
    pytest.importorskip("hatchling")
    wheel = built_wheel(tmp_path)
    names = [name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name]
    written = {
        file.relative_to(package).as_posix()
        for file in package.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert set(names) == written
    scripts = zipfile.ZipFile(wheel).read(
        next(n for n in zipfile.ZipFile(wheel).namelist() if "entry_points" in n)
    )
    assert b"fedskew-site = fedskew.site_command:main" in scripts
