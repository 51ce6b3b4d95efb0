"""`fedskew-site check`: whether this site can take part, one row per check, each failure with its remedy."""

import http.client
import os
import shutil
import socket
import ssl
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import numpy as np
import torch
from cryptography import x509

from client_app.column_sums import ColumnSums
from client_app.models.backbone import TORCHVISION, load_torchvision
from data import DataError, DataSettings, InputError
from data.data_warnings import of_samples, refuse_copies
from data.readers.catalog import is_own
from data.text import is_whole
from site_agent.agreed_files import own_module, own_weights
from site_agent.approval import approved_files
from site_agent.config import Link, Site, read_link, table_of
from site_agent.data_view import SiteView
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


def row(subject: str, look: Callable[..., str], *arguments: object) -> Row:
    """Return the row of a check: what `look` returns, or the InputError that it raises."""
    try:
        return Row(subject, True, look(*arguments))
    except InputError as error:
        return Row(subject, False, str(error))


def offline(site: Site, file: Path) -> Iterator[Row]:
    """Look at everything that needs no network. `file` is site.toml."""
    agreement = site.agreement
    yield row("versions", versions)
    yield row("state", state, site)
    yield row("site.toml", site_file, file)
    yield row("key", key, site, file)
    yield row("approval", approval, site)
    if site.app is not None:  # only the app knows what its data are and where it computes
        yield row("disk", room, site)
        return
    yield row("policy", policy, site)
    if agreement.masked:
        yield row("mask key", mask_key, site)
    if agreement.backbone.startswith(TORCHVISION):
        yield row("torchvision", torchvision)
    if agreement.backbone:
        yield row("weights", weights, site)
    if agreement.module:
        yield row("module", module, site)
    yield row("device", device, site)
    yield row("disk", room, site)
    yield from data_rows(site)


def data_rows(site: Site) -> Iterator[Row]:
    """Look at the data as a run reads them. The numbers of samples are shown here and do not leave."""
    agreement = site.agreement
    try:
        view = SiteView(DataSettings(), agreement, site.number, site.data, site.cache, site.reading)
    except InputError as error:
        yield Row("data", False, str(error))
        return
    yield Row("data", True, f"{site.data}: inputs of {'x'.join(map(str, view.dataset.shape))}")
    if len(view.dataset.shape) == 1 and is_own(site.data):
        yield row("columns", columns, site, view)
    if agreement.classes and not agreement.mean:
        yield row("mean and std", standardization, site)
    for number, text in enumerate(classes(site, view)):
        yield Row(f"class {number}", True, text)
    yield row("training set", training_set, site, int(view.counts_C.sum()))
    if names := agreement.without_samples:
        text = (
            f"federation.toml agrees on none for {', '.join(names)}: a site that states too many owns the model; "
            "agree on `samples` for each [[site]]"
        )
        yield Row("samples", True, Warned(text))
    yield row("test set", test_set, site, view.tested)
    yield row("copies", copies, view)
    yield row("finite", finite, "training inputs", view.dataset.train.inputs)
    yield row("finite", finite, "test inputs", view.dataset.test.inputs)


# ---- this machine and its files --------------------------------------------------------------------------------------


def versions() -> str:
    """The releases that are installed here."""
    releases = [f"{name} {version(name)}" for name in ("torch", "flwr", "fedskew")]
    return ", ".join([f"Python {sys.version.split()[0]}", *releases])


def torchvision() -> str:
    """Whether torchvision can be loaded. Raises SettingError."""
    load_torchvision()
    return version("torchvision")


def state(site: Site) -> str:
    """Whether the site's state is for its owner alone."""
    mode = stat.S_IMODE(site.state.stat().st_mode) if site.state.exists() else 0o700
    if mode & 0o077:
        rule = f"others may enter it (mode {mode:o}); chmod 700 {site.state}"
        raise DataError(rule, where=str(site.state))
    return str(site.state)


def site_file(file: Path) -> str:
    """Whether site.toml is its owner's alone to write."""
    if stat.S_IMODE(file.stat().st_mode) & 0o022:
        raise DataError("others may write it; chmod go-w", where=str(file))
    return str(file)


