"""npz:PATH: a user's own arrays, as others save them too."""

from pathlib import Path

from data.readers.conversions import check_convertible, converted
from data.readers.npz import Arrays, read_arrays
from data.readers.splits import Guess, Raw, Split, numbered
from data.settings import DataError, DataSettings


def read_npz(path: Path, settings: DataSettings) -> Raw:
    """train_images, train_labels, test_images, test_labels and, if there, val_images and val_labels.

    Where test_subjects (N,) is there as well, test samples of one subject are tested as one. train_subjects and
    val_subjects (N,) name the subjects of the other samples, by the same names: no subject is in two of the splits.
    What others save otherwise and can mean one thing alone is converted (data/readers/conversions.py).

    Raises:
        DataError: the file is missing, is no npz file, lacks an array, or holds what cannot be trained on.
    """
    wanted = ("train_images", "train_labels", "test_images", "test_labels")
    optional = (
        ("val_images", "val_labels"),
        ("test_subjects",),
        ("train_subjects",),
        ("val_subjects",),
    )

    def splits(arrays: Arrays) -> dict[str, Split]:
        return {
            key: Split(
                arrays[f"{key}_images"],
                arrays[f"{key}_labels"],
                str(path),
                key,
                arrays.get(f"{key}_subjects"),
            )
            for key in ("train", "test", "val")
            if f"{key}_images" in arrays
        }

    def check(heads: Arrays) -> None:
        for split in splits(heads).values():
            check_convertible(split)

    read, notes = converted(splits(read_arrays(path, wanted, optional, settings, check)), settings)
    read = numbered(read)
    return Raw(read["train"], read["test"], read.get("val"), notes=tuple(notes))


def look(path: Path, settings: DataSettings) -> Guess:
    """What would fit an npz file. Raises DataError."""
    return guess_of(read_npz(path, settings), settings, _class_names(path, settings))


def guess_of(raw: Raw, settings: DataSettings, names: tuple[str, ...] = ()) -> Guess:
    """What would fit arrays whose labels are numbers, or names where `classes` is not set.

    Raises:
        DataError: images of which it is not clear what their axes are.
    """
    splits = [
        split for split in (raw.train, raw.test, raw.val) if split is not None and len(split.labels)
    ]
    shape, notes, stated = raw.train.images.shape[1:], list(raw.notes), dict[str, str]()
    if len(shape) == 3:
        height, width, channels = shape
        if channels > 4 and not settings.input_shape:
            rule = f"a volume, or {channels} channels? channels: --set input-shape={channels}x{height}x{width}"
            raise DataError(
                f"{raw.train.where}: train_images: shape {raw.train.images.shape}: {rule}"
            )
        shape = (channels, height, width)
    elif len(shape) == 2:
        shape = (1, *shape)
    if raw.val is not None:
        notes.append("the validation split is measured beside the test split and never trained on")
    if raw.train.labels.dtype.kind in "US":
        classes = sorted({str(name) for split in splits for name in split.labels})
        notes.append("labels that are names are numbered in the order of classes")
        stated["classes"] = ",".join(classes)
    else:
        least, largest = (
            int(bound(bound(split.labels) for split in splits)) for bound in (min, max)
        )
        if least >= 1 and not settings.classes and not settings.first_label:
            notes.append(
                f"labels {least}..{largest} are taken to count from 1; --set classes={largest + 1} keeps a class 0"
            )
            stated["first-label"], largest = "1", largest - 1
        fits = len(names) > largest
        stated["classes"] = ",".join(names) if fits else str(max(largest + 1, 2))
    return Guess({**stated, "input-shape": "x".join(map(str, shape))}, tuple(notes))


def _class_names(path: Path, settings: DataSettings) -> tuple[str, ...]:
    """The names that the file has in class_names, where they can be classes."""
    names = read_arrays(path, (), (("class_names",),), settings).get("class_names")
    if names is None or names.ndim != 1 or names.dtype.kind != "U":
        return ()
    words = tuple(map(str, names.tolist()))
    fits = len({*words}) == len(words) >= 2 and all(
        word.strip() == word and word and "," not in word for word in words
    )
    return words if fits else ()
