"""Partitions: every sample at exactly one client, the shares that the papers define, and errors instead of hangs."""

import re

import numpy as np
import pytest

from data import SettingError, partitions
from data.long_tail import long_tail_counts
from data.partitions import (
    by_domain,
    classes_per_client,
    domain_parts,
    domain_shares,
    feddf,
    iid,
    lda,
    llt,
    quantity,
)

BALANCED = np.repeat(np.arange(10), 100)
TAILED = np.random.default_rng(5).permutation(
    np.repeat(np.arange(10), long_tail_counts(1200, 100, 10))
)


def draws(seed=0):
    return np.random.default_rng(seed)


def counts(labels, parts, classes=10):
    return np.stack([np.bincount(labels[part], minlength=classes) for part in parts])


MAKERS = {
    "iid": lambda labels, clients, seed: iid(labels, clients, draws(seed)),
    "lda 0.1": lambda labels, clients, seed: lda(labels, clients, 0.1, draws(seed)),
    "lda 100": lambda labels, clients, seed: lda(labels, clients, 100.0, draws(seed)),
    "llt 0.9": lambda labels, clients, seed: llt(labels, clients, 10, 0.9, draws(seed)),
    "llt 0.9 literal": lambda labels, clients, seed: llt(
        labels, clients, 10, 0.9, draws(seed), literal=True
    ),
    "feddf 0.1": lambda labels, clients, seed: feddf(labels, clients, 0.1, draws(seed)),
    "quantity 0.5": lambda labels, clients, seed: quantity(len(labels), clients, 0.5, draws(seed)),
    "three classes each": lambda labels, clients, seed: classes_per_client(
        labels, clients, 10, 3, draws(seed)
    ),
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
    held = counts(BALANCED, lda(BALANCED, 3, 1e-3, draws(), min_samples=1))
    assert (held.max(axis=0) >= 99).all()


def test_lda_balancing_closes_a_client_that_holds_its_part():
    # A client below N / clients takes at most one class more; plain Dirichlet shares give one client more than that.
    held = np.array(
        [[len(part) for part in lda(BALANCED, 5, 0.3, draws(seed), 1)] for seed in range(20)]
    )
    free = np.array([draws(seed).dirichlet(np.full(5, 0.3), 10).sum(0) for seed in range(20)])
    most = 200 + 100 + 10  # rounding leaves the last client a sample a class
    assert held.max() < most < 100 * free.max()


@pytest.mark.parametrize("seed", range(5))
def test_lda_closes_a_client_at_exactly_its_part(seed):
    # Shares of 0 or 1, classes as large as a client's part: each client gets one and is closed.
    parts = lda(np.arange(4).repeat(50), 4, 1e-300, draws(seed), min_samples=0)
    assert [len(part) for part in parts] == [50] * 4


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
    monkeypatch.setattr(partitions, "DRAWS", 15)
    message = (
        r"alpha = 0\.01: in 15 draws of partition lda, at least \d+ of clients = 50 held fewer than min-samples = 19 "
        "of 1000 images; raise alpha or lower one of the other two"
    )
    with pytest.raises(SettingError, match=f"^{message}$"):
        lda(BALANCED, 50, 0.01, draws(), min_samples=19)


def test_lda_gives_up_early_where_there_is_no_hope():
    labels = np.repeat(np.arange(10), 600)
    with pytest.raises(
        SettingError,
        match=r"^alpha = 0\.1: in 20 draws .* at least \d\d of clients = 1000 held fewer",
    ):
        lda(labels, 1000, 0.1, draws(), min_samples=1)


def test_as_many_clients_as_images_are_taken():
    for make in ("iid", "feddf 0.1"):
        assert list(map(len, MAKERS[make](np.arange(10), 10, 0))) == [1] * 10
    assert sum(map(len, MAKERS["llt 0.9"](np.arange(10), 10, 0))) == 10


def test_the_minimum_may_be_each_clients_even_share():
    assert sorted(map(len, lda(np.zeros(20, int), 2, 1e6, draws(), min_samples=10))) == [10, 10]
    with pytest.raises(SettingError, match="10 images each need 20; there are 19"):
        lda(np.zeros(19, int), 2, 1e6, draws(), min_samples=10)


@pytest.mark.parametrize("make", ["iid", "llt 0.9", "feddf 0.1"])
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


@pytest.mark.parametrize(("alpha", "share"), [(0.9, 0.497), (0.99, 0.524)])
def test_llt_literally_gives_the_main_clients_less(alpha, share):
    labels = np.repeat(np.arange(10), 5000)
    held = counts(labels, llt(labels, 100, 10, alpha, draws(), literal=True))
    for label in range(10):
        assert abs(held[label::10, label].sum() / 5000 - share) < 0.003
    ten = [llt(labels, 10, 10, alpha, draws(), literal=form) for form in (False, True)]
    assert all(np.array_equal(a, b) for a, b in zip(*ten, strict=True)), (
        "for ten clients there is one form"
    )


@pytest.mark.parametrize("clients", [10, 20, 25, 33])
@pytest.mark.parametrize("labels", [BALANCED, TAILED[:-3]], ids=["balanced", "tailed"])
def test_feddf_sizes_are_equal_but_for_the_remainder(labels, clients):
    sizes = [len(part) for part in feddf(labels, clients, 0.5, draws(2))]
    assert sum(sizes) == len(labels)
    assert max(sizes) - min(sizes) <= 1


def test_feddf_is_two_partitions_of_ten_for_twenty_clients():
    held = counts(BALANCED, feddf(BALANCED, 20, 0.1, draws(1)))
    # Each half holds a random half of the data, and inside it most of a class is at few clients.
    assert held[:10].sum() == held[10:].sum() == 500
    assert np.abs(held[:10].sum(axis=0) - 50).max() <= 20
    for half in (held[:10], held[10:]):
        assert np.median(half.max(axis=0) / half.sum(axis=0)) > 0.5
    near_iid = counts(BALANCED, feddf(BALANCED, 20, 1e6, draws(1)))
    assert near_iid.max() <= 12


def test_feddf_says_what_it_cannot_do(monkeypatch):
    with pytest.raises(
        SettingError,
        match="clients = 9: must be at least 10, the size of a group of partition feddf",
    ):
        feddf(BALANCED, 9, 0.5, draws())
    monkeypatch.setattr(partitions, "DRAWS", 3)
    with pytest.raises(
        SettingError,
        match=r"alpha = 0.001: in 3 draws of partition feddf some client held less than",
    ):
        feddf(BALANCED[:500], 10, 0.001, draws())


@pytest.mark.parametrize(("fewest", "enough"), [(1, False), (2, True)])
def test_half_of_feddfs_even_share_is_rounded_down(monkeypatch, fewest, enough):
    """50 samples for 10 clients are 5 each: half of that is 2.5, and FedDF's code asks for int(2.5)."""
    held = np.array([fewest, 10 - fewest] + [5] * 8)[:, None]
    monkeypatch.setattr(partitions, "_lda_counts", lambda *_: held)
    labels = np.zeros(50, np.int64)
    if enough:
        assert len(feddf(labels, 10, 0.5, draws())) == 10
    else:
        with pytest.raises(SettingError, match="less than half of its even share"):
            feddf(labels, 10, 0.5, draws())


def test_llt_with_alpha_one_leaves_the_others_nothing():
    assert np.array_equal(
        counts(BALANCED, llt(BALANCED, 10, 10, 1.0, draws())), np.eye(10, dtype=int) * 100
    )


def test_llt_wants_a_multiple_of_the_classes():
    with pytest.raises(
        SettingError, match="clients = 15: must be a multiple of the number of classes, 10, under"
    ):
        llt(BALANCED, 15, 10, 0.9, draws())


def test_each_domain_is_a_client():
    parts = by_domain(np.array([0, 1, 0, 2, 1]), 3)
    assert [part.tolist() for part in parts] == [[0, 2], [1, 4], [3]]


DOMAINS = np.repeat([0, 1, 2], [7438, 7438, 1000])
IN_DOMAINS = np.random.default_rng(3).integers(0, 10, len(DOMAINS))


def test_ten_parts_of_a_domain():
    """FedBN's 7,438 images a domain are cut into parts of 743 or 744 at int(743.8 j), each with the same classes."""
    parts = domain_parts(IN_DOMAINS, DOMAINS, 3, 10, draws())
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(DOMAINS)))
    assert all(np.array_equal(part, np.sort(part)) for part in parts)
    cuts = [int(743.8 * part) for part in range(11)]
    assert [len(part) for part in parts[::3]] == np.diff(cuts).tolist() and set(np.diff(cuts)) == {
        743,
        744,
    }
    for client, part in enumerate(parts):
        domain = client % 3 == DOMAINS
        assert domain[part].all()
        even = np.bincount(IN_DOMAINS[domain], minlength=10) / 10
        assert np.abs(np.bincount(IN_DOMAINS[part], minlength=10) - even).max() <= 2


