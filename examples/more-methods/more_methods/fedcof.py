"""FedCOF: the features' covariance from the clients' class means alone (Goswami et al., NeurIPS 2025)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge
from torch import Tensor

from fedskew.methods import (
    ClosedFormHead,
    GridStatistics,
    Method,
    OneOf,
    State,
    Statistics,
    lda_head,
    regularized,
    solver_of,
)


@dataclass(frozen=True)
class ClientMeans(GridStatistics):
    """Answer, before round 1, with the count and the sum of the features of each class.

    The server keeps the clients' answers apart. Nothing else changes: training is the plain one to the bit.
    """

    name: ClassVar[str] = "client-means"
    by_client: ClassVar[bool] = True


@dataclass(frozen=True)
class FedCOF(ClosedFormHead):
    """Deploy a linear discriminant whose covariance comes from how the clients' means of a class scatter.

        Sigma_c = 1 / (K_c - 1) sum_k n_kc (mu_kc - mu_c)(mu_kc - mu_c)^T
        Sigma   = sum_c (n_c - 1) Sigma_c / sum_c (n_c - 1),   A = Sigma + rho tr(Sigma) / D I
        W_c = A^-1 mu_c,   b_c = -mu_c^T A^-1 mu_c / 2

    over the K_c clients that hold class c; a class that fewer than two hold has no Sigma_c and is left out of Sigma.
    The estimate of Sigma_c is unbiased where a client's samples of a class are drawn from all of that class's, and it
    has rank K_c - 1 at most. So, unlike the other heads in closed form, this one depends on the partition. No client
    sends a sum of z z^T, but the server sees each client's means.

    Difference from the paper: the covariance makes a linear discriminant, not the inverse in a ridge regression.
    """

    name: ClassVar[str] = "fedcof"
    uses: ClassVar[str] = ClientMeans.name

    rho: Annotated[float, Ge(0)] = 1.0
    """Strength of the identity in A, in units of the mean diagonal of Sigma."""
    prior: Annotated[str, OneOf("uniform", "global")] = "uniform"
    """The classes' shares where the model is used: uniform, or those of all clients' samples."""

    def head(self, statistics: Statistics, answer: State, step: float) -> tuple[Tensor, Tensor]:
        """Return the weight (C, D) and the bias (C,) of the classes that somebody holds."""
        matrix_DD = regularized(covariance(statistics, answer, step), self.rho)
        solve = solver_of(self, matrix_DD)
        return lda_head(statistics, solve, self.prior)


def covariance(statistics: Statistics, answer: State, step: float) -> Tensor:
    """Return (D, D) Sigma from the clients' counts (K, C) and sums (K, C, D) on a grid of that step."""
    # `statistics` are of the classes that somebody holds, in this order.
    held = answer["counts"].sum(0).nonzero().flatten().tolist()
    width = answer["sums"].shape[-1]
    scatter_DD = torch.zeros(width, width, dtype=torch.float64)
    freedom = 0.0
    for row, label in enumerate(held):
        counts_K = answer["counts"][:, label]
        is_holder_K = counts_K > 0
        holders = int(is_holder_K.sum())
        if holders < 2:
            continue
        counts_M1 = counts_K[is_holder_K].double()[:, None]
        means_MD = answer["sums"][is_holder_K, label].double() * step / counts_M1
        around_MD = (means_MD - statistics.means_CD[row]) * counts_M1.sqrt()
        weight = float(counts_M1.sum()) - 1  # n_c - 1
        scatter_DD += around_MD.T @ around_MD * (weight / (holders - 1))
        freedom += weight
    return scatter_DD / max(freedom, 1.0)


FEDCOF = Method(
    "fedcof",
    "a linear discriminant whose covariance comes from the clients' class means",
    "Goswami et al., NeurIPS 2025",
    "class counts and feature means, once, client by client: of a single sample its feature",
    (ClientMeans.name,),
    deploy=FedCOF.name,
    parts=(ClientMeans, FedCOF),
)
