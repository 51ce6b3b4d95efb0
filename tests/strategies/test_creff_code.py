"""CReFF with its authors' settings: the bias's row, the guarded distance, mini-batches (Shang et al. 2022, code)."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from client_app.models import Classifier
from client_app.optimizer import TrainingSettings
from client_app.state import digest
from client_app.variants.augmented_gradients import AugmentedGradients
from data import SettingError
from strategies.core.server import Server, Update
from strategies.core.validation import RejectedUpdate
from strategies.creff import CReFF, random_head, row_distances
from strategies.creff_code import CReFFCode, guarded_distances

CLASSES, WIDTH = 5, 12
DOUBLE = torch.float64


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=DOUBLE)


@pytest.fixture
def server() -> Server:
    model = Classifier(nn.Linear(3, WIDTH), nn.Linear(WIDTH, CLASSES))
    return Server(
        model, dict(model.state_dict()), clients=4, round=1, seed=0, training=TrainingSettings()
    )


def literal_gradients(
    features_MD: Tensor, label: int, weight_CD: Tensor, bias_C: Tensor
) -> tuple[Tensor, ...]:
    """Return what autograd gives for the weight and for the bias, with a graph behind it."""
    weight, bias = weight_CD.clone().requires_grad_(True), bias_C.clone().requires_grad_(True)
    loss = nn.functional.cross_entropy(
        features_MD @ weight.T + bias, torch.full((len(features_MD),), label)
    )
    return torch.autograd.grad(loss, (weight, bias), create_graph=True)


def literal_distance(actual: tuple[Tensor, ...], wanted: tuple[Tensor, ...]) -> Tensor:
    """Return the sum over the rows of the weight and, one row, the bias, with 1e-6 beside the product of norms."""
    total = torch.zeros((), dtype=actual[0].dtype)
    for ours, theirs in zip(actual, wanted, strict=True):
        ours, theirs = ours.reshape(-1, ours.shape[-1]), theirs.reshape(-1, theirs.shape[-1])
        for a, b in zip(ours, theirs, strict=True):
            total = (
                total + 1 - torch.dot(a, b) / (torch.linalg.norm(a) * torch.linalg.norm(b) + 1e-6)
            )
    return total


# ---- gradients -------------------------------------------------------------------------------------------------------


def test_bias_gradient_is_autograds() -> None:
    features_CMD, weight_CD, bias_C = (
        normal(CLASSES, 7, WIDTH),
        normal(CLASSES, WIDTH, seed=1),
        normal(CLASSES, seed=2),
    )
    actual = CReFFCode().gradients(features_CMD, weight_CD, bias_C)
    assert actual.shape == (CLASSES, CLASSES, WIDTH + 1)
    for k in range(CLASSES):
        weight, bias = literal_gradients(features_CMD[k], k, weight_CD, bias_C)
        torch.testing.assert_close(actual[k, :, :-1], weight.detach(), rtol=0, atol=1e-12)
        torch.testing.assert_close(actual[k, :, -1], bias.detach(), rtol=0, atol=1e-12)
    assert actual.sum(1).abs().max() < 1e-12  # over the rows, the bias's column included
    diagonal = torch.eye(CLASSES).bool()
    assert (actual[..., -1][diagonal] < 0).all() and (actual[..., -1][~diagonal] > 0).all()
    held = torch.tensor([1, 4])
    part = CReFFCode().gradients(features_CMD[held], weight_CD, bias_C, held)
    torch.testing.assert_close(part, actual[held], rtol=0, atol=1e-12)


# ---- distance --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e-5])
def test_distance_is_the_literal_one(scale: float) -> None:
    """Its value and its gradient, where the guard is nothing and where it is nearly everything."""
    actual, wanted = (
        scale * normal(3, CLASSES, WIDTH + 1),
        scale * normal(3, CLASSES, WIDTH + 1, seed=1),
    )
    method, slopes, values = CReFFCode(), [], []

    def literal(moving: Tensor) -> Tensor:
        pairs = [
            ((a[:, :-1], a[:, -1]), (b[:, :-1], b[:, -1]))
            for a, b in zip(moving, wanted, strict=True)
        ]
        return torch.stack([literal_distance(ours, theirs) for ours, theirs in pairs]).sum()

    for distance in (literal, lambda moving: method.total(method.distances(moving, wanted))):
        moving = actual.clone().requires_grad_(True)
        values.append(value := distance(moving))
        slopes.extend(torch.autograd.grad(value, moving))
    torch.testing.assert_close(values[0], values[1], rtol=1e-12, atol=0)
    torch.testing.assert_close(slopes[0], slopes[1], rtol=1e-10, atol=1e-12)


def test_weight_part_is_classes_times_the_papers() -> None:
    """Where norms are large against the guard, the sum over the rows is C times the paper's mean."""
    actual, wanted = normal(3, CLASSES, WIDTH + 1), normal(3, CLASSES, WIDTH + 1, seed=1)
    rows_NC = CReFFCode().distances(actual, wanted)[:, :-1]
    papers_N = row_distances(actual[..., :-1], wanted[..., :-1]).mean(1)
    torch.testing.assert_close(rows_NC.sum(1), CLASSES * papers_N, rtol=1e-6, atol=0)


