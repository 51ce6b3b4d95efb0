"""Reweighting: importance weights that turn the client's class prior into the global one (FedShift paper, Table 1)."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from client_app.client import Client, vectorizable
from client_app.variants.class_prior import PriorCorrection


@dataclass(frozen=True)
class Reweighting(PriorCorrection):
    """Weight every sample's cross-entropy by P(y) / P_i(y).

    The mean over the batch is not divided by the weights' sum: that is the importance-sampling estimator of the loss
    under P. Identity: a client whose prior is the global one.
    """

    name: ClassVar[str] = "reweighting"

    @vectorizable
    def loss_weights(self, client: Client, logits_BC: Tensor, labels_B: Tensor) -> Tensor:
        weights_C = self.global_prior(client) / self.local_prior(client)  # w_ik = P(k) / P_i(k)
        return weights_C.to(logits_BC)[labels_B]
