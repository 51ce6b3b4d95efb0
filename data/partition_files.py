"""Partitions on the disk: partition files, and a folder per client for a trial between sites.

A partition file is a JSON list of each client's list of indices into the training set, such as [[0, 2], [1]].
`fedskew data save-partition` writes one, and `fedskew data export-sites` writes a file OUT/NAME/data.npz per client.
"""

import hashlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter, ValidationError

from data.errors import DataError, SettingError

if TYPE_CHECKING:  # it loads torch, which settings do without
    from data.federation import Federation

MARK = re.compile(r"(?P<path>.+)#(?P<digest>[0-9a-f]{16})")
"""FILE#HASH: how resolved settings name a file, so that a run's id follows its content."""


FORM: TypeAdapter[list[list[int]]] = TypeAdapter(list[list[Annotated[int, Field(ge=0, lt=2**62)]]])


def save_partition(federation: "Federation", path: Path) -> None:
    """Write each client's samples into a file for the setting partition-file. Raises SettingError if it cannot be."""
    try:
        path.write_text(json.dumps([part.tolist() for part in federation.train_indices]) + "\n")
    except OSError as error:
        raise SettingError("FILE", str(path), f"cannot be written: {error.strerror}") from error


def read(setting: str) -> list[NDArray[np.int64]]:
    """Return each client's sorted indices into the training set, from FILE or FILE#HASH.

    Raises:
        SettingError: it is missing.
        DataError: it is no partition file, or no longer the one that FILE#HASH names.
    """
    path = path_of(setting)
    current = marked(setting)
    if current != setting and MARK.fullmatch(setting):
        rule = f"is not the partition file that the run began with: {current} instead of {setting}"
        raise DataError(rule, where=str(path))
    try:
        parts = FORM.validate_json(path.read_bytes(), strict=True)
    except ValidationError as error:
        rule = "must be a JSON list of each client's list of sample numbers, such as [[0, 2], [1]]"
        raise DataError(rule, where=str(path)) from error
    samples = [sample for part in parts for sample in part]
    if not parts or not all(parts) or len(set(samples)) < len(samples):
        rule = "every client must hold a sample, and no sample be there twice"
        raise DataError(rule, where=str(path))
    return [np.sort(np.array(part, np.int64)) for part in parts]


def marked(setting: str) -> str:
    """Return FILE#HASH, with the hash that the file has now. Raises SettingError if there is no such file."""
    path = path_of(setting)
    try:
        content = path.read_bytes()
    except (OSError, ValueError) as error:  # the latter: a path with a NUL
        reason = getattr(error, "strerror", error)
        raise SettingError("partition-file", setting, f"cannot be read: {reason}") from error
    return f"{path}#{hashlib.sha256(content).hexdigest()[:16]}"


def path_of(setting: str) -> Path:
    """Return the absolute path in FILE or FILE#HASH."""
    match = MARK.fullmatch(setting)
    return Path(match["path"] if match else setting).expanduser().absolute()


# ---- a folder per client ---------------------------------------------------------------------------------------------


def write_sites(federation: "Federation", out: Path) -> list[Path]:
    """Write a folder for every client, so that the npz reader gives its samples, and return the folders by client.

    Raises DataError where `out` is no empty folder, or images stay in their files.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError("must be an empty folder, or none", where=str(out))
    data = federation.dataset
    if not isinstance(data.train.inputs, np.ndarray):
        rule = "its images stay in their files, and are not copied into folders"
        raise DataError(rule, where=data.name)
    folders = [out / site for site in site_names(federation)]
    for client, folder in enumerate(folders):
        folder.mkdir(parents=True)
        np.savez(folder / "data.npz", allow_pickle=False, **arrays(federation, client))
    return folders


def site_names(federation: "Federation") -> list[str]:
    """Return a name for each client: its domain's, with a number where several are of one; or site-NUMBER."""
    if federation.domains is None:
        return [f"site-{client}" for client in range(federation.clients)]
    names = []
    for domain in federation.domains:
        # Letters, digits, - and _, as a site's name must be.
        slug = re.sub(r"[^A-Za-z0-9_-]+", "-", federation.dataset.domain_names[domain])
        names.append(slug.strip("-_")[:34] or "sites")
    if len(set(names)) == len(names):
        return names
    return [f"{name}-{client}" for client, name in enumerate(names)]


def arrays(federation: "Federation", client: int) -> dict[str, NDArray[np.generic]]:
    """Return one client's samples as an npz file of one's own data holds them."""
    data = federation.dataset
    kinds = {"test": "test", "train": "train"}
    if federation.validated:
        kinds["validation"] = "val"
    client_arrays: dict[str, NDArray[np.generic]] = {}
    subjects_before = 0
    for kind, key in kinds.items():
        split, indices = federation.selected(kind, client)
        assert isinstance(split.inputs, np.ndarray)
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
