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
from data.readers.splits import Guess, Raw, Split, check_lengths, error_of, keys_of, numbered
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
        _refuse_npy(path)
        with zipfile.ZipFile(path) as archive:
            members = members_of(archive)
            keys = list(wanted)
            for together in optional:
                if not members.keys().isdisjoint(
                    together
                ):  # one of them there asks for all of them
                    keys.extend(together)
            missing = [key for key in keys if key not in members]
            if missing:
                present = ", ".join(members) or "nothing"
                rule = f"{', '.join(missing)} missing; the file holds {present}"
                raise DataError(rule, where=str(path))
            refuse_large(path, {key: members[key].file_size for key in keys}, settings)
            check({key: _head(archive, members[key]) for key in keys})
            return {key: _array(archive, members[key]) for key in keys}
    except DataError:
        raise
    # A damaged file surfaces as anything: zlib.error, SyntaxError, NotImplementedError.
    except Exception as error:
        reason = why_not(path, said(error))
        rule = f"cannot be read as an npz file of plain arrays: {reason}"
        raise DataError(rule, where=str(path)) from error


def _refuse_npy(path: Path) -> None:
    """Raise DataError for a file of numpy.save, which holds a single array."""
    with path.open("rb") as file:
        head = file.read(len(npy.MAGIC_PREFIX))
    if head == npy.MAGIC_PREFIX:
        rule = "holds one array: must be an npz file, as numpy.savez writes it from"
        arrays = "train_images, train_labels, test_images and test_labels"
        raise DataError(f"{rule} {arrays}", where=str(path))


