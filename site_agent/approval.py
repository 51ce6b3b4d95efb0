"""A site's approval: one federation.toml and one app, which is the installed code."""

import difflib
import getpass
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path

from client_app.local_site import PERMISSIONS
from client_app.optimizer import TrainingSettings
from data import DataError
from data.agreement import Agreement, Member, read_agreement, subtraction_warning
from data.package_files import ROOT, canonical, sources
from site_agent.agreed_files import module_lines
from site_agent.app_files import app_hash, packed_app, packed_files
from site_agent.config import Site
from site_agent.policy import check_names

CLASS_COUNTS = "class-counts"
"""Of PERMISSIONS, the one for training samples by class."""
SITE_PACKAGES = ("client_app", "data", "site_agent")
"""The packages that run at a site."""
MODULE_PACKAGES = ("strategies", "server_app", "fedskew")
"""Those that an agreed module may import besides, for the classes that its server half is made of."""

TEXT, APP, RECORD = "federation.toml", "app.fab", "approval.json"
"""What is approved: the files of `Site.approved`."""
LISTED = 20
"""Files of an app that are listed as changed; a new release changes hundreds."""


def summary(site: Site, app: str) -> str:
    """Return what is agreed to and what a run may ask of this site, for the one who decides."""
    agreement = site.agreement
    permissions = []
    for name in PERMISSIONS:
        heading = "may leave" if name in site.allow else "stays here"
        permissions.append(f"{heading:<12}{name}")
    limit = f"{site.max_norm:g}" if site.max_norm else "none"
    if site.approve_runs:
        each_run = "needs `fedskew-site approve-run` before it takes place here"
    else:
        each_run = (
            "takes place within these limits without being asked about (approve-runs = false)"
        )
    lines = [
        f"federation  {agreement.name}: {', '.join(agreement.names)}",
        f"sha256      {agreement.sha256}",
        f"app         {app}",
        f"samples     {', '.join(map(agreed_samples, agreement.sites))}",
        f"this site   {site.name}, trains on {site.data}; a round needs {agreement.min_sites} sites",
        *permissions,
        *two_sites(site),
        f"sums        {sums_in_words(agreement)}",
        *membership_lines(site),
        *run_key_lines(site),
        *backbone_lines(agreement),
        *module_lines(site),
        f"limits      per class at least {site.min_class_samples} training samples, for scores at least "
        f"{site.min_test_samples} test samples, norm of an update at most: {limit}",
        f"an update   needs at least: samples in a mini-batch {site.min_batch_size}, steps {site.min_steps}, "
        f"different samples {site.min_update_samples}",
        f"a run       has at most {site.max_rounds} rounds; models: {any_of(site.models)}; "
        f"local methods: {any_of(site.methods)}",
        f"a run sets  model, rounds, seed, {', '.join(free_settings())}, and the settings of its methods",
        f"each run    {each_run}",
    ]
    return "\n".join(lines)


def any_of(names: Sequence[str] | None) -> str:
    """Return what a policy's list allows, in words."""
    return "any" if names is None else ", ".join(names) or "none"


def free_settings() -> list[str]:
    """Return the settings of local training, which the coordinator chooses for each run."""
    return [TrainingSettings.key(field.name) for field in fields(TrainingSettings)]


def two_sites(site: Site) -> list[str]:
    """Return the line about class counts between two sites, where this one lets them leave."""
    if len(site.agreement.sites) != 2 or CLASS_COUNTS not in site.allow:
        return []
    (other,) = {*site.agreement.names} - {site.name}
    return [
        f"two sites   fedshift and reweighting send the sum of both sites' class counts to both: {other} learns this "
        f"site's exact counts. Without {CLASS_COUNTS} in policy.allow they stay here"
    ]


def sums_in_words(agreement: Agreement) -> str:
    """Return how class counts and feature statistics leave this site."""
    if agreement.masked:
        return "masked: class counts and feature statistics leave in the sum of all sites alone"
    return "plain: the coordinator sees this site's own class counts and feature statistics"


