"""A user's own data: KIND:PATH, with one reader per kind."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from data.errors import DataError, Remedy, SetOption, either
from data.readers import folder, huggingface, medmnist, npz, tables
from data.readers.array_types import Shape
from data.readers.catalog import NOT_SAVED, domain_names, is_own, labels_file, members, own_path
from data.readers.image_files import ImageFiles, shape_of
from data.readers.input_columns import filled
from data.readers.rows import classes_of
from data.readers.splits import Guess, Manifest, Raw, divided
from data.settings import DataSettings
from data.text import is_whole, name_list, names_in

SCANS: dict[str, Callable[[Path, DataSettings], Manifest]] = {
    "csv": tables.scan,
    "folder": folder.scan,
    "hf": huggingface.scan,
}
"""By kind, what finds all samples; the other kinds are arrays of splits."""
KINDS = ("npz", "medmnist", *SCANS)
NUMBERED = ("npz:", "medmnist:")
"""Kinds whose labels are numbers, of classes that each file names in an order of its own."""


def kind_of_path(path: Path) -> str:
    """Return the kind of data that a file or folder is, by its name."""
    if path.is_dir():
        return "hf" if huggingface.is_saved(path) else "folder"
    return "csv" if path.suffix.lower() == ".csv" else "npz"


def kind_and_path(name: str, settings: DataSettings) -> tuple[str, Path]:
    """Return KIND and PATH of KIND:PATH; a relative path is below data-root, if that is set."""
    return name.split(":", 1)[0], own_path(name, settings.data_root)


def path_of(name: str, settings: DataSettings) -> Path:
    """Return the file or folder of KIND:PATH."""
    return kind_and_path(name, settings)[1]


def read_own(name: str, classes: tuple[str, ...], shape: Shape, settings: DataSettings) -> Raw:
    """Return the data of KIND:PATH. Raises DataError, one sentence, for what cannot be trained on."""
    kind, path = kind_and_path(name, settings)
    if kind == "medmnist":
        path = medmnist.fetched(path, settings)
    if kind not in SCANS:
        return npz.read_npz(path, settings)
    return filled(divided(SCANS[kind](path, settings), classes, shape, settings), settings)


def files_of_own(name: str, settings: DataSettings) -> list[Path]:
    """Return the files that KIND:PATH depends on. Raises DataError where they are not there."""
    kind, path = kind_and_path(name, settings)
    if kind == "medmnist":
        return medmnist.files(path, settings)
    if kind == "csv" and "path" in tables.roles_in(path, settings)[0]:
        inputs = tables.scan(path, settings).inputs
        assert isinstance(inputs, ImageFiles)
        return [path, *inputs.paths]
    if kind in ("csv", "npz"):
        return [existing(path)]
    if not path.is_dir():
        raise DataError(NOT_SAVED if kind == "hf" else "there is no such folder", where=path)
    files = sorted(file for file in path.rglob("*") if file.is_file())
    table = labels_file(settings.labels, settings.data_root)
    return files if table is None else [*files, existing(table)]


def existing(path: Path) -> Path:
    """Return the file. Raises DataError where it is not there."""
    if not path.is_file():
        raise DataError("there is no such file", where=path)
    return path


def sites_of(name: str, settings: DataSettings) -> tuple[str, ...]:
    """Return the sites that a table or DICOM files name; none where they name none or are not there.

    Raises DataError.
    """
    kind, path = kind_and_path(name, settings)
    if kind not in SCANS or not path.exists():
        return ()
    if kind == "csv" and "site" not in tables.roles_in(path, settings)[0]:
        return ()
    return SCANS[kind](path, settings).sites


def input_columns(name: str, settings: DataSettings) -> tuple[str, ...]:
    """Return the names of the vectors' columns in file order; empty for images and without names. Raises DataError."""
    kind, path = kind_and_path(name, settings)
    readers = {"csv": tables.input_columns, "npz": npz.input_columns}
    return readers[kind](path, settings) if kind in readers else ()


# ---- proposed settings -----------------------------------------------------------------------------------------------


def guess_settings(dataset: str, settings: DataSettings) -> Guess:
    """Propose `classes` and `input-shape`, of domains:A,B,... those that fit every member.

    Raises:
        DataError: the cause if none fits, with the settings to choose from where members differ.
    """
    guesses = {name: _guess(name, settings) for name in members(dataset) if is_own(name)}
    if len(guesses) == 1:
        return next(iter(guesses.values()))
    shapes = list(dict.fromkeys(guess.settings["input-shape"] for guess in guesses.values()))
    if len(shapes) > 1 and not settings.input_shape:
        rule = f"the members are of input-shape {', '.join(shapes)}: must be brought to one"
        ways = either([SetOption("input-shape", shape) for shape in shapes])
        raise DataError(rule, where=dataset, remedy=ways)
    classes = settings.classes or _all_classes(dataset, guesses)

    said_by: dict[Remedy, list[str]] = {}
    for name, guess in zip(domain_names(tuple(guesses)), guesses.values(), strict=True):
        for note in guess.notes:
            said_by.setdefault(note, []).append(name)
    notes: list[Remedy] = []
    for note, names in said_by.items():
        parts = (note,) if isinstance(note, str) else note
        of_all = len(names) == len(guesses)
        notes.append(note if of_all else (f"{', '.join(names)}: ", *parts))
    return Guess({"classes": classes, "input-shape": shapes[0]}, tuple(notes))


def _guess(name: str, settings: DataSettings) -> Guess:
    """Propose the settings of one KIND:PATH. Raises DataError."""
    kind, path = kind_and_path(name, settings)
    if kind == "npz":
        return npz.guess_settings(path, settings)
    if kind == "medmnist":
        names = medmnist.class_names(path)
        return npz.guess_settings(medmnist.fetched(path, settings), settings, names)
    manifest = SCANS[kind](path, settings)
    inputs = manifest.inputs
    notes: list[Remedy] = [*manifest.notes, *manifest.meaning]
    if isinstance(inputs, ImageFiles):
        shape, notes_of_images = shape_of(replace(inputs, settings=settings), manifest.groups)
        notes += notes_of_images
    else:
        shape = str(len(manifest.input_columns))
    if kind == "csv":
        notes += tables.questions(path, manifest, settings)
    return Guess({"classes": name_list(manifest.classes), "input-shape": shape}, tuple(notes))


def _all_classes(dataset: str, guesses: dict[str, Guess]) -> str:
    """Return the setting `classes` that holds the different classes of all members. Raises DataError."""
    by_member = {name: guess.settings["classes"] for name, guess in guesses.items()}
    different = list(dict.fromkeys(by_member.values()))
    if len(different) == 1:
        return different[0]
    if all(map(is_whole, different)):
        return max(different, key=int)
    # Numbers in a file mean the places in its own list: lists of several files cannot be put together.
    if any(is_whole(text) or name.startswith(NUMBERED) for name, text in by_member.items()):
        listed = "; ".join(f"{name}: {text}" for name, text in by_member.items())
        rule = f"the members number their classes differently ({listed}): classes must be stated"
        raise DataError(rule, where=dataset, remedy="and every file must number them in that order")
    names = {name for text in different for name in names_in(text)}
    return name_list(classes_of(list(names)))
