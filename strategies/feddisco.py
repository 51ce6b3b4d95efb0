"""FedDisco: weights that count a client's samples and how equal its classes are (Ye et al. 2023)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge

from client_app.state import State, weighted_mean
from client_app.variants.label_discrepancy import UNIT, LabelDiscrepancy
from strategies.core.server import Server, ServerMethod, Update


@dataclass(frozen=True)
class FedDisco(ServerMethod):
    """w <- sum_i p_i w_i with p_i proportional to max(0, n_i - a d_i + b).

    n_i = |D_i| / sum over the participants, d_i the client's discrepancy (Ye et al., ICML 2023). Of the kl
    measure d_i is divided by the participants' sum, as in the authors' code. Where no weight is positive, p_i = n_i.
    """

    name: ClassVar[str] = "feddisco"

    a: Annotated[float, Ge(0)] = 0.5
    """Strength of the discrepancy."""
    b: Annotated[float, Ge(0)] = 0.1
    """Added to every weight."""

    def combine(
        self, server: Server, state: State, updates: Sequence[Update]
    ) -> tuple[State, State]:
        examples = [update.examples for update in updates]
        shared = [update.shared for update in updates]
        total = sum(examples)
        weights = [
            max(0.0, count / total - self.a * distance + self.b)
            for count, distance in zip(examples, discrepancies(server, updates), strict=True)
        ]
        if not any(weights):
            return weighted_mean(shared, examples), state
        return weighted_mean(shared, weights), state


def discrepancies(server: Server, updates: Sequence[Update]) -> list[float]:
    """Return d_i of every update's client."""
    name = LabelDiscrepancy.name
    numbers_K1 = server.answers[name]["discrepancy"]
    distances = [int(numbers_K1[update.client]) / UNIT for update in updates]
    measure = getattr(server.variants[name], "measure", LabelDiscrepancy.measure)
    total = sum(distances)
    if measure != "kl" or not total:
        return distances
    return [distance / total for distance in distances]
