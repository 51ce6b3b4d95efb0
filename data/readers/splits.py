"""What every reader returns, and the one place that says who trains and who tests.

A reader of one's own files makes a `Manifest`: the inputs, and a column a role of what the files say of each sample.
`divided` puts the samples on their sides, which are `Split`s.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from data.errors import DataError, Remedy, SetOption
from data.packages import needed
from data.partitions import generator
from data.readers.array_types import Array, Booleans, Integers, Shape, Texts
from data.readers.image_files import ImageFiles
from data.readers.rows import all_together
from data.settings import DataSettings
from data.text import is_whole, name_list, printable

FOLDS = 5
SPLITS = {
    "train": "train", "training": "train", "test": "test", "testing": "test",
    "val": "val", "valid": "val", "validation": "val",
}  # fmt: skip
"""What the splits are called, as folders or in a column."""


@dataclass(frozen=True)
class Split:
    """Train, test or validation data before they are brought to the input shape."""

    images: Array | ImageFiles
    """(N, H, W) or (N, H, W, C), uint8 or float32, or float32 vectors (N, F)."""
    labels: Array
    """(N,), whole numbers from 0."""
    where: str
    """File or folder that an error names."""
    key: str
    """train, test or val; empty where there is one split alone."""
    subjects: Array | None = None
    """(N,): the subject that each sample is of, numbered from 0; None where nobody knows."""
    sites: Integers | None = None
    """(N,): the site that each sample is of, numbered from 0; None where there are none."""
    tested_as_one: bool = False
    """Whether all samples of a subject, which are then of one class, are tested together."""

    def named(self, what: str) -> str:
        """Return what an npz file calls images, labels or subjects of the split."""
        return f"{self.key}_{what}" if self.key else what

    def error(self, what: str, value: str, rule: str) -> DataError:
        """Return the error about images, labels or subjects: file, array, value and rule."""
        return DataError(f"{self.named(what)}: {value}: {rule}", where=self.where)

    def take(self, indices: Integers, key: str) -> "Split":
        """Return some of the samples, in that order, as the split `key`."""
        images: Array | ImageFiles
        if isinstance(self.images, ImageFiles):
            images = self.images.only(indices)
        else:
            images = self.images[indices]
        return replace(
            self,
            images=images,
            labels=self.labels[indices],
            key=key,
            subjects=None if self.subjects is None else self.subjects[indices],
            sites=None if self.sites is None else self.sites[indices],
        )


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

    @staticmethod
    def of(splits: Mapping[str, Split], **stated: Any) -> "Raw":
        """Return a data set of these splits, by key, with its other fields as stated."""
        return Raw(splits["train"], splits["test"], splits.get("val"), **stated)

    @property
    def splits(self) -> dict[str, Split]:
        """The splits that there are, by key."""
        named = {"train": self.train, "test": self.test, "val": self.val}
        return {key: split for key, split in named.items() if split is not None}


@dataclass(frozen=True)
class Guess:
    """Proposed settings for data on disk."""

    settings: dict[str, str]
    """By key, as --set takes them."""
    notes: tuple[Remedy, ...] = ()
    """What a user has to know of how they are read, a sentence each."""


@dataclass(frozen=True)
class Manifest:
    """All samples of one's own files in one order, before anything says who trains and who tests."""

    where: str
    """File or folder that an error names."""
    inputs: Array | ImageFiles
    """Vectors (N, F), NaN where `missing = median` fills a gap; or images of any size."""
    columns: Mapping[str, Sequence[str]]
    """By role (label, split, fold, site, patient, subject) a text a sample; none is empty."""
    names: Mapping[str, str]
    """By role what a sentence calls it: `column NAME`, `DICOM element KEYWORD`."""
    classes: Sequence[str]
    """The classes that the labels are of, in the order to propose."""
    notes: tuple[Remedy, ...] = ()
    """What was left out, and how the files are read, a sentence each."""
    input_columns: tuple[str, ...] = ()
    """The names of the vectors' columns."""

    def of(self, role: str) -> Sequence[str]:
        """Return the texts of a role; none where nothing has it."""
        return self.columns.get(role, ())

    @property
    def patients(self) -> str:
        """The role that names each sample's patient: patient, else subject; empty for none."""
        return next((role for role in ("patient", "subject") if self.of(role)), "")

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites' names in order."""
        return tuple(sorted(set(self.of("site"))))

    @property
    def groups(self) -> list[tuple[str, str]]:
        """Each sample's site and label, over which a sample of the images is spread."""
        labels = self.of("label")
        return list(zip(self.of("site") or labels, labels, strict=True))

    def error(self, role: str, value: object, rule: str) -> DataError:
        """Return the error about a text of a role."""
        return DataError(f"{self.names[role]}: {str(value)[:80]!r}: {rule}", where=self.where)

    @property
    def meaning(self) -> list[str]:
        """Who the clients are, whose the samples are and who tests, a sentence each."""
        sentences = []
        if self.sites:
            sentences.append(f"the {len(self.sites)} sites of {self.names['site']} are the clients")
        if self.patients:
            number = len(set(self.of(self.patients)))
            what = self.names[self.patients]
            sentences.append(f"{number} patients by {what}, each on one side alone")
        if not self.of("split") and not self.of("fold"):
            who = "nothing says who tests: a fifth does, which test-fold chooses"
            sentences.append(who)
        return sentences


