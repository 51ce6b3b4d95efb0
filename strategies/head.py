"""Training of a head alone on features, as CReFF, CCVR and real features do."""

import math
from collections.abc import Iterable
from itertools import repeat

import torch
from torch import Tensor

from client_app.models.classifier import Classifier, in_batches
from client_app.state import State
from data import Samples


def features_of(model: Classifier, state: State, samples: Samples) -> Tensor:
    """Return (N, D) features of all samples under `state`, in eval mode."""
    model.load_state_dict(state)
    model.eval()
    return in_batches(model.features, samples)


def random_head(classes: int, width: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Return a head as nn.Linear draws it: uniform within 1 / sqrt(width)."""
    bound = 1 / math.sqrt(width)
    # The weight is drawn before the bias.
    head = {"weight": torch.empty(classes, width), "bias": torch.empty(classes)}
    for tensor in head.values():
        tensor.uniform_(-bound, bound, generator=generator)
    return head


def with_head(shared: State, head: State) -> dict[str, Tensor]:
    """Return the shared weights with another head, on their device; every other tensor is the same object."""
    return {
        **shared,
        "head.weight": head["weight"].to(shared["head.weight"], copy=True),
        "head.bias": head["bias"].to(shared["head.bias"], copy=True),
    }


def train_head(
    head: State,
    features_ND: Tensor,
    labels_N: Tensor,
    steps: int,
    learning_rate: float,
) -> dict[str, Tensor]:
    """Return the head after full-batch gradient steps down the mean cross-entropy."""
    everything = slice(None)
    return descend(head, features_ND, labels_N, repeat(everything, steps), learning_rate)


def with_trained_head(
    shared: State,
    features_ND: Tensor,
    labels_N: Tensor,
    steps: int,
    learning_rate: float,
) -> dict[str, Tensor]:
    """Return the shared weights, their head after `train_head` on the features' device."""
    weight_CD, bias_C = shared["head.weight"], shared["head.bias"]
    head = {"weight": weight_CD.to(features_ND.device), "bias": bias_C.to(features_ND.device)}
    return with_head(shared, train_head(head, features_ND, labels_N, steps, learning_rate))


def descend(
    head: State,
    features_ND: Tensor,
    labels_N: Tensor,
    batches: Iterable[Tensor | slice],
    learning_rate: float,
) -> dict[str, Tensor]:
    """Return the head after a step down each batch's mean cross-entropy; a batch is the indices of its samples.

    The slope is written out: autograd and modules would take four times as long.
    """
    weight_CD = head["weight"].clone()
    bias_C = head["bias"].clone()
    one_hot_NC = torch.eye(len(bias_C), device=features_ND.device)[labels_N]
    for batch in batches:
        features_BD = features_ND[batch]
        probabilities_BC = torch.softmax(features_BD @ weight_CD.T + bias_C, dim=1)
        errors_BC = (probabilities_BC - one_hot_NC[batch]) / len(features_BD)
        weight_CD -= learning_rate * errors_BC.T @ features_BD
        bias_C -= learning_rate * errors_BC.sum(0)
    return {"weight": weight_CD, "bias": bias_C}
