"""CReFF on the server, by the paper and by its authors' code: distances, matching, re-training, deployment.

Shang et al., IJCAI 2022.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from client_app.client import Variant
from client_app.models import Classifier
from client_app.optimizer import TrainingSettings
from client_app.state import State, digest
from client_app.variants import feature_gradients as client_side
from client_app.variants.feature_gradients import (
    AugmentedGradients,
    FeatureGradients,
    class_gradients,
)
from data import Samples, SettingError
from strategies import creff
from strategies.core.server import Deployment, Server, Update
from strategies.core.validation import RejectedUpdate, check_upload
from strategies.creff import (
    CReFF,
    CReFFCode,
    feature_gradients,
    mean_gradients,
    random_head,
    row_distances,
)

CLASSES, WIDTH = 5, 12
HELD = torch.tensor([0, 2, 3])


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


@pytest.fixture
def server() -> Server:
    model = Classifier(nn.Linear(3, WIDTH), nn.Linear(WIDTH, CLASSES))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator(9)) / 3)
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    return Server(model, start, clients=4, round=1, seed=0, training=TrainingSettings())


def upload_of(samples_of_class: Sequence[int], head: State, seed: int = 0) -> State:
    """Return the upload of a client with so many samples of each class."""
    labels_N = torch.arange(CLASSES).repeat_interleave(torch.tensor(samples_of_class))
    features_ND = normal(len(labels_N), WIDTH, seed=seed).float().relu()
    held = torch.tensor(samples_of_class).nonzero().flatten()
    gradients = class_gradients(features_ND, labels_N, head["weight"], head["bias"], held.tolist())
    return {"classes": held, "gradients": gradients}


def head_for(seed: int = 1) -> State:
    return random_head(CLASSES, WIDTH, generator(seed))


# ---- the paper's distance and gradients ------------------------------------------------------------------------------


def test_distance_of_zero_rows() -> None:
    """A zero row of the clients has no direction and counts nothing; a zero row of the features is at a right angle."""
    left, right = normal(CLASSES, CLASSES, WIDTH, seed=1), normal(CLASSES, CLASSES, WIDTH, seed=2)
    right[1, 2] = 0
    assert row_distances(left, right)[1, 2] == 0
    assert row_distances(right, left)[1, 2] == 1
    left.requires_grad_(True)
    (slope,) = torch.autograd.grad(row_distances(left, right).sum(), left)
    assert torch.isfinite(slope).all()
    assert slope[1, 2].abs().max() == 0 and slope[0, 0].abs().max() > 0


def test_the_mean_is_over_the_clients_that_hold_the_class_and_not_weighted_by_samples() -> None:
    head = head_for()
    uploads = [upload_of([3, 0, 1, 5, 0], head, seed=1), upload_of([300, 4, 0, 5, 0], head, seed=2)]
    mean_nCD, held = mean_gradients(uploads)
    assert held.tolist() == [0, 1, 2, 3]
    first, second = (upload["gradients"] for upload in uploads)
    torch.testing.assert_close(mean_nCD[0], (first[0] + second[0]) / 2, rtol=1e-6, atol=1e-8)
    assert torch.equal(mean_nCD[1], second[1]) and torch.equal(mean_nCD[2], first[1])
    alone, held = mean_gradients(uploads[:1] * 3)
    assert torch.equal(alone, first) and held.tolist() == HELD.tolist()


# ---- matching --------------------------------------------------------------------------------------------------------


def test_initial_state(server: Server) -> None:
    state = CReFF(features_per_class=400).initial_state(server)
    assert {name: tuple(tensor.shape) for name, tensor in state.items()} == {
        "features": (CLASSES, 400, WIDTH), "weight": (CLASSES, WIDTH), "bias": (CLASSES,),
    }  # fmt: skip
    assert abs(state["features"].std() - 1) < 0.05
    assert 0.9 * WIDTH**-0.5 < state["weight"].abs().max() <= WIDTH**-0.5
    assert digest([state]) == digest([CReFF(features_per_class=400).initial_state(server)])
    assert set(CReFF().broadcast(server, state)["feature-gradients"]) == {"weight", "bias"}


def test_real_features_give_no_gradient() -> None:
    method = CReFF(features_per_class=4, feature_steps=10, feature_learning_rate=0.1)
    real_CMD, head = normal(CLASSES, 4, WIDTH, seed=5).float(), head_for()
    gradients = feature_gradients(real_CMD, head["weight"], head["bias"], torch.arange(CLASSES))
    stayed = method.match(real_CMD, head, gradients, torch.arange(CLASSES))
    torch.testing.assert_close(stayed, real_CMD, rtol=0, atol=1e-4)


# ---- re-training and deployment --------------------------------------------------------------------------------------


def trained_by_torch(start: State, features_CMD: Tensor, batches: Sequence[Tensor]) -> State:
    """Return a head after torch's SGD with rate 0.2 on these batches of the features."""
    layer = nn.Linear(WIDTH, CLASSES)
    layer.load_state_dict(start)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.2)
    labels_N = torch.arange(CLASSES).repeat_interleave(features_CMD.shape[1])
    features_ND = features_CMD.reshape(-1, WIDTH)
    for batch in batches:
        optimizer.zero_grad()
        nn.functional.cross_entropy(layer(features_ND[batch]), labels_N[batch]).backward()
        optimizer.step()
    return dict(layer.state_dict())


