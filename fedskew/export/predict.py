"""Predictions of an exported model on new inputs, which are read as in training, with or without labels."""

import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from client_app.metrics import Scores, probabilities_of
from client_app.models.classifier import in_batches
from client_app.state import State, weighted_mean
from data import DataError, DataSettings, Samples, SettingError, require
from data.errors import Remedy
from data.readers.array_conversion import checked, converted
from data.readers.dicom_headers import PATIENT, Header, headers_of, notes_of_others
from data.readers.folder import below, class_folders, class_number, files_of_classes, visible
from data.readers.image_files import ImageFiles, letters_of
from data.readers.input_columns import (
    ORDER_COUNTS,
    column_labels,
    fill,
    notes_of_gaps,
    order_of,
)
from data.readers.npz import read_arrays
from data.readers.rows import DROP_ROWS, LABEL, Table, cure_of, is_missing, read_table
from data.readers.rows import left_out as rows_left_out
from data.readers.splits import Split
from data.readers.tables import checked_paths, read_numbers
from data.readers.user_data import TABLES, input_columns, kind_of_path, read_own
from data.text import name_list, printable
from fedskew.export.model_folder import Description, ModelFolder
from server_app.evaluation import metrics_from, positive_class
from server_app.record import ModelNumbers
from strategies.batch_norm import reestimated

AVERAGED, REESTIMATED = "averaged", "re-estimate"
"""What stands for batch norm at a site nobody trained with: the sites' mean, or their mean weights and the inputs' own
statistics."""
Vectors = NDArray[np.generic]


@dataclass(frozen=True)
class Read:
    """What a reader makes of a file."""

    images: NDArray[np.generic] | ImageFiles
    names: Sequence[str]
    """Of an image its path below the folder or the table's, or its file's name; of a table of numbers `row LINE`; else
    its place in the file."""
    labels: Sequence[str]
    """The name of each input's class, as the file has it; empty where it has none."""
    lines: Sequence[int] = ()
    """Of a table: each input's line in the file; empty for other files."""
    columns: Sequence[Mapping[str, str]] = ()
    """Each input's cells that are no inputs, as they stand in the file, by column; empty where there are none."""
    left_out: Sequence[str] = ()
    """What was missing in each row that `missing = drop` left out."""
    notes: Sequence[str] = ()
    """What the user has to know, a sentence each."""


@dataclass(frozen=True)
class Inputs:
    """Inputs as a model takes them and, where they are known, labels."""

    where: Path
    samples: Samples
    known_N: Tensor
    """(N,) bool: whether each sample's label is known."""
    read: Read


def read_inputs(
    path: Path,
    about: Description,
    device: str = "cpu",
    settings: DataSettings | None = None,
) -> Inputs:
    """Return the inputs of an npz file (images and perhaps labels), a table, a folder of images or one image.

    Of what holds training and test data they are the test samples; of a table all rows.

    Args:
        path: the file or folder.
        about: the model's description.
        device: of the tensors.
        settings: by which the inputs are read; by default the model's own.

    Raises:
        DataError: there are no inputs, or the model cannot take them; it names file or folder.
    """
    # By mean and std floating-point pixels are judged, and by classes names are numbered.
    settings = settings or about.data
    settings = replace(settings, classes=about.classes, mean=about.mean, std=about.std)
    read = reader_of(path)(path, about, settings)
    numbers = numbers_of(path, read, about, settings)
    unknown = numbers.count(None)
    if 0 < unknown < len(numbers):
        note = f"{unknown} of {len(numbers)} rows have no label: the metrics are of the others"
        read = replace(read, notes=[*read.notes, note])

    inputs: Tensor | ImageFiles
    if isinstance(read.images, ImageFiles):  # decoded batch by batch
        inputs = replace(read.images, central=about.crop == "center")
    else:
        inputs = torch.from_numpy(np.ascontiguousarray(read.images)).to(device)
    mean, std = about.scale(device)
    labels_N = torch.tensor([number or 0 for number in numbers], device=device)
    samples = Samples(inputs, labels_N, mean=mean, std=std)
    known_N = torch.tensor([number is not None for number in numbers], device=device)
    return Inputs(path, samples, known_N, read)


