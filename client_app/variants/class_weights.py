"""Class weights that the server sends: Ratio Loss's client side (Wang et al., AAAI 2021)."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from client_app.client import Client, Variant, vectorizable


@dataclass(frozen=True)
class ClassWeights(Variant):
    """Train on w_y CE(f(x), y) with the server's weight w_k of every class.

    The mean over the batch is not divided by the weights' sum, so a weight above 1 is a larger step.
    There is no identity setting; with all weights 1, as in round 1, a client trains as without them, to the bit.
    """

    name: ClassVar[str] = "class-weights"
    needs: ClassVar[frozenset[str]] = frozenset({"uncorrected-prior"})

    @vectorizable
    def loss_weights(self, client: Client, logits_BC: Tensor, labels_B: Tensor) -> Tensor:
        return client.broadcast[self.name]["weights"].to(logits_BC)[labels_B]
