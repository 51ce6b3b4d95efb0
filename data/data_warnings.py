"""Checks for data problems that no score shows: copies in the test set, classes without samples, divided subjects.

`refuse_untrainable` raises where no training makes sense. `warnings_of` returns a sentence for everything with which a
run can go on. `fedskew data check`, `data show`, `run` and `select` print them, and a ServerApp that flwr starts does.
"""

import hashlib
from collections.abc import Iterator, Sequence

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
"""Rows looked at together: bounds the memory."""
LARGE_NUMBER = 100.0
"""Size from which a normalized number of a table makes training diverge; standardized ones rarely exceed 10."""

# A run refuses first and warns later: the last data set's findings are kept by what its samples are, so that they are
# hashed once and the data set itself can leave the memory.
_last: dict[str, tuple[str, list[str]]] = {}


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
    """Return a sentence for the test set, and for the validation set, that has samples of the training set."""
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
        try:
            columns = input_columns(name, settings)
        except DataError:  # there is no such file any more: the run reads a cached copy
            continue
        if not columns:
            yield f"{path_of(name, settings)}: {ORDER_COUNTS}: it must be that of the other files"


def _of_classes(federation: Federation) -> Iterator[str]:
    """Yield a sentence for classes without samples: in both sets, in training, or in the test set."""
    data = federation.dataset
    trained_C = federation.counts_KC.sum(axis=0)
    test_labels = data.test.labels[federation.global_test]
    tests_C = np.bincount(test_labels, minlength=data.num_classes)

    nowhere = np.flatnonzero((trained_C == 0) & (tests_C == 0))
    if len(nowhere):
        yield f"nobody has a sample of {_listed(data, nowhere)}, which classes names"
    untrained = np.flatnonzero((trained_C == 0) & (tests_C > 0))
    if len(untrained):
        found = f"{tests_C[untrained].sum()} test samples and no training sample"
        yield f"{_listed(data, untrained)}: {found}, so that no model can learn it"
    untested = np.flatnonzero((trained_C > 0) & (tests_C == 0))
    if len(untested):
        found = f"{trained_C[untested].sum()} training samples and no test sample"
        yield f"{_listed(data, untested)}: {found}, so that no number measures it"


def _of_subjects(settings: DataSettings, federation: Federation) -> Iterator[str]:
    """Yield a sentence where a partition gives the samples of one subject to several clients, or to the server too."""
    subjects_N = federation.dataset.train.subjects
    if subjects_N is None:
        return
    of_clients = [np.unique(subjects_N[part]) for part in federation.train_indices]
    subjects, clients_S = np.unique(np.concatenate(of_clients), return_counts=True)
    several = np.count_nonzero(clients_S > 1)
    shared = np.isin(subjects, subjects_N[federation.holdout_indices]).sum()
    if several:
        yield (
            f"partition {settings.partition} gives samples of {several} of {len(subjects)} subjects to "
            "several clients each, and a real site has its own subjects"
        )
    if shared:  # of a partition file: `hold_out` leaves the server's subjects to nobody else
        yield f"{shared} subjects have samples both in the server's hold-out and at clients"


def _copies(data: Dataset) -> tuple[str, list[str]]:
    """Return what makes any training senseless, empty for nothing, and a sentence for each split with copies.

    So many samples are compared as take about two seconds.
    """
    key = f"{data.content} {data.val is None}"
    if key not in _last:
        _last.clear()
        _last[key] = _compared(data)
    return _last[key]


def _compared(data: Dataset) -> tuple[str, list[str]]:
    trained = data.train.inputs
    assert isinstance(trained, np.ndarray), "one's own data are read into memory"
    bytes_per_sample = max(trained[:1].nbytes, 1)
    most = min(MOST_TRAINED, MOST_BYTES // bytes_per_sample)
    first_with: dict[bytes, int] = {}  # by a sample's hash, the first training sample that has it
    looked_at = 0
    for number, digest in _digests(trained, most):
        looked_at += 1
        first_with.setdefault(digest, number)
    refusal = ""
    if len(first_with) == 1 and looked_at > 1:
        found = f"all {looked_at} training samples that were looked at are the same"
        refusal = f"{found}: nothing can be learned"

    what = "images" if len(data.shape) == 3 else "rows"
    warnings = []
    for name, split in (("test", data.test), ("validation", data.val)):
        if split is None or not isinstance(split.inputs, np.ndarray):
            continue
        digests = dict(_digests(split.inputs, MOST_TESTS))
        copies = [number for number, digest in digests.items() if digest in first_with]
        if not copies:
            continue
        example = f"({name} sample {copies[0]} is training sample {first_with[digests[copies[0]]]})"
        compared = (
            f"{len(digests)} {name} {what} that were compared are training {what} too {example}"
        )
        warnings.append(
            f"{len(copies)} of {compared}, so that their scores are not those of unseen data"
        )
        if len(copies) == len(digests) and name == "test" and what == "images":
            refusal = refusal or f"all {compared}: test on images that no client trains on"
    return refusal, warnings


def _digests(inputs: NDArray[np.generic], most: int) -> Iterator[tuple[int, bytes]]:
    """Yield the indices of at most `most` samples, at least one, spread evenly, each with a hash of the sample."""
    count = min(len(inputs), max(1, most))
    for place in range(count):
        index = place * len(inputs) // count
        sample = inputs[index].tobytes()
        yield index, hashlib.blake2b(sample, digest_size=16).digest()


def _listed(data: Dataset, labels: Sequence[int] | NDArray[np.intp]) -> str:
    """Return the names of classes for a sentence, the first few of many."""
    names = [data.class_names[label] for label in labels]
    noun = "class" if len(names) == 1 else "classes"
    shown = ", ".join(names[:LISTED])
    more = f", ... ({len(names)} in all)" if len(names) > LISTED else ""
    return f"{noun} {shown}{more}"


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
    large = [column for column in by_size.tolist() if largest_F[column] >= LARGE_NUMBER]
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
