"""FedDyn's client side: a penalty that moves with the client's own gradients (Acar et al. 2021)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Gt
from torch import Tensor

from client_app.client import Client, Contribution, Trained, Variant, vectorizable


@dataclass(frozen=True)
class DynamicRegularization(Variant):
    """Add alpha (w - w^t) - h_i to the gradient; after training h_i <- h_i - alpha (w_i - w^t), from zero.

    That is the gradient of L_i(w) - <h_i, w> + alpha/2 ||w - w^t||^2 (Acar et al., ICLR 2021, Algorithm 1). At its
    minimum w_i the gradient of L_i is h_i - alpha (w_i - w^t), the next h_i: it estimates the client's own gradient, so
    that the clients' penalized minima agree where the h_i sum to 0. Only shared parameters have h_i, never buffers. The
    client keeps h_i in float64. The authors' code divides alpha by the client's share of samples times the number of
    clients, and clips gradients at norm 10. There is no identity setting: alpha cancels from the server's half.
    """

    name: ClassVar[str] = "dynamic-regularization"
    needs: ClassVar[frozenset[str]] = frozenset({"shared-weights"})

    alpha: Annotated[float, Gt(0)] = 0.01
    """Strength of the penalty."""

    @property
    def proximal_mu(self) -> float:
        return self.alpha

    @vectorizable
    def gradient_offset(self, client: Client, name: str, weight: Tensor) -> Tensor | None:
        if name not in client.start:
            return None
        moved = weight - client.start[name]
        pull = self.alpha * moved
        estimates = client.memory.get(self.name, {})
        if name not in estimates:  # h_i is zero before the client's first round
            return pull
        return pull - estimates[name].to(pull)

    def after(self, client: Client, trained: Trained) -> Contribution:
        estimates = client.memory.get(self.name, {})
        memory = {}
        names = dict(client.model.named_parameters()).keys() & client.start.keys()
        for name in sorted(names):
            moved = trained.state[name].double() - client.start[name].double()
            estimate = estimates.get(name, torch.zeros_like(moved))
            memory[name] = estimate - self.alpha * moved
        return Contribution(memory=memory)
