"""States: means, digests, prefixes, seeds."""

import math

import pytest
import torch
from client_builders import FLOAT, same
from torch import Tensor

from client_app.state import (
    digest,
    pieces,
    seed_global,
    seed_of,
    split_prefix,
    weighted_mean,
    weighted_sum,
    with_prefix,
)


def states(number: int = 5, seed: int = 0) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        {
            "weight": torch.randn(3, 4, generator=generator) * 10 ** (i - 2),
            "double": torch.randn(2, dtype=FLOAT, generator=generator),
            "scalar": torch.randn((), generator=generator),
            "counter": torch.tensor(7 + i),
            "empty": torch.empty(0, 2),
        }
        for i in range(number)
    ]


WEIGHTS = [3.0, 1.0, 4.0, 1.5, 9.25]


def test_tensors_of_all_sizes_are_summed_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some fill a piece together, some alone, and some several; large ones stand between small ones."""
    sizes = [4, 2, 1, 9, 1, 6, 6, 13, 12, 5, 2]
    draws = torch.Generator().manual_seed(0)
    given = [
        {str(k): torch.randn(n, generator=draws) for k, n in enumerate(sizes)} for _ in range(3)
    ]
    at_once = weighted_sum(given, WEIGHTS[:3])
    monkeypatch.setattr("client_app.state.CHUNK", 6)
    assert same(weighted_sum(given, WEIGHTS[:3]), at_once)
    lengths = [[len(tensor) for tensor in piece[0]] for piece in pieces(given, list(at_once), 6)]
    assert lengths == [[4, 2], [6], [3], [1, 1], [6], [6], [6], [1], [6], [6], [6], [5], [2]]


def test_weighted_mean_is_the_exact_sum_rounded_in_any_order() -> None:
    values, weights = [1e8, 1.0, -1e8, 1e-3, 7.0], [1.0, 2.0, 1.0, 5.0, 3.0]
    exact = math.fsum(w * v for w, v in zip(weights, values, strict=True)) / 12
    mean = weighted_mean([{"x": torch.tensor(value)} for value in values], weights)
    assert mean["x"].item() == pytest.approx(exact, rel=1e-6)  # float32 sums would lose it all
    given = states()
    mean = weighted_mean(given, WEIGHTS)
    for name in ("weight", "double", "scalar"):
        products = [w * state[name].double() for w, state in zip(WEIGHTS, given, strict=True)]
        expected = sum(products[1:], products[0]) / math.fsum(WEIGHTS)
        assert torch.allclose(mean[name].double(), expected, 1e-6, 1e-7), name
    other = weighted_mean(given[::-1], [4 * w for w in WEIGHTS[::-1]])
    assert all(torch.allclose(mean[n], other[n], rtol=1e-6, atol=1e-7) for n in mean)


def test_equal_states_are_their_own_mean() -> None:
    (state,) = states(1)
    assert same(weighted_mean([state] * 4, [1, 2, 4, 1]), state)
    assert same(weighted_mean([state], [0.3]), state)


def test_integers_stay_whole_and_inputs_stay_as_they_are() -> None:
    given = states()
    before = digest(given)
    mean = weighted_mean(given, WEIGHTS)
    assert mean["counter"].item() == 11
    about = [{name: (t.dtype, t.shape) for name, t in state.items()} for state in (mean, given[0])]
    assert about[0] == about[1]
    assert digest(given) == before


@pytest.mark.parametrize(
    ("number", "weights"),
    [(0, []), (2, [1.0, -1.0]), (2, [math.nan, 1.0]), (2, [math.inf, 1.0]), (2, [1.0] * 3)],
)
def test_a_mean_of_nothing_is_refused(number: int, weights: list[float]) -> None:
    with pytest.raises(ValueError):
        weighted_mean(states(number), weights)


X = torch.tensor([1.0, 2.0, 3.0, 4.0])
CHANGES: dict[str, list[dict[str, Tensor]]] = {
    "sign of zero": [{"x": X * torch.tensor([-0.0, 1, 1, 1]), "y": X}],
    "swapped names": [{"y": X, "x": X + 1}],
    "dtype": [{"x": X.view(torch.int32), "y": X}],
    "shape": [{"x": X.reshape(2, 2), "y": X}],
    "extra empty": [{"x": X, "y": X, "z": torch.empty(0)}],
    "other cut": [{"x": X}, {"y": X}],
    "extra state": [{"x": X, "y": X}, {}],
}


@pytest.mark.parametrize("change", CHANGES)
def test_digest_changes_with(change: str) -> None:
    assert digest(CHANGES[change]) != digest([{"x": X, "y": X}])


def test_digest_is_that_of_the_values_not_of_the_memory() -> None:
    expected = digest([{"x": X.reshape(2, 2), "y": X}])
    transposed = X.reshape(2, 2).T.contiguous().T
    assert not transposed.is_contiguous()
    assert digest([{"y": X.clone().requires_grad_(True), "x": transposed}]) == expected


def test_prefixes_come_back() -> None:
    parts = {"one": {"a/b": X, "c": X + 1}, "two": {"a": X}}
    joined = with_prefix("one", parts["one"]) | with_prefix("two", parts["two"])
    assert joined.keys() == {"one/a/b", "one/c", "two/a"}
    assert split_prefix(joined) == parts


def test_seeds_depend_on_every_word() -> None:
    words = [(1, 2, 3), (1, 2, 4), (1, 3, 2), (12, 3), (1, 23)]
    assert len({seed_of(*word) for word in words}) == len(words)
    assert seed_of(1, "model") == 2857051937757529520


@pytest.mark.parametrize(("kind", "everywhere"), [("cpu", 0), ("cuda", 1), ("meta", 1)])
def test_on_a_cpu_no_other_devices_generator_is_seeded(
    monkeypatch: pytest.MonkeyPatch, kind: str, everywhere: int
) -> None:
    seeded: list[int] = []
    monkeypatch.setattr(torch, "manual_seed", seeded.append)
    seed_global(5, torch.device(kind))
    assert len(seeded) == everywhere
    if not everywhere:
        drawn = torch.rand(3)
        assert torch.equal(drawn, torch.rand(3, generator=torch.Generator().manual_seed(5)))
