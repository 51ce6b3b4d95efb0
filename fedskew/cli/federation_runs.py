"""The commands of `fedskew federation` for runs: `status` to `submit`."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from data import require
from fedskew.cli.federation_options import CoordinatorKey, Folder, passphrase
from fedskew.cli.terminal import console

# Commands import what they use, so that `--help` and the completion of words wait for none of it.
if TYPE_CHECKING:
    from fedskew.federation.folder import FederationFolder
    from server_app.run_settings import RunSettings


RunSettingWords = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting.")
]
Former = Annotated[
    bool,
    typer.Option(
        "--former",
        help="With the text before the last change, from superseded/. The sites' keys are those of federation.toml.",
    ),
]
RunNumber = Annotated[
    int, typer.Argument(metavar="RUN", help="Its number, as `runs` lists it.", show_default=False)
]


def status(
    folder: Folder,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting of the planned run."),
    ] = None,
    former: Former = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Ask every site whether it is ready, or show those of the current run; exit status 0 if min-sites are."""
    from fedskew.federation.folder import FederationFolder
    from fedskew.federation.membership import former_agreement
    from fedskew.federation.status import READY, site_status
    from server_app.settings import parse_texts

    federation = FederationFolder(folder)
    federation.require_own_app(own=False)
    agreement = former_agreement(federation) if former else federation.agreement
    basis, sites = site_status(federation, parse_texts(settings or []), agreement)
    if as_json:
        by_name = {name: vars(site) for name, site in sites.items()}
        print(json.dumps({"basis": basis, "sites": by_name}, indent=2))
    else:
        console().print(basis)
        for name, site in sites.items():
            console().print(f"{name}: {site}")
    ready = sum(site.state == READY for site in sites.values())
    if ready < agreement.min_sites:
        raise typer.Exit(1)


def sign(
    folder: Folder,
    settings: RunSettingWords = None,
    coordinator_key: CoordinatorKey = None,
    former: Former = False,
) -> None:
    """Print the signature of a run, for `run --signature` on a machine that does not have the coordinator's key."""
    from data import DataError
    from fedskew.federation.folder import FederationFolder

    federation = FederationFolder(folder)
    federation.require_own_app(own=False)
    if not federation.agreement.run_key:
        rule = "is missing, so no run is signed: `fedskew federation coordinator-key` adds it"
        raise DataError(rule, where=str(federation.agreement_file), key="run-key")
    text = chosen_text(federation, former)
    planned = planned_run(federation, settings or [], "results", text)
    # The signature alone on stdout, so that a script can pass it on.
    console(stderr=True).print(f"{planned.run_id}, with the federation.toml of sha256 {text}")
    print(signed(federation, planned, coordinator_key))


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
    detach: Annotated[
        bool, typer.Option("--detach", help="Return at once; the run takes its turn by itself.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary as JSON, progress to stderr.")
    ] = False,
    coordinator_key: CoordinatorKey = None,
    signature: Annotated[
        str,
        typer.Option(
            help="The run's signature, as `sign` prints it.", show_default="made with that key"
        ),
    ] = "",
    former: Former = False,
    queued: Annotated[int, typer.Option(hidden=True)] = 0,
) -> None:
    """Train on the sites, after the runs that were asked for before; a run whose process is lost resumes."""
    from data.agreement import subtraction_warning
    from fedskew.federation.folder import FederationFolder
    from fedskew.federation.queue import RunQueue
    from fedskew.federation.run import end_orphans, run
    from fedskew.signals import one_interrupt

    if detach and as_json:
        raise typer.BadParameter("a detached run prints no summary", param_hint="--json")
    federation = FederationFolder(folder)
    federation.require_own_app(own=False)
    words = settings or []
    out = console(stderr=as_json)
    results_path = str(Path(results).resolve())
    queue = RunQueue(federation)
    seconds = None if wait is None else 60 * wait
    with one_interrupt():
        if queued:
            entered = queue.get(queued)
            planned = planned_run(federation, words, results_path, entered.text)
        else:
            # A run of the queue keeps the text that it was asked for with.
            text = chosen_text(federation, former)
            planned = planned_run(federation, words, results_path, text)
            assert planned.agreement is not None
            warning = subtraction_warning(planned.agreement, federation.agreement)
            if warning:
                out.print(f"Warning: {warning}.")
            signature = signed(federation, planned, coordinator_key, signature)
            entered = queue.enter(words, results_path, wait, detach, signature, text)
        if detach:
            queue.start(entered)
            out.print(f"run {entered.number} takes its turn by itself: {planned.folder}")
            out.print(f"`fedskew federation follow {folder} {entered.number}` prints what it does.")
            return
        with queue.recorded(entered.number, lambda: end_orphans(federation)):
            queue.wait_for_turn(entered.number, out.print)
            require_signed(planned, entered.signature)
            summary = run(federation, planned, out.print, seconds, entered.signature)
    if as_json:
        print(json.dumps(summary, indent=2))


