"""CReFF: re-train the classifier on learned "federated features" (Shang et al., IJCAI 2022)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt, Le
from torch import Tensor

from client_app.state import State
from strategies.core.server import Deployment, Server, ServerMethod, Unit, Update
from strategies.head import features_of, train_head, with_head


@dataclass(frozen=True)
class FederatedFeatures(ServerMethod):
    """What CReFF is, whatever its distance and its head's training: see CReFF."""

    needs_head: ClassVar[bool] = True
    bias_columns: ClassVar[int] = 0
    """Columns of an upload after the features': 1 where the bias's gradient is sent as well."""
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
        shape_CD = server.model.head.weight.shape
        classes, width = shape_CD
        draws = server.generator(self.name)
        features_CMD = torch.randn(classes, self.features_per_class, width, generator=draws)
        return {"features": features_CMD, **random_head(shape_CD, draws)}

    def broadcast(self, server: Server, state: State) -> Mapping[str, State]:
        return {self.consumes: {"weight": state["weight"], "bias": state["bias"]}}

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
        weight_CD, bias_C = state["weight"], state["bias"]
        classes, width = weight_CD.shape
        like_CE = weight_CD.new_empty(classes, width + self.bias_columns)
        uploads = [update.uploads[self.consumes] for update in updates]
        gradients_NCE, held = mean_gradients(uploads, like_CE)
        features_CMD = self.match(state["features"], weight_CD, bias_C, gradients_NCE, held)

        draws = server.generator(self.name)
        # A new random head every round, as in the authors' code.
        head = on_device(random_head(weight_CD.shape, draws), server.device)
        head = self.retrain(head, features_CMD, draws)

        # How well the features match now, under the head that the clients had.
        matched_NCE = self.gradients(features_CMD[held], weight_CD, bias_C, held)
        distances_NR = self.distances(matched_NCE, gradients_NCE)
        numbers: dict[str, float | Sequence[float]] = {self.loss_name: distances_NR.mean().item()}
        numbers |= self.compared(server, features_CMD, distances_NR, held)
        return Deployment(
            models={self.name: with_head(shared, head)},
            state=on_device({"features": features_CMD, **head}, "cpu"),
            metrics=numbers,
        )

    def match(
        self,
        features_CMD: Tensor,
        weight_CD: Tensor,
        bias_C: Tensor,
        gradients_NCE: Tensor,
        held: Tensor,
    ) -> Tensor:
        """Return the features after I steps down the distance, all classes at once; the others' features stay.

        `gradients_NCE` are the clients' mean gradients of the classes `held` (N,).
        """
        moving_NMD = features_CMD[held].requires_grad_(True)
        for _ in range(self.feature_steps):
            of_features_NCE = self.gradients(moving_NMD, weight_CD, bias_C, held)
            distances_NR = self.distances(of_features_NCE, gradients_NCE)
            (slope_NMD,) = torch.autograd.grad(distances_NR.sum(), moving_NMD)  # Eq. (6)
            with torch.no_grad():
                moving_NMD -= self.feature_learning_rate * slope_NMD
        result_CMD = features_CMD.clone()
        result_CMD[held] = moving_NMD.detach()
        return result_CMD

    def gradients(
        self,
        features_NMD: Tensor,
        weight_CD: Tensor,
        bias_C: Tensor,
        held: Tensor | None = None,
    ) -> Tensor:
        """Return (n, C, D + bias columns): what clients with these features would send."""
        return feature_gradients(features_NMD, weight_CD, bias_C, held)

    def distances(self, gradients: Tensor, wanted: Tensor) -> Tensor:
        """Return (n, R): of each class and row, how far two gradients (n, C, D + bias columns) are apart."""
        return row_distances(gradients, wanted)

    def compared(
        self,
        server: Server,
        features_CMD: Tensor,
        distances_NR: Tensor,
        held: Tensor,
    ) -> Mapping[str, Sequence[float]]:
        """Return what else the record holds, by class."""
        return {}

    def retrain(
        self, head: State, features_CMD: Tensor, draws: torch.Generator
    ) -> dict[str, Tensor]:
        """Return the head trained by cross-entropy on all features (Eq. 7)."""
        raise NotImplementedError


@dataclass(frozen=True)
class CReFF(FederatedFeatures):
    """Deploy {u, v^}: the average's features under a head that is re-trained every round.

    The server moves m features a class until the gradients they give the head v^ match the clients' (Eq. 4-6), then
    trains a new head on them (Eq. 7) and sends it out for the next round. v^ never enters the average: the trajectory
    of {u, v} is FedAvg's. features-per-class = 0 deploys FedAvg's own head.
    """

    name: ClassVar[str] = "creff"
    consumes: ClassVar[str] = "feature-gradients"
    loss_name: ClassVar[str] = "matching-loss"
    units: ClassVar[Mapping[str, Unit]] = {
        "matching-loss": Unit.NONE,
        "matching-loss-by-class": Unit.NONE,
        "feature-dissimilarity-by-class": Unit.NONE,
        "feature-pair-dissimilarity-by-class": Unit.NONE,
    }

    head_steps: Annotated[int, Ge(0)] = 300
    """J: full-batch steps of the head in a round."""
    head_learning_rate: Annotated[float, Gt(0)] = 0.1
    """Learning rate of the head."""
    compare_features: bool = False
    """Record by class, as in the paper's Figure 4, the matching loss and 1 - cosine of the features and the hold-out's,
    whose labels are looked at: once of their means, once of single features, the mean over pairs; no model changes."""

    def validate(self) -> None:
        idle = self.compare_features and self.features_per_class == 0
        rule = "has no effect with creff.features-per-class = 0"
        self.require(not idle, "compare_features", rule)

    @property
    def needs_holdout(self) -> bool:
        return self.compare_features

    def compared(
        self,
        server: Server,
        features_CMD: Tensor,
        distances_NR: Tensor,
        held: Tensor,
    ) -> dict[str, Sequence[float]]:
        if not self.compare_features:
            return {}
        loss_C = distances_NR.new_full((len(features_CMD),), math.nan)
        loss_C[held] = distances_NR.mean(1)
        of_means_C, of_pairs_C = dissimilarities(server, self.name, features_CMD)
        return {
            "matching-loss-by-class": loss_C.tolist(),
            "feature-dissimilarity-by-class": of_means_C.tolist(),
            "feature-pair-dissimilarity-by-class": of_pairs_C.tolist(),
        }

    def retrain(
        self, head: State, features_CMD: Tensor, draws: torch.Generator
    ) -> dict[str, Tensor]:
        """Return the head after J full-batch steps of cross-entropy on all features (Eq. 7)."""
        features_ND, labels_N = labeled(features_CMD)
        return train_head(
            head,
            features_ND,
            labels_N,
            steps=self.head_steps,
            learning_rate=self.head_learning_rate,
        )


