"""FedDecorr's client side: features of a batch that do not correlate (Shi et al. 2023)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge
from torch import Tensor

from client_app.client import Client, Variant

EPSILON = 1e-8
"""Added to a feature's variance, as in the authors' code: a feature that is constant correlates with none."""


@dataclass(frozen=True)
class Decorrelation(Variant):
    """Add beta times the mean square of the correlations between the D features of a batch.

    K (D, D) are the correlations over the B samples. The term is that of the authors' code, to which their beta = 0.1
    belongs: beta / (D (D - 1)) sum_{i != j} ((B - 1) K_ij)^2 / B. The paper's beta / D^2 ||K||_F^2 (Shi et al., ICLR
    2023) is about a B-th of it. A batch of one sample has no correlations and adds nothing. A sample's term depends on
    the others of its batch, so clients train one by one.
    Identity: beta = 0.
    """

    name: ClassVar[str] = "decorrelation"
    needs: ClassVar[frozenset[str]] = frozenset({"trained-features"})

    beta: Annotated[float, Ge(0)] = 0.1
    """Strength of the term; 0 is plain training."""

    def loss_term(
        self,
        client: Client,
        indices_B: Tensor,
        features_BD: Tensor,
        logits_BC: Tensor,
        teacher_BC: Tensor | None,
    ) -> Tensor:
        batch, width = features_BD.shape
        if not self.beta or batch == 1 or width == 1:
            return torch.zeros_like(logits_BC[:, 0])
        centered_BD = features_BD - features_BD.mean(0)
        standard_BD = centered_BD / torch.sqrt(features_BD.var(0) + EPSILON)
        products_DD = standard_BD.T @ standard_BD  # (B - 1) K
        between_DD = products_DD - torch.diag(products_DD.diagonal())
        value = between_DD.square().sum() / (width * (width - 1)) / batch
        return (self.beta * value).expand(batch)
