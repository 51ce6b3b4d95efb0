"""tau-normalization of the head's rows after training (Kang et al. 2020)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge

from client_app.state import State
from strategies.core.server import Deployment, Server, ServerMethod, Update


@dataclass(frozen=True)
class TauNorm(ServerMethod):
    """w_c <- w_c / ||w_c||^tau for every class c; the bias is kept, so that tau = 0 is FedAvg's head."""

    name: ClassVar[str] = "tau-norm"
    needs: ClassVar[frozenset[str]] = frozenset({"shared-head"})

    tau: Annotated[float, Ge(0)] = 1.0
    """Exponent; 0 changes nothing, 1 gives rows of unit norm."""

    def deploy(
        self,
        server: Server,
        state: State,
        shared: State,
        updates: Sequence[Update],
    ) -> Deployment:
        weight_CD = shared["head.weight"]
        norms_C1 = weight_CD.norm(dim=1, keepdim=True).clamp(min=1e-12)
        normalized = {**shared, "head.weight": weight_CD / norms_C1**self.tau}
        return Deployment({self.name: normalized}, state)
