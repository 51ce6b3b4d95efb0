"""Checks for data problems that no score shows: duplicates, empty classes, constant images.

`refuse_untrainable` raises where no training makes sense. `warnings_of` returns a sentence for everything with which a
run can go on. `fedskew data check`, `data show`, `run` and `select` print them, and a ServerApp that flwr starts does.
"""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data.dataset import Dataset
from data.errors import DataError
from data.federation import Federation
from data.readers.catalog import is_own, is_sites, members
from data.readers.image_files import ImageFiles
from data.readers.input_columns import ORDER_COUNTS
from data.readers.user_data import input_columns, path_of
from data.settings import DataSettings

LISTED = 5
"""Names that a sentence lists; of more it gives the number."""
MOST_TESTS = 4096
"""Test samples that are looked for in the training set."""
MOST_TRAINED, MOST_BYTES = 1_000_000, 2**30
"""Training samples, and bytes of them, that are hashed: about two seconds of work."""
CHUNK = 1024
"""Images looked at together: bounds the memory."""
LARGE_NUMBER = 100.0
"""Size from which a normalized number of a table makes training diverge; standardized ones rarely exceed 10."""
MOST_LOOKS = 2
"""Looks that a process keeps."""


@dataclass(frozen=True)
class Look:
    """The findings of a bounded check of the samples."""

    refusal: str
    """What makes any training on them senseless; empty for nothing."""
    warnings: list[str]
    """What is odd about them beside, a sentence each."""


# Kept by what the samples are and not by the data set, which would stay in memory with it.
_looks: dict[tuple[str, bool], Look] = {}


def warnings_of(settings: DataSettings, federation: Federation) -> list[str]:
    """Return a sentence for everything that is odd about the data and does not stop a run.

    Of data sets that come with FedSkew and between sites only the classes and the subjects are looked at.
    """
    if is_sites(settings.dataset):
        return []
    found = [*_of_classes(federation), *_of_subjects(settings, federation), *_of_columns(settings)]
    if samples_are_compared(settings):
        found += of_samples(federation.dataset)
    return found


def _of_columns(settings: DataSettings) -> Iterator[str]:
    """Yield a sentence for vectors of several files of which one does not name its columns."""
    names = members(settings.dataset)
    own = [name for name in names if is_own(name)]
    if not own or len(names) < 2 or len(settings.shape) != 1:
        return
    for name in own:
        try:
            columns = input_columns(name, settings)
        except DataError:  # there is no such file any more: the run reads a cached copy
            continue
        if not columns:
            yield f"{path_of(name, settings)}: {ORDER_COUNTS}: it must be that of the other files"


def refuse_untrainable(settings: DataSettings, federation: Federation) -> None:
    """Raise DataError, one sentence, for data with which no training makes sense.

    That is one class alone, training samples that are all the same, and a test set of images that are all in the
    training set too. Rows of numbers may repeat by nature, so that of these it is a warning.
    """
    if is_sites(settings.dataset):
        return
    trained_C = federation.counts_KC.sum(axis=0)
    if np.count_nonzero(trained_C) == 1:
        name = federation.dataset.class_names[int(trained_C.argmax())]
        rule = "a model that always answers so is right, and there is nothing to learn"
        raise DataError(
            f"all {trained_C.sum()} training samples are of class {name}: {rule}",
            where=settings.dataset,
        )
    if samples_are_compared(settings):
        refuse_copies(federation.dataset)


def refuse_copies(data: Dataset) -> None:
    """Raise DataError where all training samples are the same, or all test images are training images."""
    refusal = look_at(data).refusal
    if refusal:
        raise DataError(refusal, where=data.name)


def samples_are_compared(settings: DataSettings) -> bool:
    """Return whether some of the data are a user's own, and their test set is tested on.

    With evaluate-on = validation the samples that are tested on are part of the training set by design.
    """
    return settings.evaluate_on == "test" and any(map(is_own, members(settings.dataset)))


