"""folder:PATH: images in a folder for each class."""

import shlex
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path

import numpy as np

from data.errors import DataError, Remedy, SetOption
from data.readers.dicom_headers import (
    INSTITUTION,
    PATIENT,
    Origins,
    headers_of,
    is_dicom,
    origins_of,
    unknown_patients,
)
from data.readers.image_files import ImageFiles
from data.readers.labels import guess_labelled, labelled, read_labelled
from data.readers.metadata import SampleMetadata
from data.readers.splits import SPLITS, Guess, Raw, Split, fifth
from data.settings import DataSettings
from data.text import name_list

IGNORED = ("Thumbs.db", "desktop.ini", "__MACOSX")
LAYOUT = "must hold train/CLASS/* and test/CLASS/*, or CLASS/* alone, of which a fifth is then for testing"

FEWEST_PATIENTS = 3
"""Class folders of one patient each that are taken for an archive's folders of patients."""
A_FIFTH = "no folder says who tests: a fifth of every class does, drawn by split-seed and test-fold"


def read_folder(
    path: Path,
    class_names: tuple[str, ...],
    shape: tuple[int, ...],
    settings: DataSettings,
) -> Raw:
    """train/CLASS/* and test/CLASS/* and, if there, val/CLASS/*; or CLASS/*, of which a fifth is for testing.

    A class without a folder, or with an empty one, has no image; images are ordered by class, then by file name, those
    in folders of a class folder with the others.

    Raises:
        DataError: a folder is missing, a class folder is none of `class_names`, or a file is no image.
    """
    if settings.labels:
        return read_labelled(path, all_below(path), class_names, shape, settings)
    known = patients_of(path, settings)
    folders = split_folders(path)
    if folders:
        splits = {}
        for key, folder in folders.items():
            splits[key] = read_split(folder, key, class_names, shape, settings)
        notes = tuple(notes_of(folders, class_names))
        if known.cells:
            raw = with_patients(path, list(splits.values()), known, settings)
            return replace(raw, notes=(*known.notes, *notes))
        return Raw(splits["train"], splits["test"], splits.get("val"), notes=notes)

    everything = read_split(path, "", class_names, shape, settings)
    if known.cells:
        raw = with_patients(path, [everything], known, settings)
        return replace(raw, notes=(*known.notes, *notes_of({"": path}, class_names)))
    is_test_N = fifth(everything.labels.astype(np.int64), settings, str(path))
    train = everything.take(np.flatnonzero(~is_test_N), "train")
    test = everything.take(np.flatnonzero(is_test_N), "test")
    return Raw(train, test, notes=(A_FIFTH, *notes_of({"": path}, class_names)))


def sites_of(path: Path, settings: DataSettings) -> tuple[str, ...]:
    """The sites of a folder's images; empty if nothing names several, or there is no folder. Raises DataError."""
    if not path.is_dir():
        return ()
    if settings.labels:
        return labelled(path, all_below(path), settings).rows.sites
    return tuple(sorted(set(patients_of(path, settings).sites)))


def with_patients(
    path: Path, splits: Sequence[Split], known: Origins, settings: DataSettings
) -> Raw:
    """The images of all splits with their patients and sites, divided as they are, or by a fifth of the patients.

    Raises:
        DataError: a patient on two sides, or a site without images on one.
    """
    files: list[str] = []
    sides: list[str] = []
    for split in splits:
        assert isinstance(split.images, ImageFiles)
        for index in range(len(split.images)):
            files.append(str(split.images.path(index).relative_to(path)))
            sides.append(split.key)
    cells: dict[str, Sequence[str]] = {}
    for role, of_files in known.cells.items():
        of_file = dict(zip(known.files, of_files, strict=True))
        cells[role] = [of_file[path / name] for name in files]
    if any(sides):
        cells["split"] = sides
    rows = SampleMetadata(str(path), known.elements, cells, from_headers=frozenset(known.cells))
    first = splits[0].images
    assert isinstance(first, ImageFiles)
    images = ImageFiles.of(path, files, first.size, settings)
    labels_N = np.concatenate([split.labels for split in splits])
    raw = rows.divided(Split(images, labels_N, str(path), ""), settings)
    return replace(
        raw,
        train=replace(raw.train, key="train"),
        test=replace(raw.test, key="test"),
        val=None if raw.val is None else replace(raw.val, key="val"),
    )


