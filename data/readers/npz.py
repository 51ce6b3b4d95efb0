"""npz:PATH: arrays of an npz file, as a user or others save them, brought to the form that is trained on.

Heads are looked at before anything is unpacked, as 1 MB may unpack to gigabytes. An array is converted where its
meaning is certain, and a note says so; where it is not, the error has the setting that says it.
"""

import math
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from data.errors import DataError, SetOption
from data.readers.file_type import truly
from data.readers.image_files import DARK, ImageFiles
from data.readers.intensity import UnknownRange, nearly_black, on_scale, range_hint
from data.readers.splits import Guess, Raw, Split, keys_of, numbered, require_of
from data.settings import DataSettings
from data.text import said

Notes = list[str]
FARTHEST = 20.0
"""Standard deviations from the mean beyond which floating-point pixels are asked about: training diverges there, and
images that were normalized before stay within ten."""
IMAGES = "must be uint8, float or integer images (N, H, W) or (N, H, W, C), or vectors (N, F)"

Arrays = Mapping[str, NDArray[np.generic]]
MIB = 2**20


def read_arrays(
    path: Path,
    wanted: tuple[str, ...],
    optional: tuple[tuple[str, ...], ...],
    settings: DataSettings,
    check: Callable[[Arrays], object] = lambda heads: None,
) -> dict[str, NDArray[np.generic]]:
    """Arrays of an npz file: all that are wanted, and of the optional ones all that stand together if any is there.

    Before they are unpacked, `check` is given arrays of their shapes and types that take no memory.

    Raises:
        DataError: the file is missing, is no npz file, lacks an array, or unpacks to more than the settings allow.
    """
    if not path.is_file():
        raise DataError("there is no such file", where=str(path))
    try:
        with path.open("rb") as file:
            if file.read(len(npy.MAGIC_PREFIX)) == npy.MAGIC_PREFIX:
                rule = "holds one array: must be an npz file, as numpy.savez writes it from"
                raise DataError(
                    f"{rule} train_images, train_labels, test_images and test_labels",
                    where=str(path),
                )
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            keys = list(wanted)
            for together in optional:
                if {*together} & members.keys():  # one of them there asks for all of them
                    keys.extend(together)
            if missing := [key for key in keys if key not in members]:
                present = ", ".join(members) or "nothing"
                raise DataError(
                    f"{', '.join(missing)} missing; the file holds {present}", where=str(path)
                )
            refuse_large(path, {key: members[key].file_size for key in keys}, settings)
            check({key: _head(archive, members[key]) for key in keys})
            return {key: _array(archive, members[key]) for key in keys}
    except DataError:
        raise
    except (
        Exception
    ) as error:  # a damaged file surfaces as anything: zlib.error, SyntaxError, NotImplementedError
        reason = why_not(path, said(error))
        raise DataError(
            f"cannot be read as an npz file of plain arrays: {reason}", where=str(path)
        ) from error


