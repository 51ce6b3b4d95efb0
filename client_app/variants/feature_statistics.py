"""Statistics of the clients' features, as integers: what heads in closed form are computed from.

Each variant here answers one question before round 1. The features are those of the model as it is then, so a run that
uses them keeps its features fixed.

A sum of integers is the same for any order and grouping of the samples, any number of clients and any machine.
Floating-point sums are not. Masks that are added to integers modulo 2^64 cancel exactly.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

from client_app.client import Client, InvalidReply, TensorSpec, Upload, Variant, integers
from client_app.models.classifier import Classifier
from client_app.state import State
from data import SettingError

EXACT = 2**53
"""Below it every integer is a float64, so float64 products of integer matrices are exact whatever their order."""
LARGEST_SUM = 2**63 - 1
"""Of an int64."""
DOUBLINGS = 16
"""Ranges beyond the grid's own for which values outside are counted: 2, 4, ... 65,536 times as wide."""
BALANCE = 1024
"""Weight of a sample of the rarest class in the balanced sum; the others' are rounded to whole numbers below it."""
MOST_COUNTED = 2**40
"""Samples of a class at most, so that no sum over the clients overflows."""
CLIPPED = 1e-3
"""Share of the features' values that may lie outside the grid's range."""


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


@dataclass(frozen=True)
class LabelCounts(Variant):
    """Answer, before round 1, with the number of samples of each class, {"counts": (C,) int64}.

    Nothing else changes: training is the plain one to the bit.
    """

    name: ClassVar[str] = "label-counts"

    @property
    def upload(self) -> Upload:
        return Upload(
            "class-counts",
            self.tensors,
            validate=self.check_counts,
            question=self.name,
            returned=False,
            of_counts=lambda total, clients: total,
        )

    @staticmethod
    def tensors(model: Classifier, shared: State) -> dict[str, TensorSpec]:
        """Return what an answer must be."""
        return {"counts": integers(model.head.out_features, low=0, high=MOST_COUNTED)}

    def answer(self, client: Client) -> State:
        return {"counts": client.counts_C.long()}

    def check_counts(self, answer: State, classes: int, samples: int | None) -> int:
        """Return how many samples the counts are of. Raises InvalidReply."""
        return checked_counts(answer["counts"], samples)


