"""The commands of `fedskew federation` for runs: `status`, `run` and `submit`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from data import SettingError
from fedskew.formatting import console

Folder = Annotated[
    Path, typer.Argument(help="The federation's folder at its coordinator.", show_default=False)
]
CoordinatorKey = Annotated[
    Path | None,
    typer.Option(
        "--coordinator-key",
        metavar="FILE",
        help="The key that signs runs (default: FOLDER/coordinator.key).",
    ),
]
RunSettingWords = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of the run.")
]

# Commands import what they use, so that `--help` and the completion of words wait for none of it.


def status(
    folder: Folder,
    settings: RunSettingWords = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Ask every site whether it is ready, or show those of the current run; exit status 0 if min-sites are."""
    from fedskew.federation.folder import FederationFolder
    from fedskew.federation.status import READY, site_status
    from server_app.settings import parse_texts

    federation = FederationFolder(folder)
    basis, sites = site_status(federation, parse_texts(settings or []))
    if as_json:
        by_name = {name: vars(site) for name, site in sites.items()}
        print(json.dumps({"basis": basis, "sites": by_name}, indent=2))
    else:
        lines = [f"{name}: {site}" for name, site in sites.items()]
        console().print("\n".join([basis, *lines]))
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
    from fedskew.federation.folder import FederationFolder
    from fedskew.federation.run import end_orphans, run
    from fedskew.signals import one_interrupt
    from server_app.settings import parse, parse_texts

    federation = FederationFolder(folder)
    federation.require_own_app(own=False)
    given = parse_texts(settings or [])
    if "dataset" in given:
        raise SettingError("dataset", given["dataset"], "is the sites' own in a federation")
    shared = {"dataset": federation.dataset, "results": str(Path(results).resolve())}
    planned = parse({**given, **shared})
    out = console(stderr=as_json)
    seconds = None if wait is None else 60 * wait
    with one_interrupt():
        try:
            summary = run(federation, planned, out.print, seconds, coordinator_key)
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
    from fedskew.federation.folder import FederationFolder
    from fedskew.federation.run import submit
    from fedskew.signals import one_interrupt

    with one_interrupt():
        submit(FederationFolder(folder), site or [], config, console().print, coordinator_key)
