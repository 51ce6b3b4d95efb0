"""Arrays as users save them, brought to what is trained on: labels from 0, known scales, one input shape.

An array is converted where its meaning is certain, and a note says so. Where it is not certain, the error names the
setting that decides.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import interpolate

from data.errors import DataError, Remedy, SetOption
from data.readers.image_files import ImageFiles, decoded
from data.readers.intensity import DARK, nearly_black, on_scale, unknown_range, white_of_bits
from data.readers.rows import is_missing, names_of_classes
from data.readers.splits import Split
from data.settings import DataSettings
from data.text import name_list

Array = NDArray[np.generic]
Notes = list[Remedy]
FARTHEST = 20.0
"""Standard deviations from the mean beyond which floating-point pixels are asked about: training diverges there, and
images that were normalized before stay within ten."""
CHUNK = 2048
"""Images resized at a time: bounds the float copy."""


def check_form(split: Split) -> None:
    """Refuse types, shapes and lengths that nothing can be made of; no pixel is looked at. Raises DataError."""
    images, labels = split.images, split.labels
    # numpy's kinds: u and i are integers, f floating-point, b bool, U and S texts.
    if images.dtype.kind not in "uif":
        rule = "must be uint8, float or integer images (N, H, W) or (N, H, W, C), or vectors (N, F)"
        raise split.error("images", f"dtype {images.dtype}", rule)
    vectors_of_bytes = images.dtype == np.uint8 and images.ndim == 2
    if images.ndim not in (2, 3, 4) or 0 in images.shape[1:] or vectors_of_bytes:
        rule = "must be images (N, H, W) or (N, H, W, C), or float32 vectors (N, F)"
        raise split.error("images", f"shape {images.shape}", rule)
    if labels.dtype.kind not in "biufUS":
        raise split.error("labels", f"dtype {labels.dtype}", "must be whole numbers, or names")
    if labels.ndim not in (1, 2):
        raise split.error("labels", f"shape {labels.shape}", "must be (N,) or (N, 1)")
    if len(images) != len(labels):
        rule = f"{split.named('images')} and {split.named('labels')} must be equally long"
        raise split.error("images", f"{len(images)} images and {len(labels)} labels", rule)
    if not len(images):
        raise split.error("images", "no image", "must hold at least one")
    subjects = split.subjects
    if subjects is not None and (
        subjects.dtype.kind not in "iu" or subjects.shape != labels.shape[:1]
    ):
        found = f"dtype {subjects.dtype}, shape {subjects.shape}"
        raise split.error("subjects", found, "must be whole numbers (N,), one a sample")


# ---- arrays of one file ----------------------------------------------------------------------------------------------


def converted(
    splits: Mapping[str, Split], settings: DataSettings
) -> tuple[dict[str, Split], Notes]:
    """Return the splits of one file in the form that is trained on, and a sentence for everything that was changed.

    Names stay names where `settings` do not say the classes.

    Raises:
        DataError: what cannot be trained on, or what can be understood in two ways, with the setting that decides.
    """
    notes: Notes = []
    changed = {}
    for key, split in splits.items():
        images = _channels_last(split, settings, notes)
        changed[key] = replace(split, labels=_labels_of(split, settings, notes), images=images)
    _check_first_label(changed, settings)
    for key, images in _scaled(changed, settings, notes).items():
        changed[key] = replace(changed[key], images=images)
    return changed, list(dict.fromkeys(notes))  # what holds for several splits is said once


def _labels_of(split: Split, settings: DataSettings, notes: Notes) -> Array:
    """Return labels (N,): whole numbers from 0, or names where `classes` is not set."""
    labels = split.labels
    if labels.ndim == 2 and labels.shape[1] == 1:
        notes.append(f"labels (N, 1) are taken as (N,), as in {split.named('labels')}")
        labels = labels[:, 0]
    elif labels.ndim == 2:
        is_number = labels.dtype.kind in "biuf"
        if not is_number or not np.isin(labels, (0, 1)).all() or (labels.sum(axis=1) != 1).any():
            several = "several labels of one image (multi-label) cannot be trained on"
            rule = f"{several}: choose one column and save it as (N,)"
            raise split.error("labels", f"shape {labels.shape}", rule)
        row = f"labels (N, {labels.shape[1]}) with a single 1 a row"
        notes.append(f"{row} are taken as the place of the 1")
        labels = labels.argmax(axis=1)
    if labels.dtype.kind in "US":
        return _numbers_of(split, np.char.strip(labels.astype(str)), settings, notes)
    if labels.dtype.kind == "f":
        is_broken_N = ~np.isfinite(labels) | (labels != np.floor(labels))
        if is_broken_N.any():
            found = f"dtype {labels.dtype}, such as {labels[np.argmax(is_broken_N)]!s}"
            raise split.error("labels", found, "labels must be whole numbers")
        notes.append("labels of floating-point type are all whole numbers and taken as such")
    if labels.dtype.kind in "bf" or settings.first_label:
        labels = labels.astype(np.int64) - settings.first_label
    return labels


def _numbers_of(split: Split, names: Array, settings: DataSettings, notes: Notes) -> Array:
    """Return the names' places in `classes`; the names as they are where it is not set. Raises DataError."""
    classes = names_of_classes(settings)
    present, first_P, places_N = np.unique(names, return_index=True, return_inverse=True)
    for name, first in zip(present.tolist(), first_P.tolist(), strict=True):
        if is_missing(name, classes):
            rule = "is a missing value; save the arrays without such samples"
            if name:
                rule += ", or list it in classes if it is the name of a class"
            raise split.error("labels", f"{name!r} at index {first}", rule)
        if classes and name not in classes:
            fitting = SetOption("classes", name_list(present.tolist()))
            rule = f"must be one of classes = {settings.classes}; what is there would fit {fitting}"
            raise split.error("labels", repr(name[:80]), rule)
    if not classes:
        return names
    notes.append("labels that are names are numbered in the order of classes")
    return np.array([classes.index(name) for name in present.tolist()], np.int64)[places_N]


