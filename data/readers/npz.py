"""npz:PATH: arrays of an npz file, as a user or others save them.

array_conversion.py brings the arrays to the form that is trained on.
"""

import zipfile
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

from data.errors import DataError, Remedy, SetOption
from data.readers.array_conversion import converted, with_subjects
from data.readers.array_types import Array
from data.readers.input_columns import ORDER_COUNTS, filled
from data.readers.splits import Guess, Raw, Split
from data.settings import DataSettings
from data.text import name_list, said


def read_arrays(
    path: Path, wanted: tuple[str, ...], optional: tuple[tuple[str, ...], ...] = ()
) -> dict[str, Array]:
    """Arrays of an npz file: all that are wanted, and of the optional ones all that stand together if any is there.

    Raises:
        DataError: the file is missing, is no npz file, or lacks an array.
    """
    if not path.is_file():
        raise DataError("there is no such file", where=path)
    try:
        with zipfile.ZipFile(path) as archive:  # of .npy files
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            keys = list(wanted)
            for together in optional:
                # One of them there asks for all of them.
                keys += together if members.keys() & {*together} else ()
            missing = [key for key in keys if key not in members]
            if missing:
                present = ", ".join(members) or "nothing"
                rule = f"{', '.join(missing)} missing; the file holds {present}"
                raise DataError(rule, where=path)
            arrays = {}
            for key in keys:
                with archive.open(members[key]) as member:
                    arrays[key] = npy.read_array(member, allow_pickle=False)
            return arrays
    except DataError:
        raise
    # A damaged file surfaces as anything: zlib.error, SyntaxError, NotImplementedError.
    except Exception as error:
        rule = f"cannot be read as an npz file of plain arrays: {said(error)}"
        raise DataError(rule, where=path) from error


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
    optional = (("val_images", "val_labels"), *subjects, ("columns",))
    arrays = read_arrays(path, wanted, optional)
    notes: list[Remedy] = []
    splits = {}
    for key in ("train", "test", "val"):
        if f"{key}_images" in arrays:
            images, labels = arrays[f"{key}_images"], arrays[f"{key}_labels"]
            split = Split(images, labels, str(path), key, arrays.get(f"{key}_subjects"))
            splits[key] = converted(split, settings, notes)
    splits = with_subjects(splits)
    columns: tuple[str, ...] = ()
    _, *sizes = splits["train"].images.shape
    if len(sizes) == 1 and "columns" in arrays:
        columns = names_in_array(arrays["columns"])
        if len(columns) != sizes[0]:
            rule = f"columns: must be {sizes[0]} different names, one per column of the vectors"
            raise DataError(rule, where=path)
    elif len(sizes) == 1:
        notes.append(f"{ORDER_COUNTS}; an array columns can name them")
    said_once = tuple(dict.fromkeys(notes))  # also what holds for several splits
    return filled(Raw(splits, said_once, input_columns=columns), settings)


def input_columns(path: Path) -> tuple[str, ...]:
    """Return the names of the vectors' columns, an npz file's array `columns`; empty without them. Raises DataError."""
    array = read_arrays(path, (), (("columns",),)).get("columns")
    return () if array is None else names_in_array(array)


def names_in_array(array: Array) -> tuple[str, ...]:
    """Return the different texts (N,) of an array without spaces around them; none for an array of anything else."""
    if array.dtype.kind != "U" or array.ndim != 1:
        return ()
    names = tuple(name.strip() for name in array.tolist())
    return names if all(names) and len(set(names)) == len(names) else ()


def guess_settings(path: Path, settings: DataSettings, names: tuple[str, ...] = ()) -> Guess:
    """Propose settings for an npz file whose classes have these names, or those of its array `class_names`.

    Raises:
        DataError: numbers that may count from 1, or images of which it is not clear what their axes are.
    """
    raw = read_npz(path, settings)
    array = read_arrays(path, (), (("class_names",),)).get("class_names")
    names = names if array is None else names_in_array(array)
    every_label = np.concatenate([split.labels for split in raw.splits.values()])
    if every_label.dtype.kind == "U":
        classes = name_list(sorted({*every_label.tolist()}))
    else:
        smallest, largest = int(every_label.min()), int(every_label.max())
        if smallest >= 1 and not settings.classes:
            rule = f"labels are {smallest}..{largest}: classes are numbered from 0; save labels - 1"
            option = SetOption("classes", str(largest + 1))
            raise DataError(rule, where=path, remedy=("if there is a class 0: ", option))
        classes = name_list(names) if len(names) > largest else str(max(largest + 1, 2))
    _, *sizes = raw.train.images.shape
    if len(sizes) > 1:
        height, width, channels = (*sizes, 1)[:3]
        sizes = [channels, height, width]
    shape = "x".join(map(str, sizes))
    if len(sizes) > 1 and sizes[0] > 4 and not settings.input_shape:
        found = f"train_images: shape {raw.train.images.shape}: a volume, or {sizes[0]} channels"
        remedy = ("if channels: ", SetOption("input-shape", shape))
        raise DataError(found, where=path, remedy=remedy)
    return Guess({"classes": classes, "input-shape": shape}, raw.notes)
