"""The command `fedskew-site`. Its modules are imported by the command that needs them, so that --help is quick."""

import json
import os
import shutil
import sys
from collections.abc import Callable
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, TypeVar

import click
import typer
from typer.core import TyperArgument, TyperCommand
from typer.utils import get_params_from_function

BAD_INPUT = 2
INTERRUPTED = 130

application = typer.Typer(
    name="fedskew-site",
    help="Commands for a hospital in a federation.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help, because rich takes another 0.1 s to import
    context_settings={"help_option_names": ["-h", "--help"]},
)
Function = TypeVar("Function", bound=Callable[..., int | None])


class DescribedCommand(TyperCommand):
    """A command whose --help describes its arguments, for both command lines.

    flwr 1.42 requires typer below 0.21, and click 8.5 resets the help of that typer's arguments.
    """

    def __init__(self, name: str | None, **details: Any) -> None:
        super().__init__(name, **details)
        if self.callback is None:
            return
        declared = get_params_from_function(self.callback)
        for parameter in self.params:
            if isinstance(parameter, TyperArgument):
                parameter.help = declared[str(parameter.name)].default.help


def command(function: Function) -> Function:
    """Make a function a command of its name, whose whole docstring stands in the list of commands."""
    return application.command(cls=DescribedCommand, short_help=function.__doc__)(function)


SiteFile = Annotated[
    Path, typer.Option("--site", show_default=False, help="This site's file; default site.toml.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Approve without asking.")]
SITE_FILE = Path("site.toml")


class Half(StrEnum):
    """The two halves of `fedskew-site start`, which may be processes of different users."""

    link = "link"
    train = "train"


@command
def key(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File for the private key.")],
    name: Annotated[
        str, typer.Option(show_default=False, help="The site's name in federation.toml.")
    ] = "NAME",
    samples: Annotated[
        int | None,
        typer.Option(min=1, help="Largest number of training samples that the site may state."),
    ] = None,
    mask_key: Annotated[
        Path | None,
        typer.Option(
            help="File for the private key of masked sums.", show_default="mask.key beside FILE"
        ),
    ] = None,
) -> None:
    """Make a node key and a key for masked sums, and print the lines of federation.toml that name them."""
    from data import DataError
    from site_agent.config import MASK_KEY
    from site_agent.keys import make_key, make_mask_key

    mask_file = mask_key or file.with_name(MASK_KEY)
    if mask_file.exists():  # looked at first, so that no node key is made that nothing names
        raise DataError("is there already; a key is never overwritten", where=str(mask_file))
    public = make_key(file)
    print(f'[[site]]\nname = "{name}"\nkey = "{public}"\nmask-key = "{make_mask_key(mask_file)}"')
    if samples:
        print(f"samples = {samples}")


@command
def approve(
    federation: Annotated[Path, typer.Argument(metavar="FEDERATION", help="federation.toml.")],
    app: Annotated[Path, typer.Argument(metavar="APP", help="A clone's folder, or a .fab.")],
    site: SiteFile = SITE_FILE,
    yes: Yes = False,
) -> int:
    """Show both hashes and what a run may ask of this site, ask for approval, and keep a copy."""
    from site_agent.approval import approve as decide
    from site_agent.config import read_site

    def ask(text: str) -> bool:
        print(text)
        return yes or confirmed("Approve? [y/N] ")

    if decide(read_site(site), federation, app, ask):
        print("approved")
        return 0
    print("not approved")
    return 1


@command
def runs(site: SiteFile = SITE_FILE) -> None:
    """List the runs that wait for approval and the approved ones, if the policy has approve-runs."""
    from site_agent.config import read_site
    from site_agent.run_approval import approved, waiting

    settings = read_site(site)
    for code in waiting(settings):
        print(f"waits      {code}")
    for file in sorted(approved(settings).glob("*.json")):
        print(f"approved   {file.stem}")


@command
def approve_run(
    settings: Annotated[
        str,
        typer.Argument(
            metavar="SHA256", help="The hash of its settings, as `fedskew-site runs` prints it."
        ),
    ],
    site: SiteFile = SITE_FILE,
    yes: Yes = False,
) -> int:
    """Show the settings of a waiting run, ask for approval, and allow it."""
    from site_agent.config import read_site
    from site_agent.run_approval import approve as approve_settings
    from site_agent.run_approval import settings_waiting, shown

    this_site = read_site(site)
    print(shown(settings_waiting(this_site, settings)))
    print(f"sha256 {settings}")
    if not (yes or confirmed("Approve this run? [y/N] ")):
        print("not approved")
        return 1
    approve_settings(this_site, settings)
    this_site.audit.write("run approved", settings=settings)
    print("approved")
    return 0


def confirmed(question: str) -> bool:
    """Return whether somebody at a terminal says yes."""
    return sys.stdin.isatty() and input(question).strip().lower() in ("y", "yes")


@command
def check(
    site: SiteFile = SITE_FILE,
    online: Annotated[
        bool, typer.Option("--online", help="Also check the connection to the coordinator.")
    ] = False,
) -> int:
    """Check data, file permissions, disk, device and versions; with --online also the connection to the coordinator."""
    from site_agent import check
    from site_agent.config import read_link, read_site

    rows = check.offline(read_site(site), site)
    if online:
        rows = chain(rows, check.online(read_link(site).link))
    holds = True
    for row in rows:
        print(row, flush=True)
        holds = holds and row.holds
    return 0 if holds else 1


