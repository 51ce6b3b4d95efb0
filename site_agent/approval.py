"""A site's approval: one federation.toml and one app, which is the installed code."""

import difflib
import getpass
import hashlib
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from client_app.local_site import PERMISSIONS
from data import DataError
from data.agreement import read_agreement, subtraction_warning
from data.packages import ROOT, canonical, sources
from data.text import escaped
from data.toml_file import keys_of
from site_agent.agreed_files import module_lines
from site_agent.app_files import app_hash, packed_app, packed_files
from site_agent.config import AppPolicy, Limits, Site, field_of
from site_agent.flower_app import check_module_names, client_app_of
from site_agent.policy import check_names

CLASS_COUNTS = "class-counts"
"""Of PERMISSIONS, the one for training samples by class."""
CLASS_STATISTICS = "class-statistics"
"""The one for feature statistics by class. After the last round ccvr asks each site for its own, without masks."""
SITE_PACKAGES = ("client_app", "data", "site_agent")
"""The packages that run at a site."""
MODULE_PACKAGES = ("strategies", "server_app", "fedskew")
"""Those that an agreed module may import besides, for the classes that its server half is made of."""

TEXT, APP, RECORD = "federation.toml", "app.fab", "approval.json"
"""What is approved: the files of `Site.approved`."""


# ---- what is shown ---------------------------------------------------------------------------------------------------


def summary(site: Site, app: str) -> str:
    """Return what is agreed to and what may leave this site, for the one who decides."""
    agreement = site.agreement
    runs = (
        "any that the SuperLink sends: federation.toml has no run-key, so whoever holds its machine can "
        "start one"
    )
    if agreement.run_key:
        runs = f"only those that the coordinator's key has signed: run-key {agreement.run_key}"
    lines = [
        f"federation  {agreement.name}: {', '.join(agreement.names)}",
        f"sha256      {agreement.sha256}",
        f"app         {app}",
        f"this site   {site.name}, with the data {site.data}",
        f"runs        {runs}",
        *warnings(site),
    ]
    if site.app is not None:
        lines.append("code        all of the app's code runs here on these data, so read it first")
        return "\n".join([*lines, *policy_lines(site.app)])
    for permission in PERMISSIONS:
        heading = "may leave" if permission in site.policy.allow else "stays here"
        lines.append(f"{heading:<12}{permission}")
    if agreement.masked:
        lines.append(
            "sums        masked: class counts and feature statistics leave in the sum of all sites alone"
        )
        methods = site.policy.methods
        may_run = methods is None or CLASS_STATISTICS in methods
        if may_run and CLASS_STATISTICS in site.policy.allow:
            lines.append(
                "unmasked    ccvr: this site's own counts, means and covariances by class leave without masks"
            )
    else:
        lines.append(
            "sums        plain: the coordinator sees this site's own class counts and feature statistics"
        )
    for member in agreement.sites:
        lines.append(f"samples     {member.name}: {member.samples or 'any number'}")
    if agreement.backbone:
        lines.append(f"backbone    {agreement.backbone}, weights of sha256 {agreement.weights}")
    lines += [*module_lines(site), *policy_lines(site.policy)]
    lines.append("a run sets  model, rounds, seed, and the settings of its training and methods")
    return "\n".join(lines)


def policy_lines(policy: Limits | AppPolicy) -> list[str]:
    """Return the keys of a policy with their values, those left out as well."""
    lines = []
    for key in keys_of(type(policy)):
        value = getattr(policy, field_of(key))
        text = "any" if value is None else json.dumps(value, default=sorted)
        lines.append(f"policy      {key} = {text}")
    return lines


def warnings(site: Site) -> list[str]:
    """Return what is to be looked at before this site approves its federation.toml, in lines."""
    agreement = site.agreement
    lines = []
    if len(agreement.sites) == 2 and CLASS_COUNTS in site.policy.allow and site.app is None:
        (other,) = {*agreement.names} - {site.name}
        lines.append(
            f"(!) counts  fedshift and reweighting send the sum of both sites' class counts to both: {other} learns "
            f"this site's exact counts. Without {CLASS_COUNTS} in policy.allow they stay here"
        )
    try:
        former = read_agreement(site.approved / TEXT)
    except DataError:  # nothing is approved
        return lines
    if former.run_key not in ("", agreement.run_key):
        lines.append(
            f"(!) runs    the approved text has the run-key {former.run_key}: ask the coordinator by telephone"
        )
    # A site that approves two federations that differ by a site gives its part of both sums.
    if warning := subtraction_warning(former, agreement):
        lines.append(f"(!) sites   {warning}")
    return lines


