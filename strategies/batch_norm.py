"""Batch norm for a site nobody trained with: its own statistics."""

import torch
from torch import Tensor, nn

from client_app.models import Classifier
from client_app.state import State
from client_app.training import mini_batches
from data import Samples
from strategies.feddf import on_cpu

BATCH = 512
"""Inputs of a batch when statistics are estimated: their mean hardly depends on it, memory does."""


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
    layers = []
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.track_running_stats:
            layers.append(module)
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
