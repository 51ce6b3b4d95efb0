"""Checks for data problems that no score shows: copies in the test set, classes without samples, divided subjects.

`refuse_untrainable` raises where no training makes sense. `warnings_of` returns a sentence for everything with which a
run can go on. `fedskew data check`, `data show`, `run` and `select` print them, and a ServerApp that flwr starts does.
"""

import hashlib
from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np

from data.dataset import Dataset
from data.errors import DataError
from data.federation import Federation
from data.readers.array_types import Array
from data.readers.catalog import is_own, is_sites, members
from data.readers.image_files import ImageFiles
from data.readers.input_columns import ORDER_COUNTS, column_labels
from data.readers.user_data import input_columns, path_of
from data.settings import DataSettings

LISTED = 5
"""Names that a sentence lists; of more it gives the number."""
MOST_TESTS = 4096
"""Test samples that are looked for in the training set."""
MOST_TRAINED, MOST_BYTES = 1_000_000, 2**30
"""Training samples, and bytes of them, that are hashed: about two seconds of work."""
LARGE_NUMBER = 100.0
"""Size from which a normalized number of a table makes training diverge; standardized ones rarely exceed 10."""


def warnings_of(settings: DataSettings, federation: Federation) -> list[str]:
    """Return a sentence for everything that is odd about the data and does not stop a run.

    Of data sets that come with FedSkew only the classes and the subjects are looked at; between sites nothing is.
    """
    if is_sites(settings.dataset):
        return []
    found = [*_of_classes(federation), *_of_subjects(settings, federation), *_of_columns(settings)]
    if _is_compared(settings):
        found += warnings_of_copies(federation.dataset)
    return found


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
        found = f"all {trained_C.sum()} training samples are of class {name}"
        raise DataError(f"{found}: {rule}", where=settings.dataset)
    if _is_compared(settings):
        refuse_copies(federation.dataset)


def refuse_copies(data: Dataset) -> None:
    """Raise DataError where all training samples are the same, or all test images are training images."""
    refusal, _ = _copies(data)
    if refusal:
        raise DataError(refusal, where=data.name)


def warnings_of_copies(data: Dataset) -> list[str]:
    """Return a sentence for a test set that has samples of the training set; none for another one."""
    _, warnings = _copies(data)
    return warnings


def _is_compared(settings: DataSettings) -> bool:
    """Return whether some of the data are a user's own, and their test set is tested on.

    With evaluate-on = validation the samples that are tested on are part of the training set by design.
    """
    return settings.evaluate_on == "test" and any(map(is_own, members(settings.dataset)))


def _of_columns(settings: DataSettings) -> Iterator[str]:
    """Yield a sentence for each of several files of vectors that does not name its columns."""
    names = members(settings.dataset)
    if len(names) < 2 or len(settings.shape) != 1:
        return
    for name in filter(is_own, names):
        if not input_columns(name, settings):
            yield f"{path_of(name, settings)}: {ORDER_COUNTS}: it must be that of the other files"


def _of_classes(federation: Federation) -> Iterator[str]:
    """Yield a sentence for classes without samples: in both sets, in training, or in the test set."""
    data = federation.dataset
    trained_C = federation.counts_KC.sum(axis=0)
    test_labels = data.test.labels[federation.global_test]
    tests_C = np.bincount(test_labels, minlength=data.num_classes)

    for is_odd_C, found in (
        ((trained_C == 0) & (tests_C == 0), "training and test samples, though classes names it"),
        (
            (trained_C == 0) & (tests_C > 0),
            "test samples and no training sample, so that no model can learn it",
        ),
        (
            (trained_C > 0) & (tests_C == 0),
            "training samples and no test sample, so that no number measures it",
        ),
    ):
        names = [data.class_names[label] for label in np.flatnonzero(is_odd_C)]
        if names:
            count = (trained_C + tests_C)[is_odd_C].sum()
            yield f"{_listed('class', 'classes', names)}: {count} {found}"


