"""The commands of `fedskew federation` for services and backups: `up` to `down`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fedskew.cli.federation_options import Folder
from fedskew.cli.terminal import console


class Service(StrEnum):
    """The coordinator's services."""

    superlink = "superlink"
    gateway = "gate"


def up(folder: Folder) -> None:
    """Start SuperLink and gateway, and register the sites."""
    from fedskew.federation.folder import FederationFolder
    from fedskew.federation.queue import RunQueue
    from fedskew.federation.services import up

    federation = FederationFolder(folder)
    up(federation)
    name = federation.agreement.name
    coordinator = federation.coordinator
    console().print(f"{name}: sites reach it at {coordinator.host}:{coordinator.port}")
    for number in RunQueue(federation).restart_lost():
        console().print(f"run {number} was lost, and is started again")


def serve(
    folder: Folder,
    service: Annotated[Service, typer.Argument(help="Which of the two.", show_default=False)],
) -> None:
    """Run SuperLink or gateway in the foreground, for systemd."""
    from fedskew.federation.folder import FederationFolder
    from fedskew.federation.services import serve

    serve(FederationFolder(folder), service.value)


def alive(folder: Folder) -> None:
    """Shake hands with the gateway, for a container's health check; exit status 1 if it does not answer."""
    from fedskew.federation.folder import FederationFolder
    from fedskew.federation.services import handshake

    try:
        handshake(FederationFolder(folder))
    except OSError as error:
        console(stderr=True).print(f"the gateway does not answer: {error}")
        raise typer.Exit(1) from None


def register(folder: Folder) -> None:
    """Register the sites of federation.toml, once the SuperLink answers; `up` does it as well."""
    from fedskew.federation.folder import FederationFolder
    from fedskew.federation.services import register

    register(FederationFolder(folder))


def down(folder: Folder) -> None:
    """Stop SuperLink, gateway and the processes that they started."""
    from fedskew.federation.folder import FederationFolder
    from fedskew.federation.services import down

    console().print("ended" if down(FederationFolder(folder)) else "nothing was running")


def backup(
    folder: Folder,
    file: Annotated[Path, typer.Argument(help="The archive, .tar.gz.", show_default=False)],
    results: Annotated[
        Path | None,
        typer.Option(help="The folder of the runs' folders.", show_default="no runs"),
    ] = None,
) -> None:
    """Write the federation's files and its runs into an archive. Keep it as safe as the keys that are in it."""
    from fedskew.federation.backup import backup
    from fedskew.federation.folder import FederationFolder

    federation = FederationFolder(folder)
    number = backup(federation, file, results)
    console().print(f"{file}: {number} files")
    keys = [federation.authority[1]]
    if federation.agreement.run_key:
        keys.append(federation.coordinator_key)
    for key in keys:
        if not key.exists():
            console().print(f"{key.name} is not in it, as it is not in {folder}: keep a copy of it")


def restore(
    file: Annotated[
        Path, typer.Argument(help="The archive that `backup` has written.", show_default=False)
    ],
    folder: Folder,
    results: Annotated[
        Path | None,
        typer.Option(help="The folder for the runs' folders.", show_default="no runs"),
    ] = None,
) -> None:
    """Write the files of a backup into new folders. `up` then starts the federation, and `run` resumes its runs."""
    from fedskew.federation.backup import restore

    federation = restore(file, folder, results)
    coordinator = federation.coordinator
    console().print(
        f"{folder} is federation {federation.agreement.name}. Sites look for it at "
        f"{coordinator.host}:{coordinator.port}; `fedskew federation up {folder}` starts it."
    )
