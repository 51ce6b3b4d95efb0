"""The refit bias against sums by hand, known biases and the gradient of the balanced cross-entropy."""

from collections.abc import Sequence
from itertools import permutations

import pytest
import torch
import torch.nn.functional as F
from server_builders import CLASSES, WIDTH, draws, model_of, samples_of, server_of, state_of
from torch import Tensor

from client_app.client import Client, InvalidReply
from client_app.state import State, digest
from client_app.variants.class_predictions import ClassPredictions, class_predictions
from strategies.core.server import Server
from strategies.core.validation import RejectedUpdate, check_answer
from strategies.refit_bias import RefitBias, balancing_bias, pooled

HELD = [(5, 0, 1, 9), (1, 0, 1, 30), (0, 0, 0, 2), (12, 0, 1, 1)]
"""Samples of each class at each client: class 1 nowhere, class 2 always alone."""
ALL = torch.arange(CLASSES)


def client_data(counts_KC: Sequence[Sequence[int]]) -> list[tuple[Tensor, Tensor]]:
    """Return each client's predicted probabilities, at random but drawn to the sample's class, and labels."""
    data = []
    for number, counts_C in enumerate(counts_KC):
        labels_N = torch.arange(len(counts_C)).repeat_interleave(torch.tensor(counts_C))
        shape = (len(labels_N), len(counts_C))
        logits_NC = torch.randn(shape, generator=draws(number), dtype=torch.float64)
        logits_NC[torch.arange(len(labels_N)), labels_N] += 1
        data.append((logits_NC.softmax(1), labels_N))
    return data


def answers_of(counts_KC: Sequence[Sequence[int]] = HELD) -> dict[int, State]:
    return {k: class_predictions(*part) for k, part in enumerate(client_data(counts_KC))}


def probabilities_of(classes: int = CLASSES, seed: int = 0) -> Tensor:
    """Return a matrix (C, C) of classes' mean probabilities, far from balanced."""
    logits_CC = 2 * torch.randn(classes, classes, generator=draws(seed), dtype=torch.float64)
    return logits_CC.softmax(1)


def predicted(probabilities_hC: Tensor, bias_C: Tensor) -> Tensor:
    """Return (C,) how often each class is predicted where every class held counts as one sample."""
    weighed_hC = probabilities_hC * bias_C.exp()
    return (weighed_hC / weighed_hC.sum(1, keepdim=True)).sum(0)


# ---- predictions -----------------------------------------------------------------------------------------------------


