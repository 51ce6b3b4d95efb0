"""Imports run one way, between packages and inside them, and flwr is imported in few files."""

import ast
import subprocess
import sys
from collections.abc import Mapping
from fnmatch import fnmatch
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ORDER = ("data", "client_app", "site_agent", "strategies", "server_app", "fedskew")
FLOWER = (
    "client_app/app.py", "client_app/messages.py", "client_app/flower_internals.py",
    "strategies/core/flower_adapter.py", "strategies/core/exchange.py",
    "strategies/core/reading.py", "server_app/app.py", "site_agent/executor.py",
    "site_agent/pool.py", "site_agent/flower_app.py", "site_agent/flower_internals.py", "fedskew/engines/local.py",
    "fedskew/engines/ray_server.py",
    "fedskew/federation/flower_internals.py", "fedskew/flower/*.py",
)  # fmt: skip
ENTRY_POINTS = {
    "client_app/app.py": "fedskew.flower.default_actions",
    "server_app/app.py": "fedskew.flower.plain_run",
}
"""The two files that flwr imports by name, and what each may import of a later package.

Their default actions speak flwr's own protocol as any app does that uses fedskew.flower. The import stands in the
functions that need it, so that no other process loads it.
"""
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
BELOW_ITS_ROOM = {"data.readers.catalog"}
"""What is known of the named data sets: it holds the settings up, though it lies with sources."""
BELOW_ALL = {"data.errors", "data.text"}
"""What alone that may import: these import nothing of the package but each other."""


@cache
def nodes(file: Path) -> tuple[ast.AST, ...]:
    """Return every part of a file's syntax tree."""
    return tuple(ast.walk(ast.parse(file.read_text())))


@cache
def imported(file: str) -> set[str]:
    """Return the modules that a file imports, wherever in it, and what it imports from others."""
    names: set[str] = set()
    for node in nodes(ROOT / file):
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


def room(module: str) -> str:
    """Return the file or folder directly below its package that a module lies in; a package's own file is a room."""
    return module if module in BELOW_ITS_ROOM else ".".join(module.split(".")[:2])


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    """Return a circle of a graph, or nothing."""
    try:
        TopologicalSorter({node: targets - {node} for node, targets in graph.items()}).prepare()
    except CycleError as error:
        return [str(node) for node in error.args[1]]
    return []


def test_imports_run_one_way() -> None:
    for file in FILES:
        later = ORDER[ORDER.index(file.split("/")[0]) + 1 :]
        names = imported(file) - {ENTRY_POINTS.get(file, "")}
        assert not packages_of(names) & {*later, "tests"}, file


def test_a_hospital_runs_no_code_of_the_coordinators() -> None:
    """And nothing but the command line, which both share a machine with in a rehearsal, knows the command."""
    for file in FILES:
        package = file.split("/")[0]
        others = packages_of(imported(file)) & {*ORDER}
        assert package != "site_agent" or others <= {"data", "client_app", "site_agent"}
        assert "site_agent" not in others or package in ("site_agent", "fedskew")


def test_the_entry_points_load_no_later_package_when_they_are_imported() -> None:
    words = "import client_app.app, server_app.app, sys; sys.exit('fedskew' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", words], cwd=ROOT).returncode == 0
    assert all(module in imported(file) for file, module in ENTRY_POINTS.items())


def test_flower_is_imported_in_few_files() -> None:
    importing = [file for file in FILES if "flwr" in packages_of(imported(file))]
    assert [
        file for file in importing if not any(fnmatch(file, pattern) for pattern in FLOWER)
    ] == []
    assert len(importing) >= 6


def private_modules_of_flower(file: str) -> set[str]:
    """Return flwr's modules that a file imports and that flwr promises nothing about."""
    names = {name for name in imported(file) if name.split(".")[0] == "flwr"}
    return {name for name in names if ".".join(name.split(".")[:2]) not in FLOWER_PUBLIC}


def test_private_modules_of_flower_are_imported_in_one_file_per_side() -> None:
    """A new release of flwr is then the work of these files."""
    importing = {file for file in FILES if private_modules_of_flower(file)}
    assert importing == {
        "client_app/flower_internals.py",
        "site_agent/flower_internals.py",
        "fedskew/federation/flower_internals.py",
    }


def test_no_two_modules_import_each_other_however_far_around() -> None:
    assert (
        circle({module: imported(file) & MODULES.keys() for module, file in MODULES.items()}) == []
    )


@pytest.mark.parametrize("package", ORDER)
def test_imports_between_the_rooms_of_a_package_form_no_circle(package: str) -> None:
    inside = {module: file for module, file in MODULES.items() if module.split(".")[0] == package}
    graph: dict[str, set[str]] = {}
    for module, file in inside.items():
        graph.setdefault(room(module), set()).update(
            room(name) for name in imported(file) & inside.keys()
        )
    assert circle(graph) == []
    for module in (BELOW_ITS_ROOM | BELOW_ALL) & graph.keys():
        assert graph[module] <= BELOW_ALL


def test_a_circle_is_seen() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}}) and not circle(
        {"a": {"b", "a"}, "b": {"c"}}
    )


def test_what_only_stands_between_or_looks_loads_no_torch() -> None:
    """A gateway of 690 MB, and 4 seconds for a node's key, were the price."""
    modules = "fedskew.federation.gateway, fedskew.federation.services, fedskew.cli.federation, site_agent.cli"
    modules += ", fedskew.cli.diagnose"  # a table needs none
    words = f"import {modules}, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", words], cwd=ROOT).returncode == 0


def test_a_plan_and_its_cost_need_neither_flwr_nor_torchvision_nor_torch_s_compiler() -> None:
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
    ended = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "1 run, 0 of them finished" in ended.stdout
    assert ended.stdout.splitlines()[-1] == ""
