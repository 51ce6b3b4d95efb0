"""Rankings against scikit-learn, against the definition over all pairs, and by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from client_builders import FLOAT, case, echo, samples_of
from sklearn.metrics import average_precision_score, brier_score_loss, roc_auc_score, roc_curve

from client_app.metrics import Scores, evaluate_models, probabilities_of
from client_app.ranking import (
    COLUMNS,
    MOST_RANKED,
    clustered_variance,
    contradiction,
    margins,
    placements,
    ranking,
)
from server_app.evaluation import metrics_from


def of_scores(score_N: np.ndarray, label_N: np.ndarray) -> dict[str, float]:
    """Return the numbers of a ranking of labels 0 and 1, each as a share."""
    score_N = torch.from_numpy(score_N)
    logits_N2 = torch.stack([torch.zeros_like(score_N), score_N], 1)
    sums = ranking(logits_N2, torch.from_numpy(label_N))[1].tolist()
    of = dict(zip(COLUMNS, sums, strict=True))
    return {
        "auroc": of["ordered"] / of["pairs"],
        "variance": of["squared-error"] / of["pairs"] ** 2,
        "auprc": of["precision"] / of["positives"],
        "sensitivity": of["sensitivity"] / of["positives"],
        "specificity": of["specificity"] / of["negatives"],
    }


def variance_over_pairs(score_N: np.ndarray, label_N: np.ndarray) -> float:
    """Return DeLong's variance of the AUROC from the matrix of all pairs, O(m n)."""
    positive, negative = score_N[label_N == 1], score_N[label_N == 0]
    wins = (positive[:, None] > negative) + 0.5 * (positive[:, None] == negative)
    return float(
        wins.mean(1).var(ddof=1) / len(positive) + wins.mean(0).var(ddof=1) / len(negative)
    )


@pytest.mark.parametrize("levels", [4, 10**6])
def test_equal_to_scikit_learn_with_and_without_ties(levels: int) -> None:
    draws = np.random.default_rng(0)
    label_N = draws.integers(0, 2, 211)
    score_N = draws.integers(0, levels, 211) / levels + label_N / 2  # also ties of the two classes
    numbers = of_scores(score_N, label_N)
    false_alarms, hits, _ = roc_curve(label_N, score_N, drop_intermediate=False)
    expected = {
        "auroc": roc_auc_score(label_N, score_N),
        "auprc": average_precision_score(label_N, score_N),
        "variance": variance_over_pairs(score_N, label_N),
        "sensitivity": hits[false_alarms <= 0.1 + 1e-9].max(),
        "specificity": 1 - false_alarms[hits >= 0.9 - 1e-9].min(),
    }
    assert numbers == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("classes", [2, 5])
def test_every_class_against_the_rest_is_scikit_learns(classes: int) -> None:
    logits_NC, _ = case(211, classes, seed=1)
    labels_N = torch.arange(211) % classes
    probabilities = torch.softmax(logits_NC, 1).numpy()
    numbers = metrics_from(Scores.of_probabilities(*probabilities_of(logits_NC, labels_N)))
    for name, reference in (("auroc", roc_auc_score), ("auprc", average_precision_score)):
        by_class = [
            reference(labels_N.numpy() == label, probabilities[:, label])
            for label in range(classes)
        ]
        assert numbers.by_class[f"{name}-by-class"] == pytest.approx(by_class, abs=1e-9)
    expected = probabilities[:, 1] if classes == 2 else probabilities
    assert numbers["brier"] == pytest.approx(brier_score_loss(labels_N, expected), abs=1e-9)
    macro = roc_auc_score(labels_N, expected, multi_class="ovr", average="macro")
    assert numbers["auroc"] == pytest.approx(macro, abs=1e-9)


def test_a_single_sample_has_the_largest_variance() -> None:
    numbers = of_scores(np.array([0.5, 0.9, 0.1]), np.array([1, 0, 0]))
    assert numbers["auroc"] == 0.5 and numbers["variance"] == pytest.approx(0.25)


def test_the_clustered_variance_is_obuchowskis() -> None:
    """Subjects of one to four samples, some of both classes; with one sample per subject it is DeLong's."""
    draws = np.random.default_rng(3)
    label_N = draws.integers(0, 2, 40)
    score_N = draws.normal(size=40) + label_N
    both = placements(score_N, label_N)
    plain = variance_over_pairs(score_N, label_N)
    assert clustered_variance(both, np.arange(40), label_N) == pytest.approx(plain)

    subject_N = draws.integers(0, 12, 40)
    expected, totals = 0.0, []
    for label, values in ((1, both[0]), (0, both[1])):
        of_class = subject_N[label_N == label]
        total_S = np.bincount(of_class, values - both[0].mean(), 12)
        number = len(set(of_class))
        expected += number / (number - 1) * np.square(total_S).sum() / len(values) ** 2
        totals.append(total_S / len(values))
    expected += 2 * 12 / 11 * (totals[0] @ totals[1])
    assert clustered_variance(both, subject_N, label_N) == pytest.approx(expected)
    assert expected != pytest.approx(plain, rel=0.01)


