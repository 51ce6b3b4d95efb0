"""What every reader returns, and the one place that says who trains and who tests.

A reader of one's own files makes a `Manifest`: the inputs, and a column a role of what the files say of each sample.
`divided` puts the samples on their sides, which are `Split`s.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from data.errors import DataError, Remedy, SetOption
from data.partitions import generator
from data.readers.array_types import Array, Booleans, Integers, Texts
from data.readers.image_files import ImageFiles
from data.readers.rows import LABEL, check_labels, classes_of, cure_of, left_out, names_of_classes
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
    """(N,): the subject (patient) that each sample is of, numbered from 0; None where nobody knows."""
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
        return replace(
            self,
            images=self.images[indices],
            labels=self.labels[indices],
            key=key,
            subjects=None if self.subjects is None else self.subjects[indices],
            sites=None if self.sites is None else self.sites[indices],
        )


@dataclass(frozen=True)
class Raw:
    """A data set as read."""

    splits: Mapping[str, Split]
    """By key: train, test and perhaps val."""
    notes: tuple[Remedy, ...] = ()
    """What was changed to read it, a sentence each."""
    sites: tuple[str, ...] = ()
    """The names of the splits' sites, by number."""
    input_columns: tuple[str, ...] = ()
    """The names of the vectors' columns in order; empty for images, and where nothing names them."""
    medians: tuple[float, ...] = ()
    """By which `missing = median` filled the vectors' columns, in order; empty under any other setting."""

    @property
    def train(self) -> Split:
        """The training data."""
        return self.splits["train"]

    @property
    def test(self) -> Split:
        """The test data."""
        return self.splits["test"]


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
    """By role (label, split, fold, site, patient) a text a sample; none is empty."""
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
    def sites(self) -> tuple[str, ...]:
        """The sites' names in order."""
        return tuple(sorted(set(self.of("site"))))

    def error(self, role: str, value: object, rule: str) -> DataError:
        """Return the error about a text of a role."""
        return DataError(f"{self.names[role]}: {str(value)[:80]!r}: {rule}", where=self.where)

    def meaning(self, is_one_of_several: bool) -> list[str]:
        """Return who the clients are, whose the samples are and who tests, a sentence each.

        Of several data sets each is a client, whatever sites it names.
        """
        sentences = []
        if self.sites and is_one_of_several:
            sentences.append(f"each data set is a client: {self.names['site']} makes no others")
        elif self.sites:
            sentences.append(f"the {len(self.sites)} sites of {self.names['site']} are the clients")
        if self.of("patient"):
            patients = f"{len({*self.of('patient')})} patients by {self.names['patient']}"
            sentences.append(f"{patients}, each on one side alone")
        if not self.of("split") and not self.of("fold"):
            sentences.append("nothing says who tests: a fifth does, which test-fold chooses")
        return sentences


def manifest_of_rows(
    where: str,
    inputs: Array | ImageFiles,
    columns: Mapping[str, Sequence[str]],
    names: Mapping[str, str],
    settings: DataSettings,
    dropped: Sequence[str] = (),
    notes: Sequence[Remedy] = (),
    classes: Sequence[str] = (),
    input_columns: tuple[str, ...] = (),
) -> Manifest:
    """Return the manifest of rows that have a label each.

    Args:
        where: File or folder that an error names.
        inputs: One a row.
        columns: By role a text a row.
        names: By role what a sentence calls it.
        settings: Of these, `classes` counts.
        dropped: What was missing in each row that is left out.
        notes: How the files are read, a sentence each.
        classes: All classes in order, where the file has a list of them.
        input_columns: The names of the vectors' columns.

    Raises:
        DataError: labels of one class, or that are no classes.
    """
    labels = columns[LABEL]
    check_labels(where, names[LABEL], labels, {*classes, *names_of_classes(settings)})
    return Manifest(
        where,
        inputs,
        columns,
        names,
        classes=classes or classes_of(labels),
        notes=(*left_out(dropped), *notes),
        input_columns=input_columns,
    )


def divided(manifest: Manifest, settings: DataSettings) -> Raw:
    """Return the samples on their sides, the labels as places in `classes`, the images to be of `input-shape`.

    Raises:
        DataError: a label that is no class, or what `sides` refuses.
    """
    inputs, class_names, shape = manifest.inputs, settings.class_names, settings.shape
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
    everything = Split(
        inputs,
        np.array([number[label] for label in manifest.of("label")], np.int64),
        manifest.where,
        "",
        subjects=numbered(manifest.of("patient")) if manifest.of("patient") else None,
        sites=numbered(manifest.of("site")) if manifest.sites else None,
    )
    side_N = sides(manifest, everything, settings)
    return Raw(
        {
            key: everything.take(np.flatnonzero(side_N == key), key)
            for key in np.unique(side_N).tolist()
        },
        notes=manifest.notes,
        sites=manifest.sites,
        input_columns=manifest.input_columns,
    )


