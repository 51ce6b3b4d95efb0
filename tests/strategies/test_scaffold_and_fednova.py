"""Server sides against drift (FedNova, SCAFFOLD, FedDyn, FedExP) against their equations, and the optima they reach."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from server_builders import server_of, state_of
from torch import Tensor, nn

from client_app.client import Client
from client_app.models import Classifier
from client_app.optimizer import TrainingSettings
from client_app.state import State, copy, digest, weighted_mean
from client_app.training import train_round
from client_app.variants.control_variates import ControlVariates
from data import Samples
from strategies.core.server import Update
from strategies.core.validation import RejectedUpdate, check_upload
from strategies.fedavg import FedAvg
from strategies.feddyn import FedDyn
from strategies.fedexp import FedExP
from strategies.fednova import FedNova
from strategies.scaffold import Scaffold

PARAMETERS = server_of().parameters


def wide_state(seed: int) -> State:
    """Return a state in float64."""
    return {
        name: tensor.double() if tensor.is_floating_point() else tensor
        for name, tensor in state_of(seed).items()
    }


def updates_of(
    examples: Sequence[int], steps: Sequence[int], norms: Sequence[float]
) -> list[Update]:
    """Return updates in float64 of clients that took these steps, with these sums of coefficients."""
    numbers = zip(examples, steps, norms, strict=True)
    return [
        Update(k, wide_state(k + 1), n, metrics={"steps": s, "coefficient-sum": a})
        for k, (n, s, a) in enumerate(numbers)
    ]


# ---- FedNova ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pull", [0.0, 0.5])
def test_fednova_is_its_equation(pull: float) -> None:
    start, examples, steps, norms = (
        wide_state(0),
        [10, 30, 20],
        [2, 5, 9],
        [3.5, 11.0, 30.25],
    )
    updates = updates_of(examples, steps, norms)
    shared, state = FedNova().combine(server_of(start=start, proximal_mu=pull), {}, updates)
    p = [n / 60 for n in examples]
    effective = sum(p_i * length for p_i, length in zip(p, steps if pull else norms, strict=True))
    for name in PARAMETERS:
        moved = sum(p[k] * (start[name] - updates[k].shared[name]) / norms[k] for k in range(3))
        torch.testing.assert_close(
            shared[name], start[name] - effective * moved, rtol=0, atol=1e-12
        )
    averaged = weighted_mean([update.shared for update in updates], examples)
    for name in start.keys() - PARAMETERS:
        assert torch.equal(shared[name], averaged[name])
    assert state == {} and list(shared) == list(averaged)


@pytest.mark.parametrize(
    ("examples", "steps"), [([10, 30, 20], [7, 7, 7]), ([10], [4]), ([3, 9], [1, 1])]
)
def test_fednova_of_equal_steps_is_fedavg(examples: list[int], steps: list[int]) -> None:
    server, updates = server_of(start=wide_state(0)), updates_of(examples, steps, steps)
    shared, _ = FedNova().combine(server, {}, updates)
    for name, tensor in FedAvg().combine(server, {}, updates)[0].items():
        torch.testing.assert_close(shared[name], tensor, rtol=1e-6, atol=1e-7)


# ---- SCAFFOLD --------------------------------------------------------------------------------------------------------


def scaffold_update(client: int, change: float) -> Update:
    upload = {name: torch.full_like(state_of(0)[name], change) for name in PARAMETERS}
    return Update(client, state_of(client + 1), 10 * client + 1, {Scaffold.uses: upload})


def test_scaffold_is_its_equation() -> None:
    server, method = server_of(clients=5), Scaffold()
    state = method.initial_state(server)
    assert state.keys() == PARAMETERS and all((tensor == 0).all() for tensor in state.values())
    updates = [scaffold_update(1, 0.5), scaffold_update(4, -2.0)]
    first = state
    shared, state = method.combine(server, first, updates)
    uniform = weighted_mean([update.shared for update in updates], [1, 1])
    assert digest([shared]) == digest([uniform])  # whatever the controls and the numbers of samples
    by_samples, same_state = Scaffold(weighting="samples").combine(server, first, updates)
    expected = weighted_mean([update.shared for update in updates], [11, 41])
    assert digest([by_samples]) == digest([expected]) and digest([same_state]) == digest([state])
    for tensor in state.values():  # c + |S| / N mean = 2/5 * -0.75
        assert tensor.dtype == torch.float64
        torch.testing.assert_close(tensor, torch.full_like(tensor, -0.3), rtol=0, atol=1e-15)
    sent = method.broadcast(server, state)[Scaffold.uses]
    assert {tensor.dtype for tensor in sent.values()} == {
        torch.float32
    } and sent.keys() == PARAMETERS


@pytest.mark.parametrize(
    "wrong", [{"head.bias": torch.ones(5)}, {"more": torch.ones(1)}, {"head.bias": None}]
)
def test_scaffold_refuses_uploads_of_another_shape(wrong: dict[str, Tensor | None]) -> None:
    upload = {name: state_of(0)[name] for name in PARAMETERS}
    check_upload(ControlVariates().upload, upload, server_of())
    spoiled = {name: tensor for name, tensor in {**upload, **wrong}.items() if tensor is not None}
    with pytest.raises(RejectedUpdate):
        check_upload(ControlVariates().upload, spoiled, server_of())


LIKELIHOODS = (((9, 3), (3, 9)), ((2, 6), (14, 2)))
"""Samples by class and by input, a one-hot of two: the clients disagree about P(y|x)."""


def table_client(
    cells: Sequence[Sequence[int]], shared: State, controls: State, memory: dict[str, State]
) -> Client:
    """Return a client whose linear model is a free table over two inputs, in float64."""
    pairs = [
        (x, y) for y, row in enumerate(cells) for x, count in enumerate(row) for _ in range(count)
    ]
    x_N, y_N = (torch.tensor(column) for column in zip(*pairs, strict=True))
    model = Classifier(nn.Flatten(), nn.Linear(2, 2)).double()
    model.load_state_dict(shared)
    samples = Samples(torch.eye(2, dtype=torch.float64)[x_N], y_N, torch.zeros(1), torch.ones(1))
    broadcast = {Scaffold.uses: controls}
    return Client(0, model, samples, 2, start=copy(shared), broadcast=broadcast, memory=memory)


def trained(scaffold: bool, rounds: int) -> State:
    """Return the weights after rounds of ten full batches at both clients."""
    model = Classifier(nn.Flatten(), nn.Linear(2, 2)).double()
    shared: State = {name: torch.zeros_like(tensor) for name, tensor in model.state_dict().items()}
    server = server_of(start=shared, parameters=frozenset(shared), clients=2)
    method, variants = Scaffold(), [ControlVariates()] if scaffold else []
    state = method.initial_state(server)
    memories: list[dict[str, State]] = [{} for _ in LIKELIHOODS]
    settings = TrainingSettings(local_steps=10, batch_size=1000, learning_rate=0.5, momentum=0.0)
    for _ in range(rounds):
        sent = method.broadcast(server, state)[Scaffold.uses]
        clients = [
            table_client(cells, shared, sent, memory)
            for cells, memory in zip(LIKELIHOODS, memories, strict=True)
        ]
        reports = [train_round(client, variants, settings) for client in clients]
        if scaffold:
            memories = [dict(report.memory) for report in reports]
            updates = [Update(k, r.shared, r.examples, r.uploads) for k, r in enumerate(reports)]
            shared, state = method.combine(replace(server, start=shared), state, updates)
        else:
            shared = weighted_mean([report.shared for report in reports], [1] * len(reports))
    return shared


def pooled_gradient(shared: State) -> float:
    """Return the largest slope of the clients' mean loss, every client counting the same."""
    total: list[Tensor] = []
    for cells in LIKELIHOODS:
        client = table_client(cells, shared, {}, {})
        loss = nn.functional.cross_entropy(client.model(client.samples.inputs_N), client.labels_N)
        total.append(
            torch.cat(
                [g.flatten() for g in torch.autograd.grad(loss, list(client.model.parameters()))]
            )
        )
    return (sum(total[1:], total[0]) / len(total)).abs().max().item()


