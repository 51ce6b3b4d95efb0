"""Partitions: every sample at exactly one client, the shares that the papers define, and errors instead of hangs."""

import re

import numpy as np
import pytest

from data import SettingError, partitions
from data.long_tail import long_tail_counts
from data.partitions import by_domain, iid, lda, llt

BALANCED = np.repeat(np.arange(10), 100)
TAILED = np.random.default_rng(5).permutation(np.repeat(np.arange(10), long_tail_counts(1200, 100, 10)))


def draws(seed=0):
    return np.random.default_rng(seed)


def counts(labels, parts, classes=10):
    return np.stack([np.bincount(labels[part], minlength=classes) for part in parts])


MAKERS = {
    "iid": lambda labels, clients, seed: iid(labels, clients, draws(seed)),
    "lda 0.1": lambda labels, clients, seed: lda(labels, clients, 0.1, draws(seed)),
    "lda 0.1 unbalanced": lambda labels, clients, seed: lda(labels, clients, 0.1, draws(seed), 1, balance=False),
    "lda 100": lambda labels, clients, seed: lda(labels, clients, 100.0, draws(seed)),
    "llt 0.9": lambda labels, clients, seed: llt(labels, clients, 10, 0.9, draws(seed)),
    "llt 0.1": lambda labels, clients, seed: llt(labels, clients, 10, 0.1, draws(seed)),
}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("labels", [BALANCED, TAILED], ids=["balanced", "tailed"])
@pytest.mark.parametrize("clients", [10, 20])
def test_every_sample_is_at_exactly_one_client(name, labels, clients):
    parts = MAKERS[name](labels, clients, 3)
    assert len(parts) == clients
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels)))
    assert all(np.array_equal(part, np.sort(part)) for part in parts)
    assert np.array_equal(counts(labels, parts).sum(axis=0), np.bincount(labels))


@pytest.mark.parametrize("name", MAKERS)
def test_the_seed_decides(name):
    first, same, other = (MAKERS[name](TAILED, 10, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, same, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_iid_sizes_differ_by_at_most_one():
    sizes = [len(part) for part in iid(np.zeros(103, np.int64), 10, draws())]
    assert sorted(set(sizes)) == [10, 11]


def test_lda_gives_everybody_the_minimum():
    for seed in range(5):
        assert min(len(part) for part in lda(TAILED, 10, 0.1, draws(seed), min_samples=20)) >= 20


def test_lda_nears_iid_for_large_alpha():
    held = counts(BALANCED, lda(BALANCED, 10, 1e6, draws()))
    assert np.abs(held - 10).max() <= 2


def test_lda_nears_one_client_a_class_for_small_alpha():
    held = counts(BALANCED, lda(BALANCED, 3, 1e-3, draws(), min_samples=1, balance=False))
    assert (held.max(axis=0) >= 99).all()


def test_lda_balancing_closes_a_client_that_holds_its_part():
    # A client below N / clients takes at most one class more; without balancing the largest client is larger.
    held = np.array([[len(part) for part in lda(BALANCED, 5, 0.3, draws(seed), 1)] for seed in range(20)])
    free = np.array([[len(part) for part in lda(BALANCED, 5, 0.3, draws(seed), 1, False)] for seed in range(20)])
    assert held.max() < 200 + 100 + 10  # rounding leaves the last client a sample a class
    assert free.max() > held.max()


def test_lda_survives_shares_that_are_all_zero():
    parts = lda(BALANCED, 2, 1e-300, draws(), min_samples=1)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(1000))


@pytest.mark.parametrize(
    ("clients", "minimum", "message"),
    [
        (50, 1, "clients = 50: 50 clients on 40 images: some would hold none"),
        (10, 5, "min-samples = 5: 10 clients with at least 5 images each need 50; there are 40"),
    ],
)
def test_lda_refuses_at_once_what_cannot_be(clients, minimum, message):
    with pytest.raises(SettingError, match=f"^{re.escape(message)}$"):
        lda(BALANCED[:40], clients, 0.1, draws(), min_samples=minimum)


def test_lda_gives_up_and_says_what_could_not_be_met(monkeypatch):
    monkeypatch.setattr(partitions, "DRAWS", 50)
    message = (
        "alpha = 0.01: in 50 draws of partition lda, clients = 50 never held min-samples = 19 of 1000 images each; "
        "raise alpha or lower one of the other two"
    )
    with pytest.raises(SettingError, match=f"^{re.escape(message)}$"):
        lda(BALANCED, 50, 0.01, draws(), min_samples=19)


@pytest.mark.parametrize("make", ["iid", "llt 0.9"])
def test_more_clients_than_images(make):
    with pytest.raises(SettingError, match="50 clients on 40 images"):
        MAKERS[make](BALANCED[:40], 50, 0)


@pytest.mark.parametrize("alpha", [0.9, 0.99])
def test_llt_of_ten_clients(alpha):
    labels = np.repeat(np.arange(10), 1000)
    held = counts(labels, llt(labels, 10, 10, alpha, draws()))
    assert np.abs(np.diag(held) - 1000 * alpha).max() <= 1  # class k's main client is k
    rest = held[~np.eye(10, dtype=bool)]
    assert np.abs(rest - 1000 * (1 - alpha) / 9).max() <= 1
    assert np.abs(held.sum(axis=1) - 1000).max() <= 10


def test_llt_with_alpha_one_tenth_is_iid():
    held = counts(BALANCED, llt(BALANCED, 10, 10, 0.1, draws()))
    assert np.array_equal(held, np.full((10, 10), 10))


def test_llt_of_a_hundred_clients_keeps_alpha_at_the_main_clients():
    labels = np.repeat(np.arange(10), 5000)
    held = counts(labels, llt(labels, 100, 10, 0.9, draws()))
    for label in range(10):
        main = held[label::10, label]
        assert abs(main.sum() - 4500) <= 10
        assert np.abs(main - 450).max() <= 1


def test_llt_with_alpha_one_leaves_the_others_nothing():
    assert np.array_equal(counts(BALANCED, llt(BALANCED, 10, 10, 1.0, draws())), np.eye(10, dtype=int) * 100)


def test_llt_wants_a_multiple_of_the_classes():
    with pytest.raises(SettingError, match="clients = 15: must be a multiple of the number of classes, 10, under"):
        llt(BALANCED, 15, 10, 0.9, draws())


def test_each_domain_is_a_client():
    parts = by_domain(np.array([0, 1, 0, 2, 1]), 3)
    assert [part.tolist() for part in parts] == [[0, 2], [1, 4], [3]]