def _check_first_label(splits: Mapping[str, Split], settings: DataSettings) -> None:
    """Refuse labels 1..C of C classes: of another site's file 1..C-1 would pass, and mean something else."""
    labels = [split.labels for split in splits.values() if split.labels.dtype.kind in "iu"]
    if settings.first_label or not settings.classes.strip() or not labels:
        return
    smallest = min(int(part.min()) for part in labels)
    largest = max(int(part.max()) for part in labels)
    classes = settings.num_classes
    if smallest >= 1 and largest == classes:
        first = next(iter(splits.values()))
        raise DataError(
            f"labels {smallest}..{largest} of {classes} classes: must be 0..{classes - 1}",
            where=f"{first.where}: {first.named('labels')}",
            remedy=("if they count from 1: ", SetOption("first-label", "1")),
        )


def _channels_last(split: Split, settings: DataSettings, notes: Notes) -> Array | ImageFiles:
    """Return (N, C, H, W) as (N, H, W, C): where C is 1 or 3, or input-shape's channels, and the last axis is not."""
    images = split.images
    if images.ndim != 4 or isinstance(images, ImageFiles):
        return images
    numbers_of_channels = {1, 3}
    if settings.input_shape.strip() and len(settings.shape) == 3:
        numbers_of_channels.add(settings.shape[0])
    _, second, _, last = images.shape
    if last in numbers_of_channels or second not in numbers_of_channels:
        return images
    notes.append(f"images {images.shape[1:]} are taken as (channels, height, width)")
    return np.moveaxis(images, 1, -1)


def _scaled(splits: Mapping[str, Split], settings: DataSettings, notes: Notes) -> dict[str, Array]:
    """Return pixels of other types than bytes on the scale 0..1, or as bytes; vectors as float32. By split."""
    arrays = {key: np.asarray(split.images) for key, split in splits.items()}
    pixels = {key: part for key, part in arrays.items() if part.ndim > 2 and part.dtype != np.uint8}
    if settings.pixel_range and pixels:
        low, high = settings.pixel_span
        notes.append(f"pixels are taken as {low:g}..{high:g} by pixel-range, what is beyond is cut")
        return {key: on_scale(part, low, high) for key, part in pixels.items()}
    _refuse_far([splits[key] for key, part in pixels.items() if part.dtype.kind == "f"], settings)
    changed: dict[str, Array] = {}
    for key, part in arrays.items():
        if part.dtype != np.float32 and (part.ndim == 2 or part.dtype.kind == "f"):
            notes.append(f"{part.dtype} is taken as float32")
            changed[key] = part.astype(np.float32)
    integers = {key: part for key, part in pixels.items() if part.dtype.kind in "ui"}
    if integers:
        changed |= _scaled_integers(integers, splits, notes)
    return changed


