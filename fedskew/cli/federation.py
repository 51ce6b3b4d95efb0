"""`fedskew federation`: the coordinator's commands, in the order of its help."""

import os
from pathlib import Path
from typing import Annotated

import typer

from data import DataError, DataSettings, SettingError
from data.text import NAMES_RULE, names_in
from fedskew.cli import federation_runs
from fedskew.cli.federation_runs import CoordinatorKey, Folder
from fedskew.formatting import TYPER_SUGGESTS, console

application = typer.Typer(
    help="Commands for the coordinator of a federation between sites.",
    add_completion=False,
    suggest_commands=TYPER_SUGGESTS,
)

# Commands import what they use, so that `--help` and the completion of words wait for none of it.


@application.command()
def new(
    folder: Folder,
    name: Annotated[str, typer.Option(metavar="NAME", help="The federation's name.")],
    address: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where sites reach it.")],
    classes: Annotated[
        str, typer.Option(metavar="A,B", help="The classes in order. Needed without --app.")
    ] = "",
    input_shape: Annotated[
        str,
        typer.Option(metavar="CxHxW", help="Or the number of features. Needed without --app."),
    ] = "",
    columns: Annotated[
        str,
        typer.Option(metavar="A,B", help="A table's input columns, or a file that has them."),
    ] = "",
    mean: Annotated[
        str,
        typer.Option(metavar="X", help="Of the inputs, in place of 0.5 or a table's own."),
    ] = "",
    std: Annotated[
        str,
        typer.Option(metavar="X", help="Of the inputs, in place of 0.5 or a table's own."),
    ] = "",
    min_sites: Annotated[
        int | None,
        typer.Option(metavar="N", min=2, help="Fewest sites in a round (default: over half)."),
    ] = None,
    listen: Annotated[str, typer.Option(metavar="HOST", help="Address to listen on.")] = "0.0.0.0",
    app: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Another Flower app, a folder or .fab.")
    ] = None,
    authority_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The CA's key (default: FOLDER/ca.key).")
    ] = None,
    coordinator_key: CoordinatorKey = None,
) -> None:
    """Create certificates, the key that signs runs, and a federation.toml without sites."""
    from data.readers.user_data import input_columns, kind_of_path
    from fedskew.federation.folder import begin

    column_names = listed("--columns", columns)
    # A list may be longer than a file's name, for which pathlib raises.
    if os.path.isfile(columns):  # noqa: PTH113
        source = f"{kind_of_path(Path(columns))}:{columns}"
        column_names = [*input_columns(source, DataSettings())]
        if not column_names:
            raise SettingError("--columns", columns, "must name input columns")
    input_shape = input_shape or (str(len(column_names)) if column_names else "")
    # Without both, a table's columns are standardized by their sums over all sites: federation.toml has neither.
    is_image = "x" in input_shape.lower()
    if is_image:
        mean, std = mean or "0.5", std or "0.5"
    for option, value in (("--classes", classes), ("--input-shape", input_shape)):
        if app is None and not value:
            raise typer.BadParameter("FedSkew's app needs it", param_hint=option)
    stated = {
        "name": name,
        "classes": listed("--classes", classes),
        "input-shape": input_shape,
        "input-columns": column_names,
        "mean": numbers("--mean", mean),
        "std": numbers("--std", std),
        "min-sites": min_sites,
    }
    agreed = {key: value for key, value in stated.items() if value}
    federation = begin(folder, agreed, address, listen, app, authority_key, coordinator_key)
    out = console()
    text = federation.agreement_file
    out.print(f"{text}: name, classes, shape and the app's hash; sites are added by `add`")
    key = f" --authority-key {authority_key}" if authority_key else ""
    out.print(
        f"{validity(federation.server[0])}; `fedskew federation renew {folder}{key}` makes the next"
    )
    key_file = coordinator_key or federation.coordinator_key
    if key_file.exists():
        out.print(f"{key_file}: signs runs; the SuperLink does not need it")
    else:
        out.print("Its runs are not signed: the app's run config has no run-signature.")
    if input_shape and not is_image and not column_names:
        out.print("Without --columns the order of a table's columns counts at every site.")
    out.print(f"Sites get {text.name} and {federation.authority[0].name}. Nobody gets a .key file.")


