"""FedDF: distill the clients' ensemble into the average (Lin et al., NeurIPS 2020); and what FedBE shares.

torch.optim would import torch's compiler on first use, as in the clients; tests hold these steps equal to it.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt
from torch import Tensor

from client_app.models.classifier import Classifier, in_batches
from client_app.optimizer import clip
from client_app.state import State, copy, seed_global
from client_app.training import mini_batches
from data import Samples
from strategies.core.server import Server, ServerMethod, Update
from strategies.fedavg import FedAvg

GRADIENT_NORM = 5.0
"""Gradients with a larger norm are shrunk to it."""


@dataclass(frozen=True)
class FedDF(ServerMethod):
    """Start from FedAvg's mean w and take Adam steps on the hold-out, whose labels are not looked at, down

        KL( softmax(mean_k f(w_k, x)) || softmax(f(w, x)) )

    with the clients' models w_k in eval mode. The rate falls along half a cosine; gradients are clipped.
    Identity: steps = 0 is FedAvg.
    """

    name: ClassVar[str] = "feddf"
    needs_holdout: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"whole-model"})

    steps: Annotated[int, Ge(0)] = 200
    """Mini-batches in a round."""
    batch_size: Annotated[int, Ge(2)] = 128
    """Images of the hold-out in a mini-batch."""
    learning_rate: Annotated[float, Gt(0)] = 0.001
    """Adam's learning rate in the first step."""

    def combine(
        self, server: Server, state: State, updates: Sequence[Update]
    ) -> tuple[State, State]:
        samples = server.own_samples(self.name)
        mean, _ = FedAvg().combine(server, {}, updates)
        if not self.steps:
            return mean, state
        model = server.model.to(server.device)
        teacher_NC = mean_logits([logits_of(model, update.shared, samples) for update in updates])
        model.load_state_dict(mean)
        optimizer = Adam(list(model.trained.values()))
        draws = server.generator(self.name)
        slopes = distill(model, samples, teacher_NC, self.batch_size, self.steps, draws)
        for number, gradients in enumerate(slopes):
            rate = cosine(self.learning_rate, number, self.steps)
            optimizer.step(clip(gradients, GRADIENT_NORM), rate)
        return on_cpu(model), state


def mean_logits(logits_KNC: Sequence[Tensor]) -> Tensor:
    """Return (N, C) probabilities: the softmax of the teachers' mean logits."""
    mean_NC = torch.stack([logits_NC.double() for logits_NC in logits_KNC]).mean(0)
    return torch.softmax(mean_NC, dim=1).to(logits_KNC[0])


class Adam:
    """m <- b1 m + (1 - b1) g;  v <- b2 v + (1 - b2) g^2;  w <- w - rate m^ / (sqrt(v^) + 1e-8), b1 = .9, b2 = .999."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters = list(parameters)
        self.steps = 0
        self.first = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.second = [torch.zeros_like(parameter) for parameter in self.parameters]

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor], rate: float) -> None:
        """Move every parameter."""
        self.steps += 1
        # Both averages begin at 0; the divisions take that out again.
        first_scale = 1 - 0.9**self.steps
        second_scale = 1 - 0.999**self.steps
        moments = zip(self.parameters, gradients, self.first, self.second, strict=True)
        for weight, gradient, m, v in moments:
            m.lerp_(gradient, 0.1)
            v.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
            spread = (v / second_scale).sqrt_().add_(1e-8)
            weight.addcdiv_(m, spread, value=-rate / first_scale)


def cosine(rate: float, step: int, steps: int) -> float:
    """Return the rate of a step, falling from `rate` to 0 along half a cosine."""
    return rate * (1 + math.cos(math.pi * step / steps)) / 2


def logits_of(model: Classifier, state: State, samples: Samples) -> Tensor:
    """Return (N, C) logits of all samples under `state`, in eval mode."""
    model.load_state_dict(state)
    model.eval()
    return in_batches(model, samples)


def divergence(student_BC: Tensor, teacher_BC: Tensor) -> Tensor:
    """Return KL(teacher || student), summed over the classes, averaged over the batch.

    `student_BC` are logits, `teacher_BC` probabilities.
    """
    return F.kl_div(F.log_softmax(student_BC, dim=1), teacher_BC, reduction="batchmean")


def batches(samples: int, size: int, steps: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield the indices of `steps` mini-batches, epoch after epoch in a new order."""
    done = 0
    while done < steps:
        parts = mini_batches(torch.randperm(samples, generator=generator), size)
        for part in parts[: steps - done]:
            done += 1
            yield part


def distill(
    model: Classifier,
    samples: Samples,
    teacher_NC: Tensor,
    batch_size: int,
    steps: int,
    generator: torch.Generator,
) -> Iterator[list[Tensor]]:
    """Yield the gradients of each step that trains `model` towards the teacher's probabilities; the caller takes it.

    The model is in train mode, and batch norm's running statistics follow the samples; labels are not looked at.
    """
    parameters = list(model.trained.values())
    seed_global(generator.initial_seed(), teacher_NC.device)
    model.train()
    for indices in batches(len(samples), batch_size, steps, generator):
        indices_B = indices.to(teacher_NC.device)
        loss = divergence(model(samples.batch(indices_B)), teacher_NC[indices_B])
        yield list(torch.autograd.grad(loss, parameters))


def on_cpu(model: Classifier) -> dict[str, Tensor]:
    """Return a copy of the model's state on the CPU, where updates are combined."""
    copied = copy(model.state_dict())
    return {name: tensor.cpu() for name, tensor in copied.items()}
