"""The columns of vectors: their order, by their names, and the medians that fill their gaps."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from data.errors import DataError, Remedy
from data.readers.array_types import Array, Floats, Integers
from data.readers.image_files import ImageFiles
from data.readers.rows import cure_of
from data.readers.splits import Raw, Split
from data.settings import DataSettings

LISTED = 5
"""Names that a sentence lists; of more it gives the number."""
ORDER_COUNTS = "the input columns have no names, so their order counts"
"""The note about vectors without names."""


def order_of(
    present: Sequence[str],
    wanted: Sequence[str],
    where: str,
    wanted_by: str,
    reading: DataSettings | None = None,
) -> Integers:
    """Return (F,): for each of the `wanted` columns its place in `present`.

    Args:
        present: The names of a file's input columns, in its order.
        wanted: The names in the order that all files get.
        where: The file, which errors name.
        wanted_by: The file or model whose names `wanted` are, which errors name.
        reading: The settings of a table, by which columns that are not wanted can be left out.

    Raises:
        DataError: a column is missing, or there is one that is not wanted.
    """
    missing = [name for name in wanted if name not in present]
    unknown = [name for name in present if name not in wanted]
    found = []
    if missing:
        found.append(f"has no input column {_listed(missing)}")
    if unknown:
        found.append(f"has an input column {_listed(unknown)} that is unknown there")
    if found:
        rule = f"must have the input columns of {wanted_by}, in any order"
        remedy: Remedy = ""
        if reading is not None and not missing:
            remedy = (cure_of(reading, {}, unknown), " leaves out what is unknown")
        raise DataError(f"{' and '.join(found)}: {rule}", where=where, remedy=remedy)
    places = {name: place for place, name in enumerate(present)}
    return np.array([places[name] for name in wanted], np.int64)


def _listed(names: Sequence[str]) -> str:
    """Return the first names, and how many others there are."""
    text = ", ".join(repr(name[:80]) for name in names[:LISTED])
    others = len(names) - LISTED
    return f"{text} and {others} others" if others > 0 else text


def column_labels(columns: Sequence[str], features: int) -> tuple[str, ...]:
    """Return the names of vectors' columns; without names their numbers from 1."""
    return tuple(columns) or tuple(str(number + 1) for number in range(features))


def vectors_of(split: Split) -> Array | None:
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
    empty_F = np.isnan(train_NF).all(axis=0)
    if empty_F.any():
        name = names[int(empty_F.argmax())]
        rule = "no training row has a number, so there is no median to fill it with"
        remedy = (cure_of(settings, {}, [name]), " leaves it out")
        raise DataError(f"column {name}: {rule}", where=raw.train.where, remedy=remedy)
    medians_F = np.nanmedian(train_NF.astype(np.float64), axis=0)
    splits = {**raw.splits}
    gaps_F = np.zeros(len(names), np.int64)
    for key, split in splits.items():
        inputs_NF = vectors_of(split)
        # Another width is refused where the shape is checked.
        if inputs_NF is not None and inputs_NF.shape[1:] == medians_F.shape:
            gaps_F += np.isnan(inputs_NF).sum(axis=0)
            splits[key] = replace(split, images=fill(inputs_NF, medians_F))
    notes = (*raw.notes, *notes_of_gaps(gaps_F, names))
    return replace(raw, splits=splits, notes=notes, medians=tuple(medians_F.tolist()))


def fill(inputs_NF: Array, medians_F: NDArray[np.float64]) -> Floats:
    """Return the vectors as float32, with the medians in place of NaN."""
    return np.asarray(np.where(np.isnan(inputs_NF), medians_F, inputs_NF), np.float32)


def notes_of_gaps(gaps_F: Integers, names: Sequence[str]) -> list[str]:
    """Return a sentence that says how many cells of which columns are filled; none where there is no gap."""
    total = int(gaps_F.sum())
    if not total:
        return []
    counts = [f"{gaps_F[place]} of {names[place]}" for place in np.flatnonzero(gaps_F).tolist()]
    cells = "1 empty cell" if total == 1 else f"{total} empty cells"
    return [f"missing = median fills {cells}: {', '.join(counts)}"]
