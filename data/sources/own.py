"""A user's own data: npz:PATH and folder:PATH."""

import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data.settings import DataError, DataSettings
from data.sources.files import IGNORED, ImageFiles, open_image
from data.sources.splits import Raw, Split


def path_of(name: str, settings: DataSettings) -> Path:
    """The file or folder of npz:PATH or folder:PATH; a relative one lies below data-root, if that is set."""
    path = Path(name.split(":", 1)[1]).expanduser()
    return Path(settings.data_root).expanduser() / path if settings.data_root else path


def read_npz(path: Path) -> Raw:
    """train_images, train_labels, test_images, test_labels and, if there, val_images and val_labels.

    Raises:
        DataError: the file is missing, is no npz file, or lacks an array.
    """
    wanted, val = ("train_images", "train_labels", "test_images", "test_labels"), ("val_images", "val_labels")
    arrays = read_arrays(path, wanted, val)
    splits = {
        key: Split(arrays[f"{key}_images"], arrays[f"{key}_labels"], str(path), key)
        for key in ("train", "test", "val")
        if f"{key}_images" in arrays
    }
    return Raw(splits["train"], splits["test"], splits.get("val"))


def read_arrays(path: Path, wanted: tuple[str, ...], optional: tuple[str, ...]) -> dict[str, NDArray[np.generic]]:
    """Arrays of an npz file: all that are wanted, and all of the optional ones if any of those is there.

    Raises:
        DataError: the file is missing, is no npz file, or lacks an array.
    """
    if not path.is_file():
        raise DataError(f"{path}: there is no such file")
    try:
        opened = np.load(path, allow_pickle=False)
        if not isinstance(opened, np.lib.npyio.NpzFile):
            raise DataError(f"{path}: must be an npz file, as numpy.savez writes it")
        with opened as file:
            keys = (*wanted, *(optional if {*optional} & {*file.files} else ()))
            missing = [key for key in keys if key not in file.files]
            if missing:
                present = ", ".join(file.files) or "nothing"
                raise DataError(f"{path}: {', '.join(missing)} missing; the file holds {present}")
            return {key: file[key] for key in keys}
    except DataError:
        raise
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: cannot be read as an npz file of plain arrays: {error}") from error


def read_folder(path: Path, class_names: tuple[str, ...], shape: tuple[int, ...]) -> Raw:
    """train/CLASS/* and test/CLASS/* and, if there, val/CLASS/*: any format that PIL reads.

    A class without a folder, or with an empty one, has no image; images are ordered by class, then by file name.

    Raises:
        DataError: a folder is missing, a class folder is none of `class_names`, or a file is no 8-bit image.
    """
    if not path.is_dir():
        raise DataError(f"{path}: there is no such folder")
    splits: dict[str, Split] = {}
    for key in ("train", "test", "val"):
        folder = path / key
        if folder.is_dir():
            splits[key] = read_split(folder, key, class_names, shape)
        elif key != "val":
            raise DataError(f"{folder}: there is no such folder; {path} must hold train/CLASS/* and test/CLASS/*")
    return Raw(splits["train"], splits["test"], splits.get("val"))


def seen(name: str, settings: DataSettings) -> dict[str, str]:
    """What `classes` and `input-shape` would fit the data on disk; empty where the data cannot be read."""
    path = path_of(name, settings)
    try:
        if name.startswith("npz:"):
            raw = read_npz(path)
            labels = [split.labels for split in (raw.train, raw.test) if len(split.labels)]
            shape = raw.train.images.shape[1:]
            shape = (*shape[2:], *shape[:2]) if len(shape) == 3 else (1, *shape) if len(shape) == 2 else shape
            classes = int(max(part.max() for part in labels)) + 1
            return {"classes": str(classes), "input-shape": "x".join(map(str, shape))}
        names = sorted({folder.name for key in ("train", "test") for folder in visible(path / key)})
        first = next(file for folder in visible(path / "train") for file in visible(folder))
        image = open_image(first, 0)
        return {"classes": ",".join(names), "input-shape": "x".join(map(str, (image.shape[2], *image.shape[:2])))}
    except (OSError, ValueError, TypeError, StopIteration):
        return {}


def visible(folder: Path) -> Iterator[Path]:
    """What lies in a folder, in order of name, without the files that operating systems leave there."""
    for path in sorted(folder.iterdir()):
        if not path.name.startswith(".") and path.name not in IGNORED:
            yield path


def read_split(folder: Path, key: str, class_names: tuple[str, ...], shape: tuple[int, ...]) -> Split:
    """CLASS/* of one folder, not decoded yet.

    Raises:
        DataError: a class folder is none of `class_names`, or there is no image.
    """
    found = [path.name for path in visible(folder) if path.is_dir()]
    unknown = [name for name in found if name not in class_names]
    if unknown:
        raise DataError(
            f"{folder}: class folders {', '.join(unknown)} are none of the setting classes; "
            f"found {', '.join(found)}; classes = {', '.join(class_names)}"
        )
    files = [
        (str(file.relative_to(folder)), label)
        for label, name in enumerate(class_names)
        if (folder / name).is_dir()
        for file in visible(folder / name)
    ]
    if not files:
        raise DataError(f"{folder}: no image in any class folder of {', '.join(class_names)}")
    images = ImageFiles.of(folder, [file for file, _ in files], shape)
    return Split(images, np.array([label for _, label in files], np.int64), str(folder), key)
