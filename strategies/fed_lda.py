"""Linear discriminant analysis on frozen features, from sums alone, made for long tails."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from client_app.state import State
from client_app.variants.feature_statistics import balanced_weights
from data import OneOf
from strategies.closed_form import (
    RHO,
    ClosedFormHead,
    Head,
    Statistics,
    chosen_rho,
    regularized,
    solver_of,
)

FIRST_KAPPA = 10.0
"""Where the search for the shrinkage of the means begins."""
STEPS = 20
"""Steps of that search; it settles within ten."""
FACTOR = 2.0
"""rho = auto is this times the rho that cross-validation chooses for ridge regression."""


@dataclass(frozen=True)
class FedLDA(ClosedFormHead):
    """Deploy a linear discriminant with shrunken means, and without the bias that a mean of few samples has.

        Sigma = (P - sum_c v_c n_c mu_c mu_c^T) / sum_c v_c (n_c - 1),   P = sum v_y z z^T
        A = Sigma + rho tr(Sigma) / D I,   t = tr(A^-1 Sigma)
        m_c = a_c (mu_c - g),   a_c = n_c / (n_c + kappa)
        W_c = A^-1 m_c,   b_c = -(m_c^T A^-1 m_c - a_c^2 t / n_c) / 2 - g^T W_c

    v_c = 1 / N_c, in whole numbers, gives every class the same weight in the covariance. g is the mean of the classes
    and kappa the variance of a sample over that of the classes' means, both by the method of moments (`shrinkage`). Of
    a mean of n_c samples m_c^T A^-1 m_c is expected to be a_c^2 t / n_c too large, 20 to 30 nats for ten samples and a
    thousand features, so that a rare class would hardly ever be predicted; b_c takes that out.

    means = plain is the textbook's discriminant: m_c = mu_c - g with the overall mean g, nothing taken out of the bias,
    and Sigma divided by sum_c v_c n_c. With rho = 0 it is scikit-learn's LinearDiscriminantAnalysis (lsqr).
    """

    name: ClassVar[str] = "fed-lda"
    uses: ClassVar[str] = "balanced-statistics"

    rho: Annotated[str, RHO] = "0.5"
    """Strength of the identity in A, in units of Sigma's mean diagonal; auto is twice what generalized cross-validation
    of a ridge regression chooses."""
    prior: Annotated[str, OneOf("uniform", "global")] = "uniform"
    """The classes' shares where the model is used: uniform, or those of all clients' samples, whose logarithms are then
    added to the bias."""
    means: Annotated[str, OneOf("shrunken", "plain")] = "shrunken"
    """shrunken: towards their mean, the further the fewer samples a class has. plain: as they are."""

    def weights(self, counts_C: Tensor) -> Tensor:
        return balanced_weights(counts_C)

    def head(self, statistics: Statistics, answer: State, step: float) -> Head:
        rho = chosen_rho(self.rho, statistics, FACTOR)
        scatter_DD = statistics.scatter_within()
        if self.means == "plain":
            covariance_DD = scatter_DD / statistics.samples
            solve = solver_of(self, regularized(covariance_DD, rho))
            return lda_head(statistics, solve, self.prior)
        counts_C = statistics.counts_C.double()
        freedom_C = statistics.mass_C * (counts_C - 1) / counts_C
        covariance_DD = scatter_DD / max(float(freedom_C.sum()), 1.0)
        solve = solver_of(self, regularized(covariance_DD, rho))
        noise = float(solve(covariance_DD).diagonal().sum())  # t
        kappa, center_D = shrinkage(statistics, solve, noise)
        return lda_head(statistics, solve, self.prior, center_D, kappa, noise)


@dataclass(frozen=True)
class FedLDAPooled(FedLDA):
    """FedLDA with v_c = 1: Sigma is the pooled covariance within the classes.

    One question is enough. Under long tails the covariance is that of the large classes, and the head finds rare
    classes a little less often.
    """

    name: ClassVar[str] = "fed-lda-pooled"
    uses: ClassVar[str] = "feature-statistics"

    def weights(self, counts_C: Tensor) -> Tensor:
        return torch.ones_like(counts_C)


def lda_head(
    statistics: Statistics,
    solve: Callable[[Tensor], Tensor],
    prior: str,
    center_D: Tensor | None = None,
    kappa: float = 0.0,
    noise: float = 0.0,
) -> Head:
    """Return W_c = A^-1 m_c and b_c as in FedLDA, with `solve` for A^-1, plus the logarithm of the prior.

    `center_D` is g, by default the overall mean, which adds the same to every class's score where nothing is shrunken.
    `noise` is t; without `kappa` and `noise` it is the textbook's discriminant.
    """
    if center_D is None:
        center_D = statistics.mean_D
    counts_C = statistics.counts_C.double()
    shrunk_C = counts_C / (counts_C + kappa)  # a_c
    means_CD = shrunk_C[:, None] * (statistics.means_CD - center_D)  # m_c
    weight_CD = solve(means_CD.T).T
    lengths_C = (means_CD * weight_CD).sum(1)  # m_c^T A^-1 m_c
    excess_C = shrunk_C.square() * noise / counts_C  # expected of noise alone
    bias_C = -(lengths_C - excess_C) / 2 - weight_CD @ center_D
    if prior == "global":
        bias_C = bias_C + torch.log(counts_C / statistics.samples)
    return weight_CD, bias_C


def shrinkage(
    statistics: Statistics, solve: Callable[[Tensor], Tensor], noise: float
) -> tuple[float, Tensor]:
    """Return kappa and the mean g of the classes, by the method of moments.

        w_c = n_c / (n_c + kappa), made to sum to 1;   g = sum_c w_c mu_c;   d_c = (mu_c - g)^T A^-1 (mu_c - g)
        beta = sum_c w_c (d_c - t ((1 - 2 w_c) / n_c + sum_j w_j^2 / n_j)) / (1 - sum_c w_c^2);   kappa = t / beta

    beta is the classes' own scatter, without that of their means' noise; where it is not positive the means say nothing
    of the classes beyond that noise, and the last kappa before stays.
    """
    counts_C = statistics.counts_C.double()
    means_CD = statistics.means_CD
    kappa = FIRST_KAPPA
    center_D = means_CD.mean(0)
    if len(counts_C) < 2:
        return kappa, center_D
    for _ in range(STEPS):
        weights_C = counts_C / (counts_C + kappa)
        weights_C = weights_C / weights_C.sum()
        center_D = weights_C @ means_CD
        around_CD = means_CD - center_D
        distances_C = (around_CD * solve(around_CD.T).T).sum(1)  # d_c
        of_center = (weights_C.square() / counts_C).sum()
        noise_C = noise * ((1 - 2 * weights_C) / counts_C + of_center)
        between = float((weights_C * (distances_C - noise_C)).sum())
        beta = between / (1 - float(weights_C.square().sum()))
        if beta <= 0 or noise <= 0:
            break
        kappa = noise / beta
    return kappa, center_D
