"""FedShift's equations: the shift, the loss it makes, and where that loss is least."""

import math

import numpy as np
import pytest
import torch
from client_builders import (
    FLOAT,
    all_variants,
    broadcast_of,
    client_of,
    counting_client,
    labels_of,
    linear_model,
)
from torch import Tensor

from client_app.client import Client, InvalidReply, Variant
from client_app.optimizer import TrainingSettings
from client_app.training import total_offset, train_round, with_sampler
from client_app.variants.logit_shift import LogitShift
from client_app.variants.proximal import Proximal
from client_app.variants.resampling import Resampling
from client_app.variants.reweighting import Reweighting
from data import SettingError

COUNTS_KC = [(40, 3, 0, 7), (1, 1, 60, 2), (0, 0, 5, 0), (10, 20, 30, 40), (9, 9, 9, 9)]
UNIT = 2**16


def federation(counts_KC: list[tuple[int, ...]], variant: LogitShift | Reweighting) -> list[Client]:
    clients = [counting_client(counts_C) for counts_C in counts_KC]
    broadcast = broadcast_of([variant], clients)
    return [counting_client(counts_C, broadcast=broadcast) for counts_C in counts_KC]


def priors(counts_KC: list[tuple[int, ...]], smoothing: float) -> tuple[np.ndarray, np.ndarray]:
    """Return P_i (K, C) and P (C,), by a loop."""
    counts = np.array(counts_KC, dtype=np.float64) + smoothing
    local = np.array([row / row.sum() for row in counts])
    return local, counts.sum(0) / counts.sum()


@pytest.mark.parametrize("smoothing", [1.0, 0.5, 3.0, 2.0**-16])
class TestShift:
    def test_is_the_logarithm_of_the_ratio_of_priors(self, smoothing: float) -> None:
        variant = LogitShift(smoothing)
        local, everywhere = priors(COUNTS_KC, smoothing)
        for k, client in enumerate(federation(COUNTS_KC, variant)):
            for c in range(4):
                expected = math.log(local[k, c] / everywhere[c])
                assert variant.logit_offset(client)[c].item() == pytest.approx(expected, abs=1e-10)

    def test_sums(self, smoothing: float) -> None:
        variant = LogitShift(smoothing)
        clients = federation(COUNTS_KC, variant)
        shifts_KC = torch.stack([variant.logit_offset(client) for client in clients])
        local_KC = torch.stack([variant.local_prior(client) for client in clients])
        global_C = variant.global_prior(clients[0])
        sizes_K = torch.tensor(COUNTS_KC).double().sum(1) + 4 * smoothing
        weights_K = sizes_K / sizes_K.sum()
        assert torch.allclose(
            (local_KC * torch.exp(-shifts_KC)).sum(1), torch.ones(5, dtype=FLOAT), atol=1e-10
        )
        assert torch.allclose(
            (global_C * torch.exp(shifts_KC)).sum(1), torch.ones(5, dtype=FLOAT), atol=1e-10
        )
        assert torch.allclose(
            weights_K @ torch.exp(shifts_KC), torch.ones(4, dtype=FLOAT), atol=1e-10
        )

    def test_its_mean_is_the_divergence_of_the_priors(self, smoothing: float) -> None:
        variant = LogitShift(smoothing)
        local, everywhere = priors(COUNTS_KC, smoothing)
        divergences = []
        for k, client in enumerate(federation(COUNTS_KC, variant)):
            mean = (variant.local_prior(client) * variant.logit_offset(client)).sum().item()
            divergences.append(
                sum(p * math.log(p / q) for p, q in zip(local[k], everywhere, strict=True))
            )
            assert mean == pytest.approx(divergences[-1], abs=1e-10)
            assert mean >= 0
        sizes = np.array(COUNTS_KC).sum(1) + 4 * smoothing
        joint = local * (sizes / sizes.sum())[:, None]
        information = sum(
            joint[k, c] * math.log(joint[k, c] / (joint[k].sum() * joint[:, c].sum()))
            for k in range(5)
            for c in range(4)
        )
        assert float(sizes / sizes.sum() @ np.array(divergences)) == pytest.approx(
            information, abs=1e-10
        )

    def test_smoothed_priors_are_positive_and_sum_to_one(self, smoothing: float) -> None:
        for variant in (LogitShift(smoothing), Reweighting(smoothing)):
            for client in federation(COUNTS_KC, variant):
                for prior_C in (variant.local_prior(client), variant.global_prior(client)):
                    assert (prior_C > 0).all()
                    assert prior_C.sum().item() == pytest.approx(1, abs=1e-12)


