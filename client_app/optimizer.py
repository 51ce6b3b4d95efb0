"""Stochastic gradient descent with momentum, weight decay and a learning-rate schedule by round.

torch.optim.SGD computes the same (a test holds them equal to the bit), but its first use imports half of torch's
compiler, more than a second in every worker process; these lines do not.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge, Gt, Le, Lt
from torch import Tensor

from data import OneOf, Settings


@dataclass(frozen=True)
class TrainingSettings(Settings):
    """How a client trains in a round."""

    local_epochs: Annotated[int, Ge(1)] = 5
    """Passes over the client's data in a round, E."""
    local_steps: Annotated[int, Ge(0)] = 0
    """Optimizer steps in a round; 0 takes local-epochs instead."""
    batch_size: Annotated[int, Ge(1)] = 32
    """Samples in a mini-batch; a client with fewer trains on all of its samples."""
    batch_limit: Annotated[int, Ge(0)] = 0
    """Largest number of mini-batches per epoch, for a quick test; 0 is all. Not with local-steps."""
    learning_rate: Annotated[float, Gt(0)] = 0.05
    """Learning rate of the first round."""
    learning_rate_decay: Annotated[float, Gt(0), Le(1)] = 1.0
    """The rate is multiplied by this every learning-rate-decay-every rounds."""
    learning_rate_decay_every: Annotated[int, Ge(1)] = 10
    """Rounds between two decays: rate(t) = learning-rate * decay ** (t // every), with t = round - 1."""
    momentum: Annotated[float, Ge(0), Lt(1)] = 0.9
    """SGD's momentum; its buffers start at zero in every round."""
    weight_decay: Annotated[float, Ge(0)] = 0.0
    """L2 penalty inside the gradient, as in torch.optim.SGD."""
    clip_norm: Annotated[float, Ge(0)] = 0.0
    """Largest L2 norm of a step's gradient, over all parameters; larger ones are scaled down; 0 does not clip."""
    precision: Annotated[str, OneOf("float32", "bfloat16")] = "float32"
    """Precision of local training's passes through the model: float32, or bfloat16 by autocast; all else is float32."""

    clients_per_pass: Annotated[int, Ge(1)] = 1
    """Clients that a process trains in one pass, their models stacked; it pays for small models and small clients. Sums
    have another order, so results are not bit-identical to clients one by one; in bfloat16 they differ visibly."""

    def validate(self) -> None:
        both = self.batch_limit and self.local_steps
        rule, remedy = "contradicts local-steps", "set one of the two"
        self.require(not both, "batch_limit", rule, remedy)

    def steps(self, samples: int) -> float:
        """Return about how many steps a client with so many samples takes in a round, in units of a whole mini-batch.

        A part of one counts as more than its share, as a step takes its time with few samples too.
        """
        if self.local_steps:
            return self.local_steps
        whole = samples / self.batch_size
        epoch = (whole + math.ceil(whole)) / 2
        return self.local_epochs * min(epoch, self.batch_limit or epoch)

    def rate(self, round: int) -> float:
        """Return the learning rate of `round` (1-based)."""
        return float(
            self.learning_rate
            * self.learning_rate_decay ** ((round - 1) // self.learning_rate_decay_every)
        )


class SGD:
    """v <- momentum v + g + weight_decay w;  w <- w - rate v."""

    def __init__(
        self,
        parameters: Iterable[Tensor],
        rate: float,
        momentum: float,
        weight_decay: float,
    ) -> None:
        self.parameters = list(parameters)
        self.rate = rate
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.velocity: list[Tensor] = []

    def rows(self, begin: int, end: int) -> "SGD":
        """Return the optimizer of some of the rows of parameters that are stacked; it moves these very tensors."""
        if self.momentum and not self.velocity:
            self.velocity = [torch.zeros_like(weight) for weight in self.parameters]
        part = SGD(
            (w[begin:end] for w in self.parameters), self.rate, self.momentum, self.weight_decay
        )
        part.velocity = [velocity[begin:end] for velocity in self.velocity]
        return part

    @torch.no_grad()
    def step(self, gradients: Iterable[Tensor]) -> None:
        """Move every parameter along its gradient; `gradients`, two of which may share memory, stay as they are."""
        directions = list(gradients)
        if self.weight_decay:
            directions = list(
                torch._foreach_add(directions, self.parameters, alpha=self.weight_decay)
            )
        if self.momentum:
            if self.velocity:
                torch._foreach_mul_(self.velocity, self.momentum)
                torch._foreach_add_(self.velocity, directions)
            else:
                self.velocity = [direction.clone() for direction in directions]
            directions = self.velocity
        torch._foreach_add_(self.parameters, directions, alpha=-self.rate)


def clip(gradients: Sequence[Tensor], largest: float) -> list[Tensor]:
    """Return the gradients, shrunk together to norm `largest` where it is more, as torch.nn.utils.clip_grad_norm_."""
    norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
    return [gradient * (largest / (norm + 1e-6)).clamp(max=1) for gradient in gradients]


@lru_cache(maxsize=1024)
def coefficient_sum(steps: int, momentum: float, pull: float = 0.0) -> float:
    """Return ||a||_1 of FedNova (Wang et al. 2020): how far `steps` of unit gradients move a scalar, at rate 1.

    `pull` is the learning rate times the strength mu of a pull mu (w - w^t) inside the gradient. The number comes from
    the optimizer itself, so it stays right whatever the optimizer becomes; weight decay is left out, as in the paper.
    """
    scalar = torch.zeros((), dtype=torch.float64)
    optimizer = SGD([scalar], 1.0, momentum, 0.0)
    for _ in range(steps):
        optimizer.step([1 + pull * scalar])
    return -scalar.item()


def expected_coefficient_sum(steps: int, momentum: float, pull: float = 0.0) -> float:
    """Return what `coefficient_sum` returns, to a relative 1e-9, in time that grows with the logarithm of `steps`.

    For a number of steps that another party states: the loop of `coefficient_sum` would run for as long as that party
    likes. With y the distance so far, a step is v <- momentum v + 1 - pull y and y <- y + v. That is one 3 x 3 matrix
    on (v, y, 1), and `steps` of them are its power. The result is infinite or NaN where the steps diverge.
    """
    step = np.array([[momentum, -pull, 1.0], [momentum, 1.0 - pull, 1.0], [0.0, 0.0, 1.0]])
    with np.errstate(all="ignore"):
        return float(np.linalg.matrix_power(step, steps)[1, 2])
