"""What is imported is declared, and every import of flwr beyond its public modules is named."""

import ast
import importlib.metadata
import re
import sys
import tomllib
from functools import cache
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("data", "client_app", "strategies", "server_app", "site_agent", "fedskew")
PUBLIC = ("flwr.app", "flwr.clientapp", "flwr.serverapp")
PRIVATE = {
    "flwr.cli.app": ["tests/test_docs_commands.py"],
    "flwr.cli.app_cmd.publish": ["tests/test_packaging.py"],
    "flwr.cli.build": [
        "site_agent/flower_internals.py",
        "tests/site_agent/test_app_files.py",
        "tests/test_packaging.py",
    ],
    "flwr.cli.utils": ["tests/test_packaging.py"],
    "flwr.common.config": [
        "fedskew/federation/flower_internals.py",
        "tests/fedskew/engines/test_launcher.py",
    ],
    "flwr.common.constant": ["fedskew/federation/flower_internals.py"],
    "flwr.common.serde": [
        "client_app/flower_internals.py",
        "fedskew/federation/flower_internals.py",
        "tests/client_app/test_client_messages.py",
        "tests/fake_grid.py",
        "tests/fuzz/changes.py",
        "tests/site_agent/test_executor.py",
    ],
    "flwr.proto.control_pb2": ["fedskew/federation/flower_internals.py"],
    "flwr.proto.fleet_pb2": [
        "fedskew/federation/flower_internals.py",
        "site_agent/flower_internals.py",
        "tests/fedskew/federation/test_gateway.py",
        "tests/site_agent/test_online.py",
    ],
    "flwr.proto.heartbeat_pb2": ["site_agent/flower_internals.py"],
    "flwr.proto.message_pb2": [
        "client_app/flower_internals.py",
        "fedskew/federation/flower_internals.py",
        "site_agent/flower_internals.py",
        "tests/fedskew/federation/test_gateway.py",
        "tests/site_agent/test_executor.py",
        "tests/strategies/test_incomplete_replies.py",
    ],
    "flwr.proto.node_pb2": [
        "tests/fedskew/federation/test_gateway.py",
        "tests/strategies/test_incomplete_replies.py",
    ],
    "flwr.proto.recorddict_pb2": ["client_app/flower_internals.py"],
    "flwr.proto.runtime_pb2": [
        "client_app/flower_internals.py",
        "site_agent/flower_internals.py",
        "tests/site_agent/test_executor.py",
        "tests/strategies/test_incomplete_replies.py",
    ],
    "flwr.proto.task_pb2": ["site_agent/flower_internals.py"],
    "flwr.supercore.constant": ["fedskew/federation/flower_internals.py"],
    "flwr.supercore.control": ["fedskew/federation/flower_internals.py"],
    "flwr.supercore.fab": ["fedskew/federation/flower_internals.py"],
    "flwr.supercore.inflatable.inflatable_object": [
        "fedskew/federation/flower_internals.py",
        "tests/client_app/test_client_messages.py",
        "tests/strategies/test_incomplete_replies.py",
    ],
    "flwr.supercore.interceptors": [
        "fedskew/federation/flower_internals.py",
        "site_agent/flower_internals.py",
    ],
    "flwr.supercore.primitives.asymmetric": [
        "fedskew/federation/flower_internals.py",
        "site_agent/flower_internals.py",
    ],
    "flwr.supercore.retry.retry_invoker": ["site_agent/flower_internals.py"],
    "flwr.supercore.runtime": ["site_agent/flower_internals.py"],
    "flwr.supercore.task_identity": [
        "client_app/flower_internals.py",
        "tests/fake_grid.py",
        "tests/site_agent/test_executor.py",
    ],
    "flwr.superlink.grid.http_grid": ["tests/strategies/test_incomplete_replies.py"],
    "flwr.supernode.cli": ["site_agent/flower_internals.py"],
    "flwr.supernode.fleet_http_client": ["site_agent/flower_internals.py"],
    "flwr.supernode.node_auth_http_interceptor": ["site_agent/flower_internals.py"],
    "flwr.supernode.runtime.run_clientapp": ["site_agent/flower_internals.py"],
}
"""What a new release of flwr may move without a word; `make newest` tries the newest one."""


@cache
def modules(file: Path) -> frozenset[str]:
    """Return the modules that a file imports absolutely."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return frozenset(names)


def files(*folders: str) -> list[Path]:
    return sorted(file for folder in folders for file in (ROOT / folder).rglob("*.py"))


def test_every_private_import_of_flwr_is_named() -> None:
    private: dict[str, list[str]] = {}
    for file in files(*PACKAGES, "tests", "benchmarks", "docs", "scripts"):
        for module in modules(file):
            if module.startswith("flwr.") and not any(
                f"{module}.".startswith(f"{name}.") for name in PUBLIC
            ):
                private.setdefault(module, []).append(file.relative_to(ROOT).as_posix())
    assert {module: sorted(users) for module, users in private.items()} == {
        module: sorted(users) for module, users in PRIVATE.items()
    }


def test_what_is_imported_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    stated = [
        *project["dependencies"],
        *(word for words in project["optional-dependencies"].values() for word in words),
    ]
    declared = {plain(re.split(r"[\[<>=!~ ]", word)[0]) for word in stated}
    homes = importlib.metadata.packages_distributions()
    imported = {module.split(".")[0] for file in files(*PACKAGES) for module in modules(file)}
    missing = {
        name
        for name in imported - set(sys.stdlib_module_names) - set(PACKAGES)
        if not {plain(home) for home in homes.get(name, [name, f"{name}-skinny"])} & declared
    }
    assert missing == set()


def test_no_jinja_with_known_advisories_is_admitted() -> None:
    """3.1.6 mends the last way out of its sandbox, CVE-2025-27516."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    stated = [text for texts in extras.values() for text in texts]
    (jinja,) = (Requirement(text) for text in stated if plain(text).startswith("jinja2"))
    assert "3.1.6" in jinja.specifier and "3.1.5" not in jinja.specifier


def plain(distribution: str) -> str:
    """Return a distribution's name as the package index compares it."""
    return re.sub(r"[-_.]+", "-", distribution).lower()
