"""Scores of subjects rather than of their windows, and the area under the ROC curve."""

import math

import numpy as np
import pytest
import torch
from client_builders import FLOAT, batches_of, measure, samples_of
from sklearn.metrics import roc_auc_score
from test_metrics import case, echo, equal
from torch import Tensor

from client_app.metrics import Scores, evaluate_models
from client_app.ranking import MOST_RANKED
from data import Samples
from server_app.evaluation import metrics_from, of_clients


def measured(
    logits_NC: Tensor, labels_N: Tensor, groups_N: Tensor | None = None, batch_size: int = 512
) -> Scores:
    plain = samples_of(logits_NC, labels_N)
    samples = Samples(plain.inputs_N, plain.labels_N, plain.mean, plain.std, groups_N=groups_N)
    return measure(echo(logits_NC.shape[1], logits_NC.dtype), samples, batch_size)


def test_a_subject_is_one_prediction_of_its_mean_probabilities_by_hand() -> None:
    """Subject 7: p_1 = .9, .2, .2, by majority class 0 and by the mean .4333 class 0; subject 3: .45, .45, .9, class 1
    by the mean .6 only; subject 5 has one window."""
    positive = torch.tensor([0.9, 0.45, 0.2, 0.45, 0.2, 0.9, 0.3], dtype=FLOAT)
    groups, labels = torch.tensor([7, 3, 7, 3, 7, 3, 5]), torch.tensor([0, 1, 0, 1, 0, 1, 1])
    logits = torch.stack([(1 - positive).log(), positive.log()], 1)
    for batch_size in (1, 3, 100):
        scores = measured(logits, labels, groups, batch_size)
        assert scores.confusion_CC.tolist() == [[1, 0], [1, 1]]
        assert scores.loss.item() == pytest.approx(
            -math.log(0.6) - math.log(0.3) - math.log(1 - 1.3 / 3), abs=1e-12
        )
        assert scores.ranking[1, :2].tolist() == [2, 1]  # .6 is above .4333, .3 is not
        assert scores.calibration.sum(1).tolist() == pytest.approx([3, 2, 0.6 + 0.7 + 1 - 1.3 / 3])
    numbers = metrics_from(scores)
    assert numbers["accuracy"] == pytest.approx(2 / 3) and numbers[
        "balanced-accuracy"
    ] == pytest.approx(3 / 4)
    assert numbers["auroc"] == 0.5


@pytest.mark.parametrize("classes", [2, 5])
def test_a_group_each_is_no_groups(classes: int) -> None:
    given = case(classes=classes)
    order = torch.randperm(203, generator=torch.Generator().manual_seed(1))
    alone, grouped = given.measured(), measured(given.logits_NC, given.labels_N, order)
    assert torch.equal(alone.confusion_CC, grouped.confusion_CC) and torch.equal(
        alone.ranking, grouped.ranking
    )
    assert torch.allclose(alone.loss, grouped.loss, atol=1e-10)


def test_equal_windows_count_as_one() -> None:
    given = case(40, classes=3)
    times = torch.arange(40) % 4 + 1
    groups = torch.arange(40).repeat_interleave(times)
    repeated = measured(
        given.logits_NC.repeat_interleave(times, 0), given.labels_N.repeat_interleave(times), groups
    )
    assert torch.equal(given.measured().confusion_CC, repeated.confusion_CC)
    assert torch.allclose(given.measured().loss, repeated.loss, atol=1e-10)


def test_certain_windows_stay_finite() -> None:
    logits = torch.tensor([[5000.0, 0.0], [4000.0, 0.0]])
    scores = measured(logits, torch.tensor([1, 1]), torch.tensor([0, 0]))
    assert scores.loss.item() == pytest.approx(4000 + math.log(2))  # -ln((e^-5000 + e^-4000) / 2)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("levels", [3, 1000])
def test_auroc_equals_scikit_learn_with_and_without_ties(seed: int, levels: int) -> None:
    draws = np.random.default_rng(seed)
    labels = draws.integers(0, 2, 301)
    score = (draws.integers(0, levels, 301) + labels) / 1024
    logits = torch.stack([torch.zeros(301, dtype=FLOAT), torch.from_numpy(score)], 1)
    scores = measured(logits, torch.from_numpy(labels), batch_size=50)
    assert metrics_from(scores)["auroc"] == pytest.approx(roc_auc_score(labels, score), abs=1e-12)
    assert scores.ranking[1, 0] == labels.sum() * (1 - labels).sum()
    flipped = measured(logits.flip(1), 1 - torch.from_numpy(labels))
    assert torch.equal(flipped.ranking, scores.ranking.flip(0))


