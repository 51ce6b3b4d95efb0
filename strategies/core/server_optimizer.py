"""Server optimizers: the combined model's displacement is the gradient of a server step.

Momentum as in Hsu et al. (2019); FedAdagrad, FedAdam and FedYogi as in Reddi et al. (ICLR 2021, Algorithm 2).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from client_app.state import State, empty, fill, split_prefix, with_prefix
from strategies.core.server import Server

FORMS = ("heavy-ball", "nesterov", "damped")
"""Of the momentum."""
RULES = ("adagrad", "adam", "yogi")
"""Of the adaptive optimizer."""


@dataclass(frozen=True)
class ServerOptimizer:
    """v <- beta v + delta with delta = combined - w;  w <- w + eta v, over the parameters; buffers are as combined.

    That is the heavy ball. nesterov: w <- w + eta (delta + beta v). damped: v <- beta v + (1 - beta) delta.
    Rate 1 and momentum 0 is the combined model itself, to the bit.
    """

    learning_rate: float = 1.0
    momentum: float = 0.0
    form: str = "heavy-ball"

    def step(self, server: Server, state: State, combined: State) -> tuple[State, State]:
        """Return the new shared weights and the optimizer's state (its velocity)."""
        if self.learning_rate == 1 and self.momentum == 0:
            return combined, state
        names = [name for name in combined if name in server.parameters]
        old_velocities = state or filled(combined, names, 0.0)
        stepped = empty(combined, names)
        velocities = empty(combined, names)
        states = [server.start, combined, old_velocities]
        fill([stepped, velocities], self.momentum_step, states, names)
        return {**combined, **stepped}, velocities

    def momentum_step(self, start: Tensor, combined: Tensor, before: Tensor) -> Sequence[Tensor]:
        """Return w and v after a round, of one tensor or a part of it."""
        gain = 1 - self.momentum if self.form == "damped" else 1.0
        delta = combined - start
        velocity = self.momentum * before + gain * delta
        step = velocity
        if self.form == "nesterov":
            step = delta + self.momentum * velocity
        return start + self.learning_rate * step, velocity


@dataclass(frozen=True)
class AdaptiveOptimizer:
    """m <- beta1 m + (1 - beta1) delta with delta = combined - w;  w <- w + eta m / (sqrt(v) + tau), by coordinate.

    adagrad: v <- v + delta^2. adam: v <- beta2 v + (1 - beta2) delta^2. yogi: v <- v - (1 - beta2) delta^2
    sign(v - delta^2). Before round 1 m is 0 and v is tau^2, the least that the paper's convergence asks for; there is
    no correction of either's bias, as in the paper. Parameters alone; buffers are as combined.
    """

    learning_rate: float
    momentum: float
    """beta1."""
    adaptivity: float
    """tau: the smaller, the more the step's length is the same in every coordinate."""
    rule: str = "adam"
    second_momentum: float = 0.99
    """beta2, the paper's; adagrad has none."""

    def step(self, server: Server, state: State, combined: State) -> tuple[State, State]:
        """Return the new shared weights and the optimizer's state, `m/NAME` and `v/NAME`."""
        names = [name for name in combined if name in server.parameters]
        moments = split_prefix(state)
        if not moments:  # before round 1
            moments["m"] = filled(combined, names, 0.0)
            moments["v"] = filled(combined, names, self.adaptivity**2)
        stepped = empty(combined, names)
        means = empty(combined, names)
        squares = empty(combined, names)
        states = [server.start, combined, moments["m"], moments["v"]]
        fill([stepped, means, squares], self.adaptive_step, states, names)
        new_state = {**with_prefix("m", means), **with_prefix("v", squares)}
        return {**combined, **stepped}, new_state

    def adaptive_step(
        self, start: Tensor, combined: Tensor, mean: Tensor, square: Tensor
    ) -> Sequence[Tensor]:
        """Return w, m and v after a round, of one tensor or a part of it."""
        delta = combined - start
        mean = self.momentum * mean + (1 - self.momentum) * delta
        square = self.squares(square, delta.square())
        pace = self.learning_rate / (square.sqrt() + self.adaptivity)
        return start + pace * mean, mean, square

    def squares(self, before: Tensor, square: Tensor) -> Tensor:
        """Return v after a round whose delta has this square."""
        if self.rule == "adagrad":
            return before + square
        new_share = 1 - self.second_momentum
        if self.rule == "adam":
            return self.second_momentum * before + new_share * square
        return before - new_share * square * torch.sign(before - square)


def filled(state: State, names: Iterable[str], value: float) -> dict[str, Tensor]:
    """Return tensors like the named ones of `state` that hold `value` everywhere."""
    tensors = empty(state, names)
    for tensor in tensors.values():
        tensor.fill_(value)
    return tensors
