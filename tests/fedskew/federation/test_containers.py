"""deploy/containers: not root, a base with a version, a health check, and commands that the programs know."""

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


def faults(text: str) -> list[str]:
    """Return what a reviewer of images would refuse."""
    found = []
    lines = instructions(text)
    for base in (rest.split()[0] for name, rest in lines if name == "FROM"):
        if not re.fullmatch(r"\S+:\d+\.\d+\.\d+[\w.-]*(@sha256:[0-9a-f]{64})?", base):
            found.append(f"the base {base} has no version")
    last = lines[max(number for number, (name, _) in enumerate(lines) if name == "FROM") :]
    users = [rest for name, rest in last if name == "USER"]
    if not users or re.fullmatch(r"(root|0)(:.*)?", users[-1]):
        found.append("it runs as root")
    if not any(name == "HEALTHCHECK" and "CMD [" in rest for name, rest in last):
        found.append("no health check")
    if any(
        name in ("COPY", "ADD", "RUN")
        for name, _ in last[last.index(("USER", users[-1])) :]
        if users
    ):
        found.append("its user writes into the image")
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.suffix[1:])
def test_a_containerfile_is_as_an_it_department_wants_it(file: Path) -> None:
    assert faults(file.read_text()) == []


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        ("USER 10001:10001", "USER root", "it runs as root"),
        ("python:3.12.12-slim-bookworm", "python:latest", "has no version"),
        ("HEALTHCHECK", "LABEL", "no health check"),
    ],
)
def test_a_fault_is_seen(before: str, after: str, fault: str) -> None:
    text = FILES[0].read_text().replace(before, after)
    assert any(fault in found for found in faults(text))


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
