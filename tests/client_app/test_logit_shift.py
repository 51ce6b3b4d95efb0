"""FedShift's equations: the shift, the loss it makes, and where that loss is least; reweighting and FedProx beside."""

import math

import pytest
import torch
import torch.nn.functional as F
from client_builders import (
    FLOAT,
    broadcast_of,
    counting_client,
)
from torch import Tensor

from client_app.client import Client, Variant
from client_app.optimizer import TrainingSettings
from client_app.training import train_round
from client_app.variants.class_prior import Reweighting
from client_app.variants.logit_shift import LogitShift

COUNTS_KC = [(40, 3, 0, 7), (1, 1, 60, 2), (0, 0, 5, 0), (10, 20, 30, 40), (9, 9, 9, 9)]
FULL_KC = [(40, 3, 5, 7), (1, 1, 60, 2), (2, 3, 5, 100), (10, 20, 30, 40)]
UNIT = 2**16
BIAS_C = torch.tensor([0.3, -1.2, 0.7, 0.1], dtype=FLOAT)


def federation(counts_KC: list[tuple[int, ...]], variant: Variant) -> list[Client]:
    clients = [counting_client(counts_C) for counts_C in counts_KC]
    broadcast = broadcast_of([variant], clients)
    return [counting_client(counts_C, broadcast=broadcast) for counts_C in counts_KC]


def shifts_of(counts_KC: list[tuple[int, ...]], variant: Variant) -> Tensor:
    offsets = [variant.logit_offset(client) for client in federation(counts_KC, variant)]
    return torch.stack([offset for offset in offsets if offset is not None])


def priors(counts_KC: list[tuple[int, ...]], smoothing: float) -> tuple[Tensor, Tensor]:
    """Return P_i (K, C) and P (C,)."""
    smoothed_KC = torch.tensor(counts_KC, dtype=FLOAT) + smoothing
    return smoothed_KC / smoothed_KC.sum(1, keepdim=True), smoothed_KC.sum(0) / smoothed_KC.sum()


def close(actual: object, expected: object, atol: float = 1e-10) -> bool:
    return torch.allclose(
        torch.as_tensor(actual, dtype=FLOAT), torch.as_tensor(expected, dtype=FLOAT), 0, atol
    )


@pytest.mark.parametrize("smoothing", [1.0, 2.0**-16])
def test_the_shift_is_the_log_ratio_of_priors_with_its_sums_and_means(smoothing: float) -> None:
    """From this equation follow the sums to 1, KL(P_i, P) as its mean, and their mean as the information."""
    variant = LogitShift(smoothing)
    local_KC, global_C = priors(COUNTS_KC, smoothing)
    shifts_KC = shifts_of(COUNTS_KC, variant)
    assert close(shifts_KC, (local_KC / global_C).log())
    for client, prior_C in zip(federation(COUNTS_KC, variant), local_KC, strict=True):
        assert close(variant.local_prior(client), prior_C, 1e-12)
        assert close(variant.global_prior(client), global_C, 1e-12) and (prior_C > 0).all()

    client = federation(COUNTS_KC, variant)[0]
    twice = {"logit-shift": {"counts": client.broadcast["logit-shift"]["counts"] * 2}}
    shift_C = variant.logit_offset(counting_client(COUNTS_KC[0], broadcast=twice))
    assert close(shift_C, shifts_KC[0]), "P counts only up to a factor"
    assert not shifts_of([(6, 3, 1)] * 2, variant).any(), "equal priors, no shift"
    swapped_KC = shifts_of([(9, 1), (1, 9)], variant)
    assert close(swapped_KC[0], swapped_KC[1].flip(0)), "swapped priors, opposite shifts"
    assert shifts_of(COUNTS_KC, LogitShift(2.0**30)).abs().max() < 1e-6, "much smoothing, no shift"


