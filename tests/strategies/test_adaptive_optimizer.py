"""FedAdagrad, FedAdam and FedYogi against Algorithm 2 of Reddi et al. written out for single numbers."""

import math
from unittest import mock

import pytest
import torch
from flwr.app import Array, ArrayRecord, MetricRecord
from flwr.serverapp.strategy import FedAdam, FedAvg
from server_builders import server_of, state_of

from client_app.state import State
from strategies.core.server_optimizer import RULES, AdaptiveOptimizer

RATE, BETA1, BETA2, TAU = 0.1, 0.9, 0.75, 0.02


def by_hand(rule: str, start: list[float], deltas: list[list[float]]) -> list[float]:
    """Return the weights after the rounds' displacements."""
    weights = []
    for number, weight in enumerate(start):
        m, v = 0.0, TAU**2
        for delta in (moved[number] for moved in deltas):
            m = BETA1 * m + (1 - BETA1) * delta
            if rule == "adagrad":
                v += delta**2
            elif rule == "adam":
                v = BETA2 * v + (1 - BETA2) * delta**2
            else:
                v -= (1 - BETA2) * delta**2 * ((v > delta**2) - (v < delta**2))
            weight += RATE * m / (math.sqrt(v) + TAU)
        weights.append(weight)
    return weights


@pytest.mark.parametrize("rule", RULES)
def test_three_rounds_by_hand(rule: str) -> None:
    optimizer = AdaptiveOptimizer(RATE, BETA1, BETA2, TAU, rule)
    start = state_of(50)
    shared, state = start, {}
    deltas = []
    for round in range(3):
        delta = state_of(round)["head.bias"] * 0.1 ** (
            round + 1
        )  # large, then small: yogi's sign turns
        combined = {**shared, "head.bias": shared["head.bias"] + delta}
        deltas.append((combined["head.bias"] - shared["head.bias"]).tolist())
        shared, state = optimizer.step(server_of(start=shared), state, combined)
    expected = torch.tensor(by_hand(rule, start["head.bias"].tolist(), deltas))
    torch.testing.assert_close(shared["head.bias"], expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(shared["head.weight"], start["head.weight"])  # it was not moved


def test_buffers_are_as_combined() -> None:
    combined: State = state_of(3)
    shared, state = AdaptiveOptimizer(RATE, BETA1, BETA2, TAU).step(server_of(), {}, combined)
    buffers = combined.keys() - server_of().parameters
    assert buffers and all(torch.equal(shared[name], combined[name]) for name in buffers)
    assert not any(name.partition("/")[2] in buffers for name in state)


def test_a_large_tau_is_fedavgm_damped_and_a_small_one_equal_steps() -> None:
    """The limits: tau >> |delta| leaves rate / tau times the mean; tau << |delta| leaves steps of equal length."""
    server, combined = server_of(), state_of(3)
    name = "head.weight"
    delta = combined[name] - server.start[name]
    large, _ = AdaptiveOptimizer(2e6, 0.0, 0.99, 1e6, "adagrad").step(
        server, {}, combined
    )  # sqrt(v) + tau is 2 tau
    torch.testing.assert_close(large[name], combined[name], rtol=1e-4, atol=1e-5)
    small, _ = AdaptiveOptimizer(0.1, 0.0, 0.0, 1e-12).step(server, {}, combined)
    torch.testing.assert_close(
        small[name] - server.start[name], 0.1 * torch.sign(delta), rtol=1e-4, atol=1e-5
    )


def test_flwrs_fedadam_takes_our_step_times_the_factor_that_methods_md_states() -> None:
    """Its first round, from v = 0: rate x sqrt(1 - beta2^2) / (1 - beta1^2) where ours is the rate itself."""
    server, combined = server_of(), state_of(3)
    name = "head.weight"
    start = server.start[name]
    ours = AdaptiveOptimizer(RATE, BETA1, BETA2, TAU)
    zero = {**{f"m/{n}": torch.zeros_like(server.start[n]) for n in server.parameters},
            **{f"v/{n}": torch.zeros_like(server.start[n]) for n in server.parameters}}  # fmt: skip
    stepped = ours.step(server, zero, combined)[0][name] - start

    theirs = FedAdam(eta=RATE, beta_1=BETA1, beta_2=BETA2, tau=TAU)
    theirs.current_arrays = {name: start.numpy()}
    average = ArrayRecord({name: Array(combined[name].numpy())})
    with mock.patch.object(FedAvg, "aggregate_train", return_value=(average, MetricRecord())):
        arrays, _ = theirs.aggregate_train(1, [])
    assert arrays is not None
    factor = math.sqrt(1 - BETA2**2) / (1 - BETA1**2)
    assert abs(factor - 1) > 0.1
    moved = torch.from_numpy(arrays[name].numpy()).float() - start
    torch.testing.assert_close(moved, factor * stepped, rtol=1e-4, atol=1e-6)
