"""Images and labels as read from disk: checks, the split into train and test, and resizing to one shape."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import interpolate

from data.errors import DataError, Remedy
from data.extras import needed
from data.random_draws import generator
from data.readers.image_files import ImageFiles, decoded
from data.settings import DataSettings

FOLDS = 5
SPLITS = {
    "train": "train", "training": "train", "test": "test", "testing": "test",
    "val": "val", "valid": "val", "validation": "val",
}  # fmt: skip
"""What the splits are called, as folders or in a column."""
CHUNK = 2048
"""Images resized at a time: bounds the float copy."""


@dataclass(frozen=True)
class Split:
    """Train, test or validation data before they are brought to the input shape."""

    images: NDArray[np.generic] | ImageFiles
    """(N, H, W) or (N, H, W, C), uint8 or float32, or float32 vectors (N, F)."""
    labels: NDArray[np.generic]
    """(N,), whole numbers from 0."""
    where: str
    """File or folder that an error names."""
    key: str
    """train, test or val; empty where there is one split alone."""
    groups: NDArray[Any] | None = None
    """(N,): the subject that each sample is of, numbered from 0; None where samples belong together in no way."""
    sites: NDArray[np.int64] | None = None
    """(N,): the site that each sample is of, numbered from 0; None where there are none."""
    patients: NDArray[np.int64] | None = None
    """(N,): the patient that each sample is of, where samples are tested one by one: a patient may have samples of
    several classes. None where `groups` names the subjects, or where nobody is known."""

    @property
    def subjects(self) -> NDArray[Any] | None:
        """(N,): the subject or patient of each sample; None if unknown."""
        return self.patients if self.groups is None else self.groups

    def take(self, indices: NDArray[np.int64], key: str) -> "Split":
        """Some of the samples, in that order, as the split `key`."""
        images: NDArray[np.generic] | ImageFiles
        if isinstance(self.images, ImageFiles):
            images = self.images.only(indices)
        else:
            images = self.images[indices]
        return Split(
            images=images,
            labels=self.labels[indices],
            where=self.where,
            key=key,
            groups=None if self.groups is None else self.groups[indices],
            sites=None if self.sites is None else self.sites[indices],
            patients=None if self.patients is None else self.patients[indices],
        )

    def of_sites(
        self, sites: NDArray[np.int64] | None, patients: NDArray[np.int64] | None = None
    ) -> "Split":
        """The same samples with their sites and patients."""
        return replace(self, sites=sites, patients=patients)


@dataclass(frozen=True)
class Raw:
    """A data set as read."""

    train: Split
    test: Split
    val: Split | None = None
    notes: tuple[Remedy, ...] = field(default=(), kw_only=True)
    """What was changed to read it, a sentence each."""
    sites: tuple[str, ...] = field(default=(), kw_only=True)
    """The names of the splits' sites, by number."""
    input_columns: tuple[str, ...] = field(default=(), kw_only=True)
    """The names of the vectors' columns in order; empty for images, and where nothing names them."""
    medians: tuple[float, ...] = field(default=(), kw_only=True)
    """By which `missing = median` filled the vectors' columns, in order; empty under any other setting."""


@dataclass(frozen=True)
class Guess:
    """Proposed settings for data on disk."""

    settings: dict[str, str]
    """By key, as --set takes them."""
    notes: tuple[Remedy, ...] = ()
    """What a user has to know of how they are read, a sentence each."""


def checked(
    split: Split, shape: tuple[int, ...], classes: int
) -> tuple[NDArray[np.generic], NDArray[np.int64]]:
    """Inputs (N, *shape), uint8 or float32, and labels (N,), int64.

    Raises:
        DataError: what cannot be trained on, said in one sentence.
    """
    if isinstance(split.images, ImageFiles):
        sites = np.zeros_like(split.labels) if split.sites is None else split.sites
        groups = list(zip(sites.tolist(), split.labels.tolist(), strict=True))
        pixels = decoded(split.images, groups, split.where, training=split.key == "train")
        split = replace(split, images=pixels)
    check_form(split)
    images = split.images
    assert not isinstance(images, ImageFiles)
    images_key, _ = keys_of(split)
    labels_N = _checked_labels(split, classes)
    if images.dtype == np.float32:
        is_finite_N = np.isfinite(images).reshape(len(images), -1).all(axis=1)
        if not is_finite_N.all():
            first = int(np.argmin(is_finite_N))
            found = f"NaN or infinite pixel in image {first}"
            raise error_of(split, images_key, found, "pixels must be finite")
    try:
        inputs = bring_to(images, shape)
    except ValueError as error:
        raise DataError(f"{images_key}: {error}", where=split.where) from None
    return inputs, labels_N


