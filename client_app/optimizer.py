"""The local optimizers (SGD, AdamW) and the schedules of their learning rate.

torch.optim's classes compute the same (a test compares them to the bit), but their first use imports half of torch's
compiler, more than a second in every worker process; these lines do not.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Self

import numpy as np
import torch
from annotated_types import Ge, Gt, Le, Lt
from torch import Tensor

from data import OneOf, Settings, When

SECOND_MOMENTUM, EPSILON = 0.999, 1e-8
"""AdamW's beta2, and what it adds to the root of the squares' mean: torch.optim's defaults."""


@dataclass(frozen=True)
class TrainingSettings(Settings):
    """How a client trains in a round."""

    local_epochs: Annotated[int, Ge(1)] = 5
    """Passes over the client's data in a round, E."""
    local_steps: Annotated[int, Ge(0)] = 0
    """Optimizer steps in a round; 0 takes local-epochs instead."""
    batch_size: Annotated[int, Ge(1)] = 32
    """Samples in a mini-batch; a client with fewer trains on all of its samples."""
    batch_limit: Annotated[int, Ge(0), When("local_steps", (0,))] = 0
    """Largest number of mini-batches per epoch, for a quick test; 0 is all."""
    learning_rate: Annotated[float, Gt(0)] = 0.05
    """Learning rate of the first round."""
    learning_rate_decay: Annotated[float, Gt(0), Le(1), When("schedule", ("step",))] = 1.0
    """The rate is multiplied by this every learning-rate-decay-every rounds."""
    learning_rate_decay_every: Annotated[int, Ge(1)] = 10
    """Rounds between two decays: rate(t) = learning-rate * decay ** (t // every), with t = round - 1."""
    momentum: Annotated[float, Ge(0), Lt(1)] = 0.9
    """SGD's momentum, beta1 of adamw; the buffers start at zero in every round."""
    weight_decay: Annotated[float, Ge(0)] = 0.0
    """L2 penalty inside the gradient, as in torch.optim.SGD; of adamw apart from the gradient."""
    clip_norm: Annotated[float, Ge(0)] = 0.0
    """Largest L2 norm of a step's gradient, over all parameters; larger ones are scaled down; 0 does not clip."""
    precision: Annotated[str, OneOf("float32", "bfloat16")] = "float32"
    """Precision of local training's passes through the model: float32, or bfloat16 by autocast; all else is float32."""

    optimizer: Annotated[str, OneOf("sgd", "adamw")] = "sgd"
    """The local optimizer, as torch.optim's SGD or AdamW; its buffers start at zero in every round."""
    schedule: Annotated[str, OneOf("step", "cosine", remedy="step alone is constant")] = "step"
    """step multiplies the rate by learning-rate-decay, whose default 1 keeps it constant; cosine falls from
    learning-rate to 0 along half a period."""
    schedule_rounds: Annotated[int, Ge(0), When("schedule", ("cosine",))] = 0
    """Rounds after which cosine reaches 0; 0 is all rounds of the run."""

    finetune_epochs: Annotated[int, Ge(0)] = 0
    """Passes over its own data in which each client trains the final model for itself, after the last round; 0 is none.
    The fine-tuned models stay at the clients and are measured there beside the global model."""
    finetune_sampling: Annotated[str, OneOf("shuffle", "method"), When("finetune_epochs")] = (
        "shuffle"
    )
    """How fine-tuning draws its samples: each once an epoch, or as the run's method draws them (iwds and its kin)."""

    clients_per_pass: Annotated[int, Ge(0)] = 1
    """Clients that a process trains in one pass, their models stacked; not bit-identical to clients one by one. 0 is as
    many as fit where a client's step is shorter than starting it, and 1 elsewhere."""

    def validate(self) -> None:
        has_effect = self.learning_rate_decay < 1 or self.is_default("learning_rate_decay_every")
        rule = "has no effect with learning-rate-decay = 1"
        self.require(has_effect, "learning_rate_decay_every", rule)

    def rate(self, round: int) -> float:
        """Return the learning rate of the steps of a round, 1-based: that of the schedule at t = round - 1."""
        t = round - 1
        rate = float(self.learning_rate)
        if self.schedule == "cosine":
            end = max(self.schedule_rounds, 1)
            return rate * (1 + math.cos(math.pi * min(t, end) / end)) / 2
        return float(rate * self.learning_rate_decay ** (t // self.learning_rate_decay_every))

    def local_optimizer(self, parameters: Iterable[Tensor], round: int) -> "LocalOptimizer":
        """Return the optimizer of a client's round, which moves these very tensors."""
        kind = SGD if self.optimizer == "sgd" else AdamW
        return kind(parameters, self.rate(round), self.momentum, self.weight_decay)

    @property
    def coefficient_momentum(self) -> float:
        """The momentum that FedNova's ||a||_1 counts: SGD's, and 0 of adamw, whose steps alone are counted."""
        return self.momentum if self.optimizer == "sgd" else 0.0


class LocalOptimizer(ABC):
    """An optimizer of torch tensors whose rate may change from step to step."""

    def __init__(
        self, parameters: Iterable[Tensor], rate: float, momentum: float, weight_decay: float
    ) -> None:
        self.parameters = list(parameters)
        self.rate = rate
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.velocity: list[Tensor] = []
        """Mean gradients, AdamW's m; SGD has none before its first step."""
        self.taken = 0
        """Steps so far."""

    def rows(self, begin: int, end: int) -> Self:
        """Return the optimizer of some of the rows of parameters that are stacked; it moves these very tensors.

        Its steps are not counted here: who steps part by part sets `taken`.
        """
        part = copy(self)
        for name, value in vars(self).items():
            if isinstance(value, list):  # parameters, or a buffer of each
                setattr(part, name, [tensor[begin:end] for tensor in value])
        return part

    @abstractmethod
    def step(self, gradients: Iterable[Tensor]) -> None:
        """Move every parameter along its gradient; `gradients`, two of which may share memory, stay as they are."""


class SGD(LocalOptimizer):
    """v <- momentum v + g + weight_decay w;  w <- w - rate v."""

    def rows(self, begin: int, end: int) -> Self:
        if self.momentum and not self.velocity:
            self.velocity = [torch.zeros_like(weight) for weight in self.parameters]
        return super().rows(begin, end)

    @torch.no_grad()
    def step(self, gradients: Iterable[Tensor]) -> None:
        directions = list(gradients)
        if self.weight_decay:
            decayed = torch._foreach_add(directions, self.parameters, alpha=self.weight_decay)
            directions = list(decayed)
        if self.momentum:
            if self.velocity:
                torch._foreach_mul_(self.velocity, self.momentum)
                torch._foreach_add_(self.velocity, directions)
            else:
                self.velocity = [direction.clone() for direction in directions]
            directions = self.velocity
        torch._foreach_add_(self.parameters, directions, alpha=-self.rate)


class AdamW(LocalOptimizer):
    """AdamW (Loshchilov and Hutter 2019); without weight decay it is Adam (Kingma and Ba 2015).

    m <- b1 m + (1 - b1) g;  s <- b2 s + (1 - b2) g^2;  w <- w - rate (m' / (sqrt(s') + epsilon) + weight_decay w) with
    m' = m / (1 - b1^t) and s' = s / (1 - b2^t) in step t = 1, 2, ... The order of the operations is torch.optim's, and
    so are the results to the bit.
    """

    def __init__(
        self, parameters: Iterable[Tensor], rate: float, momentum: float, weight_decay: float
    ) -> None:
        super().__init__(parameters, rate, momentum, weight_decay)
        self.velocity = [torch.zeros_like(weight) for weight in self.parameters]
        self.squares = [torch.zeros_like(weight) for weight in self.parameters]

    @torch.no_grad()
    def step(self, gradients: Iterable[Tensor]) -> None:
        self.taken += 1
        slopes = list(gradients)
        if self.weight_decay:
            torch._foreach_mul_(self.parameters, 1 - self.rate * self.weight_decay)
        torch._foreach_lerp_(self.velocity, slopes, 1 - self.momentum)
        torch._foreach_mul_(self.squares, SECOND_MOMENTUM)
        torch._foreach_addcmul_(self.squares, slopes, slopes, 1 - SECOND_MOMENTUM)
        pace = self.rate / (1 - self.momentum**self.taken)
        roots = list(torch._foreach_sqrt(self.squares))
        torch._foreach_div_(roots, (1 - SECOND_MOMENTUM**self.taken) ** 0.5)
        torch._foreach_add_(roots, EPSILON)
        torch._foreach_addcdiv_(self.parameters, self.velocity, roots, -pace)


def clip(gradients: Sequence[Tensor], largest: float) -> list[Tensor]:
    """Return the gradients, shrunk together to norm `largest` where it is more, as torch.nn.utils.clip_grad_norm_."""
    norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
    shrink = (largest / (norm + 1e-6)).clamp(max=1)  # torch's own small number
    return [gradient * shrink for gradient in gradients]


@lru_cache(maxsize=1024)
def coefficient_sum(steps: int, momentum: float, pull: float = 0.0) -> float:
    """Return ||a||_1 of FedNova (Wang et al. 2020): how far `steps` of unit gradients move a scalar, at rate 1.

    `pull` is the learning rate times the strength mu of a pull mu (w - w^t) inside the gradient. The number comes from
    the optimizer itself, so it stays right whatever the optimizer becomes; weight decay is left out, as in the paper.
    """
    scalar = torch.zeros((), dtype=torch.float64)
    optimizer = SGD([scalar], rate=1.0, momentum=momentum, weight_decay=0.0)
    for _ in range(steps):
        optimizer.step([1 + pull * scalar])
    return -scalar.item()


def expected_coefficient_sum(steps: int, momentum: float, pull: float) -> float:
    """Return what `coefficient_sum` returns, to a relative 1e-9, in time that grows with the logarithm of `steps`.

    For a number of steps that another party states: the loop of `coefficient_sum` would run for as long as that party
    likes. With y the distance so far, a step is v <- momentum v + 1 - pull y and y <- y + v. That is one 3 x 3 matrix
    on (v, y, 1), and `steps` of them are its power. The result is infinite or NaN where the steps diverge.
    """
    new_velocity = [momentum, -pull, 1.0]
    new_distance = [momentum, 1.0 - pull, 1.0]
    one = [0.0, 0.0, 1.0]
    step = np.array([new_velocity, new_distance, one])
    with np.errstate(all="ignore"):
        all_steps = np.linalg.matrix_power(step, steps)
    return float(all_steps[1, 2])  # the distance, from (0, 0, 1)
