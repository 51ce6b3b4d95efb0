"""FedProx: a pull towards the server's weights (Li et al. 2020)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge
from torch import Tensor

from client_app.client import Client, Variant, vectorizable


@dataclass(frozen=True)
class Proximal(Variant):
    """Add mu (w - w^t) to the gradient: plain autograd of the loss + mu/2 ||w - w^t||^2 over the shared parameters.

    FedShift's lambda has no 1/2, so lambda = mu / 2. Identity: mu = 0.
    """

    name: ClassVar[str] = "proximal"
    needs: ClassVar[frozenset[str]] = frozenset({"shared-weights"})

    mu: Annotated[float, Ge(0)] = 0.01
    """Strength of the pull."""

    @property
    def proximal_mu(self) -> float:
        return self.mu

    @vectorizable
    def gradient_offset(self, client: Client, name: str, weight: Tensor) -> Tensor | None:
        if not self.mu or name not in client.start:
            return None
        return self.mu * (weight - client.start[name])  # d/dw mu/2 ||w - w^t||^2
