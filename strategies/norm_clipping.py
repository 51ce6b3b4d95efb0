"""Norm clipping: nobody moves the model further than a bound (Sun et al. 2019, "Can You Really Backdoor FL?")."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge

from client_app.state import State, difference, norm, weighted_mean
from strategies.core.server import Server, ServerMethod, Update


@dataclass(frozen=True)
class NormClipping(ServerMethod):
    """w <- w + sum_i p_i Delta_i min(1, c / ||Delta_i||) with Delta_i = w_i - w, p_i as in FedAvg.

    Parameters and buffers are clipped apart, as their scales have nothing to do with each other: buffers always by
    the median of their norms.
    """

    name: ClassVar[str] = "norm-clipping"

    bound: Annotated[float, Ge(0)] = 0.0
    """c, the largest norm of an update; 0 is the median of the round's norms."""

    def combine(
        self, server: Server, state: State, updates: Sequence[Update]
    ) -> tuple[State, State]:
        clipped = [dict(update.shared) for update in updates]
        buffers = frozenset(updates[0].shared) - server.parameters
        for names, bound in ((server.parameters, self.bound), (buffers, 0.0)):
            moves = [difference(part(update.shared, names), server.start) for update in updates]
            norms = [norm(move) for move in moves]
            limit = bound or statistics.median(norms)
            for shared, move, length in zip(clipped, moves, norms, strict=True):
                if length > limit:
                    shared |= {
                        name: server.start[name] + step * (limit / length)
                        for name, step in move.items()
                    }
        return weighted_mean(clipped, [update.examples for update in updates]), state


def part(state: State, names: frozenset[str]) -> State:
    """Return the tensors of those names."""
    return {name: tensor for name, tensor in state.items() if name in names}
