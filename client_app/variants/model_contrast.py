"""MOON's client side: features near the received model's and far from the client's last ones (Li et al. 2021)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt
from torch import Tensor

from client_app.client import Client, Contribution, Loss, Trained, Variant
from client_app.state import copy


@dataclass(frozen=True)
class ModelContrast(Variant):
    """Add -mu ln( e^(sim(z, z_g) / tau) / (e^(sim(z, z_g) / tau) + e^(sim(z, z_p) / tau)) ) with sim the cosine.

    z are the features of a sample in training, z_g those of the model as received and z_p those of the model that the
    client ended its last round with (Li et al., CVPR 2021). In a client's first round there is no such model and no
    term. z_g and z_p are computed once per round, in eval mode and, unlike the paper's, of images without augmentation.
    FedSkew's models have no projection head: z are the head's inputs. The client keeps its features' weights.
    Identity: mu = 0.
    """

    name: ClassVar[str] = "model-contrast"
    needs: ClassVar[frozenset[str]] = frozenset({"trained-features"})

    mu: Annotated[float, Ge(0)] = 1.0
    """Strength of the term; 0 is plain training."""
    temperature: Annotated[float, Gt(0)] = 0.5
    """tau, which divides the cosines."""

    def before(self, client: Client, loss: Loss) -> Contribution:
        """Prepare (N, D) features of the model as received and of the client's last one."""
        last = client.memory.get(self.name)
        if not self.mu or last is None:
            return Contribution()
        received_ND, last_ND = client.features(), client.features(last)
        return Contribution(prepared={"received": received_ND, "last": last_ND})

    def loss_term(
        self,
        client: Client,
        indices_B: Tensor,
        features_BD: Tensor,
        logits_BC: Tensor,
        teacher_BC: Tensor | None,
    ) -> Tensor:
        prepared = client.prepared.get(self.name)
        if prepared is None:
            return torch.zeros_like(logits_BC[:, 0])
        near_B, far_B = (
            F.cosine_similarity(features_BD, prepared[name][indices_B], dim=1) / self.temperature
            for name in ("received", "last")
        )
        return self.mu * F.softplus(far_B - near_B)  # -ln(e^near / (e^near + e^far))

    def after(self, client: Client, trained: Trained) -> Contribution:
        """Keep the weights of the features."""
        if not self.mu:
            return Contribution()
        own = {n: tensor for n, tensor in trained.state.items() if n.startswith("features.")}
        return Contribution(memory=copy(own))  # a private tensor is in the memory of its own, too
