"""A user's own data: npz:PATH, folder:PATH and csv:PATH."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from data.settings import DataError, DataSettings
from data.sources.files import IGNORED, ImageFiles, open_image
from data.sources.npz import Arrays, read_arrays
from data.sources.splits import Raw, Split, check_form, numbered
from data.sources.table import classes_of, read_table


def path_of(name: str, settings: DataSettings) -> Path:
    """The file or folder of npz:PATH, folder:PATH or csv:PATH; a relative one lies below data-root, if that is set."""
    path = Path(name.split(":", 1)[1]).expanduser()
    return Path(settings.data_root).expanduser() / path if settings.data_root else path


def read_npz(path: Path, settings: DataSettings) -> Raw:
    """train_images, train_labels, test_images, test_labels and, if there, val_images and val_labels.

    Where test_subjects (N,) is there as well, test samples of one subject are tested as one.

    Raises:
        DataError: the file is missing, is no npz file, lacks an array, or holds what cannot be trained on.
    """
    wanted = ("train_images", "train_labels", "test_images", "test_labels")
    optional = (("val_images", "val_labels"), ("test_subjects",))

    def splits(arrays: Arrays) -> dict[str, Split]:
        return {
            key: Split(arrays[f"{key}_images"], arrays[f"{key}_labels"], str(path), key, arrays.get(f"{key}_subjects"))
            for key in ("train", "test", "val")
            if f"{key}_images" in arrays
        }

    def check(heads: Arrays) -> None:
        for split in splits(heads).values():
            check_form(split)

    read = splits(read_arrays(path, wanted, optional, settings, check))
    return Raw(read["train"], numbered(read["test"]), read.get("val"))


def read_folder(path: Path, class_names: tuple[str, ...], shape: tuple[int, ...], settings: DataSettings) -> Raw:
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
            splits[key] = read_split(folder, key, class_names, shape, settings)
        elif key != "val":
            raise DataError(f"{folder}: there is no such folder; {path} must hold train/CLASS/* and test/CLASS/*")
    return Raw(splits["train"], splits["test"], splits.get("val"))


def seen(name: str, settings: DataSettings) -> dict[str, str]:
    """What `classes` and `input-shape` would fit the data on disk, as far as those can be read."""
    path, guessed = path_of(name, settings), dict[str, str]()
    try:
        if name.startswith("npz:"):
            raw = read_npz(path, settings)
            labels = [split.labels for split in (raw.train, raw.test) if len(split.labels)]
            shape = raw.train.images.shape[1:]
            shape = (*shape[2:], *shape[:2]) if len(shape) == 3 else (1, *shape) if len(shape) == 2 else shape
            classes = int(max(part.max() for part in labels)) + 1
            return {"classes": str(classes), "input-shape": "x".join(map(str, shape))}
        if name.startswith("csv:"):
            table = read_table(path, settings)
            return {"classes": ",".join(classes_of(table.labels)), "input-shape": str(table.numbers_NF.shape[1])}
        names = sorted({folder.name for key in ("train", "test") for folder in visible(path / key)})
        guessed["classes"] = ",".join(names)
        first = next(file for folder in visible(path / "train") for file in visible(folder))
        image = open_image(first, 0, max_pixels=settings.max_image_pixels)
        return {**guessed, "input-shape": "x".join(map(str, (image.shape[2], *image.shape[:2])))}
    except (OSError, ValueError, TypeError, StopIteration):
        return guessed


def visible(folder: Path) -> Iterator[Path]:
    """What lies in a folder, in order of name, without the files that operating systems leave there."""
    for path in sorted(folder.iterdir()):
        if not path.name.startswith(".") and path.name not in IGNORED:
            yield path


def read_split(
    folder: Path, key: str, class_names: tuple[str, ...], shape: tuple[int, ...], settings: DataSettings
) -> Split:
    """CLASS/* of one folder, not decoded yet.

    Raises:
        DataError: a class folder is none of `class_names`, or there is no image.
    """
    present = [path.name for path in visible(folder) if path.is_dir()]
    unknown = [name for name in present if name not in class_names]
    if unknown:
        raise DataError(
            f"{folder}: class folders {', '.join(unknown)} are none of the setting classes; "
            f"found {', '.join(present)}; classes = {', '.join(class_names)}"
        )
    files = [
        (str(file.relative_to(folder)), label)
        for label, name in enumerate(class_names)
        if (folder / name).is_dir()
        for file in visible(folder / name)
    ]
    if not files:
        raise DataError(f"{folder}: no image in any class folder of {', '.join(class_names)}")
    images = ImageFiles.of(folder, [file for file, _ in files], shape, settings.max_image_pixels)
    return Split(images, np.array([label for _, label in files], np.int64), str(folder), key)
