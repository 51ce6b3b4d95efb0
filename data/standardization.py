"""Mean and standard deviation of a table's columns from exact sums.

Every float32 is a whole multiple of 2^-149. Sums of these whole numbers are exact, so mean and std have the same bits
in any order of the rows and for any split of them over clients, processes and sites.

The sums travel as words: signed limbs of 40 bits in int64, all with the sign of their number. Words of several clients
are added word by word, without carries, so they can be added under masks modulo 2^64. Beside the sums they tell how
many carries there were: at most log2(clients) bits per word.
"""

import math
from collections.abc import Mapping

import numpy as np

from data.readers.array_types import Array, Integers

Sums = Mapping[str, Integers]
"""What `column_sums` returns, of one client, or of all added up."""
LIMB_BITS = 40
"""Leaves 23 bits of an int64 for the sum over clients: 8 million of them cannot overflow it."""
SUM_LIMBS, SQUARE_LIMBS = 8, 15
"""Limbs of a sum, and of a sum of squares. A float32 is below 2^277 units, and 2^40 rows add 40 bits."""
UNIT_BITS = 149
"""The smallest positive float32 is 2^-149."""
MANTISSA_BITS = 24
"""Those of a float32: a square has 48, and sums of CHUNK_ROWS squares fit an int64."""
CHUNK_ROWS = 2**14
"""Rows that are added together."""
LARGEST_FLOAT = float(np.finfo(np.float32).max)
SMALLEST_STD = float(np.finfo(np.float32).tiny)
"""A smaller standard deviation is 0 in the arithmetic of training."""


def shapes(columns: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the arrays that `column_sums` returns."""
    return {"counts": (1,), "sums": (columns, SUM_LIMBS), "squares": (columns, SQUARE_LIMBS)}


def column_sums(inputs_NF: Array) -> dict[str, Integers]:
    """Return the number of rows, and of each column the exact sum and sum of squares, as int64 limbs.

    Args:
        inputs_NF: float32.

    Raises:
        ValueError: a number is not finite.
    """
    # Python's integers, which have any number of bits.
    sums_F = np.zeros(inputs_NF.shape[1], object)
    squares_F = np.zeros(inputs_NF.shape[1], object)
    for start in range(0, len(inputs_NF), CHUNK_ROWS):
        chunk_NF = inputs_NF[start : start + CHUNK_ROWS]
        if not np.isfinite(chunk_NF).all():
            raise ValueError("a number is not finite")
        units_NF = np.ldexp(chunk_NF.astype(np.float64), UNIT_BITS)
        _, bits_NF = np.frexp(units_NF)
        shifts_NF = np.maximum(bits_NF - MANTISSA_BITS, 0)
        mantissas_NF = np.ldexp(units_NF, -shifts_NF).astype(np.int64)
        for shift in np.unique(shifts_NF).tolist():
            here_NF = np.where(shifts_NF == shift, mantissas_NF, 0)
            sums_F += here_NF.sum(0).astype(object) << shift
            squares_F += (here_NF * here_NF).sum(0).astype(object) << 2 * shift
    return {
        "counts": np.array([len(inputs_NF)], np.int64),
        "sums": np.array([_limbs(number, SUM_LIMBS) for number in sums_F], np.int64),
        "squares": np.array([_limbs(number, SQUARE_LIMBS) for number in squares_F], np.int64),
    }


def _limbs(number: int, count: int) -> list[int]:
    """Return a whole number as limbs, the lowest first, each with the number's sign."""
    sign = -1 if number < 0 else 1
    magnitude = abs(number)
    mask = (1 << LIMB_BITS) - 1
    return [sign * ((magnitude >> (LIMB_BITS * place)) & mask) for place in range(count)]


def _number(limbs: list[int]) -> int:
    """Undo `_limbs`; also of limbs that several clients' were added to."""
    return sum(limb << (LIMB_BITS * place) for place, limb in enumerate(limbs))


def standardization(sums: Sums) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return each column's mean and standard deviation (of the population); that of a constant column is 1.

    Raises:
        ValueError: the sums are not of any rows of float32.
    """
    rows = int(sums["counts"][0])
    if rows < 1:
        raise ValueError(f"they are of {rows} rows")
    means = []
    stds = []
    for sum_limbs, square_limbs in zip(
        sums["sums"].tolist(), sums["squares"].tolist(), strict=True
    ):
        total = _number(sum_limbs)
        scaled_variance = rows * _number(square_limbs) - total**2  # rows^2 times it, in 2^-298
        if scaled_variance < 0:
            raise ValueError("a column's variance is negative")
        try:
            mean = total / (rows << UNIT_BITS)
            std = math.sqrt(scaled_variance / (rows**2 << (2 * UNIT_BITS)))
        except OverflowError:
            mean = std = math.inf
        if abs(mean) > LARGEST_FLOAT or std > LARGEST_FLOAT:
            raise ValueError("a column's numbers are larger than float32")
        means.append(mean)
        stds.append(std if std >= SMALLEST_STD else 1.0)
    return tuple(means), tuple(stds)


def sentence_about(rows: int) -> str:
    """Return what a run and `data check` say of standardized columns."""
    return f"columns are standardized: mean and std of the {rows:,} training rows"
