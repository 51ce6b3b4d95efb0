"""CReFF on the server: distances, matching, re-training, and that the average stays FedAvg's (Shang et al. 2022)."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from client_app.models import Classifier
from client_app.optimizer import TrainingSettings
from client_app.state import State, digest
from client_app.variants.feature_gradients import class_gradients
from data import Samples, SettingError
from data.agreement import Member
from strategies.core.server import Server, Update
from strategies.core.validation import RejectedUpdate
from strategies.creff import (
    CReFF,
    feature_gradients,
    labeled,
    mean_gradients,
    random_head,
    row_distances,
)
from strategies.head import train_head

CLASSES, WIDTH = 5, 12


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def server_of(classes: int = CLASSES, width: int = WIDTH, round: int = 1) -> Server:
    """Return a server whose model is features of `width` and a head."""
    model = Classifier(nn.Linear(3, width), nn.Linear(width, classes))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator(9)) / 3)
    return Server(
        model, dict(model.state_dict()), clients=4, round=round, seed=0, training=TrainingSettings()
    )


def upload_of(
    samples_of_class: Sequence[int], head: State, seed: int = 0, shift: float = 0.5
) -> State:
    """Return the upload of a client with so many samples of each class, around one center a class."""
    width, classes = head["weight"].shape[1], len(head["weight"])
    centers_CD = shift * torch.randn(classes, width, generator=generator(99))
    labels_N = torch.arange(classes).repeat_interleave(torch.tensor(samples_of_class))
    features_ND = (
        centers_CD[labels_N] + 0.3 * torch.randn(len(labels_N), width, generator=generator(seed))
    ).relu()
    held = torch.tensor(samples_of_class).nonzero().flatten()
    return {
        "classes": held,
        "gradients": class_gradients(features_ND, labels_N, head["weight"], head["bias"])[held],
    }


def updates_of(server: Server, uploads: Sequence[State]) -> list[Update]:
    """Return updates with these uploads; their models do not matter to CReFF."""
    return [
        Update(k, server.start, 10 * k + 1, {"feature-gradients": upload})
        for k, upload in enumerate(uploads)
    ]


@pytest.fixture
def server() -> Server:
    return server_of()


# ---- distance --------------------------------------------------------------------------------------------------------


def rows(seed: int) -> Tensor:
    return torch.randn(CLASSES, CLASSES, WIDTH, generator=generator(seed), dtype=torch.float64)


def test_distance_properties() -> None:
    left, right = rows(1), rows(2)
    distances = row_distances(left, right)
    assert distances.shape == (CLASSES, CLASSES)
    assert distances.min() >= 0 and distances.max() <= 2
    torch.testing.assert_close(distances, row_distances(right, left))
    factors = torch.rand(CLASSES, CLASSES, 1, generator=generator(3), dtype=torch.float64) + 0.1
    torch.testing.assert_close(row_distances(left * factors, right), distances)
    torch.testing.assert_close(
        row_distances(left, left * factors), torch.zeros(CLASSES, CLASSES).double()
    )
    torch.testing.assert_close(
        row_distances(left, -left), torch.full((CLASSES, CLASSES), 2.0).double()
    )


def test_distance_of_zero_rows() -> None:
    """A zero row of the clients has no direction and counts nothing; a zero row of the features is at a right angle."""
    left, right = rows(1), rows(2)
    right[1, 2] = 0
    assert row_distances(left, right)[1, 2] == 0
    assert row_distances(right, left)[1, 2] == 1
    left.requires_grad_(True)
    (slope,) = torch.autograd.grad(row_distances(left, right).sum(), left)
    assert (
        torch.isfinite(slope).all() and slope[1, 2].abs().max() == 0 and slope[0, 0].abs().max() > 0
    )


# ---- gradients -------------------------------------------------------------------------------------------------------


def test_feature_gradients_are_autograds_and_the_clients(server: Server) -> None:
    head = server.model.head
    features_CMD = torch.randn(CLASSES, 7, WIDTH, generator=generator())
    actual = feature_gradients(features_CMD, head.weight.detach(), head.bias.detach())
    labels_N = torch.arange(CLASSES).repeat_interleave(7)
    clients = class_gradients(
        features_CMD.reshape(-1, WIDTH), labels_N, head.weight.detach(), head.bias.detach()
    )
    for k in range(CLASSES):
        loss = nn.functional.cross_entropy(head(features_CMD[k]), torch.full((7,), k))
        (expected,) = torch.autograd.grad(loss, head.weight)
        torch.testing.assert_close(actual[k], expected, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(actual, clients, rtol=1e-5, atol=1e-6)
    held = torch.tensor([1, 4])
    part = feature_gradients(features_CMD[held], head.weight.detach(), head.bias.detach(), held)
    torch.testing.assert_close(part, actual[held])


def test_mean_of_one_client_is_its_own(server: Server) -> None:
    head = random_head(server.model.head.weight.shape, generator())
    upload = upload_of([3, 0, 1, 5, 0], head)
    mean_nCD, held = mean_gradients([upload], head["weight"])
    assert held.tolist() == [0, 2, 3]
    assert torch.equal(mean_nCD, upload["gradients"])
    thrice, _ = mean_gradients([upload] * 3, head["weight"])
    assert torch.equal(thrice, mean_nCD)


def test_mean_is_not_weighted_by_samples(server: Server) -> None:
    head = random_head(server.model.head.weight.shape, generator())
    uploads = [upload_of([3, 0, 1, 5, 0], head, seed=1), upload_of([300, 4, 0, 5, 0], head, seed=2)]
    mean_nCD, held = mean_gradients(uploads, head["weight"])
    assert held.tolist() == [0, 1, 2, 3]
    expected_0 = (uploads[0]["gradients"][0].double() + uploads[1]["gradients"][0].double()) / 2
    torch.testing.assert_close(mean_nCD[0].double(), expected_0, rtol=1e-6, atol=0)
    assert torch.equal(mean_nCD[1], uploads[1]["gradients"][1])
    assert torch.equal(mean_nCD[2], uploads[0]["gradients"][1])


# ---- matching --------------------------------------------------------------------------------------------------------


def matched(method: CReFF, server: Server, uploads: Sequence[State]) -> tuple[State, Tensor]:
    state = method.initial_state(server)
    mean_nCD, held = mean_gradients(uploads, state["weight"])
    return state, method.match(state["features"], state["weight"], state["bias"], mean_nCD, held)


def loss_of(method: CReFF, features_CMD: Tensor, state: State, uploads: Sequence[State]) -> float:
    mean_nCD, held = mean_gradients(uploads, state["weight"])
    actual = feature_gradients(features_CMD, state["weight"], state["bias"])
    return row_distances(actual[held], mean_nCD).sum().item()


def test_initial_state(server: Server) -> None:
    state = CReFF(features_per_class=8).initial_state(server)
    assert {name: tuple(tensor.shape) for name, tensor in state.items()} == {
        "features": (CLASSES, 8, WIDTH), "weight": (CLASSES, WIDTH), "bias": (CLASSES,),
    }  # fmt: skip
    assert abs(state["features"].mean()) < 0.2 and abs(state["features"].std() - 1) < 0.2
    assert state["weight"].abs().max() <= WIDTH**-0.5
    assert digest([state]) == digest([CReFF(features_per_class=8).initial_state(server)])
    assert set(CReFF().broadcast(server, state)["feature-gradients"]) == {"weight", "bias"}


def test_absent_class_keeps_its_features(server: Server) -> None:
    method = CReFF(features_per_class=6, feature_steps=5)
    head = method.initial_state(server)
    state, features_CMD = matched(method, server, [upload_of([3, 0, 1, 5, 0], head)])
    moved = (features_CMD != state["features"]).flatten(1).any(1)
    assert moved.tolist() == [True, False, True, True, False]


@pytest.mark.parametrize("distance", ["code-scale", "paper-literal"])
def test_loss_does_not_rise(server: Server, distance: str) -> None:
    method = CReFF(
        features_per_class=6, feature_steps=1, feature_learning_rate=0.02, distance=distance
    )
    state = method.initial_state(server)
    uploads = [upload_of([3, 2, 1, 5, 4], state, seed=s) for s in (1, 2)]
    mean_nCD, held = mean_gradients(uploads, state["weight"])
    features_CMD, losses = state["features"], []
    for _ in range(20):
        losses.append(loss_of(method, features_CMD, state, uploads))
        features_CMD = method.match(features_CMD, state["weight"], state["bias"], mean_nCD, held)
    assert all(after <= before + 1e-6 for before, after in pairwise(losses))
    assert losses[-1] < losses[0]


def test_real_features_give_no_gradient(server: Server) -> None:
    method = CReFF(features_per_class=4, feature_steps=10, feature_learning_rate=0.1)
    state = method.initial_state(server)
    real_CMD = torch.randn(CLASSES, 4, WIDTH, generator=generator(5))
    labels_N = torch.arange(CLASSES).repeat_interleave(4)
    gradients = class_gradients(
        real_CMD.reshape(-1, WIDTH), labels_N, state["weight"], state["bias"]
    )
    upload = {"classes": torch.arange(CLASSES), "gradients": gradients}
    assert loss_of(method, real_CMD, state, [upload]) < 1e-5
    stayed = method.match(
        real_CMD, state["weight"], state["bias"], gradients, torch.arange(CLASSES)
    )
    torch.testing.assert_close(stayed, real_CMD, rtol=0, atol=1e-4)


def test_code_scale_is_classes_times_the_papers(server: Server) -> None:
    """One step of the code's sum is C steps' length of the paper's mean over the C rows."""
    steps = {}
    for distance in ("code-scale", "paper-literal"):
        method = CReFF(
            features_per_class=6, feature_steps=1, distance=distance, feature_learning_rate=1.0
        )
        state, features_CMD = matched(
            method, server, [upload_of([3, 2, 1, 5, 4], method.initial_state(server))]
        )
        steps[distance] = features_CMD - state["features"]
    assert steps["paper-literal"].abs().max() > 1e-4
    torch.testing.assert_close(
        steps["code-scale"], CLASSES * steps["paper-literal"], rtol=1e-3, atol=1e-5
    )


