"""Options that several commands have."""

from pathlib import Path
from typing import Annotated, Any

import typer


def set_option(help: str) -> Any:
    """Return the option `--set KEY=VALUE` of a command. `help` says what it sets."""
    return typer.Option("--set", metavar="KEY=VALUE", help=help)


def method_option(help: str) -> Any:
    """Return the option `--method A,B` of a command."""
    return typer.Option("--method", metavar="A,B", help=help)


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
