"""The memory-mapped copy of a data set, which all processes of a machine share through the page cache."""

import hashlib
import json
import logging
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data.errors import DataError
from data.files import owner_only
from data.text import said

VERSION = 5
"""Part of every key: raise it when the same files would be read into other arrays."""

BESIDE = ("train_subjects", "val_subjects", "test_subjects", "input_columns", "medians")
"""Arrays that are no part of the content's hash, by which partition files and runs know the samples."""

Arrays = Mapping[str, NDArray[np.generic]]
log = logging.getLogger("fedskew")


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


def content_of(arrays: Arrays) -> str:
    """Return the hash of names, types, shapes and contents, but of the arrays BESIDE."""
    digest = hashlib.sha256()
    for name in sorted(arrays.keys() - {*BESIDE}):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.data.cast("B"))
    return digest.hexdigest()


def cached(
    folder: Callable[[], Path], make: Callable[[], Arrays]
) -> tuple[dict[str, NDArray[np.generic]], str]:
    """Return the arrays of a copy, memory-mapped and read-only, and their content hash. Make the copy if there is none.

    Args:
        folder: Returns the copy's folder. Asked again after `make`, which may download the files that the key is from.
        make: Returns the arrays.

    Raises:
        DataError: the copy cannot be written or read, or another process deletes it meanwhile.
    """
    copy = read(folder())
    if copy is None:
        arrays = make()
        path = folder()
        write(path, arrays)
        copy = read(path)
        if copy is None:
            raise DataError("the cached copy vanished while it was being read", where=path)
    return copy


def write(folder: Path, arrays: Arrays) -> None:
    """Write the arrays so that `folder` appears in one step; of two writers the second keeps the first one's.

    Raises:
        DataError: the cache cannot be written.
    """
    temporary = folder.with_name(f".{folder.name}-{uuid.uuid4().hex}")
    try:
        with owner_only():  # they may be patients' images
            temporary.mkdir(parents=True)
            for name, array in arrays.items():
                np.save(temporary / f"{name}.npy", array)
            described = {"content": content_of(arrays), "files": stats(temporary, arrays)}
            (temporary / "dataset.json").write_text(json.dumps(described))
        temporary.rename(folder)
    except OSError as error:
        # Another process was first, unless there is no whole copy.
        if not (folder / "dataset.json").is_file():
            raise _cannot_be_written(folder, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def read(folder: Path) -> tuple[dict[str, NDArray[np.generic]], str] | None:
    """The arrays, memory-mapped and read-only, and their content hash; None where there is no whole copy.

    A copy with a file of another size or time of change than was written down is taken away with a warning, so that it
    is built anew.

    Raises:
        DataError: a damaged copy may not be taken away.
    """
    if not folder.is_dir():
        return None
    try:
        described = json.loads((folder / "dataset.json").read_text())
        names = list(described["files"])
        if described["files"] != stats(folder, names):
            raise ValueError("its files are not those that were written")
        arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in names}
        return arrays, described["content"]
    # A damaged file surfaces as anything, an EOFError or a SyntaxError among others.
    except Exception as error:
        log.warning("%s: the cached copy is damaged (%s) and is made anew", folder, said(error))
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


def stats(folder: Path, names: Iterable[str]) -> dict[str, list[int]]:
    """Size in bytes and time of change in nanoseconds of each array's file."""
    files = {name: (folder / f"{name}.npy").stat() for name in names}
    return {name: [stat.st_size, stat.st_mtime_ns] for name, stat in files.items()}


def _cannot_be_written(folder: Path, error: OSError) -> DataError:
    return DataError(
        f"cannot be written ({error})",
        key="cache",
        value=str(folder.parent),
        remedy="set cache to a folder that can",
    )
