"""Fed3R: ridge regression from frozen features to the classes, from sums alone (Fani et al., ICML 2024)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from client_app.state import State
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


@dataclass(frozen=True)
class Fed3R(ClosedFormHead):
    """Deploy the head of least squared error, with a penalty on its weights.

        W* = (S + lambda I)^-1 sum_c n_c (mu_c - mu) e_c^T,   b_c = n_c / N - mu^T W_c,   lambda = rho tr(S) / D

    with one-hot labels e_c, the mean mu of all features, and their scatter S around it, from the clients' sum of z z^T.
    prior = global is that: scikit-learn's Ridge on all clients' samples. prior = uniform divides class c's scores by
    sqrt(n_c / N), so that rare classes are found as well.

    Differences from the paper: features are centered, as a bias stands for, lambda has no fixed size, and the weights
    are divided by the root of the class's share in place of their norm.
    """

    name: ClassVar[str] = "fed3r"
    uses: ClassVar[str] = "feature-statistics"

    rho: Annotated[str, RHO] = "auto"
    """Strength of the penalty, in units of the scatter's mean diagonal; auto is by generalized cross-validation."""
    prior: Annotated[str, OneOf("uniform", "global")] = "uniform"
    """The classes' shares where the model is used: uniform, or those of all clients' samples."""

    def head(self, statistics: Statistics, answer: State, step: float) -> Head:
        rho = chosen_rho(self.rho, statistics)
        scatter_DD = regularized(statistics.scatter_total(), rho)
        weight_DC = solver_of(self, scatter_DD)(statistics.product())
        shares_C = statistics.counts_C.double() / statistics.samples
        bias_C = shares_C - statistics.mean_D @ weight_DC
        if self.prior == "uniform":
            roots_C = shares_C.sqrt()
            weight_DC = weight_DC / roots_C
            bias_C = bias_C / roots_C
        return weight_DC.T, bias_C
