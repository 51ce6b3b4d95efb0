"""Partitions written to disk: partition files, and one folder per client for a trial between sites.

`fedskew data save-partition` writes a partition file, from settings or from a CSV file with columns sample and client.
`fedskew data export-sites` writes a folder OUT/NAME per client, with data.npz and site.toml.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data.dataset import Dataset
from data.errors import DataError
from data.federation import Federation
from data.partition_files import SavedPartition, save
from data.readers.image_files import ImageFiles
from data.readers.rows import is_missing, read_table
from data.settings import DataSettings
from data.text import is_whole

SAMPLE, CLIENT = "sample", "client"
FILE = "data.npz"
FEDERATION = """\
# The one text that all parties agree to; what is empty here must be filled in.
name = {name}
classes = {classes}
input-shape = {shape}
{columns}mean = {mean}
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


def save_partition(federation: Federation, path: Path) -> None:
    """Write each client's samples into a file for the setting partition-file.

    Raises:
        SettingError: it cannot be written.
    """
    saved = SavedPartition(
        content=federation.dataset.content,
        train=federation.train_indices,
        test=federation.global_test,
        domains=federation.domains,
        holdout=federation.holdout_indices,
    )
    save(path, saved)


def partition_by_table(path: Path, data: Dataset) -> SavedPartition:
    """Every row gives a training sample, by its place from 0, to a client, by name or number; the others stay unused.

    Clients are numbered in the order of their names, of their values where all are whole numbers.

    Raises:
        DataError: a column that is missing, a sample that is none or is there twice.
    """
    where = str(path)
    samples = len(data.train_labels)
    held: dict[str, list[int]] = {}
    row_of_sample: dict[int, int] = {}
    table = read_table(path, DataSettings(), {SAMPLE, CLIENT})
    for name in (SAMPLE, CLIENT):
        if name not in table.columns:
            listed = ", ".join(table.header)[:200]
            raise DataError(f"there is no column {name!r}, only {listed}", where=where)
    cells = zip(table.lines, table.columns[SAMPLE], table.columns[CLIENT], strict=True)
    for line, cell, client in cells:
        # Fewer than 12 digits, as int refuses texts of thousands.
        number = int(cell) if is_whole(cell) and len(cell) < 12 else -1
        if not 0 <= number < samples:
            rule = f"must be a training sample's place, 0..{samples - 1}"
            raise DataError(f"row {line}, column {SAMPLE}: {cell[:80]!r}: {rule}", where=where)
        if number in row_of_sample:
            rule = f"sample {number} is that of row {row_of_sample[number]} too"
            raise DataError(f"row {line}: {rule}", where=where)
        if is_missing(client):
            rule = f"{client[:80]!r}: must name a client"
            raise DataError(f"row {line}, column {CLIENT}: {rule}", where=where)
        row_of_sample[number] = line
        held.setdefault(client, []).append(number)
    if not held:
        raise DataError("names no sample", where=where)

    names = sorted(held, key=int) if all(map(is_whole, held)) else sorted(held)
    return SavedPartition(
        content=data.content,
        train=tuple(np.sort(np.array(held[name], np.int64)) for name in names),
        test=np.arange(len(data.test_labels), dtype=np.int64),
        domains=None,
        holdout=np.zeros(0, np.int64),
    )


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
        text = SITE.format(name=json.dumps(folder.name))
        (folder / "site.toml").write_text(text, encoding="utf-8")
    values: dict[str, object] = {
        "classes": data.class_names,
        "shape": "x".join(map(str, data.shape)),
        "name": slug(name),
        "mean": data.mean,
        "std": data.std,
    }
    # JSON's texts, numbers and lists are TOML's too.
    words = {key: json.dumps(value, ensure_ascii=False) for key, value in values.items()}
    columns = ""
    if data.input_columns:
        columns = f"input-columns = {json.dumps(data.input_columns, ensure_ascii=False)}\n"
    sites = "\n".join(MEMBER.format(name=json.dumps(folder.name)) for folder in folders)
    text = FEDERATION.format(**words, columns=columns, sites=sites)
    (out / "federation.toml").write_text(text, encoding="utf-8")
    return folders


def site_names(federation: Federation) -> list[str]:
    """Return a name for each client: its domain's, with a number where several are of one; or site-NUMBER."""
    if federation.domains is None:
        return [f"site-{client}" for client in range(federation.clients)]
    domain_names = federation.dataset.domain_names
    names = [slug(domain_names[domain]) for domain in federation.domains]
    all_different = len(set(names)) == len(names)
    if all_different:
        return names
    # Cut, so that a name with its number is still a site's name.
    return [f"{name[:34]}-{client}" for client, name in enumerate(names)]


def slug(name: str) -> str:
    """Return a name of letters, digits, - and _, as a site's or a federation's must be."""
    allowed = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-_")
    return allowed[:40] or "sites"


def arrays(federation: Federation, client: int) -> Mapping[str, NDArray[np.generic]]:
    """Return one client's samples as an npz file of one's own data holds them."""
    client_arrays: dict[str, NDArray[np.generic]] = {}
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
        if inputs.ndim == 4:
            inputs = inputs.transpose(0, 2, 3, 1)  # (N, H, W, C), as npz files have images
        client_arrays[f"{key}_images"] = inputs
        client_arrays[f"{key}_labels"] = samples.labels_N.numpy()
        if samples.groups_N is not None:
            client_arrays[f"{key}_subjects"] = samples.groups_N.numpy()
    if federation.dataset.input_columns:
        client_arrays["columns"] = np.array(federation.dataset.input_columns)
    return client_arrays | subjects(federation, client)


def subjects(federation: Federation, client: int) -> dict[str, NDArray[np.generic]]:
    """Return the subjects of one client's training and validation samples, apart from those of the test samples."""
    data = federation.dataset
    first = 0 if data.test_groups is None else int(data.test_groups.max()) + 1
    client_subjects: dict[str, NDArray[np.generic]] = {}
    trained_N = federation.subjects(client)
    if trained_N is not None:
        client_subjects["train_subjects"] = trained_N + first
    # Where validation samples were cut off, theirs are numbered with the training subjects, and no number is in both.
    if data.train_groups is not None:
        first += int(data.train_groups.max()) + 1
    validated_N = federation.validation_subjects(client)
    if validated_N is not None:
        client_subjects["val_subjects"] = validated_N + first
    return client_subjects
