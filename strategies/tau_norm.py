"""tau-normalization of the head's rows after training (Kang et al. 2020)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge

from client_app.state import State
from strategies.core.server import Deployment, Server, ServerMethod, Update
from strategies.sweep import SWEEP, by_model


@dataclass(frozen=True)
class TauNorm(ServerMethod):
    """w_c <- w_c / ||w_c||^tau for every class c; the bias is kept, so that tau = 0 is FedAvg's head."""

    name: ClassVar[str] = "tau-norm"
    needs_head: ClassVar[bool] = True

    tau: Annotated[float, Ge(0)] = 1.0
    """Exponent; 0 changes nothing, 1 gives rows of unit norm."""
    sweep: Annotated[str, SWEEP] = ""
    """Several exponents from one training instead of tau, as 0,0.5,1: one model each, named tau-norm-0.5."""

    def validate(self) -> None:
        alone = not self.sweep or self.is_default("tau")
        self.require(alone, "tau", "has no effect with tau-norm.sweep")

    @property
    def exponents(self) -> dict[str, float]:
        """Return every exponent by the name of its model."""
        if not self.sweep:
            return {self.name: self.tau}
        return by_model(self.name, self.sweep)

    def deploy(
        self,
        server: Server,
        state: State,
        shared: State,
        updates: Sequence[Update],
    ) -> Deployment:
        weight_CD = shared["head.weight"]
        norms_C1 = weight_CD.norm(dim=1, keepdim=True).clamp(min=1e-12)
        models = {}
        for name, tau in self.exponents.items():
            models[name] = {**shared, "head.weight": weight_CD / norms_C1**tau}
        return Deployment(models, state)
