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
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Sums = Mapping[str, Integers]
"""What `column_sums` returns, of one client, or of all added up."""
LIMB_BITS = 40
"""Leaves 23 bits of an int64 for the sum over clients: 8 million of them cannot overflow it."""
SUM_LIMBS, SQUARE_LIMBS = 8, 15
"""Limbs of a sum, and of a sum of squares. A float32 is below 2^277 units, and 2^40 rows add 40 bits."""
UNIT_BITS = 149
"""The smallest positive float32 is 2^-149."""
BLOCK_BITS = 8
"""Exponents are grouped in blocks of this many, so that a mantissa of 24 bits, shifted within its block, has 32."""
BLOCKS = 32
CHUNK_VALUES = 2**17
"""Numbers that are looked at together: bounds the memory."""
LARGEST_FLOAT = float(np.finfo(np.float32).max)
SMALLEST_STD = float(np.finfo(np.float32).tiny)
"""A smaller standard deviation is 0 in the arithmetic of training."""


def shapes(columns: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the arrays that `column_sums` returns."""
    return {"counts": (1,), "sums": (columns, SUM_LIMBS), "squares": (columns, SQUARE_LIMBS)}


def column_sums(
    inputs_NF: NDArray[np.generic], rows: Integers | None = None
) -> dict[str, Integers]:
    """Return the number of rows, and of each column the exact sum and sum of squares, as int64 limbs.

    Args:
        inputs_NF: float32, or uint8, which stands for numbers on the scale 0..1 as in training.
        rows: those that count; all of them by default.

    Raises:
        ValueError: a number is not finite.
    """
    columns = inputs_NF.shape[1]
    count = len(inputs_NF) if rows is None else len(rows)
    # By block of exponents and column: sums, and both halves of the sums of squares. Each number is below 2^32, so
    # 2^31 rows fit an int64.
    totals_3BF = np.zeros((3, BLOCKS, columns), np.int64)
    step = max(1, CHUNK_VALUES // columns)
    for start in range(0, count, step):
        end = min(start + step, count)
        chunk_NF = inputs_NF[start:end] if rows is None else inputs_NF[rows[start:end]]
        if chunk_NF.dtype == np.uint8:
            chunk_NF = chunk_NF.astype(np.float32) / np.float32(255)
        _add_chunk(np.ascontiguousarray(chunk_NF, np.float32), totals_3BF)

    sums = []
    squares = []
    for of_column in totals_3BF.transpose(2, 1, 0).tolist():
        total = 0
        total_squared = 0
        for block, (signed, high, low) in enumerate(of_column):
            total += signed << (BLOCK_BITS * block)
            total_squared += ((high << 32) + low) << (2 * BLOCK_BITS * block)
        sums.append(_limbs(total, SUM_LIMBS))
        squares.append(_limbs(total_squared, SQUARE_LIMBS))
    return {
        "counts": np.array([count], np.int64),
        "sums": np.array(sums, np.int64),
        "squares": np.array(squares, np.int64),
    }


def _add_chunk(chunk_NF: NDArray[np.float32], totals_3BF: Integers) -> None:
    """Add the numbers of some rows, in units of 2^-149, and their squares to the totals of their blocks."""
    bits_NF = chunk_NF.view(np.uint32)
    exponents_NF = (bits_NF >> 23) & 0xFF
    if (exponents_NF == 0xFF).any():
        raise ValueError("a number is not finite")
    is_normal_NF = exponents_NF > 0
    mantissas_NF = (bits_NF & 0x7FFFFF) | (is_normal_NF.astype(np.uint32) << 23)
    shifts_NF = np.where(is_normal_NF, exponents_NF - 1, 0)  # |x| is mantissa * 2^shift units
    blocks_NF = shifts_NF // BLOCK_BITS
    magnitudes_NF = mantissas_NF.astype(np.uint64) << (shifts_NF % BLOCK_BITS).astype(np.uint64)
    is_negative_NF = (bits_NF >> 31) == 1

    for block in np.unique(blocks_NF).tolist():
        present_NF = np.where(blocks_NF == block, magnitudes_NF, np.uint64(0))
        signed_NF = present_NF.astype(np.int64)
        np.negative(signed_NF, out=signed_NF, where=is_negative_NF)
        squared_NF = present_NF * present_NF  # below 2^64
        totals_3BF[0, block] += signed_NF.sum(0)
        totals_3BF[1, block] += (squared_NF >> np.uint64(32)).astype(np.int64).sum(0)
        totals_3BF[2, block] += (squared_NF & np.uint64(0xFFFFFFFF)).astype(np.int64).sum(0)


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
        squares = _number(square_limbs)
        scaled_variance = rows * squares - total**2  # rows^2 times the variance, in units of 2^-298
        try:
            mean = total / (rows << UNIT_BITS)
            variance = scaled_variance / (rows**2 << (2 * UNIT_BITS))
        except OverflowError:
            raise ValueError("a column's numbers are larger than float32") from None
        if scaled_variance < 0:
            raise ValueError("a column's variance is negative")
        std = math.sqrt(variance)
        if abs(mean) > LARGEST_FLOAT or std > LARGEST_FLOAT:
            raise ValueError("a column's numbers are larger than float32")
        means.append(mean)
        stds.append(std if std >= SMALLEST_STD else 1.0)
    return tuple(means), tuple(stds)


def sentence_about(rows: int) -> str:
    """Return what a run and `data check` say of standardized columns."""
    return f"columns are standardized: mean and std of the {rows:,} training rows"
