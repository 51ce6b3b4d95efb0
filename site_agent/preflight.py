"""`fedskew-site check`: whether this site can take part, one line per check, each failure with its remedy."""

import os
import shutil
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch

from client_app.column_sums import ColumnSums
from client_app.models.backbone import TORCHVISION, load_torchvision
from data import DataError, Dataset, DataSettings, InputError, SettingError
from data.agreement import mask_key_text
from data.data_warnings import of_samples, refuse_copies
from data.readers.catalog import is_own
from site_agent.approval import approved_files
from site_agent.config import Site, read_link, table_of
from site_agent.data_view import SiteView
from site_agent.keys import public_text, read_key, read_mask_key
from site_agent.module import named_file, own_module
from site_agent.policy import check_names
from site_agent.weights import own_weights

FEW = 4
"""Samples of a mini-batch, or of an update, below which `check` warns."""
ROOM = 2 * 2**30
"""Bytes that must be free below state, at least."""


@dataclass(frozen=True)
class Row:
    """What was looked at, whether it holds, and what was seen or is to be done."""

    subject: str
    holds: bool
    text: str
    warning: bool = False
    """Whether it holds and somebody should look at it all the same."""

    def __str__(self) -> str:
        mark = "ok "
        if not self.holds:
            mark = "NO "
        elif self.warning:
            mark = "(!)"
        return f"{mark} {self.subject:<12} {self.text}"


def offline(site: Site, file: Path) -> Iterator[Row]:
    """Look at everything that needs no network."""
    yield versions()
    yield from rights(site, file)
    yield approval(site)
    if site.app is not None:  # only the app knows what its data are and where it computes
        yield room(site)
        return
    yield policy(site)
    if site.agreement.masked:
        yield mask_key(site)
    if site.agreement.backbone.startswith(TORCHVISION):
        yield vision()
    if site.agreement.backbone:
        yield weights(site)
    if site.agreement.module:
        yield module(site)
    yield device(site)
    yield room(site)
    yield from data_of(site)


def versions() -> Row:
    """Python, torch and flwr, which must be the releases that the code is for."""
    flower = version("flwr")
    major, minor = map(int, flower.split(".")[:2])
    fits = (1, 41) <= (major, minor) < (2,)
    python = sys.version.split()[0]
    installed = (
        f"Python {python}, torch {version('torch')}, flwr {flower}, fedskew {version('fedskew')}"
    )
    remedy = "" if fits else ": install flwr 1.41 or later"
    return Row("versions", fits, installed + remedy)


def vision() -> Row:
    """Whether torchvision can be loaded, where the federation's backbone is one of its networks."""
    try:
        load_torchvision()
    except SettingError as error:
        return Row("torchvision", False, f"{error.rule}: {error.remedy}")
    return Row("torchvision", True, version("torchvision"))


def rights(site: Site, file: Path) -> Iterator[Row]:
    """Who may read what: state and key are for their owner, site.toml is not for others to write."""
    mode = stat.S_IMODE(site.state.stat().st_mode) if site.state.exists() else 0o700
    is_closed = not mode & 0o077
    remedy = "" if is_closed else f": others may enter it (mode {mode:o}); chmod 700 {site.state}"
    yield Row("state", is_closed, f"{site.state}{remedy}")
    is_safe = not stat.S_IMODE(file.stat().st_mode) & 0o022
    remedy = "" if is_safe else ": others may write it; chmod go-w"
    yield Row("site.toml", is_safe, f"{file}{remedy}")
    if "link" not in table_of(file).entries:
        yield Row("key", True, "no [link]: this user trains, and another one talks")
        return
    try:
        link = read_link(file)
        assert link.key
        public = read_key(link.key).public_key()
    except DataError as error:
        yield Row("key", False, str(error))
        return
    agreed = site.agreement.sites[site.number].key
    if public_text(public) == agreed:
        yield Row("key", True, str(link.key))
        return
    wrong = f"is not the key that federation.toml names for {site.name}"
    yield Row("key", False, f"{link.key}: {wrong}; send the lines of `fedskew-site key`")


def approval(site: Site) -> Row:
    """What is approved, and that it is what is agreed and installed."""
    try:
        approved_files(site)
    except DataError as error:
        return Row("approval", False, str(error))
    agreement = site.agreement
    return Row(
        "approval", True, f"{agreement.name} {agreement.sha256[:16]}, app {agreement.app[:16]}"
    )


def policy(site: Site) -> Row:
    """The names in the policy's lists, and whether it lets an update be made of very few samples."""
    try:
        check_names(site)
    except DataError as error:
        return Row("policy", False, str(error))
    if site.min_batch_size < FEW or site.min_update_samples < FEW:
        text = f"lets an update be made of fewer than {FEW} samples: the coordinator can then read single images"
        return Row("policy", True, text, warning=True)
    return Row("policy", True, f"updates of at least {site.min_update_samples} samples")


def mask_key(site: Site) -> Row:
    """The key for masked sums, which must be the one that federation.toml names for this site."""
    agreed = site.agreement.sites[site.number].mask_key
    try:
        here = mask_key_text(read_mask_key(site.mask_key).public_key())
    except DataError as error:
        return Row("mask key", False, str(error))
    wrong = f"{site.mask_key}: its public half is {here}, and federation.toml says {agreed}"
    return Row("mask key", here == agreed, str(site.mask_key) if here == agreed else wrong)


def weights(site: Site) -> Row:
    """The file of the backbone's weights, which must be the one that is agreed."""
    try:
        return Row("weights", True, f"{site.agreement.backbone}: {own_weights(site)}")
    except DataError as error:
        return Row("weights", False, str(error))