def changes_since(site: Site, content: bytes, files: Mapping[str, bytes]) -> list[str]:
    """Return what is other than in the approved federation.toml and app, in lines; none where nothing is approved.

    Args:
        site: The site, with what it has approved below its state.
        content: Of the new federation.toml.
        files: Of the new app, by name.
    """
    try:
        former = (site.approved / TEXT).read_bytes()
        former_files = packed_files((site.approved / APP).read_bytes())
    except (OSError, ValueError, DataError):
        return []
    before, after = (text.decode().replace("\r\n", "\n").split("\n") for text in (former, content))
    difference = difflib.unified_diff(before, after, "approved", "new", lineterm="")
    # A comment could write over what a terminal has shown.
    lines = [escaped(line, keep="\t") for line in difference]
    for name in sorted(former_files.keys() | files.keys()):
        if former_files.get(name) != files.get(name):
            lines.append(f"file changed, added or removed: {name!r}")
    return ["", "Other than what is approved here:", *lines] if lines else []


# ---- the approval ----------------------------------------------------------------------------------------------------


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
    files = agreed_app(site, fab, str(app))
    agreement = site.agreement
    if hashlib.sha256(content).hexdigest() != agreement.sha256:
        reason = "is another text than the federation.toml that site.toml names"
        raise DataError(reason, where=str(federation))
    question = [summary(site, agreement.app), *changes_since(site, content, files)]
    if not ask("\n".join(question)):
        return False
    record = {
        "federation": agreement.sha256,
        "app": agreement.app,
        "by": getpass.getuser(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    if agreement.module:
        record["module"] = agreement.module_sha256
    site.approved.mkdir(parents=True, exist_ok=True)
    # The record comes last: it makes the others count.
    for name, text in {TEXT: content, APP: fab, RECORD: json.dumps(record).encode()}.items():
        part = site.approved / f"{name}.part"
        part.write_bytes(text)
        part.replace(site.approved / name)
    site.audit.write("approved", **record)
    return True


def approved_files(site: Site) -> dict[str, bytes]:
    """Return the files of the approved app by name.

    Raises:
        DataError: nothing is approved, or the agreement, the kept app or the installed code are no longer those.
    """
    folder = site.approved
    try:
        record = json.loads((folder / RECORD).read_text())
        fab = (folder / APP).read_bytes()
    except (OSError, ValueError):
        reason = "nothing is approved; run `fedskew-site approve federation.toml APP`"
        raise DataError(reason, where=str(folder)) from None
    if record["federation"] != site.agreement.sha256:
        reason = "another federation.toml was approved; approve this one, or bring that one back"
        raise DataError(reason, where=str(folder))
    return agreed_app(site, fab, str(folder / APP))


def agreed_app(site: Site, fab: bytes, name: str) -> dict[str, bytes]:
    """Return the files of a packed app by name.

    Raises:
        DataError: the app is not the one that the parties agree to; FedSkew's is not the installed code, or another
            one has no ClientApp to run. `name` is how the error calls the app.
    """
    agreement = site.agreement
    files = packed_files(fab, name)
    code = app_hash(files)
    if code != agreement.app:
        rule = f"its hash is {code}, and federation.toml says app = {agreement.app}"
        raise DataError(rule, where=name)
    if site.app is not None:
        client_app_of(files, name)
        check_module_names(files, site.state / "app")
        return files
    packages = SITE_PACKAGES + (MODULE_PACKAGES if agreement.module else ())
    installed = sources(*packages)
    approved = {}
    for file, content in files.items():
        if file.startswith(tuple(f"{package}/" for package in packages)) and file.endswith(".py"):
            approved[file] = canonical(content)
    for file in sorted(installed.keys() | approved.keys()):
        if installed.get(file) != approved.get(file):
            reason = f"{file} is not what is installed at {ROOT}; install that release first"
            raise DataError(reason, where=name)
    return files
