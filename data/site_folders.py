"""`fedskew data export-sites`: one folder OUT/NAME per client, with data.npz and site.toml."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data.errors import DataError
from data.federation import Federation
from data.readers.image_files import ImageFiles

FILE = "data.npz"
FEDERATION = """\
# The one text that all parties agree to; what is empty here must be filled in.
name = {name}
classes = {classes}
input-shape = {shape}
mean = {mean}
std = {std}
app = ""  # the hash that `fedskew-site approve` shows

{sites}"""
MEMBER = """\
[[site]]
name = {name}
key = ""  # what `fedskew-site key` prints there
"""
SITE = """\
federation = "federation.toml"  # the approved copy, which is not here yet
name = {name}
data = "npz:data.npz"
state = "state"
"""


def write_sites(federation: Federation, out: Path, name: str) -> list[Path]:
    """Write a folder for every client, so that the npz reader gives its samples, and the two kinds of text files.

    Returns the folders, by client. Raises DataError where `out` is no empty folder, or images stay in their files.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError("must be an empty folder, or none", where=str(out))
    data = federation.dataset
    if isinstance(data.train_inputs, ImageFiles):
        raise DataError(
            "its images stay in their files, and are not copied into folders", where=data.name
        )
    folders = [out / site for site in site_names(federation)]
    for client, folder in enumerate(folders):
        folder.mkdir(parents=True)
        np.savez(folder / FILE, allow_pickle=False, **arrays(federation, client))
        (folder / "site.toml").write_text(
            SITE.format(name=json.dumps(folder.name)), encoding="utf-8"
        )
    values: dict[str, object] = {
        "classes": data.class_names,
        "shape": "x".join(map(str, data.shape)),
        "name": slug(name),
    }
    values |= {"mean": data.mean, "std": data.std}
    sites = "\n".join(MEMBER.format(name=json.dumps(folder.name)) for folder in folders)
    words = {key: json.dumps(value, ensure_ascii=False) for key, value in values.items()}
    (out / "federation.toml").write_text(FEDERATION.format(**words, sites=sites), encoding="utf-8")
    return folders


def site_names(federation: Federation) -> list[str]:
    """Return a name for each client: its domain's, with a number where several are of one; or site-NUMBER."""
    if federation.domains is None:
        return [f"site-{client}" for client in range(federation.clients)]
    names = [slug(federation.dataset.domain_names[domain]) for domain in federation.domains]
    if len(set(names)) == len(names):
        return names
    return [f"{name[:34]}-{client}" for client, name in enumerate(names)]


def slug(name: str) -> str:
    """Return a name of letters, digits, - and _, as a site's or a federation's must be."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-_")[:40] or "sites"


def arrays(federation: Federation, client: int) -> Mapping[str, NDArray[np.generic]]:
    """Return one client's samples as an npz file of one's own data holds them."""
    held: dict[str, NDArray[np.generic]] = {}
    splits = {
        "train": federation.train(client),
        "test": federation.test(client),
        "val": federation.validation(client),
    }
    for key, samples in splits.items():
        if samples is None:
            continue
        assert not isinstance(samples.inputs_N, ImageFiles)
        inputs = samples.inputs_N.numpy()
        held[f"{key}_images"] = (
            inputs if inputs.ndim == 2 else inputs.transpose(0, 2, 3, 1)
        )  # channels last
        held[f"{key}_labels"] = samples.labels_N.numpy()
        if samples.groups_N is not None:
            held[f"{key}_subjects"] = samples.groups_N.numpy()
    return held | subjects(federation, client)


def subjects(federation: Federation, client: int) -> dict[str, NDArray[np.generic]]:
    """Return the subjects of one client's training and validation samples, apart from those of the test samples."""
    data = federation.dataset
    first = 0 if data.test_groups is None else int(data.test_groups.max()) + 1
    held: dict[str, NDArray[np.generic]] = {}
    for key, subjects_N, everybody_N in (
        ("train", federation.subjects(client), data.train_groups),
        ("val", federation.validation_subjects(client), data.val_groups),
    ):
        if subjects_N is not None:
            held[f"{key}_subjects"] = subjects_N + first
        # A cut's subjects have the training subjects' numbers, and no number is in both.
        first += 0 if everybody_N is None else int(everybody_N.max()) + 1
    return held