def test_scaffold_reaches_the_optimum_and_fedavg_does_not() -> None:
    assert pooled_gradient(trained(True, 40)) < 1e-6
    assert pooled_gradient(trained(False, 40)) > 1e-3


# ---- FedDyn and FedExP -----------------------------------------------------------------------------------------------


def test_feddyn_is_its_algorithm_over_rounds() -> None:
    """h <- h - alpha / K sum (w_i - w), w <- mean - h / alpha: alpha, here 3, cancels from the weights."""
    start = wide_state(0)
    method, state = FedDyn(), FedDyn().initial_state(server_of(start=start))
    h = {name: torch.zeros_like(start[name]) for name in PARAMETERS}
    for round in range(3):
        seeds = range(10 * round + 1, 10 * round + 4)
        updates = [Update(k, wide_state(k), k) for k in seeds]
        shared, state = method.combine(server_of(start=start, clients=5), state, updates)
        running_mean = torch.stack([u.shared["features.1.running_mean"] for u in updates]).mean(0)
        torch.testing.assert_close(shared["features.1.running_mean"], running_mean)
        for name in PARAMETERS:
            ends = torch.stack([update.shared[name] for update in updates])
            h[name] = h[name] - 3.0 / 5 * (ends - start[name]).sum(0)
            expected = ends.mean(0) - h[name] / 3.0
            torch.testing.assert_close(shared[name], expected, atol=1e-12, rtol=0)
            torch.testing.assert_close(state[name], -h[name] / 3.0, atol=1e-12, rtol=0)
        start = dict(shared)


def test_fedexp_is_its_equation() -> None:
    """eta = max(1, sum p |d|^2 / (2 (|sum p d|^2 + epsilon))), norms over all parameters; p = 1/4 and 3/4."""
    ends = {"v": (0.0, 0.0), "w": (0.0,), "b": (0.0,)}, {"v": (3.0, 0.0), "w": (1.0,), "b": (8.0,)}, {
        "v": (-3.0, 1.0), "w": (1.0,), "b": (4.0,),
    }  # fmt: skip
    start, *states = ({name: torch.tensor(v).double() for name, v in end.items()} for end in ends)
    server = server_of(start=start, parameters=frozenset({"v", "w"}))
    updates = [
        Update(k, state, n) for k, (state, n) in enumerate(zip(states, (10, 30), strict=True))
    ]
    shared = FedExP(epsilon=0.25).combine(server, {}, updates)[0]
    eta = (10 * 1 + 11 * 3) / 4 / (2 * (1.5**2 + 0.75**2 + 1 + 0.25))
    assert eta > 1
    torch.testing.assert_close(shared["v"], eta * torch.tensor([-1.5, 0.75], dtype=torch.float64))
    torch.testing.assert_close(shared["w"], eta * torch.ones(1, dtype=torch.float64))
    assert shared["b"].item() == 5.0  # a buffer is averaged


def test_fedexp_of_clients_that_agree_is_fedavg_to_the_bit() -> None:
    server, updates = server_of(), updates_of([10, 30, 20], [1] * 3, [1.0] * 3)
    fedavg = digest([FedAvg().combine(server, {}, updates)[0]])
    assert digest([FedExP(epsilon=1e9).combine(server, {}, updates)[0]]) == fedavg