def test_guard_in_closed_form() -> None:
    rows = normal(4, WIDTH)
    for scale in (1.0, 1e-3, 1e-6):
        squares = (scale * rows).square().sum(1)
        torch.testing.assert_close(
            guarded_distances(scale * rows, scale * rows), 1 - squares / (squares + 1e-6)
        )
    nothing = torch.zeros_like(rows).requires_grad_(True)
    assert torch.equal(guarded_distances(rows, torch.zeros_like(rows)), torch.ones(4, dtype=DOUBLE))
    (slope,) = torch.autograd.grad(guarded_distances(nothing, rows).sum(), nothing)
    torch.testing.assert_close(
        slope, -rows / 1e-6
    )  # the code's: huge where only the features' row is zero
    moving = rows.clone().requires_grad_(True)
    (slope,) = torch.autograd.grad(guarded_distances(moving, torch.zeros_like(rows)).sum(), moving)
    assert slope.abs().max() == 0


def test_matching_is_literal_descent() -> None:
    method = CReFFCode(features_per_class=3, feature_steps=4, feature_learning_rate=0.3)
    features_CMD, weight_CD, bias_C = (
        normal(CLASSES, 3, WIDTH),
        normal(CLASSES, WIDTH, seed=1),
        normal(CLASSES, seed=2),
    )
    wanted = method.gradients(normal(CLASSES, 9, WIDTH, seed=3), weight_CD, bias_C)
    held = torch.tensor([0, 2, 3])
    actual = method.match(features_CMD, weight_CD, bias_C, wanted[held], held)
    moving = features_CMD.clone().requires_grad_(True)
    optimizer = torch.optim.SGD([moving], lr=0.3)
    for _ in range(4):
        loss = torch.zeros((), dtype=DOUBLE)
        for k in held.tolist():
            gradients = literal_gradients(moving[k], k, weight_CD, bias_C)
            loss = loss + literal_distance(gradients, (wanted[k, :, :-1], wanted[k, :, -1]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.testing.assert_close(actual, moving.detach(), rtol=1e-9, atol=1e-10)
    assert torch.equal(actual[[1, 4]], features_CMD[[1, 4]])
    assert not torch.allclose(actual[held], features_CMD[held], atol=1e-3)


# ---- re-training and deployment --------------------------------------------------------------------------------------


def test_retraining_is_sgd_in_shuffled_mini_batches() -> None:
    """Of 5 x 7 features in batches of 8, the last of 3; the order is that of the generator."""
    method = CReFFCode(
        features_per_class=7, head_epochs=6, head_batch_size=8, head_learning_rate=0.2
    )
    features_CMD = torch.randn(CLASSES, 7, WIDTH, generator=generator())
    start = random_head(torch.Size((CLASSES, WIDTH)), generator(1))
    kept = digest([start])
    actual = method.retrain(start, features_CMD, generator(5))
    layer = nn.Linear(WIDTH, CLASSES)
    layer.load_state_dict(start)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.2)
    labels_N, draws, sizes = torch.arange(CLASSES).repeat_interleave(7), generator(5), []
    for _ in range(6):
        for batch in torch.split(torch.randperm(35, generator=draws), 8):
            optimizer.zero_grad()
            nn.functional.cross_entropy(
                layer(features_CMD.reshape(-1, WIDTH)[batch]), labels_N[batch]
            ).backward()
            optimizer.step()
            sizes.append(len(batch))
    assert sizes == [8, 8, 8, 8, 3] * 6
    torch.testing.assert_close(actual, dict(layer.state_dict()), rtol=1e-4, atol=1e-6)
    assert digest([start]) == kept


def test_defaults_are_those_of_the_code() -> None:
    method, client = CReFFCode(), AugmentedGradients()
    assert (method.features_per_class, method.feature_steps, method.feature_learning_rate) == (
        100,
        100,
        0.1,
    )
    assert (method.head_epochs, method.head_batch_size, method.head_learning_rate) == (
        300,
        32,
        0.01,
    )
    assert (client.repeats, client.batch_size) == (10, 32)


def deploy(server: Server, held: tuple[int, ...] = (0, 2, 3), **settings: Any) -> tuple[Any, Any]:
    method = CReFFCode(
        **{"features_per_class": 6, "feature_steps": 3, "head_epochs": 2, **settings}
    )
    state = method.initial_state(server)
    real_CMD = torch.randn(CLASSES, 4, WIDTH, generator=generator(3)).relu()
    gradients = method.gradients(real_CMD, state["weight"], state["bias"])[list(held)]
    upload = {"classes": torch.tensor(held, dtype=torch.int64), "gradients": gradients}
    method.accepts(server, upload)
    updates = [Update(0, server.start, 10, {method.consumes: upload})]
    return state, method.deploy(server, state, server.start, updates)


def test_deployment(server: Server) -> None:
    state, deployment = deploy(server)
    model = deployment.models["creff-code"]
    assert {name for name in model if not torch.equal(model[name], server.start[name])} == {
        "head.weight",
        "head.bias",
    }
    assert torch.equal(model["head.weight"], deployment.state["weight"])
    moved = (deployment.state["features"] != state["features"]).flatten(1).any(1)
    assert moved.tolist() == [True, False, True, True, False]
    assert 0 < deployment.metrics["matching-loss-code"] < 2
    assert digest([deploy(server)[1].models["creff-code"]]) == digest([model])
    start = random_head(torch.Size((CLASSES, WIDTH)), server.generator("creff-code"))
    assert torch.equal(deploy(server, head_epochs=0)[1].state["weight"], start["weight"])
    assert torch.equal(deploy(server, feature_steps=0)[1].state["features"], state["features"])
    average = deploy(server, features_per_class=0)[1]
    assert digest([average.models["creff-code"]]) == digest([server.start])


def test_only_its_own_uploads_are_accepted(server: Server) -> None:
    """Neither side can take the other form for its own: the bias's column is there or it is not."""

    def upload(width: int) -> dict[str, Tensor]:
        return {"classes": torch.tensor([0, 3]), "gradients": torch.zeros(2, CLASSES, width)}

    CReFFCode().accepts(server, upload(WIDTH + 1))
    CReFF().accepts(server, upload(WIDTH))
    with pytest.raises(
        RejectedUpdate, match="gradients is float32 of 2x5x12, not float32 of 2x5x13"
    ):
        CReFFCode().accepts(server, upload(WIDTH))
    with pytest.raises(
        RejectedUpdate, match="gradients is float32 of 2x5x13, not float32 of 2x5x12"
    ):
        CReFF().accepts(server, upload(WIDTH + 1))
    assert CReFF.consumes != CReFFCode.consumes


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("features_per_class", -1),
        ("head_epochs", -1),
        ("head_batch_size", 0),
        ("head_learning_rate", 0.0),
    ],
)
def test_settings_are_checked(field: str, value: Any) -> None:
    with pytest.raises(SettingError, match=rf"creff-code\.{field.replace('_', '-')}"):
        CReFFCode(**{field: value})
