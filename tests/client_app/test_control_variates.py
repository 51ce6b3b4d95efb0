"""SCAFFOLD's client side against a loop on paper."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from client_builders import (
    FLOAT,
    client_of,
    labels_of,
    linear_model,
    same,
    small_client,
)
from torch import Tensor

from client_app.client import Client
from client_app.optimizer import TrainingSettings, coefficient_sum
from client_app.state import State, copy
from client_app.training import train_round
from client_app.variants.control_variates import ControlVariates
from client_app.variants.local_parts import LocalBatchNorm
from client_app.variants.proximal import Proximal

NAME = ControlVariates.name
FULL = TrainingSettings(local_steps=6, batch_size=100, learning_rate=0.2)


def drawn(like: State, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: 0.1 * torch.randn(t.shape, generator=generator, dtype=t.dtype)
        for name, t in like.items()
    }


def linear_client() -> Client:
    """Return a client in float64 with controls c and c_i that are not zero."""
    inputs_N = torch.randn(20, 3, generator=torch.Generator().manual_seed(1), dtype=FLOAT)
    client = client_of(linear_model(3, 4), inputs_N, labels_of((9, 6, 4, 1)))
    controls, own = drawn(client.start, 2), drawn(client.start, 3)
    return replace(client, broadcast={NAME: controls}, memory={NAME: own})


def gradient_at(client: Client, state: State) -> dict[str, Tensor]:
    """Return the gradient of the mean cross-entropy over all samples."""
    model = linear_model(3, 4)
    model.load_state_dict(state)
    loss = torch.nn.functional.cross_entropy(model(client.samples.inputs_N), client.labels_N)
    return dict(zip(state, torch.autograd.grad(loss, list(model.parameters())), strict=True))


def assert_close(left: State, right: State) -> None:
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        torch.testing.assert_close(tensor, right[name], rtol=0, atol=1e-12)


@pytest.mark.parametrize(("momentum", "mu"), [(0.0, 0.0), (0.5, 0.3)])
def test_a_control_is_the_weighted_mean_of_the_gradients(momentum: float, mu: float) -> None:
    """Six full batches by hand: c_i+ = sum_j a_j g_j / ||a||_1, whatever c and c_i are."""
    client, steps = linear_client(), FULL.local_steps
    start, controls, variate = copy(client.start), client.broadcast[NAME], client.memory[NAME]
    weights, gradients = copy(start), []
    velocity = {name: torch.zeros_like(t) for name, t in start.items()}
    for _ in range(steps):
        gradients.append(gradient_at(client, weights))
        for name, gradient in gradients[-1].items():
            pull = mu * (weights[name] - start[name])
            step = gradient + controls[name] - variate[name] + pull
            velocity[name] = momentum * velocity[name] + step
            weights[name] = weights[name] - FULL.learning_rate * velocity[name]
    # a_j: how far a unit gradient in step j alone moves a scalar, at rate 1
    sums = [coefficient_sum(n, momentum, mu * FULL.learning_rate) for n in range(steps, -1, -1)]
    a = [longer - shorter for longer, shorter in pairwise(sums)]
    settings = replace(FULL, momentum=momentum)
    report = train_round(client, [ControlVariates(), *([Proximal(mu)] if mu else [])], settings)
    mean = {
        name: sum(a_j * g[name] for a_j, g in zip(a, gradients, strict=True)) / sum(a)
        for name in start
    }
    assert_close(report.shared, weights)
    assert_close(report.memory[NAME], mean)
    assert_close(report.uploads[NAME], {name: mean[name] - variate[name] for name in start})


def test_a_rate_of_zero_leaves_the_control_as_it_is() -> None:
    """As after the end of a cosine: nothing moves, and nothing is learned of the gradients."""
    client = replace(linear_client(), round=3)
    settings = replace(FULL, schedule="cosine", schedule_rounds=2)
    report = train_round(client, [ControlVariates()], settings)
    assert same(report.shared, client.start)
    assert same(report.memory[NAME], {n: t.double() for n, t in client.memory[NAME].items()})
    assert not any(sent.any() for sent in report.uploads[NAME].values())


def test_private_parameters_and_buffers_have_no_controls() -> None:
    client, private_norm = small_client(), LocalBatchNorm()
    private = private_norm.private_names(client.model)
    shared = {name: tensor for name, tensor in client.start.items() if name not in private}
    controls = {name: torch.full_like(tensor, 0.1) for name, tensor in shared.items()}
    client = replace(client, start=shared, broadcast={NAME: controls})
    report = train_round(client, [ControlVariates(), private_norm], TrainingSettings())
    kept, sent = report.memory[NAME], report.uploads[NAME]
    names = {name for name, _ in client.model.named_parameters()} - private
    assert kept.keys() == sent.keys() == names and report.memory["private"].keys() == private
    assert {tensor.dtype for tensor in sent.values()} == {torch.float32}
    assert same(kept, {name: tensor.double() for name, tensor in sent.items()}), "just what is sent"
