"""Options that several commands have, and what a shell completes; nothing here imports torch or flwr."""

from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Annotated, Any

import typer

from fedskew.experiments.entries import defaults
from fedskew.experiments.experiments import known_entries
from server_app.methods import METHODS


def experiments(incomplete: str) -> list[tuple[str, str]]:
    """Return the experiments and suites whose names begin with this text, each with its title."""
    try:
        with redirect_stderr(StringIO()):  # a shell shows no line about the file that is read
            entries = known_entries()
    except (OSError, ValueError):  # the user's file has a mistake, which `run` names
        return []
    return [(name, entry.title) for name, entry in entries.items() if name.startswith(incomplete)]


def settings(incomplete: str) -> list[str]:
    """Return the settings that begin with this text, each with =; after KEY= of a boolean, both values."""
    key, equals, _ = incomplete.partition("=")
    if not equals:
        return [f"{name}=" for name in defaults() if name.startswith(key)]
    values = ["true", "false"] if isinstance(defaults().get(key), bool) else []
    completed = [f"{key}={value}" for value in values]
    return [words for words in completed if words.startswith(incomplete)]


def methods(incomplete: str) -> list[tuple[str, str]]:
    """Return the completions of the last method in a list with commas, each with the method's description."""
    before, comma, last = incomplete.rpartition(",")
    found = [method for name, method in METHODS.items() if name.startswith(last)]
    return [(f"{before}{comma}{method.name}", method.what) for method in found]


def set_option(help: str) -> Any:
    """Return the option `--set KEY=VALUE` of a command. `help` says what it sets."""
    return typer.Option("--set", metavar="KEY=VALUE", help=help, autocompletion=settings)


def method_option(help: str) -> Any:
    """Return the option `--method A,B` of a command."""
    return typer.Option("--method", metavar="A,B", help=help, autocompletion=methods)


Settings = Annotated[list[str] | None, set_option("A setting, as for `fedskew run`.")]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON.")]
ExperimentsFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Your own experiments (default: experiments.yaml)."),
]
RecordsFolder = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Kept records (default: benchmarks/papers).",
    ),
]
