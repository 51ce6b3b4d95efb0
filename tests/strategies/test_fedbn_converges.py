"""FedBN's theorem on a small problem: its training loss falls faster than FedAvg's (Li et al., ICLR 2021, section 4).

The paper's setting: a two-layer ReLU network whose hidden units are normalized, two clients with different covariances
of their inputs and labels drawn at random, full batches and E = 1. The loss here is the project's cross-entropy on two
classes, where the paper has a squared loss, and both layers learn.
"""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from client_app.client import Client, Variant
from client_app.models import Classifier
from client_app.optimizer import TrainingSettings
from client_app.state import State, copy
from client_app.training import private_names, train_round
from client_app.variants.local_batch_norm import LocalBatchNorm
from data import Samples
from strategies.core.server import Server, Update
from strategies.fedavg import FedAvg

SAMPLES, INPUTS, HIDDEN, ROUNDS = 20, 10, 64, 60
SETTINGS = TrainingSettings(local_steps=1, batch_size=SAMPLES, learning_rate=0.1, momentum=0.0)
"""The theorem is about small steps. At rate 2 FedBN's last rounds jump about and may end above FedAvg's."""


def client_samples(seed: int) -> list[Samples]:
    """Return both clients' samples; the directions that vary most at one vary least at the other."""
    draws = torch.Generator().manual_seed(seed)
    scales_I = torch.logspace(-0.5, 0.5, INPUTS, dtype=torch.float64)
    turn_II = torch.linalg.qr(torch.randn(INPUTS, INPUTS, generator=draws, dtype=torch.float64))[0]
    both = []
    for own_I in (scales_I, scales_I.flip(0)):
        inputs_NI = (
            torch.randn(SAMPLES, INPUTS, generator=draws, dtype=torch.float64) * own_I @ turn_II
        )
        labels_N = torch.randint(0, 2, (SAMPLES,), generator=draws)
        both.append(Samples(inputs_NI, labels_N, torch.zeros(1), torch.ones(1)))
    return both


def training_losses(seed: int, variants: Sequence[Variant]) -> Tensor:
    """Return the clients' mean loss in each round, before its step."""
    torch.manual_seed(seed)
    hidden = nn.Sequential(nn.Linear(INPUTS, HIDDEN, bias=False), nn.BatchNorm1d(HIDDEN), nn.ReLU())
    model = Classifier(hidden, nn.Linear(HIDDEN, 2)).double()
    initial, private = copy(model.state_dict()), private_names(model, variants)
    shared: State = {name: tensor for name, tensor in initial.items() if name not in private}
    memories: list[State] = [{}, {}]
    federation, losses = client_samples(seed), []
    for round in range(1, ROUNDS + 1):
        reports = []
        for k, samples in enumerate(federation):
            model.load_state_dict({**initial, **shared, **memories[k]})
            reports.append(
                train_round(Client(k, model, samples, 2, round, copy(shared)), variants, SETTINGS)
            )
        memories = [report.memory.get("private", {}) for report in reports]
        server = Server(model, shared, clients=2, round=round, seed=seed, training=SETTINGS)
        updates = [Update(k, report.shared, report.examples) for k, report in enumerate(reports)]
        shared, _ = FedAvg().combine(server, {}, updates)
        losses.append(sum(report.loss for report in reports) / 2)
    return torch.tensor(losses, dtype=torch.float64)


@pytest.mark.parametrize("seed", range(3))
def test_fedbn_converges_faster_than_fedavg(seed: int) -> None:
    fedavg, fedbn = training_losses(seed, []), training_losses(seed, [LocalBatchNorm()])
    assert fedbn[0] == fedavg[0] and fedavg[-1] < fedavg[0] / 2
    assert (fedbn[1:] < fedavg[1:]).all(), "in every round"
    assert fedbn[-1] < 0.99 * fedavg[-1]
