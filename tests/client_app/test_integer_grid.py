"""Sums of features on a fixed-point grid: equal to sums of Python's integers, whatever the order and the clients."""

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from client_builders import client_of, linear_model
from torch import Tensor

from client_app.client import Client, InvalidReply
from client_app.integer_grid import (
    IntegerGrid,
    class_sums,
    from_triangle,
    triangle_of,
    weighted_gram,
)
from client_app.state import State, digest
from client_app.variants.feature_statistics import (
    BalancedStatistics,
    ClassMeans,
    FeatureStatistics,
    GridStatistics,
    LabelCounts,
    balanced_weights,
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


def summed(answers: list[State]) -> dict[str, Tensor]:
    return {name: torch.stack([answer[name] for answer in answers]).sum(0) for name in answers[0]}


def exact_integer(value: float, bits: int, reach: float) -> int:
    """Return a feature on the grid, by fractions."""
    scaled = Fraction(value) * 2**bits / Fraction(reach)
    return max(-(2**bits), min(2**bits, round(scaled)))  # round is half to even


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize(("bits", "reach"), [(12, 8.0), (20, 8.0), (3, 1.5)])
def test_sums_equal_a_reference_of_big_integers(
    kind: type[GridStatistics], bits: int, reach: float
) -> None:
    features_ND, labels_N = features_of(40)
    total_C = torch.bincount(labels_N, minlength=CLASSES)
    variant = kind(bits=bits, range=reach)
    answer = variant.answer(client_with(features_ND, labels_N, total_C), kind.name)

    integers = [
        [exact_integer(value, bits, reach) for value in row] for row in features_ND.tolist()
    ]
    labels = labels_N.tolist()
    weights = variant.class_weights(client_with(features_ND, labels_N, total_C)).tolist()
    for label, column in itertools.product(range(CLASSES), range(WIDTH)):
        rows = [row for row, own in zip(integers, labels, strict=True) if own == label]
        assert answer["sums"][label, column] == sum(row[column] for row in rows)
        assert answer["counts"][label] == len(rows)
    for power, count in enumerate(answer["outside"].tolist()):
        assert count == sum(abs(v) > reach * 2**power for row in features_ND.tolist() for v in row)
    if not variant.squares:
        assert "triangle" not in answer
        return
    gram = from_triangle(answer["triangle"], WIDTH)
    for left, right in itertools.product(range(WIDTH), range(WIDTH)):
        exact = sum(
            weights[label] * row[left] * row[right]
            for row, label in zip(integers, labels, strict=True)
        )
        assert gram[left, right] == exact


@pytest.mark.parametrize("bits", [1, 12, 20])
def test_the_largest_products_are_exact(bits: int) -> None:
    """All features at the end of the range: the sums come as close to their bound as they can."""
    integers_ND = torch.full((50, 2), 2**bits)
    integers_ND[:, 1] = -(2**bits)
    weights_N = torch.full((50,), 1024)
    expected = 50 * 1024 * 4**bits
    gram = weighted_gram(integers_ND, weights_N, bits)
    assert gram.tolist() == [[expected, -expected], [-expected, expected]]
    assert IntegerGrid(bits, 8.0).largest_sum(50, 1024) == expected


def test_products_that_no_float64_holds_are_refused() -> None:
    weights_N = torch.ones(1, dtype=torch.int64)
    assert weighted_gram(torch.ones(1, 1, dtype=torch.int64), weights_N, 26).item() == 1
    with pytest.raises(ValueError, match="27 bits"):
        weighted_gram(torch.ones(1, 1, dtype=torch.int64), weights_N, 27)
    with pytest.raises(ValueError, match="a weight of 2 and 26 bits: no product is exact"):
        weighted_gram(torch.ones(1, 1, dtype=torch.int64), 2 * weights_N, 26)  # 2^53 itself


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_clients_samples_and_batches_in_any_order_change_no_bit(
    kind: type[GridStatistics], monkeypatch: pytest.MonkeyPatch
) -> None:
    features_ND, labels_N = features_of(150)
    total_C = torch.bincount(labels_N, minlength=CLASSES)
    variant = kind()
    whole = variant.answer(client_with(features_ND, labels_N, total_C), kind.name)
    for seed, clients in enumerate((1, 2, 7, 150)):
        order = torch.randperm(150, generator=torch.Generator().manual_seed(seed))
        monkeypatch.setattr("client_app.models.classifier.INFERENCE_BATCH", {"cpu": 3 + seed})
        parts = [
            client_with(features_ND[part], labels_N[part], total_C)
            for part in order.tensor_split(clients)
        ]
        answers = [variant.answer(part, kind.name) for part in parts]
        assert digest([summed(answers)]) == digest([whole])
    changed_N = labels_N.clone()
    changed_N[7] = (changed_N[7] + 1) % CLASSES  # the control: one label is another
    other = variant.answer(client_with(features_ND, changed_N, total_C), kind.name)
    assert digest([other]) != digest([whole])


def test_the_triangle_and_back() -> None:
    matrix = torch.arange(16).reshape(4, 4)
    matrix = matrix + matrix.T
    assert len(triangle_of(matrix)) == 10
    assert torch.equal(from_triangle(triangle_of(matrix), 4), matrix)


def test_sums_of_no_samples() -> None:
    empty = torch.zeros(0, WIDTH, dtype=torch.int64)
    labels = torch.zeros(0, dtype=torch.int64)
    assert class_sums(empty, labels, CLASSES).tolist() == [[0] * WIDTH] * CLASSES
    assert not weighted_gram(empty, labels, 12).any()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_feature_that_is_not_finite_is_an_error(value: float) -> None:
    with pytest.raises(FloatingPointError, match="not finite"):
        IntegerGrid(12, 8.0).integers(torch.tensor([[1.0, value]]))


def test_balanced_weights() -> None:
    assert balanced_weights(torch.tensor([10, 1000, 0, 20])).tolist() == [1024, 10, 1, 512]
    assert balanced_weights(torch.tensor([1, 10**6])).tolist() == [1024, 1]


def test_sums_that_could_overflow_are_refused_before() -> None:
    FeatureStatistics(bits=20).check_size(2**23 - 1)
    with pytest.raises(
        SettingError, match=r"feature-statistics.bits.*must be at most 19"
    ) as caught:
        FeatureStatistics(bits=20).check_size(2**23)
    assert caught.value.value == 20
    BalancedStatistics(bits=20).check_size(2**13 - 1)
    with pytest.raises(SettingError, match=r"balanced-statistics.bits.*8192 samples"):
        BalancedStatistics(bits=20).check_size(2**13)


def test_more_than_a_thousandth_clipped_is_refused_with_the_range_to_set() -> None:
    features_ND = torch.ones(1000, WIDTH)
    features_ND[:5, 0] = 20.0  # of 5,000 values one in a thousand, which is allowed
    labels_N = torch.zeros(1000, dtype=torch.int64)
    total_C = torch.tensor([1000, 0, 0])
    variant = ClassMeans()
    variant.check_sum(variant.answer(client_with(features_ND, labels_N, total_C), variant.name))
    features_ND[5, 0] = 10.0
    answer = variant.answer(client_with(features_ND, labels_N, total_C), variant.name)
    with pytest.raises(SettingError, match=r"class-means.range = 8.*0.12%.*16 is enough"):
        variant.check_sum(answer)
    wider = replace(variant, range=16.0)
    wider.check_sum(wider.answer(client_with(features_ND, labels_N, total_C), variant.name))


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("counts", lambda t: t + 1, "samples"),
        ("counts", lambda t: t * 0 - 1, "negative"),
        ("sums", lambda t: t * 0 + 2**40, "a sum is larger"),
        ("sums", lambda t: t * 0 - 2**63, "a sum is larger"),
        ("outside", lambda t: t - 1000, "outside"),
        ("outside", lambda t: t + 1000, "outside"),
        ("triangle", lambda t: t * 0 + 2**60, "a sum of products"),
        ("triangle", lambda t: t * 0 - 2**63, "a sum of products"),
    ],
)
def test_an_answer_that_cannot_be_is_refused(name: str, change: object, reason: str) -> None:
    features_ND, labels_N = features_of(20)
    total_C = torch.bincount(labels_N, minlength=CLASSES)
    variant = FeatureStatistics()
    answer = dict(variant.answer(client_with(features_ND, labels_N, total_C), variant.name))
    assert variant.upload.validate(answer, CLASSES, 20) == 20
    answer[name] = change(answer[name])  # type: ignore[operator]
    with pytest.raises(InvalidReply, match=reason):
        variant.upload.validate(answer, CLASSES, 20)


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
    ("name", "place", "add", "reason"),
    [
        ("sums", 0, 1, "a sum is larger"),
        ("sums", 1, -1, "a sum is larger"),
        ("sums", 3, 1, "a sum is larger"),  # of a class without samples
        ("outside", 0, 1, "outside"),
        ("outside", 5, -1, "outside"),
        ("triangle", 0, 1, "a sum of products"),
        ("triangle", 1, -1, "a sum of products"),
        ("counts", 1, -1, "negative"),
        ("counts", 1, 2**40 + 1, "too large"),
    ],
)
def test_the_largest_answer_that_can_be_is_taken_and_nothing_beyond_it(
    name: str, place: int, add: int, reason: str
) -> None:
    variant = FeatureStatistics()
    assert variant.check_statistics(answer_with(), 3, 3) == 3
    assert variant.check_statistics(answer_with(), 3, None) == 3
    with pytest.raises(InvalidReply, match=reason):
        variant.check_statistics(answer_with(name, place, add), 3, None)