def test_matching_is_autograd_descent(server: Server) -> None:
    """I steps equal torch.optim.SGD on the summed distance, all classes written out one by one."""
    method = CReFF(features_per_class=3, feature_steps=4, feature_learning_rate=0.3)
    state, actual = matched(
        method, server, [upload := upload_of([3, 0, 1, 5, 2], method.initial_state(server))]
    )
    features_CMD = state["features"].clone().requires_grad_(True)
    optimizer = torch.optim.SGD([features_CMD], lr=0.3)
    for _ in range(4):
        optimizer.zero_grad()
        for position, k in enumerate(upload["classes"].tolist()):
            head = state["weight"].clone().requires_grad_(True)
            loss = nn.functional.cross_entropy(
                features_CMD[k] @ head.T + state["bias"], torch.full((3,), k)
            )
            (gradient,) = torch.autograd.grad(loss, head, create_graph=True)
            cosine = nn.functional.cosine_similarity(gradient, upload["gradients"][position], dim=1)
            (1 - cosine).sum().backward()
        optimizer.step()
    torch.testing.assert_close(actual, features_CMD.detach(), rtol=1e-3, atol=1e-5)


# ---- re-training and deployment --------------------------------------------------------------------------------------


def test_retraining_is_sgd_on_a_linear_layer() -> None:
    method = CReFF(features_per_class=6, head_steps=30, head_learning_rate=0.2)
    features_CMD = torch.randn(CLASSES, 6, WIDTH, generator=generator())
    start = random_head(torch.Size((CLASSES, WIDTH)), generator(1))
    kept = digest([start])
    actual = method.retrain(start, features_CMD, generator())
    layer = nn.Linear(WIDTH, CLASSES)
    layer.load_state_dict(start)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.2)
    labels_N = torch.arange(CLASSES).repeat_interleave(6)
    for _ in range(30):
        optimizer.zero_grad()
        nn.functional.cross_entropy(layer(features_CMD.reshape(-1, WIDTH)), labels_N).backward()
        optimizer.step()
    torch.testing.assert_close(actual, dict(layer.state_dict()), rtol=1e-4, atol=1e-6)
    assert digest([start]) == kept


