"""Scores against scikit-learn and plain loops."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from client_builders import FLOAT, batches_of, measure, samples_of, small_client
from sklearn.metrics import (
    accuracy_score,
    balanced_accuracy_score,
    confusion_matrix,
    f1_score,
    log_loss,
)
from torch import Tensor, nn

from client_app.metrics import BINS, LARGEST_LOSS, MOST, Scores, evaluate_models
from client_app.models import Classifier
from server_app.evaluation import calibration_error, metrics_from


class Echo(nn.Module):
    """Features are the inputs; counts its passes, which must be in eval mode and without gradient."""

    passes = 0

    def forward(self, inputs_B: Tensor) -> Tensor:
        assert not self.training and not torch.is_grad_enabled()
        self.passes += 1
        return inputs_B


def echo(classes: int, dtype: torch.dtype) -> Classifier:
    """Return a model whose logits are its inputs."""
    model = Classifier(Echo(), nn.Linear(classes, classes)).to(dtype)
    with torch.no_grad():
        model.head.weight.copy_(torch.eye(classes))
        model.head.bias.zero_()
    return model


@dataclass(frozen=True)
class Case:
    logits_NC: Tensor
    labels_N: Tensor

    def measured(self, batch_size: int = 512, part: slice = slice(None)) -> Scores:
        samples = samples_of(self.logits_NC[part], self.labels_N[part])
        return measure(echo(self.logits_NC.shape[1], self.logits_NC.dtype), samples, batch_size)


def case(size: int = 203, classes: int = 5, seed: int = 0, scale: float = 2.0) -> Case:
    generator = torch.Generator().manual_seed(seed)
    logits_NC = scale * torch.randn(size, classes, dtype=FLOAT, generator=generator)
    labels_N = torch.randint(classes - 1, (size,), generator=generator) + 1  # class 0 has no sample
    logits_NC[torch.arange(size), labels_N] += 1
    return Case(logits_NC, labels_N)


@pytest.mark.parametrize("seed", range(3))
def test_equal_to_scikit_learn(seed: int) -> None:
    given = case(seed=seed)
    scores, predicted_N = given.measured(), given.logits_NC.argmax(1)
    labels_N, numbers = given.labels_N, metrics_from(scores)
    expected = confusion_matrix(labels_N, predicted_N, labels=range(5))
    assert scores.confusion_CC.tolist() == expected.tolist()
    assert numbers["accuracy"] == pytest.approx(accuracy_score(labels_N, predicted_N), abs=1e-12)
    tested = sorted(set(labels_N.tolist()))
    f1 = f1_score(labels_N, predicted_N, average="macro", labels=tested, zero_division=0)
    assert numbers["macro-f1"] == pytest.approx(f1, abs=1e-12)
    probabilities = torch.softmax(given.logits_NC, 1).numpy()
    assert numbers["loss"] == pytest.approx(
        log_loss(labels_N, probabilities, labels=range(5)), abs=1e-10
    )
    recalls = [expected[c, c] / expected[c].sum() for c in tested]
    assert numbers["balanced-accuracy"] == pytest.approx(np.mean(recalls), abs=1e-12)
    seen = torch.isin(
        predicted_N, torch.tensor(tested)
    )  # scikit-learn warns of predictions without samples
    if seen.all():
        balanced = balanced_accuracy_score(labels_N, predicted_N)
        assert numbers["balanced-accuracy"] == pytest.approx(balanced, abs=1e-12)


def test_balanced_accuracy_equals_scikit_learn_where_all_classes_are_tested() -> None:
    given = case(seed=4)
    labels_N = (given.labels_N + torch.arange(203)) % 5
    given = Case(given.logits_NC, labels_N)
    expected = balanced_accuracy_score(labels_N, given.logits_NC.argmax(1))
    assert metrics_from(given.measured())["balanced-accuracy"] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("scale", [0.3, 2.0, 50.0])
def test_calibration_error_equals_a_loop(scale: float) -> None:
    given = case(scale=scale)
    probabilities = torch.softmax(given.logits_NC, 1).numpy()
    bins: list[list[tuple[float, bool]]] = [[] for _ in range(BINS)]
    for row, label in zip(probabilities, given.labels_N.tolist(), strict=True):
        confidence = row.max()
        bins[min(int(confidence * BINS), BINS - 1)].append((confidence, row.argmax() == label))
    error = 0.0
    for held in bins:
        if held:
            gap = abs(
                np.mean([right for _, right in held])
                - np.mean([confidence for confidence, _ in held])
            )
            error += len(held) / len(probabilities) * gap
    scores = given.measured()
    assert calibration_error(scores) == pytest.approx(error, abs=1e-10)
    assert scores.calibration[0].tolist() == [len(held) for held in bins]


def test_certain_predictions_fall_into_the_last_bin() -> None:
    given = Case(torch.tensor([[1000.0, 0.0], [0.0, 1000.0]]), torch.tensor([0, 0]))
    scores = given.measured()
    assert scores.calibration[:, -1].tolist() == [2, 1, 2]
    assert scores.loss.item() == pytest.approx(1000)
    assert calibration_error(scores) == pytest.approx(0.5)


@pytest.mark.parametrize("batch_size", [1, 2, 7, 101, 202, 203, 1000])
def test_the_last_batch_counts(batch_size: int) -> None:
    whole, parts = case().measured(), case().measured(batch_size)
    assert parts.confusion_CC.sum() == 203
    assert torch.equal(whole.confusion_CC, parts.confusion_CC)
    assert torch.allclose(whole.loss, parts.loss, atol=1e-10)
    assert torch.allclose(whole.calibration, parts.calibration, atol=1e-10)


def test_scores_add_up_to_those_of_the_union() -> None:
    given = case()
    total = (
        given.measured(part=slice(0, 50))
        + given.measured(part=slice(50, 51))
        + given.measured(part=slice(51, 203))
    )
    whole = given.measured()
    assert torch.equal(total.confusion_CC, whole.confusion_CC)
    assert torch.allclose(total.loss, whole.loss, atol=1e-10)
    assert torch.allclose(total.calibration, whole.calibration, atol=1e-10)
    assert given.measured(part=slice(0, 0)).confusion_CC.sum() == 0


def test_a_model_is_measured_in_eval_mode_and_not_changed() -> None:
    client = small_client()
    client.model.train()
    first = measure(client.model, client.samples, batch_size=3)
    assert torch.equal(first.confusion_CC, measure(client.model, client.samples).confusion_CC)
    assert all(torch.equal(t, client.start[name]) for name, t in client.model.state_dict().items())


def equal(left: Scores, right: Scores) -> bool:
    return all(torch.equal(tensor, right.state()[name]) for name, tensor in left.state().items())


def test_states_that_share_features_are_measured_in_one_pass_and_as_alone() -> None:
    given = case()
    samples, model = samples_of(given.logits_NC, given.labels_N), echo(5, FLOAT)
    states = {
        name: {
            "head.weight": factor * torch.eye(5, dtype=FLOAT).roll(turn, 0),
            "head.bias": torch.arange(5.0).double(),
        }
        for name, factor, turn in (("average", 1.0, 0), ("creff", 2.0, 1), ("tau-norm", 0.5, 0))
    }
    with batches_of(50):
        together = evaluate_models(model, states, samples)
    assert list(together) == list(states)
    assert model.features.passes == 5
    for name, state in states.items():
        alone = echo(5, FLOAT)
        alone.load_state_dict(state)
        assert equal(together[name], measure(alone, samples, batch_size=50)), name
    assert not equal(together["average"], together["creff"])


def test_states_with_other_features_are_measured_with_their_own() -> None:
    client = small_client()
    first = {name: tensor.clone() for name, tensor in client.start.items()}
    second = {
        name: tensor + 1 if "running_mean" in name else tensor for name, tensor in first.items()
    }
    third = {name: tensor + 1 if name == "head.bias" else tensor for name, tensor in first.items()}
    together = evaluate_models(client.model, {"b": second, "a": first, "c": third}, client.samples)
    assert list(together) == ["b", "a", "c"]
    for name, state in (("a", first), ("b", second), ("c", third)):
        client.model.load_state_dict(state)
        assert equal(together[name], measure(client.model, client.samples)), name
    assert not torch.equal(together["a"].loss, together["b"].loss)


def test_state_round_trip() -> None:
    scores = case().measured()
    back = Scores.of(scores.state(), 5)
    assert all(torch.equal(scores.state()[name], tensor) for name, tensor in back.state().items())


@pytest.mark.parametrize(
    "change",
    [
        {"confusion": torch.zeros(4, 4, dtype=torch.int64)},
        {"confusion": torch.zeros(5, 5)},
        {"confusion": -torch.ones(5, 5, dtype=torch.int64)},
        {"loss": torch.tensor(-1.0, dtype=FLOAT)},
        {"loss": torch.tensor(float("nan"), dtype=FLOAT)},
        {"loss": torch.tensor(float("inf"), dtype=FLOAT)},
        {"loss": torch.tensor(1.0)},
        {"loss": torch.ones(1, dtype=FLOAT)},
        {"calibration": torch.zeros(3, BINS + 1, dtype=FLOAT)},
        {"calibration": torch.full((3, BINS), float("nan"), dtype=FLOAT)},
        {"ranking": torch.zeros(5, 8)},
        {"ranking": torch.zeros(5, 7, dtype=FLOAT)},
        {"ranking": -torch.ones(5, 8, dtype=FLOAT)},
        {"brier": torch.tensor(1e6, dtype=FLOAT)},
        {"extra": torch.zeros(1)},
    ],
    ids=lambda change: "-".join(change),
)
def test_what_is_no_scores_is_refused(change: dict[str, Tensor]) -> None:
    with pytest.raises(ValueError, match="scores"):
        Scores.of({**case().measured().state(), **change}, 5)


@pytest.mark.parametrize("name", ["confusion", "loss", "calibration", "brier", "ranking"])
def test_a_missing_part_is_refused(name: str) -> None:
    state = {key: tensor for key, tensor in case().measured().state().items() if key != name}
    with pytest.raises(ValueError, match="scores"):
        Scores.of(state, 5)


def move(bins: Tensor, row: int, amount: float) -> None:
    """Move an amount of a row of calibration sums from its fullest bin to the first; sums stay."""
    fullest = int(bins[row].argmax())
    bins[row, fullest] -= amount
    bins[row, 0] += amount


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda s: s["loss"].fill_(LARGEST_LOSS * 203), ""),
        (lambda s: s["loss"].fill_(1.001 * LARGEST_LOSS * 203), "hold a loss that no probability"),
        (lambda s: s["brier"].fill_(2 * 203), ""),
        (lambda s: s["brier"].fill_(2.001 * 203), "hold a Brier score that no probability gives"),
        (lambda s: s["calibration"][2].copy_(s["calibration"][0]), ""),
        (lambda s: s["calibration"][2].copy_(s["calibration"][0] + 0.9e-6 * 203), ""),
        (lambda s: s["calibration"][2].copy_(s["calibration"][0] + 2e-6 * 203), "are surer"),
        (lambda s: move(s["calibration"], 0, 1), ""),
        (lambda s: move(s["calibration"], 0, 0.5), "have other samples in their bins"),
        (lambda s: move(s["calibration"], 1, 1), "have other samples in their bins"),
        (lambda s: s["calibration"][0, 3].add_(1), "have other samples in their bins"),
        (lambda s: s["calibration"][1, -1].sub_(1), "have other samples in their bins"),
        (lambda s: s["confusion"][0, 0].add_(MOST), "are over 2147483851 samples"),
        (lambda s: s["confusion"][0, 0].add_(MOST - 203), "have other samples in their bins"),
    ],
)
def test_sums_that_no_samples_have_are_refused(
    change: Callable[[dict[str, Tensor]], object], reason: str
) -> None:
    """203 samples, none of them in the first bin: what is just possible passes, and what is beyond it does not."""
    state = case().measured().state()
    assert not state["calibration"][:, 0].any()
    change(state)
    scores = Scores(*state.values())
    contradiction = scores.contradiction(None)
    assert contradiction.startswith(reason) and bool(contradiction) == bool(reason)


def test_scores_are_over_the_samples_that_were_agreed_on() -> None:
    scores = case().measured()
    samples_C = scores.confusion_CC.sum(1)
    assert scores.contradiction(samples_C) == ""
    assert scores.contradiction(samples_C.flip(0)).startswith("are over [0, ")