def _checked_labels(split: Split, classes: int) -> NDArray[np.int64]:
    """(N,): the labels. Raises DataError for a type that is no integer, or a label that is none of the classes."""
    labels = split.labels
    _, key = keys_of(split)
    if labels.dtype.kind not in "iu":
        example = labels[0]
        if labels.dtype.kind == "f":
            example = labels[np.argmax(labels != np.floor(labels))]
        found = f"dtype {labels.dtype}, such as {example!s}"
        rule = "labels must be stored as whole numbers of an integer type"
        raise error_of(split, key, found, rule)
    labels_N = labels.astype(np.int64)
    is_outside_N = (labels_N < 0) | (labels_N >= classes)
    if is_outside_N.any():
        first = int(np.argmax(is_outside_N))
        found = f"label {labels_N[first]} of {classes} classes at index {first}"
        raise error_of(split, key, found, f"labels must be 0..{classes - 1}")
    return labels_N


def keys_of(split: Split) -> tuple[str, str]:
    """The names of images and labels in an npz file."""
    prefix = f"{split.key}_" if split.key else ""
    return f"{prefix}images", f"{prefix}labels"


def error_of(split: Split, key: str, value: str, rule: str) -> DataError:
    """The error about an array of a split, with file, array, value and rule."""
    return DataError(f"{key}: {value}: {rule}", where=split.where)


def check_form(split: Split) -> None:
    """Refuse types, shapes and lengths that cannot be trained on; no pixel is looked at.

    Raises:
        DataError: one of these, said in one sentence.
    """
    images, labels = split.images, split.labels
    images_key, labels_key = keys_of(split)
    if images.dtype not in (np.uint8, np.float32):
        rule = "must be uint8 images, or float32 images or vectors"
        raise error_of(split, images_key, f"dtype {images.dtype}", rule)
    axes = (3, 4) if images.dtype == np.uint8 else (2, 3, 4)
    if images.ndim not in axes or 0 in images.shape[1:]:
        rule = "must be images (N, H, W) or (N, H, W, C), or float32 vectors (N, F)"
        raise error_of(split, images_key, f"shape {images.shape}", rule)
    if labels.ndim != 1:
        raise error_of(split, labels_key, f"shape {labels.shape}", "must be (N,)")
    check_lengths(split)
    check_subjects(split)


def check_lengths(split: Split) -> None:
    """Raise DataError for images and labels of different lengths, or for none."""
    images, labels = len(split.images), len(split.labels)
    images_key, labels_key = keys_of(split)
    if images != labels:
        rule = f"{images_key} and {labels_key} must be equally long"
        raise error_of(split, images_key, f"{images} images and {labels} labels", rule)
    if images == 0:
        raise error_of(split, images_key, "no image", "must hold at least one")


def check_subjects(split: Split) -> None:
    """Raise DataError for subjects that are no whole numbers, or not one per sample."""
    subjects = split.subjects
    if subjects is None:
        return
    if subjects.dtype.kind not in "iu" or subjects.shape != split.labels.shape:
        found = f"dtype {subjects.dtype}, shape {subjects.shape}"
        rule = "must be whole numbers (N,), one a sample"
        raise error_of(split, f"{split.key}_subjects", found, rule)


def numbered(splits: Mapping[str, Split]) -> dict[str, Split]:
    """The splits of one file, by key, with their subjects numbered from 0; no two splits share a number.

    Where the test split names its subjects, they are tested as one, and so are those of the other splits. Where it
    does not, samples are tested one by one, and the subjects of the others are their `patients`.

    Raises:
        DataError: a subject that is in two splits, or one with samples of several classes that is tested as one.
    """
    changed = dict(splits)
    names_before: dict[str, NDArray[np.generic]] = {}
    start = 0
    for key in ("test", "train", "val"):  # test first: its numbers go into the data's hash
        split = splits.get(key)
        if split is None or split.groups is None:
            continue
        check_subjects(split)
        names, first_sample_S, subject_N = np.unique(
            split.groups, return_index=True, return_inverse=True
        )
        for other, other_names in names_before.items():
            shared = np.intersect1d(names, other_names)
            if shared.size:
                rule = f"is in {other}_subjects too: a subject must be in one split alone"
                raise error_of(split, f"{key}_subjects", str(shared[0]), rule)
        names_before[key] = names
        numbers_N = subject_N.astype(np.int64) + start
        start += len(names)
        if "test" not in names_before:
            changed[key] = replace(split, groups=None, patients=numbers_N)
            continue
        label_S = split.labels[first_sample_S]
        torn = np.flatnonzero(split.labels != label_S[subject_N])
        if torn.size:
            subject = names[subject_N[torn[0]]]
            rule = "has samples of several classes, and a subject is tested as one"
            raise error_of(split, f"{key}_subjects", str(subject), rule)
        changed[key] = replace(split, groups=numbers_N)
    return changed


