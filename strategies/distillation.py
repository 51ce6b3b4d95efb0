"""Distilling an ensemble into one model on the server: what FedDF and FedBE share.

torch.optim would import torch's compiler on first use, as in the clients; tests hold these steps equal to it.
"""

import math
from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from client_app.models.classifier import Classifier, in_batches
from client_app.state import State, copy, seed_global
from client_app.training import mini_batches
from data import Samples

Step = Callable[[int, list[Tensor]], None]
"""(step from 0, gradients): moves the student's parameters."""


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
    step: Step,
) -> None:
    """Train `model` as it is towards the teacher's probabilities, in train mode; labels are not looked at.

    Batch norm's running statistics follow the samples. `step` moves the parameters.
    """
    parameters = list(model.trained.values())
    seed_global(generator.initial_seed(), teacher_NC.device)
    model.train()
    for number, indices in enumerate(batches(len(samples), batch_size, steps, generator)):
        indices_B = indices.to(teacher_NC.device)
        loss = divergence(model(samples.batch(indices_B)), teacher_NC[indices_B])
        step(number, list(torch.autograd.grad(loss, parameters)))


def on_cpu(model: Classifier) -> dict[str, Tensor]:
    """Return a copy of the model's state on the CPU, where updates are combined."""
    copied = copy(model.state_dict())
    return {name: tensor.cpu() for name, tensor in copied.items()}
