"""A user's own data: KIND:PATH, with one reader per kind."""

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from data.errors import DataError, Remedy, SetOption, either
from data.readers import folder, huggingface, npz, tables
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
TABLES = (".csv", ".tsv")
"""How the names of tables end."""
NUMBERED = ("npz:", "medmnist:")
"""Kinds whose labels are numbers, of classes that each file names in an order of its own."""


def kind_of_path(path: Path) -> str:
    """Return the kind of data that a file or folder is, by its name."""
    if path.is_dir():
        return "hf" if huggingface.is_saved(path) else "folder"
    return "csv" if path.suffix.lower() in TABLES else "npz"


def kind_and_path(name: str, settings: DataSettings) -> tuple[str, Path]:
    """Return KIND and PATH of KIND:PATH; a relative path is below data-root, if that is set.

    That of medmnist:NAME is NAME.npz.
    """
    kind, path = name.split(":", 1)[0], own_path(name, settings.data_root)
    return kind, path.with_name(f"{path.name}.npz") if kind == "medmnist" else path


def path_of(name: str, settings: DataSettings) -> Path:
    """Return the file or folder of KIND:PATH."""
    return kind_and_path(name, settings)[1]


def read_own(name: str, settings: DataSettings) -> Raw:
    """Return the data of KIND:PATH. Raises DataError, one sentence, for what cannot be trained on."""
    kind, path = kind_and_path(name, settings)
    if kind not in SCANS:
        return npz.read_npz(path, settings)
    return filled(divided(SCANS[kind](path, settings), settings), settings)


def files_of_own(name: str, settings: DataSettings) -> list[Path]:
    """Return the files that KIND:PATH depends on. Raises DataError where they are not there."""
    kind, path = kind_and_path(name, settings)
    if kind == "csv" and "path" in tables.roles_in(path, settings)[0]:
        inputs = tables.scan(path, settings).inputs
        assert isinstance(inputs, ImageFiles)
        return [path, *inputs.paths]
    if kind in ("csv", "npz", "medmnist"):
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
    if kind == "csv":
        return tables.input_columns(path, settings)
    return npz.input_columns(path) if kind == "npz" else ()


# ---- proposed settings -----------------------------------------------------------------------------------------------


def guess_settings(dataset: str, settings: DataSettings) -> Guess:
    """Propose `classes` and `input-shape`, of domains:A,B,... those that fit every member.

    Raises:
        DataError: the cause if none fits, with the settings to choose from where members differ.
    """
    names = tuple(filter(is_own, members(dataset)))
    guesses = [_guess(name, settings) for name in names]
    if len(guesses) == 1:
        return guesses[0]
    shapes = list(dict.fromkeys(guess.settings["input-shape"] for guess in guesses))
    if len(shapes) > 1 and not settings.input_shape:
        rule = f"the members are of input-shape {', '.join(shapes)}: must be brought to one"
        ways = either([SetOption("input-shape", shape) for shape in shapes])
        raise DataError(rule, where=dataset, remedy=ways)
    by_member = {
        name: guess.settings["classes"] for name, guess in zip(names, guesses, strict=True)
    }
    classes = settings.classes or _all_classes(dataset, by_member)

    of_all = [note for note in guesses[0].notes if all(note in guess.notes for guess in guesses)]
    notes: list[Remedy] = [*of_all]
    for name, guess in zip(domain_names(names), guesses, strict=True):
        for note in guess.notes:
            if note not in of_all:
                parts = (note,) if isinstance(note, str) else note
                notes.append((f"{name}: ", *parts))
    return Guess({"classes": classes, "input-shape": shapes[0]}, tuple(notes))


def _guess(name: str, settings: DataSettings) -> Guess:
    """Propose the settings of one KIND:PATH. Raises DataError."""
    kind, path = kind_and_path(name, settings)
    if kind not in SCANS:
        names = medmnist_classes(path) if kind == "medmnist" else ()
        return npz.guess_settings(path, settings, names)
    manifest = SCANS[kind](path, settings)
    inputs = manifest.inputs
    is_one_of_several = len(members(settings.dataset)) > 1
    notes: list[Remedy] = [*manifest.notes, *manifest.meaning(is_one_of_several)]
    shape = str(len(manifest.input_columns))
    if isinstance(inputs, ImageFiles):
        shape, notes_of_images = shape_of(replace(inputs, settings=settings))
        notes += notes_of_images
    if kind == "csv":
        notes += tables.questions(path, manifest, settings)
    return Guess({"classes": name_list(manifest.classes), "input-shape": shape}, tuple(notes))


def medmnist_classes(path: Path) -> tuple[str, ...]:
    """Return the names of the classes of MedMNIST (Yang et al., 2023); none where its package is not installed."""
    flag, _, _ = path.stem.partition("_")  # a size may follow, as in pathmnist_64
    try:
        names: dict[str, str] = import_module("medmnist").INFO[flag]["label"]
    except (ImportError, KeyError):
        return ()
    return tuple(names[number] for number in sorted(names, key=int))


def _all_classes(dataset: str, by_member: dict[str, str]) -> str:
    """Return the setting `classes` that holds the different classes of all members. Raises DataError."""
    different = list(dict.fromkeys(by_member.values()))
    if len(different) == 1:
        return different[0]
    # Numbers in a file mean the places in its own list: lists of several files cannot be put together.
    if any(is_whole(text) or name.startswith(NUMBERED) for name, text in by_member.items()):
        listed = "; ".join(f"{name}: {text}" for name, text in by_member.items())
        rule = f"the members number their classes differently ({listed}): classes must be stated"
        raise DataError(rule, where=dataset, remedy="and every file must number them in that order")
    return name_list(classes_of([name for text in different for name in names_in(text)]))
