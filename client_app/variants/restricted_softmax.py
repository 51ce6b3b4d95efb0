"""FedRS's client side: the logits of classes that a client lacks count less (Li and Zhan 2021)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Le
from torch import Tensor

from client_app.client import Client, Variant


@dataclass(frozen=True)
class RestrictedSoftmax(Variant):
    """Train on the softmax of a_c f_c(x) with a_c = 1 for the client's classes and alpha for the classes it lacks.

    The gradient to a missing class's row of the head is then alpha times as large, and its logit competes less (Li and
    Zhan, KDD 2021). Inference uses f alone. The bias is part of f. The authors' code has no bias, and scales every
    class by its share: by alpha + (1 - alpha) n_c / max n, again in every batch.
    Identity: alpha = 1.
    """

    name: ClassVar[str] = "restricted-softmax"

    alpha: Annotated[float, Ge(0), Le(1)] = 0.5
    """Factor of the logits of missing classes: 0 leaves them at 0, 1 is plain training."""

    def logit_scale(self, client: Client) -> Tensor:
        """Return (C,) the factors a_c."""
        return torch.where(client.counts_C > 0, 1.0, self.alpha)
