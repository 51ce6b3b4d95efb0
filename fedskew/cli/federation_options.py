"""Options and answers that several commands of `fedskew federation` share."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedskew.cli.terminal import console
from fedskew.federation import PASSPHRASE

if TYPE_CHECKING:
    from fedskew.federation.folder import FederationFolder


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


def take_over(folder: "FederationFolder") -> None:
    """Let a SuperLink that is up register the sites of federation.toml, and unregister all others."""
    from fedskew.engines.flower import LaunchFailed
    from fedskew.federation.services import register

    try:
        register(folder)
    except LaunchFailed:
        console().print("The SuperLink is not up; it takes the sites over when it starts.")
    else:
        console().print("Gateway and SuperLink take the sites over now.")
