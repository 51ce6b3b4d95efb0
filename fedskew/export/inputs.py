"""Inputs for predictions: an npz file, a table or a folder of images, read as in training."""

import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from data import DataError, DataSettings, Samples
from data.readers.array_conversion import check_convertible, converted
from data.readers.file_type import is_nifti, truly
from data.readers.folder import read_split, visible
from data.readers.image_files import ImageFiles
from data.readers.input_columns import ORDER_COUNTS, order_of
from data.readers.npz import Arrays, read_arrays
from data.readers.splits import Split, checked
from data.readers.user_data import input_columns, kind_of_path, read_own
from fedskew.export.model_folder import Description

Read = tuple[NDArray[np.generic] | ImageFiles, NDArray[np.int64], list[str], bool]
Reader = Callable[[Path, Description, DataSettings], Read]


@dataclass(frozen=True)
class Inputs:
    """Inputs and, where they are known, labels."""

    where: Path
    samples: Samples
    names: list[str]
    """Of an image its path below the folder, or its file's name; else its place in the file."""
    labeled: bool
    """Whether the samples' labels mean anything."""
    notes: tuple[str, ...] = ()
    """What the user has to know of how they were read, a sentence each."""


def read_inputs(
    path: Path,
    about: Description,
    device: str = "cpu",
    settings: DataSettings | None = None,
) -> Inputs:
    """Return the inputs of an npz file (images and perhaps labels), a folder (images, or class folders) or one image.

    Of training data (an npz file of train and test, a folder with both, a table) they are the test samples.

    Args:
        path: the file or folder.
        about: the model's description.
        device: of the tensors.
        settings: by which the inputs are read; by default the model's own.

    Raises:
        DataError: there are no inputs, or the model cannot take them; it names file or folder.
    """
    reader = reader_of(path)
    settings = settings or about.data
    notes: tuple[str, ...] = ()
    order: NDArray[np.int64] | None = None
    if len(about.shape) == 1:
        columns = input_columns(f"{kind_of_path(path)}:{path.absolute()}", settings)
        if about.column_names and columns:
            order = order_of(columns, about.column_names, str(path), "the model")
        else:
            who = str(path) if about.column_names else "the model"
            notes = (f"{who}: {ORDER_COUNTS}",)
    read, labels_N, names, labeled = reader(path, about, settings)
    if order is not None:
        assert not isinstance(read, ImageFiles)  # the model takes vectors
        read = read[:, order]
    if isinstance(read, ImageFiles):
        images: Tensor | ImageFiles = read  # decoded batch by batch
    else:
        images = torch.from_numpy(np.ascontiguousarray(read)).to(device)
    per_channel = (-1, 1, 1) if len(about.shape) == 3 else (-1,)
    samples = Samples(
        images,
        torch.from_numpy(labels_N).to(device),
        mean=torch.tensor(about.means, device=device).view(per_channel),
        std=torch.tensor(about.stds, device=device).view(per_channel),
    )
    return Inputs(path, samples, names, labeled, notes)


def reader_of(path: Path) -> Reader:
    """Return what reads the path."""
    if path.suffix.lower() == ".csv":
        return training_data
    if path.is_dir():
        if {"train", "test"} <= {entry.name.lower() for entry in visible(path)}:
            return training_data
        return folder
    try:
        with zipfile.ZipFile(path) as archive:
            names = set(archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return one_image if is_image(path) else npz  # which says what is wrong
    if {"train_images.npy", "test_images.npy"} <= names and "images.npy" not in names:
        return training_data
    return npz


def is_image(path: Path) -> bool:
    """Return whether a file is an image by its first bytes, or a NIfTI file by its name."""
    if not path.is_file():
        return False
    kind = truly(path)
    if is_nifti(path) or kind == "a DICOM file" or kind.endswith("image"):
        return True
    registered = Image.registered_extensions()  # kinds whose first bytes `truly` does not know
    return not kind and path.suffix.lower() in registered


def one_image(path: Path, about: Description, settings: DataSettings) -> Read:
    """List one image, whose class nothing says."""
    require_images(path, about)
    image = ImageFiles.of(path.parent, [path.name], about.shape, settings, about.crop == "center")
    return image, np.zeros(1, np.int64), [path.name], False


def require_images(path: Path, about: Description) -> None:
    """Raise DataError where the model takes vectors."""
    if len(about.shape) == 1:
        rule = f"the model takes vectors: must be an npz file with images (N, {about.shape[0]}), float32"
        raise DataError(rule, where=str(path))


def training_data(path: Path, about: Description, settings: DataSettings) -> Read:
    """Read the test samples of what training takes."""
    dataset = f"{kind_of_path(path)}:{path.absolute()}"
    settings = replace(settings, dataset=dataset)
    split = read_own(dataset, about.class_names, about.shape, settings).test
    names = [f"test {index}" for index in range(len(split.labels))]
    if isinstance(split.images, ImageFiles):
        files = replace(split.images, central=about.crop == "center")
        labels_N = split.labels.astype(np.int64)
        return files, labels_N, names, True
    images, labels_N = checked(split, about.shape, len(about.class_names))
    return images, labels_N, names, True


def npz(path: Path, about: Description, settings: DataSettings) -> Read:
    """Read images and, if there, labels."""

    def split_of(arrays: Arrays) -> Split:
        images = arrays["images"]
        labels_N = arrays.get("labels", np.zeros(images.shape[:1], np.int64))
        return Split(images, labels_N, str(path), "")

    def check(heads: Arrays) -> None:
        check_convertible(split_of(heads))

    arrays = read_arrays(path, ("images",), (("labels",),), settings, check)
    labeled = "labels" in arrays
    reading = replace(
        settings,
        mean=",".join(map(str, about.means)),  # by which floating-point pixels are judged
        std=",".join(map(str, about.stds)),
    )
    if not labeled:
        reading = replace(reading, first_label=0)
    splits, _ = converted({"": split_of(arrays)}, reading)
    images, labels = checked(splits[""], about.shape, len(about.class_names))
    names = [str(index) for index in range(len(images))]
    return images, labels, names, labeled


def folder(path: Path, about: Description, settings: DataSettings) -> Read:
    """List the images, which are decoded as they are asked for."""
    require_images(path, about)
    entries = list(visible(path))
    if not entries:
        raise DataError("holds no image", where=str(path))
    labeled = all(entry.is_dir() for entry in entries)
    if labeled:
        split = read_split(path, "", about.class_names, about.shape, settings)
        assert isinstance(split.images, ImageFiles)
        files = split.images
        labels_N = split.labels.astype(np.int64)
    elif any(entry.is_dir() for entry in entries):
        rule = "must hold images alone, or a folder of them for each class"
        raise DataError(f"holds folders and files: {rule}", where=str(path))
    else:
        files = ImageFiles.of(path, [entry.name for entry in entries], about.shape, settings)
        labels_N = np.zeros(len(entries), np.int64)
    names = [str(files.path(index).relative_to(path)) for index in range(len(files))]
    return replace(files, central=about.crop == "center"), labels_N, names, labeled