def former_agreement(site: Site) -> Agreement | None:
    """Return what is approved so far; None where nothing is, or by a version with other rules."""
    try:
        return read_agreement(site.approved / TEXT)
    except DataError:
        return None


def run_key_lines(site: Site) -> list[str]:
    """Return whose runs a site takes; a warning where that was another key's before."""
    key = site.agreement.run_key
    line = (
        "runs        any that the SuperLink sends: federation.toml has no run-key, so whoever holds the gateway's "
        "machine can start one"
    )
    if key:
        line = f"runs        only those that the coordinator's key has signed: run-key {key}"
    former = former_agreement(site)
    if former is None or former.run_key in ("", key):
        return [line]
    change = "another run-key" if key else "no run-key"
    return [
        line,
        f"(!) runs    {change}, and the approved text has {former.run_key}: ask the coordinator by telephone",
    ]


def membership_lines(site: Site) -> list[str]:
    """Return the line about sites that join or leave the federation that is approved here so far, where it tells more.

    A site that approves both gives its part of both sums.
    """
    former = former_agreement(site)
    warning = former and subtraction_warning(former, site.agreement)
    return [f"(!) sites   {warning}"] if warning else []


def backbone_lines(agreement: Agreement) -> list[str]:
    """Return the line about the agreed backbone, if there is one."""
    if not agreement.backbone:
        return []
    return [f"backbone    {agreement.backbone}, weights of sha256 {agreement.weights}"]


def agreed_samples(member: Member) -> str:
    """Return how many training samples a site may state, in words."""
    if member.samples:
        return f"{member.name} at most {member.samples}"
    return f"{member.name} any"


def app_summary(site: Site, app: str, files: Mapping[str, bytes]) -> str:
    """Return what a site agrees to with a Flower app other than FedSkew's, for the one who decides."""
    policy, agreement = site.app, site.agreement
    assert policy is not None
    limit = f"{policy.max_norm:g}" if policy.max_norm else "none"
    size = f"{policy.max_bytes} bytes" if policy.max_bytes else "none"
    return "\n".join(
        [
            f"federation  {agreement.name}: {', '.join(agreement.names)}",
            f"sha256      {agreement.sha256}",
            f"app         {app}, {len(files)} files: all of its code runs here, so read it first",
            f"this site   {site.name}, gives the app {site.data.partition(':')[2]} as data-path",
            *run_key_lines(site),
            f"may leave   arrays: {any_of(policy.arrays)}; metrics: {any_of(policy.metrics)}; "
            f"configs: {any_of(policy.configs)}",
            f"limits      norm of a change: {limit}; size of a reply: {size}; "
            f"samples of a reply: at least {policy.min_samples}",
        ]
    )


