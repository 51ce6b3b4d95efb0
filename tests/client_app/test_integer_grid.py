"""Sums of features on a fixed-point grid: equal to sums of Python's integers, whatever the order and the clients."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from client_builders import batches_of, client_of, linear_model
from torch import Tensor

from client_app.client import Client, InvalidReply
from client_app.state import State
from client_app.variants.feature_statistics import (
    BalancedStatistics,
    ClassMeans,
    FeatureStatistics,
    GridStatistics,
    IntegerGrid,
    LabelCounts,
    balanced_weights,
    class_sums,
    from_triangle,
    weighted_gram,
)
from data import SettingError

CLASSES, WIDTH = 3, 5
KINDS = (FeatureStatistics, BalancedStatistics, ClassMeans)


def features_of(number: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return features (N, D) of which a few lie beyond the range of 8, and labels."""
    draws = torch.Generator().manual_seed(seed)
    features_ND = 3 * torch.randn(number, WIDTH, generator=draws)
    features_ND[0, 0], features_ND[1, 1] = 100.0, -9.0
    return features_ND, torch.randint(CLASSES, (number,), generator=draws)


def client_with(features_ND: Tensor, labels_N: Tensor, total_C: Tensor) -> Client:
    """Return a client whose features are its inputs, with the counts of all clients."""
    broadcast = {LabelCounts.name: {"counts": total_C}}
    model = linear_model(WIDTH, CLASSES).float()
    return client_of(model, features_ND, labels_N, CLASSES, broadcast=broadcast)


def exact(value: float, bits: int, reach: float) -> int:
    """Return a feature on the grid, by fractions."""
    scaled = Fraction(value) * 2**bits / Fraction(reach)
    return max(-(2**bits), min(2**bits, round(scaled)))  # round is half to even


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize(("bits", "reach"), [(20, 8.0), (3, 1.5)])
def test_sums_equal_a_reference_of_big_integers(
    kind: type[GridStatistics], bits: int, reach: float
) -> None:
    features_ND, labels_N = features_of(40)
    total_C = torch.bincount(labels_N, minlength=CLASSES)
    variant = kind(bits=bits, range=reach)
    client = client_with(features_ND, labels_N, total_C)
    with batches_of(7):
        answer = variant.answer(client)

    rows, labels = features_ND.tolist(), labels_N.tolist()
    integers_ND = np.array([[exact(value, bits, reach) for value in row] for row in rows], object)
    for label in range(CLASSES):
        assert answer["sums"][label].tolist() == list(integers_ND[labels_N == label].sum(0))
    assert answer["counts"].tolist() == total_C.tolist()
    if not variant.squares:
        assert "triangle" not in answer
        return
    weights = variant.class_weights(client).tolist()
    weights_N1 = np.array([[weights[label]] for label in labels], object)
    gram = from_triangle(answer["triangle"], WIDTH)
    assert gram.tolist() == ((weights_N1 * integers_ND).T @ integers_ND).tolist()


def test_products_that_no_float64_holds_are_refused() -> None:
    weights_N = torch.ones(1, dtype=torch.int64)
    assert weighted_gram(torch.ones(1, 1, dtype=torch.int64), weights_N, 26).item() == 1
    with pytest.raises(ValueError):
        weighted_gram(torch.ones(1, 1, dtype=torch.int64), weights_N, 27)
    with pytest.raises(ValueError):
        weighted_gram(torch.ones(1, 1, dtype=torch.int64), 2 * weights_N, 26)  # 2^53 itself


def test_sums_of_no_samples() -> None:
    empty = torch.zeros(0, WIDTH, dtype=torch.int64)
    labels = torch.zeros(0, dtype=torch.int64)
    assert class_sums(empty, labels, CLASSES).tolist() == [[0] * WIDTH] * CLASSES
    assert not weighted_gram(empty, labels, 12).any()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_feature_that_is_not_finite_is_an_error(value: float) -> None:
    with pytest.raises(FloatingPointError):
        IntegerGrid(12, 8.0).integers(torch.tensor([[1.0, value]]))


def test_balanced_weights() -> None:
    assert balanced_weights(torch.tensor([10, 1000, 0, 20])).tolist() == [1024, 10, 1, 512]
    assert balanced_weights(torch.tensor([1, 10**6])).tolist() == [1024, 1]


def test_sums_that_could_overflow_are_refused() -> None:
    for variant, most in (
        (FeatureStatistics(bits=20), 2**23),
        (BalancedStatistics(bits=20), 2**13),
    ):
        total = {"sums": torch.zeros(1, 1), "outside": torch.zeros(17)}
        variant.check_sum({**total, "counts": torch.tensor([most - 1])})
        with pytest.raises(SettingError) as caught:
            variant.check_sum({**total, "counts": torch.tensor([most])})
        assert (caught.value.key, caught.value.value) == (f"{variant.name}.bits", 20)


def test_more_than_a_thousandth_clipped_is_refused_with_the_range_to_set() -> None:
    features_ND = torch.ones(1000, WIDTH)
    labels_N = torch.zeros(1000, dtype=torch.int64)

    def check(variant: ClassMeans) -> None:
        client = client_with(features_ND, labels_N, torch.tensor([1000, 0, 0]))
        variant.check_sum(variant.answer(client))

    features_ND[:5, 0] = 20.0  # of 5,000 values one in a thousand, which is allowed
    check(ClassMeans())
    features_ND[5, 0] = 10.0
    with pytest.raises(SettingError) as caught:
        check(ClassMeans())
    assert caught.value.key == "class-means.range" and "16 is enough" in str(caught.value)
    check(ClassMeans(range=16.0))


LARGEST_ANSWER: dict[str, list[int]] = {
    "counts": [2, 0, 1],
    "sums": [2 * 4096, -2 * 4096, 0, 0, 0, 0, 4096, -4096, 0],
    "outside": [9, *[0] * 16],
    "triangle": [3 * 4096**2, -3 * 4096**2, 0, 0, 0, 0],
}
"""Of three samples with three features, all at an end of the grid of 12 bits and most of them outside: nine values."""


def answer_with(name: str = "", place: int = 0, add: int = 0) -> State:
    """Return LARGEST_ANSWER with one number changed."""
    columns = {key: torch.tensor(column) for key, column in LARGEST_ANSWER.items()}
    if name:
        columns[name][place] += add
    return {**columns, "sums": columns["sums"].reshape(3, 3)}


@pytest.mark.parametrize(
    ("name", "place", "add"),
    [
        ("sums", 0, 1),
        ("sums", 1, -1),
        ("sums", 3, 1),  # of a class without samples
        ("sums", 3, -(2**63)),
        ("outside", 0, 1),
        ("triangle", 0, 1),
        ("triangle", 2, -(2**63)),
    ],
)
def test_the_largest_answer_that_can_be_is_taken_and_nothing_beyond_it(
    name: str, place: int, add: int
) -> None:
    validate = FeatureStatistics().upload.validate
    assert validate(answer_with(), 3, 3) == validate(answer_with(), 3, None) == 3
    for wrong, samples in ((answer_with(name, place, add), None), (answer_with(), 4)):
        with pytest.raises(InvalidReply):
            validate(wrong, 3, samples)


def test_values_outside_are_counted_by_doublings_of_the_range() -> None:
    values = torch.tensor([[8.0, -8.1, 16.0, 17.0, -8 * 2.0**16, 8 * 2.0**16 + 1]])
    outside = IntegerGrid(12, 8.0).outside(values).tolist()
    assert outside == [5, 3, *[2] * 14, 1]
