"""Features as integers on a fixed-point grid, and sums of them that are exact.

A sum of integers is the same for any order and grouping of the samples, any number of clients and any machine.
Floating-point sums are not. Masks that are added to integers modulo 2^64 cancel exactly.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

EXACT = 2**53
"""Below it every integer is a float64, so float64 products of integer matrices are exact whatever their order."""
LARGEST_SUM = 2**63 - 1
"""Of an int64."""
DOUBLINGS = 16
"""Ranges beyond the grid's own for which values outside are counted: 2, 4, ... 65,536 times as wide."""


@dataclass(frozen=True)
class IntegerGrid:
    """The grid of the numbers q * range / 2^bits with integers q from -2^bits to 2^bits; values beyond saturate."""

    bits: int
    range: float

    @property
    def step(self) -> float:
        """The distance of two neighbors on the grid."""
        return self.range / (1 << self.bits)

    def largest_sum(self, samples: int, weight: int) -> int:
        """Return a bound on every entry of `weighted_gram` and of the sums, for so many samples of at most `weight`."""
        largest_product = 1 << 2 * self.bits
        return samples * weight * largest_product

    def most_bits(self, samples: int, weight: int) -> int:
        """Return the largest number of bits with which the sums of so many samples fit an int64; 0 where none does."""
        for bits in range(self.bits, 0, -1):
            if IntegerGrid(bits, self.range).largest_sum(samples, weight) <= LARGEST_SUM:
                return bits
        return 0

    def integers(self, features_ND: Tensor) -> Tensor:
        """Return (N, D) int64, rounded half to even. Raises FloatingPointError for a feature that is not finite."""
        if not features_ND.isfinite().all():
            raise FloatingPointError("a feature is not finite")
        largest = 2.0**self.bits
        scaled_ND = features_ND.double() * (largest / self.range)
        return scaled_ND.round().clamp(-largest, largest).long()

    def outside(self, features_ND: Tensor) -> Tensor:
        """Return (1 + DOUBLINGS,) int64: how many values lie beyond 1, 2, 4, ... times the range."""
        sizes_ND = features_ND.double().abs()
        counts = []
        for doublings in range(DOUBLINGS + 1):
            is_beyond_ND = sizes_ND > self.range * 2**doublings
            counts.append(int(is_beyond_ND.sum()))
        return torch.tensor(counts)


def class_sums(integers_ND: Tensor, labels_N: Tensor, classes: int) -> Tensor:
    """Return (C, D) int64: the sum of the rows of each class."""
    sums_CD = torch.zeros(classes, integers_ND.shape[1], dtype=torch.int64)
    return sums_CD.index_add_(0, labels_N, integers_ND)


def weighted_gram(integers_ND: Tensor, weights_N: Tensor, bits: int) -> Tensor:
    """Return (D, D) int64: the sum over samples of weight * q q^T, exactly.

    The products are float64 matrix products, which are an order of magnitude faster than those of integers. Each is of
    so few samples that no sum in it reaches 2^53. `weights_N` is int64 and positive.
    """
    width = integers_ND.shape[1]
    gram_DD = torch.zeros(width, width, dtype=torch.int64)
    if len(integers_ND) == 0:
        return gram_DD
    weight = int(weights_N.max())
    largest = weight * 4**bits
    if largest >= EXACT:
        raise ValueError(f"a weight of {weight} and {bits} bits: no product is exact")
    at_once = (EXACT - 1) // largest
    parts = zip(torch.split(integers_ND, at_once), torch.split(weights_N, at_once), strict=True)
    for part_ND, part_N in parts:
        rows_ND = part_ND.double()
        weighted_ND = rows_ND * part_N[:, None].double()
        gram_DD += (rows_ND.T @ weighted_ND).long()
    return gram_DD


def triangle_of(matrix_DD: Tensor) -> Tensor:
    """Return (D (D + 1) / 2,): the upper triangle of a symmetric matrix, row by row."""
    rows, columns = torch.triu_indices(*matrix_DD.shape)
    return matrix_DD[rows, columns]


def from_triangle(triangle: Tensor, width: int) -> Tensor:
    """Undo `triangle_of`; (D, D)."""
    matrix_DD = triangle.new_zeros(width, width)
    rows, columns = torch.triu_indices(width, width)
    matrix_DD[rows, columns] = triangle
    matrix_DD[columns, rows] = triangle
    return matrix_DD
