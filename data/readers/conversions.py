"""Arrays as others save them, brought to the form that is trained on: where their meaning is certain, and said.

Where it is not, the error has the setting that says it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from data.readers.image_files import DARK, ImageFiles
from data.readers.intensity import UnknownRange, nearly_black, on_scale, range_hint
from data.readers.splits import Split, keys_of, require_of
from data.settings import DataSettings

Notes = list[str]
FARTHEST = 20.0
"""Standard deviations from the mean beyond which floating-point pixels are asked about: training diverges there, and
images that were normalized before stay within ten."""
IMAGES = "must be uint8, float or integer images (N, H, W) or (N, H, W, C), or vectors (N, F)"


def check_convertible(split: Split) -> None:
    """Refuse types, shapes and lengths that nothing can be made of; no pixel is looked at. Raises DataError."""
    images, labels, (images_key, labels_key) = split.images, split.labels, keys_of(split)
    require_of(split, images.dtype.kind in "uif", images_key, f"dtype {images.dtype}", IMAGES)
    bytes_of_2d = images.dtype == np.uint8 and images.ndim == 2
    fits = images.ndim in (2, 3, 4) and all(images.shape[1:]) and not bytes_of_2d
    rule = "must be images (N, H, W) or (N, H, W, C), or float32 vectors (N, F)"
    require_of(split, fits, images_key, f"shape {images.shape}", rule)
    rule = "must be whole numbers, or names"
    require_of(split, labels.dtype.kind in "biufUS", labels_key, f"dtype {labels.dtype}", rule)
    require_of(
        split, labels.ndim in (1, 2), labels_key, f"shape {labels.shape}", "must be (N,) or (N, 1)"
    )
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
    changed = {key: _with_labels(split, settings, notes) for key, split in splits.items()}
    _check_first_label(changed, settings)
    changed = {key: _channels_last(split, settings, notes) for key, split in changed.items()}
    return _scaled(changed, settings, notes), list(dict.fromkeys(notes))


def _with_labels(split: Split, settings: DataSettings, notes: Notes) -> Split:
    labels, key = split.labels, keys_of(split)[1]
    if labels.ndim == 2 and labels.shape[1] == 1:
        notes.append(f"labels (N, 1) are taken as (N,), as in {key}")
        labels = labels[:, 0]
    elif labels.ndim == 2:
        single = labels.dtype.kind in "biuf" and bool(((labels == 0) | (labels == 1)).all())
        single = single and bool((labels.sum(axis=1) == 1).all())
        rule = "several labels of one image (multi-label) cannot be trained on: choose one column and save it as (N,)"
        require_of(split, single, key, f"shape {labels.shape}", rule)
        notes.append(
            f"labels (N, {labels.shape[1]}) with a single 1 a row are taken as the place of the 1"
        )
        labels = labels.argmax(axis=1)
    if labels.dtype.kind in "US":
        return replace(
            split, labels=_numbers_of(split, np.char.strip(labels.astype(str)), settings, notes)
        )
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
    split: Split, names: NDArray[np.str_], settings: DataSettings, notes: Notes
) -> NDArray[np.generic]:
    """The names' places in `classes`; the names as they are where it is not set."""
    if not settings.classes.strip():
        return names
    present, places = np.unique(names, return_inverse=True)
    known = {name: label for label, name in enumerate(settings.class_names)}
    if unknown := [str(name) for name in present if name not in known]:
        listed = ",".join(present.tolist())
        rule = f"must be one of classes = {settings.classes}; what is there would fit --set 'classes={listed}'"
        require_of(split, False, keys_of(split)[1], f"{unknown[0][:80]!r}", rule)
    notes.append("labels that are names are numbered in the order of classes")
    return np.array([known[str(name)] for name in present], np.int64)[places]


