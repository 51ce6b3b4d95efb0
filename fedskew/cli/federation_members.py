"""The commands of `fedskew federation` that write federation.toml and its keys: `new` to `renew`."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from data import DataError, DataSettings, SettingError, require
from data.text import NAMES_RULE, any_number, names_in
from fedskew.cli.federation_options import Folder
from fedskew.cli.terminal import console

# Commands import what they use, so that `--help` and the completion of words wait for none of it.
if TYPE_CHECKING:
    from fedskew.federation.folder import FederationFolder


def new(
    folder: Folder,
    name: Annotated[str, typer.Option(help="The federation's name.")],
    address: Annotated[str, typer.Option(help="HOST:PORT at which sites reach it.")],
    classes: Annotated[
        str,
        typer.Option(
            help="The classes' names in order, separated by commas. Needed without --app.",
            show_default=False,
        ),
    ] = "",
    input_shape: Annotated[
        str,
        typer.Option(
            help="CHANNELSxHEIGHTxWIDTH, or a number of features. Needed without --app and --columns.",
            show_default=False,
        ),
    ] = "",
    columns: Annotated[
        str,
        typer.Option(
            help="A table's input columns in order, separated by commas, or a CSV or npz file that names them.",
            show_default=False,
        ),
    ] = "",
    mean: Annotated[
        str,
        typer.Option(
            help="Mean of the inputs, one number or one per channel; "
            "default: 0.5 on the scale 0..1 of images; of a table that of each column over all sites.",
            show_default=False,
        ),
    ] = "",
    std: Annotated[
        str,
        typer.Option(
            help="Standard deviation of the inputs; default: 0.5 for images; of a table that of each column over all "
            "sites.",
            show_default=False,
        ),
    ] = "",
    min_sites: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Smallest number of sites in a round.",
            show_default="more than half of the sites",
        ),
    ] = None,
    listen: Annotated[str, typer.Option(help="Address to listen on for sites.")] = "0.0.0.0",
    app: Annotated[
        Path | None,
        typer.Option(help="Another Flower app, a folder or .fab.", show_default="FedSkew's"),
    ] = None,
    authority_key: Annotated[
        Path | None,
        typer.Option(
            help="File for the CA's private key, for example on an offline USB stick.",
            show_default="FOLDER/ca.key",
        ),
    ] = None,
    coordinator_key: Annotated[
        Path | None,
        typer.Option(
            help="File for the key that signs runs, as on another machine.",
            show_default="FOLDER/coordinator.key",
        ),
    ] = None,
) -> None:
    """Create certificates, the key that signs runs, and a federation.toml without sites."""
    from fedskew.federation.certificates import read_certificate
    from fedskew.federation.coordinator_key import DECLARED
    from fedskew.federation.folder import begin

    column_names = columns_in(columns)
    if column_names and not input_shape:
        input_shape = str(len(column_names))
    # Without both, a table's columns are standardized by their sums over all sites: federation.toml has neither.
    is_table = "x" not in input_shape.lower()
    if mean or std or not is_table:
        mean = mean or ("0" if is_table else "0.5")
        std = std or ("1" if is_table else "0.5")
    for option, value in (("--classes", classes), ("--input-shape", input_shape)):
        if app is None and not value:
            raise typer.BadParameter("FedSkew's app needs it", param_hint=option)
    class_names = names("--classes", classes) if classes else ()
    federation = begin(
        folder,
        name=name,
        classes=class_names,
        shape=input_shape,
        mean=numbers("--mean", mean) if mean else (),
        std=numbers("--std", std) if std else (),
        min_sites=min_sites,
        address=address,
        listen=listen,
        app=app,
        authority_key=authority_key,
        coordinator_key=coordinator_key,
        columns=column_names,
    )
    agreement = federation.agreement_file
    certificate = federation.server[0]
    last = read_certificate(certificate).not_valid_after_utc
    renew = f"`fedskew federation renew {folder}` makes the next"
    if authority_key is not None:
        renew += f" with --authority-key {authority_key}"
    out = console()
    out.print(f"{agreement}: name, classes, shape and the app's hash; sites are added by `add`")
    out.print(f"{certificate}: holds until {last:%Y-%m-%d}; {renew}")
    key_file = coordinator_key or federation.coordinator_key
    if key_file.exists():
        out.print(f"{key_file}: signs runs; the SuperLink does not need it")
    else:
        out.print(
            f"Its runs are not signed: the app has no {DECLARED} under [tool.flwr.app.config].",
            markup=False,
        )
    if input_shape and is_table and not column_names:
        out.print(
            f"{agreement.name} names no input columns, so their order counts at every site: --columns names them.",
            markup=False,
        )
    handed_out = f"{agreement.name} and {federation.authority[0].name}"
    out.print(f"Sites get {handed_out}. Nobody gets a .key file.")


def add(
    folder: Folder,
    name: Annotated[str, typer.Argument(help="The site's name.")],
    key: Annotated[
        str,
        typer.Argument(help="The key that `fedskew-site key` printed, or a file with its output."),
    ],
    samples: Annotated[
        int | None,
        typer.Option(help="Largest number of training samples that the site may state."),
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
    from fedskew.federation.folder import FederationFolder, add_site

    site_key, printed_mask_key, printed_samples = printed_keys(key)
    samples = samples if samples is not None else printed_samples
    mask_key = mask_key or printed_mask_key
    federation = FederationFolder(folder)
    member = add_site(federation, name, site_key, samples, mask_key)
    console().print(f"{member.name} is in {federation.agreement_file}")
    if federation.agreed_file.exists():
        console().print(f"`fedskew federation agree {folder}` puts it into force.")
    if not member.mask_key:
        console().print(
            f"{member.name} has no mask-key. Give every site one, or none: if only some sites "
            'have one, federation.toml is refused unless it has `sums = "plain"`. Without masks, a '
            "method that uses class counts or feature statistics shows each site's to the coordinator.",
            markup=False,
        )
    if not member.samples:
        console().print(
            f"No sample limit is set for {member.name}: it may report up to a billion training "
            "samples, and is weighted accordingly. `samples` in its [[site]] sets a limit; "
            "`add --samples` writes it.",
            markup=False,
        )


def agree(
    folder: Folder,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Put federation.toml into force as edited, with the app installed here. A removed key is refused at once."""
    from fedskew.federation.agree import proposed, put_into_force
    from fedskew.federation.folder import FederationFolder

    federation = FederationFolder(folder)
    proposal = proposed(federation)
    out = console()
    if not proposal.difference:
        out.print("Nothing to change: this text is in force.")
        reload_sites(federation)
        return
    out.print(proposal.difference.rstrip(), markup=False)
    if proposal.warning:
        out.print(f"Warning: {proposal.warning}.")
    if not yes and not typer.confirm("Agree?"):
        raise typer.Exit(1)
    put_into_force(federation, proposal)
    reload_sites(federation)
    out.print(
        "Send federation.toml to every site; `fedskew-site approve` shows this difference there. "
        "A site refuses runs of another text than the one that it has approved."
    )


