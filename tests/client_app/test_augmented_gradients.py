"""The client side of CReFF's code: estimates from augmented samples, against autograd."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from client_builders import broadcast_of, same, small_client
from torch import Tensor

import client_app.variants.augmented_gradients as module
from client_app.client import Client
from client_app.optimizer import TrainingSettings
from client_app.training import train_round
from client_app.variants.augmented_gradients import AugmentedGradients
from client_app.variants.feature_gradients import FeatureGradients
from data.siamese import siamese

COUNTS = (9, 0, 3, 1)
NAME = AugmentedGradients.name


def client_with_head(**fields: object) -> Client:
    client = small_client(COUNTS, **fields)
    return replace(client, broadcast=broadcast_of([], [client]))


def upload_of(client: Client, variant: AugmentedGradients) -> dict[str, Tensor]:
    return dict(train_round(client, [variant], TrainingSettings(local_epochs=1)).uploads[NAME])


def autograd(client: Client, images_B: Tensor, label: int) -> Tensor:
    """Return (C, D + 1): the gradient of the broadcast head, the bias's as the last column."""
    head = {
        name: tensor.clone().requires_grad_(True) for name, tensor in client.broadcast[NAME].items()
    }
    with torch.no_grad():
        features_BD = client.model.eval().features(images_B)
    loss = F.cross_entropy(
        F.linear(features_BD, head["weight"], head["bias"]), torch.full((len(images_B),), label)
    )
    weight, bias = torch.autograd.grad(loss, [head["weight"], head["bias"]])
    return torch.cat([weight, bias[:, None]], 1)


def test_literal_repeats_and_draws() -> None:
    """Class by class in each repeat: a random part of its samples, then one operation for all of them."""
    variant, client = AugmentedGradients(repeats=3, batch_size=4), client_with_head()
    draws = client.generator(NAME)
    expected = {0: torch.zeros(4, 65), 2: torch.zeros(4, 65), 3: torch.zeros(4, 65)}
    for _ in range(3):
        for label, total in expected.items():
            members = (client.labels_N == label).nonzero().flatten()
            chosen = members[torch.randperm(len(members), generator=draws)[:4]]
            total += autograd(client, siamese(client.samples.inputs_N[chosen], draws), label) / 3  # type: ignore[index]
    upload = upload_of(client_with_head(), variant)
    assert upload["classes"].tolist() == [0, 2, 3] and upload["classes"].dtype == torch.int64
    assert upload["gradients"].shape == (3, 4, 65) and upload["gradients"].dtype == torch.float32
    torch.testing.assert_close(
        upload["gradients"], torch.stack(list(expected.values())), rtol=1e-5, atol=1e-6
    )


def unchanged(images_B: Tensor, draws: torch.Generator) -> Tensor:
    return images_B


def test_without_augmentation_all_samples_give_the_exact_mean(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "siamese", unchanged)
    upload = upload_of(client_with_head(), AugmentedGradients(repeats=2))
    exact = train_round(client_with_head(), [FeatureGradients()], TrainingSettings()).uploads[
        "feature-gradients"
    ]
    torch.testing.assert_close(
        upload["gradients"][..., :-1], exact["gradients"], rtol=1e-5, atol=1e-6
    )
    few = upload_of(client_with_head(), AugmentedGradients(repeats=2, batch_size=4))
    assert not torch.allclose(few["gradients"][0, :, :-1], exact["gradients"][0], atol=1e-3)
    torch.testing.assert_close(
        few["gradients"][1:, :, :-1], exact["gradients"][1:], rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize(("least", "classes"), [(1, [0, 2, 3]), (2, [0, 2]), (4, [0]), (10, [])])
def test_exactly_the_classes_held_are_sent(least: int, classes: list[int]) -> None:
    upload = upload_of(client_with_head(), AugmentedGradients(min_class_samples=least))
    assert upload["classes"].tolist() == classes and upload["gradients"].shape == (
        len(classes),
        4,
        65,
    )


def test_a_class_with_one_sample_reveals_its_feature_exactly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Row over bias is the feature, its scale included; with augmentation a mean over the operations drawn."""

    def revealed(variant: AugmentedGradients) -> Tensor:
        gradient_CE = upload_of(client_with_head(), variant)["gradients"][-1]
        return gradient_CE[3, :-1] / gradient_CE[3, -1]

    several = revealed(AugmentedGradients())
    monkeypatch.setattr(module, "siamese", unchanged)
    client = client_with_head()
    with torch.no_grad():
        feature_D = client.model.eval().features(client.samples.inputs_N[-1:])[0]  # type: ignore[index]
    assert feature_D.abs().max() > 0.1
    torch.testing.assert_close(revealed(AugmentedGradients()), feature_D, rtol=1e-4, atol=1e-5)
    assert F.cosine_similarity(several, feature_D, dim=0) > 0.7
    assert (
        3 not in upload_of(client_with_head(), AugmentedGradients(min_class_samples=2))["classes"]
    )


def test_draws_come_from_the_clients_own_seed_alone() -> None:
    first = upload_of(client_with_head(seed=1), AugmentedGradients())
    client, state = client_with_head(seed=1), torch.random.get_rng_state()
    client.model.eval()
    AugmentedGradients().before(client, lambda indices: indices)
    assert torch.equal(torch.random.get_rng_state(), state), "the global generator moved"
    assert same(first, upload_of(client_with_head(seed=1), AugmentedGradients()))
    other = replace(client_with_head(seed=1), seed=2)
    assert not same(first, upload_of(other, AugmentedGradients()))


def test_the_model_as_received_in_eval_mode_and_training_untouched() -> None:
    """Neither statistics nor weights move; the learning rate changes nothing."""
    settings = [TrainingSettings(learning_rate=rate, local_epochs=2) for rate in (1e-3, 0.5)]
    reports = [
        train_round(client_with_head(), [AugmentedGradients()], setting) for setting in settings
    ]
    assert same(reports[0].uploads[NAME], reports[1].uploads[NAME])
    plain = train_round(small_client(COUNTS), [], settings[1])
    assert same(plain.shared, reports[1].shared) and plain.loss == reports[1].loss
