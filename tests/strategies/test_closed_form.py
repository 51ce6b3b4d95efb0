"""Heads in closed form against scikit-learn on pooled data, and their promises: any partition, absent classes."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge
from sklearn.neighbors import NearestCentroid
from torch import Tensor, nn

from client_app.client import Client
from client_app.models import Classifier
from client_app.optimizer import TrainingSettings
from client_app.state import State, copy, digest
from client_app.variants import VARIANTS
from client_app.variants.feature_statistics import GridStatistics, LabelCounts
from data import Samples, SettingError
from strategies.closed_form import (
    BELOW,
    CANDIDATES,
    ClosedFormHead,
    Fed3R,
    FedNCM,
    Head,
    Statistics,
    cross_validated_rho,
    regularized,
)
from strategies.core.questions import integer_sum
from strategies.core.server import Deployment, Server
from strategies.fed_lda import FedLDA, FedLDAPooled

CLASSES, WIDTH = 4, 6
BITS = {"bits": 12, "range": 8.0}
HEADS = (FedLDA, FedLDAPooled, Fed3R, FedNCM)
every_head = pytest.mark.parametrize("kind", HEADS, ids=lambda kind: kind.name)


def data_of(counts_C: Sequence[int], seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return correlated features on the grid of 12 bits and range 8, so that nothing is rounded, and labels."""
    draws = torch.Generator().manual_seed(seed)
    mixing = torch.randn(WIDTH, WIDTH, generator=draws)
    labels_N = torch.arange(len(counts_C)).repeat_interleave(torch.tensor(counts_C))
    centers = torch.randn(len(counts_C), WIDTH, generator=draws)
    noise_ND = 0.4 * torch.randn(len(labels_N), WIDTH, generator=draws) @ mixing
    features_ND = (centers[labels_N] + noise_ND).clamp(-8, 8)
    return (features_ND * 512).round() / 512, labels_N


def model_of(width: int = WIDTH, classes: int = CLASSES) -> Classifier:
    torch.manual_seed(3)
    return Classifier(nn.Flatten(), nn.Linear(width, classes))


def server_with(
    head: ClosedFormHead, features_ND: Tensor, labels_N: Tensor, clients: Sequence[Tensor]
) -> Server:
    """Return the server after the clients, which hold these samples each, have answered what the head asks."""
    classes = max(CLASSES, int(labels_N.max()) + 1)
    model = model_of(features_ND.shape[1], classes)
    asked = VARIANTS[head.uses](**BITS)  # type: ignore[arg-type]
    assert isinstance(asked, GridStatistics)
    total_C = torch.bincount(labels_N, minlength=classes)
    answers: dict[int, State] = {}
    for number, part in enumerate(clients):
        samples = Samples(features_ND[part], labels_N[part], torch.zeros(1), torch.ones(1))
        broadcast = {LabelCounts.name: {"counts": total_C}}
        client = Client(number, model, samples, classes, broadcast=broadcast)
        answers[number] = asked.answer(client)
    return Server(
        model=model,
        start=copy(model.state_dict()),
        clients=len(clients),
        round=1,
        seed=0,
        training=TrainingSettings(),
        variants={asked.name: asked},
        answers={asked.name: integer_sum(answers)},
    )


def deployed(head: ClosedFormHead, server: Server) -> Deployment:
    return head.deploy(server, {}, server.start, [])


def pooled(head: ClosedFormHead, features_ND: Tensor, labels_N: Tensor) -> Head:
    """Return the head, in float64, that is deployed where one client has all samples."""
    server = server_with(head, features_ND, labels_N, [torch.arange(len(labels_N))])
    wide = {name: tensor.double() for name, tensor in server.start.items()}
    state = deployed(head, replace(server, start=wide)).models[head.name]
    return state["head.weight"], state["head.bias"]


def scores(head: Head, features_ND: Tensor) -> np.ndarray[Any, Any]:
    weight_CD, bias_C = head
    return (features_ND.double() @ weight_CD.T + bias_C).numpy()


# ---- equal to scikit-learn on all samples ----------------------------------------------------------------------------


