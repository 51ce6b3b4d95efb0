"""`missing = median`: gaps in columns of inputs are filled with the column's median of the training rows."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from data.errors import DataError
from data.readers.image_files import ImageFiles
from data.readers.rows import cure_of, remedy_for_gap
from data.readers.splits import Raw, Split
from data.settings import DataSettings

Vectors = NDArray[np.generic]


def column_labels(columns: Sequence[str], features: int) -> tuple[str, ...]:
    """Return the names of vectors' columns; without names their numbers from 1."""
    return tuple(columns) or tuple(str(number + 1) for number in range(features))


def vectors_of(split: Split) -> Vectors | None:
    """Return a split's vectors (N, F); None for images."""
    images = split.images
    if isinstance(images, ImageFiles) or images.ndim != 2 or images.dtype.kind != "f":
        return None
    return images


def filled(raw: Raw, settings: DataSettings) -> Raw:
    """Return the data with their medians and without gaps, which are NaN, where `missing` is median.

    The medians are those of the training rows, before any later cut of these.

    Raises:
        DataError: a column in which no training row has a number.
    """
    train_NF = vectors_of(raw.train)
    if settings.missing != "median" or train_NF is None:
        return raw
    names = column_labels(raw.input_columns, train_NF.shape[1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy warns of a column of gaps, which is refused here
        medians_F = np.nanmedian(train_NF.astype(np.float64), axis=0)
    for name, median in zip(names, medians_F.tolist(), strict=True):
        if np.isnan(median):
            rule = "no training row has a number, so there is no median to fill it with"
            remedy = (cure_of(settings, {}, [name]), " leaves it out")
            raise DataError(f"column {name}: {rule}", where=raw.train.where, remedy=remedy)

    splits = {"train": raw.train, "test": raw.test, "val": raw.val}
    gaps_F = np.zeros(len(names), np.int64)
    for key, split in splits.items():
        if split is None:
            continue
        inputs_NF = vectors_of(split)
        if inputs_NF is None or inputs_NF.shape[1:] != medians_F.shape:
            continue  # refused where the shape is checked
        gaps_F += np.isnan(inputs_NF).sum(axis=0)
        splits[key] = replace(split, images=fill(inputs_NF, medians_F))
    train, test = splits["train"], splits["test"]
    assert train is not None
    assert test is not None
    return replace(
        raw,
        train=train,
        test=test,
        val=splits["val"],
        medians=tuple(medians_F.tolist()),
        notes=(*raw.notes, *notes_of_gaps(gaps_F, names)),
    )


def fill(inputs_NF: Vectors, medians_F: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return the vectors as float32, with the medians in place of NaN."""
    return np.asarray(np.where(np.isnan(inputs_NF), medians_F, inputs_NF), np.float32)


def notes_of_gaps(gaps_F: NDArray[np.int64], names: Sequence[str]) -> list[str]:
    """Return a sentence that says how many cells of which columns are filled; none where there is no gap."""
    total = int(gaps_F.sum())
    if not total:
        return []
    counts = [
        f"{count} of {name}" for name, count in zip(names, gaps_F.tolist(), strict=True) if count
    ]
    cells = "1 empty cell" if total == 1 else f"{total} empty cells"
    return [f"missing = median fills {cells}: {', '.join(counts)}"]


def without_gaps(
    splits: Mapping[str, Split], columns: Sequence[str], settings: DataSettings
) -> tuple[dict[str, Split], list[str]]:
    """Return the splits of an npz file without the vectors that `missing = drop` leaves out, and a note about them.

    Raises:
        DataError: a number of a vector is NaN, and `missing` is refuse.
    """
    kept = dict(splits)
    notes = []
    for key, split in splits.items():
        inputs_NF = vectors_of(split)
        if inputs_NF is None or settings.missing == "median":
            continue
        has_gap_N = np.isnan(inputs_NF).any(axis=1)
        if not has_gap_N.any():
            continue
        first = int(np.argmax(has_gap_N))
        names = column_labels(columns, inputs_NF.shape[1])
        column = names[int(np.argmax(np.isnan(inputs_NF[first])))]
        array = f"{key}_images" if key else "images"
        found = f"{array}: row {first} (from 0), column {column}: is NaN, a missing value"
        if settings.missing == "refuse":
            raise DataError(found, where=split.where, remedy=remedy_for_gap(settings))
        kept[key] = split.take(np.flatnonzero(~has_gap_N), split.key)
        rows = "1 row is" if has_gap_N.sum() == 1 else f"{has_gap_N.sum()} rows are"
        notes.append(f"{rows} left out by missing = drop, first: {found}")
    return kept, notes
