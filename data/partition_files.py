"""Partition files: a JSON list of each client's list of indices into the training set, such as [[0, 2], [1]].

`fedskew data save-partition` writes one, and the setting partition-file takes it.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError

from data.errors import DataError, SettingError
from data.files import bound_path, check_bound
from data.readers.array_types import Integers

FORM: TypeAdapter[list[list[int]]] = TypeAdapter(list[list[Annotated[int, Field(ge=0, lt=2**62)]]])


def save_partition(parts: Sequence[Integers], path: Path) -> None:
    """Write each client's samples into a file for the setting partition-file. Raises SettingError if it cannot be."""
    try:
        path.write_text(json.dumps([part.tolist() for part in parts]) + "\n")
    except OSError as error:
        raise SettingError("FILE", str(path), f"cannot be written: {error.strerror}") from error


def read(setting: str) -> list[Integers]:
    """Return each client's sorted indices into the training set, from FILE or FILE#SHA256.

    Raises:
        SettingError: it is missing.
        DataError: it is no partition file, or no longer the one that FILE#SHA256 names.
    """
    content = _content(setting)
    path = bound_path(setting)
    check_bound(setting, hashlib.sha256(content).hexdigest(), "partition file")
    try:
        parts = FORM.validate_json(content, strict=True)
    except ValidationError as error:
        rule = "must be a JSON list of each client's list of sample numbers, such as [[0, 2], [1]]"
        raise DataError(rule, where=str(path)) from error
    samples = [sample for part in parts for sample in part]
    if not parts or not all(parts) or len(set(samples)) < len(samples):
        rule = "every client must hold a sample, and no sample be there twice"
        raise DataError(rule, where=str(path))
    return [np.sort(np.array(part, np.int64)) for part in parts]


def bound(setting: str) -> str:
    """Return FILE#SHA256, with the hash that the file has now. Raises SettingError if there is no such file."""
    return f"{bound_path(setting)}#{hashlib.sha256(_content(setting)).hexdigest()}"


def _content(setting: str) -> bytes:
    """Return the file's bytes. Raises SettingError if there is no such file."""
    try:
        return bound_path(setting).read_bytes()
    except (OSError, RuntimeError, ValueError) as error:  # nobody's home, a path with a NUL
        reason = getattr(error, "strerror", error)
        raise SettingError("partition-file", setting, f"cannot be read: {reason}") from error