def divided(
    manifest: Manifest, class_names: tuple[str, ...], shape: Shape, settings: DataSettings
) -> Raw:
    """Return the samples on their sides, the labels as places in `class_names`, the images to be of `shape`.

    Raises:
        DataError: a label that is no class, or what `sides` refuses.
    """
    inputs = manifest.inputs
    if isinstance(inputs, ImageFiles):
        if len(shape) != 3 or shape[0] not in (1, 3):
            rule = "must be 1xHEIGHTxWIDTH or 3xHEIGHTxWIDTH for images"
            raise DataError(f"input-shape = {settings.input_shape!r}: {rule}", where=manifest.where)
        inputs = replace(inputs, size=shape, settings=settings)
    number = {name: label for label, name in enumerate(class_names)}
    for label in manifest.of("label"):
        if label not in number:
            rule = f"must be one of classes = {printable(name_list(class_names, ', '))}"
            raise manifest.error("label", label, rule)
    labels_N = np.array([number[label] for label in manifest.of("label")], np.int64)
    role = manifest.patients
    everything = Split(
        inputs,
        labels_N,
        manifest.where,
        "",
        subjects=numbered(manifest.of(role)) if role else None,
        sites=numbered(manifest.of("site")) if manifest.sites else None,
        tested_as_one=role == "subject" and is_plain(manifest, settings),
    )
    side_N = sides(manifest, everything, settings)
    splits = {}
    for key in np.unique(side_N).tolist():
        splits[key] = everything.take(np.flatnonzero(side_N == key), key)
    return Raw.of(
        splits,
        notes=manifest.notes,
        sites=manifest.sites,
        input_columns=manifest.input_columns,
    )


def numbered(texts: Sequence[str]) -> Integers:
    """Return (N,): the place of each text in the sorted different texts."""
    _, numbers_N = np.unique(np.array(texts), return_inverse=True)
    return numbers_N.astype(np.int64)


def is_plain(manifest: Manifest, settings: DataSettings) -> bool:
    """Return whether a table of numbers has labels and perhaps subjects alone, and its first fifth tests."""
    if isinstance(manifest.inputs, ImageFiles) or manifest.columns.keys() - {"label", "subject"}:
        return False
    return not settings.test_fold


def sides(manifest: Manifest, everything: Split, settings: DataSettings) -> Texts:
    """Return (N,): train, test or val, by the role split, by the fold that `test-fold` names, or a fifth tests.

    Raises:
        DataError: a patient on two sides, a site without samples on one, or a text that says no side.
    """
    side_N = stated_sides(manifest, settings)
    if side_N is None:
        is_test_N = drawn(manifest, everything, settings)
        side_N = np.where(is_test_N, "test", "train")
    subjects_N = everything.subjects
    if subjects_N is not None:
        _, first_row_P = np.unique(subjects_N, return_index=True)
        expected_N = side_N[first_row_P][subjects_N.astype(np.int64)]
        torn = np.flatnonzero(side_N != expected_N)
        if torn.size:
            row = int(torn[0])
            rule = f"is in {expected_N[row]} and {side_N[row]}: a patient must be on one side alone"
            raise manifest.error(manifest.patients, manifest.of(manifest.patients)[row], rule)
    site_N = np.array(manifest.of("site") or [""] * len(side_N))
    for site in np.unique(site_N).tolist():
        there = side_N[site_N == site]
        missing = sorted({"train", "test"}.difference(there.tolist()))
        if missing and site:
            rule = f"has {len(there)} samples and none to {missing[0]}"
            raise manifest.error("site", site, rule)
        if missing:
            present = ", ".join(np.unique(there).tolist())
            rule = f"there are samples for {present}, and none for {missing[0]}"
            raise DataError(rule, where=manifest.where, remedy=all_together(settings))
    return side_N


def stated_sides(manifest: Manifest, settings: DataSettings) -> Texts | None:
    """Return (N,): train, test or val by the roles split and fold; None where neither is there. Raises DataError."""
    split, fold = manifest.of("split"), manifest.of("fold")
    if split and fold:
        remedy = (
            SetOption("columns", "fold="),
            " or ",
            SetOption("columns", "split="),
            " leaves one out",
        )
        names = f"{manifest.names['split']} and {manifest.names['fold']}"
        raise DataError(f"{names} both say who tests", where=manifest.where, remedy=remedy)
    for text in split:
        if text.lower() not in SPLITS:
            rule = f"must be one of {', '.join(SPLITS)}"
            error = manifest.error("split", text, rule)
            error.remedy = all_together(settings)
            raise error
    if split:
        return np.array([SPLITS[text.lower()] for text in split])
    if not fold:
        return None
    is_test_N = np.array(fold) == str(settings.test_fold)
    if not is_test_N.any():
        there = ", ".join(sorted(set(fold)))
        error = manifest.error("fold", there, f"none is test-fold = {settings.test_fold}")
        if is_whole(fold[0]):
            error.remedy = (SetOption("test-fold", fold[0]),)
        raise error
    return np.where(is_test_N, "test", "train")


