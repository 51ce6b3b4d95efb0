"""The names of a table's input columns, by which the columns of several tables are put into one order."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from data.errors import DataError, Remedy
from data.readers.rows import cure_of
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
) -> NDArray[np.int64]:
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
    if not missing and not unknown:
        places = {name: place for place, name in enumerate(present)}
        return np.array([places[name] for name in wanted], np.int64)
    found = []
    if missing:
        found.append(f"has no input column {_listed(missing)}")
    if unknown:
        found.append(f"has an input column {_listed(unknown)} that is unknown there")
    rule = f"must have the input columns of {wanted_by}, in any order"
    remedy: Remedy = ""
    if reading is not None and not missing:
        remedy = (cure_of(reading, {}, unknown), " leaves out what is unknown")
    raise DataError(f"{' and '.join(found)}: {rule}", where=where, remedy=remedy)


def _listed(names: Sequence[str]) -> str:
    """Return the first names, and how many others there are."""
    text = ", ".join(repr(name[:80]) for name in names[:LISTED])
    others = len(names) - LISTED
    return f"{text} and {others} others" if others > 0 else text
