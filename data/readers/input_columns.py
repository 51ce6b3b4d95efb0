"""The columns of vectors: their order, by their names, and the medians that fill their gaps."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from data.errors import DataError
from data.readers.array_types import Array, Floats, Integers
from data.readers.image_files import ImageFiles
from data.readers.rows import cure_of
from data.readers.splits import Raw, Split
from data.settings import DataSettings
from data.text import printable

ORDER_COUNTS = "the input columns have no names, so their order counts"
"""The note about vectors without names."""


def order_of(
    present: Sequence[str],
    wanted: Sequence[str],
    where: str,
    wanted_by: str,
) -> Integers:
    """Return (F,): for each of the `wanted` columns its place in `present`.

    Args:
        present: The names of a file's input columns, in its order.
        wanted: The names in the order that all files get.
        where: The file, which errors name.
        wanted_by: The file or model whose names `wanted` are, which errors name.

    Raises:
        DataError: a column is missing, or there is one that is not wanted.
    """
    places = {name: place for place, name in enumerate(present)}
    missing = [name for name in wanted if name not in places]
    unknown = [name for name in present if name not in wanted]
    if missing or unknown:
        found = f"has no input column {_listed(missing)}"
        if unknown:
            surplus = f"has an input column {_listed(unknown)} that is unknown there"
            found = f"{found} and {surplus}" if missing else surplus
        rule = f"must have the input columns of {wanted_by}, in any order"
        raise DataError(f"{found}: {rule}", where=where)
    return np.array([places[name] for name in wanted], np.int64)


def _listed(names: Sequence[str]) -> str:
    """Return the names, cut where they are many."""
    return printable(", ".join(map(repr, names)))


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
    counts = [f"{gaps_F[place]} of {names[place]}" for place in np.flatnonzero(gaps_F).tolist()]
    return [f"missing = median fills empty cells: {', '.join(counts)}"] if counts else []