def deploy(server: Server, samples: Sequence[Sequence[int]], **settings: Any) -> tuple[State, Any]:
    method = CReFF(**{"features_per_class": 6, "feature_steps": 3, "head_steps": 4, **settings})
    state = method.initial_state(replace(server, round=0))
    uploads = [upload_of(counts, state, seed=k) for k, counts in enumerate(samples)]
    return state, method.deploy(server, state, server.start, updates_of(server, uploads))


def test_deployment(server: Server) -> None:
    inputs = digest([server.start])
    state, deployment = deploy(server, [[3, 0, 1, 5, 0], [1, 1, 0, 0, 0]])
    before = digest([state])
    model = deployment.models["creff"]
    assert list(deployment.models) == ["creff"] and model.keys() == server.start.keys()
    changed = {name for name in model if not torch.equal(model[name], server.start[name])}
    assert changed == {"head.weight", "head.bias"}
    assert torch.equal(model["head.weight"], deployment.state["weight"])
    assert torch.equal(model["head.bias"], deployment.state["bias"])
    assert (digest([server.start]), digest([state])) == (inputs, before)
    assert 0 < deployment.metrics["matching-loss"] < 2


def test_features_match_at_the_clients_head_and_the_new_head_learns_from_them(
    server: Server,
) -> None:
    """One step by autograd at the head that the clients had; the new head is trained where that has led."""
    settings = {"features_per_class": 6, "feature_steps": 1, "head_steps": 4}
    method = CReFF(**settings)  # type: ignore[arg-type]
    samples = [[3, 0, 1, 5, 0], [1, 1, 0, 0, 0]]
    state, deployment = deploy(server, samples, **settings)
    gradients, held = mean_gradients(
        [upload_of(n, state, seed=k) for k, n in enumerate(samples)], state["weight"]
    )
    features = state["features"][held].clone().requires_grad_(True)
    row_distances(
        feature_gradients(features, state["weight"], state["bias"], held), gradients
    ).sum().backward()
    assert features.grad is not None
    moved = state["features"].clone()
    moved[held] = features.detach() - method.feature_learning_rate * features.grad
    torch.testing.assert_close(deployment.state["features"], moved, rtol=1e-5, atol=1e-6)
    assert (moved - state["features"])[held].abs().max() > 1e-3
    fresh = random_head(server.model.head.weight.shape, server.generator("creff"))
    head = train_head(fresh, *labeled(deployment.state["features"]), 4, method.head_learning_rate)
    assert torch.equal(deployment.state["weight"], head["weight"])
    assert torch.equal(deployment.state["bias"], head["bias"])


