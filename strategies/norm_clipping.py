"""Norm clipping: nobody moves the model further than a bound (Sun et al. 2019, "Can You Really Backdoor FL?")."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

from annotated_types import Ge
from torch import Tensor

from client_app.state import CHUNK, State, empty, fill, on_cores, pieces, weighted_mean
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
    quantities = [name for name in start if name in names and start[name].is_floating_point()]
    norms = on_cores(partial(distance, start=start, names=quantities), models)
    limit = bound or statistics.median(norms)
    result: list[State] = []
    for model, length in zip(models, norms, strict=True):
        if length > limit:
            shrunk = empty(start, quantities)
            move_less = partial(moved, share=limit / length)
            fill([shrunk], move_less, [start, model], quantities)
            model = {**model, **shrunk}
        result.append(model)
    return result


def distance(model: State, start: State, names: Sequence[str]) -> float:
    """Return ||w_i - w|| over the named tensors."""
    squares = []
    for ends, starts in pieces([model, start], names, CHUNK):
        for end, begin in zip(ends, starts, strict=True):
            step = (end - begin).double()
            squares.append(step.square_().sum().item())
    return math.sqrt(math.fsum(squares))


def moved(start: Tensor, model: Tensor, share: float) -> Sequence[Tensor]:
    """Return w + share (w_i - w), of one tensor or a part of it."""
    return [start + (model - start) * share]
