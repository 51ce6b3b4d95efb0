"""The commands of `fedskew federation` for services: `up` to `down`."""

import typer

from fedskew.cli.federation_options import Folder
from fedskew.cli.terminal import console


def up(folder: Folder) -> None:
    """Start the SuperLink, and register the sites. The first time it puts federation.toml into force."""
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


def serve(folder: Folder) -> None:
    """Run the SuperLink in the foreground, for systemd."""
    from fedskew.federation.folder import FederationFolder
    from fedskew.federation.services import serve

    serve(FederationFolder(folder))


def alive(folder: Folder) -> None:
    """Shake hands on the sites' port, for a container's health check; exit status 1 without an answer."""
    from fedskew.federation.folder import FederationFolder
    from fedskew.federation.services import handshake

    try:
        handshake(FederationFolder(folder))
    except OSError as error:
        console(stderr=True).print(f"the SuperLink does not answer: {error}")
        raise typer.Exit(1) from None


def down(folder: Folder) -> None:
    """Stop the SuperLink and the processes that it started."""
    from fedskew.federation.folder import FederationFolder
    from fedskew.federation.services import down

    console().print("ended" if down(FederationFolder(folder)) else "nothing was running")
