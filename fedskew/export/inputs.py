"""Inputs for predictions: an npz file, a table or a folder of images, read as in training."""

import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from data import DataError, DataSettings, Samples, SettingError
from data.readers.array_conversion import check_convertible, converted
from data.readers.catalog import labels_file
from data.readers.dicom_headers import PATIENT, Header, headers_of, notes_of_others
from data.readers.file_type import is_nifti, truly
from data.readers.folder import below, class_folders, class_number, read_split, visible
from data.readers.image_files import ImageFiles
from data.readers.input_columns import ORDER_COUNTS, order_of
from data.readers.labels import checked_keyword, key_of, label_table
from data.readers.medians import column_labels
from data.readers.npz import Arrays, read_arrays
from data.readers.rows import LABEL, is_missing
from data.readers.splits import Split, checked
from data.readers.user_data import input_columns, kind_of_path, read_own
from fedskew.export.model_folder import Description
from fedskew.export.table_rows import Gaps, Read, csv_rows, hf_rows

Reader = Callable[[Path, Description, DataSettings], Read]


@dataclass(frozen=True)
class Inputs:
    """Inputs and, where they are known, labels."""

    where: Path
    samples: Samples
    names: list[str]
    """Of an image its path below the folder or the table's, or its file's name; of a table of numbers `row LINE`; else
    its place in the file."""
    known_N: Tensor
    """(N,) bool: whether each sample's label is known."""
    lines: Sequence[int] = ()
    """Each row's line in a CSV file; empty for other files."""
    columns: Sequence[Mapping[str, str]] = ()
    """Each row's cells that are no inputs, as they stand in the file, by column; empty where there are none."""
    left_out: tuple[str, ...] = ()
    """What was missing in each row that is left out."""
    notes: tuple[str, ...] = ()
    """What the user has to know of how they were read, a sentence each."""

    @property
    def labeled(self) -> bool:
        """Whether the label of any sample is known."""
        return bool(self.known_N.any())


def read_inputs(
    path: Path,
    about: Description,
    device: str = "cpu",
    settings: DataSettings | None = None,
) -> Inputs:
    """Return the inputs of an npz file (images and perhaps labels), a folder (images, or class folders) or one image.

    Of an npz file of train and test, or a folder with both, they are the test samples; of a table all rows.

    Args:
        path: the file or folder.
        about: the model's description.
        device: of the tensors.
        settings: by which the inputs are read; by default the model's own.

    Raises:
        DataError: there are no inputs, or the model cannot take them; it names file or folder.
    """
    reader = reader_of(path)
    if settings is not None and settings.labels and reader is not folder:
        rule = "is for folders of DICOM files"
        raise SettingError("labels", settings.labels, f"{rule}, and {path} is none")
    read = reader(path, about, settings or about.data)
    images = read.images  # files are decoded batch by batch
    inputs: Tensor | ImageFiles
    if isinstance(images, ImageFiles):
        inputs = images
    else:
        inputs = torch.from_numpy(np.ascontiguousarray(images)).to(device)
    per_channel = (-1, 1, 1) if len(about.shape) == 3 else (-1,)
    samples = Samples(
        inputs,
        torch.from_numpy(read.labels_N).to(device),
        mean=torch.tensor(about.means, device=device).view(per_channel),
        std=torch.tensor(about.stds, device=device).view(per_channel),
    )
    return Inputs(
        where=path,
        samples=samples,
        names=read.names,
        known_N=torch.from_numpy(read.known_N).to(device),
        lines=read.lines,
        columns=read.columns,
        left_out=read.left_out,
        notes=read.notes,
    )


def reader_of(path: Path) -> Reader:
    """Return what reads the path."""
    if path.suffix.lower() == ".csv":
        return csv_rows
    if path.is_dir():
        if kind_of_path(path) == "hf":
            return hf_rows
        has_splits = {"train", "test"} <= {entry.name.lower() for entry in visible(path)}
        return training_data if has_splits else folder
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
    labels_N = np.zeros(1, np.int64)
    return Read(
        image,
        labels_N,
        [path.name],
        np.zeros(1, np.bool_),
        columns=patient_columns([path], headers_of([path])),
    )


def require_images(path: Path, about: Description) -> None:
    """Raise DataError where the model takes vectors."""
    if len(about.shape) == 1:
        rule = f"the model takes vectors: must be an npz file with images (N, {about.shape[0]}), float32"
        raise DataError(rule, where=str(path))


