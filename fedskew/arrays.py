"""Data in memory as the data of a run: numpy arrays or torch data sets, kept as an npz file."""

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data import DataError, DataSettings
from data.readers.input_columns import order_of
from data.readers.npz import guess_settings
from data.text import name_list

Split = Any
"""A pair (images, labels) of arrays or tensors, or a torch Dataset whose items are pairs (image, label)."""
Array = NDArray[np.generic]
NUMBERS = (bool, int, float, np.number, np.bool_)


def from_arrays(
    train: Split,
    test: Split,
    *,
    validation: Split | None = None,
    classes: Sequence[str] = (),
    folder: str | PathLike[str] = "fedskew-data",
) -> dict[str, str]:
    """Keep data as an npz file and return the settings that train on it: dataset, classes and input-shape.

    The file is named after its contents, so that the same data are the same runs. A partition setting such as `alpha`
    then decides which client gets which samples.

    Args:
        train: a pair (images, labels), or a torch Dataset of (image, label). Images are (N, H, W), (N, H, W, C) or, as
            tensors, (N, C, H, W): bytes, or floating-point numbers from 0 to 1. Vectors are float32 (N, F).
            Labels are whole numbers from 0, or names. A DataFrame of vectors has the names of their columns, by which
            the columns of the others are put into its order.
        test: the same, of samples that no client trains on.
        validation: the same, of samples that are measured and never trained on.
        classes: the names of the classes in the order of the labels; default: the names in the labels, or numbers.
        folder: where the file is kept.

    Raises:
        DataError: data that cannot be trained on, with the reason.
    """
    if isinstance(classes, str):
        raise DataError(f"{classes!r}: must be a list of names", where="classes")
    splits = {"train": train, "test": test}
    if validation is not None:
        splits["val"] = validation
    arrays: dict[str, Array] = {}
    columns = column_names(train)
    for name, split in splits.items():
        images, labels = images_and_labels(name, split)
        present = column_names(split)
        if columns and present:
            images = images[:, order_of(present, columns, name, "train")]
        arrays[f"{name}_images"], arrays[f"{name}_labels"] = images, labels
    if columns:
        arrays["columns"] = np.array(columns)

    sha = hashlib.sha256()
    for name, array in arrays.items():
        sha.update(f"{name} {array.dtype} {array.shape};".encode())
        sha.update(np.ascontiguousarray(array).tobytes())
    path = Path(folder) / f"{sha.hexdigest()[:16]}.npz"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial.npz")  # numpy appends .npz to any other name
        np.savez(partial, allow_pickle=False, **arrays)
        partial.replace(path)
    settings = DataSettings(dataset=f"npz:{path}", classes=name_list(classes))
    proposed = guess_settings(path, settings).settings
    stated = {"classes": settings.classes} if settings.classes else {}
    return {**proposed, "dataset": settings.dataset, **stated}


def column_names(split: Split) -> list[str]:
    """Return the names of the columns of a pair (DataFrame, labels); empty for anything else, and for numbers."""
    if not (isinstance(split, Sequence) and len(split) == 2):
        return []
    names = list(getattr(split[0], "columns", ()))
    return names if all(isinstance(name, str) for name in names) else []


def images_and_labels(name: str, split: Split) -> tuple[Array, Array]:
    """Return the arrays of a split. Raises DataError for what is neither a pair of arrays nor a data set of pairs."""
    if isinstance(split, tuple | list) and len(split) == 2:
        images, labels = split
        return as_array(name, images, axes=4), labels_of(name, labels)
    images, labels = [], []
    try:
        for index in range(len(split)):
            image, label = split[index]
            images.append(image)
            labels.append(label)
    except (AttributeError, TypeError, ValueError, LookupError):
        rule = "must be a pair (images, labels), or a torch Dataset of such pairs with a length"
        raise DataError(f"{type(split).__name__}: {rule}", where=name) from None
    arrays = [as_array(name, image, axes=3) for image in images]
    return as_array(name, arrays, axes=4), labels_of(name, labels)


def labels_of(name: str, labels: Any) -> Array:
    """Return labels as an array. Raises DataError for what is neither all numbers nor all names."""
    with suppress(ValueError, TypeError, RuntimeError):  # of several lengths, or on a GPU
        array: Array = np.asarray(labels)
        if array.dtype.kind not in "OU":
            return array
        # As objects: numpy writes None, NaN and numbers beside names as names.
        listed = np.asarray(labels, dtype=object).ravel()
        for kind in (str, NUMBERS):
            if all(isinstance(label, kind) for label in listed):
                return np.asarray(array.tolist())  # a file of arrays takes no objects
    rule = "must be all names, or all numbers, one per sample, in memory"
    raise DataError(f"labels: {rule}", where=name)


def as_array(name: str, images: Any, axes: int) -> Array:
    """Return one image or many as an array; a tensor of `axes` axes has its channels before height and width.

    Raises:
        DataError: no array can be made of it.
    """
    array = np.array(None)
    with suppress(ValueError, TypeError, RuntimeError):
        array = np.asarray(images)
    if array.dtype.kind not in "biuf":
        rule = "must be numbers: arrays of one shape, or tensors on the CPU without gradients"
        raise DataError(f"images of type {type(images).__name__}: {rule}", where=name)
    is_tensor = type(images).__module__.partition(".")[0] == "torch"
    return np.moveaxis(array, -3, -1) if is_tensor and array.ndim == axes else array