def test_a_class_of_one_subject_has_no_clustered_variance() -> None:
    label_N = np.array([1, 1, 1, 0, 0, 0])
    both = placements(np.array([0.9, 0.4, 0.8, 0.5, 0.3, 0.7]), label_N)
    for one in ([0, 0, 0, 1, 2, 3], [1, 2, 3, 0, 0, 0]):
        assert math.isnan(clustered_variance(both, np.array(one), label_N))


def test_the_error_of_measured_samples_counts_their_subjects() -> None:
    """Every sample eight times, as eight slices of one patient, measured with and without the patients' numbers."""

    def error(copies: int, subjects_N: torch.Tensor | None) -> float:
        logits_NC = case(60, 3, seed=2)[0].repeat_interleave(copies, 0)
        samples = samples_of(logits_NC, (torch.arange(60) % 3).repeat_interleave(copies))
        samples, model = replace(samples, subjects_N=subjects_N), echo(3)
        return metrics_from(evaluate_models(model, {"": model.state_dict()}, samples)[""])[
            "auroc-error"
        ]

    alone = error(1, None)
    assert error(8, torch.arange(60).repeat_interleave(8)) == pytest.approx(alone)
    assert error(8, None) < alone / 2, "rows as the unit would halve the error"


def test_without_a_pair_there_is_no_sum() -> None:
    assert not ranking(torch.zeros(3, 4, dtype=FLOAT), torch.ones(3).long()).any()


@pytest.mark.parametrize(("samples", "scale"), [(50, 60.0), (2, 1.0)])
def test_margins_are_the_logarithm_of_the_odds(samples: int, scale: float) -> None:
    logits_NC = scale * case(samples, 4)[0]
    rest_NC = torch.stack(
        [logits_NC[:, [k for k in range(4) if k != c]].logsumexp(1) for c in range(4)], 1
    )
    actual_NC = torch.from_numpy(margins(torch.log_softmax(logits_NC, 1)))
    assert actual_NC.allclose(logits_NC - rest_NC, atol=1e-9)


PERFECT = {
    "pairs": 6.0,
    "ordered": 6.0,
    "squared-error": 36.0,
    "positives": 2.0,
    "precision": 2.0,
    "sensitivity": 2.0,
    "negatives": 3.0,
    "specificity": 3.0,
}
"""Of a class with two samples beside three others: the largest that every sum can be."""


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, ""),
        ({"pairs": 7.0}, "are over other pairs"),
        ({"positives": 3.0}, "are over other pairs"),
        ({"negatives": 2.0}, "are over other pairs"),
        ({"ordered": 6.5}, "have a mean above 1"),
        ({"squared-error": 36.5}, "have a mean above 1"),
        ({"precision": 2 + 1e-9, "sensitivity": 2 + 1e-9, "specificity": 3 + 1e-9}, ""),  # rounding
        ({"precision": 2.01}, "have a mean above 1"),
        ({"sensitivity": 2.01}, "have a mean above 1"),
        ({"specificity": 3.01}, "have a mean above 1"),
    ],
)
def test_sums_of_a_ranking_that_cannot_be_are_refused(
    changes: dict[str, float], reason: str
) -> None:
    row = {**PERFECT, **changes}
    other = [6.0, 6.0, 36.0, 3.0, 3.0, 3.0, 2.0, 2.0]
    sums_CS = torch.tensor([[row[name] for name in COLUMNS], other], dtype=FLOAT)
    said = contradiction(sums_CS, torch.tensor([2, 3]))
    assert said.startswith(reason) and bool(said) == bool(reason)


@pytest.mark.parametrize(("classes", "ranks"), [(MOST_RANKED, True), (MOST_RANKED + 1, False)])
def test_of_very_many_classes_a_ranking_has_no_sums(classes: int, ranks: bool) -> None:
    nothing_CS = torch.zeros(classes, len(COLUMNS), dtype=FLOAT)
    samples_C = torch.ones(classes, dtype=torch.int64)
    assert bool(contradiction(nothing_CS, samples_C)) == ranks
    assert bool(ranking(torch.zeros(2, classes).double(), torch.tensor([0, 1])).any()) == ranks
    assert contradiction(nothing_CS, 5 * torch.eye(classes, dtype=torch.int64)[0]) == ""
