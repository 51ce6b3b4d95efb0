"""Trimmed mean: in every coordinate without the clients that are lowest and highest there (Yin et al. 2018)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
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
    sorted_K = torch.stack(sort_by_value(values_K))
    kept = sorted_K[trimmed : len(values_K) - trimmed]
    return [kept.double().mean(0)]


def sort_by_value(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return K tensors that have, at each coordinate, the values of the given ones in ascending order.

    torch.sort along the first dimension gives the same and takes fourteen times as long for K = 10: it sorts K numbers
    at a time, where this compares whole tensors.
    """
    ordered = [tensor.clone() for tensor in tensors]
    lower = torch.empty_like(ordered[0])
    for first, second in comparisons(len(tensors)):
        one, other = ordered[first], ordered[second]
        torch.minimum(one, other, out=lower)
        torch.maximum(one, other, out=other)
        # The tensor of the old values is the buffer of the next comparison.
        ordered[first] = lower
        lower = one
    return ordered


@lru_cache(maxsize=64)
def comparisons(count: int) -> Sequence[tuple[int, int]]:
    """Return pairs of indices such that sorting each pair in turn sorts `count` values.

    Batcher's odd-even merge sort (Knuth, The Art of Computer Programming, volume 3, section 5.3.4). Sorted runs
    of `run` values merge into runs of twice the length, by comparing values `step` apart.
    """
    pairs = []
    run = 1
    while run < count:
        step = run
        while step >= 1:
            for start in range(step % run, count - step, 2 * step):
                for first in range(start, min(start + step, count - step)):
                    second = first + step
                    of_one_merge = first // (2 * run) == second // (2 * run)
                    if of_one_merge:
                        pairs.append((first, second))
            step //= 2
        run *= 2
    return tuple(pairs)
