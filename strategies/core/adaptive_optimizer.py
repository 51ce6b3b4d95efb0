"""FedAdagrad, FedAdam and FedYogi: adaptive server optimizers (Reddi et al., ICLR 2021, Algorithm 2)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from client_app.state import State, difference, split_prefix, with_prefix
from strategies.core.server import Server

RULES = ("adagrad", "adam", "yogi")


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
    second_momentum: float
    """beta2; adagrad has none."""
    adaptivity: float
    """tau: the smaller, the more the step's length is the same in every coordinate."""
    rule: str = "adam"
    copies: ClassVar[int] = 2
    """States of the parameters' size that it keeps."""

    def step(self, server: Server, state: State, combined: State) -> tuple[State, State]:
        """Return the new shared weights and the optimizer's state, `m/NAME` and `v/NAME`."""
        means, squares, stepped = {}, {}, {}
        before = split_prefix(state)
        for name, delta in difference(combined, server.start).items():
            if name not in server.parameters:
                continue
            mean = before["m"][name] if before else torch.zeros_like(delta)
            square = before["v"][name] if before else torch.full_like(delta, self.adaptivity**2)
            means[name] = self.momentum * mean + (1 - self.momentum) * delta
            squares[name] = self.squares(square, delta.square())
            pace = self.learning_rate / (squares[name].sqrt() + self.adaptivity)
            stepped[name] = server.start[name] + pace * means[name]
        return {**combined, **stepped}, {**with_prefix("m", means), **with_prefix("v", squares)}

    def squares(self, before: Tensor, square: Tensor) -> Tensor:
        """Return v after a round whose delta has this square."""
        if self.rule == "adagrad":
            return before + square
        if self.rule == "adam":
            return self.second_momentum * before + (1 - self.second_momentum) * square
        return before - (1 - self.second_momentum) * square * torch.sign(before - square)