def test_more_parts_are_more_clients_and_the_first_ones_stay():
    few, many = (domain_parts(IN_DOMAINS, DOMAINS, 3, number, draws()) for number in (2, 5))
    assert (len(few), len(many)) == (6, 15)
    assert all(np.array_equal(a, b) for a, b in zip(few, many[:6], strict=True))


@pytest.mark.parametrize(
    ("percent", "sizes"), [(100, 7438), (30, 743 + 744 + 744), (10, 743), (5, 371), (1, 74)]
)
def test_percent_of_a_domain(percent, sizes):
    parts = domain_shares(IN_DOMAINS, DOMAINS, 3, percent, draws())
    assert [len(part) for part in parts[:2]] == [sizes, sizes]
    assert [set(DOMAINS[part]) for part in parts] == [{0}, {1}, {2}]
    assert np.bincount(IN_DOMAINS[parts[0]], minlength=10).std() < 0.1 * sizes / 10 + 1


# ---- NIID-Bench ------------------------------------------------------------------------------------------------------


def test_quantity_changes_sizes_and_not_classes():
    labels = np.tile(BALANCED, 20)
    held = counts(labels, quantity(len(labels), 10, 0.5, draws(1), min_samples=200))
    sizes = held.sum(axis=1)
    assert sizes.min() >= 200 and sizes.max() > 3 * sizes.min()
    assert np.abs(held / sizes[:, None] - 0.1).max() < 0.06
    even = [len(part) for part in quantity(len(labels), 10, 1e6, draws(1))]
    assert max(even) - min(even) < 40  # the limit of a large alpha is iid