def labeled(features_CMD: Tensor) -> tuple[Tensor, Tensor]:
    """Return all features (C m, D) and their labels (C m,)."""
    classes, per_class, width = features_CMD.shape
    labels_N = torch.arange(classes, device=features_CMD.device).repeat_interleave(per_class)
    return features_CMD.reshape(-1, width), labels_N


def dissimilarities(server: Server, method: str, features_CMD: Tensor) -> tuple[Tensor, Tensor]:
    """Return how far each class's features are from the hold-out's, in two measures: the paper does not define its own.

    The hold-out's features are those of the weights that the clients began the round with, as their gradients are.

    Returns:
        (C,): 1 - cosine of the mean federated and the mean held-out feature; (C,): 1 - cosine of a federated and a
        held-out feature, the mean over all pairs. Both are NaN for a class of which the hold-out has no sample.
    """
    samples = server.own_samples(method)
    model = server.model.to(server.device)
    features_ND = features_of(model, server.start, samples)
    one_hot_CC = torch.eye(len(features_CMD), device=features_ND.device)
    members_CN = one_hot_CC[samples.labels_N].T
    number_C1 = members_CN.sum(1, keepdim=True)
    means_CD = members_CN @ features_ND / number_C1  # 0 / 0 is the NaN
    learned_means_CD = features_CMD.mean(1)
    of_means_C = 1 - F.cosine_similarity(learned_means_CD, means_CD, dim=1)

    # The mean cosine of all pairs is the product of the mean unit vectors.
    mean_units_CD = members_CN @ F.normalize(features_ND, dim=1) / number_C1
    learned_mean_units_CD = F.normalize(features_CMD, dim=2).mean(1)
    of_pairs_C = 1 - (learned_mean_units_CD * mean_units_CD).sum(1)
    return of_means_C, of_pairs_C


def random_head(shape_CD: torch.Size, generator: torch.Generator) -> dict[str, Tensor]:
    """Return a head as nn.Linear draws it: uniform within 1 / sqrt(width)."""
    classes, width = shape_CD
    bound = 1 / math.sqrt(width)
    # The weight is drawn before the bias.
    head = {"weight": torch.empty(shape_CD), "bias": torch.empty(classes)}
    for tensor in head.values():
        tensor.uniform_(-bound, bound, generator=generator)
    return head


def on_device(state: State, device: str) -> dict[str, Tensor]:
    """Return the state with its tensors on `device`."""
    return {name: tensor.to(device) for name, tensor in state.items()}


def mean_gradients(uploads: Sequence[State], like_CD: Tensor) -> tuple[Tensor, Tensor]:
    """Return (n, C, D) and (n,): each class's unweighted mean over the clients that hold it, and which classes."""
    every_class = torch.cat([upload["classes"].cpu() for upload in uploads])
    classes_n = torch.unique(every_class)
    total_nCD = torch.zeros(len(classes_n), *like_CD.shape, dtype=torch.float64)
    holders_n = torch.zeros(len(classes_n))
    for upload in uploads:
        client_classes = upload["classes"].cpu()
        rows = torch.searchsorted(classes_n, client_classes)
        total_nCD[rows] += upload["gradients"].cpu()
        holders_n[rows] += 1
    holders_n11 = holders_n[:, None, None]
    mean_nCD = total_nCD / holders_n11  # Eq. (4)
    return mean_nCD.to(like_CD), classes_n.to(like_CD.device)


def feature_gradients(
    features_NMD: Tensor,
    weight_CD: Tensor,
    bias_C: Tensor,
    held: Tensor | None = None,
) -> Tensor:
    """Return (n, C, D): of the classes `held`, the mean over m features of (softmax(W s + b) - e_c) s^T."""
    one_hot_NC = torch.eye(len(weight_CD), device=weight_CD.device)
    if held is not None:
        one_hot_NC = one_hot_NC[held]
    logits_NMC = features_NMD @ weight_CD.T + bias_C
    probabilities_NMC = torch.softmax(logits_NMC, dim=2)
    errors_NMC = probabilities_NMC - one_hot_NC.unsqueeze(1)  # p - e_c
    per_class = features_NMD.shape[1]
    return errors_NMC.transpose(1, 2) @ features_NMD / per_class  # Eq. (5)


def row_distances(left: Tensor, right: Tensor) -> Tensor:
    """Return 1 - cosine over the last dimension; a row whose right side is zero has no direction and counts as 0."""
    cosines = F.cosine_similarity(left, right, dim=-1, eps=1e-8)
    has_direction = right.norm(dim=-1) > 0
    distances: Tensor = (1 - cosines) * has_direction
    return distances
