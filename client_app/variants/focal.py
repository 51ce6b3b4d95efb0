"""Fed-Focal's client side: focal loss (Lin et al. 2017; Sarkar et al. 2020)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from annotated_types import Ge
from torch import Tensor

from client_app.client import Client, Variant, vectorizable


@dataclass(frozen=True)
class Focal(Variant):
    """Train on -(1 - p_y)^gamma ln p_y: easy samples count less. Gradients flow through the weight.

    p is the softmax of the logits after all offsets. Focal loss has another minimizer than P(y|x), a flatter one, so
    beside logit-shift the fixed point is not P(y|x) either: the pair is allowed, and its fixed point is focal loss's.
    Identity: gamma = 0.
    """

    name: ClassVar[str] = "focal"

    gamma: Annotated[float, Ge(0)] = 2.0
    """Focus: 0 is cross-entropy; the larger, the less the easy samples count."""

    @vectorizable
    def loss_weights(self, client: Client, logits_BC: Tensor, labels_B: Tensor) -> Tensor:
        if not self.gamma:
            return torch.ones_like(logits_BC[:, 0])
        losses_B = F.cross_entropy(logits_BC, labels_B, reduction="none")
        miss_B = -torch.expm1(-losses_B)  # 1 - p_y, without cancellation
        # At 0 the slope of a root is infinite, and infinity times a loss of 0 is NaN.
        smallest = torch.finfo(miss_B.dtype).tiny
        positive_B = miss_B.clamp(min=smallest)
        return positive_B**self.gamma
