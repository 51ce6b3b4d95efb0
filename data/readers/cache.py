"""The memory-mapped copy of a data set, which all processes of a machine share through the page cache."""

import hashlib
import json
import logging
import os
import re
import shutil
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data.errors import DataError

VERSION = 2
"""Part of every key: raise it when the same files would be read into other arrays."""

VERIFIED = 2**28
"""Bytes up to which a copy's contents are compared with their hash."""

COPY = re.compile(r"\..+-[0-9a-f]{24}-[0-9a-f]{32}")
"""The name of a copy that was begun, or is being taken away."""

BESIDE = ("train_groups", "val_groups", "test_subjects", "input_columns", "medians")
"""Arrays that are no part of the content's hash, by which partition files and runs know the samples. They have a hash
of their own."""

Arrays = Mapping[str, NDArray[np.generic]]
log = logging.getLogger("fedskew")
_verified: dict[Path, dict[str, list[int]]] = {}
"""Sizes and times of change of the copies whose contents this process has found to be as they were written."""


def cache_folder(setting: str) -> Path:
    """The setting `cache`, or fedskew in the user's cache folder."""
    if setting:
        return Path(setting).expanduser()
    of_user = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(of_user) / "fedskew"


def key_of(identity: object, files: list[Path]) -> str:
    """Hash of what a data set is made from: `identity` and the paths, sizes and times of change of its files."""
    described = []
    for file in files:
        stat = file.stat()
        described.append((str(file.resolve()), stat.st_size, stat.st_mtime_ns))
    text = json.dumps([VERSION, identity, described])
    return hashlib.sha256(text.encode()).hexdigest()


def content_hash(arrays: Arrays) -> str:
    """Hash of names, types, shapes and contents, without the arrays of BESIDE."""
    return _hash_of({name: array for name, array in arrays.items() if name not in BESIDE})


def beside_hash(arrays: Arrays) -> str:
    """Hash of the arrays of BESIDE; empty where there is none."""
    beside = {name: arrays[name] for name in BESIDE if name in arrays}
    return _hash_of(beside) if beside else ""


def _hash_of(arrays: Arrays) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.data.cast("B"))
    return digest.hexdigest()


def write(folder: Path, arrays: Arrays) -> None:
    """Write the arrays so that `folder` appears in one step; of two writers the second keeps the first one's.

    Raises:
        DataError: the cache cannot be written.
    """
    temporary = folder.with_name(f".{folder.name}-{uuid.uuid4().hex}")
    try:
        if not temporary.parent.is_dir():
            temporary.parent.mkdir(0o700, parents=True, exist_ok=True)
        temporary.mkdir(0o700)  # they may be patients' images
        for name, array in arrays.items():
            np.save(temporary / f"{name}.npy", array)
        described: dict[str, object] = {
            "content": content_hash(arrays),
            "arrays": sorted(arrays),
            "files": stats(temporary, arrays),
        }
        if beside := beside_hash(arrays):
            described["beside"] = beside
        text = json.dumps({**described, "checksum": checksum(described)})
        (temporary / "dataset.json").write_text(text)
        try:
            temporary.rename(folder)
        except OSError:
            # Another process was first, unless there is no whole copy.
            if not (folder / "dataset.json").is_file():
                raise
    except OSError as error:
        raise _cannot_be_written(folder, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def read(folder: Path) -> tuple[dict[str, NDArray[np.generic]], str] | None:
    """The arrays, memory-mapped and read-only, and their content hash; None where there is no whole copy.

    A copy that is not as it was written is taken away with a warning, so that it is built anew. Up to VERIFIED bytes
    the contents are compared with their hash, once a process; of a larger copy only where a size or a time of change
    is not the one that was written down.

    Raises:
        DataError: a copy may not be read, or a damaged one not be taken away.
    """
    try:
        described = json.loads((folder / "dataset.json").read_text())
        content = described["content"]
        names = described["arrays"]
        now = stats(folder, names)
        arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in names}
        if described.pop("checksum") != checksum(described):
            raise ValueError("dataset.json is not as it was written")
        as_written = described["files"] == now
        large = sum(array.nbytes for array in arrays.values()) > VERIFIED
        verified = _verified.get(folder) == now
        if not verified and not (as_written and large):
            same_content = content_hash(arrays) == content
            same_beside = beside_hash(arrays) == described.get("beside", "")
            if not (same_content and same_beside):
                raise ValueError("its contents are not those that were written")
            _verified[folder] = now
        return arrays, content
    except (FileNotFoundError, NotADirectoryError):
        if not folder.is_dir():
            return None
        reason = "is incomplete"
    except PermissionError as error:
        rule = f"the cached copy cannot be read ({error.strerror})"
        raise DataError(rule, where=str(folder)) from error
    # A damaged file surfaces as anything, an EOFError or a SyntaxError among others.
    except Exception as error:
        reason = f"is damaged ({' '.join(str(error).split())})"
    log.warning("%s: the cached copy %s and is made anew", folder, reason)
    # Renamed before it is deleted: processes that have mapped the files keep them.
    aside = folder.with_name(f".{folder.name}-{uuid.uuid4().hex}")
    try:
        folder.rename(aside)
    except FileNotFoundError:  # another process has done so
        return None
    except OSError as error:
        raise _cannot_be_written(folder, error) from error
    shutil.rmtree(aside, ignore_errors=True)
    return None


def copies(folder: Path) -> dict[Path, int]:
    """The copies in a cache, complete and unfinished, with their bytes; other files are left out."""
    if not folder.is_dir():
        return {}
    found = {}
    for path in sorted(folder.iterdir()):
        is_copy = COPY.fullmatch(path.name) or (path / "dataset.json").is_file()
        if path.is_dir() and is_copy:
            files = [file for file in path.iterdir() if file.is_file()]
            found[path] = sum(file.stat().st_size for file in files)
    return found


def clear(folder: Path) -> int:
    """Delete all copies; returns the bytes. Raises DataError where one cannot be deleted."""
    there = copies(folder)
    for path in there:
        try:
            shutil.rmtree(path)
        except OSError as error:
            raise DataError(f"cannot be deleted ({error.strerror})", where=str(path)) from error
    return sum(there.values())


def stats(folder: Path, names: Iterable[str]) -> dict[str, list[int]]:
    """Size in bytes and time of change in nanoseconds of each array's file."""
    files = {name: (folder / f"{name}.npy").stat() for name in names}
    return {name: [stat.st_size, stat.st_mtime_ns] for name, stat in files.items()}


def checksum(described: Mapping[str, object]) -> str:
    """Hash of the other entries of dataset.json."""
    text = json.dumps(described, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _cannot_be_written(folder: Path, error: OSError) -> DataError:
    return DataError(
        f"cannot be written ({error})",
        key="cache",
        value=str(folder.parent),
        remedy="set cache to a folder that can",
    )
