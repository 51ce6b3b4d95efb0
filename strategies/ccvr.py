"""CCVR: calibrate the classifier on virtual features (Luo et al., NeurIPS 2021)."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

from client_app.state import State
from strategies.core.server import Deployment, Server, ServerMethod, Update
from strategies.head import with_trained_head


@dataclass(frozen=True)
class CCVR(ServerMethod):
    """After the last round, deploy the average under a head that is re-trained on features drawn class by class.

    Class c's features are normal with the mean and the covariance of all clients' features pooled:

        mu_c    = sum_k n_kc mu_kc / N_c
        Sigma_c = sum_k (n_kc - 1) / (N_c - 1) Sigma_kc
                  + sum_k n_kc / (N_c - 1) mu_kc mu_kc^T - N_c / (N_c - 1) mu_c mu_c^T

    class-statistics.covariance = diagonal keeps of every Sigma its diagonal alone, which these sums do entry by entry.
    The average itself is FedAvg's. Identity: features-per-class = 0 or head-steps = 0 deploys FedAvg's own head.
    """

    name: ClassVar[str] = "ccvr"
    uses: ClassVar[str] = "class-statistics"
    needs: ClassVar[frozenset[str]] = frozenset({"whole-model"})

    features_per_class: Annotated[int, Ge(0), Le(100_000)] = 200
    """M_c: virtual features of each class that any client has."""
    head_steps: Annotated[int, Ge(0)] = 300
    """Full-batch steps of the head, from the average's."""
    head_learning_rate: Annotated[float, Gt(0)] = 0.1
    """Learning rate of the head."""

    def deploy(
        self,
        server: Server,
        state: State,
        shared: State,
        updates: Sequence[Update],
    ) -> Deployment:
        classes, width = shared["head.weight"].shape
        answers = server.final_answers.values()
        counts_C, means_CD, covariances = pooled(answers, classes, width)
        held = counts_C.nonzero().flatten().tolist()
        if not (self.features_per_class and self.head_steps and held):
            return Deployment({self.name: shared}, state)
        draws = server.generator(self.name)
        number = self.features_per_class
        drawn = []
        for label in held:
            drawn.append(virtual_features(means_CD[label], covariances[label], number, draws))
        features_ND = torch.cat(drawn).to(server.device, shared["head.weight"].dtype)
        labels_N = torch.tensor(held).repeat_interleave(number).to(server.device)
        steps, rate = self.head_steps, self.head_learning_rate
        model = with_trained_head(shared, features_ND, labels_N, steps, rate)
        return Deployment({self.name: model}, state)


def pooled(answers: Collection[State], classes: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return each class's count (C,), mean (C, D) and unbiased covariance (C, D, D) over all clients, float64.

    The sum of squares is taken around the pooled mean: the class docstring's sum without its cancellation. A class with
    a single sample has covariance 0, one that nobody holds is 0 throughout. Diagonals (n, D) give a diagonal (C, D).
    """
    # Checked: class-statistics.covariance says for all answers whether they are full.
    diagonal = any(answer["covariances"].dim() == 2 for answer in answers)
    shape = (width,) if diagonal else (width, width)
    counts_C = torch.zeros(classes, dtype=torch.float64)
    sums_CD = torch.zeros(classes, width, dtype=torch.float64)
    for answer in answers:
        classes_n = answer["classes"]
        counts_n1 = answer["counts"].double()[:, None]
        counts_C[classes_n] += answer["counts"]
        sums_CD[classes_n] += counts_n1 * answer["means"].double()
    means_CD = sums_CD / counts_C.clamp(min=1)[:, None]  # mu_c

    scatter = torch.zeros(classes, *shape, dtype=torch.float64)
    for answer in answers:
        scatter[answer["classes"]] += scatter_of(answer, means_CD)
    freedom_C = (counts_C - 1).clamp(min=1)
    freedom = freedom_C.reshape(classes, *[1 for _ in shape])
    return counts_C, means_CD, scatter / freedom  # the last one is Sigma_c


def scatter_of(answer: State, means_CD: Tensor) -> Tensor:
    """Return one client's sums of squares around the pooled means, by class it has: (n, D, D), or diagonals (n, D)."""
    covariances = answer["covariances"].double()
    between_nD = answer["means"].double() - means_CD[answer["classes"]]
    if covariances.dim() == 2:
        squares = between_nD.square()
    else:
        squares = between_nD[:, :, None] * between_nD[:, None, :]
    counts = answer["counts"].double().reshape(-1, *[1 for _ in covariances.shape[1:]])
    return (counts - 1) * covariances + counts * squares


def virtual_features(
    mean_D: Tensor,
    covariance: Tensor,
    number: int,
    draws: torch.Generator,
) -> Tensor:
    """Return (number, D) draws from N(mean, covariance), which is (D, D) or its diagonal (D,).

    By eigenvectors, as a tail class with fewer samples than features has a singular covariance; eigenvalues that
    rounding made negative count as 0.
    """
    normal_MD = torch.randn(number, len(mean_D), generator=draws, dtype=mean_D.dtype)
    if covariance.dim() == 1:
        return mean_D + normal_MD * covariance.clamp(min=0).sqrt()
    symmetric_DD = (covariance + covariance.T) / 2
    values_D, vectors_DD = torch.linalg.eigh(symmetric_DD)
    deviations_D = values_D.clamp(min=0).sqrt()
    drawn_MD: Tensor = mean_D + (normal_MD * deviations_D) @ vectors_DD.T
    return drawn_MD
