"""The model of any coalition of sites: one head in closed form, from the sum of the sites' statistics.

The statistics are integers, so a coalition's are the same whatever the order in which sites join it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from client_app.integer_grid import from_triangle
from client_app.state import State
from fedskew.worth.shapley import Coalition, Integers
from strategies.closed_form import (
    ClosedFormHead,
    Head,
    Statistics,
    chosen_rho,
    for_all_classes,
)
from strategies.fed_lda import FACTOR, FedLDA

COMPONENTS = 256
"""Principal components of the features that a quick answer keeps."""


@dataclass(frozen=True)
class SiteStatistics:
    """What one site, or several, know of their features, as whole numbers."""

    counts_C: Tensor
    """n_c, int64."""
    sums_CD: Tensor
    """Sum of the features of each class, int64."""
    products_DD: Tensor
    """Sum of z z^T, int64; empty for a head that needs none."""

    def __add__(self, other: "SiteStatistics") -> "SiteStatistics":
        return SiteStatistics(
            self.counts_C + other.counts_C,
            self.sums_CD + other.sums_CD,
            self.products_DD + other.products_DD,
        )

    def __sub__(self, other: "SiteStatistics") -> "SiteStatistics":
        return SiteStatistics(
            self.counts_C - other.counts_C,
            self.sums_CD - other.sums_CD,
            self.products_DD - other.products_DD,
        )

    def __rmul__(self, times: int) -> "SiteStatistics":
        return SiteStatistics(
            times * self.counts_C,
            times * self.sums_CD,
            times * self.products_DD,
        )

    @property
    def samples(self) -> int:
        """How many samples they are of."""
        return int(self.counts_C.sum())

    def in_units(self, step: float) -> Statistics:
        """Return the same in units of the features, with the grid's `step`."""
        divisors_C1 = self.counts_C.clamp(min=1)[:, None]  # a class without samples has sums of 0
        means_CD = self.sums_CD.double() * step / divisors_C1
        square_DD = None
        if self.products_DD.numel():
            square_DD = self.products_DD.double() * step**2
        return Statistics(self.counts_C, means_CD, square_DD)

    def projected(self, axes_DM: Tensor) -> "SiteStatistics":
        """Return the statistics of the features' coordinates along `axes_DM`, again as whole numbers.

        Rounding, at most half a unit of the grid in each sum, makes sums of sites independent of their order.
        """
        sums_CM = self.sums_CD.double() @ axes_DM
        products_MM = self.products_DD
        if products_MM.numel():
            products_MM = axes_DM.T @ products_MM.double() @ axes_DM
            products_MM = (products_MM + products_MM.T) / 2  # symmetric before it is rounded
            products_MM = products_MM.round().long()
        return SiteStatistics(self.counts_C, sums_CM.round().long(), products_MM)


def from_answer(answer: State) -> SiteStatistics:
    """Return the statistics that a client's answer holds."""
    sums_CD = answer["sums"]
    products_DD = torch.zeros(0, dtype=torch.int64)
    if "triangle" in answer:
        products_DD = from_triangle(answer["triangle"], sums_CD.shape[1])
    return SiteStatistics(answer["counts"], sums_CD, products_DD)


def total(parts: Sequence[SiteStatistics]) -> SiteStatistics:
    """Return the sum of at least one site's statistics."""
    first, *others = parts
    return sum(others, start=first)


def principal_axes(statistics: SiteStatistics, step: float, components: int) -> Tensor:
    """Return (D, M) float64: the axes along which all sites' features vary most."""
    scatter_DD = statistics.in_units(step).scatter_total()
    _, vectors_DD = torch.linalg.eigh(scatter_DD)  # by ascending eigenvalue
    axes_DM: Tensor = vectors_DD.flip(1)[:, :components].contiguous()
    return axes_DM


