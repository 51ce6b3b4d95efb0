"""Partitions written to disk: partition files, and one folder per client for a trial between sites.

`fedskew data save-partition` writes a partition file. `fedskew data export-sites` writes a file OUT/NAME/data.npz per
client.
"""

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data.errors import DataError
from data.federation import Federation
from data.partition_files import SavedPartition, save
from data.readers.image_files import ImageFiles


def save_partition(federation: Federation, path: Path) -> None:
    """Write each client's samples into a file for the setting partition-file.

    Raises:
        SettingError: it cannot be written.
    """
    saved = SavedPartition(
        data=federation.dataset.content,
        train=federation.train_indices,
        test=federation.global_test,
        domains=federation.domains,
        holdout=federation.holdout_indices,
    )
    save(path, saved)


def write_sites(federation: Federation, out: Path) -> list[Path]:
    """Write a folder for every client, so that the npz reader gives its samples, and return the folders by client.

    Raises DataError where `out` is no empty folder, or images stay in their files.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError("must be an empty folder, or none", where=str(out))
    data = federation.dataset
    if isinstance(data.train.inputs, ImageFiles):
        rule = "its images stay in their files, and are not copied into folders"
        raise DataError(rule, where=data.name)
    folders = [out / site for site in site_names(federation)]
    for client, folder in enumerate(folders):
        folder.mkdir(parents=True)
        np.savez(folder / "data.npz", allow_pickle=False, **arrays(federation, client))
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
    data = federation.dataset
    client_arrays: dict[str, NDArray[np.generic]] = {}
    subjects_before = 0
    for kind, key in (("test", "test"), ("train", "train"), ("validation", "val")):
        if kind == "validation" and not federation.validated:
            continue
        split, indices = federation.selected(kind, client)
        assert not isinstance(split.inputs, ImageFiles)
        inputs = split.inputs[indices]
        if inputs.ndim == 4:
            inputs = inputs.transpose(0, 2, 3, 1)  # (N, H, W, C), as npz files have images
        client_arrays[f"{key}_images"] = inputs
        client_arrays[f"{key}_labels"] = split.labels[indices]
        # With test_subjects in the file, subjects would be tested as one.
        if split.subjects is None or (kind == "test" and not data.tests_subjects):
            continue
        # A number is in one split alone, as a subject is.
        subjects, number_N = np.unique(split.subjects[indices], return_inverse=True)
        client_arrays[f"{key}_subjects"] = number_N + subjects_before
        subjects_before += len(subjects)
    if data.input_columns:
        client_arrays["columns"] = np.array(data.input_columns)
    return client_arrays