def numbers_of(
    path: Path, read: Read, about: Description, settings: DataSettings
) -> list[int | None]:
    """Return each input's class by its number, None where its label is missing. Raises DataError for another name."""
    numbers = []
    for name, text in zip(read.names, read.labels, strict=True):
        number = class_number(text, about.class_names)
        if number is None and not is_missing(text):
            rule = f"must be one of classes = {printable(name_list(about.class_names, ', '))}"
            remedy: Remedy = ""
            if read.lines:
                remedy = (cure_of(settings, {LABEL: ""}), " predicts without labels")
            raise DataError(f"label {text[:80]!r}: {rule}", where=f"{path}: {name}", remedy=remedy)
        numbers.append(number)
    return numbers


def reader_of(path: Path) -> Callable[[Path, Description, DataSettings], Read]:
    """Return what reads the path."""
    if path.suffix.lower() in TABLES:
        return csv_rows
    if path.is_dir():
        has_splits = {"train", "test"} <= {entry.name.lower() for entry in visible(path)}
        return training_data if has_splits or kind_of_path(path) == "hf" else image_files
    if not zipfile.is_zipfile(path):
        return npz if path.suffix.lower() in (".npz", ".npy") else image_files
    with zipfile.ZipFile(path) as archive:
        members = set(archive.namelist())
    is_training = {"train_images.npy", "test_images.npy"} <= members
    return training_data if is_training and "images.npy" not in members else npz


def training_data(path: Path, about: Description, settings: DataSettings) -> Read:
    """Read the test samples of what training takes."""
    if path.is_file():
        read = npz(path, about, settings, "test_")  # by the model's medians, not the file's own
    else:
        classes = about.class_names
        kind = kind_of_path(path)
        # A folder says by its own folders who tests, whatever fold the model was tested on.
        fold = 0 if kind == "folder" else settings.test_fold
        own = replace(settings, input_shape=about.input_shape, test_fold=fold)
        split = read_own(f"{kind}:{path.absolute()}", own).test
        labels = [classes[number] for number in split.labels]
        names = [f"test {index}" for index in range(len(labels))]
        images = split.images
        if not isinstance(images, ImageFiles):
            images, _ = checked(split, about.shape, len(classes))
        read = Read(images, names, labels)
    note = f"{path} says who trains and who tests: its {len(read.names)} test samples are predicted"
    return replace(read, notes=[*read.notes, note])


def npz(path: Path, about: Description, settings: DataSettings, prefix: str = "") -> Read:
    """Read images and, if there, labels; with the prefix test_ those arrays of training data."""
    images_key, labels_key = f"{prefix}images", f"{prefix}labels"
    arrays = read_arrays(path, (images_key,), ((labels_key,),))
    is_labeled = labels_key in arrays
    images = arrays[images_key]
    labels_N = arrays.get(labels_key, np.zeros(images.shape[:1], np.int64))
    split = Split(images, labels_N, str(path), prefix.removesuffix("_"))
    split = converted(split, settings, [])
    notes: list[str] = []
    if len(about.shape) == 1:
        columns = input_columns(f"npz:{path.absolute()}", settings)
        vectors = np.asarray(split.images)
        if columns and about.input_columns:
            vectors = vectors[:, order_of(columns, about.input_columns, str(path), "the model")]
        else:
            notes.append(f"{path if about.input_columns else 'the model'}: {ORDER_COUNTS}")
        split = replace(split, images=filled(vectors, path, about, settings, notes))
    images, labels_N = checked(split, about.shape, len(about.class_names))
    names = [f"{prefix.replace('_', ' ')}{row}" for row in range(len(images))]
    labels = [about.class_names[number] if is_labeled else "" for number in labels_N]
    return Read(images, names, labels, notes=notes)


def filled(
    vectors_NF: Vectors, path: Path, about: Description, settings: DataSettings, notes: list[str]
) -> Vectors:
    """Return vectors with the model's medians in place of NaN, and add a note about them.

    Raises:
        DataError: there is NaN, and `missing` is not median, or the model keeps no medians.
    """
    if vectors_NF.shape[1:] != about.shape or not np.isnan(vectors_NF).any():
        return vectors_NF
    rule = ""
    if not about.medians:
        rule = "values are missing, and the model keeps no medians of its training rows to fill them with"
    elif settings.missing != "median":
        rule = f"values are missing, and missing = {settings.missing} does not fill them"
    if rule:
        remedy = (DROP_ROWS, " leaves out such rows of a table")
        raise DataError(rule, where=str(path), remedy=remedy)
    names = column_labels(about.input_columns, vectors_NF.shape[1])
    notes += notes_of_gaps(np.isnan(vectors_NF).sum(0), names)
    return fill(vectors_NF, np.array(about.medians))


