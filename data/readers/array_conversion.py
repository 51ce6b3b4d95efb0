"""Arrays as users save them, converted to the form that is trained on: labels from 0, channels last, known scales.

An array is converted where its meaning is certain, and a note says so. Where it is not certain, the error names the
setting that decides.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from data.errors import DataError, Remedy, SetOption
from data.readers.image_files import DARK, ImageFiles
from data.readers.intensity import UnknownRange, nearly_black, on_scale, range_hint
from data.readers.rows import is_missing, names_of_classes
from data.readers.splits import Split, check_lengths, error_of, keys_of
from data.settings import DataSettings
from data.text import name_list

Notes = list[Remedy]
FARTHEST = 20.0
"""Standard deviations from the mean beyond which floating-point pixels are asked about: training diverges there, and
images that were normalized before stay within ten."""
IMAGES = "must be uint8, float or integer images (N, H, W) or (N, H, W, C), or vectors (N, F)"


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
        _refuse_missing(split, names, settings)
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


def _refuse_missing(split: Split, names: NDArray[np.str_], settings: DataSettings) -> None:
    """Refuse names of classes that say that there is no label. Raises DataError."""
    classes = names_of_classes(settings)
    missing = [name for name in np.unique(names).tolist() if is_missing(name, classes)]
    if missing:
        first = int(np.argmax(names == missing[0]))
        rule = "is a missing value; save the arrays without such samples"
        if missing[0]:
            rule += ", or list it in classes if it is the name of a class"
        raise error_of(split, keys_of(split)[1], f"{missing[0]!r} at index {first}", rule)


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
            fitting = SetOption("classes", name_list(present.tolist()))
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
        notes.append((f"uint16 is taken as 0..65535; the largest is {high}", *range_hint(high)))
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