def _of_classes(federation: Federation) -> Iterator[str]:
    """Yield a sentence for classes without samples: in both sets, in training, or in the test set."""
    data = federation.dataset
    trained_C = federation.counts_KC.sum(axis=0)
    test_labels = data.test.labels[federation.global_test]
    tests_C = np.bincount(test_labels, minlength=data.num_classes)

    def named(labels: NDArray[np.intp]) -> str:
        return listed([data.class_names[label] for label in labels])

    nowhere = np.flatnonzero((trained_C == 0) & (tests_C == 0))
    if len(nowhere):
        yield f"nobody has a sample of {named(nowhere)}, which classes names"
    untrained = np.flatnonzero((trained_C == 0) & (tests_C > 0))
    if len(untrained):
        count = tests_C[untrained].sum()
        yield f"{named(untrained)}: {count} test samples and no training sample, so that no model can learn it"
    untested = np.flatnonzero((trained_C > 0) & (tests_C == 0))
    if len(untested):
        count = trained_C[untested].sum()
        yield f"{named(untested)}: {count} training samples and no test sample, so that no number measures it"


def _of_subjects(settings: DataSettings, federation: Federation) -> Iterator[str]:
    """Yield a sentence where a partition gives the samples of one subject to several."""
    groups_N = federation.dataset.train.subjects
    if groups_N is None:
        return
    if any(map(is_own, members(settings.dataset))):
        yield from _of_single_subjects(federation, groups_N)
    # The server's hold-out counts as one more holder, beside the clients.
    parts = [*federation.train_indices, federation.holdout_indices]
    holder_D = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    subject_D = groups_N[np.concatenate(parts)]
    pairs = np.unique(np.stack([subject_D, holder_D]), axis=1)
    subject_S, holders_S = np.unique(pairs[0], return_counts=True)

    is_divided_S = holders_S > 1
    is_at_server_S = np.isin(subject_S, groups_N[federation.holdout_indices])
    several = int((is_divided_S & ~is_at_server_S).sum())
    if several:
        yield (
            f"partition {settings.partition} gives samples of {several} of {len(subject_S)} subjects to "
            "several clients each, and a real site has its own subjects"
        )
    shared = int((is_divided_S & is_at_server_S).sum())
    if shared:
        yield f"{shared} subjects have samples both in the server's hold-out and at clients"


def _of_single_subjects(federation: Federation, groups_N: NDArray[np.int64]) -> Iterator[str]:
    """Yield a sentence for classes whose training samples are all of one subject."""
    samples = np.concatenate(federation.train_indices)
    pairs = np.stack([federation.dataset.train.labels[samples], groups_N[samples]])
    label_P, _ = np.unique(pairs, axis=1)
    subjects_C = np.bincount(label_P, minlength=federation.dataset.num_classes)
    single = np.flatnonzero(subjects_C == 1)
    if len(single):
        names = listed([federation.dataset.class_names[label] for label in single])
        yield f"{names}: all training samples of one subject each, whom a model may know by other signs than the class"


def of_samples(data: Dataset) -> list[str]:
    """Return a sentence for copies and for images of one value, of one's own data."""
    return look_at(data).warnings


def look_at(data: Dataset) -> Look:
    """Return the findings of a bounded look at the samples of one's own data; once per process for the same samples."""
    key = data.content, data.val is None
    if key not in _looks:
        if len(_looks) == MOST_LOOKS:
            _looks.clear()
        _looks[key] = _look(data)
    return _looks[key]


