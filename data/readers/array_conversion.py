"""Arrays as users save them, brought to what is trained on: labels from 0, known scales, one input shape."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch.nn.functional import interpolate

from data.errors import DataError, Remedy
from data.readers.array_types import Array, Integers, Shape
from data.readers.image_files import ImageFiles, decoded
from data.readers.intensity import on_scale, unknown_range, white_of_bits
from data.readers.rows import FILL_CELLS, is_missing, names_of_classes
from data.readers.splits import Split
from data.settings import DataSettings

Notes = list[Remedy]
FARTHEST = 20.0
"""Standard deviations from the mean beyond which floating-point pixels are asked about: training diverges there, and
images that were normalized before stay within ten."""
CHUNK = 2048
"""Images resized at a time: bounds the float copy."""


def check_form(split: Split) -> None:
    """Raise DataError for types, shapes and lengths that nothing can be made of."""
    images, labels, subjects = split.images, split.labels, split.subjects
    # numpy's kinds: u and i are integers, f floating-point, b bool, U and S texts.
    has_form = images.ndim in (2, 3, 4) and 0 not in images.shape[1:]
    are_vectors_of_bytes = images.ndim == 2 and images.dtype == np.uint8
    if images.dtype.kind not in "uif" or not has_form or are_vectors_of_bytes:
        rule = "must be uint8, float or integer images (N, H, W) or (N, H, W, C), or float vectors (N, F)"
        raise split.error("images", f"dtype {images.dtype}, shape {images.shape}", rule)
    is_column = labels.ndim == 1 or labels.shape[1:] == (1,)
    if labels.dtype.kind not in "biuUS" or not is_column:
        rule = "must be whole numbers of an integer type, or names: (N,) or (N, 1), one per sample"
        raise split.error("labels", f"dtype {labels.dtype}, shape {labels.shape}", rule)
    if len(images) != len(labels):
        rule = f"{split.named('images')} and {split.named('labels')} must be equally long"
        raise split.error("images", f"{len(images)} images and {len(labels)} labels", rule)
    if not len(images):
        raise split.error("images", "no image", "must hold at least one")
    if subjects is None:
        return
    if subjects.dtype.kind not in "iu" or subjects.shape != labels.shape[:1]:
        found = f"dtype {subjects.dtype}, shape {subjects.shape}"
        raise split.error("subjects", found, "must be whole numbers (N,), one a sample")


# ---- arrays of one file ----------------------------------------------------------------------------------------------


def converted(split: Split, settings: DataSettings, notes: Notes) -> Split:
    """Return a split of a file in the form that is trained on, and add a note for everything that was changed.

    Names stay names where `settings` do not say the classes.

    Raises:
        DataError: what cannot be trained on, with the setting that decides where one does.
    """
    check_form(split)
    labels = split.labels[:, 0] if split.labels.ndim == 2 else split.labels
    if labels.dtype.kind in "US":
        labels = _numbers_of(split, np.char.strip(labels.astype(str)), settings)
    images = np.asarray(split.images)
    # Channels are last, but for (N, C, H, W) of one or three.
    if images.ndim == 4 and images.shape[1] in (1, 3) and images.shape[3] not in (1, 3):
        notes.append(f"images {images.shape[1:]} are taken as (channels, height, width)")
        images = np.moveaxis(images, 1, -1)
    return replace(split, labels=labels, images=_scaled(split, images, settings, notes))


def _numbers_of(split: Split, names: Array, settings: DataSettings) -> Array:
    """Return the names' places in `classes`; the names as they are where it is not set. Raises DataError."""
    classes = names_of_classes(settings)
    present, first_P, places_N = np.unique(names, return_index=True, return_inverse=True)
    for name, first in zip(present.tolist(), first_P.tolist(), strict=True):
        rule = ""
        if is_missing(name, classes):
            rule = "is a missing value; save the arrays without such samples"
        elif classes and name not in classes:
            rule = f"must be one of classes = {settings.classes}"
        if rule:
            raise split.error("labels", f"{name[:80]!r} at index {first}", rule)
    if not classes:
        return names
    return np.array([classes.index(name) for name in present.tolist()], np.int64)[places_N]


