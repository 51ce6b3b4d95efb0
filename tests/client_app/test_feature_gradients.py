"""CReFF's client side, and that of its released code with augmented samples, against autograd."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from client_builders import FLOAT, batches_of, broadcast_of, labels_of, same, small_client
from torch import Tensor

from client_app.client import Client, Variant
from client_app.optimizer import TrainingSettings
from client_app.training import train_round
from client_app.variants import feature_gradients
from client_app.variants.feature_gradients import (
    AugmentedGradients,
    FeatureGradients,
    class_gradients,
)
from data.augmentation import siamese

COUNTS = (4, 0, 3, 1, 7)
WIDTH = 6
SMALL = (9, 0, 3, 1)
BOTH = [FeatureGradients, AugmentedGradients]


def problem() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    features_ND = (
        torch.rand(sum(COUNTS), WIDTH, dtype=FLOAT, generator=generator) + 0.1
    )  # as of ReLU
    weight_CD = torch.randn(5, WIDTH, dtype=FLOAT, generator=generator)
    bias_C = torch.randn(5, dtype=FLOAT, generator=generator)
    order = torch.randperm(sum(COUNTS), generator=generator)
    return features_ND, labels_of(COUNTS)[order], weight_CD, bias_C


@pytest.mark.parametrize("scale", [1.0, 0.0])
def test_closed_form_equals_autograd(scale: float) -> None:
    """From it follow the rows' signs and sum, and that of a head of zeros they are class means."""
    features_ND, labels_N, weight_CD, bias_C = problem()
    held = [c for c, count in enumerate(COUNTS) if count]
    gradients_nCD = class_gradients(features_ND, labels_N, scale * weight_CD, scale * bias_C, held)
    for row, c in enumerate(held):
        weight = (scale * weight_CD).requires_grad_(True)
        logits = features_ND[labels_N == c] @ weight.T + scale * bias_C
        loss = F.cross_entropy(logits, labels_N[labels_N == c], reduction="sum") / COUNTS[c]
        (expected,) = torch.autograd.grad(loss, weight)
        assert torch.allclose(gradients_nCD[row], expected, atol=1e-10)


def test_a_class_with_one_sample_reveals_its_feature_up_to_scale() -> None:
    features_ND, labels_N, weight_CD, bias_C = problem()
    feature_D = features_ND[labels_N == 3][0]
    gradient_CD = class_gradients(features_ND, labels_N, weight_CD, bias_C, [3])[0]
    of_bias = torch.softmax(weight_CD @ feature_D + bias_C, 0)[3] - 1
    assert torch.allclose(gradient_CD[3] / of_bias, feature_D, atol=1e-10)


def client_with_head(**fields: object) -> Client:
    client = small_client(SMALL, **fields)
    return replace(client, broadcast=broadcast_of([], [client]))


def upload_of(client: Client, variant: Variant) -> dict[str, Tensor]:
    return dict(
        train_round(client, [variant], TrainingSettings(local_epochs=1)).uploads[variant.name]
    )


def autograd(client: Client, images_B: Tensor, label: int) -> Tensor:
    """Return (C, D + 1): the gradient of the broadcast head, the bias's as the last column."""
    sent = client.broadcast["augmented-gradients"]
    head = {name: tensor.clone().requires_grad_(True) for name, tensor in sent.items()}
    with torch.no_grad():
        features_BD = client.model.eval().features(images_B)
    logits_BC = F.linear(features_BD, head["weight"], head["bias"])
    loss = F.cross_entropy(logits_BC, torch.full((len(images_B),), label))
    weight, bias = torch.autograd.grad(loss, [head["weight"], head["bias"]])
    return torch.cat([weight, bias[:, None]], 1)


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize(("least", "classes"), [(1, [0, 2, 3]), (2, [0, 2]), (9, [0]), (10, [])])
def test_exactly_the_classes_held_are_sent(
    kind: type[Variant], least: int, classes: list[int]
) -> None:
    upload = upload_of(client_with_head(), kind(min_class_samples=least))  # type: ignore[call-arg]
    assert upload["classes"].dtype == torch.int64 and upload["classes"].tolist() == classes
    width = 64 if kind is FeatureGradients else 65
    assert upload["gradients"].dtype == torch.float32
    assert upload["gradients"].shape == (len(classes), 4, width)


@pytest.mark.parametrize("kind", BOTH)
def test_the_model_as_received_in_eval_mode_and_training_untouched(kind: type[Variant]) -> None:
    """Neither statistics nor weights move; the learning rate changes nothing; draws are the client's own."""
    settings = [TrainingSettings(learning_rate=rate, local_epochs=2) for rate in (1e-3, 0.5)]
    reports = [train_round(client_with_head(), [kind()], setting) for setting in settings]
    assert same(reports[0].uploads[kind.name], reports[1].uploads[kind.name])
    assert same(train_round(small_client(SMALL), [], settings[1]).shared, reports[1].shared)
    client, state = client_with_head(), torch.random.get_rng_state()
    client.model.train(kind is FeatureGradients)
    kind().before(client, lambda indices: indices)
    assert same(client.model.state_dict(), client.start), "running statistics moved"
    assert client.model.training == (kind is FeatureGradients)
    assert torch.equal(torch.random.get_rng_state(), state), "the global generator moved"


def test_features_are_those_of_the_model_as_received_whatever_the_batch() -> None:
    client = client_with_head()
    with batches_of(3):
        upload = upload_of(client_with_head(), FeatureGradients())
    for label, gradient_CD in zip((0, 2, 3), upload["gradients"], strict=True):
        expected = autograd(client, client.samples.inputs_N[client.labels_N == label], label)  # type: ignore[index]
        torch.testing.assert_close(gradient_CD, expected[:, :-1], rtol=1e-5, atol=1e-6)


def test_some_classes_a_round_are_drawn_anew_and_sent_as_if_all_were() -> None:
    drawn = set()
    every = upload_of(client_with_head(), FeatureGradients(classes_per_round=9))
    assert len(every["classes"]) == 3
    for round in range(1, 9):
        client = replace(client_with_head(round=round), seed=round)
        some = upload_of(client, FeatureGradients(classes_per_round=2))
        rows = [every["classes"].tolist().index(label) for label in some["classes"].tolist()]
        assert torch.equal(some["gradients"], every["gradients"][rows])
        drawn.add(tuple(rows))
    assert drawn == {(0, 1), (0, 2), (1, 2)}


def test_literal_repeats_and_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Class by class in each repeat: a random part of its samples, then one operation for all of them."""
    monkeypatch.setattr(feature_gradients, "DRAWN", 4)
    variant, client = AugmentedGradients(repeats=3), client_with_head()
    draws = client.generator(variant.name)
    expected = torch.zeros(3, 4, 65)
    for _ in range(3):
        for row, label in enumerate((0, 2, 3)):
            members = (client.labels_N == label).nonzero().flatten()
            chosen = members[torch.randperm(len(members), generator=draws)[:4]]
            images = siamese(client.samples.inputs_N[chosen], draws)  # type: ignore[index]
            expected[row] += autograd(client, images, label) / 3
    upload = upload_of(client_with_head(), variant)
    torch.testing.assert_close(upload["gradients"], expected, rtol=1e-5, atol=1e-6)
