"""Partition files: the samples of each client, bound to the data by their hash."""

import hashlib
import json
import re
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    model_validator,
)

from data.errors import DataError, SettingError

MARK = re.compile(r"(?P<path>.+)#(?P<digest>[0-9a-f]{16})")
"""FILE#HASH: how resolved settings name a file, so that a run's id follows its content."""


def whole_numbers(numbers: object) -> object:
    """Return a list of JSON as an array. Raises ValueError for what int64 would cut off in silence."""
    if not isinstance(numbers, list):
        return numbers
    if not all(type(number) is int and abs(number) < 2**62 for number in numbers):
        raise ValueError("must be whole numbers")
    return np.array(numbers, np.int64)


SampleIndices = Annotated[
    NDArray[np.int64],
    BeforeValidator(whole_numbers),
    PlainSerializer(lambda indices: indices.tolist()),
]


class SavedPartition(BaseModel):
    """The contents of a partition file."""

    model_config = ConfigDict(
        arbitrary_types_allowed=True, extra="forbid", frozen=True, strict=True
    )

    version: Literal[1] = Field(default=1, alias="fedskew-partition")
    data: str
    """Hash of the data that the indices are of."""
    train: tuple[SampleIndices, ...]
    """Sorted indices into the training set, one array a client."""
    test: SampleIndices
    """Sorted indices into the test set: the global test set."""
    domains: tuple[int, ...] | None
    """Each client's domain; None where clients are not of one domain each."""
    holdout: SampleIndices
    """Sorted indices into the training set: the server's own."""
    checksum: str = ""
    """Hash of the other entries; empty in a file that somebody has written by hand."""

    @property
    def hash(self) -> str:
        """What `checksum` must be if nobody has changed the file."""
        entries = self.model_dump(mode="json", by_alias=True, exclude={"checksum"})
        text = json.dumps(entries, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @model_validator(mode="after")
    def check_contents(self) -> Self:
        """Raise ValueError for a changed file, a sample at two places, and a client without one."""
        if self.checksum and self.checksum != self.hash:
            rule = "is not as it was written: its checksum is another"
            raise ValueError(f"{rule}; without one it is taken as is")
        trained = np.concatenate([*self.train, self.holdout])
        disjoint = len(np.unique(trained)) == len(trained)
        everyone_trains = len(self.train) > 0 and all(len(part) for part in self.train)
        if not (disjoint and everyone_trains):
            raise ValueError("every client must hold a sample, and no sample be at two clients")
        if self.domains is not None and len(self.domains) != len(self.train):
            raise ValueError("every client must have one domain")
        if len(np.unique(self.test)) < len(self.test):
            raise ValueError("no sample may be in the test set twice")
        return self


def save(path: Path, saved: SavedPartition) -> None:
    """Write one JSON file. Raises SettingError if it cannot be written."""
    try:
        whole = saved.model_copy(update={"checksum": saved.hash})
        path.write_text(whole.model_dump_json(by_alias=True) + "\n")
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
        rule = f"is not the partition file that the run began with: {current} instead of {setting}"
        raise DataError(rule, where=str(path))
    try:
        return SavedPartition.model_validate_json(path.read_bytes())
    except ValidationError as error:
        rule = "is no partition file as `fedskew data save-partition` writes it"
        first = error.errors()[0]
        if first["type"] == "value_error":
            rule = str(first["ctx"]["error"])
        raise DataError(rule, where=str(path)) from error


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
