"""CCVR against the features of all clients together; heads re-trained on virtual and on real features."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from server_builders import CLASSES, WIDTH, draws, model_of, samples_of, server_of, state_of
from torch import Tensor

from client_app.state import State, digest
from client_app.variants.class_statistics import ClassStatistics, class_statistics
from data import SettingError
from strategies.ccvr import CCVR, pooled, virtual_features
from strategies.core.server import Server
from strategies.core.validation import RejectedUpdate, check_upload
from strategies.real_data import RealFeatures

HELD = [(5, 0, 1, 9), (1, 0, 1, 30), (0, 0, 0, 2), (12, 0, 1, 1)]
"""Samples of each class at each client: class 1 nowhere, class 2 always alone."""


def client_data(
    counts_KC: Sequence[Sequence[int]], width: int = WIDTH
) -> list[tuple[Tensor, Tensor]]:
    """Return each client's features, with a center of its own, and labels."""
    data = []
    for number, counts_C in enumerate(counts_KC):
        labels_N = torch.arange(len(counts_C)).repeat_interleave(torch.tensor(counts_C))
        noise_ND = torch.randn(len(labels_N), width, generator=draws(number), dtype=torch.float64)
        data.append((100 + 3 * number + (1 + labels_N[:, None]) * noise_ND, labels_N))
    return data


def answers_of(counts_KC: Sequence[Sequence[int]] = HELD, width: int = WIDTH) -> dict[int, State]:
    return {k: class_statistics(*part) for k, part in enumerate(client_data(counts_KC, width))}


# ---- statistics ------------------------------------------------------------------------------------------------------


def test_a_client_s_statistics() -> None:
    ((features_ND, labels_N),) = client_data([(5, 0, 1, 9)])
    statistics = class_statistics(features_ND, labels_N)
    assert statistics["classes"].tolist() == [0, 2, 3] and statistics["counts"].tolist() == [
        5,
        1,
        9,
    ]
    for row, label in enumerate((0, 2, 3)):
        of_class = features_ND[labels_N == label]
        torch.testing.assert_close(statistics["means"][row], of_class.mean(0), rtol=0, atol=1e-12)
        expected = (
            torch.cov(of_class.T) if len(of_class) > 1 else torch.zeros(WIDTH, WIDTH).double()
        )
        torch.testing.assert_close(statistics["covariances"][row], expected, rtol=0, atol=1e-12)
    assert class_statistics(features_ND, labels_N, 6)["classes"].tolist() == [3]
    assert class_statistics(features_ND, labels_N, 10)["covariances"].shape == (0, WIDTH, WIDTH)


def test_pooled_statistics_are_the_central_ones() -> None:
    data = client_data(HELD)
    counts_C, means_CD, covariances_CDD = pooled(answers_of().values(), CLASSES, WIDTH)
    features_ND, labels_N = (torch.cat(parts) for parts in zip(*data, strict=True))
    assert counts_C.tolist() == [18, 0, 3, 42]
    for label in (0, 2, 3):
        of_class = features_ND[labels_N == label]
        torch.testing.assert_close(means_CD[label], of_class.mean(0), rtol=0, atol=1e-10)
        torch.testing.assert_close(
            covariances_CDD[label], torch.cov(of_class.T), rtol=0, atol=1e-10
        )
    assert not means_CD[1].any() and not covariances_CDD[1].any()


def test_pooled_covariances_are_symmetric_and_positive_semidefinite() -> None:
    covariances_CDD = pooled(answers_of(width=20).values(), CLASSES, 20)[2]
    torch.testing.assert_close(covariances_CDD, covariances_CDD.mT, rtol=0, atol=1e-12)
    assert torch.linalg.eigvalsh(covariances_CDD).min() > -1e-11
    assert (
        torch.linalg.matrix_rank(covariances_CDD[2]) == 2
    )  # three samples in 20 dimensions: singular, and no error


def test_diagonals_are_those_of_the_full_covariances(server: Server) -> None:
    full, data = answers_of(), client_data(HELD)
    diagonal = {k: class_statistics(*part, diagonal=True) for k, part in enumerate(data)}
    check_upload(ClassStatistics(covariance="diagonal").upload, diagonal[0], server)
    with pytest.raises(RejectedUpdate):
        check_upload(ClassStatistics().upload, diagonal[0], server)
    _, means_CD, variances_CD = pooled(diagonal.values(), CLASSES, WIDTH)
    _, expected_CD, covariances_CDD = pooled(full.values(), CLASSES, WIDTH)
    assert torch.equal(means_CD, expected_CD)
    expected = covariances_CDD.diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(variances_CD, expected, rtol=0, atol=1e-10)
    drawn_MD = virtual_features(means_CD[3], variances_CD[3], 200_000, draws(0))
    torch.testing.assert_close(drawn_MD.var(0), variances_CD[3], rtol=0.02, atol=0)


# ---- virtual features ------------------------------------------------------------------------------------------------


def test_virtual_features_have_the_mean_and_the_covariance() -> None:
    _, means_CD, covariances_CDD = pooled(answers_of().values(), CLASSES, WIDTH)
    drawn_MD = virtual_features(means_CD[3], covariances_CDD[3], 200_000, draws(0))
    spread = covariances_CDD[3].diagonal().max().sqrt()
    assert (drawn_MD.mean(0) - means_CD[3]).abs().max() < 0.02 * spread
    torch.testing.assert_close(
        torch.cov(drawn_MD.T), covariances_CDD[3], rtol=0.02, atol=0.02 * float(spread) ** 2
    )


