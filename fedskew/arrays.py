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
            Labels are whole numbers from 0, or names.
        test: the same, of samples that no client trains on.
        validation: the same, of samples that are measured and never trained on.
        classes: the names of the classes in the order of the labels; default: the names in the labels, or numbers.
        folder: where the file is kept.

    Raises:
        DataError: data that cannot be trained on, with the reason.
    """
    import numpy as np

    from data.readers.npz import guess_settings
    from data.settings import DataSettings

    arrays: dict[str, Any] = {}
    for name, split in (("train", train), ("test", test), ("val", validation)):
        if split is not None:
            arrays[f"{name}_images"], arrays[f"{name}_labels"] = images_and_labels(name, split)
    path = Path(folder) / f"{hash_of(arrays)}.npz"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial.npz")  # numpy appends .npz to any other name
        np.savez(partial, allow_pickle=False, **arrays)
        partial.replace(path)
    dataset = f"npz:{path}"
    names = ",".join(classes)
    proposed = guess_settings(path, DataSettings(dataset=dataset, classes=names)).settings
    settings = {**proposed, "dataset": dataset}
    if names:
        settings["classes"] = names
    return settings


def images_and_labels(name: str, split: Split) -> "tuple[NDArray[np.generic], NDArray[np.generic]]":
    """Return the arrays of a split. Raises DataError for what is neither a pair of arrays nor a data set."""
    import numpy as np

    from data.errors import DataError

    if isinstance(split, Sequence) and len(split) == 2:
        images, labels = split
        return as_array(images, axes=4), np.asarray(labels)
    if not (isinstance(split, Sized) and hasattr(split, "__getitem__")):
        rule = "must be a pair (images, labels), or a torch Dataset with a length"
        raise DataError(f"{type(split).__name__}: {rule}", where=name)
    items = [split[index] for index in range(len(split))]
    if not items:
        raise DataError("has no sample", where=name)
    images_N = [as_array(image, axes=3) for image, _ in items]
    shapes = {image.shape for image in images_N}
    if len(shapes) > 1:
        first, second = sorted(shapes)[:2]
        raise DataError(f"images of {first} and of {second}: must have one shape", where=name)
    return np.stack(images_N), np.asarray([label for _, label in items])


def as_array(images: Any, axes: int) -> "NDArray[np.generic]":
    """Return one image or many as an array; a tensor of `axes` axes has its channels before height and width."""
    import numpy as np

    array: NDArray[np.generic] = np.asarray(images)
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
