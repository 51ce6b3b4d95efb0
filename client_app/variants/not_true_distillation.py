"""FedNTD's client side: the received model's view of the classes that a sample does not have (Lee et al. 2022)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt
from torch import Tensor

from client_app.client import Client, Variant


@dataclass(frozen=True)
class NotTrueDistillation(Variant):
    """Add beta KL(q_g || q) to the loss, q_g and q over all classes but the sample's own.

    q = softmax of the logits / temperature without the label's logit, and q_g the same of the model as received, in
    eval mode (Lee et al., NeurIPS 2022). The authors' released code multiplies the term by temperature^2, which this
    does not: the same at 1. With two classes there is one other class, and the term is 0.
    Identity: beta = 0.
    """

    name: ClassVar[str] = "not-true-distillation"
    needs: ClassVar[frozenset[str]] = frozenset({"teacher"})

    beta: Annotated[float, Ge(0)] = 1.0
    """Strength of the distillation; 0 is plain training."""
    temperature: Annotated[float, Gt(0)] = 1.0
    """tau, which divides both models' logits."""

    def loss_term(
        self,
        client: Client,
        indices_B: Tensor,
        features_BD: Tensor,
        logits_BC: Tensor,
        teacher_BC: Tensor | None,
    ) -> Tensor:
        if not self.beta:
            return torch.zeros_like(logits_BC[:, 0])
        assert teacher_BC is not None
        labels_B = client.labels_N[indices_B]
        student_BC = F.log_softmax(others(logits_BC, labels_B) / self.temperature, 1)
        received_BC = F.log_softmax(others(teacher_BC, labels_B) / self.temperature, 1)
        divergence_B = F.kl_div(student_BC, received_BC, reduction="none", log_target=True).sum(1)
        return self.beta * divergence_B


def others(logits_BC: Tensor, labels_B: Tensor) -> Tensor:
    """Return (B, C - 1) the logits without those of the labels."""
    column_C = torch.arange(logits_BC.shape[1] - 1, device=logits_BC.device)
    column_BC = column_C + (column_C >= labels_B[:, None])
    return logits_BC.gather(1, column_BC)
