"""Loss terms, logit factors and moving penalties of FedNTD, FedDecorr, FedRS, MOON and FedDyn.

Each is compared with its published equation, written out here, in value and in slope.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from client_builders import FLOAT, counting_client, same, small_client
from torch import Tensor

from client_app.client import Client, Variant
from client_app.optimizer import TrainingSettings
from client_app.training import task_of, train_round
from client_app.variants.decorrelation import Decorrelation
from client_app.variants.dynamic_regularization import DynamicRegularization
from client_app.variants.model_contrast import ModelContrast
from client_app.variants.not_true_distillation import NotTrueDistillation
from client_app.variants.restricted_softmax import RestrictedSoftmax

COUNTS = (4, 0, 2, 3, 0)
CLASSES = len(COUNTS)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=FLOAT)


LOGITS_BC, TEACHER_BC, FEATURES_BD = (
    drawn(9, CLASSES, seed=1),
    drawn(9, CLASSES, seed=2),
    drawn(9, 4),
)


def value_and_slopes(
    function: Callable[[Tensor, Tensor], Tensor], logits_BC: Tensor, features_BD: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return a function's value, and its slopes along logits and features, which are 0 where it does not use them."""
    inputs = [logits_BC.clone().requires_grad_(), features_BD.clone().requires_grad_()]
    value = function(*inputs)
    slopes = torch.autograd.grad(value + 0 * sum(one.sum() for one in inputs), inputs)
    return value.detach(), *slopes


def term_of(
    variant: Variant,
    client: Client,
    logits_BC: Tensor = LOGITS_BC,
    features_BD: Tensor = FEATURES_BD,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return a variant's mean term over a batch of all samples, and its slopes."""
    indices_B = torch.arange(len(logits_BC))

    def mean(logits_BC: Tensor, features_BD: Tensor) -> Tensor:
        term_B = variant.loss_term(client, indices_B, features_BD, logits_BC, TEACHER_BC)
        assert term_B.shape == (len(logits_BC),)
        return term_B.mean()

    return value_and_slopes(mean, logits_BC, features_BD)


def assert_is(actual: tuple[Tensor, ...], equation: Callable[[Tensor, Tensor], Tensor]) -> None:
    expected = value_and_slopes(equation, LOGITS_BC, FEATURES_BD)
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-9)


def divergence(teacher_C: Tensor, logits_C: Tensor, classes: list[int]) -> Tensor:
    """Return sum_c q_g(c) ln(q_g(c) / q(c)) of softmaxes over some classes."""
    q, q_g = logits_C[classes].softmax(0), teacher_C[classes].softmax(0)
    return (q_g * (q_g / q).log()).sum()


@pytest.mark.parametrize(("beta", "tau"), [(1.0, 1.0), (0.3, 2.5)])
def test_fedntd_is_its_equation(beta: float, tau: float) -> None:
    """The divergence from the received model over the classes that are not true (Lee et al. 2022)."""
    client = counting_client(COUNTS)

    def equation(logits_BC: Tensor, features_BD: Tensor) -> Tensor:
        total = torch.zeros((), dtype=FLOAT)
        for row, received, label in zip(
            logits_BC, TEACHER_BC, client.labels_N.tolist(), strict=True
        ):
            others = [c for c in range(CLASSES) if c != label]
            total = total + divergence(received / tau, row / tau, others)
        return beta * total / 9

    assert_is(term_of(NotTrueDistillation(beta, tau), client), equation)


def test_feddecorr_is_its_equation() -> None:
    def equation(logits_BC: Tensor, features_BD: Tensor) -> Tensor:
        table_DD = torch.corrcoef(features_BD.T)
        between = table_DD[~torch.eye(4, dtype=torch.bool)]
        return 0.3 * (8 * between).square().mean() / 9

    assert_is(term_of(Decorrelation(0.3), counting_client(COUNTS)), equation)


