"""States: means, digests, prefixes, seeds."""

import math
import threading

import pytest
import torch
from client_builders import FLOAT, same
from torch import Tensor

from client_app.state import (
    CHUNK,
    copy,
    difference,
    digest,
    empty,
    fill,
    on_cores,
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


def test_weighted_mean_is_the_exact_sum_rounded() -> None:
    dtype = torch.float32
    values = [1e8, 1.0, -1e8, 1e-3, 7.0, 1e7, -1e7]
    weights = [1.0, 2.0, 1.0, 5.0, 3.0, 0.1, 0.1]
    mean = weighted_mean(
        [{"x": torch.full((2,), value, dtype=dtype)} for value in values], weights
    )["x"]
    stored = [torch.tensor(value, dtype=dtype).item() for value in values]
    exact = math.fsum(w * v for w, v in zip(weights, stored, strict=True)) / math.fsum(weights)
    assert mean.dtype == dtype
    assert mean.tolist() == pytest.approx([exact] * 2, rel=1e-6)  # float32 sums would lose it all


def test_a_formula_by_parts_is_the_formula_to_the_bit() -> None:
    """Of tensors longer than a part, of short ones together, and of one that lies in memory in another order."""
    draw = torch.Generator().manual_seed(0)
    long = CHUNK + 13
    shapes = {"long": (long,), "short": (3, 4), "scalar": (), "empty": (0, 2), "left out": (2,)}
    left, right = (
        {name: torch.randn(shape, generator=draw) for name, shape in shapes.items()}
        for _ in range(2)
    )
    left["across"] = torch.randn(5, long // 4, generator=draw).T
    right["across"] = torch.randn(long // 4, 5, generator=draw)
    names = [name for name in left if name != "left out"]

    products, ratios = empty(left, names), empty(left, names)
    fill([products, ratios], lambda a, b: (a * b + a, a / b), [left, right], names)

    assert same(products, {name: left[name] * right[name] + left[name] for name in names})
    assert same(ratios, {name: left[name] / right[name] for name in names})
    assert same(weighted_sum([left], [1.0]), left)


def test_tensors_of_all_sizes_are_summed_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some fill a piece together, some alone, and some several; large ones stand between small ones."""
    sizes = [4, 2, 1, 9, 1, 6, 6, 13, 12, 5, 2]
    draws = torch.Generator().manual_seed(0)
    given = []
    for _ in range(3):
        given.append({str(k): torch.randn(n, generator=draws) for k, n in enumerate(sizes)})
    at_once = weighted_sum(given, WEIGHTS[:3])
    assert all(tensor.any() for tensor in at_once.values())
    monkeypatch.setattr("client_app.state.CHUNK", 6)
    assert same(weighted_sum(given, WEIGHTS[:3]), at_once)
    for piece in pieces(given, list(at_once), 6):
        assert all(sum(map(torch.numel, tensors)) <= 6 for tensors in piece)
    lengths = [[len(tensor) for tensor in piece[0]] for piece in pieces(given, list(at_once), 6)]
    assert lengths == [[4, 2], [6], [3], [1, 1], [6], [6], [6], [1], [6], [6], [6], [5], [2]]


def test_weighted_mean_over_a_loop_and_in_any_order() -> None:
    given = states()
    mean = weighted_mean(given, WEIGHTS)
    for name in ("weight", "double", "scalar"):
        stacked = torch.stack([state[name].double() for state in given])
        weights_K = torch.tensor(WEIGHTS, dtype=FLOAT).view(-1, *[1] * given[0][name].dim())
        expected = (weights_K * stacked).sum(0) / math.fsum(WEIGHTS)
        tolerance = 1e-7 if mean[name].dtype == torch.float32 else 1e-15
        largest = float(stacked.abs().max()) * max(WEIGHTS)
        assert torch.allclose(mean[name].double(), expected, 0, tolerance * largest)
    low, high = torch.stack([state["weight"] for state in given]).aminmax(dim=0)
    assert (low <= mean["weight"]).all() and (mean["weight"] <= high).all()
    assert same(mean, weighted_mean(given, [4 * w for w in WEIGHTS]))
    others = [
        weighted_mean(given[::-1], WEIGHTS[::-1]),
        weighted_mean(given, [3 * w for w in WEIGHTS]),
    ]
    for other in others:
        assert all(torch.allclose(mean[n], other[n], rtol=1e-6, atol=1e-7) for n in mean)


def test_equal_states_are_their_own_mean() -> None:
    (state,) = states(1)
    assert same(weighted_mean([state] * 4, [1, 2, 4, 1]), state)
    assert same(weighted_mean([state], [0.3]), state)


def test_integers_stay_whole_and_inputs_stay_as_they_are() -> None:
    given = states()
    before = digest(given)
    mean = weighted_mean(given, WEIGHTS)
    assert mean["counter"].dtype == torch.int64 and mean["counter"].item() == 11
    assert mean["empty"].shape == (0, 2) and mean["scalar"].shape == ()
    assert {name: t.dtype for name, t in mean.items()} == {
        name: t.dtype for name, t in given[0].items()
    }
    mean["weight"].fill_(0)
    assert digest(given) == before


@pytest.mark.parametrize(
    ("number", "weights"),
    [(0, []), (2, [1.0, -1.0]), (2, [math.nan, 1.0]), (2, [math.inf, 1.0]), (2, [1.0] * 3)],
)
def test_a_mean_of_nothing_is_refused(number: int, weights: list[float]) -> None:
    with pytest.raises(ValueError):
        weighted_mean(states(number), weights)


def test_sum_and_difference() -> None:
    left, right = states(2)
    total = weighted_sum([left, right], [1.0, -1.0])
    gap = difference(left, right)
    assert gap.keys() == {"weight", "double", "scalar", "empty"}
    assert all(torch.allclose(total[name], gap[name]) for name in gap)


def test_copies_share_nothing() -> None:
    state = {"x": torch.ones(2, requires_grad=True)}
    copied = copy(state)
    with torch.no_grad():
        state["x"].add_(1)
    assert copied["x"].tolist() == [1, 1] and not copied["x"].requires_grad


X = torch.tensor([1.0, 2.0, 3.0, 4.0])
CHANGES: dict[str, list[dict[str, Tensor]]] = {
    "value": [{"x": X + torch.tensor([0, 0, 0, 1e-6]), "y": X}],
    "sign of zero": [{"x": X * torch.tensor([-0.0, 1, 1, 1]), "y": X}],
    "name": [{"z": X, "y": X}],
    "swapped names": [{"y": X, "x": X + 1}],
    "dtype": [{"x": X.view(torch.int32), "y": X}],
    "shape": [{"x": X.reshape(2, 2), "y": X}],
    "missing": [{"x": X}],
    "extra": [{"x": X, "y": X, "z": X}],
    "extra empty": [{"x": X, "y": X, "z": torch.empty(0)}],
    "other cut": [{"x": X}, {"y": X}],
    "extra state": [{"x": X, "y": X}, {}],
    "twice": [{"x": X, "y": X}] * 2,
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
    joined = {**with_prefix("one", parts["one"]), **with_prefix("two", parts["two"])}
    assert joined.keys() == {"one/a/b", "one/c", "two/a"}
    back = split_prefix(joined)
    assert back.keys() == parts.keys() and all(same(back[name], parts[name]) for name in parts)
    assert split_prefix({}) == {}


def test_seeds_depend_on_every_word() -> None:
    words = [(1, 2, 3), (1, 2, 4), (1, 3, 2), (12, 3), (1, 23), ("1", "2", "3", ""), (1, 2)]
    assert len({seed_of(*word) for word in words}) == len(words)
    assert all(0 <= seed_of(word) < 2**63 for word in range(100))
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


def test_a_function_of_many_items_runs_on_every_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """The results are in the order of the items, and an error of one thread is the caller's."""
    items = list(range(7))
    for cores in (1, 3, 16):
        monkeypatch.setattr("client_app.state.cores", lambda cores=cores: cores)
        worked = on_cores(lambda item: (item**2, threading.get_ident()), items)
        assert [square for square, _ in worked] == [item**2 for item in items]
        here = {thread for _, thread in worked} == {threading.get_ident()}
        assert here == (cores == 1) and on_cores(str, []) == []
        with pytest.raises(ZeroDivisionError):
            on_cores(lambda item: 1 / (item - 5), items)


def test_sums_and_formulas_do_not_depend_on_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = torch.Generator().manual_seed(0)
    monkeypatch.setattr("client_app.state.CHUNK", 50)
    given = [
        {name: torch.randn(size, generator=draw) for name, size in (("a", 333), ("b", 7))}
        for _ in range(3)
    ]
    results = []
    for cores in (1, 3):
        monkeypatch.setattr("client_app.state.cores", lambda cores=cores: cores)
        product = empty(given[0], given[0])
        fill([product], lambda a, b, c: [a * b + c], given, given[0], chunk=40)
        results.append({**product, **with_prefix("mean", weighted_mean(given, WEIGHTS[:3]))})
    assert same(results[0], results[1])
    first, second, third = given
    assert same(product, {name: first[name] * second[name] + third[name] for name in first})