@command
def start(
    site: SiteFile = SITE_FILE,
    only: Annotated[
        Half | None,
        typer.Option(help="Start one half only: link (the network) or train (the data)."),
    ] = None,
    port: Annotated[
        int,
        typer.Option(
            show_default=False, help="With --only: the halves' port on loopback; default 9094."
        ),
    ] = 9094,
    secret: Annotated[
        Path | None, typer.Option(help="With --only: the file with the halves' secret.")
    ] = None,
    metrics: Annotated[
        int, typer.Option(show_default=False, help="Port on loopback for /metrics; default: none.")
    ] = 0,
) -> None:
    """Take part in the federation until a signal ends it."""
    from data import DataError
    from site_agent import service
    from site_agent.config import read_link, read_site

    try:
        if only is None:
            service.start(read_site(site), read_link(site).link, metrics)
            return
        if secret is None:
            raise DataError(f"--only {only}: --secret must name the file that both halves read")
        if only is Half.link:
            half = read_link(site)
            service.link_only(half.link, half.state, port, secret)
        else:
            service.train_only(read_site(site), port, secret, metrics)
    except SystemExit:  # everything has ended; to unload torch takes seconds
        os._exit(0)


@command
def status(
    site: SiteFile = SITE_FILE,
    at_work: Annotated[
        bool,
        typer.Option(
            "--at-work", help="Only tell by the exit status whether this site is running."
        ),
    ] = False,
) -> int:
    """Show what is approved, whether the coordinator takes this site's key and this site is running, its last exchange,
    and the memory of its runs.
    """
    from site_agent.config import read_link, read_site
    from site_agent.service import is_at_work

    this_site = read_site(site)
    if at_work:  # for a container's health check
        return 0 if this_site.state.is_dir() and is_at_work(this_site.state) else 1
    from site_agent import check

    this_site.state.mkdir(parents=True, exist_ok=True)
    print(check.approval(this_site))
    print(check.row("key known", lambda: check.known(read_link(site).link)))
    print(check.Row("at work", is_at_work(this_site.state), str(this_site.state)))
    for line in this_site.audit.lines()[-1:]:
        print(f"last entry {described(line) or 'is damaged: fedskew-site log --verify'}")
    for folder in sorted((this_site.state / "runs").glob("*")):
        size = sum(file.stat().st_size for file in folder.rglob("*"))
        print(f"run        {folder.name}, {size / 2**20:.1f} MiB")
    return 0


@command
def log(
    site: SiteFile = SITE_FILE,
    verify: Annotated[
        bool, typer.Option("--verify", help="Check for changed or removed lines.")
    ] = False,
) -> None:
    """Print the audit log, or verify that no line was changed or removed."""
    from site_agent.config import read_site

    audit = read_site(site).audit
    if audit.has_partial_line():
        note = "a loss of power, or an entry that is being written. The next entry takes its place"
        print(f"fedskew-site: the last line is incomplete: {note}", file=sys.stderr)
    if verify:
        print(f"{audit.verify()} lines follow from each other")
        return
    texts = [described(line) for line in audit.lines()]
    for text in filter(None, texts):
        print(text)
    if "" in texts:
        raise audit.no_entry(texts.index("") + 1)


def described(line: bytes) -> str:
    """Return a line of the audit log for people, or an empty text for what is no entry."""
    from data.text import escaped
    from site_agent.audit import NO_ENTRY

    try:
        entry = json.loads(line)
        words = [entry.pop("time")[:19], f"{entry.pop('event'):<9}"]
        for row in entry.pop("left", []):
            norm = f", norm {row['norm']:g}" if "norm" in row else ""
            entry[f"left {row['name']}"] = f"{row['bytes']} bytes{norm}"
        del entry["before"]  # the hash of the line before
        # A run's settings and a message's kind are the coordinator's words, and could clear a terminal.
        return escaped(" ".join([*words, *(f"{key} {value}" for key, value in entry.items())]))
    except NO_ENTRY:
        return ""


@command
def export(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL", help="The folder or file that the coordinator's export wrote."
        ),
    ],
    output: Annotated[Path, typer.Argument(metavar="OUT", help="Folder for the joined model.")],
    site: SiteFile = SITE_FILE,
) -> None:
    """Join a run's shared model with the tensors that this site keeps, for its own use."""
    from site_agent.config import read_site
    from site_agent.export import export as join

    print(join(read_site(site), model, output))


@command
def delete_run(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run's id.")],
    site: SiteFile = SITE_FILE,
) -> None:
    """Delete this site's memory of a run, and its cached copy of the data."""
    from data import DataError
    from site_agent.config import read_site

    this_site = read_site(site)
    folder = this_site.run_folder(run)
    if not folder.is_dir():
        raise DataError("there is no such run; `fedskew-site status` lists them", where=str(folder))
    shutil.rmtree(folder)
    if this_site.cache.exists():
        shutil.rmtree(this_site.cache)
    this_site.audit.write("forgotten", run=run)
    print(f"deleted: {run}")


def main() -> None:
    """Run the command line; the exit status is 2 for bad input, with one sentence."""
    os.umask(0o077)  # what this command writes is for its user alone
    try:
        status = application(prog_name="fedskew-site", standalone_mode=False)
    except click.ClickException as error:  # a wrong option: the usage and one sentence
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(INTERRUPTED)
    except (OSError, ValueError) as error:
        from client_app.local_site import NotAgreed
        from data import InputError

        if isinstance(error, InputError | NotAgreed):
            sentence = str(error)
        elif isinstance(error, OSError):
            # Files of tensors have a sentence in place of both.
            sentence = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        else:
            raise
        print(f"fedskew-site: {sentence}", file=sys.stderr)
        sys.exit(BAD_INPUT)
    sys.exit(status if isinstance(status, int) else 0)
