"""The command `fedskew-site`."""

import argparse
import json
import os
import shutil
import sys
from pathlib import Path

from client_app.local_site import NotAgreed
from data import DataError, InputError
from site_agent.audit import Audit
from site_agent.config import Site, path_in, read_link, read_site, table_of

BAD_INPUT = 2


def key(arguments: argparse.Namespace) -> int:
    """Make a node key and print the lines of federation.toml that name it."""
    from site_agent.keys import make_key

    public = make_key(arguments.file)
    print(f'[[site]]\nname = "{arguments.name}"\nkey = "{public}"')
    if arguments.samples:
        print(f"samples = {arguments.samples}")
    return 0


def approve(arguments: argparse.Namespace) -> int:
    """Show both hashes and what a run may ask of this site, ask, and keep a copy."""
    from site_agent.approval import approve as decide

    def ask(text: str) -> bool:
        print(text)
        return arguments.yes or asked("Approve? [y/N] ")

    if decide(read_site(arguments.site), arguments.federation, arguments.app, ask):
        print("approved")
        return 0
    print("not approved")
    return 1


def runs(arguments: argparse.Namespace) -> int:
    """List the runs that wait for approval, and those that are approved; only with approve-runs are any asked about."""
    from site_agent.run_approval import approved, waiting

    site = read_site(arguments.site)
    for code in waiting(site):
        print(f"waits      {code}")
    for file in sorted(approved(site).glob("*.json")):
        print(f"approved   {file.stem}")
    return 0


def approve_run(arguments: argparse.Namespace) -> int:
    """Show the settings of a run that waits, ask, and let it take place here."""
    from site_agent.run_approval import approve as let_in
    from site_agent.run_approval import settings_waiting, shown

    site = read_site(arguments.site)
    print(
        "\n".join(
            [*shown(settings_waiting(site, arguments.settings)), f"sha256 {arguments.settings}"]
        )
    )
    if not (arguments.yes or asked("Approve this run? [y/N] ")):
        print("not approved")
        return 1
    let_in(site, arguments.settings)
    Audit(site.state / "audit.jsonl").write("run approved", settings=arguments.settings)
    print("approved")
    return 0


def asked(question: str) -> bool:
    """Return whether somebody at a terminal says yes."""
    return sys.stdin.isatty() and input(question).strip().lower() in ("y", "yes")


def check(arguments: argparse.Namespace) -> int:
    """Check data, rights, disk, device and versions; with --online also the way to the coordinator."""
    from site_agent.online import online
    from site_agent.preflight import offline

    site, rows = read_site(arguments.site), []
    for row in offline(site, arguments.site):
        print(row, flush=True)
        rows.append(row)
    for row in online(site, read_link(arguments.site)) if arguments.online else ():
        print(row, flush=True)
        rows.append(row)
    return 0 if all(row.holds for row in rows) else 1


def start(arguments: argparse.Namespace) -> int:
    """Take part, until a signal comes."""
    from site_agent import service

    if arguments.only and not arguments.secret:
        raise DataError(
            f"--only {arguments.only}: --secret must name the file that both halves read"
        )
    try:
        if arguments.only == "link":
            state = path_in(table_of(arguments.site), arguments.site, "state")
            service.link_only(read_link(arguments.site), state, arguments.port, arguments.secret)
        elif arguments.only == "train":
            service.train_only(
                read_site(arguments.site), arguments.port, arguments.secret, arguments.metrics
            )
        else:
            service.start(read_site(arguments.site), read_link(arguments.site), arguments.metrics)
    except SystemExit:  # everything has ended; to unload torch takes seconds
        os._exit(0)
    return 0


def status(arguments: argparse.Namespace) -> int:
    """Say what is approved, whether this site is at work, its last exchange, and what its runs keep."""
    from site_agent.approval import approved_app
    from site_agent.service import lock

    site = read_site(arguments.site)
    try:
        print(
            f"approved   {site.agreement.name} {site.agreement.sha256[:16]}, app {approved_app(site)[:16]}"
        )
    except DataError as error:
        print(f"approved   no: {error}")
    site.state.mkdir(parents=True, exist_ok=True)
    with (site.state / "lock").open("a") as file:
        print(f"at work    {'no' if lock(file) else 'yes'}")
    lines = Audit(site.state / "audit.jsonl").lines()
    print(f"last entry {describe(lines[-1]) if lines else 'none'}")
    for folder in sorted((site.state / "runs").glob("*")):
        print(
            f"run        {folder.name}, {sum(file.stat().st_size for file in folder.rglob('*')) / 2**20:.1f} MiB"
        )
    return 0


