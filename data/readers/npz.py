"""npz:PATH: arrays of an npz file, as a user or others save them.

Heads are looked at before anything is unpacked, as 1 MB may unpack to gigabytes. array_conversion.py brings the arrays
to the form that is trained on.
"""

import math
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

from data.errors import DataError, Remedy, SetOption, either
from data.readers.array_conversion import check_form, converted, with_subjects
from data.readers.array_types import Array, Shape
from data.readers.file_type import truly
from data.readers.input_columns import (
    ORDER_COUNTS,
    column_labels,
    filled,
    rows_without_gaps,
    vectors_of,
)
from data.readers.rows import left_out
from data.readers.splits import Guess, Raw, Split
from data.settings import LARGEST_UNPACKED, DataSettings
from data.text import name_list, said

Arrays = Mapping[str, Array]
MIB = 2**20
MOST_PACKED = 20
"""Times that arrays may be larger than their file, however large: images shrink less, and a bomb shrinks far more."""


def read_arrays(
    path: Path,
    wanted: tuple[str, ...],
    optional: tuple[tuple[str, ...], ...],
    settings: DataSettings,
    check: Callable[[Arrays], object] = lambda heads: None,
) -> dict[str, Array]:
    """Arrays of an npz file: all that are wanted, and of the optional ones all that stand together if any is there.

    Before they are unpacked, `check` is given arrays of their shapes and types that take no memory.

    Raises:
        DataError: the file is missing, is no npz file, lacks an array, or unpacks to more than the settings allow.
    """
    if not path.is_file():
        raise DataError("there is no such file", where=path)
    try:
        with zipfile.ZipFile(path) as archive:
            members = members_of(archive)
            keys = list(wanted)
            for together in optional:
                # One of them there asks for all of them.
                keys += together if members.keys() & {*together} else ()
            missing = [key for key in keys if key not in members]
            if missing:
                present = ", ".join(members) or "nothing"
                rule = f"{', '.join(missing)} missing; the file holds {present}"
                raise DataError(rule, where=path)
            refuse_large(path, {key: members[key].file_size for key in keys})
            check({key: _head(archive, members[key]) for key in keys})
            arrays = {}
            for key in keys:
                with archive.open(members[key]) as member:
                    arrays[key] = npy.read_array(member, allow_pickle=False)
            return arrays
    except DataError:
        raise
    # A damaged file surfaces as anything: zlib.error, SyntaxError, NotImplementedError.
    except Exception as error:
        reason = said(error)
        remedy: Remedy = ""
        kind = truly(path)
        if "Object arrays" in reason:
            remedy = "save them with a type of their own, such as labels.astype(str)"
        elif kind and kind != "a zip archive":
            reason = f"is {kind}"
            if kind == "text":
                remedy = "if it is a table: ", SetOption("dataset", f"csv:{path}")
        rule = f"cannot be read as an npz file of plain arrays: {reason}"
        raise DataError(rule, where=path, remedy=remedy) from error