def shapes_of(path: Path, keys: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of an npz file's arrays by their heads, of those of `keys` that can be read; no array is."""
    shapes: dict[str, tuple[int, ...]] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            for key in keys:
                if key in members:
                    shapes[key] = _head(archive, members[key]).shape
    except Exception:  # whoever reads the file whole says what is wrong with it
        return shapes
    return shapes


def why_not(path: Path, words: str) -> str:
    """Why a file is no npz file of plain arrays, and what to do."""
    if "Object arrays" in words:
        return f"{words}: save them with a type of their own, such as labels.astype(str) or images.astype('uint8')"
    kind = truly(path)
    if not kind or kind == "a zip archive":
        return words
    if kind.endswith("by its commas"):
        return f"is {kind}: --set dataset=csv:{path}"
    return f"is {kind}"


def refuse_large(path: Path, sizes: Mapping[str, int], settings: DataSettings) -> None:
    """Raise DataError where arrays of so many bytes, by name, are more than the settings allow."""
    size = sum(sizes.values())
    most = settings.max_unpacked_mib
    if size > most * MIB:
        rule = f"more than max-unpacked-mib = {most} allows"
        raise DataError(
            f"{', '.join(sizes)}: {math.ceil(size / MIB)} MiB unpacked: {rule}", where=str(path)
        )


def _head(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> NDArray[np.generic]:
    """A read-only array of the member's shape and type, with one value in memory that stands for all."""
    with archive.open(info) as member:
        readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
        version = npy.read_magic(member)
        if version not in readers:
            raise ValueError(f"{info.filename} has version {version} of the format")
        shape, _, dtype = readers[version](member)
        if dtype.hasobject:
            raise ValueError(f"Object arrays are not plain ({info.filename})")
        stated = member.tell() + math.prod(shape) * dtype.itemsize
        if stated != info.file_size:  # numpy would take memory for what the head states
            raise ValueError(
                f"{info.filename} has {info.file_size} bytes, and its head states {stated}"
            )
    return np.broadcast_to(np.zeros((), dtype), shape)


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> NDArray[np.generic]:
    with archive.open(info) as member:
        array: NDArray[np.generic] = npy.read_array(member, allow_pickle=False)
    return array


def check_convertible(split: Split) -> None:
    """Refuse types, shapes and lengths that nothing can be made of; no pixel is looked at. Raises DataError."""
    images, labels = split.images, split.labels
    images_key, labels_key = keys_of(split)

    require_of(split, images.dtype.kind in "uif", images_key, f"dtype {images.dtype}", IMAGES)
    bytes_of_2d = images.dtype == np.uint8 and images.ndim == 2
    fits = images.ndim in (2, 3, 4) and all(images.shape[1:]) and not bytes_of_2d
    rule = "must be images (N, H, W) or (N, H, W, C), or float32 vectors (N, F)"
    require_of(split, fits, images_key, f"shape {images.shape}", rule)

    rule = "must be whole numbers, or names"
    require_of(split, labels.dtype.kind in "biufUS", labels_key, f"dtype {labels.dtype}", rule)
    rule = "must be (N,) or (N, 1)"
    require_of(split, labels.ndim in (1, 2), labels_key, f"shape {labels.shape}", rule)

    lengths = f"{len(images)} images and {len(labels)} labels"
    rule = f"{images_key} and {labels_key} must be equally long"
    require_of(split, len(images) == len(labels), images_key, lengths, rule)
    require_of(split, len(images) > 0, images_key, "no image", "must hold at least one")


def converted(
    splits: Mapping[str, Split], settings: DataSettings
) -> tuple[dict[str, Split], Notes]:
    """The splits of one file in the form that is trained on, and a sentence for everything that was changed.

    Names stay names where `settings` do not say the classes.

    Raises:
        DataError: what cannot be trained on, or what can be understood in two ways, with the setting that decides.
    """
    notes: Notes = []
    labelled = {key: _with_labels(split, settings, notes) for key, split in splits.items()}
    _check_first_label(labelled, settings)
    arranged = {key: _channels_last(split, settings, notes) for key, split in labelled.items()}
    scaled = _scaled(arranged, settings, notes)
    return scaled, list(dict.fromkeys(notes))  # what holds for several splits is said once


def _with_labels(split: Split, settings: DataSettings, notes: Notes) -> Split:
    labels = split.labels
    key = keys_of(split)[1]
    if labels.ndim == 2 and labels.shape[1] == 1:
        notes.append(f"labels (N, 1) are taken as (N,), as in {key}")
        labels = labels[:, 0]
    elif labels.ndim == 2:
        zeros_and_ones = labels.dtype.kind in "biuf" and bool(((labels == 0) | (labels == 1)).all())
        single = zeros_and_ones and bool((labels.sum(axis=1) == 1).all())
        rule = "several labels of one image (multi-label) cannot be trained on: choose one column and save it as (N,)"
        require_of(split, single, key, f"shape {labels.shape}", rule)
        notes.append(
            f"labels (N, {labels.shape[1]}) with a single 1 a row are taken as the place of the 1"
        )
        labels = labels.argmax(axis=1)
    if labels.dtype.kind in "US":
        names = np.char.strip(labels.astype(str))
        return replace(split, labels=_numbers_of(split, names, settings, notes))
    if labels.dtype.kind == "b":
        labels = labels.astype(np.int64)
    if labels.dtype.kind == "f":
        broken = ~np.isfinite(labels) | (labels != np.floor(labels))
        rule = "labels must be whole numbers"
        example = f"dtype {labels.dtype}, such as {labels[np.argmax(broken)]!s}"
        require_of(split, not broken.any(), key, example, rule)
        notes.append("labels of floating-point type are all whole numbers and taken as such")
        labels = labels.astype(np.int64)
    if settings.first_label:
        labels = labels.astype(np.int64) - settings.first_label
    return replace(split, labels=labels)


def _numbers_of(
    split: Split,
    names: NDArray[np.str_],
    settings: DataSettings,
    notes: Notes,
) -> NDArray[np.generic]:
    """The names' places in `classes`; the names as they are where it is not set."""
    if not settings.classes.strip():
        return names
    present, places = np.unique(names, return_inverse=True)
    known = {name: label for label, name in enumerate(settings.class_names)}
    if unknown := [str(name) for name in present if name not in known]:
        listed = ",".join(present.tolist())
        fitting = SetOption("classes", listed)
        rule = f"must be one of classes = {settings.classes}; what is there would fit {fitting}"
        require_of(split, False, keys_of(split)[1], f"{unknown[0][:80]!r}", rule)
    notes.append("labels that are names are numbered in the order of classes")
    return np.array([known[str(name)] for name in present], np.int64)[places]


def _check_first_label(splits: Mapping[str, Split], settings: DataSettings) -> None:
    """Refuse labels 1..C of C classes: of another site's file 1..C-1 would pass, and mean something else."""
    labels = [split.labels for split in splits.values() if split.labels.dtype.kind in "iu"]
    if settings.first_label or not settings.classes.strip() or not labels:
        return
    least = min(int(part.min()) for part in labels)
    largest = max(int(part.max()) for part in labels)
    classes = settings.num_classes
    if least >= 1 and largest == classes:
        split = next(iter(splits.values()))
        raise DataError(
            f"labels {least}..{largest} of {classes} classes: must be 0..{classes - 1}",
            where=f"{split.where}: {keys_of(split)[1]}",
            remedy=("if they count from 1: ", SetOption("first-label", "1")),
        )


def _channels_last(split: Split, settings: DataSettings, notes: Notes) -> Split:
    """(N, C, H, W) as (N, H, W, C): where C is 1 or 3, or input-shape's channels, and the last axis is not."""
    images = split.images
    if images.ndim != 4 or isinstance(images, ImageFiles):
        return split
    second, last = images.shape[1], images.shape[3]
    numbers_of_channels = {1, 3}
    if settings.input_shape.strip() and len(settings.shape) == 3:
        numbers_of_channels.add(settings.shape[0])
    if last in numbers_of_channels or second not in numbers_of_channels:
        return split
    notes.append(f"images {images.shape[1:]} are taken as (channels, height, width)")
    return replace(split, images=np.moveaxis(images, 1, -1))


def _scaled(splits: Mapping[str, Split], settings: DataSettings, notes: Notes) -> dict[str, Split]:
    """Pixels of any type as bytes, or as float32 on the scale 0..1; vectors as float32."""
    wide, ranged = _wide_and_ranged(splits)
    changed: dict[str, NDArray[np.generic]] = {}
    if settings.pixel_range and ranged:
        low, high = settings.pixel_span
        notes.append(f"pixels are taken as {low:g}..{high:g} by pixel-range, what is beyond is cut")
        changed = {key: on_scale(images, low, high) for key, images in ranged.items()}
    floats = [key for key, images in ranged.items() if images.dtype.kind == "f"]
    if not changed and floats:
        _refuse_far([splits[key] for key in floats], settings)
    for key, images in wide.items():
        if key not in changed and (images.ndim == 2 or images.dtype.kind == "f"):
            notes.append(f"{images.dtype} is taken as float32")
            changed[key] = images.astype(np.float32)
    integers = {key: images for key, images in wide.items() if key not in changed}
    if integers:
        changed |= _scaled_integers(integers, splits, notes)
    return {
        key: replace(split, images=changed.get(key, split.images)) for key, split in splits.items()
    }


def _wide_and_ranged(
    splits: Mapping[str, Split],
) -> tuple[dict[str, NDArray[np.generic]], dict[str, NDArray[np.generic]]]:
    """Return the arrays of a type that is not trained on, and those of pixels that are no bytes."""
    wide: dict[str, NDArray[np.generic]] = {}
    ranged: dict[str, NDArray[np.generic]] = {}
    for key, split in splits.items():
        images = split.images
        if isinstance(images, ImageFiles):
            continue
        if images.dtype not in (np.uint8, np.float32):
            wide[key] = images
        if images.dtype != np.uint8 and images.ndim > 2:
            ranged[key] = images
    return wide, ranged


def _scaled_integers(
    integers: Mapping[str, NDArray[np.generic]],
    splits: Mapping[str, Split],
    notes: Notes,
) -> dict[str, NDArray[np.generic]]:
    """Return pixels of an integer type as bytes or on the scale 0..1, where type and numbers say the range.

    Raises:
        DataError: training images of 16 bits that would be nearly black.
        UnknownRange: any other numbers.
    """
    low = min(int(images.min()) for images in integers.values())
    high = max(int(images.max()) for images in integers.values())
    types = sorted({str(images.dtype) for images in integers.values()})
    sixteen_bits = types == ["uint16"]
    listed = " and ".join(types)

    dark = sixteen_bits and 255 < high <= DARK * 65535
    if dark and "train" in splits:  # of training alone: few other images may be dark
        split = splits["train"]
        raise nearly_black(f"{split.where}: {keys_of(split)[0]}: uint16", high, 65535)
    if sixteen_bits and high > 255:
        notes.append(f"uint16 is taken as 0..65535; the largest is {high}{range_hint(high)}")
        return {key: on_scale(images, 0, 65535) for key, images in integers.items()}
    if not sixteen_bits and low >= 0 and 1 < high <= 255:
        notes.append(f"{listed} images of 0..{high} are taken as bytes, 0..255")
        return {key: images.astype(np.uint8) for key, images in integers.items()}
    split = splits[next(iter(integers))]
    raise UnknownRange(f"{split.where}: {keys_of(split)[0]}: {listed}", low, high)


def _refuse_far(splits: Sequence[Split], settings: DataSettings) -> None:
    """Raise UnknownRange for floating-point pixels far from what mean and std say, such as 0..255 for 0..1."""
    extremes = [(float(split.images.min()), float(split.images.max())) for split in splits]  # type: ignore[union-attr]
    if not np.isfinite(extremes).all():
        return  # the check that every split passes names the image
    lows, highs = zip(*extremes, strict=True)
    low, high = min(lows), max(highs)
    means = settings.means if settings.mean.strip() else (0.5,)
    stds = settings.stds if settings.std.strip() else (0.5,)
    distances: list[float] = []
    for mean in means:
        farthest = max(abs(low - mean), abs(high - mean))
        distances.extend(farthest / std for std in stds)
    if min(distances) > FARTHEST:
        first = splits[0]
        where = f"{first.where}: {keys_of(first)[0]}: {first.images.dtype}"
        bytes_as_floats = low >= 0 and high <= 255
        proposed = (0, 255) if bytes_as_floats else None
        raise UnknownRange(where, low, high, proposed=proposed)


def read_npz(path: Path, settings: DataSettings) -> Raw:
    """train_images, train_labels, test_images, test_labels and, if there, val_images and val_labels.

    Where test_subjects (N,) is there as well, test samples of one subject are tested as one. train_subjects and
    val_subjects (N,) name the subjects of the other samples, by the same names: no subject is in two of the splits.
    What others save otherwise and can mean one thing alone is converted (`converted`).

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
    """Propose settings for an npz file. Raises DataError."""
    return guess_of(read_npz(path, settings), settings, _class_names(path, settings))


def guess_of(raw: Raw, settings: DataSettings, names: tuple[str, ...] = ()) -> Guess:
    """Propose settings for arrays whose labels are numbers, or names if `classes` is not set.

    Raises:
        DataError: images of which it is not clear what their axes are.
    """
    splits = [
        split for split in (raw.train, raw.test, raw.val) if split is not None and len(split.labels)
    ]
    shape = raw.train.images.shape[1:]
    notes = list(raw.notes)
    stated = dict[str, str]()
    if len(shape) == 3:
        height, width, channels = shape
        if channels > 4 and not settings.input_shape:
            rule = f"a volume, or {channels} channels? channels: --set input-shape={channels}x{height}x{width}"
            raise DataError(
                f"train_images: shape {raw.train.images.shape}: {rule}", where=raw.train.where
            )
        shape = (channels, height, width)
    elif len(shape) == 2:
        shape = (1, *shape)
    if raw.val is not None:
        notes.append("the validation split is measured beside the test split and never trained on")
    if raw.train.labels.dtype.kind in "US":
        found: set[str] = set()
        for split in splits:
            found.update(str(name) for name in split.labels)
        classes = sorted(found)
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
    arrays = read_arrays(path, (), (("class_names",),), settings)
    names = arrays.get("class_names")
    if names is None or names.ndim != 1 or names.dtype.kind != "U":
        return ()
    words = tuple(map(str, names.tolist()))
    if len(words) < 2 or len({*words}) < len(words):
        return ()
    for word in words:
        # The setting `classes` separates names by commas and cuts spaces off.
        if not word or word.strip() != word or "," in word:
            return ()
    return words
