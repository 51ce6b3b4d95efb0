"""FedBN: batch norm stays on the client (Li et al. 2021)."""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from client_app.client import Requirements
from client_app.models import batch_norm_names
from client_app.variants.norm_statistics import PrivateNorm


@dataclass(frozen=True)
class LocalBatchNorm(PrivateNorm):
    """Keep everything a batch-norm layer owns (weight, bias, running mean and variance, counter).

    Layers are found by type, not by name. There is no identity setting: a test holds that the names sent are exactly
    the others, and that the kept tensors come back bit by bit.
    """

    name: ClassVar[str] = "local-batch-norm"
    requirements: ClassVar[Requirements] = Requirements(batch_norm=True, shared_weights=True)

    def private_names(self, model: nn.Module) -> frozenset[str]:
        return batch_norm_names(model)