def key(site: Site, file: Path) -> str:
    """The node's key, which must be the one that federation.toml names for this site."""
    if "link" not in table_of(file).entries:
        return "no [link]: this user trains, and another one talks"
    link = read_link(file)
    if public_text(read_key(link.key).public_key()) != site.agreement.sites[site.number].key:
        rule = (
            f"is not the key that federation.toml names for {site.name}; "
            "send the lines of `fedskew-site key`"
        )
        raise DataError(rule, where=str(link.key))
    return str(link.key)


def mask_key(site: Site) -> str:
    """The key for masked sums, which must be the one that federation.toml names for this site."""
    own_mask_key(site)
    return str(site.mask_key)


def approval(site: Site) -> str:
    """What is approved, and that it is what is agreed and installed."""
    approved_files(site)
    agreement = site.agreement
    return f"{agreement.name} {agreement.sha256[:16]}, app {agreement.app[:16]}"


def policy(site: Site) -> str:
    """The names in the policy's lists, and whether it lets an update be made of very few samples."""
    check_names(site)
    if site.min_batch_size < FEW or site.min_update_samples < FEW:
        return Warned(
            f"lets an update be made of fewer than {FEW} samples: the coordinator can then read single images"
        )
    return f"updates of at least {site.min_update_samples} samples"


def weights(site: Site) -> str:
    """The file of the backbone's weights, which must be the one that is agreed."""
    return f"{site.agreement.backbone}: {own_weights(site)}"


def module(site: Site) -> str:
    """The file of the agreed module, which must be the one that is agreed. It is not loaded."""
    return f"{site.agreement.module}: {own_module(site)[1]}"


def device(site: Site) -> str:
    """The GPU, where one is asked for."""
    numbers = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    names = ", ".join(map(torch.cuda.get_device_name, numbers)) or "no GPU"
    text = f"{site.device}, {site.threads} of {os.cpu_count()} threads, {names}"
    if site.device == "cuda" and not numbers:
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


def columns(site: Site, view: SiteView) -> str:
    """Whether the input columns of a table are matched by name."""
    agreed = site.agreement.input_columns
    here = view.own_columns
    if not agreed or not here:
        who = "federation.toml" if not agreed else site.data
        return Warned(
            f"{who} names no input columns, so their order counts, and nobody can compare it"
        )
    text = f"{len(here)} input columns, matched by name"
    if here != agreed:
        text += "; the file has them in another order than federation.toml"
    return text


def standardization(site: Site) -> str:
    """Whether the sums may leave from which mean and std of a table's columns come."""
    text = "mean and std of the columns come from sums over all sites"
    needed = ColumnSums.permission
    if needed not in site.allow:
        raise DataError(
            f"{text}; [policy] allow needs {needed}, or agree on mean and std in federation.toml"
        )
    return text


def classes(site: Site, view: SiteView) -> Iterator[str]:
    """The samples of each class."""
    data = view.dataset
    tested_C = np.bincount(data.test.labels, minlength=data.num_classes)
    for name, trained, tested in zip(
        data.class_names, view.counts_C.tolist(), tested_C, strict=True
    ):
        text = f"{name}: {trained} training samples, {tested} test samples"
        if 0 < trained < max(site.min_class_samples, 1):
            text += "; fewer than min-class-samples: nothing about it leaves"
        yield text


def training_set(site: Site, samples: int) -> str:
    """The number of training samples, which must be at most what is agreed."""
    agreed = site.agreement.sites[site.number].samples
    if agreed and samples > agreed:
        raise DataError(
            f"{samples} samples, and federation.toml agrees on at most {agreed} of {site.name}: agree on more"
        )
    if not samples:
        raise DataError("0 samples")
    return f"{samples} samples"


def test_set(site: Site, samples: int) -> str:
    """The number of test samples, which must be enough for scores."""
    least = site.min_test_samples
    if samples < max(least, 1):
        raise DataError(
            f"{samples} samples; needs {least} (min-test-samples), else no scores leave"
        )
    return f"{samples} samples"


def copies(view: SiteView) -> str:
    """Whether test samples are training samples too, or images are of one value; up to 4,096 are looked at."""
    refuse_copies(view.dataset)
    if found := of_samples(view.dataset):
        return Warned("; ".join(found))
    return "no test sample is a training sample, and no image is of one value"