def log(arguments: argparse.Namespace) -> int:
    """Print the audit log, or verify that no line of it was changed or removed."""
    audit = Audit(read_site(arguments.site).state / "audit.jsonl")
    if arguments.verify:
        print(f"{audit.verify()} lines follow from each other")
        return 0
    for line in audit.lines():
        print(describe(line))
    return 0


def describe(line: bytes) -> str:
    """Return a line of the audit log for people."""
    entry = json.loads(line)
    left = "; ".join(
        f"{row['name']} {row['bytes']} bytes" + (f", norm {row['norm']:g}" if "norm" in row else "")
        for row in entry.pop("left", [])
    )
    words = " ".join(
        f"{key} {value}" for key, value in entry.items() if key not in ("time", "event", "before")
    )
    return f"{entry['time'][:19]} {entry['event']:<9} {words}{f' left: {left}' if left else ''}"


def export(arguments: argparse.Namespace) -> int:
    """Join what all sites share of a run's model with what this site keeps, for its own use."""
    from site_agent.export import export as join

    print(join(read_site(arguments.site), arguments.model, arguments.output))
    return 0


def forget(arguments: argparse.Namespace) -> int:
    """Delete what this site keeps of a run: its memory, and the copy of the data that is made again when needed."""
    site: Site = read_site(arguments.site)
    folder = site.run_folder(arguments.run)
    if not folder.is_dir():
        raise DataError(f"{folder}: there is no such run; `fedskew-site status` lists them")
    for gone in (folder, site.cache):
        shutil.rmtree(gone, ignore_errors=not gone.exists())
    Audit(site.state / "audit.jsonl").write("forgotten", run=arguments.run)
    print(f"forgotten: {arguments.run}")
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    whole = argparse.ArgumentParser(
        "fedskew-site", description="A hospital's part in a federation."
    )
    commands = whole.add_subparsers(required=True, metavar="COMMAND")
    parts = {}
    for command in (key, approve, runs, approve_run, check, start, status, log, export, forget):
        name = command.__name__.replace("_", "-")
        part = commands.add_parser(name, help=command.__doc__, description=command.__doc__)
        part.set_defaults(command=command)
        if command is not key:
            part.add_argument(
                "--site", type=Path, default=Path("site.toml"), help="This site's file."
            )
        parts[name] = part
    parts["key"].add_argument("file", type=Path, metavar="FILE", help="Where the private key goes.")
    parts["key"].add_argument("--name", default="NAME", help="The site's name in federation.toml.")
    parts["key"].add_argument(
        "--samples", type=int, help="Training samples that the site may state at most."
    )
    parts["approve"].add_argument("federation", type=Path, help="federation.toml.")
    parts["approve"].add_argument(
        "app", type=Path, metavar="APP", help="A clone's folder, or a .fab."
    )
    parts["approve"].add_argument("--yes", action="store_true", help="Do not ask.")
    parts["approve-run"].add_argument(
        "settings",
        metavar="SHA256",
        help="The hash of its settings, as `fedskew-site runs` has it.",
    )
    parts["approve-run"].add_argument("--yes", action="store_true", help="Do not ask.")
    parts["check"].add_argument(
        "--online", action="store_true", help="Also the way to the coordinator."
    )
    parts["start"].add_argument(
        "--only", choices=("link", "train"), help="One half: who talks, or who has the data."
    )
    parts["start"].add_argument(
        "--port", type=int, default=9094, help="With --only: the halves' port on loopback."
    )
    parts["start"].add_argument(
        "--secret", type=Path, help="With --only: the file with the halves' secret."
    )
    parts["start"].add_argument(
        "--metrics", type=int, default=0, help="A port of loopback for /metrics; 0 is none."
    )
    parts["log"].add_argument(
        "--verify", action="store_true", help="Find a removed or changed line."
    )
    parts["export"].add_argument(
        "model", type=Path, metavar="MODEL", help="What the coordinator's export wrote."
    )
    parts["export"].add_argument(
        "output", type=Path, metavar="OUT", help="Folder for the whole model."
    )
    parts["forget"].add_argument("run", metavar="RUN", help="The run's id.")
    return whole


def main() -> None:
    """Run the command line; the exit status is 2 for bad input, with one sentence."""
    arguments = parser().parse_args()
    os.umask(0o077)  # what this command writes is for its user alone
    try:
        sys.exit(arguments.command(arguments))
    except (InputError, NotAgreed) as error:
        print(f"fedskew-site: {error}", file=sys.stderr)
        sys.exit(BAD_INPUT)
    except OSError as error:
        print(f"fedskew-site: {error.filename or ''}: {error.strerror}", file=sys.stderr)
        sys.exit(BAD_INPUT)
