"""Personal models: what stays at a client, and what its training is."""

import torch
from client_builders import SHAPE, same, small_client, train_rounds

from client_app.models import build
from client_app.optimizer import TrainingSettings
from client_app.state import weighted_mean
from client_app.training import train_round
from client_app.variants.local_head import LocalHead

SETTINGS = TrainingSettings(local_epochs=1, batch_size=4, learning_rate=0.1, momentum=0.5)
COUNTS = [(8, 4, 2, 1), (1, 2, 4, 8)]
HEAD = {"head.weight", "head.bias"}


def test_fedper_sends_everything_but_the_head() -> None:
    client = small_client()
    report = train_round(client, [LocalHead()], SETTINGS)
    assert report.shared.keys() == client.model.state_dict().keys() - HEAD
    kept = report.memory["private"]
    assert kept.keys() == HEAD
    assert same({**report.shared, **kept}, client.model.state_dict())
    assert not any(torch.equal(kept[name], client.start[name]) for name in HEAD)


def test_fedpers_rounds_are_the_means_of_features_under_own_heads() -> None:
    """Two rounds by hand: each client goes on from the features' mean and its own head."""
    shared, reports = train_rounds([LocalHead()], COUNTS, SETTINGS, rounds=2)

    state = build("mlp-bn", SHAPE, 4, 0).state_dict()
    states = [state, state]
    for _ in range(2):
        trained = []
        for number, counts in enumerate(COUNTS):
            client = small_client(counts, seed=number + 1)
            client.model.load_state_dict(states[number])
            trained.append(train_round(client, [], SETTINGS).trained.state)
        mean = weighted_mean(trained, [sum(counts) for counts in COUNTS])
        states = [{**mean, **{name: own[name] for name in HEAD}} for own in trained]

    assert same(shared, {name: mean[name] for name in shared})
    for report, own in zip(reports, states, strict=True):
        assert same(report.memory["private"], {name: own[name] for name in HEAD})
    first, second = (report.memory["private"] for report in reports)
    assert not same(first, second)