def renew(
    folder: Folder,
    authority_key: Annotated[
        Path | None,
        typer.Option(help="File of the CA's private key.", show_default="FOLDER/ca.key"),
    ] = None,
) -> None:
    """Make a new key and certificate for the SuperLink, used from their next start."""
    from fedskew.federation.certificates import read_certificate
    from fedskew.federation.folder import FederationFolder

    federation = FederationFolder(folder)
    federation.renew(authority_key or federation.authority[1])
    last = read_certificate(federation.server[0]).not_valid_after_utc
    console().print(f"{federation.server[0]}: holds until {last:%Y-%m-%d}")


def printed_keys(text: str) -> tuple[str, str, int | None]:
    """Return a site's key, its key for masked sums and its samples.

    `text` is the key itself, or a file with the key or with the output of `fedskew-site key`:
    lines of TOML.
    """
    if not text.startswith("ecdsa") and Path(text).is_file():
        text = Path(text).read_text(encoding="utf-8")
    key = re.search(r'^key = "(.*)"$', text, re.MULTILINE)
    mask_key = re.search(r'^mask-key = "(.*)"$', text, re.MULTILINE)
    samples = re.search(r"^samples = (\d{1,18})$", text, re.MULTILINE | re.ASCII)
    return (
        key[1] if key else text,
        mask_key[1] if mask_key else "",
        int(samples[1]) if samples else None,
    )


def reload_sites(folder: "FederationFolder") -> None:
    """Let a SuperLink that is up register the sites in force, and unregister all others."""
    from fedskew.engines.processes import LaunchFailed
    from fedskew.federation.services import register

    try:
        register(folder)
    except LaunchFailed:
        console().print("The SuperLink is not up; it will load the new site list when it starts.")
    else:
        console().print("Gateway and SuperLink now use the new site list.")


def columns_in(text: str) -> tuple[str, ...]:
    """Return the names of input columns: a list as a line of CSV, or those of a CSV or npz file.

    Raises:
        SettingError: a file that names no input columns, or quotes that do not end.
        DataError: a file that cannot be read.
    """
    from data.readers.user_data import input_columns, kind_of_path

    file = Path(text)
    if not text:
        return ()
    if not file.is_file():
        return names("--columns", text)
    try:
        columns = input_columns(f"{kind_of_path(file)}:{file}", DataSettings())
    except DataError as error:
        # Its own remedy is a setting for the roles of columns, which this command does not take.
        remedy = "state the names themselves: --columns NAME,NAME"
        raise DataError(error.rule, where=error.where, remedy=remedy) from error
    require(len(columns) > 0, "--columns", text, "must name input columns")
    return columns


def names(key: str, text: str) -> tuple[str, ...]:
    """Return the names of a list. Raises SettingError for quotes that do not end."""
    try:
        return names_in(text)
    except ValueError:
        raise SettingError(key, text, NAMES_RULE) from None


def numbers(key: str, text: str) -> list[float]:
    """Return the numbers of a list. Raises SettingError for a word that is no number."""
    try:
        return [any_number(word) for word in text.split(",")]
    except ValueError:
        raise SettingError(key, text, "must be numbers separated by commas") from None