def numbered(texts: Sequence[str]) -> Integers:
    """Return (N,): the place of each text in the sorted different texts."""
    numbers_N: Integers = np.unique(np.array(texts), return_inverse=True)[1].astype(np.int64)
    return numbers_N


def sides(manifest: Manifest, everything: Split, settings: DataSettings) -> Texts:
    """Return (N,): train, test or val, by the role split, by the fold that `test-fold` names, or a fifth tests.

    Raises:
        DataError: a patient on two sides, a site without samples on one, or a text that says no side.
    """
    side_N = stated_sides(manifest, settings)
    if side_N is None:
        if settings.test_fold >= FOLDS:
            rule = f"must be 0..{FOLDS - 1}, as nothing says who tests"
            raise DataError(f"test-fold = {settings.test_fold}: {rule}", where=manifest.where)
        side_N = np.where(fifth(everything, settings, manifest.sites), "test", "train")
    subjects_N = everything.subjects
    if subjects_N is not None:
        _, first_row_P = np.unique(subjects_N, return_index=True)
        expected_N = side_N[first_row_P][subjects_N.astype(np.int64)]
        torn = np.flatnonzero(side_N != expected_N)
        if torn.size:
            row = int(torn[0])
            rule = f"is in {expected_N[row]} and {side_N[row]}: a patient must be on one side alone"
            raise manifest.error("patient", manifest.of("patient")[row], rule)
    site_N = np.array(manifest.of("site") or [""] * len(side_N))
    for site in np.unique(site_N).tolist():
        there = side_N[site_N == site]
        missing = sorted({"train", "test"}.difference(there.tolist()))
        if missing:
            present = ", ".join(np.unique(there).tolist())
            rule = f"there are samples for {present}, and none for {missing[0]}"
            if site:
                raise manifest.error("site", site, rule)
            raise DataError(rule, where=manifest.where, remedy=all_together(settings))
    return side_N


def all_together(settings: DataSettings) -> Remedy:
    """Return what to do where the data's own splits do not say who tests."""
    return cure_of(settings, {"split": ""}), " puts all together, and a fifth is for testing"


def stated_sides(manifest: Manifest, settings: DataSettings) -> Texts | None:
    """Return (N,): train, test or val by the roles split and fold; None where neither is there. Raises DataError."""
    split, fold = manifest.of("split"), manifest.of("fold")
    if split and fold:
        names = f"{manifest.names['split']} and {manifest.names['fold']}"
        remedy = (cure_of(settings, {"fold": ""}), " leaves one out")
        raise DataError(f"{names} both say who tests", where=manifest.where, remedy=remedy)
    for text in split:
        if text.lower() not in SPLITS:
            rule = f"must be one of {', '.join(SPLITS)}"
            error = manifest.error("split", text, rule)
            error.remedy = all_together(settings)
            raise error
    if split:
        if settings.test_fold:
            rule = f"has no effect, as {manifest.names['split']} says who tests"
            raise DataError(f"test-fold = {settings.test_fold}: {rule}", where=manifest.where)
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


def fifth(split: Split, settings: DataSettings, sites: Sequence[str] = ()) -> Booleans:
    """Return (N,): True for a fifth of each site's patients (samples, without), which `test-fold` says.

    Patients are split class by class, each by the class of most of its samples and the site of its first; the only
    patient of a class at a site trains. Of fewer than five, one of so many parts is for testing. `sites` are the names
    of the split's sites, by number.

    Raises:
        DataError: a site, or all, of one patient or sample.
    """
    labels_N = split.labels.astype(np.int64)
    # Units (U) are what is drawn: patients, or samples where nothing names the patients.
    units_N = np.arange(len(labels_N)) if split.subjects is None else split.subjects
    _, first_sample_U, unit_N = np.unique(units_N, return_index=True, return_inverse=True)
    label_U = labels_N
    if split.subjects is not None:
        counts_UC = np.zeros((len(first_sample_U), int(labels_N.max()) + 1), np.int64)
        np.add.at(counts_UC, (unit_N, labels_N), 1)
        label_U = counts_UC.argmax(axis=1)
    site_N = np.zeros_like(labels_N) if split.sites is None else split.sites
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
            what = "sample" if split.subjects is None else "patient"
            who = "there is" if split.sites is None else f"site {sites[site]} has"
            rule = f"{who} one {what} alone: some must train and others test"
            raise DataError(rule, where=split.where)
        # Every fifth of an order that goes class by class has its share of each class.
        parts = min(FOLDS, len(order))
        tested.append(order[settings.test_fold % parts :: parts])
    return np.isin(unit_N, np.concatenate(tested))