def test_a_client_s_predictions_by_hand() -> None:
    probabilities_NC = torch.tensor(
        [[0.5, 0.25, 0.25], [0.0, 0.5, 0.5], [0.25, 0.5, 0.25], [0.125, 0.125, 0.75]],
        dtype=torch.float64,
    )
    labels_N = torch.tensor([2, 0, 2, 2])
    answer = class_predictions(probabilities_NC, labels_N)
    assert list(answer) == ["classes", "counts", "probabilities"]
    assert answer["classes"].tolist() == [0, 2] and answer["counts"].tolist() == [1, 3]
    of_class_2 = [0.875 / 3, 0.875 / 3, 1.25 / 3]
    expected = torch.tensor([[0.0, 0.5, 0.5], of_class_2], dtype=torch.float64)
    torch.testing.assert_close(answer["probabilities"], expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize(
    ("least", "classes"), [(1, [0, 2, 3]), (2, [0, 3]), (5, [0, 3]), (6, [3]), (10, [])]
)
def test_classes_of_few_samples_are_held_back(least: int, classes: list[int]) -> None:
    ((probabilities_NC, labels_N),) = client_data([(5, 0, 1, 9)])
    answer = class_predictions(probabilities_NC, labels_N, least)
    assert answer["classes"].tolist() == classes
    assert answer["probabilities"].shape == (len(classes), CLASSES)
    everything = class_predictions(probabilities_NC, labels_N)
    kept_n = torch.isin(everything["classes"], answer["classes"])
    for name in ("counts", "probabilities"):
        assert torch.equal(answer[name], everything[name][kept_n])


def test_an_answer_has_the_predictions_of_the_model_in_eval_mode() -> None:
    model, samples = model_of(1), samples_of()
    logits_NC = model.eval()(samples.inputs_N).detach()
    expected = class_predictions(logits_NC.double().softmax(1), samples.labels_N)
    client = Client(0, model.train(), samples, CLASSES)
    answer = ClassPredictions().answer(client, ClassPredictions.name)
    assert digest([answer]) == digest([expected])
    assert not any(tensor.requires_grad for tensor in answer.values())
    assert digest([model.state_dict()]) == digest([state_of(1)])
    assert ClassPredictions().answer(client, "class-statistics") == {}


def test_an_answer_has_the_bytes_that_are_announced() -> None:
    client = Client(0, model_of(1), samples_of(), CLASSES)
    answer = ClassPredictions().answer(client, ClassPredictions.name)
    size = sum(tensor.numel() * tensor.element_size() for tensor in answer.values())
    assert ClassPredictions().upload.bytes(client.model, CLASSES) == size


def test_pooled_predictions_are_the_central_ones() -> None:
    data = client_data(HELD)
    probabilities_NC, labels_N = (torch.cat(parts) for parts in zip(*data, strict=True))
    one = class_predictions(probabilities_NC, labels_N)
    assert one["counts"].tolist() == [18, 3, 42]
    # The same samples at one client, at four, and at each client one.
    single = [
        class_predictions(probabilities_NC[n : n + 1], labels_N[n : n + 1])
        for n in range(len(labels_N))
    ]
    for answers in ([one], answers_of().values(), single):
        held_h, probabilities_hC = pooled(answers, CLASSES)
        assert torch.equal(held_h, one["classes"])
        torch.testing.assert_close(probabilities_hC, one["probabilities"], rtol=0, atol=1e-14)


def test_order_of_clients_does_not_matter() -> None:
    held_h, expected = pooled(answers_of().values(), CLASSES)
    for order in permutations(answers_of().values()):
        held, probabilities_hC = pooled(order, CLASSES)
        assert torch.equal(held, held_h)
        torch.testing.assert_close(probabilities_hC, expected, rtol=0, atol=1e-14)


def test_without_an_answer_no_class_is_held() -> None:
    held_h, probabilities_hC = pooled([], CLASSES)
    assert not len(held_h) and probabilities_hC.shape == (0, CLASSES)
    assert torch.equal(balancing_bias(probabilities_hC, held_h, 100), torch.zeros(CLASSES).double())


# ---- the bias --------------------------------------------------------------------------------------------------------


def test_one_step_divides_by_how_often_a_class_is_predicted() -> None:
    probabilities_CC = probabilities_of()
    expected = -probabilities_CC.sum(0).log()
    torch.testing.assert_close(balancing_bias(probabilities_CC, ALL, 1), expected - expected.mean())


@pytest.mark.parametrize("classes", [2, CLASSES, 30])
def test_every_class_is_predicted_equally_often(classes: int) -> None:
    probabilities_CC = probabilities_of(classes, seed=1)
    assert (predicted(probabilities_CC, torch.zeros(classes)) - 1).abs().max() > 0.05
    bias_C = balancing_bias(probabilities_CC, torch.arange(classes), 2000)
    ones_C = torch.ones(classes, dtype=torch.float64)
    torch.testing.assert_close(predicted(probabilities_CC, bias_C), ones_C, rtol=0, atol=1e-9)
    torch.testing.assert_close(bias_C.mean().item(), 0.0, rtol=0, atol=1e-12)


@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
def test_a_known_bias_is_found(scale: float) -> None:
    # Doubly stochastic: a mean of permutations.
    orders = torch.stack([torch.eye(CLASSES).double().roll(k, 0) for k in range(CLASSES)])
    shares = torch.tensor([0.6, 0.1, 0.25, 0.05], dtype=torch.float64)
    balanced_CC = torch.einsum("p,pij->ij", shares, orders)
    known_C = scale * torch.randn(CLASSES, generator=draws(3), dtype=torch.float64)
    shifted_CC = (balanced_CC.log() + known_C).softmax(1)
    bias_C = balancing_bias(shifted_CC, ALL, 2000)
    torch.testing.assert_close(bias_C, known_C.mean() - known_C, rtol=0, atol=1e-9)
    zeros_C = torch.zeros(CLASSES).double()
    torch.testing.assert_close(balancing_bias(balanced_CC, ALL, 100), zeros_C, rtol=0, atol=1e-12)


def test_balanced_cross_entropy_is_least_where_samples_of_a_class_are_alike(
    server: Server,
) -> None:
    counts_C = torch.tensor([1, 20, 3, 7])
    features_CD = torch.randn(CLASSES, WIDTH, generator=draws(5))
    shared = state_of(1)
    logits_CC = F.linear(features_CD, shared["head.weight"], shared["head.bias"])
    labels_N = ALL.repeat_interleave(counts_C)
    answer = class_predictions(logits_CC.double().softmax(1)[labels_N], labels_N)

    def slope_at(bias_C: Tensor) -> Tensor:
        """Return the gradient of the mean over the classes of their mean cross-entropies."""
        bias_C = bias_C.clone().requires_grad_(True)
        losses_N = F.cross_entropy(
            F.linear(features_CD, shared["head.weight"], bias_C)[labels_N],
            labels_N,
            weight=1 / (CLASSES * counts_C),
            reduction="none",
        )
        (slope_C,) = torch.autograd.grad(losses_N.sum(), bias_C)
        return slope_C

    assert slope_at(shared["head.bias"]).abs().max() > 0.01
    refit = deployed(server, {0: answer}, steps=2000)
    assert slope_at(refit["head.bias"]).abs().max() < 1e-6


def test_a_class_that_nobody_holds_keeps_its_bias_and_does_not_count() -> None:
    held_h = torch.tensor([0, 2, 3])
    probabilities_hC = probabilities_of()[held_h]
    without_hh = probabilities_hC[:, held_h]
    without_hh = without_hh / without_hh.sum(1, keepdim=True)
    for steps in (1, 10, 2000):
        bias_C = balancing_bias(probabilities_hC, held_h, steps)
        assert bias_C[1] == 0
        # The other classes' are those of a model without this class.
        expected = balancing_bias(without_hh, torch.arange(3), steps)
        torch.testing.assert_close(bias_C[held_h], expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(predicted(without_hh, bias_C[held_h]), torch.ones(3).double())


def test_a_single_class_has_nothing_to_balance() -> None:
    bias_C = balancing_bias(probabilities_of()[2:3], torch.tensor([2]), 100)
    assert torch.equal(bias_C, torch.zeros(CLASSES).double())


@pytest.mark.parametrize("steps", [1, 2, 100, 10_000])
def test_probabilities_that_underflow_give_finite_numbers(steps: int) -> None:
    certain_CC = torch.eye(CLASSES).double()
    assert torch.equal(balancing_bias(certain_CC, ALL, steps), torch.zeros(CLASSES).double())
    never_CC = torch.tensor([0.0, 0.0, 0.25, 0.75]).double().expand(CLASSES, -1)
    one_CC = torch.tensor([1.0, 0.0, 0.0, 0.0]).double().expand(CLASSES, -1)
    for probabilities_CC in (never_CC, one_CC):
        bias_C = balancing_bias(probabilities_CC, ALL, steps)
        assert torch.isfinite(bias_C).all() and torch.isfinite(bias_C.float()).all()
        assert bias_C.argmin() == probabilities_CC[0].argmax()
        # As if a probability of 0 were 1e-300, however many steps there are.
        assert bias_C.max() - bias_C.min() < 700


# ---- deployment ------------------------------------------------------------------------------------------------------


@pytest.fixture
def server() -> Server:
    return server_of(samples_of())


def deployed(server: Server, answers: dict[int, State], **settings: int) -> State:
    method = RefitBias(**settings)
    return method.deploy_finally(server, {}, state_of(1), answers).models["refit-bias"]


def test_only_the_bias_of_classes_held_changes(server: Server) -> None:
    model, shared = deployed(server, answers_of()), state_of(1)
    assert list(model) == list(shared)
    changed = {name for name in model if not torch.equal(model[name], shared[name])}
    assert changed == {"head.bias"}
    bias_C, before_C = model["head.bias"], shared["head.bias"]
    assert bias_C.dtype == before_C.dtype and torch.isfinite(bias_C).all()
    assert (bias_C != before_C).tolist() == [True, False, True, True]
    assert digest([deployed(server, answers_of())]) == digest([model])
    # No draws: another seed gives the same.
    assert digest([deployed(server_of(samples_of(), seed=1), answers_of())]) == digest([model])


def test_no_steps_deploy_the_average(server: Server) -> None:
    assert digest([deployed(server, answers_of(), steps=0)]) == digest([state_of(1)])


def test_classes_that_nobody_holds_deploy_the_average(server: Server) -> None:
    empty = class_predictions(torch.zeros(0, CLASSES).double(), torch.zeros(0).long())
    check_answer(empty, server, RefitBias())
    assert digest([deployed(server, {0: empty})]) == digest([state_of(1)])
    assert digest([deployed(server, {})]) == digest([state_of(1)])


# ---- refusals --------------------------------------------------------------------------------------------------------

ROW = torch.tensor([0.5, 0.25, 0.25, 0.0], dtype=torch.float64)
BELOW_0 = ROW + torch.tensor([1e-9, 0, 0, -1e-9], dtype=torch.float64)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"probabilities": torch.stack([ROW, ROW, ROW])}, ""),
        ({"probabilities": torch.stack([ROW, ROW, ROW * (1 + 5e-7)])}, ""),
        ({"probabilities": torch.stack([ROW, ROW, BELOW_0])}, "a probability is negative"),
        (
            {"probabilities": torch.stack([ROW, ROW, ROW * (1 + 5e-6)])},
            "probabilities of a class differ from a sum of 1 by 5e-06",
        ),
        ({"probabilities": torch.stack([ROW, ROW, 0 * ROW])}, "from a sum of 1 by 1$"),
        ({"probabilities": torch.full((3, CLASSES), torch.nan).double()}, "is not finite"),
        ({"probabilities": torch.full((3, CLASSES), torch.inf).double()}, "sum of 1 by inf"),
        (
            {"probabilities": torch.full((3, CLASSES), 0.25)},
            "probabilities is float32 of 3x4, not float64 of 3x4",
        ),
        (
            {"probabilities": torch.full((3, CLASSES + 1), 0.2).double()},
            "probabilities is float64 of 3x5, not float64 of 3x4",
        ),
        (
            {"probabilities": torch.full((2, CLASSES), 0.25).double()},
            "probabilities is float64 of 2x4, not float64 of 3x4",
        ),
        ({"counts": torch.tensor([5, 1])}, "counts is int64 of 2, not int64 of 3"),
        ({"counts": torch.tensor([5.0, 1, 9])}, "counts is float32 of 3, not int64 of 3"),
        ({"counts": torch.tensor([5, 0, 9])}, r"counts are \[5, 0, 9\], not all positive"),
        ({"counts": torch.tensor([5, -1, 9])}, r"counts are \[5, -1, 9\], not all positive"),
        ({"classes": torch.tensor([0, 3, 2])}, "not ascending"),
        ({"classes": torch.tensor([0, 2, 2])}, "not ascending"),
        ({"classes": torch.tensor([0, 2, CLASSES])}, "not ascending numbers from 0 to 3"),
        ({"classes": torch.tensor([-1, 2, 3])}, "not ascending numbers from 0 to 3"),
        ({"more": torch.zeros(1)}, "'more' is not expected"),
    ],
)
def test_wrong_answers_are_refused(server: Server, change: State, reason: str) -> None:
    (answer,) = answers_of([(5, 0, 1, 9)]).values()
    check_answer(answer, server, RefitBias())
    changed = {**answer, **change}
    if not reason:
        check_answer(changed, server, RefitBias())
        return
    with pytest.raises(RejectedUpdate, match=reason):
        check_answer(changed, server, RefitBias())


