"""Shell completion; it imports neither torch nor flwr."""

from contextlib import redirect_stderr
from io import StringIO
from typing import Any

import typer

from fedskew.experiments.entries import defaults
from fedskew.experiments.lookup import known_entries
from server_app.methods import METHODS


def experiments(incomplete: str) -> list[tuple[str, str]]:
    """Return the experiments and suites whose names begin with this text, each with its title."""
    try:
        with redirect_stderr(StringIO()):  # a shell shows no line about a renamed setting
            entries = known_entries()
    except (OSError, ValueError):  # the user's file has a mistake, which `run` names
        return []
    return [(name, entry.title) for name, entry in entries.items() if name.startswith(incomplete)]


def settings(incomplete: str) -> list[str]:
    """Return the settings that begin with this text, each with =; after KEY= of a boolean, both values."""
    key, equals, value = incomplete.partition("=")
    default_values = defaults()
    if not equals:
        return [f"{name}=" for name in default_values if name.startswith(key)]
    if not isinstance(default_values.get(key), bool):
        return []
    return [f"{key}={word}" for word in ("true", "false") if word.startswith(value)]


def methods(incomplete: str) -> list[tuple[str, str]]:
    """Return the completions of the last method in a list with commas, each with the method's description."""
    before, comma, last = incomplete.rpartition(",")
    return [
        (f"{before}{comma}{name}", method.what)
        for name, method in METHODS.items()
        if name.startswith(last)
    ]


def set_option(help: str) -> Any:
    """Return the option `--set KEY=VALUE` of a command, whose keys a shell completes. `help` says what it sets."""
    return typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help=help,
        autocompletion=settings,
    )
