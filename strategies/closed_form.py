"""Heads in closed form: the pooled statistics in units of the features, the step to a deployed model, Fed3R and FedNCM.

A head here is a weight (C, D) and a bias (C,) in float64, made of integer sums alone. Equal sums give an equal head, so
how the samples are split between clients changes nothing.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from client_app.state import State
from client_app.variants.feature_statistics import GridStatistics, from_triangle
from data import OneOf, Rule
from strategies.core.server import Deployment, Numbers, Server, ServerMethod, Unit, Update
from strategies.head import with_head

Head = tuple[Tensor, Tensor]
"""weight (C, D) and bias (C,), float64."""
BELOW = 30.0
"""By how much the score of a class that nobody holds stays below another class's."""
CANDIDATES = tuple(mantissa * 10.0**power for power in range(-4, 3) for mantissa in (1, 3))
"""The values of rho among which generalized cross-validation chooses: 0.0001, 0.0003, 0.001, ... 300."""
CLIPPED = "clipped-features"


def is_rho(text: str) -> bool:
    """Return whether a text is `auto` or a number of 0 or more."""
    try:
        return text == "auto" or 0 <= float(text) < math.inf
    except ValueError:
        return False


RHO = Rule(is_rho, "must be auto, or a number of 0 or more")


@dataclass(frozen=True)
class Statistics:
    """The clients' features, pooled: float64, in units of the features."""

    counts_C: Tensor
    """n_c, int64."""
    means_CD: Tensor
    """mu_c; 0 for a class without samples."""
    weights_C: Tensor
    """v_c, int64: the weight of a sample of each class in `square_DD`."""
    square_DD: Tensor | None = None
    """sum v_y z z^T."""

    @property
    def samples(self) -> int:
        """N."""
        return int(self.counts_C.sum())

    @property
    def held(self) -> list[int]:
        """The classes that have samples."""
        return [int(label) for label in self.counts_C.nonzero().flatten()]

    def of_held(self) -> "Statistics":
        """Return the same of the classes that have samples."""
        held = self.held
        return Statistics(
            counts_C=self.counts_C[held],
            means_CD=self.means_CD[held],
            weights_C=self.weights_C[held],
            square_DD=self.square_DD,
        )

    @property
    def scale(self) -> float:
        """The factor that makes the weights of all samples sum to N."""
        return self.samples / float(self.counts_C @ self.weights_C)

    @property
    def mass_C(self) -> Tensor:
        """(C,) float64: v_c n_c, scaled so that they sum to N."""
        return self.counts_C.double() * self.weights_C.double() * self.scale

    @property
    def effective_samples(self) -> float:
        """How many samples of equal weight give a mean of the same precision (Kish): (sum v)^2 / sum v^2."""
        total = int(self.counts_C @ self.weights_C)
        return total**2 / int(self.counts_C @ self.weights_C.square())

    @property
    def mean_D(self) -> Tensor:
        """(D,) the mean of all samples, each with its weight."""
        mean_D: Tensor = self.mass_C @ self.means_CD / self.samples
        return mean_D

    def scatter(self, around_CD: Tensor) -> Tensor:
        """Return (D, D) sum v_y (z - m_y)(z - m_y)^T, scaled as `mass_C`; symmetric to the bit.

        The rows m_c are the classes' means, for the scatter within the classes, or the mean of all samples in every
        row, for the total scatter: then sum v_y z z^T - sum v_c n_c m_c m_c^T is that.
        """
        if self.square_DD is None:
            raise ValueError("these statistics hold no sum of squares")
        of_means_DD = around_CD.T @ (around_CD * self.mass_C[:, None])
        scatter_DD = self.square_DD * self.scale - of_means_DD
        return (scatter_DD + scatter_DD.T) / 2  # rounding has made it a little asymmetric

    def scatter_within(self) -> Tensor:
        """Return (D, D) the scatter around the classes' means."""
        return self.scatter(self.means_CD)

    def scatter_total(self) -> Tensor:
        """Return (D, D) the scatter around the mean of all samples."""
        return self.scatter(self.mean_D.expand_as(self.means_CD))

    def product(self) -> Tensor:
        """Return (D, C) X^T Y of centered features and one-hot labels: column c is n_c (mu_c - mu)."""
        centered_CD = self.means_CD - self.mean_D
        return (centered_CD * self.mass_C[:, None]).T