def test_features_start_normal() -> None:
    values = CReFF(features_per_class=400).initial_state(server_of())["features"].flatten()
    assert abs(values.mean()) < 0.05 and abs(values.std() - 1) < 0.05
    assert (values.abs() > 2).float().mean().item() == pytest.approx(0.0455, abs=0.01)


def test_no_features_deploy_the_average(server: Server) -> None:
    state, deployment = deploy(server, [[3, 0, 1, 5, 0]], features_per_class=0)
    assert digest([deployment.models["creff"]]) == digest([server.start])
    assert digest([deployment.state]) == digest([state])


def test_no_feature_steps_keep_the_features(server: Server) -> None:
    state, deployment = deploy(server, [[3, 0, 1, 5, 0]], feature_steps=0)
    assert torch.equal(deployment.state["features"], state["features"])
    _, moved = deploy(server, [[3, 0, 1, 5, 0]])
    assert not torch.equal(moved.state["features"], state["features"])


def test_no_head_steps_deploy_the_start(server: Server) -> None:
    _, deployment = deploy(server, [[3, 0, 1, 5, 0]], head_steps=0, head_start="average")
    assert digest([deployment.models["creff"]]) == digest([server.start])
    _, fresh = deploy(server, [[3, 0, 1, 5, 0]], head_steps=0)
    expected = random_head(server.model.head.weight.shape, server.generator("creff"))
    assert torch.equal(fresh.models["creff"]["head.weight"], expected["weight"])
    _, later = deploy(replace(server, round=2), [[3, 0, 1, 5, 0]], head_steps=0)
    assert not torch.equal(later.models["creff"]["head.weight"], expected["weight"])