def _look(data: Dataset) -> Look:
    what = "images" if len(data.shape) == 3 else "rows"
    trained = data.train.inputs
    assert isinstance(trained, np.ndarray), "one's own data are read into memory"
    bytes_per_sample = max(trained[:1].nbytes, 1)
    chosen = evenly(len(trained), min(MOST_TRAINED, MOST_BYTES // bytes_per_sample))
    first_with: dict[bytes, int] = {}  # by a sample's hash, the first training sample that has it
    for number, digest in _digests(trained, chosen):
        first_with.setdefault(digest, number)
    refusal = ""
    if len(first_with) == 1 and len(chosen) > 1:
        found = f"all {len(chosen)} training samples that were looked at are the same"
        refusal = f"{found}: nothing can be learned"

    warnings = [*_flat("training", trained)]
    for name, split in (("test", data.test), ("validation", data.val)):
        if split is None or not isinstance(split.inputs, np.ndarray):
            continue
        looked = evenly(len(split.inputs), MOST_TESTS)
        digests = _digests(split.inputs, looked)
        copies = [
            (number, first_with[digest]) for number, digest in digests if digest in first_with
        ]
        if copies:
            tested, in_training = copies[0]
            example = f"({name} sample {tested} is training sample {in_training})"
            compared = (
                f"{len(looked)} {name} {what} that were compared are training {what} too {example}"
            )
            warnings.append(
                f"{len(copies)} of {compared}, so that their scores are not those of unseen data"
            )
            if len(copies) == len(looked) and name == "test" and what == "images":
                refusal = refusal or f"all {compared}: test on images that no client trains on"
        warnings += _flat(name, split.inputs)
    return Look(refusal, warnings)


def evenly(total: int, most: int) -> NDArray[np.int64]:
    """Return at most `most` of the indices 0..total-1, spread evenly."""
    count = min(total, max(1, most))
    return np.arange(count, dtype=np.int64) * total // max(count, 1)


def _digests(
    inputs: NDArray[np.generic], indices: NDArray[np.int64]
) -> Iterator[tuple[int, bytes]]:
    """Yield these indices, each with a hash of the sample."""
    for index in indices.tolist():
        yield index, hashlib.blake2b(inputs[index].tobytes(), digest_size=16).digest()


def _flat(name: str, inputs: NDArray[np.generic]) -> Iterator[str]:
    """Yield a sentence about the images of a split that are of one value in every channel."""
    if inputs.ndim != 4 or math.prod(inputs.shape[2:]) == 1:  # a single pixel is so by nature
        return
    looked = evenly(len(inputs), MOST_TESTS)
    flat: list[int] = []
    for begin in range(0, len(looked), CHUNK):
        chunk_N = looked[begin : begin + CHUNK]
        images_NCHW = inputs[chunk_N]
        is_first_NCHW = images_NCHW == images_NCHW[:, :, :1, :1]
        flat += chunk_N[is_first_NCHW.all(axis=(1, 2, 3))].tolist()
    if flat:
        yield (
            f"{len(flat)} of {len(looked)} {name} images that were looked at are of one value throughout, the first of "
            f"them number {flat[0]}"
        )


def listed(names: Sequence[str]) -> str:
    """Return class names for a sentence, the first few of many."""
    noun = "class" if len(names) == 1 else "classes"
    shown = ", ".join(names[:LISTED])
    if len(names) <= LISTED:
        return f"{noun} {shown}"
    return f"{noun} {shown}, ... ({len(names)} in all)"


def too_large_columns(data: Dataset) -> str:
    """Return which columns of a table have numbers so large that a model diverges; empty for images and without any.

    Such are columns of another unit than the others, record numbers, years, and outliers.
    """
    inputs = data.train.inputs
    if len(data.shape) != 1 or isinstance(inputs, ImageFiles) or not len(inputs):
        return ""
    scale = 255.0 if inputs.dtype == np.uint8 else 1.0
    mean, std = np.array(data.mean), np.array(data.std)
    largest_F = np.zeros(data.shape[0])
    for start in range(0, len(inputs), CHUNK):
        numbers_NF = np.asarray(inputs[start : start + CHUNK], np.float64) / scale
        normalized_NF = np.abs((numbers_NF - mean) / std)
        largest_F = np.maximum(largest_F, normalized_NF.max(0))
    by_size = np.argsort(-largest_F, kind="stable")
    large = [int(column) for column in by_size if largest_F[column] >= LARGE_NUMBER]
    if not large:
        return ""
    names = data.input_columns
    shown = [f"'{names[column]}'" if names else str(column + 1) for column in large[:LISTED]]
    more = "" if len(large) <= LISTED else f" and {len(large) - LISTED} more"
    noun = "column" if len(large) == 1 else "columns"
    return (
        f"{noun} {', '.join(shown)}{more} of {data.name}: normalized, the numbers reach "
        f"{largest_F[large[0]]:.2g}, where a model expects about 1"
    )
