"""The result of a round, checked before the run adopts it."""

from collections.abc import Sequence
from dataclasses import dataclass

from client_app.state import State
from strategies.core.server import Deployment, ServerMethod
from strategies.core.validation import not_finite

AVERAGE = "average"
"""Name of the combined model among the deployed ones."""


class Diverged(RuntimeError):
    """A model that is no longer finite: the run ends, its last checkpoint kept.

    Args:
        round: in which it happened.
        reason: what is not finite.
        remedy: what may help.
        client: the name of the client to blame; empty where none is.
    """

    def __init__(
        self,
        round: int,
        reason: str,
        remedy: str = "a lower learning-rate may help",
        client: str = "",
    ) -> None:
        super().__init__(f"diverged in round {round}: {reason} ({remedy})")
        self.round = round
        self.reason = reason
        self.remedy = remedy
        self.client = client


@dataclass(frozen=True)
class RoundResult:
    """The shared weights, states and deployed models of a round, and what to record."""

    shared: State
    states: dict[str, State]
    """By part."""
    deployed: dict[str, State]
    """By name, without the average."""
    metrics: dict[str, float | Sequence[float]]

    def take(self, part: ServerMethod, deployment: Deployment) -> None:
        """Add what a part deploys, its state and its numbers."""
        self.states[part.name] = deployment.state
        self.deployed.update(deployment.models)
        self.metrics.update(deployment.metrics)

    def not_finite(self) -> str:
        """Return which of it holds a NaN or an infinity; empty when all is finite."""
        parts = {f"model {AVERAGE}": self.shared}
        parts |= {f"model {name}": state for name, state in self.deployed.items()}
        parts |= {f"state {name}": state for name, state in self.states.items()}
        for part, state in parts.items():
            tensor = not_finite(state)
            if tensor:
                return f"{part}: {tensor}"
        return ""
