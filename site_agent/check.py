"""`fedskew-site check`: whether this site can take part, one row per check, each failure with its remedy."""

import os
import shutil
import socket
import ssl
import stat
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.request import getproxies, proxy_bypass

import httpx
import numpy as np
import torch
from cryptography import x509

from client_app.models.backbone import TORCHVISION, load_torchvision
from client_app.site_questions import ColumnSums
from data import DataError, DataSettings, InputError
from data.data_warnings import refuse_copies, warnings_of_copies
from data.dataset import Dataset
from data.readers.catalog import is_own
from site_agent.agreed_files import own_module, own_weights
from site_agent.approval import approved_files
from site_agent.config import Link, Site, read_link
from site_agent.data_view import check_samples, federation_of, own_columns
from site_agent.flower_internals import (
    FleetHttpClient,
    NodeAuthHttpInterceptor,
    SendNodeHeartbeatRequest,
)
from site_agent.keys import public_text, read_key
from site_agent.policy import check_names
from site_agent.sum_ledger import own_mask_key

FEW = 4
"""Samples of a mini-batch, or of an update, below which `check` warns."""
ROOM = 2 * 2**30
"""Bytes that must be free below state, at least."""
SECONDS = 10.0
NO_ANSWER = (502, 503, 504)
"""Statuses where the SuperLink has not answered."""
FAST, SLOW = 5, 305
"""Seconds by which this machine's clock may be ahead and behind; flwr ends a node beyond."""
OTHER_AUTHORITY = (
    "the certificate is of another authority than link.ca; ask the coordinator for its ca.crt"
)
CERTIFICATE = {
    9: "the certificate is not yet valid; look at this machine's clock first",
    10: "the certificate has expired by this machine's clock: set the clock where that is wrong, else the coordinator "
    "must renew the certificate",
    # Self-signed, no or another issuer, a wrong signature.
    **dict.fromkeys((7, 18, 19, 20, 21), OTHER_AUTHORITY),
}
"""What is wrong with a certificate and who is to do what, by OpenSSL's X509_V_ERR codes."""
UNREACHABLE = (
    (
        ssl.SSLError,
        "answers, but not with TLS (plain HTTP?); a SuperNode would retry for ever without a word: wrong port?",
    ),
    (socket.gaierror, "no machine has this name; look at link.address and at the name service"),
    (ConnectionRefusedError, "nobody listens there; is the coordinator's service running?"),
    (TimeoutError, "no answer; a firewall? ask for outgoing TCP to this port"),
)


class Warned(str):
    """What was seen where a check holds and somebody should look at it all the same."""


@dataclass(frozen=True)
class Row:
    """What was looked at, whether it holds, and what was seen or is to be done."""

    subject: str
    holds: bool
    text: str

    def __str__(self) -> str:
        mark = "ok " if self.holds else "NO "
        if isinstance(self.text, Warned):
            mark = "(!)"
        return f"{mark} {self.subject:<12} {self.text}"


def row(subject: str, look: Callable[..., Any], *arguments: object, text: str = "") -> Row:
    """Return the row of a check: `text`, or else what `look` returns; or the InputError that it raises."""
    try:
        found = look(*arguments)
    except InputError as error:
        return Row(subject, False, str(error))
    return Row(subject, True, text or found)


def offline(site: Site, file: Path) -> Iterator[Row]:
    """Look at everything that needs no network. `file` is site.toml."""
    agreed = site.agreement
    yield row("versions", versions)
    yield row("state", closed, site.state, 0o077, "chmod 700")
    yield row("site.toml", closed, file, 0o022, "chmod go-w")
    yield row("key", key, site, file)
    yield approval(site)
    yield row("disk", room, site)
    if site.app is not None:  # only the app knows what its data are and where it computes
        return
    yield row("policy", policy, site)
    if agreed.masked:
        yield row("mask key", own_mask_key, site, text=str(site.mask_key))
    if agreed.backbone.startswith(TORCHVISION):
        yield row("torchvision", load_torchvision, text="can be imported")
    if agreed.backbone:
        yield row("weights", own_weights, site, text=f"{agreed.backbone}: {site.weights}")
    if agreed.module:
        yield row("module", own_module, site, text=f"{agreed.module}: {site.module}")
    yield row("device", device, site)
    yield from data_rows(site)


def approval(site: Site) -> Row:
    """Look at what is approved, and whether it is what is agreed and installed."""
    agreed = site.agreement
    text = f"{agreed.name} {agreed.sha256[:16]}, app {agreed.app[:16]}"
    return row("approval", approved_files, site, text=text)


