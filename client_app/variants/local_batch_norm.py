"""Batch norm stays on the client: all of it (FedBN, Li et al. 2021) or its statistics (SiloBN, Andreux et al. 2020)."""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from client_app.client import Variant
from client_app.models import batch_norm_names


@dataclass(frozen=True)
class LocalBatchNorm(Variant):
    """Keep everything a batch-norm layer owns (weight, bias, running mean and variance, counter).

    Layers are found by type, not by name. There is no identity setting: a test holds that the names sent are exactly
    the others, and that the kept tensors come back bit by bit.
    """

    name: ClassVar[str] = "local-batch-norm"
    needs: ClassVar[frozenset[str]] = frozenset({"batch-norm", "shared-weights"})

    def private_names(self, model: nn.Module) -> frozenset[str]:
        return batch_norm_names(model)


@dataclass(frozen=True)
class LocalStatistics(Variant):
    """Keep running mean, running variance and counter of every batch-norm layer; weight and bias are shared.

    Layers are found by type, not by name. There is no identity setting. A test checks instead that the names sent are
    exactly the model's parameters, and that the kept tensors come back bit by bit.
    """

    name: ClassVar[str] = "local-statistics"
    needs: ClassVar[frozenset[str]] = frozenset({"batch-norm", "shared-weights"})

    def private_names(self, model: nn.Module) -> frozenset[str]:
        return batch_norm_names(model) & {name for name, _ in model.named_buffers()}