def _scaled(split: Split, images: Array, settings: DataSettings, notes: Notes) -> Array:
    """Return bytes as they are, anything else as float32: vectors, and images on the scale 0..1 or normalized.

    Raises:
        DataError: images whose scale only pixel-range can say: whole numbers, and floating-point numbers far from mean.
    """
    if images.dtype == np.uint8:
        return images
    are_vectors = images.ndim == 2
    if settings.pixel_range and not are_vectors:
        black, white = settings.pixel_span
        taken = f"pixels are taken as {black:g}..{white:g} by pixel-range"
        notes.append(f"{taken}, what is beyond is cut")
        return on_scale(images, black, white)
    if not are_vectors and not _on_known_scale(images, settings):
        where = f"{split.where}: {split.named('images')}: {images.dtype}"
        low, high = float(images.min()), float(images.max())
        proposed = (0, white_of_bits(high)) if low >= 0 else None
        raise unknown_range(where, low, high, proposed=proposed)
    return images.astype(np.float32, copy=False)


def _on_known_scale(images: Array, settings: DataSettings) -> bool:
    """Return whether images hold floating-point numbers near the mean, as those on the scale 0..1 or normalized do."""
    if images.dtype.kind != "f":
        return False
    extremes = np.array([images.min(), images.max()], np.float64)
    if not np.isfinite(extremes).all():
        return True  # `checked` names the image that is not finite
    mean, std = np.mean(settings.means or 0.5), np.mean(settings.stds or 0.5)
    return bool((np.abs(extremes - mean) <= FARTHEST * std).all())


def with_subjects(splits: Mapping[str, Split]) -> dict[str, Split]:
    """Return the splits of one file, by key, with their subjects numbered from 0; no two splits share a number.

    Where the test split names its subjects, they are tested as one, and so are those of the other splits.

    Raises:
        DataError: a subject that is in two splits, or one with samples of several classes that is tested as one.
    """
    changed = dict(splits)
    split_of: dict[object, str] = {}
    tested_as_one = splits["test"].subjects is not None
    for key in ("test", "train", "val"):  # test first: its numbers go into the data's hash
        split = splits.get(key)
        if split is None or split.subjects is None:
            continue
        start = len(split_of)
        names, first_S, subject_N = np.unique(
            split.subjects, return_index=True, return_inverse=True
        )
        for name in names.tolist():
            if name in split_of:
                rule = f"is in {split_of[name]}_subjects too: a subject must be in one split alone"
                raise split.error("subjects", str(name), rule)
            split_of[name] = key
        torn = np.flatnonzero(split.labels != split.labels[first_S][subject_N])
        if tested_as_one and torn.size:
            rule = "has samples of several classes, and a subject is tested as one"
            raise split.error("subjects", str(names[subject_N[torn[0]]]), rule)
        numbers_N = subject_N.astype(np.int64) + start
        changed[key] = replace(split, subjects=numbers_N, tested_as_one=tested_as_one)
    return changed


# ---- one input shape -------------------------------------------------------------------------------------------------


def checked(split: Split, shape: Shape, classes: int) -> tuple[Array, Integers]:
    """Return inputs (N, *shape), uint8 or float32, and labels (N,), int64.

    Raises:
        DataError: what cannot be trained on, said in one sentence.
    """
    images = split.images
    if isinstance(images, ImageFiles):
        images = decoded(images, split.where, training=split.key == "train")
    labels_N = split.labels.astype(np.int64)
    is_outside_N = (labels_N < 0) | (labels_N >= classes)
    if is_outside_N.any():
        first = int(np.argmax(is_outside_N))
        found = f"label {labels_N[first]} of {classes} classes at index {first}"
        error = split.error("labels", found, f"labels must be 0..{classes - 1}")
        if labels_N.min() == 1:
            error.remedy = "if they count from 1, save labels - 1"
        raise error
    if images.dtype == np.float32:
        is_finite_N = np.isfinite(images).reshape(len(images), -1).all(axis=1)
        if not is_finite_N.all():
            found = f"NaN or infinite number at index {int(np.argmin(is_finite_N))}"
            error = split.error("images", found, "must be finite")
            if images.ndim == 2:
                error.remedy = (FILL_CELLS, " fills NaN by the column's training rows")
            raise error
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
        raise ValueError(f"shape {images.shape[1:]}: {present} channels cannot become {channels}")
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
    """Return (N, H, W, 3) as grey images (N, H, W, 1) by the shares of ITU-R BT.601, as PIL does it."""
    if images.dtype == np.uint8:
        # PIL's own integers: the shares times 2^16, and half of that to round.
        scaled_NHW = images.astype(np.uint32) @ np.array([19595, 38470, 7471], np.uint32)
        grey_NHW = (scaled_NHW + 0x8000) >> 16
    else:
        grey_NHW = images.astype(np.float64) @ np.array([0.299, 0.587, 0.114])
    return np.asarray(grey_NHW[..., None], images.dtype)


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
