"""Imports run one way without a circle, what is imported is declared, and no command loads more than it needs."""

import ast
import importlib.metadata
import itertools
import re
import subprocess
import sys
import tomllib
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from only_core import plain

ROOT = Path(__file__).resolve().parents[1]
ORDER = ("data", "client_app", "site_agent", "strategies", "server_app", "fedskew")
FLOWER_PUBLIC = {"flwr.app", "flwr.clientapp", "flwr.serverapp"}
"""The modules of flwr that its documentation lists; any other may change with a release."""
FILES = sorted(
    file.relative_to(ROOT).as_posix()
    for package in ORDER
    for file in (ROOT / package).rglob("*.py")
)
MODULES = {
    file.removesuffix(".py").removesuffix("/__init__").replace("/", "."): file for file in FILES
}


@cache
def imported(file: str) -> set[str]:
    """Return the modules that a file imports, wherever in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / file).read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{file} imports relatively"
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= inside & MODULES.keys() or {node.module}
    return names


def packages_of(names: set[str]) -> set[str]:
    """Return the first part of every module's name."""
    return {name.split(".")[0] for name in names}


def test_imports_run_one_way() -> None:
    for file in FILES:
        later = ORDER[ORDER.index(file.split("/")[0]) + 1 :]
        assert not packages_of(imported(file)) & {*later, "tests"}, file


def test_a_hospital_runs_no_code_of_the_coordinators() -> None:
    """And only the command, which shares a machine with it in a rehearsal, knows the site's package."""
    for file in FILES:
        package = file.split("/")[0]
        others = packages_of(imported(file)) & {*ORDER}
        assert package != "site_agent" or others <= {"data", "client_app", "site_agent"}, file
        assert "site_agent" not in others or package in ("site_agent", "fedskew"), file


def test_no_two_modules_import_each_other_however_far_around() -> None:
    graph = {
        module: (imported(file) & MODULES.keys()) - {module} for module, file in MODULES.items()
    }
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def test_private_modules_of_flower_are_imported_in_one_file_per_side() -> None:
    """A new release of flwr is then the work of these files."""
    importing = set()
    for file in FILES:
        of_flower = [name for name in imported(file) if name.split(".")[0] == "flwr"]
        if any(".".join(name.split(".")[:2]) not in FLOWER_PUBLIC for name in of_flower):
            importing.add(file)
    assert importing == {
        "client_app/flower_internals.py",
        "site_agent/flower_internals.py",
        "fedskew/federation/flower_internals.py",
    }


def test_what_is_imported_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    stated = [*project["dependencies"], *itertools.chain.from_iterable(extras)]
    declared = {plain(re.split(r"[\[<>=!~ ]", word)[0]) for word in stated}
    homes = importlib.metadata.packages_distributions()
    names = set().union(*(packages_of(imported(file)) for file in FILES))
    missing = {
        name
        for name in names - sys.stdlib_module_names - {*ORDER}
        if not {plain(home) for home in homes.get(name, [name, f"{name}-skinny"])} & declared
    }
    assert missing == set()


def test_what_only_stands_between_or_looks_loads_no_torch() -> None:
    """A service of 690 MB, and 4 seconds for a node's key, were the price."""
    script = """
import sys
import fedskew.federation.door, fedskew.federation.service, fedskew.cli.federation, site_agent.cli
import fedskew.cli.diagnose  # a table needs none
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_plan_needs_neither_flwr_nor_torchvision_nor_torch_s_compiler() -> None:
    """They took three quarters of the time of `fedskew run creff-table1 --dry-run`."""
    script = """
import sys
from fedskew.cli.main import main
sys.argv = "fedskew run creff-table1 --row fedprox --seed 0 --dry-run --column".split()
sys.argv.append("CIFAR-10 IF 100")
try:
    main()
except SystemExit as ended:
    assert not ended.code, ended.code
print(*[name for name in ("flwr", "torchvision", "torch._dynamo", "scipy") if name in sys.modules])
"""
    command = [sys.executable, "-c", script]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "1 run without observed rounds" in ended.stdout
    assert ended.stdout.splitlines()[-1] == ""