def test_counts_of_2_to_the_40_are_taken() -> None:
    counts_C = torch.tensor([2**40, 0])
    assert LabelCounts().check_counts({"counts": counts_C}, 2, None) == 2**40
    with pytest.raises(InvalidReply, match="the client has 5"):
        LabelCounts().check_counts({"counts": counts_C}, 2, 5)


def test_the_shapes_of_an_answer_and_its_bytes() -> None:
    """Seventeen counts of values outside: beyond 1, 2, 4, ... 65,536 times the range."""
    model = linear_model(WIDTH, CLASSES)
    shapes = {"counts": (3,), "sums": (3, 5), "outside": (17,)}
    assert ClassMeans().upload.bytes(model, CLASSES) == 8 * (3 + 15 + 17)
    assert ClassMeans().shapes(model) == shapes
    assert FeatureStatistics().shapes(model) == {**shapes, "triangle": (15,)}


def test_the_most_bits_that_fit() -> None:
    """n samples of weight w and b bits need n w 4^b <= 2^63 - 1."""
    grid = IntegerGrid(20, 8.0)
    assert grid.most_bits(2**23 - 1, 1) == 20
    assert grid.most_bits(2**23, 1) == 19
    assert grid.most_bits(2**50, 1024) == 1
    assert grid.most_bits(2**61, 1) == 0
    assert grid.step == 8 / 2**20


def test_values_outside_are_counted_by_doublings_of_the_range() -> None:
    values = torch.tensor([[8.0, -8.1, 16.0, 17.0, -8 * 2.0**16, 8 * 2.0**16 + 1]])
    outside = IntegerGrid(12, 8.0).outside(values).tolist()
    assert outside == [5, 3, *[2] * 14, 1]
