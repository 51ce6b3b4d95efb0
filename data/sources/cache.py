"""The memory-mapped copy of a data set, which all processes of a machine share through the page cache."""

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data.settings import DataError

VERSION = 1
"""Part of every key: raise it when the same files would be read into other arrays."""

Arrays = Mapping[str, NDArray[np.generic]]


def cache_folder(setting: str) -> Path:
    """The setting `cache`, or fedskew in the user's cache folder."""
    if setting:
        return Path(setting).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedskew"


def key_of(identity: object, files: list[Path]) -> str:
    """Hash of what a data set is made from: `identity` and the paths, sizes and times of change of its files."""
    stats = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(json.dumps([VERSION, identity, stats]).encode()).hexdigest()


def content_hash(arrays: Arrays) -> str:
    """Hash of names, types, shapes and contents."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.data.cast("B"))
    return digest.hexdigest()


def write(folder: Path, arrays: Arrays) -> None:
    """Write the arrays so that `folder` appears all at once; whoever comes second leaves the first one's in place.

    Raises:
        DataError: the cache cannot be written.
    """
    temporary = folder.with_name(f".{folder.name}-{uuid.uuid4().hex}")
    try:
        temporary.mkdir(parents=True)
        for name, array in arrays.items():
            np.save(temporary / f"{name}.npy", array)
        described = {"content": content_hash(arrays), "arrays": sorted(arrays)}
        (temporary / "dataset.json").write_text(json.dumps(described))
        try:
            temporary.rename(folder)
        except OSError:
            if not (folder / "dataset.json").is_file():
                raise
    except OSError as error:
        raise DataError(
            f"cache = {str(folder.parent)!r}: cannot be written ({error}); set cache to a folder that can"
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def read(folder: Path) -> tuple[dict[str, NDArray[np.generic]], str] | None:
    """The arrays, memory-mapped and read-only, and their content hash; None where there is no copy yet.

    Raises:
        DataError: there is one, but not in order.
    """
    try:
        described = json.loads((folder / "dataset.json").read_text())
        arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in described["arrays"]}
        return arrays, described["content"]
    except (FileNotFoundError, NotADirectoryError):
        if folder.is_dir():
            raise DataError(f"{folder}: the cached copy is incomplete; delete the folder") from None
        return None
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{folder}: the cached copy cannot be read ({error}); delete the folder") from error
