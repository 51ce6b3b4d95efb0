"""Imports run one way, and flwr is imported in few files."""

import ast
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ORDER = ("data", "client_app", "strategies", "server_app", "fedskew")
FLOWER = (
    "client_app/app.py", "client_app/messages.py", "strategies/flower.py", "strategies/exchange.py",
    "server_app/app.py", "fedskew/engines/*.py",
)  # fmt: skip
FILES = sorted(file.relative_to(ROOT).as_posix() for package in ORDER for file in (ROOT / package).rglob("*.py"))


def imported(file: str) -> set[str]:
    """Return the first part of every absolute import of a file."""
    names: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / file).read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} imports relatively"
            names.add(node.module or "")
    return {name.split(".")[0] for name in names}


@pytest.mark.parametrize("file", FILES)
def test_imports_run_one_way(file: str) -> None:
    later = ORDER[ORDER.index(file.split("/")[0]) + 1 :]
    assert not imported(file) & {*later, "tests"}


def test_flower_is_imported_in_few_files() -> None:
    importing = [file for file in FILES if "flwr" in imported(file)]
    assert [file for file in importing if not any(fnmatch(file, pattern) for pattern in FLOWER)] == []
    assert len(importing) >= 6
