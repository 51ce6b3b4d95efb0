"""Partition files: the samples of each client, bound to the data by their hash."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data.errors import DataError, SettingError
from data.text import printable

VERSION = 1
MARK = re.compile(r"(?P<path>.+)#(?P<digest>[0-9a-f]{16})")
"""FILE#HASH: how resolved settings name a file, so that a run's id follows its content."""


@dataclass(frozen=True, eq=False)
class SavedPartition:
    """The contents of a partition file."""

    content: str
    """Hash of the data that the indices are of."""
    train: tuple[NDArray[np.int64], ...]
    """Sorted indices into the training set, one array a client."""
    test: NDArray[np.int64]
    """Sorted indices into the test set: the global test set."""
    domains: tuple[int, ...] | None
    """Each client's domain; None where clients are not of one domain each."""
    holdout: NDArray[np.int64]
    """Sorted indices into the training set: the server's own."""


def save(path: Path, saved: SavedPartition) -> None:
    """Write one JSON file.

    Raises:
        SettingError: it cannot be written.
    """
    content = {
        "fedskew-partition": VERSION,
        "data": saved.content,
        "train": [part.tolist() for part in saved.train],
        "test": saved.test.tolist(),
        "domains": saved.domains,
        "holdout": saved.holdout.tolist(),
    }
    try:
        path.write_text(
            json.dumps({**content, "checksum": checksum(content)}, separators=(",", ":")) + "\n"
        )
    except OSError as error:
        raise SettingError("FILE", str(path), f"cannot be written: {error.strerror}") from error


def read(setting: str) -> SavedPartition:
    """Read the partition of FILE or FILE#HASH.

    Raises:
        SettingError: it is missing.
        DataError: it is no partition file, or no longer the one that FILE#HASH names.
    """
    path = path_of(setting)
    current = marked(setting)
    if current != setting and MARK.fullmatch(setting):
        raise DataError(
            f"is not the partition file that the run began with: {current} instead of {setting}",
            where=str(path),
        )
    try:
        content = json.loads(path.read_text())
        if content["fedskew-partition"] != VERSION:
            raise DataError(
                f"version {printable(str(content['fedskew-partition'])[:20])} of partition files is not known",
                where=str(path),
            )
        stated = content.pop(
            "checksum", None
        )  # files of earlier versions, and those written by hand, have none
        if stated not in (None, checksum(content)):
            raise DataError(
                "is not as it was written: its checksum is another; without one it is taken as is",
                where=str(path),
            )
        train = tuple(map(whole_numbers, content["train"]))
        if content["domains"] is None:
            domains = None
        else:
            domains = tuple(whole_numbers(content["domains"]).tolist())
        holdout = whole_numbers(
            content.get("holdout", [])
        )  # files from before there were hold-outs have none
        saved = SavedPartition(
            str(content["data"]), train, whole_numbers(content["test"]), domains, holdout
        )
    except DataError:
        raise
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise DataError(
            "is no partition file as `fedskew data save-partition` writes it", where=str(path)
        ) from error
    if saved.train:
        trained = np.concatenate([*saved.train, saved.holdout])
    else:
        trained = np.empty(0, np.int64)
    disjoint = len(np.unique(trained)) == len(trained) and all(len(part) for part in saved.train)
    if (
        not disjoint
        or not len(saved.train)
        or (domains is not None and len(domains) != len(saved.train))
    ):
        raise DataError(
            "every client must hold at least one sample, and no sample be at two clients",
            where=str(path),
        )
    if len(np.unique(saved.test)) < len(saved.test):
        raise DataError("no sample may be in the test set twice", where=str(path))
    return saved


def whole_numbers(numbers: object) -> NDArray[np.int64]:
    """Indices as JSON has them. Raises TypeError for anything else, as int64 would cut a fraction off in silence."""
    if not isinstance(numbers, list) or not all(type(number) is int for number in numbers):
        raise TypeError("must be a list of whole numbers")
    return np.array(numbers, np.int64)


def checksum(content: Mapping[str, object]) -> str:
    """Hash of what the file says."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def marked(setting: str) -> str:
    """FILE#HASH, with the hash that the file has now.

    Raises:
        SettingError: there is no such file.
    """
    path = path_of(setting)
    try:
        return f"{path}#{hashlib.sha256(path.read_bytes()).hexdigest()[:16]}"
    except (OSError, ValueError) as error:  # the latter: a path with a NUL
        raise SettingError(
            "partition-file", setting, f"cannot be read: {getattr(error, 'strerror', error)}"
        ) from error


def path_of(setting: str) -> Path:
    """The absolute path in FILE or FILE#HASH."""
    match = MARK.fullmatch(setting)
    return Path(match["path"] if match else setting).expanduser().absolute()