def drawn(manifest: Manifest, everything: Split, settings: DataSettings) -> Booleans:
    """Return (N,): whether each sample tests, where nothing says so. Raises DataError."""
    subjects_N = None if everything.subjects is None else everything.subjects.astype(np.int64)
    if not is_plain(manifest, settings):
        labels_N = everything.labels.astype(np.int64)
        return fifth(labels_N, settings, manifest.where, everything.sites, subjects_N)
    # By the labels' names, so that the split does not depend on the order of `classes`.
    labels_N = numbered(manifest.of("label"))
    if subjects_N is None:
        _, tested = stratified(labels_N, manifest.where)
        return np.isin(np.arange(len(labels_N)), tested)
    _, first_row_S = np.unique(subjects_N, return_index=True)
    label_S = labels_N[first_row_S]
    torn = np.flatnonzero(labels_N != label_S[subjects_N])
    if torn.size:
        rule = "has rows of several classes, and a subject is tested as one"
        raise manifest.error("subject", manifest.of("subject")[torn[0]], rule)
    if len(label_S) < 2:
        rule = f"{manifest.names['subject']}: names one subject; some must train and others test"
        raise DataError(rule, where=manifest.where)
    return np.isin(subjects_N, folds(label_S, "csv")[0])


def folds(labels: Integers, name: str) -> list[Integers]:
    """Return the subjects in five parts with nearly equal shares of each label; part of the data, so no run's seed."""
    draws = generator(0, f"abide {name}: folds")
    order = np.concatenate(
        [draws.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels)]
    )
    # Every fifth of an order that goes label by label has its share of each label.
    return [np.sort(order[fold::FOLDS]) for fold in range(FOLDS)]


def stratified(labels_N: Integers, where: str) -> tuple[Integers, Integers]:
    """Return indices for training (80 %) and testing in random order, by class, with the seed 0 that FedBN's code has.

    Raises:
        DataError: a class with a single sample, a fifth smaller than the number of classes, or scikit-learn is not
            installed.
    """
    _, samples_C = np.unique(labels_N, return_counts=True)
    samples, classes = len(labels_N), len(samples_C)
    rule = ""
    if samples_C.min() < 2:
        rule = f"{np.count_nonzero(samples_C < 2)} of {classes} classes have a single sample: must be 2 or more"
    elif math.ceil(samples / FOLDS) < classes:
        rule = f"{samples} samples of {classes} classes: a fifth must have one sample of each class"
    if rule:
        raise DataError(f"cannot be split 80 to 20 by class: {rule}", where=where)
    selection = needed("sklearn.model_selection", "simulation", where, verb="splits")
    split = selection.StratifiedShuffleSplit(n_splits=1, test_size=0.2, random_state=0)
    train, test = next(split.split(np.zeros(samples), labels_N))
    return train.astype(np.int64), test.astype(np.int64)


def fifth(
    labels_N: Integers,
    settings: DataSettings,
    where: str,
    sites_N: Integers | None = None,
    patients_N: Integers | None = None,
) -> Booleans:
    """Return (N,): True for a fifth of each site's patients (samples, without), which `test-fold` says.

    Patients are split class by class, each by the class of most of its samples and the site of its first; the only
    patient of a class at a site trains. Of fewer than five, one of so many parts is for testing.

    Raises:
        DataError: a site, or all, of one patient or sample.
    """
    if settings.test_fold >= FOLDS:
        rule = f"must be 0..{FOLDS - 1}, as nothing says who tests"
        raise DataError(f"test-fold = {settings.test_fold}: {rule}", where=where)
    # Units (U) are what is drawn: patients, or samples where nothing names the patients.
    units_N = np.arange(len(labels_N)) if patients_N is None else patients_N
    _, first_sample_U, unit_N = np.unique(units_N, return_index=True, return_inverse=True)
    label_U = labels_N
    if patients_N is not None:
        counts_UC = np.zeros((len(first_sample_U), int(labels_N.max()) + 1), np.int64)
        np.add.at(counts_UC, (unit_N, labels_N), 1)
        label_U = counts_UC.argmax(axis=1)
    site_N = np.zeros_like(labels_N) if sites_N is None else sites_N
    site_U = site_N[first_sample_U]

    draws = generator(0, "who tests")
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
    return np.isin(unit_N, np.concatenate(tested))
