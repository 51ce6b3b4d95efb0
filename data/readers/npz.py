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

from data.errors import DataError, Remedy, SetOption
from data.readers.array_conversion import check_form, converted, with_subjects
from data.readers.array_types import Array, Shape
from data.readers.file_type import truly
from data.readers.input_columns import (
    ORDER_COUNTS,
    column_labels,
    filled,
    remedy_for_gap,
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
    What others save otherwise and can mean one thing alone is converted (`converted`). Vectors (N, F) may come with
    `columns` (F,), the names of their columns.

    Raises:
        DataError: the file is missing, is no npz file, lacks an array, or holds what cannot be trained on.
    """
    wanted = ("train_images", "train_labels", "test_images", "test_labels")
    optional = (
        ("val_images", "val_labels"),
        ("test_subjects",),
        ("train_subjects",),
        ("val_subjects",),
    )

    def check(heads: Arrays) -> None:
        for split in splits_of(path, heads).values():
            check_form(split)

    arrays = read_arrays(path, wanted, optional, settings, check)
    splits, notes = converted(splits_of(path, arrays), settings)
    columns = input_columns(path, settings)
    for key, split in splits.items():
        splits[key], dropped = without_gaps(split, columns, settings)
        notes += left_out(dropped)
    splits = with_subjects(splits)
    if splits["train"].images.ndim == 2 and not columns:
        notes.append(f"{ORDER_COUNTS}; an array columns can name them")
    return filled(Raw.of(splits, notes=tuple(notes), input_columns=columns), settings)


def without_gaps(
    split: Split, columns: tuple[str, ...], settings: DataSettings
) -> tuple[Split, list[str]]:
    """Return a split without the vectors that `missing = drop` leaves out, and what is missing in each of these.

    Raises:
        DataError: a number of a vector is NaN, and `missing` is refuse.
    """
    inputs_NF = vectors_of(split)
    if inputs_NF is None or settings.missing == "median":
        return split, []
    gaps_NF = np.isnan(inputs_NF)
    has_gap_N = gaps_NF.any(axis=1)
    names = column_labels(columns, inputs_NF.shape[1])
    dropped = []
    for row in np.flatnonzero(has_gap_N).tolist():
        column = names[int(gaps_NF[row].argmax())]
        found = f"row {row} (from 0), column {column}: is NaN, a missing value"
        dropped.append(f"{split.named('images')}: {found}")
        if settings.missing == "refuse":
            raise DataError(dropped[0], where=split.where, remedy=remedy_for_gap(settings))
    return split.take(np.flatnonzero(~has_gap_N), split.key), dropped


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
    is_list = array.dtype.kind == "U" and array.ndim == 1
    names = tuple(name.strip() for name in array.tolist()) if is_list else ()
    if features != {len(names)} or not all(names) or len(set(names)) < len(names):
        rule = f"must be {min(features)} different names, one per column of the vectors"
        found = f"columns: dtype {array.dtype}, shape {array.shape}"
        raise DataError(f"{found}: {rule}", where=path)
    return names


def splits_of(path: Path, arrays: Arrays) -> dict[str, Split]:
    """Return the splits that the arrays of an npz file are of, by key."""
    splits = {}
    for key in ("train", "test", "val"):
        if f"{key}_images" in arrays:
            images, labels = arrays[f"{key}_images"], arrays[f"{key}_labels"]
            splits[key] = Split(images, labels, str(path), key, arrays.get(f"{key}_subjects"))
    return splits


def guess_settings(path: Path, settings: DataSettings) -> Guess:
    """Propose settings for an npz file. Raises DataError."""
    raw = read_npz(path, settings)
    array = read_arrays(path, (), (("class_names",),), settings).get("class_names")
    names: tuple[str, ...] = ()
    if array is not None and array.ndim == 1 and array.dtype.kind == "U":
        names = tuple(array.tolist())
    # The setting `classes` cuts spaces off.
    usable = all(names) and len(set(map(str.strip, names))) == len(names)
    return guess_of(raw, settings, names if usable else ())


def guess_of(raw: Raw, settings: DataSettings, names: tuple[str, ...] = ()) -> Guess:
    """Propose settings for arrays whose labels are numbers, or names if `classes` is not set.

    Raises:
        DataError: images of which it is not clear what their axes are.
    """
    shape = _guessed_shape(raw.train, settings)
    notes: list[Remedy] = list(raw.notes)
    if raw.val is not None:
        notes.append("the validation split is measured beside the test split and never trained on")
    every_label = np.concatenate([split.labels for split in raw.splits.values()])
    proposed: dict[str, str] = {}
    if every_label.dtype.kind == "U":
        notes.append("labels that are names are numbered in the order of classes")
        proposed["classes"] = name_list(sorted({*every_label.tolist()}))
    else:
        smallest, largest = int(every_label.min()), int(every_label.max())
        if smallest >= 1 and not settings.classes and not settings.first_label:
            with_class_0 = SetOption("classes", str(largest + 1))
            counted = f"labels {smallest}..{largest} are taken to count from 1; "
            notes.append((counted, with_class_0, " keeps a class 0"))
            proposed["first-label"] = "1"
            largest -= 1
        enough_names = len(names) > largest
        proposed["classes"] = name_list(names) if enough_names else str(max(largest + 1, 2))
    proposed["input-shape"] = "x".join(map(str, shape))
    return Guess(proposed, tuple(notes))


def _guessed_shape(split: Split, settings: DataSettings) -> Shape:
    """Return the input shape that a split's images suggest. Raises DataError where it may be a volume."""
    shape = split.images.shape[1:]
    if len(shape) == 2:
        return (1, *shape)
    if len(shape) != 3:
        return shape
    height, width, channels = shape
    if channels > 4 and not settings.input_shape:
        rule = f"shape {split.images.shape}: a volume, or {channels} channels"
        option = SetOption("input-shape", f"{channels}x{height}x{width}")
        rule = f"{split.named('images')}: {rule}"
        raise DataError(rule, where=split.where, remedy=("if channels: ", option))
    return channels, height, width
