"""The server optimizer: the combined model's displacement is the gradient of a server step.

Momentum as in Hsu et al. (2019); FedAdagrad, FedAdam and FedYogi as in Reddi et al. (ICLR 2021, Algorithm 2).
"""

from collections.abc import Sequence
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
    """A step along delta = combined - w, over the parameters; buffers are as combined.

        heavy-ball:  m <- beta m + delta;               w <- w + eta m
        nesterov:    m <- beta m + delta;               w <- w + eta (delta + beta m)
        damped:      m <- beta m + (1 - beta) delta;    w <- w + eta m
        RULES:       m <- beta m + (1 - beta) delta;    w <- w + eta m / (sqrt(v) + tau), by coordinate
        adagrad:     v <- v + delta^2
        adam:        v <- beta2 v + (1 - beta2) delta^2
        yogi:        v <- v - (1 - beta2) delta^2 sign(v - delta^2)

    Before round 1 m is 0 and v is tau^2, the least that the paper's convergence asks for; there is no correction of
    either's bias, as in the paper. Rate 1 and momentum 0 is the combined model itself, to the bit.
    """

    learning_rate: float = 1.0
    momentum: float = 0.0
    """beta."""
    rule: str = "heavy-ball"
    """One of FORMS or RULES."""
    second_momentum: float = 0.99
    """beta2, the paper's; adagrad has none."""
    adaptivity: float = 1e-3
    """tau: the smaller, the more the step's length is the same in every coordinate."""

    def step(self, server: Server, state: State, combined: State) -> tuple[State, State]:
        """Return the new shared weights and the optimizer's state, `m/NAME` and of RULES `v/NAME`."""
        if self.rule in FORMS and self.learning_rate == 1 and self.momentum == 0:
            return combined, state
        names = [name for name in combined if name in server.parameters]
        moments = split_prefix(state)
        if not moments:  # before round 1
            moments["m"] = {name: torch.zeros_like(combined[name]) for name in names}
            if self.rule in RULES:
                least = self.adaptivity**2
                moments["v"] = {name: torch.full_like(combined[name], least) for name in names}
        results = [empty(combined, names) for _ in range(1 + len(moments))]
        formula = self.adaptive_step if self.rule in RULES else self.momentum_step
        fill(results, formula, [server.start, combined, *moments.values()], names)
        stepped, *moved = results
        new_state: dict[str, Tensor] = {}
        for moment, tensors in zip(moments, moved, strict=True):
            new_state |= with_prefix(moment, tensors)
        return {**combined, **stepped}, new_state

    def momentum_step(self, start: Tensor, combined: Tensor, mean: Tensor) -> Sequence[Tensor]:
        """Return w and m after a round, of one tensor or a part of it."""
        delta = combined - start
        gain = 1.0
        if self.rule == "damped":
            gain = 1 - self.momentum
        mean = self.momentum * mean + gain * delta
        step = mean
        if self.rule == "nesterov":
            step = delta + self.momentum * mean
        return start + self.learning_rate * step, mean

    def adaptive_step(
        self, start: Tensor, combined: Tensor, mean: Tensor, square: Tensor
    ) -> Sequence[Tensor]:
        """Return w, m and v after a round, of one tensor or a part of it."""
        delta = combined - start
        mean = self.momentum * mean + (1 - self.momentum) * delta
        new_square = delta.square()
        new_share = 1 - self.second_momentum
        if self.rule == "adagrad":
            square = square + new_square
        elif self.rule == "adam":
            square = self.second_momentum * square + new_share * new_square
        else:
            square = square - new_share * new_square * torch.sign(square - new_square)
        pace = self.learning_rate / (square.sqrt() + self.adaptivity)
        return start + pace * mean, mean, square