def image_files(path: Path, about: Description, settings: DataSettings) -> Read:
    """List one image, a folder of them, class folders, or DICOM files in folders as a PACS writes them.

    Images are decoded as they are asked for. Labels are those of class folders.

    Raises:
        DataError: no image, a folder of no class, or the model takes vectors.
    """
    if len(about.shape) == 1:
        rule = f"the model takes vectors: must be an npz file with images (N, {about.shape[0]}), float32"
        raise DataError(rule, where=str(path))
    folders = class_folders(path) if path.is_dir() else {}
    files = list(below(path)) if path.is_dir() else [path]
    headers = headers_of(files)
    is_classes = any(class_number(name, about.class_names) is not None for name in folders)
    if folders and (is_classes or not headers):
        return class_images(path, about, settings)

    # Files without a header are images of other types, whose reader says what is wrong with one; not so in a PACS.
    other = Header(has_image=not folders)
    images = [file for file in files if headers.get(file, other).has_image]
    if not images:
        raise DataError("holds no image", where=str(path))
    root = path if path.is_dir() else path.parent
    names = [file.relative_to(root).as_posix() for file in images]
    patients = [headers.get(file, other).patient for file in images]
    columns = [{PATIENT: patient} for patient in patients] if any(patients) else []
    notes = notes_of_others(root, files, images)
    if folders:
        notes.append("no folder is called as a class, so the images are predicted without labels")
    listed = ImageFiles(root, letters_of(names), about.shape, settings=settings)
    return Read(listed, names, [""] * len(names), columns=columns, notes=notes)


def class_images(path: Path, about: Description, settings: DataSettings) -> Read:
    """List the images of class folders. Raises DataError for files beside them."""
    if len(class_folders(path)) < len(list(visible(path))):
        rule = "must hold images alone, or a folder of them for each class"
        raise DataError(f"holds folders and files: {rule}", where=str(path))
    files = files_of_classes(path, path, about.class_names)
    names = [name for name, _ in files]
    labels = [label for _, label in files]
    if not names:
        raise DataError("holds no image", where=str(path))
    return Read(ImageFiles(path, letters_of(names), about.shape, settings=settings), names, labels)


def csv_rows(path: Path, about: Description, settings: DataSettings) -> Read:
    """Return all rows of a CSV file: of numbers in the model's order of columns, or of images.

    Raises:
        DataError: a column that the model or the setting `columns` names is missing, or a row cannot be used.
    """
    inputs = about.input_columns
    if len(about.shape) == 1 and not inputs:
        rule = (
            "the model has no names of its columns: must be an npz file with images (N, features)"
        )
        raise DataError(rule, where=str(path))
    table = read_table(path)
    rows = list(range(len(table.lines)))
    if not rows:
        raise DataError("holds no row to predict", where=str(path))

    others = [name for name in table.header if name not in inputs]
    label = settings.column_names.get(LABEL, LABEL)
    if settings.columns != about.columns and LABEL in settings.column_names:
        require_column(path, others, label, LABEL, settings)
    notes: list[str] = []
    left_out: list[str] = []
    images: Vectors | ImageFiles
    if inputs:
        images, rows, left_out = vectors_of(table, about, settings, notes)
        names = [f"row {table.lines[row]}" for row in rows]
    else:
        column = settings.column_names.get("path", "path")
        require_column(path, table.header, column, "path", settings)
        names = checked_paths(table, table.columns[column], rows)
        images = ImageFiles(path.parent, letters_of(names), about.shape, settings=settings)

    cells = [{name: table.columns[name][row] for name in others} for row in rows]
    labels = [row.get(label, "") for row in cells]
    lines = [table.lines[row] for row in rows]
    return Read(images, names, labels, lines, cells, left_out, notes)


def vectors_of(
    table: Table, about: Description, settings: DataSettings, notes: list[str]
) -> tuple[Vectors, list[int], list[str]]:
    """Return the numbers of a table's rows, the rows that are left, and what is missing in each other one.

    Raises:
        DataError: a column is missing, a cell is no number, or a missing value is refused.
    """
    inputs = about.input_columns
    # Of columns that are no inputs nothing is said.
    present = [name for name in table.header if name in inputs]
    order_of(present, inputs, str(table.path), "the model")
    every_row = range(len(table.lines))
    numbers_NF, rows, left_out = read_numbers(table, inputs, every_row, settings)
    if not rows:
        raise DataError(f"has a missing value in every row: {left_out[0]}", where=str(table.path))
    notes += rows_left_out(left_out)
    return filled(numbers_NF, table.path, about, settings, notes), rows, left_out


