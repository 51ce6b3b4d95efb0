"""Data in memory as the data of a run: numpy arrays or torch data sets, kept as an npz file."""

import hashlib
from collections.abc import Mapping, Sequence, Sized
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # numpy takes a moment to import, which `import fedskew` does without
    import numpy as np
    from numpy.typing import NDArray

Split = Any
"""A pair (images, labels) of arrays or tensors, or a torch Dataset whose items are pairs (image, label)."""


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
    import numpy as np

    from data.errors import DataError
    from data.readers.input_columns import order_of
    from data.readers.npz import guess_settings
    from data.settings import DataSettings
    from data.text import name_list

    arrays: dict[str, Any] = {}
    columns = column_names(train)
    for name, split in (("train", train), ("test", test), ("val", validation)):
        if split is None and name == "val":
            continue
        images, labels = images_and_labels(name, split)
        present = column_names(split)
        if columns and present:
            images = images[:, order_of(present, columns, name, "train")]
        arrays[f"{name}_images"], arrays[f"{name}_labels"] = images, labels
    if columns:
        arrays["columns"] = np.array(columns)
    path = Path(folder) / f"{hash_of(arrays)}.npz"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial.npz")  # numpy appends .npz to any other name
        np.savez(partial, allow_pickle=False, **arrays)
        partial.replace(path)
    dataset = f"npz:{path}"
    if isinstance(classes, str):
        raise DataError(f"{classes!r}: must be a list of names", where="classes")
    names = name_list(classes)
    proposed = guess_settings(path, DataSettings(dataset=dataset, classes=names)).settings
    settings = {**proposed, "dataset": dataset}
    if names:
        settings["classes"] = names
    return settings


def images_and_labels(name: str, split: Split) -> "tuple[NDArray[np.generic], NDArray[np.generic]]":
    """Return the arrays of a split. Raises DataError for what is neither a pair of arrays nor a data set of pairs."""
    import numpy as np

    from data.errors import DataError

    if isinstance(split, Sequence) and len(split) == 2 and not isinstance(split, str):
        images, labels = split
        return as_array(name, images, axes=4), labels_of(name, labels)
    if isinstance(split, tuple):
        raise DataError(f"has {len(split)} parts: must be a pair (images, labels)", where=name)
    is_dataset = isinstance(split, Sized) and hasattr(split, "__getitem__")
    if not is_dataset or isinstance(split, Mapping | str | np.ndarray):
        found = type(split).__name__
        if isinstance(split, Mapping):
            found += f" with the keys {', '.join(map(str, split))}"
        rule = "must be a pair (images, labels), or a torch Dataset with a length"
        raise DataError(f"{found}: {rule}", where=name)
    items = [split[index] for index in range(len(split))]
    if not items:
        raise DataError("has no sample", where=name)
    for index, item in enumerate(items):
        check_pair(f"{name}: item {index}", item)
    images_N = [as_array(name, image, axes=3) for image, _ in items]
    shapes = {image.shape for image in images_N}
    if len(shapes) > 1:
        first, second = sorted(shapes)[:2]
        raise DataError(f"images of {first} and of {second}: must have one shape", where=name)
    return np.stack(images_N), labels_of(name, [label for _, label in items])


def column_names(split: Split) -> list[str]:
    """Return the names of the columns of a pair (DataFrame, labels); empty for anything else, and for numbers."""
    if not (isinstance(split, Sequence) and len(split) == 2):
        return []
    names = list(getattr(split[0], "columns", ()))
    return names if all(isinstance(name, str) for name in names) else []


def check_pair(where: str, item: Any) -> None:
    """Raise DataError for an item of a data set that is no pair (image, label)."""
    from data.errors import DataError

    if isinstance(item, Mapping):
        found = f"is a dictionary with the keys {', '.join(map(str, item))}"
    elif not isinstance(item, Sequence) or isinstance(item, str):
        found = f"is of type {type(item).__name__}"
    elif len(item) != 2:
        found = f"has {len(item)} parts"
    else:
        return
    raise DataError(f"{found}: must be a pair (image, label)", where=where)


def labels_of(name: str, labels: Any) -> "NDArray[np.generic]":
    """Return labels as an array. Raises DataError for what is neither numbers nor names."""
    import numpy as np

    from data.errors import DataError

    try:
        array: NDArray[np.generic] = np.asarray(labels)
    except (ValueError, TypeError, RuntimeError):  # of several lengths, or on a GPU
        rule = "must be one number or name per sample, in memory"
        raise DataError(f"labels: {rule}", where=name) from None
    if array.dtype.kind == "U" and array.ndim == 1 and not isinstance(labels, np.ndarray):
        kinds = {type(label).__name__ for label in labels if not isinstance(label, str)}
        if kinds:
            # numpy writes None, NaN and numbers beside names as names.
            rule = "must be all names, or all numbers"
            raise DataError(
                f"labels of type {', '.join(sorted(kinds))} and names: {rule}", where=name
            )
    if array.dtype.kind == "O":  # a column of pandas, or a mixture
        array = array_of_objects(name, array)
    return array


def array_of_objects(name: str, labels: "NDArray[np.generic]") -> "NDArray[np.generic]":
    """Return labels that are Python objects as an array of their type. Raises DataError for a mixture, or None."""
    import numpy as np

    from data.errors import DataError

    listed = labels.ravel().tolist()
    are_names = [isinstance(label, str) for label in listed]
    if all(are_names):
        return labels.astype(str)
    expected = str if any(are_names) else (bool, int, float, np.number, np.bool_)
    for index, label in enumerate(listed):
        if not isinstance(label, expected):
            rule = "must be all names, or all numbers, one per sample"
            raise DataError(f"label {label!r:.80} at index {index}: {rule}", where=name)
    return np.asarray(labels.tolist())


def as_array(name: str, images: Any, axes: int) -> "NDArray[np.generic]":
    """Return one image or many as an array; a tensor of `axes` axes has its channels before height and width.

    Raises:
        DataError: no array can be made of it.
    """
    import numpy as np

    from data.errors import DataError

    try:
        array: NDArray[np.generic] = np.asarray(images)
    except (ValueError, TypeError, RuntimeError):
        rule = "must be arrays of one shape, or tensors on the CPU without gradients, of a type that numpy has"
        raise DataError(f"images of type {type(images).__name__}: {rule}", where=name) from None
    if array.dtype.kind not in "biuf":
        rule = "must be numbers"
        raise DataError(f"images of type {type(images).__name__}: {rule}", where=name)
    is_tensor = type(images).__module__.partition(".")[0] == "torch"
    if is_tensor and array.ndim == axes:
        return np.moveaxis(array, -3, -1)
    return array


def hash_of(arrays: "Mapping[str, NDArray[np.generic]]") -> str:
    """Return 16 digits of the SHA-256 of names, types, shapes and values."""
    import numpy as np

    sha = hashlib.sha256()
    for name, array in arrays.items():
        sha.update(f"{name} {array.dtype} {array.shape};".encode())
        sha.update(np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()[:16]
