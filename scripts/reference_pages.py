"""Write docs/reference/cli.md and docs/reference/settings.md from the code: python scripts/reference_pages.py.

`make config` runs this. A test fails while the pages differ from the code.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_type_hints

import click
import typer

from data import Settings
from fedskew.cli.application import COMMANDS, loaded
from server_app.settings import explanations, groups
from site_agent.cli import application as site_application

REFERENCE = Path(__file__).resolve().parents[1] / "docs" / "reference"
REMEDY = "python scripts/reference_pages.py writes it"
NOTE = "<!-- Written by scripts/reference_pages.py; `make config` runs it. Do not edit. -->\n"
GROUP_HEADINGS = {
    "GeneralSettings": "The run",
    "ModelSettings": "The model",
    "DataSettings": "Data and partition",
    "TrainingSettings": "Local training",
    "ExchangeSettings": "Server and clients",
}
TYPE_NAMES = {bool: "true or false", int: "integer", float: "number", str: "text"}


@dataclass(frozen=True)
class Parameter:
    """One argument or option of a command."""

    spelling: str
    value: str
    default: str
    help: str
    required: bool
    is_option: bool


@dataclass(frozen=True)
class Command:
    """One command, as its page shows it."""

    name: str
    description: str
    parameters: list[Parameter]

    @property
    def usage(self) -> str:
        """Return the command with what it requires; optional arguments stand in brackets."""
        words = [self.name]
        if any(parameter.is_option and not parameter.required for parameter in self.parameters):
            words.append("[OPTIONS]")
        for parameter in self.parameters:
            if parameter.is_option and parameter.required:
                words.append(f"{parameter.spelling} {parameter.value}")
            elif not parameter.is_option:
                words.append(
                    parameter.spelling if parameter.required else f"[{parameter.spelling}]"
                )
        return " ".join(words)


def one_line(text: str | None) -> str:
    """Return a docstring or help text without line breaks."""
    return " ".join((text or "").split())


def from_click(command: click.Command, name: str) -> Iterator[Command]:
    """Yield a click command, or the commands of a group."""
    if command.hidden:  # an old name, which works for one more release
        return
    if isinstance(command, click.Group):
        for below in command.commands.values():
            yield from from_click(below, f"{name} {below.name}")
        return
    parameters = [click_parameter(one) for one in command.params if not getattr(one, "hidden", 0)]
    yield Command(name, one_line(command.help), parameters)


def click_parameter(parameter: click.Parameter) -> Parameter:
    """Return what one of click's parameters says about itself."""
    is_option = isinstance(parameter, click.Option)
    if is_option:
        spelling = ", ".join([*parameter.opts, *parameter.secondary_opts])
    else:
        spelling = (parameter.metavar or parameter.name or "").upper()
        spelling += "..." if parameter.nargs == -1 else ""
    is_flag = is_option and parameter.is_flag
    value = "" if is_flag else parameter.metavar or click_value(parameter.type)
    if not is_option and not isinstance(parameter.type, click.Choice):
        value = ""  # its own name says what it is
    if is_option and parameter.multiple:
        value += ", repeatable"
    default = parameter.default
    shown = "" if default in (None, False, "") or callable(default) else str(default)
    return Parameter(
        spelling=spelling,
        value=value,
        default=shown,
        help=one_line(getattr(parameter, "help", None)),
        required=parameter.required,
        is_option=is_option,
    )


def click_value(kind: click.ParamType) -> str:
    """Return which values a type of click's takes."""
    if isinstance(kind, click.Choice):
        return ", ".join(str(getattr(choice, "value", choice)) for choice in kind.choices)
    if isinstance(kind, click.IntRange | click.FloatRange):
        name = "integer" if isinstance(kind, click.IntRange) else "number"
        return name if kind.min is None else f"{name}, at least {kind.min}"
    return {"text": "TEXT", "path": "PATH", "integer": "integer", "float": "number"}[kind.name]


