"""CReFF: re-train the classifier on learned "federated features" (Shang et al., IJCAI 2022)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from client_app.state import State
from data import require
from strategies.checks import Refused, differences
from strategies.head import features_of, train_head, with_head
from strategies.server import Deployment, Server, ServerMethod, Update

DISTANCES = {"code-scale": "sum", "paper-literal": "mean"}


@dataclass(frozen=True)
class CReFF(ServerMethod):
    """Deploy {u, v^}: the average's features under a head that is re-trained every round.

    The server moves m features a class until the gradients they give the head v^ match the clients' (Eq. 4-6), then
    trains a new head on them (Eq. 7) and sends it out for the next round. v^ never enters the average: the trajectory
    of {u, v} is FedAvg's. features-per-class = 0 deploys FedAvg's own head.
    """

    name: ClassVar[str] = "creff"
    consumes: ClassVar[str] = "feature-gradients"

    features_per_class: int = 100
    """m: federated features of each class."""
    feature_steps: int = 100
    """I: gradient steps on the features in a round."""
    feature_learning_rate: float = 0.1
    """Learning rate of the features."""
    head_steps: int = 300
    """J: full-batch steps of the head in a round."""
    head_learning_rate: float = 0.1
    """Learning rate of the head."""
    head_start: str = "fresh"
    """fresh: a new random head every round, as the authors' code. average: the average's head."""
    distance: str = "code-scale"
    """code-scale: 1 - cosine summed over the head's rows, as the authors' code. paper-literal: its mean."""
    compare_features: bool = False
    """Record by class, as in the paper's Figure 4, the matching loss and 1 - cosine of the class's mean feature and the
    one of the hold-out, whose labels are looked at; no model changes."""

    def __post_init__(self) -> None:
        for key in ("features_per_class", "feature_steps", "head_steps"):
            require(getattr(self, key) >= 0, f"creff.{key.replace('_', '-')}", getattr(self, key), "must be 0 or more")
        for key in ("feature_learning_rate", "head_learning_rate"):
            value = getattr(self, key)
            rule = "must be a finite number greater than 0"
            require(0 < value < math.inf, f"creff.{key.replace('_', '-')}", value, rule)
        require(
            self.head_start in ("fresh", "average"), "creff.head-start", self.head_start, "must be fresh or average"
        )
        rule = "has no effect with creff.features-per-class = 0"
        require(not self.compare_features or self.features_per_class > 0, "creff.compare-features", True, rule)
        require(self.distance in DISTANCES, "creff.distance", self.distance, f"must be one of {', '.join(DISTANCES)}")

    @property
    def needs_holdout(self) -> bool:
        return self.compare_features

    def initial_state(self, server: Server) -> State:
        """Return noise features (C, m, D) and a random head, v^ of round 1."""
        shape_CD, generator = server.model.head.weight.shape, server.generator(self.name)
        features_CMD = torch.randn(shape_CD[0], self.features_per_class, shape_CD[1], generator=generator)
        return {"features": features_CMD, **random_head(shape_CD, generator)}

    def broadcast(self, server: Server, state: State) -> Mapping[str, State]:
        return {self.consumes: {"weight": state["weight"], "bias": state["bias"]}}

    def accepts(self, server: Server, upload: State) -> None:
        """Accept {"classes": (n,) int64 ascending, "gradients": (n, C, D) float32}."""
        classes, width = server.model.head.weight.shape
        held = upload.get("classes", torch.empty(0))
        expected = {
            "classes": ((held.numel(),), torch.int64),
            "gradients": ((held.numel(), classes, width), torch.float32),
        }
        if reason := differences(upload, expected):
            raise Refused(reason)
        if held.numel() and (held.min() < 0 or held.max() >= classes or (held.diff() <= 0).any()):
            raise Refused(f"classes are {held.tolist()}, not ascending numbers below {classes}")

    def deploy(self, server: Server, state: State, shared: State, updates: Sequence[Update]) -> Deployment:
        if self.features_per_class == 0:
            return Deployment({self.name: shared}, state)
        state = {name: tensor.to(server.device) for name, tensor in state.items()}
        gradients_CCD, held = mean_gradients([update.uploads[self.consumes] for update in updates], state["weight"])
        features_CMD = self.match(state["features"], state["weight"], state["bias"], gradients_CCD, held)
        if self.head_start == "average":
            head = {"weight": shared["head.weight"], "bias": shared["head.bias"]}
        else:
            head = random_head(state["weight"].shape, server.generator(self.name))
        head = self.retrain({name: tensor.to(server.device) for name, tensor in head.items()}, features_CMD)
        distances = row_distances(feature_gradients(features_CMD, state["weight"], state["bias"]), gradients_CCD)[held]
        deployed = with_head(shared, head)
        new_state = {name: tensor.cpu() for name, tensor in {"features": features_CMD, **head}.items()}
        numbers: dict[str, float | Sequence[float]] = {"matching-loss": distances.mean().item()}
        if self.compare_features:
            loss_C = distances.new_full((len(features_CMD),), math.nan).index_copy(0, held, distances.mean(1))
            numbers["matching-loss-by-class"] = loss_C.tolist()
            numbers["feature-dissimilarity-by-class"] = dissimilarity(server, self.name, features_CMD).tolist()
        return Deployment({self.name: deployed}, new_state, numbers)

    def match(
        self, features_CMD: Tensor, weight_CD: Tensor, bias_C: Tensor, gradients_CCD: Tensor, held: Tensor
    ) -> Tensor:
        """Return the features after I steps down the distance, all classes at once; the others' features stay.

        `gradients_CCD` are the clients' mean gradients, of which the classes `held` (n,) mean something.
        """
        moving_NMD, wanted_NCD = features_CMD[held].requires_grad_(True), gradients_CCD[held]
        for _ in range(self.feature_steps):
            distances_NC = row_distances(feature_gradients(moving_NMD, weight_CD, bias_C, held), wanted_NCD)
            loss = distances_NC.sum() if self.distance == "code-scale" else distances_NC.mean(1).sum()  # Eq. (6)
            (slope,) = torch.autograd.grad(loss, moving_NMD)
            with torch.no_grad():
                moving_NMD -= self.feature_learning_rate * slope
        result_CMD = features_CMD.clone()
        result_CMD[held] = moving_NMD.detach()
        return result_CMD

    def retrain(self, head: State, features_CMD: Tensor) -> dict[str, Tensor]:
        """Return the head after J full-batch steps of cross-entropy on all features (Eq. 7)."""
        classes, per_class, width = features_CMD.shape
        labels_N = torch.arange(classes, device=features_CMD.device).repeat_interleave(per_class)
        return train_head(head, features_CMD.reshape(-1, width), labels_N, self.head_steps, self.head_learning_rate)


def dissimilarity(server: Server, method: str, features_CMD: Tensor) -> Tensor:
    """Return (C,): 1 - cosine of each class's mean feature and its mean over the hold-out, NaN where that has none.

    The hold-out's features are those of the weights that the clients began the round with, as their gradients are.
    """
    samples = server.own_samples(method)
    features_ND = features_of(server.model.to(server.device), server.start, samples)
    members_CN = torch.eye(len(features_CMD), device=features_ND.device)[samples.labels_N].T
    means_CD = members_CN @ features_ND / members_CN.sum(1, keepdim=True)  # 0 / 0 is the NaN
    return 1 - F.cosine_similarity(features_CMD.mean(1), means_CD, dim=1)


def random_head(shape_CD: torch.Size, generator: torch.Generator) -> dict[str, Tensor]:
    """Return a head as nn.Linear draws it: uniform within 1 / sqrt(width)."""
    bound = 1 / math.sqrt(shape_CD[1])
    return {
        "weight": torch.empty(shape_CD).uniform_(-bound, bound, generator=generator),
        "bias": torch.empty(shape_CD[0]).uniform_(-bound, bound, generator=generator),
    }


def mean_gradients(uploads: Sequence[State], like_CD: Tensor) -> tuple[Tensor, Tensor]:
    """Return (C, C, D): each class's unweighted mean over the clients that hold it, and which classes (n,) are held."""
    classes, width = like_CD.shape
    total_CCD, holders_C = torch.zeros(classes, classes, width, dtype=torch.float64), torch.zeros(classes)
    for upload in uploads:
        total_CCD[upload["classes"].cpu()] += upload["gradients"].cpu()
        holders_C[upload["classes"].cpu()] += 1
    mean_CCD = total_CCD / holders_C.clamp(min=1)[:, None, None]  # Eq. (4)
    return mean_CCD.to(like_CD), holders_C.nonzero().flatten().to(like_CD.device)


def feature_gradients(features_NMD: Tensor, weight_CD: Tensor, bias_C: Tensor, held: Tensor | None = None) -> Tensor:
    """Return (n, C, D): of the classes `held`, the mean over m features of (softmax(W s + b) - e_c) s^T."""
    one_hot_NC = torch.eye(len(weight_CD), device=weight_CD.device)
    one_hot_NC = one_hot_NC if held is None else one_hot_NC[held]
    errors_NMC = torch.softmax(features_NMD @ weight_CD.T + bias_C, dim=2) - one_hot_NC.unsqueeze(1)  # p - e_c
    return errors_NMC.transpose(1, 2) @ features_NMD / features_NMD.shape[1]  # Eq. (5)


def row_distances(left: Tensor, right: Tensor) -> Tensor:
    """Return 1 - cosine over the last dimension; a row whose right side is zero has no direction and counts as 0."""
    distances: Tensor = (1 - F.cosine_similarity(left, right, dim=-1, eps=1e-8)) * (right.norm(dim=-1) > 0)
    return distances
