"""The server's optimizers against their equations: momentum (Hsu et al. 2019), FedAdagrad, FedAdam and FedYogi."""

import math

import pytest
import torch
from server_builders import server_of, state_of

from client_app.state import digest
from strategies.core.server_optimizer import FORMS, RULES, ServerOptimizer

RATE, BETA1, BETA2, TAU = 0.1, 0.9, 0.75, 0.02


def test_rate_1_without_momentum_is_the_combined_model() -> None:
    shared, state = ServerOptimizer().step(server_of(), {}, state_of(4))
    assert digest([shared]) == digest([state_of(4)]) and state == {}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("rate", "beta"), [(1.0, 0.8), (0.3, 0.5)])
def test_forms_of_the_momentum(form: str, rate: float, beta: float) -> None:
    """Two rounds: v <- beta v + delta, w <- w + rate v; nesterov: w by delta + beta v, damped has (1 - beta) delta."""
    optimizer, state, shared = ServerOptimizer(rate, beta, form), {}, state_of(50)
    parameters = server_of().parameters
    velocity = {name: torch.zeros_like(shared[name]) for name in parameters}
    for round in range(2):
        server, combined = server_of(start=shared), state_of(round)
        shared, state = optimizer.step(server, state, combined)
        assert state.keys() == {f"m/{name}" for name in parameters}
        for name in combined:
            if name not in parameters:
                assert torch.equal(shared[name], combined[name])  # buffers are taken as combined
                continue
            delta = combined[name] - server.start[name]
            velocity[name] = beta * velocity[name] + delta * (1 - beta if form == "damped" else 1)
            step = delta + beta * velocity[name] if form == "nesterov" else velocity[name]
            torch.testing.assert_close(shared[name], server.start[name] + rate * step)
            torch.testing.assert_close(state[f"m/{name}"], velocity[name])


def by_hand(rule: str, weight: float, deltas: list[float]) -> float:
    """Return a weight after the rounds' displacements: Algorithm 2 of Reddi et al., written out."""
    m, v = 0.0, TAU**2
    for delta in deltas:
        m = BETA1 * m + (1 - BETA1) * delta
        if rule == "adagrad":
            v += delta**2
        elif rule == "adam":
            v = BETA2 * v + (1 - BETA2) * delta**2
        else:
            v -= (1 - BETA2) * delta**2 * ((v > delta**2) - (v < delta**2))
        weight += RATE * m / (math.sqrt(v) + TAU)
    return weight


@pytest.mark.parametrize("rule", RULES)
def test_three_rounds_of_the_adaptive_rules_by_hand(rule: str) -> None:
    optimizer = ServerOptimizer(RATE, BETA1, rule, BETA2, TAU)
    shared, state, deltas = state_of(50), {}, []
    for round in range(3):
        # large, then small: yogi's sign turns
        delta = state_of(round)["head.bias"] * 0.1 ** (round + 1)
        combined = {**state_of(3), "head.bias": shared["head.bias"] + delta}
        combined["head.weight"] = shared["head.weight"]
        deltas.append((combined["head.bias"] - shared["head.bias"]).tolist())
        shared, state = optimizer.step(server_of(start=shared), state, combined)
    start = state_of(50)
    expected = [
        by_hand(rule, weight, list(moved))
        for weight, *moved in zip(start["head.bias"].tolist(), *deltas, strict=True)
    ]
    torch.testing.assert_close(shared["head.bias"], torch.tensor(expected), rtol=1e-5, atol=1e-6)
    assert torch.equal(shared["head.weight"], start["head.weight"])  # it was not moved
    buffers = shared.keys() - server_of().parameters
    assert buffers and all(torch.equal(shared[name], state_of(3)[name]) for name in buffers)
    assert not any(name.partition("/")[2] in buffers for name in state)
