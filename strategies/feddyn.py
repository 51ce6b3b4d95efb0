"""FedDyn's server side: the clients' mean, moved on by the sum of all updates (Acar et al. 2021)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from client_app.state import State, weighted_mean
from strategies.core.server import Server, ServerMethod, Update


@dataclass(frozen=True)
class FedDyn(ServerMethod):
    """h <- h - alpha 1/K sum_{i in S} (w_i - w);  w <- mean over S of w_i - h / alpha, with h = 0 at first.

    K are all clients, S those that take part (Acar et al., ICLR 2021, Algorithm 1). The state is -h / alpha, in
    float64, from which alpha cancels. Clients weigh the same however many samples they hold, as in the
    paper; buffers are averaged alone.
    """

    name: ClassVar[str] = "feddyn"

    def initial_state(self, server: Server) -> State:
        """Return -h / alpha = 0 for every shared parameter."""
        return {
            name: torch.zeros_like(server.start[name], dtype=torch.float64)
            for name in sorted(server.parameters)
        }

    def combine(
        self, server: Server, state: State, updates: Sequence[Update]
    ) -> tuple[State, State]:
        shared = dict(weighted_mean([update.shared for update in updates], [1.0] * len(updates)))
        totals = {}
        for name, total in state.items():
            start = server.start[name].double()
            for update in updates:
                total = total + (update.shared[name].double() - start) / server.clients
            totals[name] = total
            shared[name] = (shared[name].double() + total).to(shared[name])
        return shared, totals
