"""CReFF with the settings of its authors' code that differ from the paper (Shang et al., IJCAI 2022)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge
from torch import Tensor

from client_app.state import State
from client_app.variants.feature_gradients import with_bias, with_constant
from strategies.core.server import Unit
from strategies.creff import FederatedFeatures, feature_gradients
from strategies.head import descend

HEAD_BATCH, HEAD_RATE = 32, 0.01
"""Features in a mini-batch of the head's training, and its learning rate."""
GUARD = 1e-6
"""Added to every product of norms."""


@dataclass(frozen=True)
class CReFFCode(FederatedFeatures):
    """CReFF as its authors run it: the bias's gradient is one more row, and the head is trained in mini-batches.

    Its clients estimate their gradients from a few augmented samples and send the bias's too (augmented-gradients).
    """

    name: ClassVar[str] = "creff-code"
    uses: ClassVar[str] = "augmented-gradients"
    loss_name: ClassVar[str] = "matching-loss-code"
    units: ClassVar[Mapping[str, Unit]] = {"matching-loss-code": Unit.NONE}

    head_epochs: Annotated[int, Ge(0)] = 300
    """Passes over all features in a round."""

    def gradients(self, features_NMD: Tensor, head: State, held: Tensor) -> Tensor:
        """Return (n, C, D + 1), the bias's gradient the last column."""
        weight_CE = with_bias(head["weight"], head["bias"])
        no_bias_C = torch.zeros_like(head["bias"])
        return feature_gradients(with_constant(features_NMD), weight_CE, no_bias_C, held)

    def distances(self, gradients_NCE: Tensor, wanted_NCE: Tensor) -> Tensor:
        """Return (n, C + 1) distances: one per row of the weight's gradient, and one for the bias's gradient."""
        rows_NC = guarded_distances(gradients_NCE[..., :-1], wanted_NCE[..., :-1])
        bias_N = guarded_distances(gradients_NCE[..., -1], wanted_NCE[..., -1])
        return torch.cat([rows_NC, bias_N[:, None]], dim=1)

    def retrain(
        self, head: State, features_ND: Tensor, labels_N: Tensor, draws: torch.Generator
    ) -> dict[str, Tensor]:
        """Return the head after its epochs of mini-batches on all features."""
        return descend(head, features_ND, labels_N, self.batches(labels_N, draws), HEAD_RATE)

    def batches(self, labels_N: Tensor, draws: torch.Generator) -> Iterator[Tensor]:
        """Yield the indices of every epoch's mini-batches, in a new order; the last one may be smaller."""
        for _ in range(self.head_epochs):
            order_N = torch.randperm(len(labels_N), generator=draws)
            yield from torch.split(order_N.to(labels_N.device), HEAD_BATCH)


def guarded_distances(left: Tensor, right: Tensor) -> Tensor:
    """Return 1 - <a, b> / (‖a‖ ‖b‖ + 1e-6) over the last dimension.

    The distance is 1 if either is zero, and close to 1 if both are tiny.
    """
    product = (left * right).sum(-1)
    norms = left.norm(dim=-1) * right.norm(dim=-1)
    distances: Tensor = 1 - product / (norms + GUARD)
    return distances
