"""FedBE: a Bayesian ensemble of models, distilled into the average (Chen and Chao, ICLR 2021)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

from client_app.optimizer import SGD
from client_app.state import State, copy, weighted_mean
from strategies.core.server import Server, ServerMethod, Update
from strategies.fedavg import FedAvg
from strategies.feddf import distill, logits_of, on_cpu

AVERAGE_START, AVERAGE_EVERY = 100, 25
"""Steps that SWA lets pass, and steps between two averaged weights, as in the authors' code. Of fewer steps the last
weights are sent."""


@dataclass(frozen=True)
class FedBE(ServerMethod):
    """Draw models around the clients' ones, and distill FedAvg's mean, the clients and the draws into the mean.

    Tensor by tensor, with the steps d_k = w_k - w^t and their unit vectors e_k = d_k / ||d_k||, a draw is
    w^t + mean_k ||d_k|| (mean_k e_k + variance-scale std_k(e_k) noise).
    The teacher is the mean of their probabilities, sharpened: p^(1/T) over its sum. The student takes SGD steps with
    momentum 0.9 on the hold-out, whose labels are not looked at, and sends the average of its weights over the last
    steps (SWA). Identity: steps = 0 is FedAvg.
    """

    name: ClassVar[str] = "fedbe"
    needs_holdout: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"whole-model"})

    models: Annotated[int, Ge(0), Le(10_000)] = 10
    """M: models drawn in a round; 0 leaves the mean and the clients as teachers."""
    variance_scale: Annotated[float, Ge(0)] = 0.1
    """Factor on the noise."""
    temperature: Annotated[float, Gt(0)] = 0.5
    """T of the sharpening; 1 leaves the teacher as it is."""
    steps: Annotated[int, Ge(0)] = 200
    """Mini-batches in a round."""
    batch_size: Annotated[int, Ge(2)] = 128
    """Images of the hold-out in a mini-batch."""
    learning_rate: Annotated[float, Gt(0)] = 0.001
    """Learning rate of the student."""

    def combine(
        self, server: Server, state: State, updates: Sequence[Update]
    ) -> tuple[State, State]:
        samples = server.own_samples(self.name)
        mean, _ = FedAvg().combine(server, {}, updates)
        if not self.steps:
            return mean, state
        model = server.model.to(server.device)
        clients = [update.shared for update in updates]
        teachers = [mean, *clients, *self.drawn(server, mean, clients)]
        logits_KNC = [logits_of(model, teacher, samples) for teacher in teachers]
        teacher_NC = sharpened(mean_probabilities(logits_KNC), self.temperature)
        model.load_state_dict(mean)
        optimizer = SGD(
            model.trained.values(),
            rate=self.learning_rate,
            momentum=0.9,
            weight_decay=0.0,
        )
        averaged: list[State] = []
        draws = server.generator(self.name)
        slopes = distill(model, samples, teacher_NC, self.batch_size, self.steps, draws)
        for number, gradients in enumerate(slopes, start=1):
            optimizer.step(gradients)
            past = number - AVERAGE_START
            if past > 0 and past % AVERAGE_EVERY == 0:
                averaged.append(copy(dict(model.named_parameters())))
        student = on_cpu(model)
        if averaged:
            parameters = weighted_mean(averaged, [1.0] * len(averaged))
            student |= {name: tensor.cpu() for name, tensor in parameters.items()}
        return student, state

    def drawn(self, server: Server, mean: State, clients: Sequence[State]) -> list[State]:
        """Return M models; their buffers are the mean's, as noise could make a variance negative."""
        draws = server.generator(f"{self.name} gaussian")
        drawn: list[State] = []
        for _ in range(self.models):
            model = gaussian(server.start, clients, self.variance_scale, draws)
            parameters = {name: model[name] for name in model if name in server.parameters}
            drawn.append({**mean, **parameters})
        return drawn


def gaussian(
    start: State,
    clients: Sequence[State],
    scale: float,
    generator: torch.Generator,
) -> dict[str, Tensor]:
    """Return one model drawn around the clients' steps, over the floating-point tensors."""
    result = {}
    for name, origin in start.items():
        if not origin.is_floating_point():
            continue
        origin_P = origin.double().flatten()
        steps_KP = torch.stack([client[name].double().flatten() - origin_P for client in clients])
        norms_K1 = steps_KP.norm(dim=1, keepdim=True)
        units_KP = steps_KP / norms_K1.clamp(min=1e-12)
        noise_P = torch.randn(steps_KP.shape[1], generator=generator, dtype=torch.float64)
        direction_P = units_KP.mean(0) + scale * units_KP.std(0, correction=0) * noise_P
        step_P = norms_K1.mean() * direction_P
        result[name] = origin + step_P.reshape(origin.shape).to(origin.dtype)
    return result


def mean_probabilities(logits_KNC: Sequence[Tensor]) -> Tensor:
    """Return (N, C): the mean of the teachers' softmax."""
    probabilities = [torch.softmax(logits_NC.double(), dim=1) for logits_NC in logits_KNC]
    mean_NC = torch.stack(probabilities).mean(0)
    return mean_NC.to(logits_KNC[0])


def sharpened(probabilities_NC: Tensor, temperature: float) -> Tensor:
    """Return p^(1/T) over its sum; T = 1 is p, T towards 0 is one-hot."""
    logarithms_NC = torch.log(probabilities_NC.clamp(min=1e-8))
    return torch.softmax(logarithms_NC / temperature, dim=1)
