"""CReFF's client side against autograd."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from client_builders import FLOAT, batches_of, broadcast_of, labels_of, same, small_client

from client_app.client import Client
from client_app.optimizer import TrainingSettings
from client_app.training import train_round
from client_app.variants.feature_gradients import FeatureGradients, class_gradients

COUNTS = (4, 0, 3, 1, 7)
WIDTH = 6


def problem(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    features_ND = torch.randn(sum(COUNTS), WIDTH, dtype=FLOAT, generator=generator)
    weight_CD = torch.randn(5, WIDTH, dtype=FLOAT, generator=generator)
    order = torch.randperm(sum(COUNTS), generator=generator)
    return (
        features_ND,
        labels_of(COUNTS)[order],
        weight_CD,
        torch.randn(5, dtype=FLOAT, generator=generator),
    )


@pytest.mark.parametrize("seed", range(3))
def test_closed_form_equals_autograd(seed: int) -> None:
    features_ND, labels_N, weight_CD, bias_C = problem(seed)
    gradients_CCD = class_gradients(features_ND, labels_N, weight_CD, bias_C)
    for c, count in enumerate(COUNTS):
        if not count:
            assert torch.equal(gradients_CCD[c], torch.zeros(5, WIDTH, dtype=FLOAT))
            continue
        weight = weight_CD.clone().requires_grad_(True)
        logits = features_ND[labels_N == c] @ weight.T + bias_C
        (expected,) = torch.autograd.grad(F.cross_entropy(logits, labels_N[labels_N == c]), weight)
        assert torch.allclose(gradients_CCD[c], expected, atol=1e-10)


def test_signs_and_sums() -> None:
    _, labels_N, weight_CD, bias_C = problem()
    features_ND = torch.rand(len(labels_N), WIDTH, dtype=FLOAT) + 0.1  # as after a ReLU
    gradients_CCD = class_gradients(features_ND, labels_N, weight_CD, bias_C)
    assert gradients_CCD.sum(1).abs().max() < 1e-12
    for c in labels_N.unique().tolist():
        assert (gradients_CCD[c, c] < 0).all()
        assert (gradients_CCD[c, [j for j in range(5) if j != c]] > 0).all()


def test_a_head_of_zeros_sends_scaled_class_means() -> None:
    features_ND, labels_N, weight_CD, bias_C = problem()
    gradients_CCD = class_gradients(features_ND, labels_N, weight_CD * 0, bias_C * 0)
    for c, count in enumerate(COUNTS):
        for j in range(5):
            mean_D = (
                features_ND[labels_N == c].mean(0) if count else torch.zeros(WIDTH, dtype=FLOAT)
            )
            assert torch.allclose(gradients_CCD[c, j], mean_D * (1 / 5 - (j == c)), atol=1e-10)


def test_a_class_with_one_sample_reveals_its_feature_up_to_scale() -> None:
    features_ND, labels_N, weight_CD, bias_C = problem()
    lone = (labels_N == 3).nonzero().item()
    gradient_CD = class_gradients(features_ND, labels_N, weight_CD, bias_C)[3]
    assert torch.linalg.matrix_rank(gradient_CD, rtol=1e-10) == 1
    for row_D in gradient_CD:
        assert F.cosine_similarity(row_D, features_ND[lone], dim=0).abs().item() == pytest.approx(
            1, abs=1e-10
        )
    with_bias = torch.softmax(weight_CD @ features_ND[lone] + bias_C, 0)[3] - 1
    assert torch.allclose(gradient_CD[3] / with_bias, features_ND[lone], atol=1e-10)


def client_with_head(**fields: object) -> Client:
    client = small_client((4, 0, 3, 1), **fields)
    return replace(client, broadcast=broadcast_of([], [client]))


def gradients_of(
    client: Client, variant: FeatureGradients, settings: TrainingSettings
) -> dict[str, torch.Tensor]:
    return dict(train_round(client, [variant], settings).uploads["feature-gradients"])


@pytest.mark.parametrize(("least", "classes"), [(1, [0, 2, 3]), (2, [0, 2]), (4, [0]), (5, [])])
def test_exactly_the_classes_held_are_sent(least: int, classes: list[int]) -> None:
    upload = gradients_of(client_with_head(), FeatureGradients(least), TrainingSettings())
    assert upload.keys() == {"classes", "gradients"}
    assert upload["classes"].dtype == torch.int64 and upload["classes"].tolist() == classes
    assert upload["gradients"].dtype == torch.float32 and upload["gradients"].shape == (
        len(classes),
        4,
        64,
    )


def test_some_classes_a_round_are_drawn_anew_and_sent_as_if_all_were() -> None:
    settings, drawn = TrainingSettings(), set()
    for round in range(1, 9):
        clients = [replace(client_with_head(round=round), seed=round) for _ in range(3)]
        every = gradients_of(clients[0], FeatureGradients(), settings)
        some, again = (
            gradients_of(client, FeatureGradients(classes_per_round=2), settings)
            for client in clients[1:]
        )
        assert same(some, again)
        rows = [every["classes"].tolist().index(label) for label in some["classes"].tolist()]
        assert len(rows) == 2 and rows == sorted(rows)
        assert torch.equal(some["gradients"], every["gradients"][rows])
        drawn.add(tuple(rows))
    assert drawn == {(0, 1), (0, 2), (1, 2)}


@pytest.mark.parametrize(("limit", "classes"), [(0, 3), (1, 1), (3, 3), (9, 3)])
def test_a_limit_above_the_classes_held_changes_nothing(limit: int, classes: int) -> None:
    variant = FeatureGradients(classes_per_round=limit)
    assert variant.classes_sent(3) == classes
    assert len(gradients_of(client_with_head(), variant, TrainingSettings())["classes"]) == classes


def test_features_are_those_of_the_model_as_received() -> None:
    slow = gradients_of(
        client_with_head(), FeatureGradients(), TrainingSettings(learning_rate=1e-3)
    )
    fast = gradients_of(
        client_with_head(), FeatureGradients(), TrainingSettings(learning_rate=0.5, local_epochs=3)
    )
    assert same(slow, fast)
    client = client_with_head()
    client.model.eval()
    with torch.no_grad():
        features_ND = client.model.features(client.samples.inputs_N)
    head = client.broadcast["feature-gradients"]
    for row, c in enumerate([0, 2, 3]):
        weight = head["weight"].clone().requires_grad_(True)
        logits = features_ND[client.labels_N == c] @ weight.T + head["bias"]
        (expected,) = torch.autograd.grad(
            F.cross_entropy(logits, client.labels_N[client.labels_N == c]), weight
        )
        assert torch.allclose(slow["gradients"][row], expected, atol=1e-6)


def test_the_backbone_is_in_eval_mode_and_training_is_untouched() -> None:
    client = client_with_head()
    client.model.train()
    FeatureGradients().before(client, lambda indices: indices)
    assert same(client.model.state_dict(), client.start), "running statistics moved"
    assert client.model.training
    plain = train_round(small_client((4, 0, 3, 1)), [], TrainingSettings(local_epochs=2))
    with_gradients = train_round(client, [FeatureGradients()], TrainingSettings(local_epochs=2))
    assert same(plain.shared, with_gradients.shared) and plain.loss == with_gradients.loss


@pytest.mark.parametrize("batch_size", [1, 3, 100])
def test_features_cover_every_sample_whatever_the_batch(batch_size: int) -> None:
    client = client_with_head()
    client.model.eval()
    with torch.no_grad():
        expected_ND = client.model.features(client.samples.inputs_N)
    with batches_of(batch_size):
        features_ND = client.features()
    assert features_ND.shape == (8, 64) and not features_ND.requires_grad
    assert torch.allclose(features_ND, expected_ND, atol=1e-6)
