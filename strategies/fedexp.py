"""FedExP: a server step as long as the clients' disagreement allows (Jhunjhunwala et al. 2023)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Gt

from client_app.state import State, weighted_mean, weighted_sum
from strategies.core.server import Server, ServerMethod, Update


@dataclass(frozen=True)
class FedExP(ServerMethod):
    """w <- w + eta D, D = sum_i p_i Delta_i, eta = max(1, sum_i p_i ||Delta_i||^2 / (2 (||D||^2 + epsilon))).

    Delta_i = w_i - w, p_i = |D_i| / sum over the participants: with equal clients the paper's equation (Jhunjhunwala et
    al., ICLR 2023). Norms are over the shared parameters. Buffers are averaged as in FedAvg, as a running
    variance that is extrapolated may turn negative. The paper evaluates the mean of the last two models; FedSkew
    evaluates the last. The authors' code has S epsilon in place of epsilon, with S participants.
    """

    name: ClassVar[str] = "fedexp"

    epsilon: Annotated[float, Gt(0)] = 1e-3
    """Added to the squared norm of the mean update: the larger, the nearer to FedAvg."""

    def combine(
        self, server: Server, state: State, updates: Sequence[Update]
    ) -> tuple[State, State]:
        shared = [update.shared for update in updates]
        examples = [update.examples for update in updates]
        mean = weighted_mean(shared, examples)
        squares = [squared_distance(server, one) for one in shared]
        total = sum(examples)
        spread = math.fsum(
            count / total * square for count, square in zip(examples, squares, strict=True)
        )
        eta = spread / (2 * (squared_distance(server, mean) + self.epsilon))
        if eta <= 1:
            return mean, state
        names = sorted(server.parameters)
        ends = [{name: one[name] for name in names} for one in (server.start, mean)]
        return {**mean, **weighted_sum(ends, [1 - eta, eta])}, state


def squared_distance(server: Server, shared: State) -> float:
    """Return the squared L2 distance of the parameters from those the round started with."""
    return math.fsum(
        float((shared[name].double() - server.start[name].double()).square().sum())
        for name in sorted(server.parameters)
    )