def test_singular_covariances_draw_inside_their_span() -> None:
    direction = torch.arange(1.0, WIDTH + 1, dtype=torch.float64)
    drawn_MD = virtual_features(
        torch.zeros(WIDTH).double(), torch.outer(direction, direction), 50, draws(0)
    )
    torch.testing.assert_close(drawn_MD, drawn_MD[:, :1] * direction, rtol=0, atol=1e-6)
    mean_D = torch.randn(WIDTH, generator=draws(1), dtype=torch.float64)
    for indefinite in (torch.zeros(WIDTH, WIDTH), -1e-9 * torch.eye(WIDTH)):
        assert torch.equal(
            virtual_features(mean_D, indefinite.double(), 3, draws(0)), mean_D.expand(3, -1)
        )


# ---- deployment ------------------------------------------------------------------------------------------------------


@pytest.fixture
def server() -> Server:
    return server_of(samples_of())


def calibrated(server: Server, answers: dict[int, State], **settings: float) -> State:
    return (
        CCVR(**settings)
        .deploy(replace(server, final_answers=answers), {}, state_of(1), [])
        .models["ccvr"]
    )  # type: ignore[arg-type]


def test_only_the_head_changes(server: Server) -> None:
    model, shared = calibrated(server, answers_of()), state_of(1)
    assert model.keys() == shared.keys()
    changed = {name for name in model if not torch.equal(model[name], shared[name])}
    assert changed == {"head.weight", "head.bias"}
    assert digest([calibrated(server, answers_of())]) == digest([model])
    assert digest([calibrated(replace(server, seed=1), answers_of())]) != digest([model])


@pytest.mark.parametrize("settings", [{"features_per_class": 0}, {"head_steps": 0}])
def test_nothing_to_train_on_deploys_the_average(server: Server, settings: dict[str, int]) -> None:
    assert digest([calibrated(server, answers_of(), **settings)]) == digest([state_of(1)])


def test_classes_that_nobody_holds_deploy_the_average(server: Server) -> None:
    empty = class_statistics(torch.zeros(0, WIDTH).double(), torch.zeros(0).long())
    assert digest([calibrated(server, {0: empty})]) == digest([state_of(1)])
    check_upload(ClassStatistics().upload, empty, server)


@pytest.mark.parametrize(
    "change",
    [
        {"counts": torch.tensor([5, 1])},
        {"means": torch.zeros(3, WIDTH)},
        {"classes": torch.tensor([0, 2, CLASSES])},
        {"counts": torch.tensor([5, 0, 9])},
        {"covariances": torch.arange(3.0 * WIDTH**2).reshape(3, WIDTH, WIDTH).double()},
        {"means": torch.full((3, WIDTH), torch.nan).double()},
        {"more": torch.zeros(1)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_wrong_answers_are_refused(server: Server, change: State) -> None:
    (answer,) = answers_of([(5, 0, 1, 9)]).values()
    check_upload(ClassStatistics().upload, answer, server)
    with pytest.raises(RejectedUpdate):
        check_upload(ClassStatistics().upload, {**answer, **change}, server)


@pytest.mark.parametrize(
    ("least", "counts", "samples", "is_right"),
    [
        (1, [1, 4], 5, True),
        (1, [1, 4], None, True),
        (1, [1, 4], 6, False),
        (1, [0, 5], 5, False),
        # Their sum is 5 in 64 bits, and the means of such a client would be everybody's.
        (1, [2**63 - 1, 2**63 - 1, 7], 5, False),
        # Classes of fewer than two samples are held back: fewer samples are counted than there are.
        (2, [2, 4], 8, True),
        (2, [2, 4], 6, True),
        (2, [2, 4], 5, False),
        (2, [1, 4], 8, False),
    ],
)
def test_counts_of_class_statistics_are_those_of_the_samples(
    server: Server, least: int, counts: list[int], samples: int | None, is_right: bool
) -> None:
    held = len(counts)
    answer = {
        "classes": torch.tensor([0, 2, 3][:held]),
        "counts": torch.tensor(counts),
        "means": torch.zeros(held, WIDTH).double(),
        "covariances": torch.zeros(held, WIDTH, WIDTH).double(),
    }
    upload = ClassStatistics(min_class_samples=least).upload
    if is_right:
        assert check_upload(upload, answer, server, samples) == sum(counts)
        return
    with pytest.raises(RejectedUpdate):
        check_upload(upload, answer, server, samples)


# ---- heads -----------------------------------------------------------------------------------------------------------


def test_real_features_train_the_average_s_head_on_the_holdout(server: Server) -> None:
    shared, samples, model = state_of(1), samples_of(), model_of(1).eval()
    method = RealFeatures(head_steps=3, head_learning_rate=0.2)
    deployed = method.deploy(server, {}, shared, []).models["real-features"]
    optimizer = torch.optim.SGD(model.head.parameters(), 0.2)
    features_ND = model.features(samples.inputs_N).detach()
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(model.head(features_ND), samples.labels_N).backward()
        optimizer.step()
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(deployed[name], tensor)
    assert not torch.equal(deployed["head.bias"], shared["head.bias"])
    with pytest.raises(SettingError) as refused:
        method.deploy(server_of(), {}, shared, [])
    assert refused.value.key == "holdout-per-class"