@pytest.mark.parametrize("missing", ["classes", "counts", "probabilities"])
def test_answers_with_a_tensor_missing_are_refused(server: Server, missing: str) -> None:
    (answer,) = answers_of([(5, 0, 1, 9)]).values()
    check_answer(answer, server, RefitBias())
    with pytest.raises(RejectedUpdate):
        check_answer({n: t for n, t in answer.items() if n != missing}, server, RefitBias())


@pytest.mark.parametrize(
    ("least", "counts", "samples", "reason"),
    [
        (1, [1, 4], 5, ""),
        (1, [1, 4], None, ""),
        (1, [1, 4], 6, "counts are of 5 samples, and the client has 6"),
        (1, [1, 4], 4, "counts are of 5 samples, and the client has 4"),
        (1, [0, 5], 5, r"counts are \[0, 5\], not all 1 or more"),
        # Classes of fewer than two samples are held back: fewer samples are counted than there are.
        (2, [2, 4], 8, ""),
        (2, [2, 4], 6, ""),
        (2, [2, 4], 5, "counts are of 6 samples, and the client has 5"),
        (2, [1, 4], 8, r"counts are \[1, 4\], not all 2 or more"),
    ],
)
def test_counts_of_class_predictions_are_those_of_the_samples(
    least: int, counts: list[int], samples: int | None, reason: str
) -> None:
    answer = {"counts": torch.tensor(counts)}
    variant = ClassPredictions(min_class_samples=least)
    if not reason:
        assert variant.check_predictions(answer, CLASSES, samples) == sum(counts)
        return
    with pytest.raises(InvalidReply, match=reason):
        variant.check_predictions(answer, CLASSES, samples)


def test_the_variant_answers_one_question() -> None:
    assert RefitBias.final_question == ClassPredictions.name
    assert ClassPredictions().upload.question == ""
    assert RefitBias.needs_whole_model and ClassPredictions().upload.once