def _scaled_integers(
    integers: Mapping[str, Array], splits: Mapping[str, Split], notes: Notes
) -> dict[str, Array]:
    """Return pixels of an integer type as bytes or on the scale 0..1, where type and numbers say the range.

    Raises:
        DataError: training images of 16 bits that would be nearly black.
        UnknownRange: any other numbers.
    """
    low = min(int(images.min()) for images in integers.values())
    high = max(int(images.max()) for images in integers.values())
    listed = " and ".join(sorted({str(images.dtype) for images in integers.values()}))
    if listed == "uint16" and high > 255:
        # Of training images alone: a few of other splits may be dark.
        if high <= DARK * 65535 and "train" in splits:
            raise nearly_black(_images_of(splits["train"], listed), high, 65535)
        note = f"uint16 is taken as 0..65535; the largest is {high}"
        white = SetOption("pixel-range", f"0,{white_of_bits(high)}")
        notes.append((note, "; if that is nearly white: ", white) if high < 2**15 else note)
        return {key: on_scale(images, 0, 65535) for key, images in integers.items()}
    if listed != "uint16" and low >= 0 and 1 < high <= 255:
        notes.append(f"{listed} images of 0..{high} are taken as bytes, 0..255")
        return {key: images.astype(np.uint8) for key, images in integers.items()}
    raise unknown_range(_images_of(splits[next(iter(integers))], listed), low, high)


def _images_of(split: Split, dtype: object) -> str:
    """Return the images of a split, as an error names them."""
    return f"{split.where}: {split.named('images')}: {dtype}"


def _refuse_far(splits: Sequence[Split], settings: DataSettings) -> None:
    """Raise UnknownRange for floating-point pixels far from what mean and std say, such as 0..255 for 0..1."""
    images = [np.asarray(split.images) for split in splits]
    extremes = np.array([(part.min(), part.max()) for part in images], np.float64)
    if not len(images) or not np.isfinite(extremes).all():
        return  # the check that every split passes names the image
    low, high = float(extremes.min()), float(extremes.max())
    means = np.array(settings.means or (0.5,))
    stds = np.array(settings.stds or (0.5,))
    farthest_M = np.maximum(np.abs(low - means), np.abs(high - means))
    if farthest_M.min() / stds.max() > FARTHEST:
        bytes_as_floats = low >= 0 and high <= 255
        what = _images_of(splits[0], images[0].dtype)
        raise unknown_range(what, low, high, proposed=(0, 255) if bytes_as_floats else None)


def with_subjects(splits: Mapping[str, Split]) -> dict[str, Split]:
    """Return the splits of one file, by key, with their subjects numbered from 0; no two splits share a number.

    Where the test split names its subjects, they are tested as one, and so are those of the other splits.

    Raises:
        DataError: a subject that is in two splits, or one with samples of several classes that is tested as one.
    """
    changed = dict(splits)
    names_before: dict[str, Array] = {}
    start = 0
    for key in ("test", "train", "val"):  # test first: its numbers go into the data's hash
        split = splits.get(key)
        if split is None or split.subjects is None:
            continue
        names, first_S, subject_N = np.unique(
            split.subjects, return_index=True, return_inverse=True
        )
        for other, other_names in names_before.items():
            shared = np.intersect1d(names, other_names)
            if shared.size:
                rule = f"is in {other}_subjects too: a subject must be in one split alone"
                raise split.error("subjects", str(shared[0]), rule)
        names_before[key] = names
        torn = np.flatnonzero(split.labels != split.labels[first_S][subject_N])
        tested_as_one = "test" in names_before
        if tested_as_one and torn.size:
            rule = "has samples of several classes, and a subject is tested as one"
            raise split.error("subjects", str(names[subject_N[torn[0]]]), rule)
        numbers_N = subject_N.astype(np.int64) + start
        changed[key] = replace(split, subjects=numbers_N, tested_as_one=tested_as_one)
        start += len(names)
    return changed


# ---- one input shape -------------------------------------------------------------------------------------------------