def stratified(
    labels_N: NDArray[np.int64], where: str
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Indices for training (80 %) and testing in random order, by class, with the seed 0 that FedBN's code has.

    Raises:
        DataError: a class with a single sample, a fifth smaller than the number of classes, or scikit-learn is not
            installed.
    """
    _, samples_C = np.unique(labels_N, return_counts=True)
    samples, classes = len(labels_N), len(samples_C)
    if samples_C.min() < 2:
        number = np.count_nonzero(samples_C < 2)
        rule = f"{number} of {classes} classes have a single sample: must be 2 or more, to train and to test"
        raise DataError(f"cannot be split 80 to 20 by class: {rule}", where=where)
    if math.ceil(samples / 5) < classes:
        rule = f"{samples} samples of {classes} classes: a fifth must have one sample of each class"
        raise DataError(f"cannot be split 80 to 20 by class: {rule}", where=where)
    selection = needed("sklearn.model_selection", "simulation", where, verb="splits")
    split = selection.StratifiedShuffleSplit(
        n_splits=1,
        test_size=0.2,
        random_state=0,
    )
    train, test = next(split.split(np.zeros(samples), labels_N))
    return train.astype(np.int64), test.astype(np.int64)


def fifth(
    labels_N: NDArray[np.int64],
    settings: DataSettings,
    where: str,
    sites_N: NDArray[np.int64] | None = None,
    patients_N: NDArray[np.int64] | None = None,
) -> NDArray[np.bool_]:
    """(N,): True for a fifth of each site's patients (samples, without), which `test-fold` says, drawn by `split-seed`.

    Patients are split class by class, each by the class of most of its samples and the site of its first; the only
    patient of a class at a site trains. Of fewer than five, one of so many parts is for testing.

    Raises:
        DataError: a site, or all, of one patient or sample.
    """
    if settings.test_fold >= FOLDS:
        rule = f"must be 0..{FOLDS - 1}, as nothing says who tests"
        raise DataError(f"test-fold = {settings.test_fold}: {rule}", where=where)
    # Units (U) are what is drawn: patients, or samples where nothing names the patients.
    if patients_N is None:
        unit_N = np.arange(len(labels_N))
        label_U = labels_N
    else:
        patients, unit_N = np.unique(patients_N, return_inverse=True)
        counts_UC = np.zeros((len(patients), int(labels_N.max()) + 1), np.int64)
        np.add.at(counts_UC, (unit_N, labels_N), 1)
        label_U = counts_UC.argmax(axis=1)
    _, first_sample_U = np.unique(unit_N, return_index=True)
    all_at_one_site = np.zeros_like(labels_N)
    site_N = all_at_one_site if sites_N is None else sites_N
    site_U = site_N[first_sample_U]

    draws = generator(settings.split_seed, "who tests")
    tested = []
    for site in np.unique(site_U):
        is_here_U = site_U == site
        of_class = [np.flatnonzero(is_here_U & (label_U == label)) for label in np.unique(label_U)]
        shuffled = [draws.permutation(units) for units in of_class if len(units) > 1]
        if not shuffled:  # one unit of each class: the classes cannot be kept apart
            shuffled.append(draws.permutation(np.concatenate(of_class)))
        order = np.concatenate(shuffled)
        if len(order) < 2:
            what = "sample" if patients_N is None else "patient"
            who = "there is" if sites_N is None else f"site {site} has"
            raise DataError(f"{who} one {what} alone: some must train and others test", where=where)
        # Every fifth of an order that goes class by class has its share of each class.
        parts = min(FOLDS, len(order))
        tested.append(order[settings.test_fold % parts :: parts])
    chosen: NDArray[np.bool_] = np.isin(unit_N, np.concatenate(tested))
    return chosen


def bring_to(images: NDArray[np.generic], shape: tuple[int, ...]) -> NDArray[np.generic]:
    """Images (N, H, W) or (N, H, W, C) as (N, *shape), channels first, or vectors (N, F) as they are; dtype is kept.

    Grey becomes RGB by repetition, RGB becomes grey by luma (ITU-R 601, as PIL does it), sizes change bilinearly with
    antialiasing.

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


def _luma(images: NDArray[np.generic]) -> NDArray[np.generic]:
    """(N, H, W, 3) as grey images (N, H, W, 1)."""
    if images.dtype != np.uint8:
        shares_3 = np.array([0.299, 0.587, 0.114])  # ITU-R BT.601, as PIL
        grey_NHW = images.astype(np.float64) @ shares_3
        return np.asarray(grey_NHW[..., None], images.dtype)
    # PIL's own integers: the same shares times 2^16, and half of that to round.
    scaled_shares_3 = np.array([19595, 38470, 7471], np.uint32)
    scaled_NHW = images.astype(np.uint32) @ scaled_shares_3
    rounded_NHW = (scaled_NHW + 0x8000) >> 16
    grey_bytes_NHW = np.asarray(rounded_NHW, np.uint8)
    return grey_bytes_NHW[..., None]


def _resize(images: NDArray[np.generic], height: int, width: int) -> NDArray[np.generic]:
    """(N, C, H, W) as (N, C, height, width)."""
    if images.shape[2:] == (height, width):
        return images
    pixels = torch.from_numpy(images.astype(np.float32))
    resized = interpolate(
        pixels, (height, width), mode="bilinear", align_corners=False, antialias=True
    )
    if images.dtype == np.uint8:
        rounded = np.rint(resized.numpy())
        return np.asarray(np.clip(rounded, 0, 255), np.uint8)
    return np.asarray(resized.numpy(), images.dtype)