@pytest.mark.parametrize("rho", ["0.001", "30"])
def test_fed3r_is_ridge_regression_on_all_samples(rho: str) -> None:
    features_ND, labels_N = data_of((40, 30, 20, 10))
    head = pooled(Fed3R(rho=rho, prior="global"), features_ND, labels_N)
    inputs_ND = features_ND.double().numpy()
    centered_ND = inputs_ND - inputs_ND.mean(0)
    strength = float(rho) * (centered_ND**2).sum() / WIDTH  # rho tr(S) / D
    ridge = Ridge(alpha=strength, solver="svd").fit(inputs_ND, np.eye(CLASSES)[labels_N])
    np.testing.assert_allclose(head[0], ridge.coef_, rtol=0, atol=1e-8)
    np.testing.assert_allclose(head[1], ridge.intercept_, rtol=0, atol=1e-8)


def test_fed3r_with_a_uniform_prior_divides_by_the_root_of_the_share() -> None:
    features_ND, labels_N = data_of((40, 30, 20, 10))
    plain = pooled(Fed3R(rho="0.3", prior="global"), features_ND, labels_N)
    uniform = pooled(Fed3R(rho="0.3"), features_ND, labels_N)
    expected = scores(plain, features_ND) / np.sqrt([0.4, 0.3, 0.2, 0.1])
    np.testing.assert_allclose(scores(uniform, features_ND), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("head", "counts", "priors"),
    [
        (FedLDAPooled(rho="0", means="plain", prior="uniform"), (25, 25, 25, 25), None),
        (
            FedLDAPooled(rho="0", means="plain", prior="global"),
            (40, 30, 20, 10),
            [0.4, 0.3, 0.2, 0.1],
        ),
        # scikit-learn weighs the classes' covariances by the priors, as v_c = 1 / N_c does for uniform ones;
        # of these counts v_c = 128, 256, 512, 1024 is exactly in proportion
        (FedLDA(rho="0", means="plain", prior="uniform"), (64, 32, 16, 8), [0.25] * CLASSES),
    ],
)
def test_plain_fed_lda_is_scikit_learn_s_discriminant_analysis(
    head: FedLDA | FedLDAPooled, counts: tuple[int, ...], priors: list[float] | None
) -> None:
    """Of the differences between the classes' scores, which alone count."""
    features_ND, labels_N = data_of(counts)
    inputs_ND = features_ND.double().numpy()
    lda = LinearDiscriminantAnalysis(solver="lsqr", priors=priors).fit(inputs_ND, labels_N.numpy())
    expected = lda.decision_function(inputs_ND)
    ours = scores(pooled(head, features_ND, labels_N), features_ND)
    np.testing.assert_allclose(ours - ours[:, :1], expected - expected[:, :1], rtol=1e-6, atol=1e-6)


def test_fedncm_is_the_nearest_centroid() -> None:
    features_ND, labels_N = data_of((40, 30, 20, 1))
    head = pooled(FedNCM(), features_ND, labels_N)
    centroid = NearestCentroid().fit(features_ND.double().numpy(), labels_N.numpy())
    np.testing.assert_array_equal(head[0], centroid.centroids_)
    others_ND, _ = data_of((50, 50, 50, 50), seed=9)
    predicted = scores(head, others_ND).argmax(1)
    np.testing.assert_array_equal(predicted, centroid.predict(others_ND.double().numpy()))