@dataclass
class Coalitions:
    """The sites' statistics, the head that a coalition gets from them, and the test samples that judge it."""

    method: ClosedFormHead
    sites: list[SiteStatistics]
    step: float
    """Of the grid of the statistics."""
    features_TD: Tensor
    """(T, D) float64: features of the test samples."""
    labels_T: NDArray[np.int64]

    def __post_init__(self) -> None:
        self.classes = len(self.sites[0].counts_C)
        self.everybody = total(self.sites)
        self.nobody = self.everybody - self.everybody
        self.current: Coalition = frozenset()
        self.current_sum = self.nobody

    def compressed(self, components: int) -> "Coalitions":
        """Return the same along the features' first principal components; itself where there are no more than those.

        A head without products has no principal axes, and no need to be quicker.
        """
        width = self.features_TD.shape[1]
        if components >= width or not self.everybody.products_DD.numel():
            return self
        axes_DM = principal_axes(self.everybody, self.step, components)
        sites = [site.projected(axes_DM) for site in self.sites]
        return replace(self, sites=sites, features_TD=self.features_TD @ axes_DM)

    def with_rho_of_all(self) -> "Coalitions":
        """Return the same with `rho = auto` made a number by all sites' statistics, so that all coalitions share it."""
        rho = getattr(self.method, "rho", "")
        if rho != "auto":
            return self
        factor = FACTOR if isinstance(self.method, FedLDA) else 1.0
        pooled = self.everybody.in_units(self.step).of_held()
        number = chosen_rho(rho, pooled, factor)
        method = replace(self.method, rho=repr(number))  # type: ignore[call-arg]
        return replace(self, method=method)

    def sum_of(self, coalition: Coalition) -> SiteStatistics:
        """Return the sum of the sites' statistics; quickest for a coalition that is near the one before."""
        for site in sorted(coalition - self.current):
            self.current_sum = self.current_sum + self.sites[site]
        for site in sorted(self.current - coalition):
            self.current_sum = self.current_sum - self.sites[site]
        self.current = coalition
        return self.current_sum

    def head(self, statistics: SiteStatistics) -> Head | None:
        """Return the weight (C, D) and bias (C,) that the statistics give; None without samples."""
        if not statistics.samples:
            return None
        pooled = statistics.in_units(self.step)
        head = self.method.heads(pooled.of_held(), {}, self.step)[self.method.name]
        return for_all_classes(head, pooled)

    def outcomes(self, coalitions: Sequence[Coalition]) -> list[Integers]:
        """Return for each coalition (T,) its hits in units of 1 / C: C where it is right, 0 where it is wrong.

        Without any sample every class is as good as another: 1 on each test sample, the mean of a guess.
        """
        heads = []
        for coalition in coalitions:
            statistics = self.sum_of(coalition)
            heads.append(self.head(statistics))
        return self.hits(heads)

    def hits(self, heads: Sequence[Head | None]) -> list[Integers]:
        """Return for each head (T,) int64: C where it is right, 0 where it is wrong, 1 where there is none."""
        existing = [head for head in heads if head is not None]
        columns_ST = iter(self.hits_of_existing(existing)) if existing else iter(())
        guess_T = np.ones(len(self.labels_T), np.int64)
        hits = []
        for head in heads:
            hits.append(guess_T if head is None else next(columns_ST))
        return hits

    def hits_of_existing(self, heads: Sequence[Head]) -> Integers:
        """Return (S, T) int64 for S heads: C where one is right on a test sample, 0 where it is wrong."""
        weights_SCD = torch.stack([weight_CD for weight_CD, _ in heads])
        biases_SC = torch.stack([bias_C for _, bias_C in heads])
        # One matrix product for all heads, whose classes stand side by side in its columns.
        weights_MD = weights_SCD.flatten(0, 1)
        biases_M = biases_SC.flatten()
        scores_TM = self.features_TD @ weights_MD.T + biases_M
        scores_TSC = scores_TM.view(-1, *biases_SC.shape)

        predictions_TS = scores_TSC.argmax(2).numpy()
        labels_T1 = self.labels_T[:, None]
        is_right_ST = (predictions_TS == labels_T1).T
        hits_ST: Integers = (is_right_ST * self.classes).astype(np.int64)
        return hits_ST