def test_quantity_gives_up_with_a_sentence():
    with pytest.raises(SettingError, match=r"alpha = 0.001: in 10000 draws of partition quantity"):
        quantity(1000, 10, 0.001, draws())


@pytest.mark.parametrize(("clients", "held"), [(10, 1), (10, 2), (20, 3), (5, 2), (7, 10)])
def test_a_client_holds_so_many_classes_and_shares_them_equally(clients, held):
    held_KC = counts(BALANCED, classes_per_client(BALANCED, clients, 10, held, draws(2)))
    assert ((held_KC > 0).sum(axis=1) == held).all()
    assert all(held_KC[client, client % 10] for client in range(clients))
    for column in held_KC.T:
        assert np.ptp(column[column > 0]) <= 1


@pytest.mark.parametrize(
    ("clients", "held", "rule"),
    [(10, 11, "at most the number of classes, 10"), (3, 2, "cannot hold all")],
)
def test_classes_that_cannot_be_dealt_are_refused(clients, held, rule):
    with pytest.raises(SettingError, match=rule):
        classes_per_client(BALANCED, clients, 10, held, draws())


def test_each_of_ten_parts_has_a_tenth_of_every_class() -> None:
    """Example k of a class with n stands at (k + 1/2) / n of the order that is cut into ten."""
    labels_N = np.repeat([0, 1], [10, 90])
    parts = domain_parts(labels_N, np.zeros(100, int), 1, 10, draws())
    assert [np.bincount(labels_N[part]).tolist() for part in parts] == [[1, 9]] * 10


def test_classes_that_no_draw_gives_a_holder_are_refused(monkeypatch):
    """Five clients of two classes each could hold all ten, if no two of them drew the same one."""
    monkeypatch.setattr(partitions, "DRAWS", 3)
    rule = "classes-per-client = 2: in 3 draws some class had no holder; raise it, or clients"
    with pytest.raises(SettingError, match=rule):
        classes_per_client(BALANCED, 5, 10, 2, draws())