COUNTS = ([3, 0, 1, 5, 0], [1, 1, 0, 0, 0])


def deploy(
    server: Server, counts: Sequence[Sequence[int]] = COUNTS, **settings: Any
) -> tuple[State, Deployment]:
    """Return the state before and what clients of so many samples make of it."""
    method = CReFF(**{"features_per_class": 6, "feature_steps": 1, "head_steps": 4, **settings})
    state = method.initial_state(replace(server, round=0))
    updates = [
        Update(k, server.start, 10 * k + 1, {method.uses: upload_of(of_class, state, seed=k)})
        for k, of_class in enumerate(counts)
    ]
    return state, method.deploy(server, state, server.start, updates)


def test_a_round_is_autograd_descent_of_the_features_and_then_of_a_new_head(server: Server) -> None:
    """torch.optim.SGD on the summed distance, at the head that the clients had, all classes written out one by one."""
    rates = {"feature_learning_rate": 0.3, "head_learning_rate": 0.2}
    state, deployment = deploy(server, feature_steps=4, head_steps=30, **rates)
    uploads = [upload_of(of_class, state, seed=k) for k, of_class in enumerate(COUNTS)]
    wanted: dict[int, list[Tensor]] = {}
    for upload in uploads:
        for k, gradient in zip(upload["classes"].tolist(), upload["gradients"], strict=True):
            wanted.setdefault(k, []).append(gradient)
    moving = state["features"].clone().requires_grad_(True)

    def distances() -> Tensor:
        rows = []
        for k, of_class in wanted.items():
            gradient, _ = literal_gradients(moving[k], k, state["weight"], state["bias"])
            mean = torch.stack(of_class).mean(0)
            rows.append(1 - nn.functional.cosine_similarity(gradient, mean, dim=1))
        return torch.stack(rows)

    optimizer = torch.optim.SGD([moving], lr=0.3)
    for _ in range(4):
        optimizer.zero_grad()
        distances().sum().backward()
        optimizer.step()
    features = deployment.state["features"]
    torch.testing.assert_close(features, moving.detach(), rtol=1e-3, atol=1e-5)
    stayed = (features == state["features"]).flatten(1).all(1)
    assert stayed.tolist() == [False, False, False, False, True], "nobody holds the last class"
    matched = distances().mean().item()
    assert deployment.metrics == {"matching-loss": pytest.approx(matched, rel=1e-4)}

    fresh = random_head(CLASSES, WIDTH, server.generator("creff"))
    head = trained_by_torch(fresh, features, [torch.arange(CLASSES * 6)] * 30)
    model = deployment.models["creff"]
    for name, tensor in head.items():
        torch.testing.assert_close(deployment.state[name], tensor, rtol=1e-4, atol=1e-6)
        assert torch.equal(model[f"head.{name}"], deployment.state[name])
    for name in server.start.keys() - {"head.weight", "head.bias"}:
        assert torch.equal(model[name], server.start[name])


def test_what_is_deployed_without_features_or_steps(server: Server) -> None:
    average, fresh = digest([server.start]), server.generator("creff")
    state, deployment = deploy(server, features_per_class=0)
    assert digest([deployment.models["creff"]]) == average
    assert digest([deployment.state]) == digest([state])

    state, deployment = deploy(server, feature_steps=0)
    assert torch.equal(deployment.state["features"], state["features"])
    state, deployment = deploy(server, [[0] * CLASSES])
    assert torch.equal(deployment.state["features"], state["features"]), "no class was sent"

    start = random_head(CLASSES, WIDTH, fresh)["weight"]
    rounds = [
        deploy(replace(server, round=round), head_steps=0)[1].state["weight"] for round in (1, 2)
    ]
    assert torch.equal(rounds[0], start) and not torch.equal(rounds[1], start)


