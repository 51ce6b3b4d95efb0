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
    text = json.dumps({**content, "checksum": checksum(content)}, separators=(",", ":"))
    try:
        path.write_text(f"{text}\n")
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
        version = content["fedskew-partition"]
        if version != VERSION:
            shown = printable(str(version)[:20])
            raise DataError(f"version {shown} of partition files is not known", where=str(path))
        # Files written by hand have no checksum.
        stated = content.pop("checksum", None)
        if stated not in (None, checksum(content)):
            rule = (
                "is not as it was written: its checksum is another; without one it is taken as is"
            )
            raise DataError(rule, where=str(path))
        domains: tuple[int, ...] | None = None
        if content["domains"] is not None:
            domains = tuple(whole_numbers(content["domains"]).tolist())
        saved = SavedPartition(
            content=str(content["data"]),
            train=tuple(map(whole_numbers, content["train"])),
            test=whole_numbers(content["test"]),
            domains=domains,
            holdout=whole_numbers(content["holdout"]),
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
    trained = np.concatenate([*saved.train, saved.holdout])
    disjoint = len(np.unique(trained)) == len(trained)
    everyone_trains = len(saved.train) > 0 and all(len(part) for part in saved.train)
    one_domain_each = domains is None or len(domains) == len(saved.train)
    if not (disjoint and everyone_trains and one_domain_each):
        rule = "every client must hold at least one sample, and no sample be at two clients"
        raise DataError(rule, where=str(path))
    if len(np.unique(saved.test)) < len(saved.test):
        raise DataError("no sample may be in the test set twice", where=str(path))
    return saved


def whole_numbers(numbers: object) -> NDArray[np.int64]:
    """Indices as JSON has them. Raises TypeError for anything else, as int64 would cut a fraction off in silence."""
    if not isinstance(numbers, list) or not all(type(number) is int for number in numbers):
        raise TypeError("must be a list of whole numbers")
    return np.array(numbers, np.int64)


def checksum(content: Mapping[str, object]) -> str:
    """Hash of the file's other entries."""
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def marked(setting: str) -> str:
    """FILE#HASH, with the hash that the file has now.

    Raises:
        SettingError: there is no such file.
    """
    path = path_of(setting)
    try:
        content = path.read_bytes()
    except (OSError, ValueError) as error:  # the latter: a path with a NUL
        reason = getattr(error, "strerror", error)
        raise SettingError("partition-file", setting, f"cannot be read: {reason}") from error
    return f"{path}#{hashlib.sha256(content).hexdigest()[:16]}"


def path_of(setting: str) -> Path:
    """The absolute path in FILE or FILE#HASH."""
    match = MARK.fullmatch(setting)
    return Path(match["path"] if match else setting).expanduser().absolute()
