"""folder:PATH: images in a folder for each class."""

import unicodedata
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from data.errors import DataError
from data.readers.image_files import ImageFiles
from data.readers.splits import Guess, Raw, Split, fifth
from data.settings import DataSettings

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
    if splits := split_folders(path):
        read = {
            key: read_split(folder, key, class_names, shape, settings)
            for key, folder in splits.items()
        }
        return Raw(
            read["train"], read["test"], read.get("val"), notes=tuple(notes_of(splits, class_names))
        )
    everything = read_split(path, "", class_names, shape, settings)
    tested = fifth(everything.labels.astype(np.int64), settings, str(path))
    train, test = (
        everything.take(np.flatnonzero(chosen), key)
        for chosen, key in ((~tested, "train"), (tested, "test"))
    )
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
    named = {
        SPLITS[folder.name.lower()]: folder
        for folder in reversed(folders)
        if folder.name.lower() in SPLITS
    }
    if {"train", "test"} <= named.keys():
        return {key: named[key] for key in ("train", "test", "val") if key in named}
    if "train" in named:
        rule = f"{path} must hold train/CLASS/* and test/CLASS/*; to test on a fifth of train:"
        raise DataError(
            f"{path / 'test'}: there is no such folder; {rule} dataset = folder:{named['train']}"
        )
    if named:
        raise DataError(f"{path / 'train'}: there is no such folder; {path} {LAYOUT}")
    if not folders:
        there = f"holds {len(entries)} files and no folder" if entries else "is empty"
        rule = f"{path}: {there}: it {LAYOUT}"
        if any(entry.suffix == ".npy" for entry in entries):
            rule = f"{path}: holds arrays: pack them into one file by numpy.savez and check that"
        elif tables := [entry for entry in entries if entry.suffix == ".csv"]:
            rule += f"; or dataset = csv:{tables[0]}, with columns path and label"
        raise DataError(rule)
    inner = [[child.name for child in visible(folder) if child.is_dir()] for folder in folders]
    if all({"train", "training"} & {name.lower() for name in names} for names in inner):
        sites = ",".join(f"folder:{folder}" for folder in folders)
        prefix = "domains:" if len(folders) > 1 else ""
        raise DataError(
            f"{LAYOUT}; its folders do: dataset = {prefix}{sites}",
            where=str(path),
        )
    same = len(folders) > 1 and len(inner[0]) > 1 and all(names == inner[0] for names in inner)
    if same and not any(child.is_file() for folder in folders for child in visible(folder)):
        sites = ",".join(f"folder:{folder}" for folder in folders)
        rule = f"every folder holds the same folders {', '.join(inner[0][:4])}; if these are the classes"
        raise DataError(f"{rule}, the others are sites: dataset = domains:{sites}", where=str(path))
    return {}


def visible(folder: Path) -> Iterator[Path]:
    """The entries of a folder, sorted by name, without the files of operating systems."""
    for path in sorted(folder.iterdir()):
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
        if "," in name or name != name.strip():
            rule = "the name of a class must have no comma in it and no space around it: rename the folder"
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
    if unknown := [name for name in folders if name not in known]:
        raise DataError(
            f"class folders {', '.join(unknown)} are none of the setting classes; "
            f"found {', '.join(folders)}; classes = {', '.join(class_names)}",
            where=str(folder),
        )
    files: list[tuple[str, int]] = []
    for label, name in enumerate(known):
        if name in folders:
            files.extend((str(file.relative_to(folder)), label) for file in below(folders[name]))
    if not files:
        raise DataError(
            f"no image in any class folder of {', '.join(class_names)}", where=str(folder)
        )
    images = ImageFiles.of(folder, [file for file, _ in files], shape, settings)
    return Split(images, np.array([label for _, label in files], np.int64), str(folder), key)


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


def look(path: Path, settings: DataSettings) -> Guess:
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
    shape, notes = shape_of(images, settings)
    return Guess(
        {"classes": ",".join(names), "input-shape": shape},
        (*([] if named else [A_FIFTH]), *notes_of(splits, tuple(names)), *notes),
    )