def test_clients_that_send_no_class(server: Server) -> None:
    state, deployment = deploy(server, [[0] * CLASSES, [0] * CLASSES])
    assert torch.equal(deployment.state["features"], state["features"])
    assert all(torch.isfinite(tensor).all() for tensor in deployment.models["creff"].values())


def test_matching_loss_falls_as_in_the_papers_figure() -> None:
    """Ten classes, m = 100, I = 100, rate 0.1: below 0.15 within ten rounds (Shang et al. 2022, Figure 4)."""
    classes, width, losses = 10, 64, []
    server, method = server_of(classes, width, round=0), CReFF(head_steps=100)
    state = method.initial_state(server)
    for round in range(1, 11):
        server = replace(server, round=round)
        uploads = [
            upload_of([40 // (k + 1) + 2] * classes, state, seed=10 * round + k) for k in range(4)
        ]
        deployment = method.deploy(server, state, server.start, updates_of(server, uploads))
        state = deployment.state
        losses.append(deployment.metrics["matching-loss"])
    assert losses[-1] < 0.15 and losses[-1] < losses[0]


# ---- what is accepted ------------------------------------------------------------------------------------------------


def upload(held: Sequence[int] = (0, 3), **changes: Tensor) -> State:
    gradients = torch.zeros(len(held), CLASSES, WIDTH)
    return {"classes": torch.tensor(held, dtype=torch.int64), "gradients": gradients, **changes}


@pytest.mark.parametrize("good", [upload(), upload(()), upload((4,)), upload(range(CLASSES))])
def test_accepts(server: Server, good: State) -> None:
    CReFF().accepts(server, good)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({}, "classes is missing"),
        ({"classes": torch.tensor([0])}, "gradients is missing"),
        ({"gradients": torch.zeros(0, CLASSES, WIDTH)}, "classes is missing"),
        (upload(more=torch.zeros(1)), "'more' is not expected"),
        (
            upload(gradients=torch.zeros(3, CLASSES, WIDTH)),
            "gradients is float32 of 3x5x12, not float32 of 2x5x12",
        ),
        (upload(gradients=torch.zeros(2, CLASSES, WIDTH + 1)), "gradients is"),
        (upload(gradients=torch.zeros(2, CLASSES * WIDTH)), "gradients is"),
        (upload(gradients=torch.zeros(2, CLASSES, WIDTH).double()), "gradients is float64"),
        (upload(classes=torch.tensor([0.0, 3.0])), "classes is float32"),
        (upload(classes=torch.tensor([0, 3], dtype=torch.int32)), "classes is int32"),
        (upload(classes=torch.tensor([[0, 3]])), "classes is int64 of 1x2"),
        (upload((3, 0)), "not ascending"),
        (upload((3, 3)), "not ascending"),
        (upload((3, CLASSES)), "from 0 to 4"),
        (upload((-1, 3)), "not ascending numbers"),
    ],
)
def test_refuses(server: Server, bad: State, reason: str) -> None:
    with pytest.raises(RejectedUpdate, match=reason):
        CReFF().accepts(server, bad)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("features_per_class", -1),
        ("feature_steps", -1),
        ("head_steps", -1),
        ("feature_learning_rate", 0.0),
        ("head_learning_rate", float("inf")),
        ("head_start", "zeros"),
        ("distance", "cosine"),
    ],
)
def test_settings_are_checked(field: str, value: Any) -> None:
    with pytest.raises(SettingError, match=rf"creff\.{field.replace('_', '-')}"):
        CReFF(**{field: value})


# ---- Figure 4 --------------------------------------------------------------------------------------------------------


