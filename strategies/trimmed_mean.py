"""Trimmed mean and median: without the clients that are lowest and highest in a coordinate (Yin et al. 2018)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

import torch
from annotated_types import Gt, Lt
from torch import Tensor

from client_app.state import State, empty, fill
from strategies.core.server import Server, ServerMethod, Update


@dataclass(frozen=True)
class TrimmedMean(ServerMethod):
    """w_j <- mean of the (w_i)_j without the k smallest and the k largest, k = ceil(share K) of K (Definition 2).

    Rounded up, so that somebody is always trimmed, but at least one value is left. Every client counts once, whatever
    number of samples it claims.
    """

    name: ClassVar[str] = "trimmed-mean"

    share: Annotated[float, Gt(0), Lt(0.5)] = 0.2
    """beta: the share of the clients left out at either end of every coordinate."""

    def combine(
        self, server: Server, state: State, updates: Sequence[Update]
    ) -> tuple[State, State]:
        clients = len(updates)
        wanted = math.ceil(self.share * clients - 1e-9)  # 0.07 * 100 is a little more than 7
        most = (clients - 1) // 2  # one value is left
        return middle_mean([update.shared for update in updates], min(wanted, most)), state


@dataclass(frozen=True)
class CoordinateMedian(ServerMethod):
    """w_j <- median_i (w_i)_j in every coordinate j (Definition 1); of an even number the mean of the middle two.

    Every client counts once, whatever number of samples it claims. Where clients are skewed the median drops what only
    few of them have learnt, such as a class that most do not hold: it replaces no mean among friends.
    """

    name: ClassVar[str] = "median"

    def combine(
        self, server: Server, state: State, updates: Sequence[Update]
    ) -> tuple[State, State]:
        # All but the middle one, or of an even number the middle two.
        trimmed = (len(updates) - 1) // 2
        return middle_mean([update.shared for update in updates], trimmed), state


def middle_mean(states: Sequence[State], trimmed: int) -> dict[str, Tensor]:
    """Return, coordinate by coordinate, the mean without the `trimmed` smallest and as many largest values.

    Of integer tensors, which are no quantities to average, the middle value.
    """
    first = states[0]
    quantities = [name for name, tensor in first.items() if tensor.is_floating_point()]
    means = empty(first, quantities)
    fill([means], partial(middle_of, trimmed=trimmed), states, quantities)

    middle_values: dict[str, Tensor] = {}
    for name in first:
        if name in means:
            continue
        values_K = torch.stack([state[name] for state in states])
        sorted_K = values_K.sort(0).values
        middle_values[name] = sorted_K[len(states) // 2]
    return {**means, **middle_values}


def middle_of(*values_K: Tensor, trimmed: int) -> Sequence[Tensor]:
    """Return the mean without the `trimmed` smallest and as many largest, of K tensors' values at each coordinate."""
    sorted_K = torch.stack(values_K).sort(0).values
    kept = sorted_K[trimmed : len(values_K) - trimmed]
    return [kept.double().mean(0)]
