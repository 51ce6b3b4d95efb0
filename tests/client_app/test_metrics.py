"""Scores of samples and of subjects, against scikit-learn, plain sums and by hand; and scores that cannot be."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from client_builders import FLOAT, batches_of, case, echo, measured, same, samples_of, small_client
from sklearn.metrics import (
    accuracy_score,
    confusion_matrix,
    f1_score,
    log_loss,
)
from torch import Tensor

from client_app.metrics import BINS, LARGEST_LOSS, MOST, Scores, evaluate_models
from server_app.evaluation import calibration_error, metrics_from, of_clients


def close(left: Scores, right: Scores) -> bool:
    pairs = zip(left.state().values(), right.state().values(), strict=True)
    return all(torch.allclose(one.double(), other.double(), atol=1e-10) for one, other in pairs)


def test_equal_to_scikit_learn() -> None:
    """Also where a class has no sample."""
    logits_NC, labels_N = case()
    predicted_N, probabilities = logits_NC.argmax(1), logits_NC.softmax(1).numpy()
    numbers = metrics_from(measured(logits_NC, labels_N))
    expected = confusion_matrix(labels_N, predicted_N, labels=range(5))
    assert numbers.confusion == expected.tolist() and not expected[0].any()
    tested = [1, 2, 3, 4]
    f1 = f1_score(labels_N, predicted_N, average="macro", labels=tested, zero_division=0)
    reference = {
        "accuracy": accuracy_score(labels_N, predicted_N),
        "macro-f1": f1,
        "loss": log_loss(labels_N, probabilities, labels=range(5)),
        "balanced-accuracy": np.mean([expected[c, c] / expected[c].sum() for c in tested]),
    }
    assert {name: numbers[name] for name in reference} == pytest.approx(reference, abs=1e-10)


@pytest.mark.parametrize("scale", [0.3, 50.0])
def test_calibration_error_is_the_mean_gap_of_bins(scale: float) -> None:
    logits_NC, labels_N = case(scale=scale)
    confidence_N, predicted_N = logits_NC.softmax(1).max(1)
    bin_N = (confidence_N * BINS).long().clamp(max=BINS - 1)
    gaps_N = (predicted_N == labels_N).double() - confidence_N
    gap = bin_N.bincount(gaps_N, BINS).abs().sum().item() / 203
    scores = measured(logits_NC, labels_N)
    assert calibration_error(scores) == pytest.approx(gap, abs=1e-10)
    assert scores.calibration[0].tolist() == bin_N.bincount(minlength=BINS).tolist()


@pytest.mark.parametrize("by_subject", [False, True])
def test_a_client_without_a_sample_sends_scores_of_nothing(by_subject: bool) -> None:
    """As a small site does of which no patient is in the validation set."""
    nothing = torch.zeros(0, dtype=torch.int64)
    scores = measured(torch.zeros(0, 2), nothing, nothing if by_subject else None)
    received = Scores.of(scores.state(), 2, tested_C=torch.zeros(2, dtype=torch.int64))
    assert not any(tensor.any() for tensor in received.state().values())
    assert math.isnan(metrics_from(received)["accuracy"])


def test_batches_and_parts_add_up_to_the_whole() -> None:
    logits_NC, labels_N = case()
    whole = measured(logits_NC, labels_N)
    assert close(measured(logits_NC, labels_N, batch_size=101), whole)
    first, one, rest, none = (
        measured(logits_NC[part], labels_N[part])
        for part in (slice(50), slice(50, 51), slice(51, 203), slice(0))
    )
    assert none.contradiction(None) == ""
    total = first + one + rest + none
    assert torch.equal(total.confusion_CC, whole.confusion_CC)
    assert torch.allclose(total.loss, whole.loss) and total.brier == pytest.approx(whole.brier)
    assert torch.allclose(total.calibration, whole.calibration)
    assert same(Scores.of(whole.state(), 5).state(), whole.state())


def test_sums_over_two_classes_are_those_of_all_samples_at_once_to_the_bit() -> None:
    """A report sums kept records of two classes again."""
    logits_NC, labels_N = case(classes=2)
    whole = measured(logits_NC, labels_N)
    assert same(measured(logits_NC, labels_N, batch_size=50).state(), whole.state())


def test_states_that_share_features_are_measured_in_one_pass_and_as_alone() -> None:
    """Also by subjects."""
    logits_NC, labels_N = case(60, 3)
    labels_N = torch.zeros_like(labels_N)
    bias_C, weight_CC = torch.arange(3.0).double(), torch.eye(3).double()
    states = {
        name: {"head.weight": factor * weight_CC, "head.bias": bias_C}
        for name, factor in (("average", 1.0), ("creff", -2.0))
    }
    for groups_N in (None, torch.arange(60) // 2):
        model = echo(3)
        with batches_of(50):
            together = evaluate_models(model, states, samples_of(logits_NC, labels_N, groups_N))
        assert model.features.passes == 2
        tested = 60 if groups_N is None else 30
        assert together["average"].confusion_CC.sum() == tested
        for name, state in states.items():
            alone = measured(logits_NC, labels_N, groups_N, 50, state)
            assert same(together[name].state(), alone.state())


def test_states_with_other_features_are_measured_with_their_own_and_leave_the_model() -> None:
    client = small_client()
    first = dict(client.start)
    second = {n: tensor + 1 if "running_mean" in n else tensor for n, tensor in first.items()}
    states = {"b": second, "a": first, "c": {**first, "head.bias": first["head.bias"] + 1}}
    together = evaluate_models(client.model, states, client.samples)
    assert list(together) == ["b", "a", "c"]
    assert same(client.model.state_dict(), first)
    for name, state in states.items():
        alone = evaluate_models(client.model, {"": state}, client.samples)[""]
        assert same(together[name].state(), alone.state()), name
    assert not torch.equal(together["a"].loss, together["b"].loss)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("confusion", torch.zeros(4, 4, dtype=torch.int64)),
        ("confusion", -torch.ones(5, 5, dtype=torch.int64)),
        ("loss", torch.tensor(-1.0, dtype=FLOAT)),
        ("loss", torch.tensor(math.nan, dtype=FLOAT)),
        ("loss", torch.ones(1, dtype=FLOAT)),
        ("calibration", torch.zeros(3, BINS + 1, dtype=FLOAT)),
        ("ranking", torch.zeros(5, 8)),
        ("ranking", torch.zeros(5, 7, dtype=FLOAT)),
        ("brier", torch.tensor(1e6, dtype=FLOAT)),
    ],
)
def test_what_is_no_scores_is_refused(name: str, wrong: Tensor) -> None:
    state = measured(*case()).state()
    others = {key: tensor for key, tensor in state.items() if key != name}
    for refused in ({**state, name: wrong}, {**state, "extra": wrong}, others):
        with pytest.raises(ValueError):
            Scores.of(refused, 5)


def move(bins: Tensor, row: int, amount: float) -> None:
    """Move an amount of a row of calibration sums from its fullest bin to the first; sums stay."""
    fullest = int(bins[row].argmax())
    bins[row, fullest] -= amount
    bins[row, 0] += amount


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda s: s["loss"].fill_(LARGEST_LOSS * 203), ""),
        (lambda s: s["loss"].fill_(1.001 * LARGEST_LOSS * 203), "hold a loss"),
        (lambda s: s["brier"].fill_(2 * 203), ""),
        (lambda s: s["brier"].fill_(2.001 * 203), "hold a Brier score"),
        (lambda s: s["calibration"][2].copy_(s["calibration"][0] + 0.9e-6 * 203), ""),
        (lambda s: s["calibration"][2].copy_(s["calibration"][0] + 2e-6 * 203), "are surer"),
        (lambda s: move(s["calibration"], 0, 1), ""),
        (lambda s: move(s["calibration"], 0, 0.5), "have other samples"),
        (lambda s: s["confusion"][0, 0].add_(MOST), "are over 2147483851 samples"),
        (lambda s: s["confusion"][0, 0].add_(MOST - 203), "have other samples"),
    ],
)
def test_sums_that_no_samples_have_are_refused(
    change: Callable[[dict[str, Tensor]], object], reason: str
) -> None:
    """203 samples, none of them in the first bin: what is just possible passes, and what is beyond it does not."""
    state = measured(*case()).state()
    assert not state["calibration"][:, 0].any()
    change(state)
    contradiction = Scores(*state.values()).contradiction(None)
    assert contradiction.startswith(reason) and bool(contradiction) == bool(reason)


def test_scores_are_over_the_samples_that_were_agreed_on() -> None:
    scores = measured(*case())
    samples_C = scores.confusion_CC.sum(1)
    assert scores.contradiction(samples_C) == ""
    assert scores.contradiction(samples_C.flip(0)).startswith("are over [0, ")


def test_a_subject_is_one_prediction_of_its_mean_probabilities_by_hand() -> None:
    """Subject 7: p_1 = .9, .2, .2, by majority class 0 and by the mean .4333 class 0; subject 3: .45, .45, .9, class 1
    by the mean .6 only; subject 5 has one window."""
    positive = torch.tensor([0.9, 0.45, 0.2, 0.45, 0.2, 0.9, 0.3], dtype=FLOAT)
    groups, labels = torch.tensor([7, 3, 7, 3, 7, 3, 5]), torch.tensor([0, 1, 0, 1, 0, 1, 1])
    logits = torch.stack([1 - positive, positive], 1).log()
    for batch_size in (1, 3):
        scores = measured(logits, labels, groups, batch_size)
        assert scores.confusion_CC.tolist() == [[1, 0], [1, 1]]
        loss = -math.log(0.6 * 0.3 * (1 - 1.3 / 3))
        assert scores.loss.item() == pytest.approx(loss, abs=1e-12)
        assert scores.ranking[1, :2].tolist() == [2, 1]  # .6 is above .4333, .3 is not
    numbers = metrics_from(scores)
    expected = {"accuracy": 2 / 3, "balanced-accuracy": 3 / 4, "auroc": 0.5}
    assert {name: numbers[name] for name in expected} == pytest.approx(expected)


def test_certain_windows_stay_finite() -> None:
    logits = torch.tensor([[5000.0, 0.0], [4000.0, 0.0]])
    scores = measured(logits, torch.tensor([1, 1]), torch.tensor([0, 0]))
    assert scores.loss.item() == pytest.approx(4000 + math.log(2))  # -ln((e^-5000 + e^-4000) / 2)


def test_the_pooled_auroc_is_over_pairs_within_clients() -> None:
    """Client 1's scores are client 0's plus 10: together they would mix, within the clients both orders are perfect.

    Client 3 has one class: it has no AUROC and counts nowhere.
    """
    labels, ten = torch.tensor([0, 0, 1]), torch.tensor([0, 10.0])
    logits = torch.tensor([[0, 1.0], [0, 2.0], [0, 3.0]])
    worse, lone = torch.tensor([0, 1, 0]), torch.tensor([1, 1, 1])
    given = [(logits, labels), (logits + ten, labels), (logits, worse), (logits, lone)]
    scores = {number: measured(*one) for number, one in enumerate(given)}
    actual = of_clients(scores, torch.ones(4, 2).long(), {})
    assert actual["auroc"] == pytest.approx((2 + 2 + 1) / 6)
    spread = actual.spreads["client-auroc"]
    assert spread.values[:3] == [1.0, 1.0, 0.5] and math.isnan(spread.values[3])
    assert spread.mean == pytest.approx(2.5 / 3) and spread.worst == 0.5
