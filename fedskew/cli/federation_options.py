"""What several commands of `fedskew federation` ask for: the folder, the key that signs runs and its passphrase."""

import os
from pathlib import Path
from typing import Annotated

import typer

from fedskew.federation import PASSPHRASE

Folder = Annotated[
    Path, typer.Argument(help="The federation's folder at its coordinator.", show_default=False)
]
CoordinatorKey = Annotated[
    Path | None,
    typer.Option(
        "--coordinator-key",
        help="File of the key that signs runs.",
        show_default="FOLDER/coordinator.key",
    ),
]


def passphrase(confirm: bool = False) -> str:
    """Return the passphrase of the coordinator's keys: the environment's, or what is typed."""
    given = os.environ.get(PASSPHRASE, "")
    if given:
        return given
    # On stderr: what a command prints may be for a script.
    typed: str = typer.prompt("Passphrase", hide_input=True, confirmation_prompt=confirm, err=True)
    return typed