def training_data(path: Path, about: Description, settings: DataSettings) -> Read:
    """Read the test samples of what training takes."""
    if len(about.shape) == 1 and path.is_file():
        return npz(path, about, settings, "test_")  # by the model's medians, not the file's own
    dataset = f"{kind_of_path(path)}:{path.absolute()}"
    settings = replace(settings, dataset=dataset)
    split = read_own(dataset, about.class_names, about.shape, settings).test
    if isinstance(split.images, ImageFiles):
        images: NDArray[np.generic] | ImageFiles
        images = replace(split.images, central=about.crop == "center")
        labels_N = split.labels.astype(np.int64)
    else:
        images, labels_N = checked(split, about.shape, len(about.class_names))
    names = [f"test {index}" for index in range(len(labels_N))]
    known_N = np.ones(len(labels_N), np.bool_)
    return Read(images, labels_N, names, known_N, notes=(of_test_samples(path, labels_N),))


def of_test_samples(path: Path, labels_N: NDArray[np.int64]) -> str:
    """Return the sentence about training data."""
    return f"{path} says who trains and who tests: its {len(labels_N)} test samples are predicted"


def npz(path: Path, about: Description, settings: DataSettings, prefix: str = "") -> Read:
    """Read images and, if there, labels; with the prefix test_ those arrays of training data."""
    images_key, labels_key = f"{prefix}images", f"{prefix}labels"

    def split_of(arrays: Arrays) -> Split:
        images = arrays[images_key]
        labels_N = arrays.get(labels_key, np.zeros(images.shape[:1], np.int64))
        return Split(images, labels_N, str(path), prefix.removesuffix("_"))

    def check(heads: Arrays) -> None:
        check_convertible(split_of(heads))

    arrays = read_arrays(path, (images_key,), ((labels_key,),), settings, check)
    labeled = labels_key in arrays
    reading = replace(
        settings,
        mean=",".join(map(str, about.means)),  # by which floating-point pixels are judged
        std=",".join(map(str, about.stds)),
    )
    if not labeled:
        reading = replace(reading, first_label=0)
    splits, _ = converted({"": split_of(arrays)}, reading)
    split = splits[""]
    rows_N = np.arange(len(split.labels))
    notes: list[str] = []
    gaps = Gaps(str(path), about, settings)
    if len(about.shape) == 1:
        split, rows_N = vectors_in_order(path, split, about, settings, gaps, notes)
    images, labels_N = checked(split, about.shape, len(about.class_names))
    if prefix:
        notes.append(of_test_samples(path, labels_N))
    words = f"{prefix.removesuffix('_')} " if prefix else ""
    names = [f"{words}{row}" for row in rows_N.tolist()]
    known_N = np.full(len(labels_N), labeled)
    left_out = tuple(gaps.left_out)
    return Read(images, labels_N, names, known_N, left_out=left_out, notes=tuple(notes))


def vectors_in_order(
    path: Path,
    split: Split,
    about: Description,
    settings: DataSettings,
    gaps: Gaps,
    notes: list[str],
) -> tuple[Split, NDArray[np.int64]]:
    """Return vectors with the columns in the model's order and without gaps, and the rows that are not left out.

    Raises:
        DataError: other columns than the model's, or a gap that is refused.
    """
    columns = input_columns(f"npz:{path.absolute()}", settings)
    images_NF = split.images
    assert not isinstance(images_NF, ImageFiles)
    if images_NF.ndim != 2 or images_NF.dtype.kind != "f":
        return split, np.arange(len(images_NF))  # which the check of the shape refuses
    if columns and about.column_names:
        images_NF = images_NF[:, order_of(columns, about.column_names, str(path), "the model")]
    else:
        notes.append(f"{path if about.column_names else 'the model'}: {ORDER_COUNTS}")
    if images_NF.shape[1:] != about.shape:
        return split, np.arange(len(images_NF))
    names = column_labels(about.column_names, images_NF.shape[1])
    kept = []
    for row, is_gap_F in enumerate(np.isnan(images_NF)):
        if is_gap_F.any():
            gap = f"row {row} (from 0), column {names[int(is_gap_F.argmax())]}: is NaN, a missing value"
            if not gaps.stays(gap):
                continue
        kept.append(row)
    if not kept:
        raise DataError("every row has a missing value", where=str(path))
    rows_N = np.array(kept, np.int64)
    images_NF, of_gaps = gaps.filled(images_NF[rows_N])
    notes += [*gaps.notes, *of_gaps]
    return replace(split, images=images_NF, labels=split.labels[rows_N]), rows_N


