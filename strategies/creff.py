"""CReFF: re-train the classifier on learned "federated features" (Shang et al., IJCAI 2022)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt, Le
from torch import Tensor

from client_app.state import State, on_device
from client_app.variants.feature_gradients import with_bias, with_constant
from data import When
from strategies.core.server import Deployment, Server, ServerMethod, Unit, Update
from strategies.head import descend, random_head, train_head, with_head
from strategies.real_data import DISSIMILARITIES, dissimilarities

HEAD_BATCH, HEAD_RATE = 32, 0.01
"""Features in a mini-batch of the head's training, and its learning rate."""
GUARD = 1e-6
"""Added to every product of norms."""


@dataclass(frozen=True)
class FederatedFeatures(ServerMethod):
    """What CReFF is, whatever its distance and its head's training: see CReFF."""

    needs: ClassVar[frozenset[str]] = frozenset({"shared-head"})
    loss_name: ClassVar[str]
    """What the round's record calls the mean distance after the round's steps."""

    features_per_class: Annotated[int, Ge(0), Le(100_000)] = 100
    """m: federated features of each class."""
    feature_steps: Annotated[int, Ge(0)] = 100
    """I: gradient steps on the features in a round."""
    feature_learning_rate: Annotated[float, Gt(0)] = 0.1
    """Learning rate of the features."""

    def initial_state(self, server: Server) -> State:
        """Return noise features (C, m, D) and a random head, v^ of round 1."""
        classes, width = server.model.head.weight.shape
        draws = server.generator(self.name)
        features_CMD = torch.randn(classes, self.features_per_class, width, generator=draws)
        return {"features": features_CMD, **random_head(classes, width, draws)}

    def broadcast(self, server: Server, state: State) -> Mapping[str, State]:
        return {self.uses: {"weight": state["weight"], "bias": state["bias"]}}

    def deploy(
        self,
        server: Server,
        state: State,
        shared: State,
        updates: Sequence[Update],
    ) -> Deployment:
        if self.features_per_class == 0:
            return Deployment({self.name: shared}, state)
        state = on_device(state, server.device)
        uploads = [update.uploads[self.uses] for update in updates]
        wanted_NCE, held = mean_gradients(uploads, server.device)
        features_CMD = self.match(state["features"], state, wanted_NCE, held)

        draws = server.generator(self.name)
        classes, width = state["weight"].shape
        # A new random head every round, as in the authors' code.
        head = on_device(random_head(classes, width, draws), server.device)
        labels_N = torch.arange(classes, device=server.device)
        labels_N = labels_N.repeat_interleave(self.features_per_class)
        head = self.retrain(head, features_CMD.reshape(-1, width), labels_N, draws)  # Eq. (7)

        # How well the features match now, under the head that the clients had.
        matched_NCE = self.gradients(features_CMD[held], state, held)
        distances_NR = self.distances(matched_NCE, wanted_NCE)
        numbers: dict[str, float | Sequence[float]] = {self.loss_name: distances_NR.mean().item()}
        numbers |= self.compared(server, features_CMD, distances_NR, held)
        new_state = on_device({"features": features_CMD, **head}, "cpu")
        return Deployment({self.name: with_head(shared, head)}, new_state, numbers)

    def match(self, features_CMD: Tensor, head: State, wanted_NCE: Tensor, held: Tensor) -> Tensor:
        """Return the features after I steps down the distance, all classes `held` at once; the others' stay."""
        moving_NMD = features_CMD[held].requires_grad_(True)
        for _ in range(self.feature_steps):
            distances_NR = self.distances(self.gradients(moving_NMD, head, held), wanted_NCE)
            (slope_NMD,) = torch.autograd.grad(distances_NR.sum(), moving_NMD)  # Eq. (6)
            with torch.no_grad():
                moving_NMD -= self.feature_learning_rate * slope_NMD
        return features_CMD.index_copy(0, held, moving_NMD.detach())

    def gradients(self, features_NMD: Tensor, head: State, held: Tensor) -> Tensor:
        """Return (n, C, E): what clients with these features of the classes `held` would send."""
        return feature_gradients(features_NMD, head["weight"], head["bias"], held)

    def distances(self, gradients_NCE: Tensor, wanted_NCE: Tensor) -> Tensor:
        """Return (n, R): of each class and row, how far two gradients are apart."""
        return row_distances(gradients_NCE, wanted_NCE)

    def compared(
        self, server: Server, features_CMD: Tensor, distances_NR: Tensor, held: Tensor
    ) -> Mapping[str, Sequence[float]]:
        """Return what else the record holds, by class."""
        return {}

    def retrain(
        self, head: State, features_ND: Tensor, labels_N: Tensor, draws: torch.Generator
    ) -> dict[str, Tensor]:
        """Return the head trained by cross-entropy on all features."""
        raise NotImplementedError