def test_the_other_targets_are_equal_classes_and_a_mixture_of_priors() -> None:
    local_KC, global_C = priors(COUNTS_KC, 1.0)
    uniform_KC = shifts_of(COUNTS_KC, LogitShift(scale=1.5, target="uniform"))
    assert close(uniform_KC, 1.5 * (4 * local_KC).log())
    mixed_KC = shifts_of(COUNTS_KC, LogitShift(scale=1.5, target="mixed"))
    assert close(mixed_KC, 1.5 * (0.9 * global_C + 0.1 * local_KC).log())


@pytest.mark.parametrize(
    ("variant", "question"),
    [
        (LogitShift(), "class-counts"),
        (LogitShift(target="mixed"), "class-counts"),
        (LogitShift(scale=0.0), ""),
        (LogitShift(target="uniform"), ""),
        (Reweighting(), "class-counts"),
    ],
)
def test_a_question_is_asked_only_when_its_answer_is_used(variant: Variant, question: str) -> None:
    assert variant.upload.question == question
    assert variant.upload.is_answer is bool(question)


def one_step_on_biases(client: Client, variants: list[Variant]) -> tuple[Tensor, float]:
    """Return the gradient that a full-batch step takes to BIAS_C (inputs are 0), and the loss."""
    with torch.no_grad():
        client.model.head.bias.copy_(BIAS_C)
    size = max(2, len(client.samples))
    settings = TrainingSettings(local_steps=1, batch_size=size, learning_rate=1.0)
    report = train_round(client, variants, settings)
    return BIAS_C - report.shared["head.bias"], report.loss


@pytest.mark.parametrize("k", [0, 2, 3])
def test_the_loop_takes_the_gradient_of_the_shifted_loss(k: int) -> None:
    """The loss is -ln[(P_i(y)/P(y)) e^f_y / sum_j (P_i(j)/P(j)) e^f_j], its gradient softmax(f + s) - e_y."""
    client = federation(COUNTS_KC, LogitShift())[k]
    gradient_C, loss = one_step_on_biases(client, [LogitShift()])
    local_KC, global_C = priors(COUNTS_KC, 1.0)
    ratios_C = local_KC[k] / global_C * BIAS_C.exp()
    frequencies_C = torch.tensor(COUNTS_KC[k]).double() / sum(COUNTS_KC[k])
    assert close(loss, -(frequencies_C * (ratios_C / ratios_C.sum()).log()).sum())
    assert close(gradient_C, ratios_C / ratios_C.sum() - frequencies_C)


@pytest.mark.parametrize("counts_KC", [[(5, 0, 3, 2), (1, 4, 4, 1)], [(5, 0, 3, 0), (1, 0, 4, 1)]])
def test_without_smoothing_a_missing_class_gets_no_gradient(
    counts_KC: list[tuple[int, ...]],
) -> None:
    variant = LogitShift(smoothing=0.0)
    shift_C = shifts_of(counts_KC, variant)[0]
    assert (shift_C == -math.inf).tolist() == [count == 0 for count in counts_KC[0]]
    gradient_C, loss = one_step_on_biases(federation(counts_KC, variant)[0], [variant])
    assert gradient_C[1] == 0 != gradient_C[0] and math.isfinite(loss)


@pytest.mark.parametrize("smoothing", [1.0, 0.0])
def test_importance_weights_are_the_ratio_of_priors_and_are_not_divided_by_their_sum(
    smoothing: float,
) -> None:
    variant = Reweighting(smoothing)
    local_KC, global_C = priors(FULL_KC, smoothing)
    for client, local_C in zip(federation(FULL_KC, variant), local_KC, strict=True):
        weights_C = variant.loss_weights(client, torch.zeros(4, 4, dtype=FLOAT), torch.arange(4))
        assert close(weights_C, global_C / local_C, 1e-12)
        gradient_C, loss = one_step_on_biases(client, [variant])
        labels_N = client.labels_N
        losses_N = F.cross_entropy(BIAS_C.expand(len(labels_N), 4), labels_N, reduction="none")
        assert close(loss, (weights_C[labels_N] * losses_N).mean())
        errors_NC = BIAS_C.softmax(0) - F.one_hot(labels_N, 4)
        assert close(gradient_C, (weights_C[labels_N, None] * errors_NC).mean(0))