def finite(kind: str, inputs: object) -> str:
    """Whether all values are finite numbers; image files hold whole numbers."""
    if isinstance(inputs, np.ndarray) and inputs.dtype.kind == "f":
        for number, sample in enumerate(inputs):
            if not np.isfinite(sample).all():
                raise DataError(f"{kind}: sample {number} holds NaN or infinity; mend it")
    return kind


# ---- the connection to the coordinator -------------------------------------------------------------------------------


def online(link: Link) -> Iterator[Row]:
    """Check proxy, TLS, certificate, clock and key; checks that need one that fails are left out."""
    host, _, port = link.address.rpartition(":")
    if not host or not is_whole(port):
        yield Row(
            "address", False, f"{link.address!r}: link.address in site.toml must be HOST:PORT"
        )
        return
    proxy = "" if proxy_bypass(host) else getproxies().get("https", "")
    yield Row("proxy", True, f"{proxy or 'none'} for {host}")
    try:
        context = ssl.create_default_context(cafile=str(link.ca))
        certificate, ahead = shake_hands(host.strip("[]"), int(port), proxy, context)
    except (OSError, http.client.HTTPException, ValueError) as error:
        yield Row("tls", False, f"{link.address}: {explain(error)}")
        return
    last = certificate.not_valid_after_utc
    days = (last - datetime.now(UTC)).days
    text = f"{link.address}: certificate until {last:%Y-%m-%d}, {days} days"
    yield Row("tls", True, text if days >= 30 else f"{text}; ask for a new one soon")
    text = f"{ahead:+.0f} s against the coordinator's"
    if -SLOW < ahead < FAST:
        yield Row("clock", True, text)
        yield row("key known", known, link)
        return
    text += f"; must be {-SLOW} to {FAST} s: let a time service set this machine's clock"
    yield Row("clock", False, text)
    # With such a clock the coordinator refuses every signature, whatever the key.
    yield Row("key known", False, "not asked: the clock comes first")


def shake_hands(
    host: str,
    port: int,
    proxy: str,
    context: ssl.SSLContext,
) -> tuple[x509.Certificate, float]:
    """Return the coordinator's certificate, and by how many seconds this machine's clock is ahead. Raises OSError."""
    url = urlsplit(proxy if "//" in proxy else f"//{proxy}")
    target = (url.hostname or "", url.port or 8080) if proxy else (host, port)
    connection = http.client.HTTPSConnection(*target, timeout=SECONDS, context=context)
    if proxy:
        connection.set_tunnel(host, port)
    with closing(connection):
        connection.connect()
        assert isinstance(connection.sock, ssl.SSLSocket)
        der = connection.sock.getpeercert(binary_form=True) or b""
        certificate = x509.load_der_x509_certificate(der)
        connection.request("GET", "/")
        stamp = connection.getresponse().headers.get("Date")
        ours = datetime.now(UTC)
        theirs = parsedate_to_datetime(stamp) if stamp else ours
        return certificate, (ours - theirs).total_seconds()


def explain(error: Exception) -> str:
    """Return why the coordinator is not reached, or why its certificate is not taken, and who is to do what."""
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
    from site_agent.flower_internals import (
        FleetHttpClient,
        NodeAuthHttpInterceptor,
        SendNodeHeartbeatRequest,
    )

    private = read_key(link.key)
    signed = NodeAuthHttpInterceptor(private, private.public_key())
    authority = link.ca.read_bytes()
    try:
        # The heartbeat of no node: a key that is not known is refused before anybody looks at the node.
        with FleetHttpClient.from_server_address(link.address, False, authority, [signed]) as fleet:
            fleet.SendNodeHeartbeat(SendNodeHeartbeatRequest(heartbeat_interval=30))
    except Exception as error:  # of httpx, which flwr calls
        answer = getattr(error, "response", None)
        if answer is None:
            raise DataError(f"not asked: {explain(error)}") from None
        code = answer.status_code
        if code == 403:
            raise DataError(
                f"no: the coordinator refuses this site's key ({code}). It is not agreed to, was replaced, or this "
                "machine's clock is wrong: send the lines of `fedskew-site key`"
            ) from None
        if code in NO_ANSWER:
            raise DataError(f"not asked: the SuperLink does not answer ({code})") from None
    return "yes"
