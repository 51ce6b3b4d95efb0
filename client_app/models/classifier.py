"""The shape every model has: features, then one linear head."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from data import Samples

INFERENCE_BATCH = {"cpu": 64, "cuda": 512}
"""Samples of a batch without gradient, by device: on a CPU the layers' outputs should stay in a core's cache."""


class Classifier(nn.Module):
    """`head(features(x))`, the head with a bias.

    The methods that touch the head alone, and evaluation, rely on this split: nothing comes between or after.
    """

    def __init__(self, features: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.features = features
        self.head = head

    def forward(self, inputs_B: Tensor) -> Tensor:
        """Return (B, C) logits."""
        logits_BC: Tensor = self.head(self.features(inputs_B))
        return logits_BC


def has_batch_norm(model: nn.Module) -> bool:
    """Return whether any layer is a batch norm, by type: names say nothing (`downsample.1` is one)."""
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())


def batch_norm_names(model: nn.Module) -> frozenset[str]:
    """Return the names of everything that batch-norm layers own: weights, running statistics, counters."""
    return frozenset(
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm)
        for name in module.state_dict()
    )


@torch.no_grad()
def in_batches(function: Callable[[Tensor], Tensor], samples: Samples) -> Tensor:
    """Return what `function` makes of all samples' inputs, batch by batch, without gradient."""
    device = samples.labels_N.device
    parts = torch.split(torch.arange(len(samples), device=device), INFERENCE_BATCH[device.type])
    return torch.cat([function(samples.batch(part_B)) for part_B in parts])
