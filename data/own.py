"""A user's own data: npz:PATH and folder:PATH."""

import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data.errors import DataError
from data.settings import DataSettings
from data.splits import Raw, Split

IGNORED = ("Thumbs.db", "desktop.ini")
EIGHT_BIT = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", "LAB")
"""PIL's modes that convert to L or RGB without clipping; 16-bit ones would lose nearly everything in silence."""


def path_of(name: str, settings: DataSettings) -> Path:
    """The file or folder of npz:PATH or folder:PATH; a relative one lies below data-root, if that is set."""
    path = Path(name.split(":", 1)[1]).expanduser()
    return Path(settings.data_root).expanduser() / path if settings.data_root else path


def read_npz(path: Path) -> Raw:
    """train_images, train_labels, test_images, test_labels and, if there, val_images and val_labels.

    Raises:
        DataError: the file is missing, is no npz file, or lacks an array.
    """
    if not path.is_file():
        raise DataError(f"{path}: there is no such file")
    wanted = ("train_images", "train_labels", "test_images", "test_labels")
    try:
        opened = np.load(path, allow_pickle=False)
        if not isinstance(opened, np.lib.npyio.NpzFile):
            raise DataError(f"{path}: must be an npz file, as numpy.savez writes it")
        with opened as file:
            optional = ("val_images", "val_labels") if {"val_images", "val_labels"} & set(file.files) else ()
            missing = [key for key in (*wanted, *optional) if key not in file.files]
            if missing:
                present = ", ".join(file.files) or "nothing"
                raise DataError(f"{path}: {', '.join(missing)} missing; the file holds {present}")
            arrays = {key: file[key] for key in (*wanted, *optional)}
    except DataError:
        raise
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: cannot be read as an npz file of plain arrays: {error}") from error
    splits = {
        key: Split(arrays[f"{key}_images"], arrays[f"{key}_labels"], str(path), key)
        for key in (("train", "test", "val") if optional else ("train", "test"))
    }
    return Raw(splits["train"], splits["test"], splits.get("val"))


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
            splits[key] = _read_split(folder, key, class_names, shape)
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
        names = sorted({folder.name for key in ("train", "test") for folder in _visible(path / key)})
        first = next(file for folder in _visible(path / "train") for file in _visible(folder))
        image = _open(first, 0)
        return {"classes": ",".join(names), "input-shape": "x".join(map(str, (image.shape[2], *image.shape[:2])))}
    except (OSError, ValueError, TypeError, StopIteration):
        return {}


def _visible(folder: Path) -> Iterator[Path]:
    """What lies in a folder, in order of name, without the files that operating systems leave there."""
    for path in sorted(folder.iterdir()):
        if not path.name.startswith(".") and path.name not in IGNORED:
            yield path


def _read_split(folder: Path, key: str, class_names: tuple[str, ...], shape: tuple[int, ...]) -> Split:
    found = [path.name for path in _visible(folder) if path.is_dir()]
    unknown = [name for name in found if name not in class_names]
    if unknown:
        raise DataError(
            f"{folder}: class folders {', '.join(unknown)} are none of the setting classes; "
            f"found {', '.join(found)}; classes = {', '.join(class_names)}"
        )
    files = [
        (file, label)
        for label, name in enumerate(class_names)
        if (folder / name).is_dir()
        for file in _visible(folder / name)
    ]
    if not files:
        raise DataError(f"{folder}: no image in any class folder of {', '.join(class_names)}")
    channels, height, width = shape
    images = np.empty((len(files), height, width, channels), np.uint8)
    for index, (file, _) in enumerate(files):
        images[index] = _open(file, channels, (width, height))
    return Split(images, np.array([label for _, label in files], np.int64), str(folder), key)


def _open(file: Path, channels: int, size: tuple[int, int] | None = None) -> NDArray[np.uint8]:
    """One image (H, W, channels); 0 channels is as many as it has, no size is its own."""
    from PIL import Image

    try:
        with Image.open(file) as opened:
            if opened.mode not in EIGHT_BIT:
                raise DataError(f"{file}: mode {opened.mode}: must be an image of 8 bits a channel")
            grey = channels == 1 or (channels == 0 and opened.mode in ("1", "L", "LA"))
            image = opened.convert("L" if grey else "RGB")
    except OSError as error:
        raise DataError(f"{file}: cannot be read as an image: {error}") from error
    if size is not None and image.size != size:
        image = image.resize(size, Image.Resampling.BILINEAR)
    pixels = np.asarray(image, np.uint8)
    return pixels[..., None] if pixels.ndim == 2 else pixels