def folder(path: Path, about: Description, settings: DataSettings) -> Read:
    """List the images, which are decoded as they are asked for.

    A folder of class folders has labels. A tree of DICOM files whose folders are called as no class has none.
    """
    require_images(path, about)
    entries = list(visible(path))
    if not entries:
        raise DataError("holds no image", where=str(path))
    folders = [entry for entry in entries if entry.is_dir()]
    if settings.labels or (folders and not of_classes(path, about)):
        tree = dicom_tree(path, about, settings)
        if tree is not None:
            return tree
    columns: list[dict[str, str]] = []
    notes: list[str] = []
    labeled = len(folders) == len(entries)
    if labeled:
        split = read_split(path, "", about.class_names, about.shape, settings)
        assert isinstance(split.images, ImageFiles)
        listed = split.images
        labels_N = split.labels.astype(np.int64)
    elif folders:
        rule = "must hold images alone, or a folder of them for each class"
        raise DataError(f"holds folders and files: {rule}", where=str(path))
    else:
        headers = headers_of(entries)
        # Files without a header are images of other types; their reader says what is wrong with one.
        images = [entry for entry in entries if headers.get(entry, Header()).has_image]
        if not images:
            raise DataError("holds no image", where=str(path))
        listed = ImageFiles.of(path, [image.name for image in images], about.shape, settings)
        labels_N = np.zeros(len(images), np.int64)
        columns = patient_columns(images, headers)
        notes = notes_of_others(path, entries, images)
    names = [str(listed.path(index).relative_to(path)) for index in range(len(listed))]
    listed = replace(listed, central=about.crop == "center")
    known_N = np.full(len(labels_N), labeled)
    return Read(listed, labels_N, names, known_N, columns=columns, notes=tuple(notes))


def of_classes(path: Path, about: Description) -> bool:
    """Return whether a folder in `path` is called as one of the classes."""
    numbers = [class_number(name, about.class_names) for name in class_folders(path)]
    return any(number is not None for number in numbers)


def dicom_tree(path: Path, about: Description, settings: DataSettings) -> Read | None:
    """List the DICOM images in folders of patients, studies and series, as a PACS writes them; None without one.

    Raises:
        DataError: what `label_table` refuses, or a label that is none of the model's classes; with the setting
            `labels`, also no DICOM image.
        SettingError: `labels` names neither a table nor a DICOM element, or says the label of no image.
    """
    table_file = labels_file(settings.labels)
    keyword = checked_keyword(settings.labels) if settings.labels and not table_file else ""
    files = [file for file in below(path) if file != table_file]
    headers = headers_of(files, keyword)
    images = [file for file in files if file in headers and headers[file].has_image]
    if not images and not settings.labels:
        return None
    if not images:
        rule = f"holds no DICOM image, and labels = {settings.labels!r} is for those"
        raise DataError(rule, where=str(path))
    names = [file.relative_to(path).as_posix() for file in images]
    texts = [headers[file].label for file in images]
    if table_file:
        table = label_table(table_file, path, settings)
        keys = [
            key_of(table.key, name, headers[file]) for name, file in zip(names, images, strict=True)
        ]
        texts = [table.rows[key][1][LABEL] if key in table.rows else "" for key in keys]
    labels_N, known_N = np.zeros(len(names), np.int64), np.zeros(len(names), np.bool_)
    for index, text in enumerate(texts):
        if is_missing(text, about.class_names):
            continue
        label = class_number(text, about.class_names)
        if label is None:
            rule = f"{text[:80]!r}: must be one of classes = {about.classes}"
            raise DataError(f"label of {images[index]}: {rule}", where=str(table_file or path))
        labels_N[index], known_N[index] = label, True
    notes = notes_of_others(path, files, images)
    if not settings.labels:
        rule = "no folder is called as a class, so the DICOM files are predicted without labels"
        notes.append(f"{rule}: --set labels=FILE.csv names them")
    elif not known_N.any():
        rule = f"says nothing of the {len(images)} files of {path}"
        raise SettingError("labels", settings.labels, rule)
    elif not known_N.all():
        notes.append(f"{(~known_N).sum()} of {len(names)} files have no label")
    listed = ImageFiles.of(path, names, about.shape, settings, about.crop == "center")
    columns = patient_columns(images, headers)
    return Read(listed, labels_N, names, known_N, columns=columns, notes=tuple(notes))


def patient_columns(images: Sequence[Path], headers: Mapping[Path, Header]) -> list[dict[str, str]]:
    """Return the PatientID of each image, "" where it has none; an empty list where no image has one."""
    patients = [headers.get(image, Header()).patient for image in images]
    return [{PATIENT: patient} for patient in patients] if any(patients) else []