def statistics_of(answer: State, step: float, weights_C: Tensor) -> Statistics:
    """Return the statistics that the sum of all answers holds, on a grid of that step."""
    counts_C = answer["counts"]
    sums_CD = answer["sums"]
    at_least_one_C = counts_C.clamp(min=1)  # no division by zero of a class that nobody has
    means_CD = sums_CD.double() * step / at_least_one_C[:, None]
    square_DD = None
    if "triangle" in answer:
        integers_DD = from_triangle(answer["triangle"], sums_CD.shape[1])
        square_DD = integers_DD.double() * step**2
    return Statistics(counts_C, means_CD, weights_C, square_DD)


@dataclass(frozen=True)
class ClosedFormHead(ServerMethod):
    """A head that is computed once, from what the clients answered before round 1, and deployed beside every average.

    The model's features must be fixed. A class that nobody holds has the weights of the first class that somebody holds
    and a bias that is lower by 30, so it never wins.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"whole-model", "fixed-features"})
    units: ClassVar[Mapping[str, Unit]] = {CLIPPED: Unit.PERCENT}

    def head(self, statistics: Statistics, answer: State, step: float) -> Head:
        """Return the head of the classes that somebody holds.

        `statistics` are of those classes alone. `answer` is the clients' answers as they came, on a grid of that step.
        """
        raise NotImplementedError

    def deploy(
        self,
        server: Server,
        state: State,
        shared: State,
        updates: Sequence[Update],
    ) -> Deployment:
        answer = server.answers[self.uses]
        if not state:  # the same in every round
            state = self.new_state(server, answer)
        total = summed(answer)
        width = total["sums"].shape[1]
        values = int(total["counts"].sum()) * width
        clipped = float(total["outside"][0])  # beyond the range; then beyond 2, 4, ... times it
        metrics: Numbers = {CLIPPED: clipped / values}
        return Deployment({self.name: with_head(shared, state)}, state, metrics)

    def new_state(self, server: Server, answer: State) -> dict[str, Tensor]:
        """Return the head's weight (C, D) and bias (C,), in the model's own precision."""
        dtype = server.start["head.weight"].dtype
        step = self.step(server)
        total = summed(answer)
        statistics = statistics_of(total, step, self.weights(total["counts"]))
        head = self.head(statistics.of_held(), answer, step)
        weight_CD, bias_C = for_all_classes(head, statistics)
        return {"weight": weight_CD.to(dtype), "bias": bias_C.to(dtype)}

    def weights(self, counts_C: Tensor) -> Tensor:
        """Return (C,) int64 v_c: with what weights the clients summed their squares."""
        return torch.ones_like(counts_C)

    def step(self, server: Server) -> float:
        """Return the step of the clients' grid."""
        asked = server.variants[self.uses]
        assert isinstance(asked, GridStatistics)
        return asked.grid.step


def summed(answer: State) -> State:
    """Return the sum of all clients' answers, which `answer` is already where it has no row per client."""
    if answer["counts"].dim() == 1:
        return answer
    return {name: tensor.sum(0) for name, tensor in answer.items()}


def for_all_classes(head: Head, statistics: Statistics) -> Head:
    """Return the head of the classes that have samples with rows for the others, whose scores are always lower."""
    weight_MD, bias_M = head
    classes, width = statistics.means_CD.shape
    # Every class begins as the first one that somebody holds, with a lower bias.
    weight_CD = weight_MD[0].expand(classes, width).clone()
    bias_C = torch.full((classes,), float(bias_M[0]) - BELOW, dtype=torch.float64)
    held = statistics.held
    weight_CD[held] = weight_MD
    bias_C[held] = bias_M
    return weight_CD, bias_C


