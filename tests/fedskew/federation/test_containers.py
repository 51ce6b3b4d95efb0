"""deploy/containers: not root, a health check, and commands that the programs know."""

import json
import re
from pathlib import Path

import pytest
from typer.main import get_command

from fedskew.cli.federation import application
from site_agent.cli import application as site_application

FOLDER = Path(__file__).resolve().parents[3] / "deploy/containers"
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
