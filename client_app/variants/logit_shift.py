"""FedShift: shift the training logits by the client's class prior (FedShift paper, Alg. 1)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge
from torch import Tensor

from client_app.client import Client, Upload
from client_app.variants.class_prior import PriorCorrection
from data import OneOf

LOCAL_SHARE = 0.1
"""g of target = mixed: the share of the client's own prior."""


@dataclass(frozen=True)
class LogitShift(PriorCorrection):
    """Train on CE(f(x) + s_i, y) with s_ik = scale * ln(P_i(k) / P(k)); inference uses f alone.

    With P(x|y) shared by the clients, every client's optimum is then softmax(f) = P(y|x), the same for all (FedShift,
    Theorem 2; smoothing > 0 moves it a little). P_i is the distribution the client trains on, so that a sampler does
    not bias it. With smoothing 0 a class the client lacks gets s = -inf: it drops out of the softmax and its logit
    receives no gradient.
    target = mixed is FedYoYo's distribution-aware logit adjustment (Yan et al. 2025): s_ik = scale ln((1 - g) P(k) + g
    P_i(k)) with g = 0.1. g = 1 is target = uniform up to a constant. FedYoYo's global prior counts effective
    samples, this one samples; its authors' scale is 1.5. Its distillation between augmented views is not here.
    Identity: scale = 0.
    """

    name: ClassVar[str] = "logit-shift"

    scale: Annotated[float, Ge(0)] = 1.0
    """Factor tau on the shift; 0 is plain training."""
    target: Annotated[str, OneOf("global", "uniform", "mixed")] = "global"
    """global: the prior P of all clients. uniform: equal classes, which needs no question (local balanced softmax).
    mixed: equal classes, from a mixture of P and the client's own prior."""

    @property
    def upload(self) -> Upload:
        if self.target == "uniform" or not self.scale:
            return Upload()
        return super().upload

    def logit_offset(self, client: Client) -> Tensor | None:
        """Return (C,) the shift s_i."""
        if not self.scale:
            return None
        local_C = self.local_prior(client)
        if self.target == "mixed":
            mixed_C = (1 - LOCAL_SHARE) * self.global_prior(client) + LOCAL_SHARE * local_C
            return self.scale * torch.log(mixed_C)  # -inf of a class that nobody has
        if self.target == "uniform":
            target_C = torch.full_like(local_C, 1 / len(local_C))
        else:
            target_C = self.global_prior(client)
        shift_C = self.scale * torch.log(local_C / target_C)  # s_ik = ln P_i(k) / P(k)
        # Of a class that nobody holds it is ln(0 / 0), NaN: masked, as one that this client lacks.
        return torch.where(local_C > 0, shift_C, -torch.inf)
