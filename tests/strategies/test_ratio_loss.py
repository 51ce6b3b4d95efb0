"""Ratio Loss's server side: ratios by hand, their invariants, and the copies that it trains."""

from dataclasses import replace

import pytest
import torch
from server_builders import (
    CLASSES,
    INPUTS,
    WIDTH,
    samples_of,
    server_of,
    updates_of,
)
from torch import nn

from client_app.models import Classifier
from client_app.optimizer import TrainingSettings
from client_app.state import copy
from client_app.variants.feature_gradients import class_gradients
from data import SettingError
from strategies.core.server import Server
from strategies.ratio_loss import RatioLoss, dominated, ratios

# By class trained on: what the head's weights, three rows of two, move by.
BY_HAND = torch.tensor(
    [
        [[4.0, 1.0], [-1.0, -1.0], [-2.0, 0.0]],
        [[-1.0, -1.0], [3.0, 2.0], [1.0, -7.0]],
        [[-2.0, 0.0], [-1.0, -1.0], [5.0, 0.0]],
    ],
    dtype=torch.float64,
)


@pytest.fixture
def server() -> Server:
    return server_of(samples_of())


def monitored(server: Server, **settings: float) -> torch.Tensor:
    method = RatioLoss(**settings)
    made = method.deploy(server, method.initial_state(server), {}, updates_of(1, 2, 3))
    state, numbers = made.state, made.metrics
    assert numbers["class-weights"] == pytest.approx(state["weights"].tolist())
    return state["weights"]


# ---- the ratios ------------------------------------------------------------------------------------------------------


def test_ratios_by_hand() -> None:
    """Row 0's second weight moves as far down as up; row 2's second is moved upwards by nobody."""
    owners = [[0, None], [1, 1], [2, None]]
    expected = torch.tensor([[[owner == p for owner in row] for row in owners] for p in range(3)])
    assert torch.equal(dominated(BY_HAND), expected)
    numerators, others = (
        [4.0, 3.0 + 2.0, 5.0],
        [(1 + 2) / 2, (1 + 1) / 2 + (1 + 1) / 2, (2 - 1) / 2],
    )
    torch.testing.assert_close(
        ratios(BY_HAND), torch.tensor(numerators).double() / torch.tensor(others).double()
    )


@pytest.mark.parametrize(
    ("second", "alone"), [(0.8, True), (0.81, False), (-0.81, False), (-0.8, True), (1.0, False)]
)
def test_a_weight_that_two_classes_move_is_nobodys(second: float, alone: bool) -> None:
    moved = torch.zeros(3, 3, 1, dtype=torch.float64)
    moved[1, 0, 0], moved[2, 0, 0] = 1.0, second
    assert dominated(moved)[:, 0, 0].tolist() == [False, alone, False]
    assert not dominated(moved)[:, 1:].any()  # nobody moves the other rows


def test_a_ratio_without_a_denominator_is_10_and_none_is_above_5000() -> None:
    moved = torch.zeros(3, 3, 1, dtype=torch.float64)
    moved[0, 0, 0] = moved[1, 1, 0] = 1.0
    moved[2, 1, 0] = 1e-6
    assert ratios(moved).tolist() == [10.0, 5000.0, 10.0]


# ---- the copies ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("round", "rate"), [(1, 0.3), (5, 0.3 * 0.5**2)])
def test_a_step_moves_the_head_by_the_classes_mean_gradient(round: int, rate: float) -> None:
    """One full-batch step: Delta^(p) = -rate g_p, CReFF's closed form of the gradient of class p's images.

    The rate is the round's, as the clients'.
    """
    model = Classifier(
        nn.Sequential(nn.Linear(INPUTS, WIDTH), nn.Tanh()), nn.Linear(WIDTH, CLASSES)
    )
    start, samples = copy(model.state_dict()), samples_of()
    settings = TrainingSettings(local_steps=1, batch_size=1000, learning_rate=0.3, momentum=0.9)
    settings = replace(settings, learning_rate_decay=0.5, learning_rate_decay_every=2)
    server = replace(server_of(samples, round=round), model=model, start=start, training=settings)
    features_ND = model.features(samples.inputs_N).detach()
    gradients = class_gradients(
        features_ND, samples.labels_N, start["head.weight"], start["head.bias"], range(CLASSES)
    )
    moved = RatioLoss().displacements(server, samples)
    torch.testing.assert_close(moved, -rate * gradients.double(), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(monitored(server), (1 + 0.1 * ratios(moved)).float())


def test_alpha_and_beta(server: Server) -> None:
    once, twice = monitored(server), monitored(server, alpha=0.5, beta=0.2)
    torch.testing.assert_close(twice - 0.5, 2 * (once - 1))
    assert monitored(server, beta=0.0).tolist() == [1.0] * CLASSES
    with pytest.raises(SettingError) as refused:
        monitored(server_of())
    assert refused.value.key == "holdout-per-class"


def test_samples_without_a_class_are_refused(server: Server) -> None:
    samples = samples_of()
    lacking = samples.only((samples.labels_N > 0).nonzero().flatten())
    assert len(RatioLoss().displacements(server, samples)) == CLASSES
    with pytest.raises(ValueError) as refused:
        RatioLoss().displacements(server, lacking)
    assert "lack class 0" in str(refused.value)


def test_round_1_knows_nothing(server: Server) -> None:
    method = RatioLoss()
    sent = method.broadcast(server, method.initial_state(server))
    assert {name: state["weights"].tolist() for name, state in sent.items()} == {
        "class-weights": [1.0] * CLASSES
    }
