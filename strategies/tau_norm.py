"""tau-normalization of the head's rows after training (Kang et al. 2020)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from client_app.state import State
from data import SettingError, at_least, require
from strategies.server import Deployment, Server, ServerMethod, Update


@dataclass(frozen=True)
class TauNorm(ServerMethod):
    """w_c <- w_c / ||w_c||^tau for every class c; the bias is kept, so that tau = 0 is FedAvg's head."""

    name: ClassVar[str] = "tau-norm"

    tau: float = 1.0
    """Exponent; 0 changes nothing, 1 gives rows of unit norm."""
    sweep: str = ""
    """Several exponents from one training instead of tau, as 0,0.5,1: one model each, named tau-norm-0.5."""

    def __post_init__(self) -> None:
        at_least(self, 0, "tau")
        require(not self.sweep or self.tau == 1.0, "tau-norm.tau", self.tau, "has no effect with tau-norm.sweep")
        self.exponents()

    def exponents(self) -> dict[str, float]:
        """Return every exponent by the name of its model."""
        if not self.sweep:
            return {self.name: self.tau}
        rule = "must be comma-separated numbers of 0 or more, each once"
        try:
            values = [float(part) for part in self.sweep.split(",")]
        except ValueError:
            raise SettingError("tau-norm.sweep", self.sweep, rule) from None
        holds = all(0 <= value < math.inf for value in values) and len(set(values)) == len(values)
        require(holds, "tau-norm.sweep", self.sweep, rule)
        return {f"{self.name}-{value!r}".removesuffix(".0"): value for value in values}

    def deploy(self, server: Server, state: State, shared: State, updates: Sequence[Update]) -> Deployment:
        weight_CD = shared["head.weight"]
        norms_C1 = weight_CD.norm(dim=1, keepdim=True).clamp(min=1e-12)
        models = {name: {**shared, "head.weight": weight_CD / norms_C1**tau} for name, tau in self.exponents().items()}
        return Deployment(models, state)
