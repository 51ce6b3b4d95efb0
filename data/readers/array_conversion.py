"""Arrays as users save them, brought to what is trained on: labels from 0, known scales, one input shape.

An array is converted where its meaning is certain, and a note says so. Where it is not certain, the error names the
setting that decides.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch.nn.functional import interpolate

from data.errors import DataError, Remedy, SetOption
from data.readers.array_types import Array, Integers, Shape
from data.readers.image_files import ImageFiles, decoded
from data.readers.intensity import DARK, nearly_black, on_scale, unknown_range, white_of_bits
from data.readers.rows import is_missing, names_of_classes
from data.readers.splits import Split
from data.settings import DataSettings
from data.text import name_list

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
    """Return vectors as float32, and pixels of other types than bytes on the scale 0..1 or as bytes. By split."""
    arrays = {key: np.asarray(split.images) for key, split in splits.items()}
    pixels = {key: part for key, part in arrays.items() if part.ndim > 2 and part.dtype != np.uint8}
    vectors = {key: part for key, part in arrays.items() if part.ndim == 2}
    changed = _as_float32(vectors, notes)
    if not pixels:
        return changed
    first = splits[next(iter(pixels))]
    types = " and ".join(sorted({str(part.dtype) for part in pixels.values()}))
    where = f"{first.where}: {first.named('images')}: {types}"
    low = min(float(part.min()) for part in pixels.values())
    high = max(float(part.max()) for part in pixels.values())
    if settings.pixel_range:
        black, white = settings.pixel_span
        taken = f"pixels are taken as {black:g}..{white:g} by pixel-range"
        notes.append(f"{taken}, what is beyond is cut")
        return changed | {key: on_scale(part, black, white) for key, part in pixels.items()}
    if all(part.dtype.kind == "f" for part in pixels.values()):
        _refuse_far(where, low, high, settings)
        return changed | _as_float32(pixels, notes)
    if types == "uint16" and high > 255:
        # Of training images alone: a few of other splits may be dark.
        if high <= DARK * 65535 and "train" in splits:
            raise nearly_black(where, high, 65535)
        note = f"uint16 is taken as 0..65535; the largest is {high:g}"
        white_of_file = SetOption("pixel-range", f"0,{white_of_bits(high)}")
        is_small = high < 2**15
        notes.append((note, "; if that is nearly white: ", white_of_file) if is_small else note)
        return changed | {key: on_scale(part, 0, 65535) for key, part in pixels.items()}
    if "uint16" in types or "float" in types or low < 0 or not 1 < high <= 255:
        raise unknown_range(where, low, high)
    notes.append(f"{types} images of 0..{high:g} are taken as bytes, 0..255")
    return changed | {key: part.astype(np.uint8) for key, part in pixels.items()}


def _as_float32(arrays: Mapping[str, Array], notes: Notes) -> dict[str, Array]:
    """Return the arrays that are no float32 as such."""
    changed: dict[str, Array] = {}
    for key, part in arrays.items():
        if part.dtype != np.float32:
            notes.append(f"{part.dtype} is taken as float32")
            changed[key] = part.astype(np.float32)
    return changed


def _refuse_far(where: str, low: float, high: float, settings: DataSettings) -> None:
    """Raise UnknownRange for floating-point pixels far from what mean and std say, such as 0..255 for 0..1."""
    means = np.array(settings.means or (0.5,))
    stds = np.array(settings.stds or (0.5,))
    farthest_M = np.maximum(np.abs(low - means), np.abs(high - means))
    # The check that every split passes names an image that is not finite.
    if np.isfinite([low, high]).all() and farthest_M.min() / stds.max() > FARTHEST:
        bytes_as_floats = low >= 0 and high <= 255
        raise unknown_range(where, low, high, proposed=(0, 255) if bytes_as_floats else None)


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


def checked(split: Split, shape: Shape, classes: int) -> tuple[Array, Integers]:
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
        error = split.error("labels", found, f"labels must be 0..{classes - 1}")
        if labels_N.min() == 1:
            error.remedy = ("if they count from 1: ", SetOption("first-label", "1"))
        raise error
    if images.dtype == np.float32:
        is_finite_N = np.isfinite(images).reshape(len(images), -1).all(axis=1)
        if not is_finite_N.all():
            found = f"NaN or infinite pixel in image {int(np.argmin(is_finite_N))}"
            raise split.error("images", found, "pixels must be finite")
    try:
        return bring_to(images, shape), labels_N
    except ValueError as error:
        raise DataError(f"{split.named('images')}: {error}", where=split.where) from None


def bring_to(images: Array, shape: Shape) -> Array:
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