def test_auroc_tells_certain_samples_apart() -> None:
    logits = torch.tensor(
        [[0, 100.0], [0, 101.0], [0, 99.0]], dtype=FLOAT
    )  # p_1 is 1.0 in float64, of each
    assert measured(logits, torch.tensor([0, 1, 0])).ranking[1, :2].tolist() == [2, 2]


@pytest.mark.parametrize("label", [0, 1])
def test_auroc_of_one_class_is_nan_and_counts_nowhere(label: int) -> None:
    logits = torch.tensor([[0.0, 1.0], [0.0, -1.0]])
    alone, both = (
        measured(logits, torch.tensor([label, label])),
        measured(logits, torch.tensor([1, 0])),
    )
    assert math.isnan(metrics_from(alone)["auroc"])
    actual = of_clients({0: alone, 1: both}, torch.tensor([[1, 1], [1, 1]]), {})
    assert actual["auroc"] == 1.0
    assert actual.spreads["client-auroc"].mean == 1.0 == actual.spreads["client-auroc"].worst
    assert math.isnan(actual.spreads["client-auroc"].values[0])
    nobody = of_clients({0: alone}, torch.tensor([[1, 1]]), {})
    assert math.isnan(nobody["auroc"])


def test_the_pooled_auroc_is_over_pairs_within_clients() -> None:
    """Client 1's scores are client 0's plus 10: together they would mix, within the clients both orders are perfect."""
    labels = torch.tensor([0, 0, 1])
    logits = torch.tensor([[0, 1.0], [0, 2.0], [0, 3.0]])
    moved = measured(logits + torch.tensor([0, 10.0]), labels)
    worse = measured(logits, torch.tensor([0, 1, 0]))
    actual = of_clients(
        {0: measured(logits, labels), 1: moved, 2: worse}, torch.ones(3, 2).long(), {}
    )
    assert actual["auroc"] == pytest.approx((2 + 2 + 1) / 6)
    assert actual.spreads["client-auroc"].values == [1.0, 1.0, 0.5]
    both = torch.cat([logits, logits + torch.tensor([0, 10.0])])
    assert (
        metrics_from(measured(both, labels.repeat(2)))["auroc"]
        == roc_auc_score([0, 0, 1] * 2, both[:, 1])
        < 1
    )


def test_very_many_classes_have_no_auroc() -> None:
    scores = case(20, MOST_RANKED + 1).measured()
    assert "auroc" not in metrics_from(scores).means and not scores.ranking.any()
    assert equal(Scores.of(scores.state(), MOST_RANKED + 1), scores)


def test_groups_of_states_that_share_features_are_as_alone() -> None:
    given = case(60, classes=2)
    groups, samples = torch.arange(60) // 2, samples_of(given.logits_NC, torch.arange(60) // 2 % 2)
    samples = Samples(
        samples.inputs_N, samples.labels_N, samples.mean, samples.std, groups_N=groups
    )
    states = {
        name: {
            "head.weight": factor * torch.eye(2, dtype=FLOAT),
            "head.bias": torch.tensor([0.0, 0.3]).double(),
        }
        for name, factor in (("average", 1.0), ("creff", -2.0))
    }
    with batches_of(7):
        together = evaluate_models(echo(2, FLOAT), states, samples)
    for name, state in states.items():
        alone = echo(2, FLOAT)
        alone.load_state_dict(state)
        assert equal(together[name], measure(alone, samples)), name
    assert together["average"].confusion_CC.sum() == 30


@pytest.mark.parametrize(
    ("classes", "pairs", "rule"),
    [
        (2, [1e9, 1.0], "over other pairs than their samples make"),
        (2, [0.0, 0.0], "over other pairs than their samples make"),
        (2, None, "more pairs in the right order than there are"),
        (5, [0.0, 1.0], "over other pairs than their samples make"),
    ],
)
def test_pairs_that_cannot_be_are_refused(
    classes: int, pairs: list[float] | None, rule: str
) -> None:
    given = case(31)
    scores = measured(given.logits_NC[:, :classes], torch.arange(31) % classes)
    assert equal(Scores.of(scores.state(), classes), scores)
    wrong = scores.ranking.clone()
    wrong[1, :2] = wrong[1, 0] * torch.tensor([1, 2]) if pairs is None else torch.tensor(pairs)
    with pytest.raises(ValueError, match=rule):
        Scores.of({**scores.state(), "ranking": wrong}, classes)


def test_more_classes_than_are_ranked_have_no_ranking_of_subjects_either() -> None:
    classes = MOST_RANKED + 1
    labels_N = torch.arange(classes)
    scores = measured(torch.eye(classes, dtype=FLOAT), labels_N, labels_N)
    assert not scores.ranking.any()