@dataclass(frozen=True)
class ClassFiles:
    """The files of class folders."""

    files: tuple[Path, ...]
    classes: tuple[str, ...]
    """The class folder of each file."""
    sides: tuple[str, ...]
    """train, test or val of each file; empty where the folders do not say."""


def class_files(path: Path) -> ClassFiles:
    """The files in the class folders of `path`, or of its folders train, test and val. Raises DataError."""
    named = named_splits(path)
    splits = named if {"train", "test"} <= named.keys() else {"": path}
    files: list[Path] = []
    classes: list[str] = []
    sides: list[str] = []
    for side, folder in splits.items():
        for name, class_folder in class_folders(folder).items():
            of_class = list(below(class_folder))
            files += of_class
            classes += [name] * len(of_class)
            sides += [side] * len(of_class)
    return ClassFiles(tuple(files), tuple(classes), tuple(sides) if any(sides) else ())


def patients_of(path: Path, settings: DataSettings) -> Origins:
    """The patients and sites that the headers of a folder's DICOM files name; nobody where there are none.

    Raises:
        DataError: the class folders are patients.
    """
    if not holds_dicom(path):
        return Origins()
    found = class_files(path)
    headers = headers_of(found.files)
    known = origins_of(found.files, headers, settings, found.sides)
    refuse_patients(path, found, known)
    return known


def holds_dicom(path: Path) -> bool:
    """Whether any file in a folder of a folder is DICOM."""
    if not path.is_dir():
        return False
    folders = [entry for entry in visible(path) if entry.is_dir()]
    return any(is_dicom(file) for folder in folders for file in below(folder))


def refuse_patients(path: Path, found: ClassFiles, known: Origins) -> None:
    """Raise DataError where the folders are those of an archive's patients, and not of classes."""
    if not known.patients:
        return
    patients: dict[str, set[str]] = {}
    for name, patient in zip(found.classes, known.patients, strict=True):
        patients.setdefault(name, set()).add(patient)
    most = max(len(of_class) for of_class in patients.values())
    if len(patients) < FEWEST_PATIENTS or most > 1:
        return
    what = "patient" if known.by == PATIENT else "study"
    raise DataError(
        f"each of the {len(patients)} class folders, such as {found.classes[0]}, holds one {what} alone ({known.by}), "
        "so that these look like patients and not like classes",
        where=str(path),
        remedy=(
            with_labels(path),
            "; or, if they are classes: ",
            SetOption("columns", "patient="),
        ),
    )


def with_labels(path: Path) -> str:
    """What to do where folders are no classes, with the whole command."""
    table = f"write labels.csv with columns {PATIENT} and label, and check"
    return f"{table}: fedskew data check {shlex.quote(str(path.absolute()))} --labels labels.csv"


def named_splits(path: Path) -> dict[str, Path]:
    """The folders that are called as splits are, by split."""
    named: dict[str, Path] = {}
    for folder in visible(path):
        split = SPLITS.get(folder.name.lower())
        if split is not None and folder.is_dir():
            named.setdefault(split, folder)  # of `val` and `valid` the first by name
    return named


def split_folders(path: Path) -> dict[str, Path]:
    """The folders of train, test and perhaps val; empty where `path` holds class folders itself.

    Raises:
        DataError: there is no such folder, only a part of them, or neither.
    """
    if not path.is_dir():
        raise DataError("there is no such folder", where=str(path))
    entries = list(visible(path))
    folders = [entry for entry in entries if entry.is_dir()]
    named = named_splits(path)
    if {"train", "test"} <= named.keys():
        return {key: named[key] for key in ("train", "test", "val") if key in named}
    if "train" in named:
        rule = f"there is no such folder; {path} must hold train/CLASS/* and test/CLASS/*"
        remedy = SetOption("dataset", f"folder:{named['train']}"), " tests on a fifth of train"
        raise DataError(rule, where=str(path / "test"), remedy=remedy)
    if named:
        raise DataError(f"{path / 'train'}: there is no such folder; {path} {LAYOUT}")
    if not folders:
        raise _no_folders(path, entries)
    refuse_sites(path, folders)
    return {}


