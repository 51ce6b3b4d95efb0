"""folder:PATH: images in a folder for each class."""

import unicodedata
from collections.abc import Iterator, Mapping
from operator import attrgetter
from pathlib import Path

import numpy as np

from data.errors import DataError, Remedy, SetOption
from data.readers.image_files import ImageFiles
from data.readers.splits import Guess, Raw, Split, fifth
from data.settings import DataSettings
from data.text import name_list

IGNORED = ("Thumbs.db", "desktop.ini", "__MACOSX")
SPLITS = {
    "train": "train", "training": "train", "test": "test", "testing": "test",
    "val": "val", "valid": "val", "validation": "val",
}  # fmt: skip
"""What the folders of splits are called."""
LAYOUT = "must hold train/CLASS/* and test/CLASS/*, or CLASS/* alone, of which a fifth is then for testing"

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
    folders = split_folders(path)
    if folders:
        splits = {}
        for key, folder in folders.items():
            splits[key] = read_split(folder, key, class_names, shape, settings)
        notes = tuple(notes_of(folders, class_names))
        return Raw(splits["train"], splits["test"], splits.get("val"), notes=notes)

    everything = read_split(path, "", class_names, shape, settings)
    is_test_N = fifth(everything.labels.astype(np.int64), settings, str(path))
    train = everything.take(np.flatnonzero(~is_test_N), "train")
    test = everything.take(np.flatnonzero(is_test_N), "test")
    return Raw(train, test, notes=(A_FIFTH, *notes_of({"": path}, class_names)))


def split_folders(path: Path) -> dict[str, Path]:
    """The folders of train, test and perhaps val; empty where `path` holds class folders itself.

    Raises:
        DataError: there is no such folder, only a part of them, or neither.
    """
    if not path.is_dir():
        raise DataError("there is no such folder", where=str(path))
    entries = list(visible(path))
    folders = [entry for entry in entries if entry.is_dir()]
    named: dict[str, Path] = {}
    for folder in folders:
        split = SPLITS.get(folder.name.lower())
        if split is not None:
            named.setdefault(split, folder)  # of `val` and `valid` the first by name
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
    known = [composed(name) for name in class_names]
    unknown = [name for name in folders if name not in known]
    if unknown:
        raise DataError(
            f"class folders {', '.join(unknown)} are none of the setting classes; "
            f"found {', '.join(folders)}; classes = {name_list(class_names, ', ')}",
            where=str(folder),
        )
    files: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(known):
        if name in folders:
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


def guess_settings(path: Path, settings: DataSettings) -> Guess:
    """Propose settings for a folder from its names and its first image. Raises DataError."""
    from data.readers.image_files import shape_of  # it loads PIL

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
    shape, notes_of_images = shape_of(images, settings)
    notes = [] if named else [A_FIFTH]
    notes += [*notes_of(splits, tuple(names)), *notes_of_images]
    return Guess({"classes": name_list(names), "input-shape": shape}, tuple(notes))