def require_column(
    path: Path, header: Sequence[str], name: str, role: str, settings: DataSettings
) -> None:
    """Raise DataError where the column of a role is not there; "" is no column."""
    if name and name not in header:
        shown = printable(name_list(header, ", ")[:200])
        remedy = ("say which it is: ", cure_of(settings, {role: "NAME"}))
        rule = f"there is no column {name!r} with the {role}, only {shown}"
        raise DataError(rule, where=str(path), remedy=remedy)


# ---- predictions -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prediction:
    """What the model says about one input."""

    input: str
    prediction: str
    probability: float
    """Of the predicted class."""
    label: str | None
    """The true class, where it is known."""
    probabilities: Mapping[str, float]
    """By class."""
    row: int | None = None
    """Of a CSV file the row's line; None for other inputs."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """The row's cells that are no inputs, as they stand in the file, by column."""


def predict(
    folder: ModelFolder,
    inputs: Inputs,
    site: str = "",
) -> tuple[list[Prediction], ModelNumbers | None]:
    """Return the predictions in the inputs' order and, with labels, the numbers that a run records.

    Raises SettingError for a site that is missing or unknown, DataError for inputs that the model makes nothing of.
    """
    samples = inputs.samples
    names = folder.description.class_names
    folder.model.to(samples.labels_N.device)
    folder.model.load_state_dict(state_at(folder, inputs, site))
    folder.model.eval()
    logits_NC = in_batches(folder.model, samples)
    if not torch.isfinite(logits_NC).all():
        raise DataError("the model's outputs are not finite", where=str(inputs.where))
    predictions = []
    probabilities_NC = F.softmax(logits_NC.double().cpu(), dim=1)
    for index, probabilities_C in enumerate(probabilities_NC.tolist()):
        likeliest = int(probabilities_NC[index].argmax())
        is_known = bool(inputs.known_N[index])
        prediction = Prediction(
            input=inputs.read.names[index],
            prediction=names[likeliest],
            probability=probabilities_C[likeliest],
            label=names[int(samples.labels_N[index])] if is_known else None,
            probabilities=dict(zip(names, probabilities_C, strict=True)),
            row=inputs.read.lines[index] if inputs.read.lines else None,
            columns=inputs.read.columns[index] if inputs.read.columns else {},
        )
        predictions.append(prediction)
    if not inputs.known_N.any():
        return predictions, None
    known_N = inputs.known_N
    scores = Scores.of_probabilities(
        *probabilities_of(logits_NC[known_N], samples.labels_N[known_N])
    )
    tested_C = scores.confusion_CC.sum(1).tolist()
    positive = positive_class(names, folder.description.positive_class, tested_C=tested_C)
    return predictions, metrics_from(scores, positive=positive)


def state_at(folder: ModelFolder, inputs: Inputs, site: str) -> State:
    """Return the whole model's state at a site, or at one nobody trained with."""
    if not folder.private:
        require(not site, "--site", site, "has no effect: the model is the same at every site")
        return folder.shared
    if site in folder.sites:
        return {**folder.shared, **folder.sites[site]}
    if site not in (AVERAGED, REESTIMATED) or not folder.only_batch_norm_is_private:
        rule = f"every site keeps a part of the model: must be one of {', '.join(folder.sites)}"
        if folder.only_batch_norm_is_private:
            rule += f", or for a site nobody trained with {AVERAGED} or {REESTIMATED}"
        raise SettingError("--site", site, rule)
    # What FedAvg would make of them: of running variances too, without the spread between the sites' means.
    of_sites = weighted_mean(list(folder.sites.values()), list(folder.samples.values()))
    mean = {**folder.shared, **of_sites}
    if site == AVERAGED:
        return mean
    if len(inputs.samples) < 2:
        rule = "needs two inputs or more: one has no variance"
        raise DataError(f"--site {site} {rule}", where=str(inputs.where))
    draws = torch.Generator().manual_seed(0)
    return reestimated(folder.model, mean, inputs.samples, draws)
