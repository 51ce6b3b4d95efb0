"""A small server, its model and its own samples for the tests of this folder."""

from typing import Any

import torch
from torch import nn

from client_app.models import Classifier
from client_app.optimizer import TrainingSettings
from client_app.state import State, copy
from data import Samples
from strategies.core.server import Server, Update

CLASSES, INPUTS, WIDTH = 4, 6, 5


def draws(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def model_of(seed: int = 0) -> Classifier:
    """Return a model with batch norm whose state depends on `seed` alone."""
    features = nn.Sequential(nn.Linear(INPUTS, WIDTH), nn.BatchNorm1d(WIDTH), nn.Tanh())
    model = Classifier(features, nn.Linear(WIDTH, CLASSES))
    with torch.no_grad():
        for number, tensor in enumerate(model.state_dict().values()):
            if tensor.is_floating_point():
                tensor.copy_(torch.randn(tensor.shape, generator=draws(100 * seed + number)))
        model.features[1].running_var.abs_().add_(0.5)  # type: ignore[index,operator,union-attr]
    return model


def state_of(seed: int) -> State:
    return copy(model_of(seed).state_dict())


def samples_of(per_class: int = 10, seed: int = 0) -> Samples:
    """Return balanced samples around one center a class."""
    labels_N = torch.arange(CLASSES).repeat_interleave(per_class)
    centers_CI = 2 * torch.randn(CLASSES, INPUTS, generator=draws(77))
    inputs_N = centers_CI[labels_N] + torch.randn(len(labels_N), INPUTS, generator=draws(seed))
    return Samples(inputs_N, labels_N, torch.zeros(1), torch.ones(1))


def server_of(holdout: Samples | None = None, **fields: Any) -> Server:
    model = model_of()
    parameters = frozenset(name for name, _ in model.named_parameters())
    defaults = {"round": 1, "seed": 0, "clients": 3, "start": state_of(50)}
    defaults |= {"training": TrainingSettings(), "parameters": parameters}
    return Server(**{**defaults, "model": model, "holdout": holdout, **fields})


def updates_of(*seeds: int) -> list[Update]:
    return [Update(k, state_of(seed), 10 * (k + 1)) for k, seed in enumerate(seeds)]
