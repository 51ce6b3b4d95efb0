"""deploy/containers: not root, a health check, and commands that the programs know."""

import json
import re
import runpy
import shutil
from pathlib import Path, PurePosixPath

import pytest
from typer.main import get_command

from fedskew.cli.federation import application
from site_agent.app_files import app_files
from site_agent.cli import application as site_application

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "deploy/containers"
FILES = sorted(FOLDER.glob("Containerfile.*"))
PROGRAMS = {"fedskew": application, "fedskew-site": site_application}


def instructions(text: str) -> list[tuple[str, str]]:
    """Return the instructions of a Containerfile with their arguments, comments and continued lines resolved."""
    kept = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    lines = re.sub(r"\\\n\s*", "", kept).splitlines()
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in lines if line.strip()]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.suffix[1:])
def test_a_containerfile_is_as_an_it_department_wants_it(file: Path) -> None:
    lines = instructions(file.read_text())
    names = [name for name, _ in lines]
    user = names.index("USER")
    assert not re.match(r"(root|0)\b", lines[user][1])
    assert not {"COPY", "ADD", "RUN", "FROM"} & {*names[user:]}, "its user writes nothing"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.suffix[1:])
def test_its_commands_are_commands_of_the_programs(file: Path) -> None:
    lines = dict(instructions(file.read_text()))
    entry = json.loads(lines["ENTRYPOINT"])
    check = json.loads(lines["HEALTHCHECK"].partition("CMD ")[2])
    for words in ([*entry, *json.loads(lines["CMD"])], check):
        program, *rest = words
        if rest[0] == "federation":
            rest = rest[1:]
        command = get_command(PROGRAMS[program])
        name, found, rest = command.resolve_command(command.make_context(program, [*rest]), rest)  # type: ignore[attr-defined]
        found.make_context(name, rest)


def is_copied(name: str) -> bool:
    """Return whether a file of the clone gets into an image: the last line that matches decides."""
    path = PurePosixPath(name)
    copied = True
    for line in (ROOT / ".containerignore").read_text().splitlines():
        pattern = line.removeprefix("!")
        is_anywhere = pattern.startswith("**/") and pattern[3:] in path.parts
        if pattern == "*" or is_anywhere or (pattern and path.is_relative_to(pattern)):
            copied = line.startswith("!")
    return copied


def test_an_image_is_built_from_the_code_and_nothing_else_of_a_clone(tmp_path: Path) -> None:
    for name in (
        "ca.key", "chest/ca.key", "chest/coordinator.key", "node.key", "site/node.key", "sites/north/data.npz",
        "results/run/checkpoint.safetensors", ".git/config", ".venv/bin/python", "client_app/__pycache__/app.pyc",
    ):  # fmt: skip
        assert not is_copied(name), name

    app = app_files(ROOT)
    for name in (
        *app,
        "pyproject.toml",
        ".gitignore",
        "scripts/build_hook.py",
        "scripts/one_package.py",
    ):
        assert is_copied(name), name
        copy = tmp_path / "source" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, copy)
    assert app_files(tmp_path / "source") == app  # the hash that all parties agree to
    script = runpy.run_path(str(tmp_path / "source/scripts/one_package.py"))
    script["write"](tmp_path / "wheel")
    assert (tmp_path / "wheel/fedskew/site_agent/cli.py").is_file()