# ---- the equations, one sample after the other -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", [FedLDA, FedLDAPooled], ids=lambda kind: kind.name)
@pytest.mark.parametrize("prior", ["uniform", "global"])
def test_fed_lda_is_its_docstring_s_equations(kind: type[FedLDA], prior: str) -> None:
    counts = np.array([64, 32, 16, 8])
    features_ND, labels_N = data_of(counts.tolist())
    inputs_ND, labels = features_ND.double().numpy(), labels_N.numpy()
    weights = 8 / counts if kind is FedLDA else np.ones(CLASSES)
    means = np.array([inputs_ND[labels == c].mean(0) for c in range(CLASSES)])
    scatter = np.zeros((WIDTH, WIDTH))
    for row, label in zip(inputs_ND, labels, strict=True):
        scatter += weights[label] * np.outer(row - means[label], row - means[label])
    sigma = scatter / (weights * (counts - 1)).sum()
    inverse = np.linalg.inv(sigma + 0.5 * np.trace(sigma) / WIDTH * np.eye(WIDTH))
    trace = np.trace(inverse @ sigma)
    kappa = 10.0
    for _ in range(20):
        share = counts / (counts + kappa)
        share /= share.sum()
        center = share @ means
        distance = np.array([(mean - center) @ inverse @ (mean - center) for mean in means])
        noise = trace * ((1 - 2 * share) / counts + (share**2 / counts).sum())
        kappa = trace / ((share @ (distance - noise)) / (1 - (share**2).sum()))
    assert kappa > 0
    shrunk = counts / (counts + kappa)
    moved = shrunk[:, None] * (means - center)
    weight = moved @ inverse
    squares = np.array([mean @ inverse @ mean for mean in moved])
    bias = -(squares - shrunk**2 * trace / counts) / 2 - weight @ center
    if prior == "global":
        bias = bias + np.log(counts / counts.sum())
    head = pooled(kind(prior=prior), features_ND, labels_N)
    np.testing.assert_allclose(head[0], weight, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(head[1], bias, rtol=1e-9, atol=1e-9)


def test_cross_validation_chooses_what_leaving_one_out_by_rotation_does() -> None:
    """GCV against its definition: the residuals of the fitted values, and the trace of the matrix that makes them."""
    features_ND, labels_N = data_of((30, 20, 10, 5))
    inputs_ND, targets_NC = features_ND.double().numpy(), np.eye(CLASSES)[labels_N]
    centered_ND = inputs_ND - inputs_ND.mean(0)
    around_NC = targets_NC - targets_NC.mean(0)
    scatter_DD, samples = centered_ND.T @ centered_ND, len(inputs_ND)
    errors = []
    for rho in CANDIDATES:
        strength = rho * np.trace(scatter_DD) / WIDTH
        hat_NN = centered_ND @ np.linalg.solve(scatter_DD + strength * np.eye(WIDTH), centered_ND.T)
        residual = ((around_NC - hat_NN @ around_NC) ** 2).sum()
        errors.append(residual / (1 - (1 + np.trace(hat_NN)) / samples) ** 2)
    expected = CANDIDATES[int(np.argmin(errors))]
    assert CANDIDATES[0] < expected < CANDIDATES[-1]
    chosen = cross_validated_rho(
        torch.from_numpy(scatter_DD),
        torch.from_numpy(centered_ND.T @ around_NC),
        torch.tensor([30.0, 20.0, 10.0, 5.0], dtype=torch.float64),
        samples,
    )
    assert chosen == expected


# ---- promises of every head ------------------------------------------------------------------------------------------


@every_head
def test_any_partition_gives_the_same_bits(kind: type[ClosedFormHead]) -> None:
    features_ND, labels_N = data_of((60, 20, 9, 3))
    by_label = [(labels_N == label).nonzero().flatten() for label in range(CLASSES)]
    everything = torch.arange(len(labels_N))
    shuffled = torch.randperm(len(labels_N), generator=torch.Generator().manual_seed(5))
    codes = set()
    for clients in ([everything], by_label, shuffled.tensor_split(7)):
        server = server_with(kind(), features_ND, labels_N, clients)
        codes.add(digest(list(deployed(kind(), server).models.values())))
    assert len(codes) == 1
    labels_N[0] = 1  # the control: one label is another
    server = server_with(kind(), features_ND, labels_N, [everything])
    assert digest(list(deployed(kind(), server).models.values())) not in codes


@pytest.mark.parametrize("head", [*(kind() for kind in HEADS), FedLDA(prior="global")])
def test_a_class_that_nobody_holds_never_wins(head: ClosedFormHead) -> None:
    features_ND, labels_N = data_of((0, 20, 0, 12))
    server = server_with(head, features_ND, labels_N, torch.arange(32).tensor_split(3))
    state = deployed(head, server).models[head.name]
    far_ND = 1000 * torch.randn(2000, WIDTH, generator=torch.Generator().manual_seed(2))
    logits = torch.cat([features_ND, far_ND]) @ state["head.weight"].T + state["head.bias"]
    assert {*logits.argmax(1).tolist()} == {1, 3}
    assert torch.equal(state["head.weight"][0], state["head.weight"][1])
    assert state["head.bias"][0] == pytest.approx(float(state["head.bias"][1]) - BELOW, abs=1e-3)


@every_head
@pytest.mark.parametrize("counts", [(0, 1, 0, 0), (1, 1, 1, 1), (5, 1, 0, 1)])
def test_few_samples_give_finite_heads(kind: type[ClosedFormHead], counts: tuple[int, ...]) -> None:
    features_ND, labels_N = data_of(counts)
    server = server_with(kind(), features_ND, labels_N, [torch.arange(len(labels_N))])
    for state in deployed(kind(), server).models.values():
        assert all(bool(tensor.isfinite().all()) for tensor in state.values())
        held = features_ND @ state["head.weight"].T + state["head.bias"]
        assert {*held.argmax(1).tolist()} <= {*labels_N.tolist()}


def test_rho_of_0_where_a_feature_is_another_s_copy_is_refused() -> None:
    features_ND, labels_N = data_of((10, 10, 10, 10))
    features_ND[:, 1] = features_ND[:, 0] = 1.0
    server = server_with(Fed3R(rho="0"), features_ND, labels_N, [torch.arange(40)])
    with pytest.raises(SettingError) as refused:
        deployed(Fed3R(rho="0"), server)
    assert refused.value.key == "fed3r.rho"
    assert deployed(Fed3R(rho="0.1"), server).models


@pytest.mark.parametrize(
    ("kind", "field", "good", "bad"),
    [
        (FedLDA, "rho", "0", "-1"),
        (FedLDA, "rho", "auto", "much"),
        (FedLDAPooled, "rho", "1e9", "inf"),
        (FedLDA, "prior", "global", "local"),
        (FedLDA, "means", "plain", "none"),
    ],
)
def test_settings_are_checked(kind: type[ClosedFormHead], field: str, good: str, bad: str) -> None:
    kind(**{field: good})
    with pytest.raises(SettingError) as refused:
        kind(**{field: bad})
    assert refused.value.key == f"{kind.name}.{field}"


def test_a_matrix_without_a_trace_is_regularized_to_the_identity() -> None:
    identity = torch.eye(2, dtype=torch.float64)
    assert torch.equal(regularized(0 * identity, 0.5), identity)
    assert torch.equal(regularized(4 * identity, 0.5), 6 * identity)


def test_weighted_samples_count_as_fewer_in_cross_validation() -> None:
    """As many as give a mean of the same precision: (sum v)^2 / sum v^2."""
    means_CD, counts_C = torch.zeros(2, 1, dtype=torch.float64), torch.tensor([90, 10])
    for weights, effective in (([1, 1], 100), ([7, 7], 100), ([1, 9], 180**2 / (90 + 10 * 81))):
        statistics = Statistics(counts_C, means_CD, torch.tensor(weights))
        assert statistics.effective_samples == pytest.approx(effective)
    assert statistics.mass_C.tolist() == [50.0, 50.0]


def test_cross_validation_without_anything_to_judge_by() -> None:
    """One sample has no degrees of freedom left, whatever rho is; features that never vary have no scatter."""
    scatter_DD = torch.eye(2, dtype=torch.float64)
    product_DC = torch.ones(2, 2, dtype=torch.float64)
    mass_C = torch.ones(2, dtype=torch.float64)
    assert cross_validated_rho(scatter_DD, product_DC, mass_C, 1.0) == CANDIDATES[-1] == 300
    assert cross_validated_rho(0 * scatter_DD, product_DC, mass_C, 9.0) == CANDIDATES[0] == 1e-4
