"""Batch norm for a site nobody trained with, against torch's own statistics and planted sites."""

import pytest
import torch
from server_builders import INPUTS, WIDTH, draws, model_of, samples_of, state_of
from torch import nn

import strategies.batch_norm
from client_app.models import Classifier
from client_app.state import copy
from data import Samples
from strategies.batch_norm import (
    averaged,
    distances,
    norm_layers,
    reestimated,
    symmetric_divergence,
)

NORM = "features.1"
MEAN, VAR = f"{NORM}.running_mean", f"{NORM}.running_var"


def deep_model() -> Classifier:
    """Return a model with two batch norms, the second behind the first, and dropout."""
    torch.manual_seed(3)
    hidden = (nn.Linear(INPUTS, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Dropout(0.5))
    model = Classifier(
        nn.Sequential(*hidden, nn.Linear(7, WIDTH), nn.BatchNorm1d(WIDTH)), nn.Linear(WIDTH, 4)
    )
    for _, layer in norm_layers(model):
        nn.init.normal_(layer.weight)
        nn.init.normal_(layer.bias)
    return model


def test_reestimated_statistics_are_those_of_the_layers_inputs() -> None:
    """In one batch: each layer's are torch's mean and unbiased variance of what reaches it, dropout off."""
    model, samples = deep_model(), samples_of(20)
    state = copy(model.state_dict())
    statistics = reestimated(model, state, samples, draws(0))
    first_NH = state["features.0.weight"].double() @ samples.inputs_N.double().T
    first_NH = first_NH.T + state["features.0.bias"].double()
    torch.testing.assert_close(statistics["features.1.running_mean"], first_NH.mean(0).float())
    torch.testing.assert_close(statistics["features.1.running_var"], first_NH.var(0).float())
    deviation_NH = (first_NH - first_NH.mean(0)) / (first_NH.var(0, correction=0) + 1e-5).sqrt()
    hidden_NH = (deviation_NH * state["features.1.weight"] + state["features.1.bias"]).relu()
    second_ND = hidden_NH @ state["features.4.weight"].double().T + state["features.4.bias"]
    torch.testing.assert_close(statistics["features.5.running_mean"], second_ND.mean(0).float())
    torch.testing.assert_close(statistics["features.5.running_var"], second_ND.var(0).float())
    for name in state.keys() - {n for n in state if "running" in n or "tracked" in n}:
        assert torch.equal(statistics[name], state[name])


def test_batches_count_by_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first layer's mean is that of all inputs whatever the batches, and its variance the weighted mean of theirs;
    with batches of one size both are torch's cumulative average."""
    model, samples = model_of(), samples_of(10)
    inputs_NH = samples.inputs_N @ model.features[0].weight.T + model.features[0].bias  # type: ignore[index,operator]
    for size in (16, 10, 13):  # 40 samples: 16, 16, 8; four times 10; 13, 13, 14
        monkeypatch.setattr(strategies.batch_norm, "BATCH", size)
        statistics = reestimated(model, state_of(1) | model_of().state_dict(), samples, draws(5))
        order_N = torch.randperm(40, generator=draws(5))
        parts = (
            list(torch.split(order_N, size))
            if size != 13
            else list(torch.split(order_N, [13, 13, 14]))
        )
        variance = sum(inputs_NH[part].var(0) * len(part) for part in parts) / 40
        torch.testing.assert_close(statistics[MEAN], inputs_NH.mean(0))
        torch.testing.assert_close(statistics[VAR], variance)
        if size == 10:
            layer = nn.BatchNorm1d(WIDTH, momentum=None)
            for part in parts:
                layer(inputs_NH[part])
            torch.testing.assert_close(statistics[VAR], layer.running_var)


def test_reestimation_leaves_the_layer_as_it_was_and_looks_at_no_label() -> None:
    model, samples = deep_model(), samples_of(20)
    state = copy(model.state_dict())
    statistics = reestimated(model, state, samples, draws(0))
    assert [(layer.momentum, layer.training) for _, layer in norm_layers(model)] == [
        (0.1, True)
    ] * 2
    blind = Samples(
        samples.inputs_N, torch.full_like(samples.labels_N, -1), samples.mean, samples.std
    )
    again = reestimated(model, state, blind, draws(0))
    assert all(torch.equal(statistics[name], again[name]) for name in statistics)


def test_what_identical_sites_average_is_theirs() -> None:
    kept = state_of(4)
    mean = averaged({0: kept, 2: copy(kept)}, {0: 10, 2: 3})
    assert all(torch.allclose(mean[name], kept[name]) for name in kept)
    mean = averaged({0: state_of(1), 2: state_of(2)}, {0: 30, 2: 10})
    torch.testing.assert_close(mean[VAR], (3 * state_of(1)[VAR] + state_of(2)[VAR]) / 4)


def test_divergence_of_normals() -> None:
    """Against torch.distributions, symmetric, and 0 for the same normal."""
    (mean, other), (variance, spread) = (
        torch.randn(2, 6, generator=draws(1)),
        torch.rand(2, 6, generator=draws(2)) + 0.1,
    )
    p = torch.distributions.Normal(mean.double(), variance.double().sqrt())
    q = torch.distributions.Normal(other.double(), spread.double().sqrt())
    both = torch.distributions.kl_divergence(p, q) + torch.distributions.kl_divergence(q, p)
    torch.testing.assert_close(symmetric_divergence(mean, variance, other, spread, 0.0), both)
    torch.testing.assert_close(symmetric_divergence(other, spread, mean, variance, 0.0), both)
    assert symmetric_divergence(mean, variance, mean, variance, 1e-5).abs().max() < 1e-12
    dead = torch.zeros(1)
    assert symmetric_divergence(dead, dead, dead, dead, 1e-5) == 0


def test_the_planted_site_is_the_nearest() -> None:
    """Of sites whose inputs are shifted and scaled, the one that is as the unseen site; deeper layers do not count."""
    model = deep_model()
    state = copy(model.state_dict())

    def site(shift: float, scale: float, seed: int) -> Samples:
        samples = samples_of(30, seed)
        return Samples(
            samples.inputs_N * scale + shift, samples.labels_N, samples.mean, samples.std
        )

    planted = {0: (0.0, 1.0), 1: (1.5, 1.0), 2: (0.0, 3.0), 5: (-2.0, 0.5)}
    answers = {
        client: reestimated(model, state, site(*how, 1), draws(1))
        for client, how in planted.items()
    }
    for client, how in planted.items():
        near = distances(model, reestimated(model, state, site(*how, 2), draws(2)), answers)
        assert min(near, key=lambda name: near[name]) == client and near.keys() == planted.keys()
    deeper = {
        c: {**kept, "features.5.running_mean": kept["features.5.running_mean"] + 9}
        for c, kept in answers.items()
    }
    assert distances(model, answers[1], deeper) == distances(model, answers[1], answers)