def commands() -> list[Command]:
    """Return every command of `fedskew` and of `fedskew-site`."""
    found: list[Command] = []
    for name in COMMANDS:
        found.extend(from_click(loaded(name), f"fedskew {name}"))
    site_commands = typer.main.get_command(site_application)
    return [*found, *from_click(site_commands, "fedskew-site")]


def cell(text: str) -> str:
    """Return a text as a cell of a table can hold it."""
    return text.replace("|", r"\|")


def code(text: str) -> str:
    """Return a text as code, or nothing."""
    return f"`{cell(text)}`" if text else ""


def cli_page() -> str:
    """Return docs/reference/cli.md."""
    page = [
        "# Commands\n",
        NOTE,
        "`fedskew` is for the researcher and for the coordinator of a federation. `fedskew-site` is for a hospital.",
        "`fedskew COMMAND --help` prints the same. `fedskew --version` prints the version.",
        "[settings.md](settings.md) lists what `--set KEY=VALUE` can change.\n",
        "Exit status: 0 for complete success, 1 where something failed, 2 for bad input, 130 after a signal.\n",
    ]
    for command in commands():
        page += [f"## {command.name}\n", f"{command.description}\n"]
        page += ["```text", command.usage, "```\n"]
        if command.parameters:
            page += ["| argument or option | value | default | what it does |", "|---|---|---|---|"]
        for one in command.parameters:
            needed = " (required)" if one.required and one.is_option else ""
            cells = [code(one.spelling) + needed, cell(one.value), code(one.default)]
            page.append(f"| {' | '.join([*cells, cell(one.help)])} |")
        page.append("")
    return "\n".join(page).rstrip() + "\n"


def rules_of(group: type[Settings], field: str) -> str:
    """Return the rules of one field in words; that a number is finite goes without saying."""
    words = [rule.words for rule in group.rules[field] if rule.words != "must be a finite number"]
    return "; ".join(word.removeprefix("must be ") for word in words)


def shown_default(value: Any) -> str:
    """Return a default as `--set` takes it."""
    return value if isinstance(value, str) else json.dumps(value)


def settings_page() -> str:
    """Return docs/reference/settings.md."""
    meaning = explanations()
    page = [
        "# Settings\n",
        NOTE,
        "Set them with `fedskew run --set KEY=VALUE`, in `experiments.yaml`, with `fedskew.run({key: value})` from",
        "Python, or with `flwr run . --run-config`. `fedskew list settings` prints this list.\n",
        "A setting with a dot belongs to one part of a method. It is refused if the method does not use that part.",
        "A wrong key, type or value ends the command with one sentence that names the key, the value and the rule.",
        "Rules about several settings together are checked as well; they are not in these tables.\n",
        "flwr's run config has two keys more, which are no settings and change no run id: `readiness` and",
        "`run-signature`, which `fedskew federation` uses.\n",
    ]
    for group in groups():
        heading = GROUP_HEADINGS.get(group.__name__) or group.name
        types = get_type_hints(group)
        rows = [
            (
                code(group.key(field.name)),
                TYPE_NAMES[types[field.name]],
                code(shown_default(field.default)) or "(empty)",
                cell(rules_of(group, field.name)),
                cell(meaning[group.key(field.name)]),
            )
            for field in fields(group)
        ]
        if not rows:
            continue
        page += [f"## {heading}\n", one_line((group.__doc__ or "").split("\n\n")[0]) + "\n"]
        page += ["| key | type | default | rule | what it does |", "|---|---|---|---|---|"]
        page += [f"| {' | '.join(row)} |" for row in rows]
        page.append("")
    return "\n".join(page).rstrip() + "\n"


PAGES = {REFERENCE / "cli.md": cli_page, REFERENCE / "settings.md": settings_page}


if __name__ == "__main__":
    for file, text in PAGES.items():
        file.write_text(text())