# ---- this machine and its files --------------------------------------------------------------------------------------


def versions() -> str:
    """The releases that are installed here."""
    releases = [f"{name} {version(name)}" for name in ("torch", "flwr", "fedskew")]
    return ", ".join([f"Python {sys.version.split()[0]}", *releases])


def closed(path: Path, rights: int, remedy: str) -> str:
    """Whether a file or folder, if it is there, gives others none of these rights."""
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0
    if mode & rights:
        rule = f"others have rights on it (mode {mode:o}); {remedy} {path}"
        raise DataError(rule, where=str(path))
    return str(path)


def key(site: Site, file: Path) -> str:
    """The node's key, which must be the one that federation.toml names for this site."""
    if not site.has_link:
        return "no [link]: this user trains, and another one talks"
    link = read_link(file).link
    if public_text(read_key(link.key).public_key()) != site.agreement.sites[site.number].key:
        rule = (
            f"is not the key that federation.toml names for {site.name}; "
            "send the lines of `fedskew-site key`"
        )
        raise DataError(rule, where=str(link.key))
    return str(link.key)


def policy(site: Site) -> str:
    """The names in the policy's lists, and whether it lets an update be made of very few samples."""
    check_names(site)
    if site.policy.min_batch_size < FEW or site.policy.min_update_samples < FEW:
        return Warned(
            f"lets an update be made of fewer than {FEW} samples: the coordinator can then read single images"
        )
    return f"updates of at least {site.policy.min_update_samples} samples"


def device(site: Site) -> str:
    """The GPU, where one is asked for."""
    gpus = torch.cuda.device_count()
    text = f"{site.device}, {site.threads} of {os.cpu_count()} threads, {gpus} GPUs"
    if site.device == "cuda" and not gpus:
        raise DataError(f'{text}; install a driver and a torch for it, or set device = "cpu"')
    return text


def room(site: Site) -> str:
    """The room on the disk that state is on."""
    folder = site.state
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    text = f"{free / 2**30:.1f} GiB free below {folder}"
    if free < ROOM:
        raise DataError(f"{text}; make room for {ROOM >> 30} GiB")
    return text


# ---- the data --------------------------------------------------------------------------------------------------------


def data_rows(site: Site) -> Iterator[Row]:
    """Look at the data as a run reads them. The numbers of samples are shown here and do not leave."""
    agreement = site.agreement
    try:
        federation = federation_of(site, DataSettings())
    except InputError as error:
        yield Row("data", False, str(error))
        return
    data = federation.dataset
    yield Row("data", True, f"{site.data}: inputs of {'x'.join(map(str, data.shape))}")
    if len(data.shape) == 1 and is_own(site.data):
        yield row("columns", columns, site)
    if agreement.classes and not agreement.mean:
        yield row("mean and std", standardization, site)
    trained_C = federation.counts_KC[0].tolist()
    tested_C = np.bincount(data.test.labels, minlength=data.num_classes).tolist()
    for number, name in enumerate(data.class_names):
        text = f"{name}: {trained_C[number]} training samples, {tested_C[number]} test samples"
        if 0 < trained_C[number] < site.policy.min_class_samples:
            text += "; fewer than min-class-samples: nothing by class leaves"
        yield Row(f"class {number}", True, text)
    samples = sum(trained_C)
    yield row("training set", check_samples, site, samples, text=f"{samples} samples")
    if names := agreement.without_samples:
        text = (
            f"federation.toml agrees on none for {', '.join(names)}: a site that states too many owns the model; "
            "agree on `samples` for each [[site]]"
        )
        yield Row("samples", True, Warned(text))
    tested = int(federation.tested_C("test", 0).sum())
    enough = tested >= site.policy.min_test_samples
    text = (
        ""
        if enough
        else f"; needs {site.policy.min_test_samples} (min-test-samples), else no scores leave"
    )
    yield Row("test set", enough, f"{tested} samples{text}")
    yield row("copies", copies, data)


def columns(site: Site) -> str:
    """Whether the input columns of a table are matched by name."""
    agreed = site.agreement.input_columns
    here = own_columns(site)
    if agreed and here:
        order = (
            "" if here == agreed else "; the file has them in another order than federation.toml"
        )
        return f"{len(agreed)} input columns, matched by name{order}"
    who = site.data if agreed else "federation.toml"
    return Warned(f"{who} names no input columns, so their order counts, and nobody can compare it")