def regularized(matrix_DD: Tensor, rho: float) -> Tensor:
    """Return M + rho tr(M) / D I: rho is in units of the mean diagonal, so features may have any scale.

    Of a matrix without trace, as of a single sample's scatter, the identity.
    """
    identity_DD = torch.eye(len(matrix_DD), dtype=torch.float64)
    mean_diagonal = float(matrix_DD.diagonal().mean())
    if mean_diagonal <= 0:
        return identity_DD
    return matrix_DD + rho * mean_diagonal * identity_DD


def solver_of(method: ServerMethod, matrix_DD: Tensor) -> Callable[[Tensor], Tensor]:
    """Return what solves M X = B for B (D, n). Raises SettingError where rho leaves M singular."""
    factor_DD, failed = torch.linalg.cholesky_ex(matrix_DD)
    rule = "leaves a matrix that has no inverse: some feature is a combination of others"
    method.require(not failed, "rho", rule)

    def solve(right_Dn: Tensor) -> Tensor:
        return torch.cholesky_solve(right_Dn, factor_DD)

    return solve


def cross_validated_rho(
    scatter_DD: Tensor,
    product_DC: Tensor,
    mass_C: Tensor,
    samples: float,
) -> float:
    """Return the rho of ridge regression with the smallest generalized cross-validation error (Golub et al. 1979).

    With lambda = rho tr(S) / D, eigenvalues d_i of the total scatter S, coordinates b_ic of X^T Y in its eigenvectors
    and class sizes n_c, which `mass_C` holds:

        GCV = RSS / (1 - df / N)^2,   df = 1 + sum_i d_i / (d_i + lambda)
        RSS = sum_c [ n_c - n_c^2 / N ] - sum_ic b_ic^2 (d_i + 2 lambda) / (d_i + lambda)^2

    `samples` is the N of the first line: how many samples the degrees of freedom are to be compared with.
    """
    mean_diagonal = float(scatter_DD.diagonal().mean())
    if mean_diagonal <= 0:
        return CANDIDATES[0]
    values_D, vectors_DD = torch.linalg.eigh(scatter_DD)
    values_D = values_D.clamp(min=0)
    coordinates_DC = vectors_DD.T @ product_DC  # b_ic
    squares_D = coordinates_DC.square().sum(1)
    around = float((mass_C - mass_C.square() / mass_C.sum()).sum())
    best = CANDIDATES[-1]
    smallest = math.inf
    for rho in CANDIDATES:
        strength = rho * mean_diagonal
        freedom = 1 + float((values_D / (values_D + strength)).sum())
        if freedom >= samples:
            continue  # as many parameters as samples: nothing is left to judge by
        explained_D = squares_D * (values_D + 2 * strength) / (values_D + strength).square()
        residual = max(0.0, around - float(explained_D.sum()))
        error = residual / (1 - freedom / samples) ** 2
        if error < smallest:
            best, smallest = rho, error
    return best


def chosen_rho(text: str, statistics: Statistics, factor: float = 1.0) -> float:
    """Return the number that rho states; for `auto` `factor` times what cross-validation of ridge chooses."""
    if text != "auto":
        return float(text)
    rho = cross_validated_rho(
        statistics.scatter_total(),
        statistics.product(),
        statistics.mass_C,
        statistics.effective_samples,
    )
    return factor * rho


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


@dataclass(frozen=True)
class FedNCM(ClosedFormHead):
    """Deploy the head whose largest score is that of the nearest class mean.

        mu_c = sum_k s_kc / sum_k n_kc,   W_c = mu_c,   b_c = -||mu_c||^2 / 2

    with the sum s_kc of client k's features of class c; |z - mu_c|^2 is smallest where W_c z + b_c is largest. The
    authors' code has W_c = mu_c / ||mu_c|| and no such bias.
    """

    name: ClassVar[str] = "fedncm"
    uses: ClassVar[str] = "class-means"

    def head(self, statistics: Statistics, answer: State, step: float) -> Head:
        means_CD = statistics.means_CD
        return means_CD, -means_CD.square().sum(1) / 2