def members_of(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """Return the arrays of an npz file, which is a zip archive of .npy files, by name."""
    return {info.filename.removesuffix(".npy"): info for info in archive.infolist()}


def shapes_of(path: Path, keys: tuple[str, ...]) -> dict[str, Shape]:
    """Return the shapes of an npz file's arrays, of those of `keys` whose heads can be read. No array is unpacked."""
    shapes: dict[str, Shape] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            members = members_of(archive)
            for key in keys:
                if key in members:
                    shapes[key] = _head(archive, members[key]).shape
    except Exception:  # the reader of the whole file says what is wrong with it
        return shapes
    return shapes


def refuse_large(path: Path, sizes: Mapping[str, int]) -> None:
    """Raise DataError for arrays of more bytes, by name, than LARGEST_UNPACKED and far more than their file has."""
    size = sum(sizes.values())
    if size > max(LARGEST_UNPACKED, MOST_PACKED * path.stat().st_size):
        found = f"{', '.join(sizes)}: {math.ceil(size / MIB)} MiB unpacked"
        rule = f"must be at most {LARGEST_UNPACKED // MIB} MiB, or {MOST_PACKED} times the file"
        remedy = "np.savez, in place of savez_compressed, writes a larger file"
        raise DataError(f"{found}: {rule}", where=path, remedy=remedy)


def _head(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Array:
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
    # numpy would take memory for as much as the head states.
    if stated != info.file_size:
        found = f"{info.filename} has {info.file_size} bytes"
        raise ValueError(f"{found}, and its head states {stated}")
    return np.broadcast_to(np.zeros((), dtype), shape)


def read_npz(path: Path, settings: DataSettings) -> Raw:
    """Return train_images, train_labels, test_images, test_labels and, if there, val_images and val_labels.

    Where test_subjects (N,) is there as well, test samples of one subject are tested as one. train_subjects and
    val_subjects (N,) name the subjects of the other samples, by the same names: no subject is in two of the splits.
    Vectors (N, F) may come with `columns` (F,), the names of their columns.

    Raises:
        DataError: the file is missing, is no npz file, lacks an array, or holds what cannot be trained on.
    """
    wanted = ("train_images", "train_labels", "test_images", "test_labels")
    subjects = (("train_subjects",), ("val_subjects",), ("test_subjects",))
    optional = (("val_images", "val_labels"), *subjects)

    def check(heads: Arrays) -> None:
        for split in splits_of(path, heads).values():
            check_form(split)

    arrays = read_arrays(path, wanted, optional, settings, check)
    columns = input_columns(path, settings)
    notes: list[Remedy] = []
    splits = {}
    for key, as_stored in splits_of(path, arrays).items():
        split = converted(as_stored, settings, notes)
        splits[key], dropped = without_gaps(split, columns, settings)
        notes += left_out(dropped)
    splits = with_subjects(splits)
    if splits["train"].images.ndim == 2 and not columns:
        notes.append(f"{ORDER_COUNTS}; an array columns can name them")
    said_once = tuple(dict.fromkeys(notes))  # also what holds for several splits
    return filled(Raw.of(splits, notes=said_once, input_columns=columns), settings)


def without_gaps(
    split: Split, columns: tuple[str, ...], settings: DataSettings
) -> tuple[Split, list[str]]:
    """Return a split without the vectors that `missing = drop` leaves out, and what is missing in each of these.

    Raises:
        DataError: a number of a vector is NaN, and `missing` is refuse; or there is one in every vector.
    """
    inputs_NF = vectors_of(split)
    if inputs_NF is None:
        return split, []
    names = column_labels(columns, inputs_NF.shape[1])

    def cell(row: int, name: str) -> str:
        return f"{split.named('images')}: row {row} (from 0), column {name}: nan"

    rows, dropped = rows_without_gaps(inputs_NF, names, cell, split.where, settings)
    if not len(rows):
        raise split.error("images", "every row", "has a missing value")
    return split.take(rows, split.key) if dropped else split, dropped


def input_columns(path: Path, settings: DataSettings) -> tuple[str, ...]:
    """Return the names of the vectors' columns, an npz file's array `columns`; empty without it, and for images.

    Raises:
        DataError: `columns` is no list of different names, one per column.
    """
    shapes = shapes_of(path, ("train_images", "images"))
    features = {shape[1] for shape in shapes.values() if len(shape) == 2}
    array = read_arrays(path, (), (("columns",),), settings).get("columns") if features else None
    if array is None:
        return ()
    names = names_in_array(array)
    if features != {len(names)} or not all(names) or len(set(names)) < len(names):
        rule = f"must be {min(features)} different names, one per column of the vectors"
        found = f"columns: dtype {array.dtype}, shape {array.shape}"
        raise DataError(f"{found}: {rule}", where=path)
    return names


def names_in_array(array: Array) -> tuple[str, ...]:
    """Return the texts (N,) of an array without spaces around them; none for an array of anything else."""
    if array.dtype.kind != "U" or array.ndim != 1:
        return ()
    return tuple(name.strip() for name in array.tolist())


def splits_of(path: Path, arrays: Arrays) -> dict[str, Split]:
    """Return the splits that the arrays of an npz file are of, by key."""
    splits = {}
    for key in ("train", "test", "val"):
        if f"{key}_images" in arrays:
            images, labels = arrays[f"{key}_images"], arrays[f"{key}_labels"]
            splits[key] = Split(images, labels, str(path), key, arrays.get(f"{key}_subjects"))
    return splits


def guess_settings(path: Path, settings: DataSettings, names: tuple[str, ...] = ()) -> Guess:
    """Propose settings for an npz file whose classes have these names, or those of its array `class_names`.

    Raises:
        DataError: numbers that may count from 1, or images of which it is not clear what their axes are.
    """
    raw = read_npz(path, settings)
    array = read_arrays(path, (), (("class_names",),), settings).get("class_names")
    names = names if array is None else names_in_array(array)
    if not all(names) or len(set(names)) < len(names):
        names = ()
    notes: list[Remedy] = list(raw.notes)
    if raw.val is not None:
        notes.append("the validation split is measured beside the test split and never trained on")
    every_label = np.concatenate([split.labels for split in raw.splits.values()])
    if every_label.dtype.kind == "U":
        notes.append("labels that are names are numbered in the order of classes")
        classes = name_list(sorted({*every_label.tolist()}))
    else:
        smallest, largest = int(every_label.min()), int(every_label.max())
        if smallest >= 1 and not settings.classes and not settings.first_label:
            rule = f"labels are {smallest}..{largest}: they count from 1, or there is a class 0"
            ways = SetOption("first-label", "1"), SetOption("classes", str(largest + 1))
            raise DataError(rule, where=raw.train.where, remedy=either(ways))
        classes = name_list(names) if len(names) > largest else str(max(largest + 1, 2))
    shape = "x".join(map(str, _guessed_shape(raw.train, settings)))
    return Guess({"classes": classes, "input-shape": shape}, tuple(notes))


def _guessed_shape(split: Split, settings: DataSettings) -> Shape:
    """Return the input shape that a split's images suggest. Raises DataError where it may be a volume."""
    shape = split.images.shape[1:]
    if len(shape) == 1:
        return shape
    height, width, channels = (*shape, 1)[:3]
    if channels > 4 and not settings.input_shape:
        found = (
            f"{split.named('images')}: shape {split.images.shape}: a volume, or {channels} channels"
        )
        option = SetOption("input-shape", f"{channels}x{height}x{width}")
        raise DataError(found, where=split.where, remedy=("if channels: ", option))
    return channels, height, width
