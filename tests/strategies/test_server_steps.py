"""FedDyn's, FedExP's and FedDisco's server sides against their published equations, written out number by number."""

import pytest
import torch
from server_builders import server_of, state_of, updates_of
from test_scaffold_and_fednova import PARAMETERS, random_state
from test_scaffold_and_fednova import server_of as small_server
from test_scaffold_and_fednova import updates_of as small_updates

from client_app.state import State, digest, weighted_mean
from client_app.variants.label_discrepancy import UNIT, LabelDiscrepancy
from strategies.core.server import Server, Update
from strategies.fedavg import FedAvg
from strategies.feddisco import FedDisco
from strategies.feddyn import FedDyn
from strategies.fedexp import FedExP

FLOAT = torch.float64


# ---- FedDyn ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.1, 3.0])
def test_feddyn_is_its_algorithm_over_rounds(alpha: float) -> None:
    """h <- h - alpha / K sum (w_i - w), w <- mean - h / alpha: alpha cancels from the weights."""
    start = random_state(0, FLOAT)
    method, state = FedDyn(), FedDyn().initial_state(small_server(start))
    h = {name: torch.zeros_like(start[name]) for name in PARAMETERS}
    for round in range(3):
        server = small_server(start, clients=5)
        updates = [Update(k, random_state(10 * round + k, FLOAT), 1 + k) for k in (1, 2, 3)]
        shared, state = method.combine(server, state, updates)
        for name in start:
            mean = sum(update.shared[name] for update in updates) / 3
            if name not in PARAMETERS:
                if start[name].is_floating_point():
                    torch.testing.assert_close(shared[name], mean, atol=1e-12, rtol=0)
                continue
            moved = sum(update.shared[name] - start[name] for update in updates)
            h[name] = h[name] - alpha / 5 * moved
            torch.testing.assert_close(shared[name], mean - h[name] / alpha, atol=1e-12, rtol=0)
            torch.testing.assert_close(state[name], -h[name] / alpha, atol=1e-12, rtol=0)
        start = dict(shared)


# ---- FedExP ----------------------------------------------------------------------------------------------------------


def of_one(values: list[float], examples: list[int], start: float = 0.5) -> tuple[float, Server]:
    """Return what FedExP makes of clients whose model is two numbers of which the second is a buffer."""
    state: State = {"w": torch.tensor([start], dtype=FLOAT), "b": torch.ones(1, dtype=FLOAT)}
    server = small_server(state, frozenset({"w"}))
    updates = [
        Update(k, {"w": torch.tensor([start + value], dtype=FLOAT), "b": state["b"] * k}, n)
        for k, (value, n) in enumerate(zip(values, examples, strict=True))
    ]
    shared, kept = FedExP(epsilon=0.01).combine(server, {}, updates)
    assert kept == {}
    mean = sum(k * n for k, n in enumerate(examples)) / sum(examples)
    assert shared["b"].item() == pytest.approx(mean)
    return shared["w"].item(), server


@pytest.mark.parametrize(
    ("values", "examples"),
    [
        ([1.0, -0.8, 0.1], [5, 5, 5]),
        ([1.0, -0.2], [1, 1]),
        ([3.0, -1.0], [1, 3]),
        ([2.0, -2.1, 0.4, 0.0], [4, 3, 2, 1]),
    ],
)
def test_fedexp_is_its_equation(values: list[float], examples: list[int]) -> None:
    p = [n / sum(examples) for n in examples]
    mean = sum(share * value for share, value in zip(p, values, strict=True))
    squares = sum(share * value**2 for share, value in zip(p, values, strict=True))
    eta = max(1.0, squares / (2 * (mean**2 + 0.01)))
    assert eta > 1
    moved, _ = of_one(values, examples)
    assert moved == pytest.approx(0.5 + eta * mean, rel=1e-12, abs=1e-12)


def test_fedexp_of_clients_that_agree_is_fedavg_to_the_bit() -> None:
    server, updates = small_server(random_state(0)), small_updates([10, 30, 20])
    near = [
        Update(u.client, {n: t + 0.01 * u.client for n, t in random_state(9).items()}, u.examples)
        for u in updates
    ]
    shared = FedExP().combine(server, {}, near)[0]
    assert digest([shared]) == digest([FedAvg().combine(server, {}, near)[0]])
    far = FedExP(epsilon=1e9).combine(server, {}, updates)[0]
    assert digest([far]) == digest([FedAvg().combine(server, {}, updates)[0]])


def test_fedexp_s_norm_is_over_all_parameters_together() -> None:
    start = {"v": torch.zeros(2, dtype=FLOAT), "w": torch.zeros(1, dtype=FLOAT)}
    server = small_server(start, frozenset({"v", "w"}))
    ends = ([3.0, 0.0], [1.0]), ([-3.0, 1.0], [1.0])
    updates = [
        Update(k, {"v": torch.tensor(v, dtype=FLOAT), "w": torch.tensor(w, dtype=FLOAT)}, 1)
        for k, (v, w) in enumerate(ends)
    ]
    shared = FedExP(epsilon=0.25).combine(server, {}, updates)[0]
    eta = (10 + 11) / 2 / (2 * (0.25 + 1 + 0.25))
    torch.testing.assert_close(shared["v"], eta * torch.tensor([0.0, 0.5], dtype=FLOAT))
    torch.testing.assert_close(shared["w"], eta * torch.tensor([1.0], dtype=FLOAT))


# ---- FedDisco --------------------------------------------------------------------------------------------------------


def disco_server(distances: list[float], measure: str) -> Server:
    numbers = torch.tensor([[round(distance * UNIT)] for distance in distances])
    variant = LabelDiscrepancy(measure)
    return server_of(
        clients=len(distances),
        answers={variant.name: {"discrepancy": numbers}},
        variants={variant.name: variant},
    )


@pytest.mark.parametrize("measure", ["kl", "l2"])
@pytest.mark.parametrize("there", [(0, 1, 2, 3), (1, 3)])
def test_feddisco_is_its_equation(measure: str, there: tuple[int, ...]) -> None:
    distances, examples = [0.9, 0.05, 0.4, 0.1], [10, 50, 20, 40]
    updates = [Update(k, state_of(k), examples[k]) for k in there]
    shared, state = FedDisco(a=0.6, b=0.05).combine(disco_server(distances, measure), {}, updates)
    total = sum(examples[k] for k in there)
    scale = sum(distances[k] for k in there) if measure == "kl" else 1.0
    weights = [max(0.0, examples[k] / total - 0.6 * distances[k] / scale + 0.05) for k in there]
    expected = weighted_mean([update.shared for update in updates], weights)
    assert state == {}
    for name, tensor in expected.items():
        torch.testing.assert_close(shared[name], tensor, rtol=1e-6, atol=1e-7)
    plain = FedAvg().combine(server_of(), {}, updates)[0]
    assert digest([shared]) != digest([plain])


def test_feddisco_without_discrepancies_or_positive_weights_is_fedavg() -> None:
    updates = updates_of(1, 2, 3)
    plain = FedAvg().combine(server_of(), {}, updates)[0]
    for method, distances in (
        (FedDisco(a=0.0, b=0.0), [0.9, 0.1, 0.3]),
        (FedDisco(b=0.0), [0.0, 0.0, 0.0]),
        (FedDisco(a=100.0, b=0.0), [0.3, 0.3, 0.3]),
    ):
        shared, _ = method.combine(disco_server(distances, "kl"), {}, updates)
        for name, tensor in plain.items():
            torch.testing.assert_close(shared[name], tensor, rtol=1e-6, atol=1e-7)
