"""FedAvg: the mean of the clients' models, weighted by their samples (McMahan et al. 2017)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from client_app.state import State, weighted_mean, weighted_sum
from data import OneOf
from strategies.core.server import Server, ServerMethod, Update


@dataclass(frozen=True)
class FedAvg(ServerMethod):
    """w <- sum_i p_i w_i with p_i = |D_i| / sum over the participants.

    With weighting = all, p_i = |D_i| / |D| as FedShift's Algorithm 1 reads literally: w <- w + sum_i p_i (w_i - w),
    a damped step when not every client takes part, and the same when all do.
    """

    name: ClassVar[str] = "fedavg"

    weighting: Annotated[str, OneOf("participants", "all")] = "participants"
    """participants: weights sum to 1. all: weights are shares of all clients' samples."""

    def combine(
        self, server: Server, state: State, updates: Sequence[Update]
    ) -> tuple[State, State]:
        shared = [update.shared for update in updates]
        examples = [update.examples for update in updates]
        if self.weighting == "participants" or sum(examples) == server.examples:
            return weighted_mean(shared, examples), state
        self.require(server.examples > 0, "weighting", "needs to know all clients' samples")
        weights = [count / server.examples for count in examples]
        # The clients that took no part count with the weights that they began with.
        weight_of_start = 1 - sum(weights)
        return weighted_sum([server.start, *shared], [weight_of_start, *weights]), state
