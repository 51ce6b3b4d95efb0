"""Training a head alone, on features: what CReFF, CCVR and real features do with theirs."""

import torch
from torch import Tensor

from client_app.models.classifier import Classifier, in_batches
from client_app.state import State
from data import Samples


def features_of(model: Classifier, state: State, samples: Samples, batch_size: int = 512) -> Tensor:
    """Return (N, D) features of all samples under `state`, in eval mode."""
    model.load_state_dict(state)
    model.eval()
    return in_batches(model.features, samples, batch_size)


def head_of(shared: State, device: str = "cpu") -> dict[str, Tensor]:
    """Return {"weight": (C, D), "bias": (C,)} of the shared weights."""
    return {name: shared[f"head.{name}"].to(device) for name in ("weight", "bias")}


def with_head(shared: State, head: State) -> dict[str, Tensor]:
    """Return the shared weights with another head, on their device; every other tensor is the same object."""
    own = {f"head.{name}": head[name].to(shared[f"head.{name}"], copy=True) for name in ("weight", "bias")}
    return {**shared, **own}


def train_head(
    head: State, features_ND: Tensor, labels_N: Tensor, steps: int, learning_rate: float
) -> dict[str, Tensor]:
    """Return the head after full-batch gradient steps down the mean cross-entropy."""
    weight_CD, bias_C = head["weight"].clone(), head["bias"].clone()
    one_hot_NC = torch.eye(len(bias_C), device=features_ND.device)[labels_N]
    for _ in range(steps):
        errors_NC = (torch.softmax(features_ND @ weight_CD.T + bias_C, dim=1) - one_hot_NC) / len(features_ND)
        weight_CD -= learning_rate * errors_NC.T @ features_ND
        bias_C -= learning_rate * errors_NC.sum(0)
    return {"weight": weight_CD, "bias": bias_C}
