"""Personal models: what stays at a client, and what its training is."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from client_builders import (
    FLOAT,
    SHAPE,
    client_of,
    labels_of,
    linear_model,
    same,
    small_client,
    train_rounds,
)

from client_app.models import build
from client_app.optimizer import TrainingSettings
from client_app.personal import fine_tuned
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


@pytest.mark.parametrize(
    ("schedule", "rate"),
    [
        ({}, 0.5),
        ({"learning_rate_decay": 0.5, "learning_rate_decay_every": 1}, 0.125),  # 0.5 ** (3 - 1)
        ({"schedule": "cosine", "schedule_rounds": 4}, 0.25),  # half way
        # t counts a round's three steps, as three epochs of one batch: 0.9 ** (2 * 3)
        (
            {
                "schedule_unit": "step",
                "learning_rate_decay": 0.9,
                "learning_rate_decay_every": 1,
            },
            0.5 * 0.9**6,
        ),
    ],
)
def test_fine_tuning_is_descent_of_the_plain_cross_entropy(
    schedule: dict[str, Any], rate: float
) -> None:
    """Two epochs of one batch by hand in round 3, with momentum: softmax minus one-hot, times the inputs."""
    inputs_ND = torch.randn(6, 3, dtype=FLOAT, generator=torch.Generator().manual_seed(2))
    labels_N = labels_of((3, 2, 1))
    client = client_of(linear_model(3, 3), inputs_ND, labels_N, 3, round=3, seed=5)
    settings = TrainingSettings(
        local_epochs=3,
        batch_size=8,
        learning_rate=0.5,
        momentum=0.9,
        finetune_epochs=2,
        **schedule,
    )
    state = fine_tuned(client, settings)

    weight_CD, bias_C = torch.zeros(3, 3, dtype=FLOAT), torch.zeros(3, dtype=FLOAT)
    moving_CD, moving_C = torch.zeros(3, 3, dtype=FLOAT), torch.zeros(3, dtype=FLOAT)
    for _ in range(2):
        error_NC = (inputs_ND @ weight_CD.T + bias_C).softmax(1) - F.one_hot(labels_N, 3)
        moving_CD = 0.9 * moving_CD + error_NC.T @ inputs_ND / 6
        moving_C = 0.9 * moving_C + error_NC.mean(0)
        weight_CD = weight_CD - rate * moving_CD
        bias_C = bias_C - rate * moving_C
    assert torch.allclose(state["head.weight"], weight_CD, atol=1e-12)
    assert torch.allclose(state["head.bias"], bias_C, atol=1e-12)


def test_fine_tuning_draws_other_batches_than_the_round() -> None:
    """In batches of 4 the order counts: the same weights, rate and samples end elsewhere than after the round."""
    settings = TrainingSettings(local_epochs=1, batch_size=4, finetune_epochs=1)
    rounds = train_round(small_client(), [], settings).trained.state
    tuned = fine_tuned(small_client(), settings)
    assert same(tuned, fine_tuned(small_client(), settings))
    assert not same(tuned, rounds)