def _of_subjects(settings: DataSettings, federation: Federation) -> Iterator[str]:
    """Yield a sentence where a partition gives the samples of one subject to several clients."""
    subjects_N = federation.dataset.train.subjects
    if subjects_N is None:
        return
    of_clients = [np.unique(subjects_N[part]) for part in federation.train_indices]
    subjects, clients_S = np.unique(np.concatenate(of_clients), return_counts=True)
    several = np.count_nonzero(clients_S > 1)
    if several:
        yield (
            f"partition {settings.partition} gives samples of {several} of {len(subjects)} subjects to "
            "several clients each, and a real site has its own subjects"
        )


@lru_cache(maxsize=4)  # a run refuses first and warns later
def _copies(data: Dataset) -> tuple[str, list[str]]:
    """Return what makes any training senseless, and what is said of test samples that are copies; empty for nothing.

    So many samples are compared as take about two seconds.
    """
    trained, tests = data.train.inputs, data.test.inputs
    assert isinstance(trained, np.ndarray), "one's own data are read into memory"
    assert isinstance(tests, np.ndarray), "one's own data are read into memory"
    bytes_per_sample = max(trained[:1].nbytes, 1)
    most = min(MOST_TRAINED, MOST_BYTES // bytes_per_sample)
    number_of = {digest: number for number, digest in _digests(trained, most)}
    if len(number_of) == 1 and len(trained) > 1:
        return "all training samples that were looked at are the same: nothing can be learned", []
    compared = dict(_digests(tests, MOST_TESTS))
    copies = [number for number, digest in compared.items() if digest in number_of]
    if not copies:
        return "", []
    what = "images" if len(data.shape) == 3 else "rows"
    first = copies[0]
    example = f"(test sample {first} is training sample {number_of[compared[first]]})"
    found = f"{len(compared)} test {what} that were compared are training {what} too {example}"
    refusal = ""
    if len(copies) == len(compared) and what == "images":
        refusal = f"all {found}: test on images that no client trains on"
    return refusal, [f"{len(copies)} of {found}, so that their scores are not those of unseen data"]


def _digests(inputs: Array, most: int) -> Iterator[tuple[int, bytes]]:
    """Yield the indices of at most `most` samples, at least one, spread evenly, each with a hash of the sample."""
    count = min(len(inputs), max(1, most))
    for place in range(count):
        index = place * len(inputs) // count
        yield index, hashlib.blake2b(inputs[index].tobytes(), digest_size=16).digest()


def _listed(noun: str, plural: str, names: Sequence[str]) -> str:
    """Return names for a sentence, the first few of many."""
    shown = ", ".join(names[:LISTED])
    more = f", ... ({len(names)} in all)" if len(names) > LISTED else ""
    return f"{noun if len(names) == 1 else plural} {shown}{more}"


def too_large_columns(data: Dataset) -> str:
    """Return which columns of a table have numbers so large that a model diverges; empty for images and without any.

    Such are columns of another unit than the others, record numbers, years, and outliers.
    """
    inputs = data.train.inputs
    if len(data.shape) != 1 or isinstance(inputs, ImageFiles) or not len(inputs):
        return ""
    ends_2F = np.stack([inputs.min(axis=0), inputs.max(axis=0)])
    normalized_2F = (ends_2F - np.array(data.mean)) / np.array(data.std)
    largest_F = np.abs(normalized_2F).max(axis=0)
    by_size = np.argsort(-largest_F, kind="stable").tolist()
    labels = column_labels(data.input_columns, data.shape[0])
    large = [labels[column] for column in by_size if largest_F[column] >= LARGE_NUMBER]
    if not large:
        return ""
    found = f"normalized, the numbers reach {largest_F.max():.2g}, where a model expects about 1"
    return f"{_listed('column', 'columns', large)} of {data.name}: {found}"
