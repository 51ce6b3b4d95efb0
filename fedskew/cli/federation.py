"""`fedskew federation`: the coordinator's commands."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from data import SettingError, require
from data.text import any_number
from fedskew.cli.terminal import TYPER_SUGGESTS, console
from fedskew.federation import PASSPHRASE

# Commands import what they use, so that `--help` and the completion of words wait for none of it.
if TYPE_CHECKING:
    from fedskew.federation.folder import FederationFolder
    from fedskew.federation.membership import Change
    from server_app.run_settings import RunSettings


class Service(StrEnum):
    """The coordinator's services."""

    superlink = "superlink"
    gateway = "gate"


application = typer.Typer(
    help="Commands for the coordinator of a federation between sites.",
    add_completion=False,
    suggest_commands=TYPER_SUGGESTS,
)
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
RunSettingWords = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting.")
]


@application.command()
def new(
    folder: Folder,
    name: Annotated[str, typer.Option(help="The federation's name.")],
    address: Annotated[str, typer.Option(help="HOST:PORT at which sites reach the gateway.")],
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
            help="CHANNELSxHEIGHTxWIDTH, or a number of features. Needed without --app.",
            show_default=False,
        ),
    ] = "",
    mean: Annotated[
        str,
        typer.Option(help="Mean of the inputs on the scale 0..1, one number or one per channel."),
    ] = "0.5",
    std: Annotated[str, typer.Option(help="Their standard deviation.")] = "0.5",
    min_sites: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Smallest number of sites in a round.",
            show_default="more than half of the sites",
        ),
    ] = None,
    listen: Annotated[str, typer.Option(help="Address that the gateway listens on.")] = "0.0.0.0",
    app: Annotated[
        Path | None,
        typer.Option(help="Another Flower app, a folder or .fab.", show_default="FedSkew's"),
    ] = None,
    authority_key: Annotated[
        Path | None,
        typer.Option(
            help="File for the authority's key, as on a medium that is kept offline.",
            show_default="FOLDER/ca.key",
        ),
    ] = None,
    coordinator_key: Annotated[
        Path | None,
        typer.Option(
            help="File for the key that signs runs, as on a machine without the gateway.",
            show_default="FOLDER/coordinator.key",
        ),
    ] = None,
    encrypt: Annotated[
        bool,
        typer.Option("--encrypt", help=f"Encrypt both keys with a passphrase ({PASSPHRASE})."),
    ] = False,
) -> None:
    """Create certificates, the key that signs runs, and a federation.toml without sites."""
    from fedskew.federation.certificates import read_certificate
    from fedskew.federation.coordinator_key import DECLARED
    from fedskew.federation.folder import begin

    for option, value in (("--classes", classes), ("--input-shape", input_shape)):
        if app is None and not value:
            raise typer.BadParameter("FedSkew's app needs it", param_hint=option)
    class_names = [word.strip() for word in classes.split(",")] if classes else []
    federation = begin(
        folder,
        name,
        class_names,
        input_shape,
        numbers("--mean", mean),
        numbers("--std", std),
        min_sites,
        address,
        listen,
        app,
        authority_key,
        passphrase(confirm=True) if encrypt else "",
        coordinator_key,
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
        out.print(f"{key_file}: signs runs; neither gateway nor SuperLink needs it")
    else:
        out.print(
            f"Its runs are not signed: the app has no {DECLARED} under [tool.flwr.app.config].",
            markup=False,
        )
    handed_out = f"{agreement.name} and {federation.authority[0].name}"
    out.print(f"Sites get {handed_out}. Nobody gets a .key file.")


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
    """Add a site to federation.toml. All sites then have to approve the new text."""
    from data import DataError
    from data.agreement import read_agreement, subtraction_warning
    from fedskew.federation.folder import FederationFolder, add
    from fedskew.federation.membership import check_is_new, keep

    site_key, printed_mask_key, printed_samples = printed_keys(key)
    samples = samples if samples is not None else printed_samples
    mask_key = mask_key or printed_mask_key
    federation = FederationFolder(folder)
    check_is_new(federation, site_key)
    warning = ""
    try:
        before = read_agreement(federation.agreement_file)
    except DataError:  # it may still have too few sites for an agreement
        before = None
    former = federation.agreement_file.read_bytes()
    member = add(federation, name, site_key, samples, mask_key)
    if before is not None and federation.has_run:
        keep(federation, former)  # a run may be going on with it
        warning = subtraction_warning(before, federation.agreement)
        take_over(federation)
    console().print(f"{member.name} is in {folder / 'federation.toml'}")
    if warning:
        console().print(f"Warning: {warning}.")
    if not member.mask_key:
        console().print(
            f"{member.name} has no mask-key: without one of every site all sums are plain."
        )
    if not member.samples:
        console().print(
            f"No samples are agreed for {member.name}: it counts for as many as it states. "
            "--samples, or `samples` in its [[site]], sets a limit."
        )


SiteName = Annotated[str, typer.Argument(help="The site's name.", show_default=False)]


@application.command()
def remove(folder: Folder, name: SiteName) -> None:
    """Take a site out of federation.toml. Its key is refused from then on, also during a run."""
    from fedskew.federation.folder import FederationFolder
    from fedskew.federation.membership import remove

    federation = FederationFolder(folder)
    announce(federation, remove(federation, name))


@application.command()
def rekey(
    folder: Folder,
    name: SiteName,
    key: Annotated[
        str,
        typer.Argument(help="The key that `fedskew-site key` printed, or a file with its output."),
    ],
    mask_key: Annotated[
        str,
        typer.Option(
            help="The key for masked sums that `fedskew-site key` printed.",
            show_default="the one in KEY's file, else as it was",
        ),
    ] = "",
) -> None:
    """Give a site another key. The former one is refused from then on."""
    from fedskew.federation.folder import FederationFolder
    from fedskew.federation.membership import rekey

    federation = FederationFolder(folder)
    site_key, printed_mask_key, _ = printed_keys(key)
    announce(federation, rekey(federation, name, site_key, mask_key or printed_mask_key))


@application.command()
def rename(
    folder: Folder,
    name: SiteName,
    new_name: Annotated[str, typer.Argument(help="Its new name.", show_default=False)],
) -> None:
    """Give a site another name. The site writes it into its site.toml as well."""
    from fedskew.federation.folder import FederationFolder
    from fedskew.federation.membership import rename

    federation = FederationFolder(folder)
    announce(federation, rename(federation, name, new_name))


@application.command()
def update(
    folder: Folder,
    text: Annotated[
        Path | None,
        typer.Argument(
            metavar="TEXT", help="A file with a new federation.toml.", show_default="as it is"
        ),
    ] = None,
) -> None:
    """Agree to the app that is installed here, as after an upgrade, or also to another text."""
    from fedskew.federation.folder import FederationFolder
    from fedskew.federation.membership import update

    federation = FederationFolder(folder)
    announce(federation, update(federation, text))


@application.command()
def coordinator_key(
    folder: Folder,
    coordinator_key: CoordinatorKey = None,
    encrypt: Annotated[
        bool, typer.Option("--encrypt", help=f"Encrypt it with a passphrase ({PASSPHRASE}).")
    ] = False,
) -> None:
    """Make another key that signs runs, in a new file, and agree to it. Sites then refuse what the former one signs."""
    from data import DataError
    from fedskew.federation.coordinator_key import DECLARED, make_key, takes_signature
    from fedskew.federation.folder import FederationFolder
    from fedskew.federation.membership import replace_run_key
    from site_agent.app_files import app_files

    federation = FederationFolder(folder)
    if not takes_signature(app_files(federation.app)):
        rule = f"needs {DECLARED} under [tool.flwr.app.config] for its runs to be signed"
        raise DataError(rule, where=str(federation.app))
    file = coordinator_key or federation.coordinator_key
    public = make_key(file, passphrase(confirm=True) if encrypt else "")
    try:
        change = replace_run_key(federation, public)
    except BaseException:
        file.unlink()  # nothing names it
        raise
    announce(federation, change)
    console().print(f"{file}: signs runs from now on")


@application.command()
def renew(
    folder: Folder,
    authority_key: Annotated[
        Path | None,
        typer.Option(help="File of the authority's key.", show_default="FOLDER/ca.key"),
    ] = None,
) -> None:
    """Make a new key and certificate for gateway and SuperLink, used from their next start."""
    from fedskew.federation.certificates import is_encrypted, read_certificate
    from fedskew.federation.folder import FederationFolder

    federation = FederationFolder(folder)
    key = authority_key or federation.authority[1]
    federation.renew(key, passphrase() if is_encrypted(key) else "")
    last = read_certificate(federation.server[0]).not_valid_after_utc
    console().print(f"{federation.server[0]}: holds until {last:%Y-%m-%d}")


@application.command()
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


@application.command()
def serve(
    folder: Folder,
    service: Annotated[Service, typer.Argument(help="Which of the two.", show_default=False)],
) -> None:
    """Run SuperLink or gateway in the foreground, for systemd."""
    from fedskew.federation.folder import FederationFolder
    from fedskew.federation.services import serve

    serve(FederationFolder(folder), service.value)


@application.command()
def alive(folder: Folder) -> None:
    """Shake hands with the gateway, for a container's health check; exit status 1 if it does not answer."""
    from fedskew.federation.folder import FederationFolder
    from fedskew.federation.services import handshake

    try:
        handshake(FederationFolder(folder))
    except OSError as error:
        console(stderr=True).print(f"the gateway does not answer: {error}")
        raise typer.Exit(1) from None


@application.command()
def register(folder: Folder) -> None:
    """Register the sites of federation.toml, once the SuperLink answers; `up` does it as well."""
    from fedskew.federation.folder import FederationFolder
    from fedskew.federation.services import register

    register(FederationFolder(folder))


Former = Annotated[
    bool,
    typer.Option(
        "--former",
        help="With the text before the last change, from superseded/. The sites' keys are those of federation.toml.",
    ),
]


@application.command()
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


@application.command()
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


@application.command()
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


RunNumber = Annotated[
    int, typer.Argument(metavar="RUN", help="Its number, as `runs` lists it.", show_default=False)
]


@application.command()
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


@application.command()
def stop(folder: Folder, number: RunNumber) -> None:
    """End a run that waits or trains. Its records stay, and the same settings resume it."""
    from fedskew.federation.folder import FederationFolder
    from fedskew.federation.queue import RunQueue

    console().print(RunQueue(FederationFolder(folder)).stop(number))


@application.command()
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


@application.command()
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


@application.command()
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


@application.command()
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


@application.command()
def down(folder: Folder) -> None:
    """Stop SuperLink, gateway and the processes that they started."""
    from fedskew.federation.folder import FederationFolder
    from fedskew.federation.services import down

    console().print("ended" if down(FederationFolder(folder)) else "nothing was running")


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


def passphrase(confirm: bool = False) -> str:
    """Return the passphrase of the coordinator's keys: the environment's, or what is typed."""
    given = os.environ.get(PASSPHRASE, "")
    if given:
        return given
    # On stderr: what a command prints may be for a script.
    typed: str = typer.prompt("Passphrase", hide_input=True, confirmation_prompt=confirm, err=True)
    return typed


def printed_keys(text: str) -> tuple[str, str, int | None]:
    """Return a site's key, its key for masked sums and its samples, of a key or of a file with several lines.

    A file may have the output of `fedskew-site key`: lines of TOML, of which the key is one.
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


def announce(folder: "FederationFolder", change: "Change") -> None:
    """Print what a change of federation.toml does, and let the SuperLink take over its sites."""
    out = console()
    if not change.difference:
        out.print("federation.toml says so already")
        return
    out.print(change.difference.rstrip(), markup=False)
    if change.warning:
        out.print(f"Warning: {change.warning}.")
    out.print(f"The former text is {folder.path / change.kept}")
    if folder.has_run:
        take_over(folder)
    out.print(
        "Send federation.toml to every site: `fedskew-site approve` shows this difference. A run that is going on "
        "keeps the former text, and a site answers it until it approves the new one, or with `--keep-former HOURS` for "
        "so long after that. The next run needs the new approvals; `run --former` takes the former text."
    )


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


def numbers(key: str, text: str) -> list[float]:
    """Return the numbers of a list. Raises SettingError for what is none."""
    try:
        return [any_number(word) for word in text.split(",")]
    except ValueError:
        raise SettingError(key, text, "must be numbers separated by commas") from None
