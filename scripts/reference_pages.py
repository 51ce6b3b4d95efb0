"""Write docs/reference/cli.md and docs/reference/settings.md from the code: python scripts/reference_pages.py.

`make config` runs this. A test fails while the pages differ from the code.
"""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import typer

from data import Settings
from fedskew.cli.application import COMMANDS, loaded
from server_app.settings import explanations, groups
from site_agent.cli import application as site_application

REFERENCE = Path(__file__).resolve().parents[1] / "docs" / "reference"
NOTE = "<!-- Written by scripts/reference_pages.py; `make config` runs it. Do not edit. -->\n"
GROUP_HEADINGS = {
    "GeneralSettings": "The run",
    "ModelSettings": "The model",
    "DataSettings": "Data and partition",
    "TrainingSettings": "Local training",
    "ExchangeSettings": "Server and clients",
}
OF_METHODS = "Parts of methods"
UNSAID = ("a finite number", "at least 0")
"""Rules that every number follows where its row says nothing else."""

SHARED = "Options of several commands"
SHARED_BY = 3
"""From this many commands with the same words about it, an option stands in the table of shared ones."""

CLI_HEAD = """\
Look here for a command's arguments; `fedskew COMMAND --help` prints the same. `fedskew` is for the researcher and
for the coordinator of a federation, `fedskew-site` for a hospital.

Exit status: 0 for complete success, 1 where something failed, 2 for bad input, 130 after a signal.
"""
SETTINGS_HEAD = """\
Look here before you set a key: each stands with its default. Set it with `fedskew run --set KEY=VALUE`, in
`experiments.yaml`, with `fedskew.run({key: value})` or with `flwr run . --run-config`.

A default such as 20 takes whole numbers, 1.0 any number: from 0, if no other rule stands in parentheses. A key with a
dot belongs to a part of a method ([methods](methods.md)) and is refused without that part. flwr's run config has two
keys more, `readiness` and `run-signature`, which `fedskew federation` uses.
"""


def one_line(text: str | None) -> str:
    """Return a docstring or help text without line breaks."""
    return " ".join((text or "").split())


def row(*cells: str) -> str:
    """Return a row of a table; a bar in a cell is escaped."""
    escaped = [cell.replace("|", r"\|") for cell in cells]
    return f"| {' | '.join(escaped)} |"


def commands() -> Iterator[tuple[str, click.Command]]:
    """Yield every command of `fedskew` and of `fedskew-site` with its name."""
    named = {f"fedskew {name}": loaded(name) for name in COMMANDS}
    named["fedskew-site"] = typer.main.get_command(site_application)
    for name, command in named.items():
        if isinstance(command, click.Group):
            yield from ((f"{name} {below}", one) for below, one in command.commands.items())
        else:
            yield name, command


def parameter_line(parameter: click.Parameter) -> str:
    """Return the line of an argument or option: how it is spelled, its values, what it does and its default."""
    help_text = one_line(getattr(parameter, "help", None))
    value = parameter.metavar or choices(parameter.type) or parameter.type.name.upper()
    if not isinstance(parameter, click.Option):
        return f"* `{argument(parameter)}`: {help_text} {choices(parameter.type)}".strip()
    spelling = parameter.opts[0] if parameter.is_flag else f"{parameter.opts[0]} {value}"
    if parameter.multiple:
        spelling += " ..."
    default = parameter.default
    if default not in (None, False, "") and not callable(default) and "efault" not in help_text:
        help_text += f" Default: {default}."
    return f"* `{spelling}`: {help_text}"


def choices(kind: click.ParamType) -> str:
    """Return the values of a choice."""
    if not isinstance(kind, click.Choice):
        return ""
    return "|".join(str(getattr(choice, "value", choice)) for choice in kind.choices)


def argument(parameter: click.Parameter) -> str:
    """Return an argument's name as a usage line shows it."""
    name = (parameter.metavar or parameter.name or "").upper()
    name += "..." if parameter.nargs == -1 else ""
    return name if parameter.required else f"[{name}]"


def usage(name: str, command: click.Command) -> str:
    """Return a command with its arguments and the options that it requires."""
    words = [name]
    for one in command.params:
        if not isinstance(one, click.Option):
            words.append(argument(one))
        elif one.required:
            words.append(f"{one.opts[0]} {one.metavar or one.type.name.upper()}")
    return " ".join(words)


def cli_page() -> str:
    """Return docs/reference/cli.md."""
    found = list(commands())
    counts = Counter(parameter_line(one) for _, command in found for one in command.params)
    shared = [line for line, count in counts.items() if count >= SHARED_BY]
    page = ["# Commands\n", NOTE, CLI_HEAD, f"## {SHARED}\n", *sorted(shared), ""]
    for name, command in found:
        page += [f"## {name}\n", f"`{usage(name, command)}`: {one_line(command.help)}"]
        rows = {parameter_line(one): one for one in command.params}
        also = [
            one.opts[0] for line, one in rows.items() if line in shared and one.opts[0] != "folder"
        ]
        if also:
            page.append(f"Also `{'`, `'.join(also)}`.")
        own = [line for line in rows if line not in shared]
        page += ["", *own, ""] if own else [""]
    return "\n".join(page).rstrip() + "\n"


def rules_of(group: type[Settings], field: str, meaning: str) -> str:
    """Return the rules of one field in words, but for a list of values that its meaning names anyway."""
    found = []
    for rule in group.rules[field]:
        words = rule.words.removeprefix("must be ")
        listed = words.removeprefix("one of ").replace(" or ", ", ").split(", ")
        if words not in UNSAID and not all(value in meaning for value in listed):
            found.append(words)
    return f" ({'; '.join(found)})" if found else ""


def setting_row(group: type[Settings], name: str, default: Any, meaning: str) -> str:
    """Return a setting's row; its default is written as `--set` takes it."""
    text = default if isinstance(default, str) else json.dumps(default)
    return row(f"`{group.key(name)}={text}`", meaning + rules_of(group, name, meaning))


def settings_page() -> str:
    """Return docs/reference/settings.md."""
    meanings = explanations()
    page = ["# Settings\n", NOTE, SETTINGS_HEAD]
    section = ""
    for group in groups():
        heading = GROUP_HEADINGS.get(group.__name__, OF_METHODS)
        if heading != section:
            page += [""] if section else []
            page += [f"## {heading}\n", "| key and default | what it does |", "|---|---|"]
            section = heading
        for field in fields(group):
            meaning = meanings[group.key(field.name)]
            page.append(setting_row(group, field.name, field.default, meaning))
    return "\n".join(page).rstrip() + "\n"


PAGES = {REFERENCE / "cli.md": cli_page, REFERENCE / "settings.md": settings_page}


if __name__ == "__main__":
    for file, text in PAGES.items():
        file.write_text(text())
