"""SCAFFOLD's client side: control variates that take the client's drift out of its steps (Karimireddy et al. 2020)."""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn

from client_app.client import (
    Client,
    Contribution,
    Loss,
    Requirements,
    Trained,
    Upload,
    Variant,
    vectorizable,
)
from client_app.models.classifier import Classifier
from client_app.state import State
from data import OneOf

FULL_BATCH = 512
"""Samples at most in a part of the full gradient."""


@dataclass(frozen=True)
class ControlVariates(Variant):
    """Step along g + c - c_i; then c_i becomes an estimate of the client's own gradient.

    Option I: c_i+ is the gradient of the training loss over all samples at the model as received, before any pull or
    decay. Option II: c_i+ = c_i - c + (x - y_i) / (K eta), the mean of the gradients taken on the way. The correction
    is inside the gradient and so inside momentum; K is FedNova's norm of the coefficients (momentum and pull included),
    the number of steps in plain SGD, so that c_i+ stays a weighted mean of gradients. Weight decay leaks into it.
    Controls exist for the shared parameters alone, never for buffers. The client keeps c_i in float64, and adds to it
    what it uploads, c_i+ - c_i in the weights' own precision: its mean over all clients is the server's c.
    There is no identity setting; with all controls zero, as in round 1, a client trains as without them, to the bit.
    """

    name: ClassVar[str] = "control-variates"
    requirements: ClassVar[Requirements] = Requirements(shared_weights=True, sgd=True)

    option: Annotated[str, OneOf("I", "II")] = "II"
    """II: the mean of the local gradients, for nothing. I: the full gradient, for one more pass over the data."""

    @property
    def upload(self) -> Upload:
        return Upload("control-variates", parameter_bytes)

    @vectorizable
    def gradient_offset(self, client: Client, name: str, weight: Tensor) -> Tensor | None:
        if name not in client.start:
            return None
        control = client.broadcast[self.name][name]
        own = client.memory.get(self.name, {}).get(name)
        if own is None:  # c_i = 0
            return control
        return control - own.to(control.dtype)  # c - c_i

    def before(self, client: Client, loss: Loss) -> Contribution:
        if self.option == "II":
            return Contribution()
        gradient = full_gradient(client, loss)
        own = client.memory.get(self.name, {})
        change = {}
        for name in client.broadcast[self.name]:
            change[name] = gradient[name].double()  # c_i+ - c_i = g_i(x) - c_i
            if name in own:
                change[name] -= own[name]
        return self.changed(client, change)

    def after(self, client: Client, trained: Trained) -> Contribution:
        if self.option == "I":
            return Contribution()
        scale = trained.coefficient_sum * trained.learning_rate  # K eta
        change = {}
        for name, control in client.broadcast[self.name].items():
            moved = client.start[name].double() - trained.state[name].double()  # x - y_i
            change[name] = moved / scale - control.double()  # c_i+ - c_i
        return self.changed(client, change)

    def changed(self, client: Client, change: State) -> Contribution:
        """Contribute c_i+ - c_i as the upload, and as the memory c_i plus exactly what is uploaded."""
        own = client.memory.get(self.name, {})
        upload = {}
        memory = {}
        for name, step in change.items():
            sent = step.to(client.start[name].dtype)
            upload[name] = sent
            before = own.get(name, torch.zeros_like(step))
            memory[name] = before + sent.double()
        return Contribution(upload=upload, memory=memory)


def parameter_bytes(model: Classifier, classes_held: int) -> int:
    """Return the bytes of all parameters; a client sends those of the shared ones."""
    return sum(weight.numel() * weight.element_size() for weight in model.parameters())


def full_gradient(client: Client, loss: Loss) -> dict[str, Tensor]:
    """Return the gradient of the loss expected over what training draws, at the model as received.

    Batch norm normalizes by the batch as in training, but its running statistics stay; a client with one example keeps
    eval mode, as in training. Dropout is off.
    """
    parameters = client.model.trained
    norms = [m for m in client.model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    buffers = [buffer.clone() for buffer in client.model.buffers()]
    for module in norms:
        module.train(len(client.samples) > 1)
    for part in client.model.frozen:
        part.eval()
    labels_N = client.labels_N
    size = len(client.samples)
    # How often an epoch is expected to draw a sample of each class: 1 with plain shuffles.
    draws_C = client.effective_prior_C * size / client.counts_C.clamp(min=1)
    weights_N = draws_C.to(labels_N.device)[labels_N]
    total = {name: torch.zeros_like(weight) for name, weight in parameters.items()}
    count = math.ceil(size / FULL_BATCH)  # equal parts: batch norm cannot train on a part of one
    for indices_B in torch.chunk(torch.arange(size, device=labels_N.device), count):
        value = loss(indices_B, weights_N[indices_B])
        slopes = torch.autograd.grad(value, list(parameters.values()))
        share = len(indices_B) / size
        for name, slope in zip(parameters, slopes, strict=True):
            total[name] += slope * share
    for module in norms:
        module.eval()
    with torch.no_grad():
        for buffer, kept in zip(client.model.buffers(), buffers, strict=True):
            buffer.copy_(kept)
    return total
