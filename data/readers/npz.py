"""Arrays of an npz file: their heads are looked at before anything is unpacked, as 1 MB may unpack to gigabytes."""

import math
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from data.readers.file_type import truly
from data.settings import DataError, DataSettings
from data.text import said

Arrays = Mapping[str, NDArray[np.generic]]
MIB = 2**20


def read_arrays(
    path: Path,
    wanted: tuple[str, ...],
    optional: tuple[tuple[str, ...], ...],
    settings: DataSettings,
    check: Callable[[Arrays], object] = lambda heads: None,
) -> dict[str, NDArray[np.generic]]:
    """Arrays of an npz file: all that are wanted, and of the optional ones all that stand together if any is there.

    Before they are unpacked, `check` is given arrays of their shapes and types that take no memory.

    Raises:
        DataError: the file is missing, is no npz file, lacks an array, or unpacks to more than the settings allow.
    """
    if not path.is_file():
        raise DataError(f"{path}: there is no such file")
    try:
        with path.open("rb") as file:
            if file.read(len(npy.MAGIC_PREFIX)) == npy.MAGIC_PREFIX:
                rule = "holds one array: must be an npz file, as numpy.savez writes it from"
                raise DataError(
                    f"{path}: {rule} train_images, train_labels, test_images and test_labels"
                )
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            keys = (
                *wanted,
                *(key for together in optional if {*together} & members.keys() for key in together),
            )
            if missing := [key for key in keys if key not in members]:
                present = ", ".join(members) or "nothing"
                raise DataError(f"{path}: {', '.join(missing)} missing; the file holds {present}")
            refuse_large(path, {key: members[key].file_size for key in keys}, settings)
            check({key: _head(archive, members[key]) for key in keys})
            return {key: _array(archive, members[key]) for key in keys}
    except DataError:
        raise
    except (
        Exception
    ) as error:  # a damaged file surfaces as anything: zlib.error, SyntaxError, NotImplementedError
        reason = why_not(path, said(error))
        raise DataError(
            f"{path}: cannot be read as an npz file of plain arrays: {reason}"
        ) from error


def shapes_of(path: Path, keys: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of an npz file's arrays by their heads, of those of `keys` that can be read; no array is."""
    shapes: dict[str, tuple[int, ...]] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            for key in keys:
                if key in members:
                    shapes[key] = _head(archive, members[key]).shape
    except Exception:  # whoever reads the file whole says what is wrong with it
        return shapes
    return shapes


def why_not(path: Path, words: str) -> str:
    """Why a file is no npz file of plain arrays, and what to do."""
    if "Object arrays" in words:
        return f"{words}: save them with a type of their own, such as labels.astype(str) or images.astype('uint8')"
    kind = truly(path)
    if not kind or kind == "a zip archive":
        return words
    return f"is {kind}" + f": --set dataset=csv:{path}" * kind.endswith("by its commas")


def refuse_large(path: Path, sizes: Mapping[str, int], settings: DataSettings) -> None:
    """Raise DataError where arrays of so many bytes, by name, are more than the settings allow."""
    size, most = sum(sizes.values()), settings.max_unpacked_mib
    if size > most * MIB:
        rule = f"more than max-unpacked-mib = {most} allows"
        raise DataError(f"{path}: {', '.join(sizes)}: {math.ceil(size / MIB)} MiB unpacked: {rule}")


def _head(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> NDArray[np.generic]:
    """A read-only array of the member's shape and type, with one value in memory that stands for all."""
    with archive.open(info) as member:
        readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
        version = npy.read_magic(member)
        if version not in readers:
            raise ValueError(f"{info.filename} has version {version} of the format")
        shape, _, dtype = readers[version](member)
        if dtype.hasobject:
            raise ValueError(f"Object arrays are not plain ({info.filename})")
        stated = member.tell() + math.prod(shape) * dtype.itemsize
        if stated != info.file_size:  # numpy would take memory for what the head states
            raise ValueError(
                f"{info.filename} has {info.file_size} bytes, and its head states {stated}"
            )
    return np.broadcast_to(np.zeros((), dtype), shape)


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> NDArray[np.generic]:
    with archive.open(info) as member:
        array: NDArray[np.generic] = npy.read_array(member, allow_pickle=False)
    return array