def approve(
    site: Site,
    federation: Path,
    app: Path,
    ask: Callable[[str], bool],
) -> bool:
    """Keep a copy of the agreement and the app below the site's state if `ask` says so, and return whether.

    Args:
        site: With the agreement that is to be approved.
        federation: The file with its text.
        app: A clone's folder, or a .fab.
        ask: Gets all that is agreed to, in lines, and returns the decision.

    Raises:
        DataError: an app other than the agreed one, or than the code installed here; another federation.toml than
            the one that site.toml names.
    """
    check_names(site)
    content = federation.read_bytes()
    fab = packed_app(app)
    files = packed_files(fab, str(app))
    code = app_hash(files)
    check_agreed(site, code, str(app))
    check_can_run(site, files, str(app))
    if hashlib.sha256(content).hexdigest() != site.agreement.sha256:
        reason = "is another text than the federation.toml that site.toml names"
        raise DataError(reason, where=str(federation))
    question = summary(site, code) if site.app is None else app_summary(site, code, files)
    changes = changes_since(site, content, files)
    if not ask("\n".join([question, *changes])):
        return False
    record = {
        "federation": site.agreement.sha256,
        "app": code,
        "by": getpass.getuser(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    if site.agreement.module:
        record["module"] = site.agreement.module_sha256
    site.approved.mkdir(parents=True, exist_ok=True)
    # The record comes last: it makes the others count.
    for name, text in {TEXT: content, APP: fab, RECORD: json.dumps(record).encode()}.items():
        part = site.approved / f"{name}.part"
        part.write_bytes(text)
        part.replace(site.approved / name)
    site.audit.write("approved", **record)
    return True


def changes_since(site: Site, content: bytes, files: Mapping[str, bytes]) -> list[str]:
    """Return what is other than in the approved federation.toml and app, in lines; none where nothing is approved.

    Args:
        site: The site, with what it has approved below its state.
        content: Of the new federation.toml.
        files: Of the new app, by name.
    """
    try:
        former = (site.approved / TEXT).read_text(encoding="utf-8")
        former_files = packed_files((site.approved / APP).read_bytes())
    except (OSError, ValueError, DataError):
        return []
    lines = list(
        difflib.unified_diff(
            former.splitlines(), content.decode().splitlines(), "approved", "new", lineterm=""
        )
    )
    changed = changed_files(former_files, files)
    lines += changed[:LISTED]
    if len(changed) > LISTED:
        lines.append(f"and {len(changed) - LISTED} files more")
    return ["", "Other than what is approved here:", *lines] if lines else []


def changed_files(former: Mapping[str, bytes], files: Mapping[str, bytes]) -> list[str]:
    """Return a line for each file that only one of two apps has, or that they have with other contents."""
    changed = []
    for name in sorted(former.keys() | files.keys()):
        if name not in files:
            changed.append(f"file removed: {name!r}")
        elif name not in former:
            changed.append(f"file added:   {name!r}")
        elif former[name] != files[name]:
            changed.append(f"file changed: {name!r}")
    return changed


def approved_files(site: Site) -> dict[str, bytes]:
    """Return the files of the approved app by name.

    Raises:
        DataError: nothing is approved, or the agreement, the kept app or the installed code are no longer those.
    """
    folder = site.approved
    fab = folder / APP
    try:
        record = json.loads((folder / RECORD).read_text())
        files = packed_files(fab.read_bytes(), str(fab))
    except (OSError, ValueError):
        reason = "nothing is approved; run `fedskew-site approve federation.toml APP`"
        raise DataError(reason, where=str(folder)) from None
    if record["federation"] != site.agreement.sha256:
        reason = "another federation.toml was approved; approve this one, or bring that one back"
        raise DataError(reason, where=str(folder))
    check_agreed(site, app_hash(files), str(fab))
    check_can_run(site, files, str(fab))
    return files


def check_agreed(site: Site, code: str, name: str) -> None:
    """Raise DataError unless the app is the one that the parties agree to."""
    if code != site.agreement.app:
        raise DataError(
            f"its hash is {code}, and federation.toml says app = {site.agreement.app}", where=name
        )


def check_can_run(site: Site, files: Mapping[str, bytes], name: str) -> None:
    """Raise DataError unless FedSkew's app is the installed code, or another app has a ClientApp to run."""
    if site.app is None:
        of_module = MODULE_PACKAGES if site.agreement.module else ()
        check_installed(files, name, (*SITE_PACKAGES, *of_module))
        return
    from site_agent.flower_app import check_module_names, client_app_of

    client_app_of(files, name)
    check_module_names(files, site.state / "app")


def check_installed(
    files: Mapping[str, bytes], name: str, packages: Sequence[str] = SITE_PACKAGES
) -> None:
    """Raise DataError unless an app holds the very sources that are installed here and would be run."""
    for package in packages:
        installed = sources(package)
        approved = {}
        for file, content in files.items():
            if file.startswith(f"{package}/") and file.endswith(".py"):
                approved[file] = canonical(content)
        for file in sorted(installed.keys() | approved.keys()):
            if installed.get(file) != approved.get(file):
                reason = f"{file} is not what is installed at {ROOT}; install that release first"
                raise DataError(reason, where=name)