def runs(
    folder: Folder,
    as_json: Annotated[bool, typer.Option("--json", help="Print them as JSON.")] = False,
) -> None:
    """List the federation's runs in their order: how each stands, who asked for it, and its settings."""
    from data.sites import has_hash
    from fedskew.federation.folder import FederationFolder
    from fedskew.federation.queue import RunQueue

    federation = FederationFolder(folder)
    queue = RunQueue(federation)
    rows: list[dict[str, Any]] = []
    with_former_text = set()
    for queued_run in queue.runs():
        status = queue.status(queued_run)
        if queued_run.text and not has_hash(federation.agreement_file, queued_run.text):
            with_former_text.add(queued_run.number)
        rows.append(
            {
                "run": queued_run.number,
                "state": status.state,
                "reason": status.reason,
                "user": queued_run.user,
                "asked": queued_run.asked,
                "settings": list(queued_run.words),
                "results": queued_run.results,
            }
        )
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        words = " ".join(row["settings"])
        if row["run"] in with_former_text:
            words += " (a former text)"
        line = f"{row['run']}  {row['state']}  {row['asked']} UTC by {row['user']}  {words}"
        console().print(f"{line}  ({row['reason']})" if row["reason"] else line)
    if not rows:
        console().print("no run was asked for")


def stop(folder: Folder, number: RunNumber) -> None:
    """End a run that waits or trains. Its records stay, and the same settings resume it."""
    from fedskew.federation.folder import FederationFolder
    from fedskew.federation.queue import RunQueue

    console().print(RunQueue(FederationFolder(folder)).stop(number))


def follow(folder: Folder, number: RunNumber) -> None:
    """Print what a detached run prints until it ends; exit status 0 if it has finished. Ctrl-C does not end the run."""
    from fedskew.federation.folder import FederationFolder
    from fedskew.federation.queue import FINISHED, RunQueue
    from fedskew.signals import one_interrupt

    queue = RunQueue(FederationFolder(folder))
    with one_interrupt():
        status = queue.follow(number, lambda text: print(text, end="", flush=True))
    if status.state != FINISHED:
        why = f": {status.reason}" if status.reason else ""
        console(stderr=True).print(f"run {number}: {status.state}{why}")
        raise typer.Exit(1)


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
    from fedskew.federation.certificates import is_encrypted
    from fedskew.federation.coordinator_key import sign_app_run
    from fedskew.federation.folder import FederationFolder
    from fedskew.federation.submission import submit
    from fedskew.signals import one_interrupt

    federation = FederationFolder(folder)
    file = coordinator_key or federation.coordinator_key

    def sign(sites: Sequence[str], run_config: Mapping[str, Any]) -> str:
        secret = passphrase() if is_encrypted(file) else ""
        return sign_app_run(federation.agreement, sites, run_config, file, secret)

    with one_interrupt():
        submit(federation, site, config, console().print, sign)


def chosen_text(federation: "FederationFolder", former: bool) -> str:
    """Return the sha256 of the federation.toml for a run: the current one, or the one before the last change."""
    from fedskew.federation.membership import former_agreement

    agreement = former_agreement(federation) if former else federation.agreement
    return agreement.sha256


def planned_run(
    federation: "FederationFolder", words: list[str], results: str, text: str
) -> "RunSettings":
    """Return the settings of a run between the sites. Raises SettingError for words that are none.

    Args:
        federation: The coordinator's folder.
        words: The settings, each as KEY=VALUE.
        results: The folder of the runs' folders.
        text: The sha256 of the federation.toml that the run keeps; empty in a queue of an earlier version.
    """
    from server_app.settings import parse, parse_texts

    given = parse_texts(words)
    rule = "is the sites' own in a federation"
    require("dataset" not in given, "dataset", given.get("dataset"), rule)
    dataset = federation.dataset(text or federation.agreement.sha256)
    return parse({**given, "dataset": dataset, "results": results})


def signed(
    federation: "FederationFolder",
    planned: "RunSettings",
    key_file: Path | None,
    signature: str = "",
) -> str:
    """Return the signature of a run, which is made with the coordinator's key unless it is given.

    It is empty where federation.toml has no run-key. Raises DataError for a key that is missing or another one.
    """
    from fedskew.federation.certificates import is_encrypted
    from fedskew.federation.coordinator_key import sign_run

    agreement = planned.agreement
    assert agreement is not None
    if signature or not agreement.run_key:
        require_signed(planned, signature)
        return signature
    file = key_file or federation.coordinator_key
    secret = passphrase() if is_encrypted(file) else ""
    return sign_run(agreement, planned.run_spec().to_json(), file, secret)


def require_signed(planned: "RunSettings", signature: str) -> None:
    """Raise DataError unless a signature is the coordinator's for a run, where federation.toml has a run-key."""
    from fedskew.federation.coordinator_key import require_signature

    assert planned.agreement is not None
    require_signature(planned.agreement, planned.run_spec().to_json(), signature)