def _no_folders(path: Path, entries: list[Path]) -> DataError:
    """The error of a folder that holds no folder, which names what its files may be instead."""
    there = f"holds {len(entries)} files and no folder" if entries else "is empty"
    rule = f"{there}: it {LAYOUT}"
    remedy: Remedy = ""
    tables = [entry for entry in entries if entry.suffix == ".csv"]
    if any(entry.is_file() and is_dicom(entry) for entry in entries):
        rule = "holds DICOM files and no class folder"
        return DataError(rule, where=str(path), remedy=with_labels(path))
    if any(entry.suffix == ".npy" for entry in entries):
        rule = "holds arrays: pack them into one file by numpy.savez and check that"
    elif tables:
        option = SetOption("dataset", f"csv:{tables[0]}")
        remedy = "if the table has columns path and label: ", option
    return DataError(rule, where=str(path), remedy=remedy)


def refuse_sites(path: Path, folders: list[Path]) -> None:
    """Raise DataError where the folders are sites and not classes: train/CLASS/* or the same classes are in each."""
    contents = [list(visible(folder)) for folder in folders]
    inner = [[child.name for child in children if child.is_dir()] for children in contents]
    names = [f"folder:{folder}" for folder in folders]
    several = len(folders) > 1
    if all(_has_train(names) for names in inner):
        sites = f"domains:{name_list(names)}" if several else names[0]
        remedy: Remedy = ("its folders do: ", SetOption("dataset", sites))
        raise DataError(LAYOUT, where=str(path), remedy=remedy)

    first = inner[0]
    same = several and len(first) > 1 and all(names == first for names in inner)
    images_beside = any(child.is_file() for children in contents for child in children)
    if same and not images_beside:
        rule = f"every folder holds the same folders {', '.join(first[:4])}"
        option = SetOption("dataset", f"domains:{name_list(names)}")
        remedy = ("if these are the classes, the others are sites: ", option)
        raise DataError(rule, where=str(path), remedy=remedy)


def _has_train(names: list[str]) -> bool:
    return any(name.lower() in ("train", "training") for name in names)


def visible(folder: Path) -> Iterator[Path]:
    """The entries of a folder, sorted by name, without the files of operating systems."""
    # By name: all lie in one folder, and comparing whole paths is slow.
    for path in sorted(folder.iterdir(), key=attrgetter("name")):
        if not path.name.startswith(".") and path.name not in IGNORED:
            yield path


def below(folder: Path) -> Iterator[Path]:
    """The files in a folder and in those inside it."""
    for path in visible(folder):
        if path.is_dir():
            yield from below(path)
        else:
            yield path


def all_below(path: Path) -> list[Path]:
    """The files in a folder and in those inside it. Raises DataError where it is none."""
    if not path.is_dir():
        raise DataError("there is no such folder", where=str(path))
    return list(below(path))


def composed(name: str) -> str:
    """A name with letters and their marks as one character, whatever the file system made of them."""
    return unicodedata.normalize("NFC", name)


def class_folders(folder: Path) -> dict[str, Path]:
    """The folders by class. Raises DataError for a name that the setting classes cannot hold."""
    folders = {composed(path.name): path for path in visible(folder) if path.is_dir()}
    for name in folders:
        if name != name.strip():
            rule = "the name of a class must have no space around it: rename the folder"
            raise DataError(f"{folders[name]}: {rule}")
    return folders


def class_number(name: str, class_names: Sequence[str]) -> int | None:
    """Return a class's number by its name, also in other capital letters where it is then one class's alone."""
    known = [composed(class_name) for class_name in class_names]
    name = composed(name)
    if name in known:
        return known.index(name)
    alike = [number for number, each in enumerate(known) if each.casefold() == name.casefold()]
    return alike[0] if len(alike) == 1 else None