def standardization(site: Site) -> str:
    """Whether the sums may leave from which mean and std of a table's columns come."""
    text = "mean and std of the columns come from sums over all sites"
    needed = ColumnSums.permission
    if needed not in site.policy.allow:
        raise DataError(
            f"{text}; [policy] allow needs {needed}, or agree on mean and std in federation.toml"
        )
    return text


def copies(data: Dataset) -> str:
    """Whether test samples are training samples too; up to 4,096 are looked at."""
    refuse_copies(data)
    if found := warnings_of_copies(data):
        return Warned("; ".join(found))
    return "no test sample is a training sample"


# ---- the connection to the coordinator -------------------------------------------------------------------------------


def online(link: Link) -> Iterator[Row]:
    """Check proxy, TLS, certificate, clock and key; checks that need one that fails are left out."""
    host, _, _ = link.address.rpartition(":")
    proxy = "" if proxy_bypass(host) else getproxies().get("https", "")
    yield Row("proxy", True, f"{proxy or 'none'} for {host}")
    try:
        certificate, ahead = shake_hands(link)
    except (OSError, ValueError, httpx.HTTPError) as error:
        yield Row("tls", False, f"{link.address}: {explain(error)}")
        return
    last = certificate.not_valid_after_utc
    days = (last - datetime.now(UTC)).days
    remedy = "" if days >= 30 else "; ask for a new one soon"
    text = f"{link.address}: certificate until {last:%Y-%m-%d}, {days} days{remedy}"
    yield Row("tls", True, text)
    # With a wrong clock the coordinator refuses every signature, whatever the key.
    is_right = -SLOW < ahead < FAST
    remedy = f"; must be {-SLOW} to {FAST} s: let a time service set this machine's clock"
    text = f"{ahead:+.0f} s against the coordinator's{'' if is_right else remedy}"
    yield Row("clock", is_right, text)
    if is_right:
        yield row("key known", known, link)


def shake_hands(link: Link) -> tuple[x509.Certificate, float]:
    """Return the coordinator's certificate, and by how many seconds this machine's clock is ahead.

    The way is that of the SuperNode, whose HTTP client this is: over the environment's proxy, if it has one. Raises
    OSError, ValueError or an error of httpx.
    """
    # As the SuperNode verifies. Python's default context is stricter from 3.13 on.
    # It would refuse the certificates of a federation that an older FedSkew has made.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cafile=str(link.ca))
    url = f"https://{link.address}/"
    with httpx.stream("GET", url, verify=context, timeout=SECONDS) as response:
        tls = response.extensions["network_stream"].get_extra_info("ssl_object")
        certificate = x509.load_der_x509_certificate(tls.getpeercert(True))
        ours = datetime.now(UTC)
        stamp = response.headers.get("Date")
    theirs = parsedate_to_datetime(stamp) if stamp else ours
    return certificate, (ours - theirs).total_seconds()


def explain(error: BaseException) -> str:
    """Return why the coordinator is not reached, or why its certificate is not taken, and who is to do what."""
    while before := error.__cause__ or error.__context__:  # httpx's errors are of the system's
        error = before
    if isinstance(error, ssl.SSLCertVerificationError):
        return CERTIFICATE.get(error.verify_code) or (
            f"the certificate does not hold: {error.verify_message}; link.address must be a name that is in it"
        )
    for kind, text in UNREACHABLE:
        if isinstance(error, kind):
            return text
    return f"{type(error).__name__}: {error}"


def known(link: Link) -> str:
    """Whether the coordinator takes this site's key; nothing changes for a SuperNode that is at work.

    Raises DataError for a key that is refused or cannot be read, and where nobody answers.
    """
    private = read_key(link.key)
    signed = NodeAuthHttpInterceptor(private, private.public_key())
    authority = link.ca.read_bytes()
    try:
        # The heartbeat of no node: a key that is not known is refused before anybody looks at the node.
        with FleetHttpClient.from_server_address(link.address, False, authority, [signed]) as fleet:
            fleet.SendNodeHeartbeat(SendNodeHeartbeatRequest(heartbeat_interval=30))
    except httpx.HTTPStatusError as error:
        code = error.response.status_code
        if code == 403:
            raise DataError(
                f"no: the coordinator refuses this site's key ({code}). It is not agreed to, was replaced, or this "
                "machine's clock is wrong: send the lines of `fedskew-site key`"
            ) from None
        if code in NO_ANSWER:
            raise DataError(f"not asked: the SuperLink does not answer ({code})") from None
    except Exception as error:  # of httpx, or of flwr, which has tried again
        raise DataError(f"not asked: {explain(error)}") from None
    return "yes"
