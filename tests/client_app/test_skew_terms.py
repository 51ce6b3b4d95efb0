"""Loss terms, logit factors and moving penalties of FedNTD, FedDecorr, FedVLS, FedRS, MOON, FedDyn and FedYoYo.

Each is compared with its published equation, written out here sample by sample, in value and in slope.
"""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from client_builders import FLOAT, client_of, counting_client, linear_model, same, small_client
from torch import Tensor

from client_app.client import Client, InvalidReply, Variant
from client_app.optimizer import TrainingSettings
from client_app.state import copy
from client_app.training import task_of, train_round
from client_app.variants.decorrelation import Decorrelation
from client_app.variants.dynamic_regularization import DynamicRegularization
from client_app.variants.label_discrepancy import UNIT, LabelDiscrepancy
from client_app.variants.logit_shift import LogitShift
from client_app.variants.model_contrast import ModelContrast
from client_app.variants.not_true_distillation import NotTrueDistillation
from client_app.variants.restricted_softmax import RestrictedSoftmax
from client_app.variants.vacant_classes import VacantClasses
from data import SettingError

COUNTS = (4, 0, 2, 3, 0)
CLASSES = len(COUNTS)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=FLOAT)


def value_and_slope(
    variant: Variant, logits_BC: Tensor, features_BD: Tensor, teacher_BC: Tensor, client: Client
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mean term over a batch of all samples, and its slopes along logits and features."""
    logits_BC = logits_BC.clone().requires_grad_()
    features_BD = features_BD.clone().requires_grad_()
    indices_B = torch.arange(len(logits_BC))
    term_B = variant.loss_term(client, indices_B, features_BD, logits_BC, teacher_BC)
    assert term_B.shape == (len(logits_BC),)
    value = term_B.mean()
    slopes = torch.autograd.grad(
        value + 0 * logits_BC.sum() + 0 * features_BD.sum(), [logits_BC, features_BD]
    )
    return value.detach(), slopes[0], slopes[1]


def slope_of(function: Any, at: Tensor) -> Tensor:
    """Return the slope of a function of a tensor by central differences."""
    slope = torch.zeros_like(at)
    for place in range(at.numel()):
        step = torch.zeros_like(at).flatten()
        step[place] = 1e-6
        step = step.view_as(at)
        slope.view(-1)[place] = (function(at + step) - function(at - step)) / 2e-6
    return slope


def softmax_of(numbers: list[float]) -> list[float]:
    total = sum(math.exp(number) for number in numbers)
    return [math.exp(number) / total for number in numbers]


# ---- FedNTD ----------------------------------------------------------------------------------------------------------


def not_true(logits_BC: Tensor, teacher_BC: Tensor, labels: list[int], tau: float) -> float:
    """Return the mean of sum_{c != y} q_g(c) ln(q_g(c) / q(c)) over the samples."""
    total = 0.0
    for row, received, label in zip(logits_BC.tolist(), teacher_BC.tolist(), labels, strict=True):
        others = [c for c in range(len(row)) if c != label]
        q = softmax_of([row[c] / tau for c in others])
        q_g = softmax_of([received[c] / tau for c in others])
        total += sum(g * math.log(g / p) for g, p in zip(q_g, q, strict=True))
    return total / len(labels)


@pytest.mark.parametrize(("beta", "tau"), [(1.0, 1.0), (0.3, 2.5)])
def test_fedntd_is_its_equation(beta: float, tau: float) -> None:
    client = counting_client(COUNTS)
    labels = client.labels_N.tolist()
    logits_BC, teacher_BC = drawn(9, CLASSES, seed=1), drawn(9, CLASSES, seed=2)
    value, slope_BC, _ = value_and_slope(
        NotTrueDistillation(beta, tau), logits_BC, drawn(9, 3), teacher_BC, client
    )
    assert value.item() == pytest.approx(
        beta * not_true(logits_BC, teacher_BC, labels, tau), rel=1e-12
    )
    expected = slope_of(lambda at: beta * not_true(at, teacher_BC, labels, tau), logits_BC)
    torch.testing.assert_close(slope_BC, expected, atol=1e-8, rtol=0)
    assert (slope_BC[torch.arange(9), client.labels_N] == 0).all()  # the true class is left alone


def test_fedntd_of_the_received_model_and_of_two_classes_is_nothing() -> None:
    client, logits_BC = counting_client(COUNTS), drawn(9, CLASSES)
    value, slope_BC, _ = value_and_slope(
        NotTrueDistillation(), logits_BC, drawn(9, 3), logits_BC + 7, client
    )
    assert value.abs() < 1e-12 and slope_BC.abs().max() < 1e-12
    two = counting_client((2, 3))
    value, slope_BC, _ = value_and_slope(
        NotTrueDistillation(), drawn(5, 2), drawn(5, 3), drawn(5, 2, seed=3), two
    )
    assert value == 0 and not slope_BC.any()


# ---- FedDecorr -------------------------------------------------------------------------------------------------------


def correlations(features_BD: Tensor) -> list[list[float]]:
    """Return the correlations between the columns, from sums over the rows."""
    rows = features_BD.tolist()
    count, width = len(rows), len(rows[0])
    means = [sum(row[j] for row in rows) / count for j in range(width)]

    def covariance(i: int, j: int) -> float:
        return sum((row[i] - means[i]) * (row[j] - means[j]) for row in rows)

    return [
        [covariance(i, j) / math.sqrt(covariance(i, i) * covariance(j, j)) for j in range(width)]
        for i in range(width)
    ]


def decorrelated(features_BD: Tensor, form: str) -> float:
    count, width = features_BD.shape
    table = correlations(features_BD)
    if form == "paper":
        return sum(entry**2 for row in table for entry in row) / width**2
    between = [table[i][j] for i in range(width) for j in range(width) if i != j]
    return sum(((count - 1) * entry) ** 2 for entry in between) / len(between) / count


@pytest.mark.parametrize("form", ["code", "paper"])
def test_feddecorr_is_its_equation(form: str) -> None:
    client, features_BD = counting_client(COUNTS), drawn(9, 4, seed=5)
    value, slope_BC, slope_BD = value_and_slope(
        Decorrelation(0.3, form), drawn(9, CLASSES), features_BD, drawn(9, CLASSES), client
    )
    assert value.item() == pytest.approx(0.3 * decorrelated(features_BD, form), rel=1e-6)
    expected = slope_of(lambda at: 0.3 * decorrelated(at, form), features_BD)
    torch.testing.assert_close(slope_BD, expected, atol=1e-6, rtol=1e-5)
    assert not slope_BC.any()


def test_feddecorr_of_independent_constant_and_single_features() -> None:
    client = counting_client((2, 2))
    apart = torch.tensor([[1.0, 1], [1, -1], [-1, 1], [-1, -1]], dtype=FLOAT)
    logits_BC = drawn(4, 2)

    def value(features_BD: Tensor, form: str = "code") -> float:
        batch_BC = logits_BC[: len(features_BD)]
        return value_and_slope(Decorrelation(1.0, form), batch_BC, features_BD, batch_BC, client)[
            0
        ].item()

    assert value(apart) == pytest.approx(0, abs=1e-15)
    assert value(apart, "paper") == pytest.approx(2 / 4, rel=1e-6)  # the diagonal alone
    assert value(torch.ones(4, 2, dtype=FLOAT)) == 0
    assert value(apart[:1]) == 0 and value(apart[:, :1]) == 0
    assert value(apart[:, [0, 0]]) == pytest.approx(9 / 4, rel=1e-6)  # ((B - 1) 1)^2 / B


# ---- FedVLS ----------------------------------------------------------------------------------------------------------


def vacant_distillation(logits_BC: Tensor, teacher_BC: Tensor, vacant: list[int]) -> float:
    total = 0.0
    for row, received in zip(logits_BC.tolist(), teacher_BC.tolist(), strict=True):
        q, q_g = (softmax_of([numbers[c] for c in vacant]) for numbers in (row, received))
        total += sum(g * math.log(g / p) for g, p in zip(q_g, q, strict=True))
    return total / len(logits_BC)


def suppression(logits_BC: Tensor, labels: list[int], prior: list[float]) -> float:
    total = 0.0
    for c, share in enumerate(prior):
        exponents = []
        for row, label in zip(logits_BC.tolist(), labels, strict=True):
            balanced = row[c] - math.log(share + 1e-9) + math.log(1 / len(prior) + 1e-9)
            exponents.append(balanced if label != c else 0.0)
        mean = sum(math.exp(exponent) for exponent in exponents) / len(labels)
        total += share * math.log(mean)
    return total


def test_fedvls_is_its_authors_code() -> None:
    client = counting_client(COUNTS)
    labels, prior = client.labels_N.tolist(), [4 / 9, 0, 2 / 9, 3 / 9, 0]
    logits_BC, teacher_BC = drawn(9, CLASSES, seed=1), drawn(9, CLASSES, seed=2)

    def term(at: Tensor) -> float:
        distilled = vacant_distillation(at, teacher_BC, [1, 4])
        return 0.7 * distilled + 0.05 * suppression(at, labels, prior)

    variant = VacantClasses(distillation=0.7, suppression=0.05)
    value, slope_BC, _ = value_and_slope(variant, logits_BC, drawn(9, 3), teacher_BC, client)
    assert value.item() == pytest.approx(term(logits_BC), rel=1e-10)
    torch.testing.assert_close(slope_BC, slope_of(term, logits_BC), atol=1e-8, rtol=0)
    offset_C = VacantClasses(calibration=0.5).logit_offset(client)
    assert offset_C is not None
    expected = [0.5 * math.log(share + 1e-9) for share in prior]
    assert offset_C.tolist() == pytest.approx(expected, rel=1e-12)


def test_fedvls_of_a_client_with_all_classes_distills_nothing() -> None:
    client, logits_BC = counting_client((2, 3, 1)), drawn(6, 3)
    variant = VacantClasses(suppression=0.0)
    value, slope_BC, _ = value_and_slope(
        variant, logits_BC, drawn(6, 2), drawn(6, 3, seed=4), client
    )
    assert value == 0 and not slope_BC.any()


# ---- FedRS -----------------------------------------------------------------------------------------------------------


def test_fedrs_is_its_equation() -> None:
    """-ln( e^(a_y f_y) / sum_c e^(a_c f_c) ) with a_c = alpha for missing classes."""
    client = counting_client(COUNTS)
    made = task_of(client, [RestrictedSoftmax(alpha=0.3)], TrainingSettings())
    logits_BC = drawn(9, CLASSES, seed=1)
    factors = [1.0, 0.3, 1.0, 1.0, 0.3]
    losses_B = made.losses(logits_BC, client.labels_N)
    for row, label, loss in zip(
        logits_BC.tolist(), client.labels_N.tolist(), losses_B.tolist(), strict=True
    ):
        scaled = [factor * number for factor, number in zip(factors, row, strict=True)]
        assert loss == pytest.approx(-math.log(softmax_of(scaled)[label]), rel=1e-6)


def test_fedrs_moves_the_rows_of_missing_classes_alpha_times_as_far() -> None:
    """At a model of zeros all classes are equally likely whatever alpha is."""
    inputs_N = drawn(5, 3)
    client = client_of(linear_model(3, 4), inputs_N, torch.tensor([0, 0, 2, 2, 2]), 4)
    settings = TrainingSettings(local_steps=1, batch_size=5, momentum=0.0)

    def head(variants: list[Variant]) -> Tensor:
        client.model.load_state_dict({**client.start})
        return train_round(client, variants, settings).shared["head.weight"]

    plain, restricted = head([]), head([RestrictedSoftmax(alpha=0.25)])
    torch.testing.assert_close(restricted[[1, 3]], 0.25 * plain[[1, 3]])
    torch.testing.assert_close(restricted[[0, 2]], plain[[0, 2]])


# ---- MOON ------------------------------------------------------------------------------------------------------------


def cosine(left: list[float], right: list[float]) -> float:
    product = sum(a * b for a, b in zip(left, right, strict=True))
    return product / math.sqrt(sum(a * a for a in left)) / math.sqrt(sum(b * b for b in right))


def contrast(features_BD: Tensor, near_BD: Tensor, far_BD: Tensor, tau: float) -> float:
    total = 0.0
    for z, z_g, z_p in zip(features_BD.tolist(), near_BD.tolist(), far_BD.tolist(), strict=True):
        near, far = math.exp(cosine(z, z_g) / tau), math.exp(cosine(z, z_p) / tau)
        total -= math.log(near / (near + far))
    return total / len(features_BD)


def test_moon_is_its_equation() -> None:
    near_ND, far_ND, features_BD = drawn(9, 3, seed=1), drawn(9, 3, seed=2), drawn(9, 3, seed=3)
    client = counting_client(
        COUNTS, prepared={"model-contrast": {"received": near_ND, "last": far_ND}}
    )
    value, slope_BC, slope_BD = value_and_slope(
        ModelContrast(2.0, 0.4), drawn(9, CLASSES), features_BD, drawn(9, CLASSES), client
    )
    assert value.item() == pytest.approx(2.0 * contrast(features_BD, near_ND, far_ND, 0.4))
    expected = slope_of(lambda at: 2.0 * contrast(at, near_ND, far_ND, 0.4), features_BD)
    torch.testing.assert_close(slope_BD, expected, atol=1e-7, rtol=0)
    assert not slope_BC.any()


def test_moon_prepares_features_of_both_models_and_keeps_its_own() -> None:
    settings = TrainingSettings(local_epochs=1, batch_size=4, learning_rate=0.1)
    first = small_client()
    report = train_round(first, [ModelContrast()], settings)
    assert same(report.shared, train_round(small_client(), [], settings).shared)  # no last model
    kept = report.memory["model-contrast"]
    features = [name for name in report.trained.state if name.startswith("features.")]
    assert same(kept, {name: report.trained.state[name] for name in features})
    second = small_client(memory=report.memory)
    prepared = ModelContrast().before(second, lambda indices_B, weights_B=None: torch.zeros(()))
    assert torch.equal(prepared.prepared["received"], small_client().features())
    assert torch.equal(prepared.prepared["last"], first.features())  # first's model is trained
    assert not torch.equal(prepared.prepared["received"], prepared.prepared["last"])
    assert ModelContrast().kept_bytes(first.model) == sum(
        t.numel() * t.element_size() for t in kept.values()
    )


# ---- FedDyn ----------------------------------------------------------------------------------------------------------


def test_feddyn_steps_along_its_penalty_and_moves_it() -> None:
    """Two rounds of one full-batch step each, from autograd of L - <h, w> + alpha/2 ‖w - w^t‖^2."""
    alpha, rate, inputs_N = 0.7, 0.3, drawn(5, 3)
    labels_N = torch.tensor([0, 0, 1, 2, 2])
    settings = TrainingSettings(local_steps=2, batch_size=5, momentum=0.0, learning_rate=rate)
    h = {"head.weight": torch.zeros(3, 3, dtype=FLOAT), "head.bias": torch.zeros(3, dtype=FLOAT)}
    memory: dict[str, Any] = {}
    start = copy(linear_model(3, 3).state_dict())
    for _ in range(3):
        client = client_of(linear_model(3, 3), inputs_N, labels_N, 3, start=start, memory=memory)
        client.model.load_state_dict(start)
        report = train_round(client, [DynamicRegularization(alpha)], settings)
        here = {name: tensor.clone().requires_grad_() for name, tensor in start.items()}
        for _ in range(2):
            logits_BC = inputs_N @ here["head.weight"].T + here["head.bias"]
            loss = F.cross_entropy(logits_BC, labels_N)
            for name, weight in here.items():
                away = weight - start[name]
                loss = loss - (h[name] * weight).sum() + alpha / 2 * (away * away).sum()
            slopes = torch.autograd.grad(loss, list(here.values()))
            here = {
                name: (weight - rate * slope).detach().requires_grad_()
                for (name, weight), slope in zip(here.items(), slopes, strict=True)
            }
        for name, weight in here.items():
            torch.testing.assert_close(report.shared[name], weight.detach(), atol=1e-10, rtol=0)
            h[name] = h[name] - alpha * (weight.detach() - start[name])
            torch.testing.assert_close(
                report.memory["dynamic-regularization"][name], h[name], atol=1e-10, rtol=0
            )
        memory, start = dict(report.memory), {n: t + 0.01 for n, t in report.shared.items()}
    assert h["head.bias"].abs().max() > 0.01


# ---- FedDisco and FedYoYo --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("measure", ["kl", "l2"])
def test_feddisco_s_discrepancy(measure: str) -> None:
    shares = [4 / 9, 0, 2 / 9, 3 / 9, 0]
    expected = sum(share * math.log(share / 0.2) for share in shares if share)
    if measure == "l2":
        expected = math.sqrt(sum((share - 0.2) ** 2 for share in shares))
    variant = LabelDiscrepancy(measure)
    answer = variant.answer(counting_client(COUNTS), "label-discrepancy")
    assert answer["discrepancy"].dtype == torch.int64
    assert int(answer["discrepancy"]) / UNIT == pytest.approx(expected, abs=1e-9)
    equal = variant.answer(counting_client((3, 3, 3)), "label-discrepancy")
    assert int(equal["discrepancy"]) == 0
    one = variant.answer(counting_client((0, 7, 0)), "label-discrepancy")
    assert variant.upload.validate(one, 3, 7) == 0
    for number in (-1, int(one["discrepancy"]) + 2):
        with pytest.raises(InvalidReply, match="discrepancy is"):
            variant.upload.validate({"discrepancy": torch.tensor([number])}, 3, 7)
    assert variant.answer(counting_client(COUNTS), "class-counts") == {}


def test_fedyoyo_s_offset_is_its_equation() -> None:
    counts, total = (4, 0, 2), torch.tensor([10, 5, 3]) * 2**16
    client = counting_client(counts, broadcast={"logit-shift": {"counts": total}})
    variant = LogitShift(smoothing=0.5, scale=1.5, target="mixed", local_share=0.2)
    offset_C = variant.logit_offset(client)
    assert offset_C is not None
    own = [4.5 / 7.5, 0.5 / 7.5, 2.5 / 7.5]
    everybody = [10 / 18, 5 / 18, 3 / 18]
    expected = [1.5 * math.log(0.8 * p + 0.2 * p_i) for p, p_i in zip(everybody, own, strict=True)]
    assert offset_C.tolist() == pytest.approx(expected, rel=1e-12)


def test_fedyoyo_s_ends_are_the_balanced_softmax_and_the_global_prior() -> None:
    total = torch.tensor([10, 5, 3]) * 2**16
    client = counting_client((4, 1, 2), broadcast={"logit-shift": {"counts": total}})
    uniform_C = LogitShift(target="uniform").logit_offset(client)
    own_C = LogitShift(target="mixed", local_share=1.0).logit_offset(client)
    assert uniform_C is not None and own_C is not None
    apart_C = own_C - uniform_C
    torch.testing.assert_close(apart_C, apart_C[0].expand(3))
    global_C = LogitShift(target="mixed", local_share=0.0).logit_offset(client)
    assert global_C is not None
    assert global_C.tolist() == pytest.approx([math.log(n / 18) for n in (10, 5, 3)])
    assert LogitShift(target="mixed").upload.question == "class-counts"
    with pytest.raises(
        SettingError, match=r"logit-shift\.local-share = 0.3: is for target = mixed"
    ):
        LogitShift(local_share=0.3)
