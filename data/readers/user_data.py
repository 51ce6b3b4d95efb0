"""A user's own data: KIND:PATH, with one module of readers per kind."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from data.errors import DataError, Remedy, SetOption, either
from data.readers import folder, huggingface, medmnist, npz, tables
from data.readers.catalog import domain_names, is_own, labels_file, members, own_path
from data.readers.rows import classes_of
from data.readers.splits import Guess, Raw
from data.settings import DataSettings
from data.text import is_whole, name_list, names_in

Classes = tuple[str, ...]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Kind:
    """The reader of one type of user data."""

    read: Callable[[Path, Classes, Shape, DataSettings], Raw]
    guess_settings: Callable[[Path, DataSettings], Guess]
    """What would fit; the first image of many is enough."""
    files: Callable[[Path, DataSettings], list[Path]]
    """All that the cached copy depends on."""


def one_file(path: Path, settings: DataSettings) -> list[Path]:
    """The file itself. Raises DataError where it is none."""
    if not path.is_file():
        raise DataError("there is no such file", where=str(path))
    return [path]


def all_files(path: Path, settings: DataSettings) -> list[Path]:
    """Every file in a folder. Raises DataError where it is none."""
    if not path.is_dir():
        raise DataError("there is no such folder", where=str(path))
    return sorted(file for file in path.rglob("*") if file.is_file())


def files_of_folder(path: Path, settings: DataSettings) -> list[Path]:
    """Every file in a folder, and the table of its labels. Raises DataError where one is not there."""
    table = labels_file(settings.labels, settings.data_root)
    return all_files(path, settings) + ([] if table is None else one_file(table, settings))


KINDS = {
    "npz": Kind(
        lambda path, classes, shape, settings: npz.read_npz(path, settings),
        npz.guess_settings,
        one_file,
    ),
    "folder": Kind(folder.read_folder, folder.guess_settings, files_of_folder),
    "medmnist": Kind(
        lambda path, classes, shape, settings: medmnist.read(path, settings),
        medmnist.guess_settings,
        medmnist.files,
    ),
    "hf": Kind(huggingface.read, huggingface.guess_settings, huggingface.files),
    "csv": Kind(tables.read_csv, tables.guess_settings, tables.files_of_table),
}


NUMBERED = ("npz:", "medmnist:", "hf:")
"""Kinds whose labels are numbers, of classes that each file names in an order of its own."""


def kind_of(name: str) -> Kind:
    """The kind of KIND:PATH."""
    return KINDS[name.split(":", 1)[0]]


def kind_of_path(path: Path) -> str:
    """The kind of data that a file or folder is, by its name."""
    if any((path / name).is_file() for name in huggingface.SAVED):
        return "hf"
    if path.is_dir():
        return "folder"
    return "csv" if path.suffix.lower() == ".csv" else "npz"


def path_of(name: str, settings: DataSettings) -> Path:
    """The file or folder of KIND:PATH; a relative path is below data-root, if that is set."""
    return own_path(name, settings.data_root)


def read_own(name: str, classes: Classes, shape: Shape, settings: DataSettings) -> Raw:
    """The data of KIND:PATH. Raises DataError, one sentence, for what cannot be trained on."""
    return kind_of(name).read(path_of(name, settings), classes, shape, settings)


def files_of_own(name: str, settings: DataSettings) -> list[Path]:
    """The files that KIND:PATH depends on. Raises DataError where they are not there."""
    return kind_of(name).files(path_of(name, settings), settings)


def guess_settings(dataset: str, settings: DataSettings) -> Guess:
    """Propose `classes`, `input-shape` and other settings, of domains:A,B,... those that fit every member.

    Raises:
        DataError: the cause if none fits, with the settings to choose from where members differ.
    """
    guesses = {name: _guess(name, settings) for name in members(dataset) if is_own(name)}
    if len(guesses) == 1:
        return next(iter(guesses.values()))
    from_1 = [name for name, guess in guesses.items() if "first-label" in guess.settings]
    if len(from_1) < len(guesses):
        for name in from_1:  # another member has a label 0: this one only lacks the first class
            classes = guesses[name].settings["classes"]
            with_class_0 = str(int(classes) + 1) if is_whole(classes) else classes
            guesses[name] = _guess(name, replace(settings, classes=with_class_0))
    return _guess_of_all(dataset, guesses, settings)


def _guess(name: str, settings: DataSettings) -> Guess:
    """Propose the settings of one KIND:PATH. Raises DataError."""
    return kind_of(name).guess_settings(path_of(name, settings), settings)


def _guess_of_all(dataset: str, guesses: dict[str, Guess], settings: DataSettings) -> Guess:
    """Propose the settings that fit all members, from what fits each. Raises DataError."""
    keys = dict.fromkeys(key for guess in guesses.values() for key in guess.settings)
    chosen: dict[str, str] = {}
    for key in keys:
        values = [guess.settings[key] for guess in guesses.values() if key in guess.settings]
        different = list(dict.fromkeys(values))
        if len(different) == 1 or getattr(settings, key.replace("-", "_")):
            chosen[key] = different[0]  # what the user states wins over it
        elif key == "classes":
            chosen[key] = _all_classes(dataset, guesses)
        else:
            rule = f"the members are of {key} {', '.join(different)}: must be brought to one"
            options = [SetOption(key, value) for value in different]
            raise DataError(rule, where=dataset, remedy=either(options))

    notes: list[Remedy] = []
    names = domain_names(tuple(guesses))
    every_note = [note for guess in guesses.values() for note in guess.notes]
    for name, guess in zip(names, guesses.values(), strict=True):
        for note in guess.notes:
            if every_note.count(note) == len(guesses):  # said once of all
                notes += [] if note in notes else [note]
            else:
                parts = (note,) if isinstance(note, str) else note
                notes.append((f"{name}: ", *parts))
    return Guess(chosen, tuple(notes))


def _all_classes(dataset: str, guesses: dict[str, Guess]) -> str:
    """Return the setting `classes` that holds the different classes of all members. Raises DataError."""
    by_member = {name: guess.settings["classes"] for name, guess in guesses.items()}
    if all(map(is_whole, by_member.values())):
        return max(by_member.values(), key=int)
    # Numbers in a file mean the places in its own list: lists of several files cannot be put together.
    if any(is_whole(text) or name.startswith(NUMBERED) for name, text in by_member.items()):
        listed = "; ".join(f"{name}: {text}" for name, text in by_member.items())
        rule = f"the members number their classes differently ({listed}): classes must be stated"
        raise DataError(rule, where=dataset, remedy="and every file must number them in that order")
    union = {name for text in by_member.values() for name in names_in(text)}
    return name_list(classes_of(list(union)))


def sites_of(dataset: str, settings: DataSettings) -> tuple[str, ...]:
    """The sites that one's own table or DICOM files name; none where they name none or are not there.

    Raises DataError.
    """
    path = path_of(dataset, settings)
    if dataset.startswith("hf:"):
        _, rows = huggingface.rows_of(path, settings)
        return rows.sites
    if dataset.startswith("csv:"):
        return tables.sites_of(path, settings)
    if dataset.startswith("folder:"):
        return folder.sites_of(path, settings)
    return ()


def input_columns(dataset: str, settings: DataSettings) -> tuple[str, ...]:
    """Return the names of the vectors' columns in file order; empty for images and without names. Raises DataError."""
    path = path_of(dataset, settings)
    if dataset.startswith("csv:"):
        return tables.input_columns(path, settings)
    if dataset.startswith("npz:"):
        return npz.input_columns(path, settings)
    return ()


def seen(dataset: str, settings: DataSettings) -> dict[str, str]:
    """Propose settings, like `guess_settings`, as far as the data can be read."""
    try:
        return guess_settings(dataset, settings).settings
    except (OSError, ValueError):
        return {}