@dataclass(frozen=True)
class GridStatistics(Variant):
    """What the variants below share: the grid, the counts and sums of each class, and their checks."""

    weighs: ClassVar[bool] = False
    """Whether samples have weights other than 1."""
    squares: ClassVar[bool] = False
    """Whether the answer holds the sum of z z^T."""
    by_client: ClassVar[bool] = False
    """Whether the server keeps the clients' answers apart."""

    bits: Annotated[int, Ge(1), Le(20)] = 12
    """A feature z becomes the integer z 2^bits / range, rounded."""
    range: Annotated[float, Gt(0)] = 8.0
    """Largest |feature|; larger ones count as it. More than 0.1 % of them is an error."""

    @property
    def grid(self) -> IntegerGrid:
        """The grid that is set."""
        return IntegerGrid(self.bits, self.range)

    @property
    def largest_weight(self) -> int:
        """The largest weight of a sample."""
        return BALANCE if self.weighs else 1

    @property
    def upload(self) -> Upload:
        return Upload(
            "class-statistics",
            self.tensors,
            validate=self.check_statistics,
            question=self.name,
            question_needs=LabelCounts.name if self.weighs else "",
            by_client=self.by_client,
            returned=False,
        )

    def tensors(self, model: Classifier, shared: State) -> dict[str, TensorSpec]:
        """Return what an answer must be."""
        classes, width = model.head.weight.shape
        tensors = {
            "counts": integers(classes, low=0, high=MOST_COUNTED),
            "sums": integers(classes, width),
            "outside": integers(DOUBLINGS + 1, low=0),
        }
        if self.squares:
            tensors["triangle"] = integers(width * (width + 1) // 2)
        return tensors

    def answer(self, client: Client) -> State:
        """Return int64 "counts" (C,), "sums" (C, D), "outside" (1 + DOUBLINGS,), and "triangle" where squares count.

        The sums are of features on the grid. "outside" counts values beyond 1, 2, 4, ... times the range. The triangle
        is that of the sum of v_y z z^T, with the weight v_y of the sample's class.
        """
        features_ND = client.features().cpu()
        labels_N = client.labels_N.cpu()
        integers_ND = self.grid.integers(features_ND)
        answer = {
            "counts": client.counts_C.long(),
            "sums": class_sums(integers_ND, labels_N, client.num_classes),
            "outside": self.grid.outside(features_ND),
        }
        if self.squares:
            weights_N = self.class_weights(client)[labels_N]
            answer["triangle"] = triangle_of(weighted_gram(integers_ND, weights_N, self.bits))
        return answer

    def class_weights(self, client: Client) -> Tensor:
        """Return (C,) int64 v_c: the weight of a sample of each class in the sum of z z^T."""
        return torch.ones(client.num_classes, dtype=torch.int64)

    def check_statistics(self, answer: State, classes: int, samples: int | None) -> int:
        """Return how many samples the statistics are of. Raises InvalidReply."""
        counts_C = answer["counts"]
        sums_CD = answer["sums"]
        outside = answer["outside"]
        counted = checked_counts(counts_C, samples)
        largest_C1 = counts_C[:, None] * 2**self.bits
        if (sums_CD > largest_C1).any() or (sums_CD < -largest_C1).any():
            raise InvalidReply("a sum is larger than its count allows")
        values = counted * sums_CD.shape[1]
        if (outside > values).any():
            raise InvalidReply("outside counts more values than there are")
        if self.squares:
            most = min(self.grid.largest_sum(counted, self.largest_weight), LARGEST_SUM)
            triangle = answer["triangle"]
            if (triangle > most).any() or (triangle < -most).any():
                raise InvalidReply("a sum of products is larger than the counts allow")
        return counted

    def check_sum(self, total: State) -> None:
        """Raise SettingError where more than a share CLIPPED of all clients' values lies outside the range, or the sums
        of so many samples could overflow an int64. `total` is the sum of the answers.
        """
        samples = int(total["counts"].sum())
        if self.grid.largest_sum(samples, self.largest_weight) > LARGEST_SUM:
            rule = f"could overflow 64-bit sums of {samples} samples: must be less"
            raise SettingError(f"{self.name}.bits", self.bits, rule)
        features = total["sums"].shape[-1]
        values = samples * features
        shares = [count / values for count in total["outside"].tolist()]
        if shares[0] <= CLIPPED:
            return
        rule = f"clips {shares[0]:.2%} of the features' values, and at most {CLIPPED:.1%} may be"
        enough = [doublings for doublings, share in enumerate(shares) if share <= CLIPPED]
        remedy = f"{self.range * 2 ** enough[0]:g} is enough" if enough else ""
        raise SettingError(f"{self.name}.range", self.range, rule, remedy=remedy)


@dataclass(frozen=True)
class ClassMeans(GridStatistics):
    """Answer, before round 1, with the count and the sum of the features of each class.

    The server learns their sums over all clients. Nothing else changes: training is the plain one to the bit.
    """

    name: ClassVar[str] = "class-means"


@dataclass(frozen=True)
class FeatureStatistics(GridStatistics):
    """Answer, before round 1, with each class's count and sum of features, and with G = sum z z^T over all samples.

    A client of fewer samples than features reveals the space that they span. Nothing else changes: training is the
    plain one to the bit.
    """

    name: ClassVar[str] = "feature-statistics"
    squares: ClassVar[bool] = True


@dataclass(frozen=True)
class BalancedStatistics(GridStatistics):
    """Answer as feature-statistics does, with P = sum v_y z z^T in which every class weighs about the same.

    v_c = round(1024 N_min / N_c), at least 1, from the counts N_c of all clients, which label-counts asks for first;
    N_min is the smallest count that is not 0. Nothing else changes: training is the plain one to the bit.
    """

    name: ClassVar[str] = "balanced-statistics"
    weighs: ClassVar[bool] = True
    squares: ClassVar[bool] = True

    def class_weights(self, client: Client) -> Tensor:
        return balanced_weights(client.broadcast[LabelCounts.name]["counts"].cpu())


def balanced_weights(counts_C: Tensor) -> Tensor:
    """Return (C,) int64 round(1024 N_min / N_c), at least 1; of a class without samples 1."""
    is_held_C = counts_C > 0
    smallest = counts_C[is_held_C].min().double()
    shares_C = smallest / counts_C.clamp(min=1).double()
    weights_C = (BALANCE * shares_C).round().clamp(min=1)
    return torch.where(is_held_C, weights_C, 1.0).long()


def checked_counts(counts_C: Tensor, samples: int | None) -> int:
    """Return the sum of class counts. Raises InvalidReply for one of other than so many samples."""
    total = int(counts_C.sum())
    if samples is not None and total != samples:
        raise InvalidReply(f"class counts are of {total} samples, and the client has {samples}")
    return total


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
