"""Personal models: what stays at a client, and what its training is."""

from collections.abc import Mapping
from dataclasses import replace
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

from client_app.client import Client
from client_app.models import build
from client_app.optimizer import TrainingSettings
from client_app.personal import FINE_TUNED, fine_tuned, is_personal, model_of_variant
from client_app.state import State, copy, seed_of, weighted_mean
from client_app.training import batches, train_round
from client_app.variants.local_parts import HeadThenFeatures, LocalHead
from client_app.variants.personal_model import PersonalModel
from client_app.variants.proximal import Proximal
from client_app.variants.resampling import Resampling

SETTINGS = TrainingSettings(local_epochs=1, batch_size=4, learning_rate=0.1, momentum=0.5)
COUNTS = [(8, 4, 2, 1), (1, 2, 4, 8)]
HEAD = {"head.weight", "head.bias"}


INPUTS_ND = torch.randn(6, 3, dtype=FLOAT, generator=torch.Generator().manual_seed(2))
LABELS_N = labels_of((3, 2, 1))


def descended(own: State, received: State, rate: float, strength: float, steps: int) -> State:
    """Return v after steps along the slope of L(v) + strength/2 |v - w|^2, with momentum 0.9; by autograd."""
    moving = {name: torch.zeros_like(tensor) for name, tensor in own.items()}
    for _ in range(steps):
        v = {name: tensor.clone().requires_grad_() for name, tensor in own.items()}
        logits_NC = INPUTS_ND @ v["head.weight"].T + v["head.bias"]
        distance = sum((v[name] - received[name]).square().sum() for name in v)
        objective = F.cross_entropy(logits_NC, LABELS_N) + strength / 2 * distance
        slopes = dict(zip(v, torch.autograd.grad(objective, list(v.values())), strict=True))
        moving = {name: 0.9 * moving[name] + slope for name, slope in slopes.items()}
        own = {name: tensor - rate * moving[name] for name, tensor in own.items()}
    return own


def assert_close(left: State, right: State) -> None:
    assert left.keys() == right.keys()
    assert all(torch.allclose(tensor, right[name], atol=1e-12) for name, tensor in left.items())


def test_fedper_shares_everything_but_the_head_and_its_rounds_are_the_means_of_features_under_own_heads() -> (
    None
):
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

    assert shared.keys() == state.keys() - HEAD
    assert same(shared, {name: mean[name] for name in shared})
    for report, own in zip(reports, states, strict=True):
        assert same(report.memory["private"], {name: own[name] for name in HEAD})


@pytest.mark.parametrize(
    ("schedule", "rate"),
    [
        ({"learning_rate_decay": 0.5, "learning_rate_decay_every": 1}, 0.125),  # 0.5 ** (3 - 1)
        ({"local_steps": 7}, 0.5),  # of a round: fine-tuning counts epochs
    ],
)
def test_fine_tuning_is_descent_of_the_plain_cross_entropy(
    schedule: dict[str, Any], rate: float
) -> None:
    """Two epochs of one batch in round 3, with momentum."""
    settings = TrainingSettings(
        local_epochs=3, batch_size=8, learning_rate=0.5, finetune_epochs=2, **schedule
    )
    client = client_of(linear_model(3, 3), INPUTS_ND, LABELS_N, 3, round=3, seed=5)
    state = fine_tuned(client, settings, ())
    start = copy(linear_model(3, 3).state_dict())
    assert_close(state, descended(start, start, rate, strength=0.0, steps=2))


def test_fine_tuning_draws_samples_as_the_method_where_it_is_told_to() -> None:
    """Class-balanced draws end in other weights than an epoch's shuffle; the method's other terms stay out."""
    settings = TrainingSettings(local_epochs=1, batch_size=4, finetune_epochs=1)
    variants = [Resampling(), Proximal(mu=10.0)]
    client = small_client(seed=seed_of(1, FINE_TUNED))
    client = replace(client, samples=small_client().samples)
    for sampling, used in (("shuffle", []), ("method", variants[:1])):
        tuned = fine_tuned(small_client(), replace(settings, finetune_sampling=sampling), variants)
        client.model.load_state_dict(client.start)
        assert same(tuned, train_round(client, used, settings).trained.state)


def trained_apart(client: Client, names: set[str], settings: TrainingSettings, stream: str) -> None:
    """Train some of the model's parameters by torch.optim.SGD, in the batches of a generator, with the others fixed."""
    model = client.model.train()
    chosen = [weight for name, weight in model.named_parameters() if name in names]
    optimizer = torch.optim.SGD(chosen, settings.learning_rate, settings.momentum)
    for indices_B in batches(client, settings, stream):
        optimizer.zero_grad()
        logits_BC = model(client.samples.batch(indices_B))
        F.cross_entropy(logits_BC, client.labels_N[indices_B]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def test_fedrep_trains_the_head_then_the_features() -> None:
    """Against torch's own SGD: three epochs of the head, then one of the features under that head."""
    report = train_round(small_client(), [HeadThenFeatures(head_epochs=3)], SETTINGS)
    client = small_client()
    features = {name for name, _ in client.model.named_parameters()} - HEAD
    trained_apart(client, HEAD, replace(SETTINGS, local_epochs=3), "head batches")
    trained_apart(client, features, SETTINGS, "batches")
    for name, tensor in client.model.state_dict().items():
        assert torch.allclose(report.trained.state[name], tensor, atol=1e-6), name
    assert report.shared.keys() == client.model.state_dict().keys() - HEAD
    assert report.memory["private"].keys() == HEAD
    assert report.trained.steps == len(list(batches(client, SETTINGS))), "those of the features"


def test_fedrep_without_features_that_train_says_so() -> None:
    client = small_client()
    client.model.features.requires_grad_(False)
    with pytest.raises(ValueError):
        train_round(client, [HeadThenFeatures()], SETTINGS)


def test_a_variant_s_model_is_what_the_client_keeps_over_what_it_begins_with() -> None:
    start = {"a": torch.zeros(2), "b": torch.zeros(1)}
    memory = {"own": {"a": torch.ones(2)}, "other": {"b": torch.ones(1)}}
    assert same(model_of_variant("own", start, memory), {**start, **memory["own"]})
    assert same(model_of_variant("nobody", start, memory), start) and not start["a"].any()


def test_a_model_is_personal_by_its_name_or_by_a_head_of_its_own() -> None:
    assert is_personal(FINE_TUNED, ())
    assert is_personal("average", [LocalHead()])
    assert not is_personal("average", ())


# ---- Ditto -----------------------------------------------------------------------------------------------------------


def test_ditto_descends_the_loss_with_a_pull_to_the_model_as_received() -> None:
    """Three rounds of a linear model, with momentum; v goes on from round to round, w is received anew."""
    settings = TrainingSettings(local_epochs=3, batch_size=8, learning_rate=0.5)
    memory: Mapping[str, State] = {}
    own: State = {}
    for round in (1, 2, 3):
        draws = torch.Generator().manual_seed(round)
        model = linear_model(3, 3)
        for weight in model.parameters():
            torch.nn.init.normal_(weight, generator=draws)
        received = copy(model.state_dict())
        client = client_of(model, INPUTS_ND, LABELS_N, 3, round=round, memory=memory)
        memory = train_round(client, [PersonalModel(strength=0.7)], settings).memory
        own = descended(own or received, received, 0.5, strength=0.7, steps=3)
        assert_close(memory["personal-model"], own)
