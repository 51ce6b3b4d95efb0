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
        models = [update.shared for update in updates]
        buffers = frozenset(models[0]) - server.parameters
        models = clipped(models, server.start, server.parameters, self.bound)
        models = clipped(models, server.start, buffers, bound=0.0)
        return weighted_mean(models, [update.examples for update in updates]), state


def clipped(
    models: Sequence[State], start: State, names: frozenset[str], bound: float
) -> list[State]:
    """Return the models with the named tensors moved from `start` by a norm of at most `bound`.

    A bound of 0 is the median of the models' norms.
    """
    moves = []
    for model in models:
        named = {name: tensor for name, tensor in model.items() if name in names}
        moves.append(difference(named, start))
    norms = [norm(move) for move in moves]
    limit = bound or statistics.median(norms)
    result: list[State] = []
    for model, move, length in zip(models, moves, norms, strict=True):
        if length > limit:
            shrink = limit / length
            shrunk = {name: start[name] + step * shrink for name, step in move.items()}
            model = {**model, **shrunk}
        result.append(model)
    return result