def checked(split: Split, shape: tuple[int, ...], classes: int) -> tuple[Array, NDArray[np.int64]]:
    """Return inputs (N, *shape), uint8 or float32, and labels (N,), int64.

    Raises:
        DataError: what cannot be trained on, said in one sentence.
    """
    images = split.images
    if isinstance(images, ImageFiles):
        sites = np.zeros_like(split.labels) if split.sites is None else split.sites
        groups = list(zip(sites.tolist(), split.labels.tolist(), strict=True))
        images = decoded(images, groups, split.where, training=split.key == "train")
        split = replace(split, images=images)
    check_form(split)
    if images.dtype not in (np.uint8, np.float32):
        rule = "must be uint8 images, or float32 images or vectors"
        raise split.error("images", f"dtype {images.dtype}", rule)
    labels = split.labels
    if labels.dtype.kind not in "iu" or labels.ndim != 1:
        rule = "labels must be stored as whole numbers (N,) of an integer type"
        raise split.error("labels", f"dtype {labels.dtype}, shape {labels.shape}", rule)
    labels_N = labels.astype(np.int64)
    is_outside_N = (labels_N < 0) | (labels_N >= classes)
    if is_outside_N.any():
        first = int(np.argmax(is_outside_N))
        found = f"label {labels_N[first]} of {classes} classes at index {first}"
        raise split.error("labels", found, f"labels must be 0..{classes - 1}")
    if images.dtype == np.float32:
        is_finite_N = np.isfinite(images).reshape(len(images), -1).all(axis=1)
        if not is_finite_N.all():
            found = f"NaN or infinite pixel in image {int(np.argmin(is_finite_N))}"
            raise split.error("images", found, "pixels must be finite")
    try:
        return bring_to(images, shape), labels_N
    except ValueError as error:
        raise DataError(f"{split.named('images')}: {error}", where=split.where) from None


def bring_to(images: Array, shape: tuple[int, ...]) -> Array:
    """Return images (N, H, W) or (N, H, W, C) as (N, *shape), channels first, or vectors (N, F) as they are.

    The dtype is kept. Grey becomes RGB by repetition, RGB becomes grey by luma (ITU-R 601, as PIL does it), sizes
    change bilinearly with antialiasing.

    Raises:
        ValueError: vectors of another length, or a number of channels that cannot become the one asked for.
    """
    if images.ndim == 2 or len(shape) == 1:
        found = images.shape[1:]
        if found != shape:
            raise ValueError(f"each example has shape {found} where input-shape asks for {shape}")
        return images
    channels, height, width = shape
    if images.ndim == 3:
        images = images[..., None]
    present = images.shape[-1]
    if present != channels and (present, channels) not in ((1, 3), (3, 1)):
        raise ValueError(
            f"images have shape {images.shape[1:]}, read as (height, width, channels), and {present} channels cannot "
            f"become {channels}"
        )
    result = np.empty((len(images), channels, height, width), images.dtype)
    for start in range(0, len(images), CHUNK):
        chunk = images[start : start + CHUNK]
        if (present, channels) == (3, 1):
            chunk = _luma(chunk)
        channels_first = np.ascontiguousarray(np.moveaxis(chunk, -1, 1))
        resized = _resize(channels_first, height, width)
        result[start : start + CHUNK] = resized  # one channel broadcasts to three
    return result


def _luma(images: Array) -> Array:
    """Return (N, H, W, 3) as grey images (N, H, W, 1)."""
    if images.dtype != np.uint8:
        shares_3 = np.array([0.299, 0.587, 0.114])  # ITU-R BT.601, as PIL
        grey_NHW = images.astype(np.float64) @ shares_3
        return np.asarray(grey_NHW[..., None], images.dtype)
    # PIL's own integers: the same shares times 2^16, and half of that to round.
    scaled_shares_3 = np.array([19595, 38470, 7471], np.uint32)
    scaled_NHW = images.astype(np.uint32) @ scaled_shares_3
    rounded_NHW = (scaled_NHW + 0x8000) >> 16
    return np.asarray(rounded_NHW[..., None], np.uint8)


def _resize(images: Array, height: int, width: int) -> Array:
    """Return (N, C, H, W) as (N, C, height, width)."""
    if images.shape[2:] == (height, width):
        return images
    pixels = torch.from_numpy(images.astype(np.float32))
    resized = interpolate(
        pixels, (height, width), mode="bilinear", align_corners=False, antialias=True
    ).numpy()
    if images.dtype == np.uint8:
        resized = np.clip(np.rint(resized), 0, 255)
    return np.asarray(resized, images.dtype)