def test_answers_are_integers_in_units() -> None:
    answer = LogitShift(0.5).answer(counting_client((3, 0, 1)), "class-counts")
    assert answer["counts"].dtype == torch.int64
    assert answer["counts"].tolist() == [3 * UNIT + UNIT // 2, UNIT // 2, UNIT + UNIT // 2]
    for other in ("another question", "statistics"):
        assert LogitShift().answer(counting_client((3, 0, 1)), other) == {}


def test_class_counts_beside_something_else_are_refused() -> None:
    variant = LogitShift()
    answer = variant.answer(counting_client((3, 0, 1)), "class-counts")
    assert variant.upload.validate(answer, 3, 4) == 4
    counts_C = answer["counts"]
    others = (
        {**answer, "more": counts_C},
        {"more": counts_C},
        {"counts": counts_C.double()},
        {"counts": counts_C.int()},
        {"counts": counts_C[:2]},
    )
    for wrong in others:
        with pytest.raises(InvalidReply, match="class counts are not"):
            variant.upload.validate(wrong, 3, 4)


@pytest.mark.parametrize(
    ("variant", "question"),
    [
        (LogitShift(), "class-counts"),
        (LogitShift(scale=0.0), ""),
        (LogitShift(target="uniform"), ""),
        (Reweighting(), "class-counts"),
    ],
)
def test_a_question_is_asked_only_when_its_answer_is_used(variant: Variant, question: str) -> None:
    assert variant.upload.question == question
    assert variant.upload.once is bool(question)


def test_equal_priors_need_no_shift() -> None:
    variant = LogitShift()
    for client in federation([(6, 3, 1)] * 2, variant):
        assert torch.equal(variant.logit_offset(client), torch.zeros(3, dtype=FLOAT))


@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_scale_multiplies_the_shift(scale: float) -> None:
    client = federation(COUNTS_KC, LogitShift())[0]
    expected = scale * LogitShift().logit_offset(client)
    assert torch.allclose(LogitShift(scale=scale).logit_offset(client), expected, atol=1e-12)


def test_uniform_target_is_the_balanced_softmax_up_to_a_constant() -> None:
    client = counting_client((6, 3, 1))
    shift_C = LogitShift(smoothing=0.0, target="uniform").logit_offset(client)
    assert torch.allclose(
        shift_C - torch.tensor([6.0, 3.0, 1.0], dtype=FLOAT).log(),
        torch.tensor(0.3, dtype=FLOAT).log(),
    )


def test_much_smoothing_leaves_no_shift() -> None:
    sizes = []
    for smoothing in (1.0, 2.0**8, 2.0**16, 2.0**30):
        variant = LogitShift(smoothing)
        sizes.append(
            max(variant.logit_offset(c).abs().max().item() for c in federation(COUNTS_KC, variant))
        )
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < 1e-6


def test_swapped_priors_get_opposite_shifts_and_inference_none() -> None:
    variant = LogitShift()
    clients = federation([(9, 1), (1, 9)], variant)
    shifts_KC = torch.stack([variant.logit_offset(client) for client in clients])
    assert torch.allclose(shifts_KC[0], shifts_KC[1].flip(0), atol=1e-12)
    assert shifts_KC.abs().min() > 0.5
    report = train_round(clients[0], [variant], TrainingSettings(local_steps=3))
    inputs_B = torch.ones(1, 1, dtype=FLOAT)
    expected = inputs_B @ report.shared["head.weight"].T + report.shared["head.bias"]
    assert torch.allclose(clients[0].model(inputs_B), expected, atol=1e-12)


def one_step_on_biases(
    client: Client, variants: list[Variant], bias_C: Tensor
) -> tuple[Tensor, float]:
    """Return the gradient that a full-batch step takes to the logits' biases (inputs are 0), and the loss."""
    with torch.no_grad():
        client.model.head.bias.copy_(bias_C)
    settings = TrainingSettings(
        local_steps=1, batch_size=max(2, len(client.samples)), learning_rate=1.0
    )
    report = train_round(client, variants, settings)
    return bias_C - report.shared["head.bias"], report.loss


BIAS_C = torch.tensor([0.3, -1.2, 0.7, 0.1], dtype=FLOAT)


@pytest.mark.parametrize("k", range(len(COUNTS_KC)))
def test_the_loop_takes_the_gradient_of_the_shifted_loss(k: int) -> None:
    """The loss is -ln[(P_i(y)/P(y)) e^f_y / sum_j (P_i(j)/P(j)) e^f_j], its gradient softmax(f + s) - e_y."""
    client = federation(COUNTS_KC, LogitShift())[k]
    gradient_C, loss = one_step_on_biases(client, [LogitShift()], BIAS_C)
    local, everywhere = priors(COUNTS_KC, 1.0)
    ratios = local[k] / everywhere * np.exp(BIAS_C.numpy())
    frequencies = np.array(COUNTS_KC[k]) / sum(COUNTS_KC[k])
    assert loss == pytest.approx(-(frequencies * np.log(ratios / ratios.sum())).sum(), abs=1e-10)
    assert np.allclose(gradient_C.numpy(), ratios / ratios.sum() - frequencies, atol=1e-10, rtol=0)


def test_the_prior_of_all_clients_matters_only_up_to_a_factor() -> None:
    client = federation(COUNTS_KC, LogitShift())[0]
    offset_C = LogitShift().logit_offset(client)
    twice = {"logit-shift": {"counts": client.broadcast["logit-shift"]["counts"] * 2}}
    shift_by_two = counting_client(COUNTS_KC[0], broadcast=twice)
    assert torch.allclose(LogitShift().logit_offset(shift_by_two), offset_C, atol=1e-12)
    labels = client.labels_N
    logits_BC = torch.randn(len(labels), 4, dtype=FLOAT, generator=torch.Generator().manual_seed(3))
    losses = [
        torch.nn.functional.cross_entropy(logits_BC + offset_C + c, labels) for c in (0.0, 5.0)
    ]
    assert torch.allclose(*losses, atol=1e-10)


@pytest.mark.parametrize("counts_KC", [[(5, 0, 3, 2), (1, 4, 4, 1)], [(5, 0, 3, 0), (1, 0, 4, 1)]])
def test_without_smoothing_a_missing_class_gets_no_gradient(
    counts_KC: list[tuple[int, ...]],
) -> None:
    variant = LogitShift(smoothing=0.0)
    client = federation(counts_KC, variant)[0]
    shift_C = variant.logit_offset(client)
    assert not shift_C.isnan().any()
    assert (shift_C == -math.inf).tolist() == [count == 0 for count in counts_KC[0]]
    gradient_C, loss = one_step_on_biases(client, [variant], BIAS_C)
    assert gradient_C[1].item() == 0
    assert math.isfinite(loss)
    assert gradient_C[0].item() != 0


# One table of P(x|y), shared by all clients; the classes' frequencies are the clients' own.
LIKELIHOOD_XC = torch.softmax(
    torch.randn(6, 4, dtype=FLOAT, generator=torch.Generator().manual_seed(8)) * 1.5, dim=0
)


def expected_gradient(client: Client, variants: list[Variant], posterior_XC: Tensor) -> Tensor:
    """Return (X, C): the gradient of E[loss] to the table f(x) at f = ln P(y|x), over what the client trains on."""
    trained_on = with_sampler(client, variants)
    offset = total_offset(trained_on, variants)
    logits_XC = posterior_XC.log() if offset is None else posterior_XC.log() + offset
    joint_XC = LIKELIHOOD_XC * trained_on.effective_prior_C
    return torch.softmax(logits_XC, dim=1) * joint_XC.sum(1, keepdim=True) - joint_XC


FULL_KC = [(40, 3, 5, 7), (1, 1, 60, 2), (2, 3, 5, 100), (10, 20, 30, 40)]


@pytest.mark.parametrize("k", range(len(FULL_KC)))
@pytest.mark.parametrize("beta", [None, 0.0, 0.5, 0.9, 0.99, 0.9999, 1 - 1e-9, 1.0])
def test_the_true_posterior_is_stationary_under_every_sampler(k: int, beta: float | None) -> None:
    variants: list[Variant] = [LogitShift(smoothing=0.0)]
    client = federation(FULL_KC, LogitShift(smoothing=0.0))[k]
    sampler: list[Variant] = [] if beta is None else [Resampling(beta_start=beta, beta_end=beta)]
    counts_C = torch.tensor(FULL_KC).double().sum(0)
    joint_XC = LIKELIHOOD_XC * counts_C
    posterior_XC = joint_XC / joint_XC.sum(1, keepdim=True)
    assert expected_gradient(client, variants + sampler, posterior_XC).abs().max() < 1e-14
    if k < 3 and (beta is None or beta < 0.6):
        assert expected_gradient(client, sampler, posterior_XC).abs().max() > 0.02, (
            "plain training is not at rest"
        )


def test_the_shift_reads_the_distribution_that_is_trained_on() -> None:
    client = federation(FULL_KC, LogitShift())[0]
    variants: list[Variant] = [LogitShift(), Resampling(beta_start=1.0, beta_end=1.0)]
    distribution_C = with_sampler(client, variants).effective_prior_C
    assert torch.allclose(distribution_C, torch.full((4,), 0.25, dtype=FLOAT), atol=1e-12)
    seen: list[Tensor] = []

    class Spy(LogitShift):
        def logit_offset(self, client: Client) -> Tensor | None:
            seen.append(client.effective_prior_C)
            return super().logit_offset(client)

    train_round(client, [Spy(), variants[1]], TrainingSettings(local_steps=1))
    assert torch.allclose(seen[0], distribution_C, atol=1e-12)


class TestReweighting:
    """Importance weights P(y) / P_i(y)."""

    @pytest.mark.parametrize("smoothing", [1.0, 0.5, 0.0])
    def test_weights(self, smoothing: float) -> None:
        variant = Reweighting(smoothing)
        local, everywhere = priors(FULL_KC, smoothing)
        for k, client in enumerate(federation(FULL_KC, variant)):
            weights_C = variant.loss_weights(
                client, torch.zeros(4, 4, dtype=FLOAT), torch.arange(4)
            ).numpy()
            assert np.allclose(weights_C, everywhere / local[k], atol=1e-12, rtol=1e-12)
            assert (local[k] * weights_C).sum() == pytest.approx(1, abs=1e-10)
            assert np.allclose(local[k] * weights_C, everywhere, atol=1e-12)

    @pytest.mark.parametrize("k", range(len(COUNTS_KC)))
    def test_the_mean_is_not_divided_by_the_sum_of_weights(self, k: int) -> None:
        client = federation(COUNTS_KC, Reweighting())[k]
        gradient_C, loss = one_step_on_biases(client, [Reweighting()], BIAS_C)
        local, everywhere = priors(COUNTS_KC, 1.0)
        probabilities = torch.softmax(BIAS_C, 0).numpy()
        total, gradient = 0.0, np.zeros(4)
        for label in labels_of(COUNTS_KC[k]).tolist():
            weight = everywhere[label] / local[k][label]
            total += weight * -math.log(probabilities[label])
            gradient += weight * (probabilities - np.eye(4)[label])
        assert loss == pytest.approx(total / sum(COUNTS_KC[k]), abs=1e-10)
        assert np.allclose(gradient_C.numpy(), gradient / sum(COUNTS_KC[k]), atol=1e-10)


@pytest.mark.parametrize("mu", [0.0, 0.1, 2.0])
def test_proximal_is_the_gradient_of_the_penalized_loss(mu: float) -> None:
    generator = torch.Generator().manual_seed(5)
    model = linear_model(3, 2)
    inputs_N, labels_N = torch.randn(6, 3, dtype=FLOAT, generator=generator), torch.arange(6) % 2
    start = {
        n: torch.randn(t.shape, dtype=FLOAT, generator=generator)
        for n, t in model.state_dict().items()
    }
    loss = torch.nn.functional.cross_entropy(model(inputs_N), labels_N)
    penalty = sum(((p - start[n]) ** 2).sum() for n, p in model.named_parameters())
    expected = torch.autograd.grad(loss + mu / 2 * penalty, list(model.parameters()))
    client = client_of(model, inputs_N, labels_N, 2, start=start)
    report = train_round(client, [Proximal(mu)], TrainingSettings(local_steps=1, learning_rate=1.0))
    for (name, tensor), gradient in zip(report.shared.items(), expected, strict=True):
        assert torch.allclose(-tensor, gradient, atol=1e-10), name
    assert Proximal(mu).gradient_offset(client, "not.shared", torch.ones(1)) is None


def test_the_first_step_from_the_received_weights_feels_no_pull() -> None:
    plain, pulled = (
        train_round(counting_client((3, 1)), variants, TrainingSettings(local_steps=1)).shared
        for variants in ([], [Proximal(5.0)])
    )
    assert all(torch.equal(plain[name], pulled[name]) for name in plain)
    correcting = {
        variant.name for variant in all_variants() if variant.requirements.uncorrected_prior
    }
    assert correcting == {
        "class-weights",
        "logit-calibration",
        "logit-shift",
        "reweighting",
        "vacant-classes",
    }


def test_the_shift_to_equal_classes_is_fedetfs_balanced_loss() -> None:
    """-ln( n_y e^(f_y) / sum_c n_c e^(f_c) ) (Li et al., ICCV 2023); a missing class counts nothing."""
    counts = (4, 0, 2, 1)
    client = counting_client(counts)
    offset_C = LogitShift(target="uniform", smoothing=0.0).logit_offset(client)
    assert offset_C is not None
    logits_BC = torch.randn(7, 4, dtype=FLOAT, generator=torch.Generator().manual_seed(0))
    labels = labels_of(counts).tolist()
    losses_B = torch.nn.functional.cross_entropy(
        logits_BC + offset_C, torch.tensor(labels), reduction="none"
    )
    for loss, row, label in zip(losses_B.tolist(), logits_BC.tolist(), labels, strict=True):
        weighted = [n * math.exp(f) for n, f in zip(counts, row, strict=True)]
        assert loss == pytest.approx(-math.log(weighted[label] / sum(weighted)), abs=1e-12)


@pytest.mark.parametrize("target", ["global", "uniform"])
def test_a_local_share_without_a_mixture_is_refused(target: str) -> None:
    assert LogitShift(target="mixed", local_share=0.5).local_share == 0.5
    with pytest.raises(SettingError, match="is for target = mixed"):
        LogitShift(target=target, local_share=0.5)
