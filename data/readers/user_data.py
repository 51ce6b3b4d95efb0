"""A user's own data: KIND:PATH, with one module of readers per kind."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from data.errors import DataError
from data.readers import folder, huggingface, medmnist, npz, tables
from data.readers.catalog import labels_file, own_path
from data.readers.splits import Guess, Raw
from data.settings import DataSettings

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


def guess_settings(name: str, settings: DataSettings) -> Guess:
    """Propose `classes`, `input-shape` and other settings. Raises DataError with the cause if none fits."""
    return kind_of(name).guess_settings(path_of(name, settings), settings)


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


def seen(name: str, settings: DataSettings) -> dict[str, str]:
    """Propose settings, like `guess_settings`, as far as the data can be read."""
    try:
        return guess_settings(name, settings).settings
    except (OSError, ValueError):
        return {}