def module(site: Site) -> Row:
    """The file of the agreed module, which must be the one that is agreed. It is not loaded."""
    try:
        own_module(site)
    except DataError as error:
        return Row("module", False, str(error))
    return Row("module", True, f"{site.agreement.module}: {named_file(site)}")


def device(site: Site) -> Row:
    """The GPU, where one is asked for."""
    has_gpu = torch.cuda.is_available()
    names = "no GPU"
    if has_gpu:
        numbers = range(torch.cuda.device_count())
        names = ", ".join(torch.cuda.get_device_name(number) for number in numbers)
    text = f"{site.device}, {site.threads} of {os.cpu_count()} threads, {names}"
    fits = site.device != "cuda" or has_gpu
    if not fits:
        text += '; install a driver and a torch for it, or set device = "cpu"'
    return Row("device", fits, text)


def room(site: Site) -> Row:
    """The room on the disk that state is on."""
    folder = site.state
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    text = f"{free / 2**30:.1f} GiB free below {folder}"
    is_enough = free >= ROOM
    if not is_enough:
        text += f"; make room for {ROOM >> 30} GiB"
    return Row("disk", is_enough, text)


def data_of(site: Site) -> Iterator[Row]:
    """The data as a run reads them; the numbers of samples are shown here and do not leave."""
    try:
        view = SiteView(
            DataSettings(),
            site.agreement,
            site.number,
            site.data,
            site.cache,
            site.reading,
        )
    except InputError as error:
        yield Row("data", False, str(error))
        return
    data = view.dataset
    yield Row("data", True, f"{site.data}: inputs of {'x'.join(map(str, data.shape))}")
    yield from columns(site, view)
    yield from standardization(site)
    yield from classes(site, view)
    yield training_set(site, int(view.counts_C.sum()))
    names = site.agreement.without_samples
    if names:
        text = (
            f"federation.toml agrees on none for {', '.join(names)}: a site that states too many owns the model; "
            "agree on `samples` for each [[site]]"
        )
        yield Row("samples", True, text, warning=True)
    text = f"{view.tested} samples"
    is_enough = view.tested >= max(site.min_test_samples, 1)
    if not is_enough:
        text += f"; needs {site.min_test_samples} (min-test-samples), else no scores leave"
    yield Row("test set", is_enough, text)
    yield copies(data)
    for kind, inputs in (("training", data.train_inputs), ("test", data.test_inputs)):
        sample = not_finite(inputs)
        text = f"{kind} inputs"
        if sample is not None:
            text += f": sample {sample} holds NaN or infinity; mend it"
        yield Row("finite", sample is None, text)


def standardization(site: Site) -> Iterator[Row]:
    """Whether the sums may leave from which mean and std of a table's columns come, where federation.toml has none."""
    if site.agreement.mean or not site.agreement.classes:
        return
    permission = ColumnSums.permission
    text = "mean and std of the columns come from sums over all sites"
    is_allowed = permission in site.allow
    if not is_allowed:
        text += f"; [policy] allow needs {permission}, or agree on mean and std in federation.toml"
    yield Row("mean and std", is_allowed, text)


def columns(site: Site, view: SiteView) -> Iterator[Row]:
    """Whether the input columns of a table are matched by name; nothing of images, and of ABIDE's connections."""
    if len(view.dataset.shape) != 1 or not is_own(site.data):
        return
    agreed = site.agreement.input_columns
    here = view.own_columns
    if not agreed or not here:
        who = "federation.toml" if not agreed else site.data
        text = f"{who} names no input columns, so their order counts, and nobody can compare it"
        yield Row("columns", True, text, warning=True)
        return
    text = f"{len(here)} input columns, matched by name"
    if here != agreed:
        text += "; the file has them in another order than federation.toml"
    yield Row("columns", True, text)


def classes(site: Site, view: SiteView) -> Iterator[Row]:
    """The samples of each class."""
    data = view.dataset
    least = max(site.min_class_samples, 1)
    trained_C = view.counts_C.tolist()
    tested_C = np.bincount(data.test_labels, minlength=data.num_classes)
    for number, name in enumerate(data.class_names):
        trained = trained_C[number]
        text = f"{name}: {trained} training samples, {tested_C[number]} test samples"
        if 0 < trained < least:
            text += "; fewer than min-class-samples: nothing about it leaves"
        yield Row(f"class {number}", True, text)


def training_set(site: Site, samples: int) -> Row:
    """The number of training samples, which must be at most what is agreed."""
    agreed = site.agreement.sites[site.number].samples
    if agreed and samples > agreed:
        remedy = f"{samples} samples, and federation.toml agrees on at most {agreed} of {site.name}: agree on more"
        return Row("training set", False, remedy)
    return Row("training set", samples > 0, f"{samples} samples")


def copies(data: Dataset) -> Row:
    """Whether test samples are training samples too, or images are of one value; up to 4,096 are looked at."""
    try:
        refuse_copies(data)
    except DataError as error:
        return Row("copies", False, str(error))
    found = of_samples(data)
    fine = "no test sample is a training sample, and no image is of one value"
    return Row("copies", True, "; ".join(found) or fine, warning=bool(found))


def not_finite(inputs: object) -> int | None:
    """Return the first sample with a value that is no finite number, if any; image files hold whole numbers."""
    if not isinstance(inputs, np.ndarray) or inputs.dtype.kind != "f":
        return None
    for start in range(0, len(inputs), 1024):
        chunk = inputs[start : start + 1024]
        values = np.isfinite(chunk).reshape(len(chunk), -1)
        is_finite_N = values.all(1)
        if not is_finite_N.all():
            return start + int(np.argmin(is_finite_N))
    return None
