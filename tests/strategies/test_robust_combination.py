"""Median, trimmed mean and norm clipping: their equations, and what one hostile client can do to them."""

import numpy as np
import pytest
import torch
from server_builders import server_of, state_of, updates_of

from client_app.state import difference, digest, norm
from strategies.core.server import ServerMethod, Update
from strategies.fedavg import FedAvg
from strategies.norm_clipping import NormClipping
from strategies.trimmed_mean import CoordinateMedian, TrimmedMean

ROBUST = [CoordinateMedian(), TrimmedMean(), NormClipping()]


@pytest.mark.parametrize("clients", [1, 2, 5, 8, 19])
def test_the_median_is_numpy_s(clients: int) -> None:
    updates = updates_of(*range(clients))
    combined, _ = CoordinateMedian().combine(server_of(), {}, updates)
    for name, tensor in combined.items():
        values = np.stack([update.shared[name].double().numpy() for update in updates])
        if tensor.is_floating_point():
            assert np.allclose(tensor.numpy(), np.median(values, 0), rtol=1e-6)
        assert tensor.dtype == updates[0].shared[name].dtype


@pytest.mark.parametrize(
    ("share", "clients", "trimmed"),
    [(0.1, 5, 1), (0.2, 10, 2), (0.4, 3, 1), (0.4, 2, 0), (0.2, 33, 7)],
)
def test_the_trimmed_mean_by_hand(share: float, clients: int, trimmed: int) -> None:
    updates = updates_of(*range(clients))
    combined, _ = TrimmedMean(share).combine(server_of(), {}, updates)
    values = np.sort(
        np.stack([update.shared["head.weight"].double().numpy() for update in updates]), 0
    )
    expected = values[trimmed : clients - trimmed].mean(0)
    assert np.allclose(combined["head.weight"].numpy(), expected, rtol=1e-6)


def test_clipping_by_hand() -> None:
    server, updates = server_of(), updates_of(1, 2, 3)
    bound = 0.5 * min(norm(moved(update)) for update in updates)
    combined, _ = NormClipping(bound).combine(server, {}, updates)
    for name in server.parameters:
        steps = [
            moved(update)[name] * bound / norm(moved(update)) * update.examples / 60
            for update in updates
        ]
        torch.testing.assert_close(
            combined[name], server.start[name] + sum(steps), rtol=1e-5, atol=1e-6
        )


def moved(update: Update) -> dict[str, torch.Tensor]:
    """Return the update's step over the parameters."""
    server = server_of()
    return {
        name: step
        for name, step in difference(update.shared, server.start).items()
        if name in server.parameters
    }


def test_a_bound_that_nobody_reaches_is_fedavg() -> None:
    server, updates = (
        server_of(),
        [Update(k, state_of(7), 10 * (k + 1)) for k in range(3)],
    )  # buffers are alike, too
    clipped, _ = NormClipping(1e6).combine(server, {}, updates)
    assert digest([clipped]) == digest([FedAvg().combine(server, {}, updates)[0]])


@pytest.mark.parametrize("method", ROBUST, ids=lambda method: method.name)
def test_equal_models_are_that_model(method: ServerMethod) -> None:
    updates = [Update(k, state_of(7), 10) for k in range(5)]
    assert digest([method.combine(server_of(), {}, updates)[0]]) == digest([state_of(7)])
