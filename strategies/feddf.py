"""FedDF: distill the clients' ensemble into the average (Lin et al., NeurIPS 2020)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Gt
from torch import Tensor

from client_app.optimizer import clip
from client_app.state import State
from strategies.core.server import Server, ServerMethod, Update
from strategies.distillation import Adam, cosine, distill, logits_of, on_cpu
from strategies.fedavg import FedAvg


@dataclass(frozen=True)
class FedDF(ServerMethod):
    """Start from FedAvg's mean w and take Adam steps on the hold-out, whose labels are not looked at, down

        KL( softmax(mean_k f(w_k, x)) || softmax(f(w, x)) )

    with the clients' models w_k in eval mode. The rate falls along half a cosine; gradients are clipped.
    Identity: steps = 0 is FedAvg.
    """

    name: ClassVar[str] = "feddf"
    needs_holdout: ClassVar[bool] = True
    needs_whole_model: ClassVar[bool] = True

    steps: Annotated[int, Ge(0)] = 200
    """Mini-batches in a round."""
    batch_size: Annotated[int, Ge(2)] = 128
    """Images of the hold-out in a mini-batch."""
    learning_rate: Annotated[float, Gt(0)] = 0.001
    """Adam's learning rate in the first step."""
    gradient_norm: Annotated[float, Gt(0)] = 5.0
    """Gradients with a larger norm are shrunk to it."""

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

        def step(number: int, gradients: list[Tensor]) -> None:
            rate = cosine(self.learning_rate, number, self.steps)
            optimizer.step(clip(gradients, self.gradient_norm), rate)

        distill(
            model,
            samples,
            teacher_NC,
            batch_size=self.batch_size,
            steps=self.steps,
            generator=server.generator(self.name),
            step=step,
        )
        return on_cpu(model), state


def mean_logits(logits_KNC: Sequence[Tensor]) -> Tensor:
    """Return (N, C) probabilities: the softmax of the teachers' mean logits."""
    mean_NC = torch.stack([logits_NC.double() for logits_NC in logits_KNC]).mean(0)
    return torch.softmax(mean_NC, dim=1).to(logits_KNC[0])