@dataclass(frozen=True)
class CReFF(FederatedFeatures):
    """Deploy {u, v^}: the average's features under a head that is re-trained every round.

    The server moves m features a class until the gradients they give the head v^ match the clients' (Eq. 4-6), then
    trains a new head on them (Eq. 7) and sends it out for the next round. v^ never enters the average: the trajectory
    of {u, v} is FedAvg's. features-per-class = 0 deploys FedAvg's own head.
    """

    name: ClassVar[str] = "creff"
    uses: ClassVar[str] = "feature-gradients"
    loss_name: ClassVar[str] = "matching-loss"
    units: ClassVar[Mapping[str, Unit]] = dict.fromkeys(
        ("matching-loss", *DISSIMILARITIES), Unit.NONE
    )

    head_steps: Annotated[int, Ge(0)] = 300
    """J: full-batch steps of the head in a round."""
    head_learning_rate: Annotated[float, Gt(0)] = 0.1
    """Learning rate of the head."""
    compare_features: Annotated[bool, When("features_per_class")] = False
    """Record by class, as in the paper's Figure 4, the matching loss and 1 - cosine of the features and the hold-out's,
    whose labels are looked at: once of their means, once of single features, the mean over pairs; no model changes."""

    @property
    def needs_holdout(self) -> bool:
        return self.compare_features

    def compared(
        self, server: Server, features_CMD: Tensor, distances_NR: Tensor, held: Tensor
    ) -> dict[str, Sequence[float]]:
        if not self.compare_features:
            return {}
        return dissimilarities(server, self.name, features_CMD, distances_NR.mean(1), held)

    def retrain(
        self, head: State, features_ND: Tensor, labels_N: Tensor, draws: torch.Generator
    ) -> dict[str, Tensor]:
        """Return the head after J full-batch steps of cross-entropy on all features."""
        steps, rate = self.head_steps, self.head_learning_rate
        return train_head(head, features_ND, labels_N, steps, rate)


def mean_gradients(uploads: Sequence[State], device: str = "cpu") -> tuple[Tensor, Tensor]:
    """Return (n, C, E) and (n,): each class's unweighted mean over the clients that hold it, and which classes."""
    classes_n = torch.unique(torch.cat([upload["classes"] for upload in uploads]))
    gradients_nCE = uploads[0]["gradients"]
    total_nCE = torch.zeros(len(classes_n), *gradients_nCE.shape[1:], dtype=torch.float64)
    holders_n = torch.zeros(len(classes_n))
    for upload in uploads:
        rows = torch.searchsorted(classes_n, upload["classes"])
        total_nCE[rows] += upload["gradients"]
        holders_n[rows] += 1
    mean_nCE = total_nCE / holders_n[:, None, None]  # Eq. (4)
    return mean_nCE.to(device, gradients_nCE.dtype), classes_n.to(device)


def feature_gradients(
    features_NMD: Tensor, weight_CD: Tensor, bias_C: Tensor, held: Tensor
) -> Tensor:
    """Return (n, C, D): of the classes `held`, the mean over m features of (softmax(W s + b) - e_c) s^T."""
    one_hot_NC = torch.eye(len(weight_CD), device=weight_CD.device)[held]
    probabilities_NMC = torch.softmax(features_NMD @ weight_CD.T + bias_C, dim=2)
    errors_NMC = probabilities_NMC - one_hot_NC.unsqueeze(1)  # p - e_c
    per_class = features_NMD.shape[1]
    return errors_NMC.transpose(1, 2) @ features_NMD / per_class  # Eq. (5)


def row_distances(left: Tensor, right: Tensor) -> Tensor:
    """Return 1 - cosine over the last dimension; a row whose right side is zero has no direction and counts as 0."""
    cosines = F.cosine_similarity(left, right, dim=-1, eps=1e-8)
    has_direction = right.norm(dim=-1) > 0
    distances: Tensor = (1 - cosines) * has_direction
    return distances


@dataclass(frozen=True)
class CReFFCode(FederatedFeatures):
    """CReFF as its authors run it: the bias's gradient is one more row, and the head is trained in mini-batches.

    Its clients estimate their gradients from a few augmented samples and send the bias's too (augmented-gradients).
    """

    name: ClassVar[str] = "creff-code"
    uses: ClassVar[str] = "augmented-gradients"
    loss_name: ClassVar[str] = "matching-loss-code"
    units: ClassVar[Mapping[str, Unit]] = {"matching-loss-code": Unit.NONE}

    head_epochs: Annotated[int, Ge(0)] = 300
    """Passes over all features in a round."""

    def gradients(self, features_NMD: Tensor, head: State, held: Tensor) -> Tensor:
        """Return (n, C, D + 1), the bias's gradient the last column."""
        weight_CE = with_bias(head["weight"], head["bias"])
        no_bias_C = torch.zeros_like(head["bias"])
        return feature_gradients(with_constant(features_NMD), weight_CE, no_bias_C, held)

    def distances(self, gradients_NCE: Tensor, wanted_NCE: Tensor) -> Tensor:
        """Return (n, C + 1) distances: one per row of the weight's gradient, and one for the bias's gradient."""
        rows_NC = guarded_distances(gradients_NCE[..., :-1], wanted_NCE[..., :-1])
        bias_N = guarded_distances(gradients_NCE[..., -1], wanted_NCE[..., -1])
        return torch.cat([rows_NC, bias_N[:, None]], dim=1)

    def retrain(
        self, head: State, features_ND: Tensor, labels_N: Tensor, draws: torch.Generator
    ) -> dict[str, Tensor]:
        """Return the head after its epochs of mini-batches on all features."""
        return descend(head, features_ND, labels_N, self.batches(labels_N, draws), HEAD_RATE)

    def batches(self, labels_N: Tensor, draws: torch.Generator) -> Iterator[Tensor]:
        """Yield the indices of every epoch's mini-batches, in a new order; the last one may be smaller."""
        for _ in range(self.head_epochs):
            order_N = torch.randperm(len(labels_N), generator=draws)
            yield from torch.split(order_N.to(labels_N.device), HEAD_BATCH)


def guarded_distances(left: Tensor, right: Tensor) -> Tensor:
    """Return 1 - <a, b> / (‖a‖ ‖b‖ + 1e-6) over the last dimension.

    The distance is 1 if either is zero, and close to 1 if both are tiny.
    """
    product = (left * right).sum(-1)
    norms = left.norm(dim=-1) * right.norm(dim=-1)
    distances: Tensor = 1 - product / (norms + GUARD)
    return distances
