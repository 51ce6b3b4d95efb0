"""Batch norm for a site nobody trained with: its own statistics, or the mean of the others'."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from client_app.models import Classifier
from client_app.state import State, weighted_mean
from client_app.training import mini_batches
from data import Samples
from strategies.feddf import on_cpu

BATCH = 512
"""Inputs of a batch when statistics are estimated: their mean hardly depends on it, memory does."""


def norm_layers(model: nn.Module) -> Iterator[tuple[str, nn.modules.batchnorm._BatchNorm]]:
    """Yield name and layer of every batch norm that keeps running statistics, in the model's order."""
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.track_running_stats:
            yield name, module


@torch.no_grad()
def reestimated(
    model: Classifier,
    state: State,
    samples: Samples,
    draws: torch.Generator,
) -> dict[str, Tensor]:
    """Return `state` with batch norm's running statistics estimated on the samples' inputs (AdaBN, Li et al. 2016).

    One pass over the inputs in random order, in batches of up to `BATCH`; each layer normalizes by its batch's
    statistics and keeps their mean, weighted by the batches' sizes: torch's cumulative average (momentum = None), but
    that a smaller last batch counts for less. Everything else is in eval mode. No label is looked at.
    `model` is a scratchpad. Raises ValueError for fewer than two samples.
    """
    model.load_state_dict(state)
    model.eval()
    layers = [layer for _, layer in norm_layers(model)]
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.train()
    seen = 0
    order_N = torch.randperm(len(samples), generator=draws).to(samples.labels_N.device)
    for indices_B in mini_batches(order_N, BATCH):
        seen += len(indices_B)
        for layer in layers:
            layer.momentum = len(indices_B) / seen
        model.features(samples.batch(indices_B))
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
    return on_cpu(model)


def averaged(answers: Mapping[int, State], examples: Mapping[int, int]) -> dict[str, Tensor]:
    """Return what FedAvg would make of the tensors that clients keep: their mean, weighted by training samples.

    Of running variances too, so that the spread between the sites' means is no part of them.
    """
    return weighted_mean(list(answers.values()), [examples[client] for client in answers])