def members_of(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """Return the arrays of an npz file, which is a zip archive of .npy files, by name."""
    return {info.filename.removesuffix(".npy"): info for info in archive.infolist()}


def shapes_of(path: Path, keys: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of an npz file's arrays, of those of `keys` whose heads can be read. No array is unpacked."""
    shapes: dict[str, tuple[int, ...]] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            members = members_of(archive)
            for key in keys:
                if key in members:
                    shapes[key] = _head(archive, members[key]).shape
    except Exception:  # the reader of the whole file says what is wrong with it
        return shapes
    return shapes


def why_not(path: Path, words: str) -> str:
    """Why a file is no npz file of plain arrays, and what to do. `words` are those of the error."""
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
        found = f"{', '.join(sizes)}: {math.ceil(size / MIB)} MiB unpacked"
        rule = f"more than max-unpacked-mib = {most} allows"
        raise DataError(f"{found}: {rule}", where=str(path))


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
    # numpy would take memory for as much as the head states.
    if stated != info.file_size:
        found = f"{info.filename} has {info.file_size} bytes"
        raise ValueError(f"{found}, and its head states {stated}")
    return np.broadcast_to(np.zeros((), dtype), shape)


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> NDArray[np.generic]:
    with archive.open(info) as member:
        array: NDArray[np.generic] = npy.read_array(member, allow_pickle=False)
    return array


def check_convertible(split: Split) -> None:
    """Refuse types, shapes and lengths that nothing can be made of; no pixel is looked at. Raises DataError."""
    images, labels = split.images, split.labels
    images_key, labels_key = keys_of(split)

    # numpy's kinds: u and i are integers, f floating-point, b bool, U and S texts.
    if images.dtype.kind not in "uif":
        raise error_of(split, images_key, f"dtype {images.dtype}", IMAGES)
    vectors_of_bytes = images.dtype == np.uint8 and images.ndim == 2
    empty_axis = 0 in images.shape[1:]
    if images.ndim not in (2, 3, 4) or empty_axis or vectors_of_bytes:
        rule = "must be images (N, H, W) or (N, H, W, C), or float32 vectors (N, F)"
        raise error_of(split, images_key, f"shape {images.shape}", rule)

    if labels.dtype.kind not in "biufUS":
        rule = "must be whole numbers, or names"
        raise error_of(split, labels_key, f"dtype {labels.dtype}", rule)
    if labels.ndim not in (1, 2):
        raise error_of(split, labels_key, f"shape {labels.shape}", "must be (N,) or (N, 1)")
    check_lengths(split)


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
    """The split with labels (N,): whole numbers from 0, or names where `classes` is not set."""
    labels = split.labels
    _, key = keys_of(split)
    if labels.ndim == 2 and labels.shape[1] == 1:
        notes.append(f"labels (N, 1) are taken as (N,), as in {key}")
        labels = labels[:, 0]
    elif labels.ndim == 2:
        if not is_one_hot(labels):
            several = "several labels of one image (multi-label) cannot be trained on"
            rule = f"{several}: choose one column and save it as (N,)"
            raise error_of(split, key, f"shape {labels.shape}", rule)
        columns = labels.shape[1]
        notes.append(f"labels (N, {columns}) with a single 1 a row are taken as the place of the 1")
        labels = labels.argmax(axis=1)

    if labels.dtype.kind in "US":
        names = np.char.strip(labels.astype(str))
        return replace(split, labels=_numbers_of(split, names, settings, notes))
    if labels.dtype.kind == "b":
        labels = labels.astype(np.int64)
    if labels.dtype.kind == "f":
        is_broken_N = ~np.isfinite(labels) | (labels != np.floor(labels))
        if is_broken_N.any():
            example = labels[np.argmax(is_broken_N)]
            found = f"dtype {labels.dtype}, such as {example!s}"
            raise error_of(split, key, found, "labels must be whole numbers")
        notes.append("labels of floating-point type are all whole numbers and taken as such")
        labels = labels.astype(np.int64)
    if settings.first_label:
        labels = labels.astype(np.int64) - settings.first_label
    return replace(split, labels=labels)


def is_one_hot(labels: NDArray[np.generic]) -> bool:
    """Whether every row of labels (N, C) has a single 1 and zeros."""
    if labels.dtype.kind not in "biuf":
        return False
    is_zero_or_one = (labels == 0) | (labels == 1)
    return bool(is_zero_or_one.all() and (labels.sum(axis=1) == 1).all())


def _numbers_of(
    split: Split,
    names: NDArray[np.str_],
    settings: DataSettings,
    notes: Notes,
) -> NDArray[np.generic]:
    """The names' places in `classes`; the names as they are where it is not set."""
    if not settings.classes.strip():
        return names
    present, places_N = np.unique(names, return_inverse=True)
    label_of = {name: label for label, name in enumerate(settings.class_names)}
    label_of_present = []
    for name in present.tolist():
        if name not in label_of:
            fitting = SetOption("classes", ",".join(present.tolist()))
            rule = f"must be one of classes = {settings.classes}; what is there would fit {fitting}"
            raise error_of(split, keys_of(split)[1], repr(name[:80]), rule)
        label_of_present.append(label_of[name])
    notes.append("labels that are names are numbered in the order of classes")
    return np.array(label_of_present, np.int64)[places_N]


def _check_first_label(splits: Mapping[str, Split], settings: DataSettings) -> None:
    """Refuse labels 1..C of C classes: of another site's file 1..C-1 would pass, and mean something else."""
    labels = [split.labels for split in splits.values() if split.labels.dtype.kind in "iu"]
    if settings.first_label or not settings.classes.strip() or not labels:
        return
    smallest = min(int(part.min()) for part in labels)
    largest = max(int(part.max()) for part in labels)
    classes = settings.num_classes
    if smallest < 1 or largest != classes:
        return
    first = next(iter(splits.values()))
    _, labels_key = keys_of(first)
    raise DataError(
        f"labels {smallest}..{largest} of {classes} classes: must be 0..{classes - 1}",
        where=f"{first.where}: {labels_key}",
        remedy=("if they count from 1: ", SetOption("first-label", "1")),
    )


def _channels_last(split: Split, settings: DataSettings, notes: Notes) -> Split:
    """(N, C, H, W) as (N, H, W, C): where C is 1 or 3, or input-shape's channels, and the last axis is not."""
    images = split.images
    if images.ndim != 4 or isinstance(images, ImageFiles):
        return split
    _, second, _, last = images.shape
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
    else:
        floats = [splits[key] for key, images in ranged.items() if images.dtype.kind == "f"]
        if floats:
            _refuse_far(floats, settings)

    for key, images in wide.items():
        vectors = images.ndim == 2
        if key not in changed and (vectors or images.dtype.kind == "f"):
            notes.append(f"{images.dtype} is taken as float32")
            changed[key] = images.astype(np.float32)
    integers = {key: images for key, images in wide.items() if key not in changed}
    if integers:
        changed |= _scaled_integers(integers, splits, notes)

    scaled = dict(splits)
    for key, images in changed.items():
        scaled[key] = replace(splits[key], images=images)
    return scaled


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
    arrays = integers.values()
    low = min(int(images.min()) for images in arrays)
    high = max(int(images.max()) for images in arrays)
    types = sorted({str(images.dtype) for images in arrays})
    sixteen_bits = types == ["uint16"]
    listed = " and ".join(types)

    if sixteen_bits and high > 255:
        # Of training images alone: a few of other splits may be dark.
        if high <= DARK * 65535 and "train" in splits:
            raise nearly_black(_images_of(splits["train"], "uint16"), high, 65535)
        notes.append(f"uint16 is taken as 0..65535; the largest is {high}{range_hint(high)}")
        return {key: on_scale(images, 0, 65535) for key, images in integers.items()}
    if not sixteen_bits and low >= 0 and 1 < high <= 255:
        notes.append(f"{listed} images of 0..{high} are taken as bytes, 0..255")
        return {key: images.astype(np.uint8) for key, images in integers.items()}

    first_key = next(iter(integers))
    raise UnknownRange(_images_of(splits[first_key], listed), low, high)


def _images_of(split: Split, dtype: object) -> str:
    """The images of a split, as an error names them."""
    images_key, _ = keys_of(split)
    return f"{split.where}: {images_key}: {dtype}"


def _refuse_far(splits: Sequence[Split], settings: DataSettings) -> None:
    """Raise UnknownRange for floating-point pixels far from what mean and std say, such as 0..255 for 0..1."""
    extremes: list[float] = []
    for split in splits:
        assert not isinstance(split.images, ImageFiles)
        extremes += [float(split.images.min()), float(split.images.max())]
    if not np.isfinite(extremes).all():
        return  # the check that every split passes names the image
    low, high = min(extremes), max(extremes)

    means = settings.means if settings.mean.strip() else (0.5,)
    stds = settings.stds if settings.std.strip() else (0.5,)
    distances: list[float] = []
    for mean in means:
        farthest = max(abs(low - mean), abs(high - mean))
        distances += [farthest / std for std in stds]
    if min(distances) <= FARTHEST:
        return
    first = splits[0]
    images = _images_of(first, first.images.dtype)
    bytes_as_floats = low >= 0 and high <= 255
    raise UnknownRange(images, low, high, proposed=(0, 255) if bytes_as_floats else None)


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

    def check(heads: Arrays) -> None:
        for split in splits_of(path, heads).values():
            check_convertible(split)

    arrays = read_arrays(path, wanted, optional, settings, check)
    splits, notes = converted(splits_of(path, arrays), settings)
    splits = numbered(splits)
    return Raw(splits["train"], splits["test"], splits.get("val"), notes=tuple(notes))


def splits_of(path: Path, arrays: Arrays) -> dict[str, Split]:
    """Return the splits that the arrays of an npz file are of, by key."""
    splits = {}
    for key in ("train", "test", "val"):
        if f"{key}_images" in arrays:
            splits[key] = Split(
                images=arrays[f"{key}_images"],
                labels=arrays[f"{key}_labels"],
                where=str(path),
                key=key,
                groups=arrays.get(f"{key}_subjects"),
            )
    return splits


def look(path: Path, settings: DataSettings) -> Guess:
    """Propose settings for an npz file. Raises DataError."""
    return guess_of(read_npz(path, settings), settings, _class_names(path, settings))


def guess_of(raw: Raw, settings: DataSettings, names: tuple[str, ...] = ()) -> Guess:
    """Propose settings for arrays whose labels are numbers, or names if `classes` is not set.

    Raises:
        DataError: images of which it is not clear what their axes are.
    """
    shape = _guessed_shape(raw.train, settings)
    notes = list(raw.notes)
    if raw.val is not None:
        notes.append("the validation split is measured beside the test split and never trained on")
    labels = [split.labels for split in (raw.train, raw.test, raw.val) if split is not None]
    every_label = np.concatenate(labels)
    proposed: dict[str, str] = {}
    if raw.train.labels.dtype.kind in "US":
        notes.append("labels that are names are numbered in the order of classes")
        proposed["classes"] = ",".join(sorted({str(name) for name in every_label}))
    else:
        smallest, largest = int(every_label.min()), int(every_label.max())
        if smallest >= 1 and not settings.classes and not settings.first_label:
            notes.append(
                f"labels {smallest}..{largest} are taken to count from 1; --set classes={largest + 1} keeps a class 0"
            )
            proposed["first-label"] = "1"
            largest -= 1
        enough_names = len(names) > largest
        proposed["classes"] = ",".join(names) if enough_names else str(max(largest + 1, 2))
    proposed["input-shape"] = "x".join(map(str, shape))
    return Guess(proposed, tuple(notes))


def _guessed_shape(split: Split, settings: DataSettings) -> tuple[int, ...]:
    """The input shape that a split's images suggest. Raises DataError where the last axis may be of another kind."""
    shape = split.images.shape[1:]
    if len(shape) == 2:
        return (1, *shape)
    if len(shape) != 3:
        return shape
    height, width, channels = shape
    if channels > 4 and not settings.input_shape:
        rule = f"a volume, or {channels} channels? channels: --set input-shape={channels}x{height}x{width}"
        raise DataError(f"train_images: shape {split.images.shape}: {rule}", where=split.where)
    return channels, height, width


def _class_names(path: Path, settings: DataSettings) -> tuple[str, ...]:
    """The names that the file has in class_names, where they can be classes."""
    arrays = read_arrays(path, (), (("class_names",),), settings)
    names = arrays.get("class_names")
    if names is None or names.ndim != 1 or names.dtype.kind != "U":
        return ()
    words = tuple(map(str, names.tolist()))
    each_once = len(set(words)) == len(words)
    if len(words) < 2 or not each_once:
        return ()
    for word in words:
        # The setting `classes` separates names by commas and cuts spaces off.
        if not word or word.strip() != word or "," in word:
            return ()
    return words
