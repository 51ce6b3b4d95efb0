"""The commands of `fedskew federation` for services: `up` to `down`."""

from enum import StrEnum
from typing import Annotated

import typer

from fedskew.cli.federation_options import Folder
from fedskew.cli.terminal import console


class Service(StrEnum):
    """The coordinator's services."""

    superlink = "superlink"
    gateway = "gate"


def up(folder: Folder) -> None:
    """Start SuperLink and gateway, and register the sites. The first time it puts federation.toml into force."""
    from fedskew.federation.agree import proposed, put_into_force
    from fedskew.federation.folder import FederationFolder
    from fedskew.federation.services import up

    federation = FederationFolder(folder)
    if not federation.agreed_file.exists():
        put_into_force(federation, proposed(federation))
    up(federation)
    name = federation.agreement.name
    coordinator = federation.coordinator
    console().print(f"{name}: sites reach it at {coordinator.host}:{coordinator.port}")


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


def down(folder: Folder) -> None:
    """Stop SuperLink, gateway and the processes that they started."""
    from fedskew.federation.folder import FederationFolder
    from fedskew.federation.services import down

    console().print("ended" if down(FederationFolder(folder)) else "nothing was running")
