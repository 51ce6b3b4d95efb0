"""The server optimizer: the combined model's displacement as a gradient (Hsu et al. 2019; Reddi et al. 2021)."""

from dataclasses import dataclass

import torch

from client_app.state import State, difference
from strategies.core.server import Server

FORMS = ("heavy-ball", "nesterov", "damped")


@dataclass(frozen=True)
class ServerOptimizer:
    """v <- beta v + delta with delta = combined - w;  w <- w + eta v, over the parameters; buffers are as combined.

    That is the heavy ball. nesterov: w <- w + eta (delta + beta v). damped: v <- beta v + (1 - beta) delta.
    Rate 1 and momentum 0 is the combined model itself, to the bit.
    """

    learning_rate: float = 1.0
    momentum: float = 0.0
    form: str = "heavy-ball"

    @property
    def copies(self) -> int:
        """States of the parameters' size that it keeps: the velocity, where it is no plain combined model."""
        return int(self != ServerOptimizer())

    def step(self, server: Server, state: State, combined: State) -> tuple[State, State]:
        """Return the new shared weights and the optimizer's state (its velocity)."""
        if self.learning_rate == 1 and self.momentum == 0:
            return combined, state
        moved = {
            name: step
            for name, step in difference(combined, server.start).items()
            if name in server.parameters
        }
        gain = 1 - self.momentum if self.form == "damped" else 1.0
        velocity = {
            name: self.momentum * state.get(name, torch.zeros_like(step)) + gain * step
            for name, step in moved.items()
        }
        steps = velocity
        if self.form == "nesterov":
            steps = {name: step + self.momentum * velocity[name] for name, step in moved.items()}
        stepped = {
            name: server.start[name] + self.learning_rate * step for name, step in steps.items()
        }
        return {**combined, **stepped}, velocity