def test_comparing_features_records_by_class_and_changes_no_model(server: Server) -> None:
    inputs_N, labels_N = (
        torch.randn(8, 3, generator=generator(4)),
        torch.tensor([0, 0, 1, 1, 2, 2, 3, 3]),
    )
    server = replace(server, holdout=Samples(inputs_N, labels_N, torch.zeros(1), torch.ones(1)))
    plain, compared = (
        CReFF(features_per_class=6),
        CReFF(features_per_class=6, compare_features=True),
    )
    state = plain.initial_state(server)
    updates = updates_of(server, [upload_of([3, 0, 1, 5, 2], state)])
    ours, theirs = (
        server_method.deploy(server, state, server.start, updates)
        for server_method in (compared, plain)
    )
    assert digest([ours.models["creff"], ours.state]) == digest(
        [theirs.models["creff"], theirs.state]
    )
    assert list(theirs.metrics) == ["matching-loss"]

    losses_C = torch.tensor(ours.metrics["matching-loss-by-class"])
    assert losses_C.isnan().tolist() == [False, True, False, False, False]
    assert losses_C.nanmean().item() == pytest.approx(ours.metrics["matching-loss"])
    found_C = torch.tensor(ours.metrics["feature-dissimilarity-by-class"])
    pairs_C = torch.tensor(ours.metrics["feature-pair-dissimilarity-by-class"])
    features_CMD = ours.state["features"]
    real_ND = inputs_N @ server.start["features.weight"].T + server.start["features.bias"]
    for label in range(4):
        real_2D = real_ND[2 * label : 2 * label + 2]
        of_means = 1 - cosine(features_CMD[label].mean(0), real_2D.mean(0))
        assert found_C[label].item() == pytest.approx(of_means, abs=1e-5)
        of_pairs = [1 - cosine(left, right) for left in features_CMD[label] for right in real_2D]
        assert pairs_C[label].item() == pytest.approx(sum(of_pairs) / 12, abs=1e-5)
    assert found_C[4].isnan() and pairs_C[4].isnan()  # no image of that class


def cosine(left_D: torch.Tensor, right_D: torch.Tensor) -> float:
    return (left_D @ right_D / left_D.norm() / right_D.norm()).item()


def test_comparing_features_needs_a_holdout_and_features(server: Server) -> None:
    assert CReFF(compare_features=True).needs_holdout and not CReFF().needs_holdout
    with pytest.raises(SettingError, match=r"compare-features.*no effect"):
        CReFF(features_per_class=0, compare_features=True)


def test_the_matching_loss_is_the_mean_over_rows_summed_over_classes() -> None:
    distances_CR = torch.tensor([[1.0, 2.0, 3.0], [5.0, 5.0, 8.0]])
    assert CReFF(distance="paper-literal").total(distances_CR).item() == 2 + 6
    assert CReFF(distance="code-scale").total(distances_CR).item() == 6 + 18


@pytest.mark.parametrize("text", ["0", "1,1", "1,x", "-1,2", "1.5", "1,"])
def test_a_sweep_that_lists_no_numbers_of_features_is_refused(text: str) -> None:
    with pytest.raises(SettingError, match="must be comma-separated integers of 0 or more"):
        CReFF(sweep=text)
    CReFF(sweep="1,2")  # the control


def test_a_sweep_beside_one_m_or_the_comparison_of_one_is_refused() -> None:
    with pytest.raises(SettingError, match=r"has no effect with creff\.sweep"):
        CReFF(sweep="1,2", features_per_class=3)
    with pytest.raises(SettingError, match=r"is for one m, without creff\.sweep"):
        CReFF(sweep="1,2", compare_features=True)


def test_a_sweep_is_refused_between_sites() -> None:
    server = server_of()
    sweep = CReFF(sweep="1,2")
    assert set(sweep.initial_state(server)) == {
        f"{name}-{number}" for name in ("features", "weight", "bias") for number in (1, 2)
    }
    member = Member("a", "0" * 64)
    with pytest.raises(SettingError, match="is for simulations, not between sites"):
        sweep.initial_state(replace(server, sites=[member]))