def read_split(
    folder: Path,
    key: str,
    class_names: tuple[str, ...],
    shape: tuple[int, ...],
    settings: DataSettings,
) -> Split:
    """CLASS/* of one folder, not decoded yet.

    Raises:
        DataError: a class folder is none of `class_names`, or there is no image.
    """
    folders = class_folders(folder)
    numbers = {name: class_number(name, class_names) for name in folders}
    unknown = [name for name, number in numbers.items() if number is None]
    if unknown:
        raise DataError(
            f"class folders {', '.join(unknown)} are none of the setting classes; "
            f"found {', '.join(folders)}; classes = {name_list(class_names, ', ')}",
            where=str(folder),
        )
    files: list[str] = []
    labels: list[int] = []
    for label, class_name in enumerate(class_names):
        of_this = [name for name, number in numbers.items() if number == label]
        if len(of_this) > 1:
            rule = f"are both called as class {class_name} but for capital letters: rename one"
            raise DataError(f"class folders {' and '.join(of_this)} {rule}", where=str(folder))
        for name in of_this:
            of_class = [str(file.relative_to(folder)) for file in below(folders[name])]
            files += of_class
            labels += [label] * len(of_class)
    if not files:
        rule = f"no image in any class folder of {', '.join(class_names)}"
        raise DataError(rule, where=str(folder))
    images = ImageFiles.of(folder, files, shape, settings)
    return Split(images, np.array(labels, np.int64), str(folder), key)


def notes_of(splits: Mapping[str, Path], class_names: tuple[str, ...]) -> Iterator[str]:
    """Yield what a user has to know of folders, a sentence each."""
    empty = {composed(name) for name in class_names}
    for folder in splits.values():
        beside = sum(1 for path in visible(folder) if path.is_file())
        if beside:
            yield f"{folder}: {beside} files beside the class folders are left out"
        for name, inside in class_folders(folder).items():
            if any(path.is_dir() for path in visible(inside)):
                yield f"{inside}: images in folders inside it are of class {name} too"
            if any(True for _ in below(inside)):
                empty.discard(name)
    for name in sorted(empty):
        yield f"class {name} has no image"


def notes_of_patients(path: Path, known: Origins, settings: DataSettings) -> Iterator[str]:
    """Yield what a user has to know of patients and sites, a sentence each."""
    yield from known.notes
    if known.sites:
        yield f"the {len(set(known.sites))} sites of DICOM element {INSTITUTION} are the clients"
    if known.patients:
        number = len(set(known.patients))
        yield f"{number} patients by DICOM element {known.by}, each on one side alone"
    elif settings.column_names.get("patient") != "":
        yield unknown_patients(path / "images.csv", "columns path, label and patient")


def guess_settings(path: Path, settings: DataSettings) -> Guess:
    """Propose settings for a folder from its names and its first image. Raises DataError."""
    from data.readers.image_files import shape_of  # it loads PIL

    if settings.labels:
        return guess_labelled(path, all_below(path), settings)
    known = patients_of(path, settings)
    named = split_folders(path)
    splits = named or {"": path}
    classes: set[str] = set()
    images: list[Path] = []
    for folder in splits.values():
        for name, class_folder in class_folders(folder).items():
            classes.add(name)
            images.extend(below(class_folder))
    names = sorted(classes)
    if not images:
        raise DataError(f"no class folder holds an image: it {LAYOUT}", where=str(path))
    if len(names) < 2 and known.files and not settings.classes.strip():
        rule = f"holds DICOM files in the folder {names[0]} alone, and there must be two classes"
        raise DataError(rule, where=str(path), remedy=with_labels(path))
    shape, notes_of_images = shape_of(images, settings)
    notes = [] if named else [A_FIFTH]
    notes += notes_of_patients(path, known, settings)
    notes += [*notes_of(splits, tuple(names)), *notes_of_images]
    return Guess({"classes": name_list(names), "input-shape": shape}, tuple(notes))