def test_feddecorr_of_independent_constant_and_single_features() -> None:
    apart = torch.tensor([[1.0, 1], [1, -1], [-1, 1], [-1, -1]], dtype=FLOAT)

    def value(features_BD: Tensor) -> float:
        logits_BC = LOGITS_BC[: len(features_BD)]
        return term_of(Decorrelation(1.0), counting_client((2, 2)), logits_BC, features_BD)[
            0
        ].item()

    assert value(apart) == pytest.approx(0, abs=1e-15)
    assert value(torch.ones(4, 2, dtype=FLOAT)) == value(apart[:1]) == value(apart[:, :1]) == 0


def test_fedrs_is_its_equation_and_slows_the_rows_of_missing_classes() -> None:
    """-ln( e^(a_y f_y) / sum_c e^(a_c f_c) ) with a_c = alpha for missing classes."""
    client = counting_client(COUNTS)
    made = task_of(client, [RestrictedSoftmax(alpha=0.3)], TrainingSettings())
    scaled_BC = LOGITS_BC * torch.tensor([1.0, 0.3, 1.0, 1.0, 0.3])
    expected_B = scaled_BC.exp().sum(1).log() - scaled_BC[torch.arange(9), client.labels_N]
    actual_B = made.losses(LOGITS_BC, client.labels_N)
    torch.testing.assert_close(actual_B, expected_B, rtol=1e-6, atol=0)


def test_moon_is_its_equation() -> None:
    near_ND, far_ND = drawn(9, 4, seed=1), drawn(9, 4, seed=2)
    prepared = {"model-contrast": {"received": near_ND, "last": far_ND}}

    def equation(logits_BC: Tensor, features_BD: Tensor) -> Tensor:
        def exponential(other_BD: Tensor) -> Tensor:
            products_B = (features_BD * other_BD).sum(1)
            return (products_B / features_BD.norm(dim=1) / other_BD.norm(dim=1) / 0.4).exp()

        near_B, far_B = exponential(near_ND), exponential(far_ND)
        return -2.0 * (near_B / (near_B + far_B)).log().mean()

    assert_is(
        term_of(ModelContrast(2.0, 0.4), counting_client(COUNTS, prepared=prepared)), equation
    )


def test_moon_prepares_features_of_both_models_and_keeps_its_own() -> None:
    settings = TrainingSettings(local_epochs=1, batch_size=4, learning_rate=0.1)
    first = small_client()
    report = train_round(first, [ModelContrast()], settings)
    assert same(report.shared, train_round(small_client(), [], settings).shared)  # no last model
    state = report.trained.state
    features = {name: state[name] for name in state if name.startswith("features.")}
    assert same(report.memory["model-contrast"], features)
    second = small_client(memory=report.memory)
    prepared = ModelContrast().before(second, lambda indices_B: torch.zeros(()))
    expected = {"received": small_client().features(), "last": first.features()}  # first is trained
    assert same(prepared.prepared, expected)


def test_feddyn_steps_along_its_penalty_and_moves_it() -> None:
    """Rounds of two full-batch steps of a model of biases, from autograd of L - <h, w> + alpha/2 ‖w - w^t‖^2."""
    alpha, rate, name = 0.7, 0.3, "head.bias"
    settings = TrainingSettings(local_steps=2, batch_size=9, momentum=0.0, learning_rate=rate)
    h, start = torch.zeros(CLASSES, dtype=FLOAT), drawn(CLASSES)
    memory: dict[str, Any] = {}
    for _ in range(3):
        client = counting_client(COUNTS, memory=memory)
        client.start[name].copy_(start)
        client.model.load_state_dict(client.start)
        report = train_round(client, [DynamicRegularization(alpha)], settings)
        w = start
        for _ in range(2):
            w = w.detach().requires_grad_()
            loss = F.cross_entropy(w.expand(9, CLASSES), client.labels_N) - h @ w
            (slope,) = torch.autograd.grad(loss + alpha / 2 * (w - start).square().sum(), w)
            w = (w - rate * slope).detach()
        h = h - alpha * (w - start)
        memory, start = dict(report.memory), w
        torch.testing.assert_close(report.shared[name], w, atol=1e-10, rtol=0)
        kept = memory["dynamic-regularization"]
        torch.testing.assert_close(kept[name], h, atol=1e-10, rtol=0)
