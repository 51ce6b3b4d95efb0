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
from strategies.head import train_head, with_head
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
        require(self.distance in DISTANCES, "creff.distance", self.distance, f"must be one of {', '.join(DISTANCES)}")

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
        gradients_nCD, held = mean_gradients([update.uploads[self.consumes] for update in updates], state["weight"])
        features_CMD = self.match(state["features"], state["weight"], state["bias"], gradients_nCD, held)
        if self.head_start == "average":
            head = {"weight": shared["head.weight"], "bias": shared["head.bias"]}
        else:
            head = random_head(state["weight"].shape, server.generator(self.name))
        head = self.retrain({name: tensor.to(server.device) for name, tensor in head.items()}, features_CMD)
        found_nCD = feature_gradients(features_CMD[held], state["weight"], state["bias"], held)
        distances = row_distances(found_nCD, gradients_nCD)
        deployed = with_head(shared, head)
        new_state = {name: tensor.cpu() for name, tensor in {"features": features_CMD, **head}.items()}
        return Deployment({self.name: deployed}, new_state, {"matching-loss": distances.mean().item()})

    def match(
        self, features_CMD: Tensor, weight_CD: Tensor, bias_C: Tensor, gradients_nCD: Tensor, held: Tensor
    ) -> Tensor:
        """Return the features after I steps down the distance, all classes at once; the others' features stay.

        `gradients_nCD` are the clients' mean gradients of the classes `held` (n,).
        """
        moving_NMD, wanted_NCD = features_CMD[held].requires_grad_(True), gradients_nCD
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


def random_head(shape_CD: torch.Size, generator: torch.Generator) -> dict[str, Tensor]:
    """Return a head as nn.Linear draws it: uniform within 1 / sqrt(width)."""
    bound = 1 / math.sqrt(shape_CD[1])
    return {
        "weight": torch.empty(shape_CD).uniform_(-bound, bound, generator=generator),
        "bias": torch.empty(shape_CD[0]).uniform_(-bound, bound, generator=generator),
    }


def mean_gradients(uploads: Sequence[State], like_CD: Tensor) -> tuple[Tensor, Tensor]:
    """Return (n, C, D) and (n,): each class's unweighted mean over the clients that hold it, and which classes."""
    held = torch.unique(torch.cat([upload["classes"].cpu() for upload in uploads]))
    total_nCD, holders_n = torch.zeros(len(held), *like_CD.shape, dtype=torch.float64), torch.zeros(len(held))
    for upload in uploads:
        rows = torch.searchsorted(held, upload["classes"].cpu())
        total_nCD[rows] += upload["gradients"].cpu()
        holders_n[rows] += 1
    mean_nCD = total_nCD / holders_n[:, None, None]  # Eq. (4)
    return mean_nCD.to(like_CD), held.to(like_CD.device)


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
