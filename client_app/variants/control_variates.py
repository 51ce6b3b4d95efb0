"""SCAFFOLD's client side: control variates that take the client's drift out of its steps (Karimireddy et al. 2020)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from client_app.client import (
    Client,
    Contribution,
    TensorSpec,
    Trained,
    Upload,
    Variant,
    vectorizable,
)
from client_app.models.classifier import Classifier
from client_app.state import State


@dataclass(frozen=True)
class ControlVariates(Variant):
    """Step along g + c - c_i; then c_i becomes an estimate of the client's own gradient, by the paper's option II.

    c_i+ = c_i - c + (x - y_i) / (K eta), the mean of the gradients taken on the way. The correction is inside the
    gradient and so inside momentum; K is FedNova's norm of the coefficients (momentum and pull included), the number of
    steps in plain SGD, so that c_i+ stays a weighted mean of gradients. Weight decay leaks into it.
    At a rate of 0, as after a cosine's end, nothing moves and c_i stays.
    Controls exist for the shared parameters alone, never for buffers. The client keeps c_i in float64, and adds to it
    what it uploads, c_i+ - c_i in the weights' own precision: its mean over all clients is the server's c.
    There is no identity setting; with all controls zero, as in round 1, a client trains as without them, to the bit.
    """

    name: ClassVar[str] = "control-variates"
    needs: ClassVar[frozenset[str]] = frozenset({"shared-weights", "sgd"})

    @property
    def upload(self) -> Upload:
        return Upload("control-variates", self.tensors)

    def tensors(self, model: Classifier, shared: State) -> dict[str, TensorSpec]:
        """Return what an upload must be: a tensor like every shared parameter."""
        names = sorted(model.trained.keys() & shared.keys())
        return {name: TensorSpec(shared[name].dtype, tuple(shared[name].shape)) for name in names}

    @vectorizable
    def gradient_offset(self, client: Client, name: str, weight: Tensor) -> Tensor | None:
        if name not in client.start:
            return None
        control = client.broadcast[self.name][name]
        own = client.memory.get(self.name, {}).get(name)
        if own is None:  # c_i = 0
            return control
        return control - own.to(control.dtype)  # c - c_i

    def after(self, client: Client, trained: Trained) -> Contribution:
        scale = trained.coefficient_sum * trained.learning_rate  # K eta
        change = {}
        for name, control in client.broadcast[self.name].items():
            moved = client.start[name].double() - trained.state[name].double()  # x - y_i
            if not scale:  # the steps say nothing of the gradients
                change[name] = torch.zeros_like(moved)
                continue
            change[name] = moved / scale - control.double()  # c_i+ - c_i
        own = client.memory.get(self.name, {})
        upload = {}
        memory = {}
        for name, step in change.items():
            sent = step.to(client.start[name].dtype)
            upload[name] = sent
            # The memory takes exactly what is uploaded.
            memory[name] = own.get(name, torch.zeros_like(step)) + sent.double()
        return Contribution(upload=upload, memory=memory)