@application.command()
def add(
    folder: Folder,
    name: Annotated[str, typer.Argument(help="The site's name.")],
    key: Annotated[
        str,
        typer.Argument(help="The key that `fedskew-site key` printed, or a file with its output."),
    ],
    samples: Annotated[
        int | None,
        typer.Option(min=1, help="Largest number of training samples that the site may state."),
    ] = None,
    mask_key: Annotated[
        str,
        typer.Option(
            help="The key for masked sums that `fedskew-site key` printed.",
            show_default="the one in KEY's file",
        ),
    ] = "",
) -> None:
    """Add a site to federation.toml."""
    from data.toml_file import read_toml
    from fedskew.federation.agree import add_site
    from fedskew.federation.folder import FederationFolder

    entries: dict[str, object] = {"key": key.strip()}
    if os.path.isfile(key):  # noqa: PTH113  # as of `new`'s columns
        match read_toml(Path(key))[1].get("site"):
            case [dict(printed)]:
                entries = printed
            case _:
                rule = "must have one [[site]], as `fedskew-site key` prints it"
                raise DataError(rule, where=key)
    stated: dict[str, object] = {"name": name, "mask-key": mask_key, "samples": samples}
    entries |= {option: value for option, value in stated.items() if value}
    federation = FederationFolder(folder)
    member = add_site(federation, entries)
    out = console()
    out.print(f"{member.name} is in {federation.agreement_file}")
    if federation.agreed_file.exists():
        out.print(f"`fedskew federation agree {folder}` puts it into force.")
    if not member.mask_key:
        out.print(
            f"{member.name} has no mask-key. Give every site one, or none: if only some sites "
            'have one, federation.toml is refused unless it has `sums = "plain"`. Without masks, a '
            "method that uses class counts or feature statistics shows each site's to the coordinator.",
            markup=False,
        )
    if not member.samples:
        out.print(
            f"No sample limit is set for {member.name}: it may report up to a billion training "
            "samples, and is weighted accordingly. `samples` in its [[site]] sets a limit; "
            "`add --samples` writes it.",
            markup=False,
        )


@application.command()
def agree(
    folder: Folder,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Put federation.toml into force as edited, with the app installed here. A removed key is refused at once."""
    from fedskew.engines.processes import LaunchFailed
    from fedskew.federation.agree import proposed, put_into_force
    from fedskew.federation.folder import FederationFolder
    from fedskew.federation.service import register

    federation = FederationFolder(folder)
    proposal = proposed(federation)
    out = console()
    if proposal.difference:
        out.print(proposal.difference.rstrip(), markup=False)
        if proposal.warning:
            out.print(f"Warning: {proposal.warning}.")
        if not yes and not typer.confirm("Agree?"):
            raise typer.Exit(1)
        put_into_force(federation, proposal)
        out.print(
            "Send federation.toml to every site; `fedskew-site approve` shows this difference there. "
            "A site refuses runs of another text than the one that it has approved."
        )
    else:
        out.print("Nothing to change: this text is in force.")
    try:
        register(federation)
    except LaunchFailed:
        out.print("The SuperLink is not up; it will load the site list when it starts.")
    else:
        out.print("The SuperLink now uses the site list.")


@application.command()
def renew(
    folder: Folder,
    authority_key: Annotated[
        Path | None,
        typer.Option(help="File of the CA's private key.", show_default="FOLDER/ca.key"),
    ] = None,
) -> None:
    """Make a new key and certificate for the SuperLink, used from their next start."""
    from fedskew.federation.folder import FederationFolder

    federation = FederationFolder(folder)
    federation.renew(authority_key)
    console().print(validity(federation.server[0]))


@application.command()
def up(folder: Folder) -> None:
    """Start the SuperLink, and register the sites. The first time it puts federation.toml into force."""
    from fedskew.federation.agree import with_text_in_force
    from fedskew.federation.service import up

    federation = with_text_in_force(folder)
    up(federation)
    name = federation.agreement.name
    console().print(f"{name}: sites reach it at {federation.coordinator.address}")


@application.command()
def serve(folder: Folder) -> None:
    """Run the SuperLink in the foreground, for systemd. The first time it puts federation.toml into force."""
    from fedskew.federation.agree import with_text_in_force
    from fedskew.federation.service import serve

    serve(with_text_in_force(folder))


@application.command()
def alive(folder: Folder) -> None:
    """Shake hands on the sites' port, for a container's health check; exit status 1 without an answer."""
    from fedskew.federation.folder import FederationFolder
    from fedskew.federation.service import handshake

    try:
        handshake(FederationFolder(folder))
    except OSError as error:
        console(stderr=True).print(f"the SuperLink does not answer: {error}")
        raise typer.Exit(1) from None


@application.command()
def down(folder: Folder) -> None:
    """Stop the SuperLink and the processes that it started."""
    from fedskew.federation.folder import FederationFolder
    from fedskew.federation.service import down

    console().print("ended" if down(FederationFolder(folder)) else "nothing was running")


for command in (federation_runs.status, federation_runs.run, federation_runs.submit):
    application.command()(command)


def validity(certificate: Path) -> str:
    """Return until when a certificate holds, in words."""
    from fedskew.federation.certificates import read_certificate

    last = read_certificate(certificate).not_valid_after_utc
    return f"{certificate}: holds until {last:%Y-%m-%d}"


def listed(option: str, text: str) -> list[str]:
    """Return the names of a list. Raises SettingError for quotes that do not end."""
    try:
        return [*names_in(text)] if text else []
    except ValueError:
        raise SettingError(option, text, NAMES_RULE) from None


def numbers(option: str, text: str) -> list[float]:
    """Return the numbers of a list. Raises SettingError for a word that is no number."""
    try:
        return [float(word) for word in text.split(",") if text]
    except ValueError:
        raise SettingError(option, text, "must be numbers separated by commas") from None