def test_comparing_features_records_by_class_and_changes_no_model(server: Server) -> None:
    inputs_N, labels_N = normal(8, 3, seed=4).float(), torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])
    server = replace(server, holdout=Samples(inputs_N, labels_N, torch.zeros(1), torch.ones(1)))
    counts = [[3, 0, 1, 5, 2]]
    (_, ours), (_, theirs) = (deploy(server, counts, compare_features=how) for how in (True, False))
    assert digest([ours.models["creff"], ours.state]) == digest(
        [theirs.models["creff"], theirs.state]
    )
    assert list(theirs.metrics) == ["matching-loss"]

    losses_C = torch.tensor(ours.metrics["matching-loss-by-class"])
    assert losses_C.isnan().tolist() == [False, True, False, False, False]
    assert losses_C.nanmean().item() == pytest.approx(ours.metrics["matching-loss"])
    found_C = ours.metrics["feature-dissimilarity-by-class"]
    pairs_C = ours.metrics["feature-pair-dissimilarity-by-class"]
    real_ND = inputs_N @ server.start["features.weight"].T + server.start["features.bias"]
    similarity = nn.functional.cosine_similarity
    for label, features_MD in enumerate(ours.state["features"][:4]):
        real_2D = real_ND[2 * label : 2 * label + 2]
        of_means = 1 - similarity(features_MD.mean(0), real_2D.mean(0), dim=0).item()
        assert found_C[label] == pytest.approx(of_means, abs=1e-5)
        of_pairs = 1 - similarity(features_MD[:, None], real_2D[None], dim=2).mean().item()
        assert pairs_C[label] == pytest.approx(of_pairs, abs=1e-5)
    assert math.isnan(found_C[4]) and math.isnan(pairs_C[4])  # no image of that class


# ---- what is accepted ------------------------------------------------------------------------------------------------


def sent(classes: Sequence[int] = (0, 3), width: int = WIDTH, **changes: Tensor) -> State:
    gradients = torch.zeros(len(classes), CLASSES, width)
    return {
        "classes": torch.tensor(classes, dtype=torch.int64),
        "gradients": gradients,
        **changes,
    }


@pytest.mark.parametrize(
    ("variant", "width"), [(FeatureGradients, WIDTH), (AugmentedGradients, WIDTH + 1)]
)
def test_an_upload_has_ascending_classes_and_the_forms_own_columns(
    server: Server, variant: type[Variant], width: int
) -> None:
    """Neither form can be taken for the other: the bias's column is there or it is not."""
    for classes in ((0, 3), (), range(CLASSES)):
        check_upload(variant().upload, sent(classes, width), server)
    other = 2 * WIDTH + 1 - width
    for bad in (
        {},
        {"classes": torch.tensor([0])},
        sent((0, 3), other),
        sent((0, 3), width, more=torch.zeros(1)),
        sent((0, 3), width, gradients=torch.zeros(3, CLASSES, width)),
        sent((0, 3), width, gradients=torch.zeros(2, CLASSES, width).double()),
        sent((3, 0), width),
        sent((3, CLASSES), width),
    ):
        with pytest.raises(RejectedUpdate):
            check_upload(variant().upload, bad, server)
    assert CReFF.uses != CReFFCode.uses


def test_comparing_features_needs_a_holdout_and_features() -> None:
    assert CReFF(compare_features=True).needs_holdout and not CReFF().needs_holdout
    with pytest.raises(SettingError):
        CReFF(features_per_class=0, compare_features=True)


# ---- the authors' code -----------------------------------------------------------------------------------------------


def literal_gradients(
    features_MD: Tensor, label: int, weight_CD: Tensor, bias_C: Tensor
) -> tuple[Tensor, ...]:
    """Return what autograd gives for the weight and for the bias, with a graph behind it."""
    weight, bias = weight_CD.clone().requires_grad_(True), bias_C.clone().requires_grad_(True)
    labels_M = torch.full((len(features_MD),), label)
    loss = nn.functional.cross_entropy(features_MD @ weight.T + bias, labels_M)
    return torch.autograd.grad(loss, (weight, bias), create_graph=True)