def _check_first_label(splits: Mapping[str, Split], settings: DataSettings) -> None:
    """Refuse labels 1..C of C classes: of another site's file 1..C-1 would pass, and mean something else."""
    labels = [split.labels for split in splits.values() if split.labels.dtype.kind in "iu"]
    if settings.first_label or not settings.classes.strip() or not labels:
        return
    least, largest = (
        min(int(part.min()) for part in labels),
        max(int(part.max()) for part in labels),
    )
    classes = settings.num_classes
    if least >= 1 and largest == classes:
        split = next(iter(splits.values()))
        rule = f"must be 0..{classes - 1}; if they count from 1: --set first-label=1"
        require_of(
            split, False, keys_of(split)[1], f"labels {least}..{largest} of {classes} classes", rule
        )


def _channels_last(split: Split, settings: DataSettings, notes: Notes) -> Split:
    """(N, C, H, W) as (N, H, W, C): where C is 1 or 3, or input-shape's channels, and the last axis is not."""
    images = split.images
    if images.ndim != 4 or isinstance(images, ImageFiles):
        return split
    second, last = images.shape[1], images.shape[3]
    stated = (
        (settings.shape[0],) if settings.input_shape.strip() and len(settings.shape) == 3 else ()
    )
    if last in (1, 3, *stated) or second not in (1, 3, *stated):
        return split
    notes.append(f"images {images.shape[1:]} are taken as (channels, height, width)")
    return replace(split, images=np.moveaxis(images, 1, -1))


def _scaled(splits: Mapping[str, Split], settings: DataSettings, notes: Notes) -> dict[str, Split]:
    """Pixels of any type as bytes, or as float32 on the scale 0..1; vectors as float32."""
    arrays = {
        key: split.images
        for key, split in splits.items()
        if not isinstance(split.images, ImageFiles)
    }
    wide = {
        key: images for key, images in arrays.items() if images.dtype not in (np.uint8, np.float32)
    }
    ranged = {
        key: images
        for key, images in arrays.items()
        if images.dtype != np.uint8 and images.ndim > 2
    }
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
    if whole := {key: images for key, images in wide.items() if key not in changed}:
        low, high = (
            min(int(a.min()) for a in whole.values()),
            max(int(a.max()) for a in whole.values()),
        )
        types = sorted({str(images.dtype) for images in whole.values()})
        dark = types == ["uint16"] and 255 < high <= DARK * 65535
        if dark and "train" in splits:  # of training alone: few other images may be dark
            split = splits["train"]
            raise nearly_black(f"{split.where}: {keys_of(split)[0]}: uint16", high, 65535)
        if types == ["uint16"] and high > 255:
            notes.append(f"uint16 is taken as 0..65535; the largest is {high}{range_hint(high)}")
            changed |= {key: on_scale(images, 0, 65535) for key, images in whole.items()}
        elif types != ["uint16"] and low >= 0 and 1 < high <= 255:
            notes.append(f"{' and '.join(types)} images of 0..{high} are taken as bytes, 0..255")
            changed |= {key: images.astype(np.uint8) for key, images in whole.items()}
        else:
            split = splits[next(iter(whole))]
            raise UnknownRange(
                f"{split.where}: {keys_of(split)[0]}: {' and '.join(types)}", low, high
            )
    return {
        key: replace(split, images=changed.get(key, split.images)) for key, split in splits.items()
    }


def _refuse_far(splits: Sequence[Split], settings: DataSettings) -> None:
    """Raise UnknownRange for floating-point pixels far from what mean and std say, such as 0..255 for 0..1."""
    extremes = [(float(split.images.min()), float(split.images.max())) for split in splits]  # type: ignore[union-attr]
    if not np.isfinite(extremes).all():
        return  # the check that every split passes names the image
    low, high = min(least for least, _ in extremes), max(largest for _, largest in extremes)
    means = settings.means if settings.mean.strip() else (0.5,)
    stds = settings.stds if settings.std.strip() else (0.5,)
    distances = [max(abs(low - mean), abs(high - mean)) / std for mean in means for std in stds]
    if min(distances) > FARTHEST:
        where = f"{splits[0].where}: {keys_of(splits[0])[0]}: {splits[0].images.dtype}"
        bytes_as_floats = low >= 0 and high <= 255
        raise UnknownRange(where, low, high, proposed=(0, 255) if bytes_as_floats else None)
