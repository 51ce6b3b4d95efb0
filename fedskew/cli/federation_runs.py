"""The commands of `fedskew federation` for runs: `status` to `submit`."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from data import require
from fedskew.cli.federation_options import CoordinatorKey, Folder
from fedskew.cli.terminal import console

# Commands import what they use, so that `--help` and the completion of words wait for none of it.
if TYPE_CHECKING:
    from fedskew.federation.folder import FederationFolder
    from server_app.run_settings import RunSettings


RunSettingWords = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting.")
]


def status(
    folder: Folder,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting of the planned run."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Ask every site whether it is ready, or show those of the current run; exit status 0 if min-sites are."""
    from fedskew.federation.folder import FederationFolder
    from fedskew.federation.status import READY, site_status
    from server_app.settings import parse_texts

    federation = FederationFolder(folder)
    federation.require_own_app(own=False)
    basis, sites = site_status(federation, parse_texts(settings or []))
    if as_json:
        by_name = {name: vars(site) for name, site in sites.items()}
        print(json.dumps({"basis": basis, "sites": by_name}, indent=2))
    else:
        console().print(basis)
        for name, site in sites.items():
            console().print(f"{name}: {site}")
    ready = sum(site.state == READY for site in sites.values())
    if ready < federation.agreement.min_sites:
        raise typer.Exit(1)


def run(
    folder: Folder,
    settings: RunSettingWords = None,
    results: Annotated[
        str, typer.Option(help="The setting results: the folder of the runs' folders.")
    ] = "results",
    wait: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="MINUTES",
            help="How long to wait for sites or the SuperLink in an outage.",
            show_default="10 for the SuperLink, node-wait for sites",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary as JSON, progress to stderr.")
    ] = False,
    coordinator_key: CoordinatorKey = None,
) -> None:
    """Train on the sites, one run at a time; a run whose process is lost resumes."""
    from fedskew.federation.coordinator_key import sign_run
    from fedskew.federation.folder import FederationFolder
    from fedskew.federation.run import end_orphans, run
    from fedskew.signals import one_interrupt

    federation = FederationFolder(folder)
    federation.require_own_app(own=False)
    out = console(stderr=as_json)
    planned = planned_run(federation, settings or [], str(Path(results).resolve()))
    signature = ""
    if federation.agreement.run_key:
        key = coordinator_key or federation.coordinator_key
        signature = sign_run(federation.agreement, planned.run_spec().to_json(), key)
    with one_interrupt():
        seconds = None if wait is None else 60 * wait
        try:
            summary = run(federation, planned, out.print, seconds, signature)
        except KeyboardInterrupt:
            end_orphans(federation)
            raise
    if as_json:
        print(json.dumps(summary, indent=2))


def submit(
    folder: Folder,
    site: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A site that takes part.",
            show_default="all",
        ),
    ] = None,
    config: Annotated[
        str, typer.Option(metavar="'KEY=VALUE ...'", help="The app's run config, as of flwr run.")
    ] = "",
    coordinator_key: CoordinatorKey = None,
) -> None:
    """Run the Flower app of a federation made by `new --app`, and wait for its end."""
    from fedskew.federation.coordinator_key import sign_app_run
    from fedskew.federation.folder import FederationFolder
    from fedskew.federation.submission import submit
    from fedskew.signals import one_interrupt

    federation = FederationFolder(folder)
    file = coordinator_key or federation.coordinator_key

    def sign(sites: Sequence[str], run_config: Mapping[str, Any]) -> str:
        return sign_app_run(federation.agreement, sites, run_config, file)

    with one_interrupt():
        submit(federation, site, config, console().print, sign)


def planned_run(federation: "FederationFolder", words: list[str], results: str) -> "RunSettings":
    """Return the settings of a run between the sites. Raises SettingError for words that are none.

    Args:
        federation: The coordinator's folder.
        words: The settings, each as KEY=VALUE.
        results: The folder of the runs' folders.
    """
    from server_app.settings import parse, parse_texts

    given = parse_texts(words)
    rule = "is the sites' own in a federation"
    require("dataset" not in given, "dataset", given.get("dataset"), rule)
    return parse({**given, "dataset": federation.dataset, "results": results})