def literal_distance(actual: tuple[Tensor, ...], wanted: tuple[Tensor, ...]) -> Tensor:
    """Return the sum over the rows of the weight and, one row, the bias, with 1e-6 beside the product of norms."""
    total = torch.zeros((), dtype=actual[0].dtype)
    for ours, theirs in zip(actual, wanted, strict=True):
        rows = zip(
            ours.reshape(-1, ours.shape[-1]), theirs.reshape(-1, theirs.shape[-1]), strict=True
        )
        for a, b in rows:
            norms = torch.linalg.norm(a) * torch.linalg.norm(b)
            total = total + 1 - torch.dot(a, b) / (norms + 1e-6)
    return total


def test_bias_gradient_is_autograds() -> None:
    features_CMD, weight_CD = normal(CLASSES, 7, WIDTH), normal(CLASSES, WIDTH, seed=1)
    bias_C = normal(CLASSES, seed=2)
    head = {"weight": weight_CD, "bias": bias_C}
    actual = CReFFCode().gradients(features_CMD, head, torch.arange(CLASSES))
    assert actual.shape == (CLASSES, CLASSES, WIDTH + 1)
    for k in range(CLASSES):
        weight, bias = literal_gradients(features_CMD[k], k, weight_CD, bias_C)
        torch.testing.assert_close(actual[k, :, :-1], weight.detach(), rtol=0, atol=1e-12)
        torch.testing.assert_close(actual[k, :, -1], bias.detach(), rtol=0, atol=1e-12)
    assert actual.sum(1).abs().max() < 1e-12  # over the rows, the bias's column included
    diagonal = torch.eye(CLASSES).bool()
    assert (actual[..., -1][diagonal] < 0).all() and (actual[..., -1][~diagonal] > 0).all()
    part = CReFFCode().gradients(features_CMD[HELD], head, HELD)
    torch.testing.assert_close(part, actual[HELD], rtol=0, atol=1e-12)


@pytest.mark.parametrize("scale", [1.0, 1e-5])
def test_distance_is_the_literal_one(scale: float) -> None:
    """Its value and its gradient, where the guard is nothing and where it is nearly everything."""
    actual = scale * normal(3, CLASSES, WIDTH + 1)
    wanted = scale * normal(3, CLASSES, WIDTH + 1, seed=1)
    method, slopes, values = CReFFCode(), [], []

    def literal(moving: Tensor) -> Tensor:
        distances = [
            literal_distance((a[:, :-1], a[:, -1]), (b[:, :-1], b[:, -1]))
            for a, b in zip(moving, wanted, strict=True)
        ]
        return torch.stack(distances).sum()

    for distance in (literal, lambda moving: method.distances(moving, wanted).sum()):
        moving = actual.clone().requires_grad_(True)
        values.append(value := distance(moving))
        slopes.extend(torch.autograd.grad(value, moving))
    torch.testing.assert_close(values[0], values[1], rtol=1e-12, atol=0)
    torch.testing.assert_close(slopes[0], slopes[1], rtol=1e-10, atol=1e-12)


def test_retraining_is_sgd_in_shuffled_mini_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 5 x 7 features in batches of 8, the last of 3; the order is that of the generator."""
    monkeypatch.setattr(creff, "HEAD_BATCH", 8)
    monkeypatch.setattr(creff, "HEAD_RATE", 0.2)
    method = CReFFCode(features_per_class=7, head_epochs=6)
    features_CMD, start, draws = normal(CLASSES, 7, WIDTH).float(), head_for(), generator(5)
    labels_N = torch.arange(CLASSES).repeat_interleave(7)
    actual = method.retrain(start, features_CMD.reshape(-1, WIDTH), labels_N, generator(5))
    batches = [
        batch for _ in range(6) for batch in torch.split(torch.randperm(35, generator=draws), 8)
    ]
    assert [len(batch) for batch in batches] == [8, 8, 8, 8, 3] * 6
    expected = trained_by_torch(start, features_CMD, batches)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-6)
    assert digest([start]) == digest([head_for()])


def test_numbers_that_are_no_settings_are_those_of_the_code() -> None:
    assert (creff.HEAD_BATCH, creff.HEAD_RATE, client_side.DRAWN) == (32, 0.01, 32)
