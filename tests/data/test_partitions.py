"""Partitions: every sample at exactly one client, the shares that the papers define, and errors instead of hangs.

Which samples a seed draws is in tests/golden/readers.json.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data import SettingError, partitions
from data.partitions import (
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
MAKERS = {
    "iid": iid,
    "lda": lambda labels, clients, draws: lda(labels, clients, 0.3, draws, min_samples=2),
    "feddf": lambda labels, clients, draws: feddf(labels, clients, 0.5, draws),
    "llt": lambda labels, clients, draws: llt(labels, clients, 10, 0.9, draws),
    "quantity": lambda labels, clients, draws: quantity(len(labels), clients, 0.5, draws, 2),
    "three classes": lambda labels, clients, draws: classes_per_client(
        labels, clients, 10, 3, draws
    ),
}


def draws(seed=0):
    return np.random.default_rng(seed)


def counts(labels, parts, classes=10):
    return np.stack([np.bincount(labels[part], minlength=classes) for part in parts])


def same(first, second):
    return all(map(np.array_equal, first, second))


@pytest.mark.parametrize("name", MAKERS)
@settings(max_examples=12, deadline=None, derandomize=True, database=None)
@given(
    sizes=st.lists(st.integers(30, 90), min_size=10, max_size=10),
    clients=st.sampled_from([10, 20]),
    seed=st.integers(0, 1000),
)
def test_every_sample_is_at_exactly_one_client(name, sizes, clients, seed):
    labels = draws(seed).permutation(np.repeat(np.arange(10), sizes))
    parts = MAKERS[name](labels, clients, draws(seed))
    assert len(parts) == clients
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels)))
    assert all((np.diff(part) > 0).all() for part in parts)
    if name in ("lda", "quantity"):
        assert min(map(len, parts)) >= 2


@pytest.mark.parametrize("name", MAKERS)
def test_the_seed_decides(name):
    first, again, other = (MAKERS[name](BALANCED, 10, draws(seed)) for seed in (1, 1, 2))
    assert same(first, again) and not same(first, other)


@pytest.mark.parametrize("name", ["lda", "quantity"])
def test_a_draw_that_gives_everybody_the_minimum_is_taken(name):
    make = {
        "lda": lambda least: lda(BALANCED, 10, 0.5, draws(4), least),
        "quantity": lambda least: quantity(1000, 10, 0.5, draws(4), least),
    }[name]
    first = make(1)
    least = min(map(len, first))
    assert same(make(least), first)
    more = make(least + 1)
    assert not same(more, first) and min(map(len, more)) > least


def test_as_many_clients_as_samples_are_taken():
    for name in ("iid", "feddf"):
        assert list(map(len, MAKERS[name](np.arange(10), 10, draws()))) == [1] * 10
    assert sorted(map(len, lda(np.zeros(20, int), 2, 1e6, draws(), min_samples=10))) == [10, 10]


REFUSED = {
    "fewer samples than clients": (
        lambda: iid(BALANCED[:40], 41, draws()), "clients", lambda: iid(BALANCED[:40], 40, draws())
    ),
    "a minimum beyond the even share": (
        lambda: quantity(19, 2, 1e6, draws(), 10), "min-samples", lambda: quantity(20, 2, 1e9, draws(), 10)
    ),
    "feddf with less than a group": (
        lambda: feddf(BALANCED, 9, 0.5, draws()), "clients", lambda: feddf(BALANCED, 10, 0.5, draws())
    ),
    "more classes than there are": (
        lambda: classes_per_client(BALANCED, 10, 10, 11, draws()),
        "classes-per-client",
        lambda: classes_per_client(BALANCED, 10, 10, 10, draws()),
    ),
    "classes that no client has": (
        lambda: classes_per_client(BALANCED, 9, 10, 1, draws()),
        "classes-per-client",
        lambda: classes_per_client(BALANCED, 10, 10, 1, draws()),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused_at_once(case):
    make, key, control = REFUSED[case]
    with pytest.raises(SettingError) as caught:
        make()
    assert caught.value.key == key and "draws" not in caught.value.rule
    control()


HARD = {
    "lda": (lambda: lda(BALANCED, 30, 0.01, draws(), min_samples=19), "alpha"),
    "feddf": (lambda: feddf(BALANCED[:500], 10, 0.001, draws()), "alpha"),
    "quantity": (lambda: quantity(1000, 10, 0.001, draws(), 10), "alpha"),
    # Five clients of two classes each could hold all ten, if no two of them drew the same one.
    "classes": (lambda: classes_per_client(BALANCED, 5, 10, 2, draws()), "classes-per-client"),
}


@pytest.mark.parametrize("name", HARD)
def test_a_partition_gives_up_after_so_many_draws(name, monkeypatch):
    monkeypatch.setattr(partitions, "DRAWS", 3)
    make, key = HARD[name]
    with pytest.raises(SettingError) as caught:
        make()
    assert caught.value.key == key and "in 3 draws" in caught.value.rule


def test_nobody_waits_for_more_than_ten_thousand_draws():
    """Such an alpha gives no shares at all."""
    with pytest.raises(SettingError) as caught:
        quantity(20, 2, 1e-300, draws(), 2)
    assert "in 10000 draws" in caught.value.rule


@pytest.mark.parametrize(("clients", "said"), [(40, "in 20 draws"), (39, "in 25 draws")])
def test_lda_gives_up_early_where_thirty_clients_have_too_few(clients, said, monkeypatch):
    """In the limit of a small alpha every class is at one client: of ten classes, all other clients hold nothing."""
    monkeypatch.setattr(partitions, "DRAWS", 25)
    with pytest.raises(SettingError) as caught:
        lda(BALANCED, clients, 1e-300, draws(), min_samples=1)
    assert said in caught.value.rule and f"at least {clients - 10} of" in caught.value.rule


# ---- closed forms ----------------------------------------------------------------------------------------------------


def test_iid_sizes_differ_by_at_most_one():
    sizes = [len(part) for part in iid(np.zeros(103, np.int64), 10, draws())]
    assert sorted(sizes) == [10] * 7 + [11] * 3


def test_lda_nears_iid_for_large_alpha():
    held = counts(BALANCED, lda(BALANCED, 10, 1e6, draws()))
    assert np.abs(held - 10).max() <= 2


def test_lda_nears_one_client_a_class_for_small_alpha():
    held = counts(BALANCED, lda(BALANCED, 3, 1e-3, draws(), min_samples=1))
    assert (held.max(axis=0) >= 99).all()


@pytest.mark.parametrize("seed", range(3))
def test_lda_closes_a_client_at_exactly_its_part(seed):
    """Shares of 0 or 1, classes as large as a client's part: each client gets one and is closed."""
    parts = lda(np.arange(4).repeat(50), 4, 1e-300, draws(seed), min_samples=0)
    assert [len(part) for part in parts] == [50] * 4


def test_plain_lda_s_shares_are_the_dirichlet_s_own():
    """The same draws, class by class: sizes are the shares' sums, and a client past its part still gets more."""
    labels = np.arange(4).repeat(1000)
    held = counts(labels, lda(labels, 3, 0.1, draws(), min_samples=0, balanced=False), 4)
    same_draws = draws()
    shares = np.stack([same_draws.dirichlet(np.full(3, 0.1)) for _ in range(4)], axis=1)
    assert np.abs(held - 1000 * shares).max() <= 1
    assert not np.array_equal(held, counts(labels, lda(labels, 3, 0.1, draws(), 0), 4))


@pytest.mark.parametrize("clients", [10, 20, 25, 33])
def test_feddf_sizes_are_equal_but_for_the_remainder(clients):
    labels = np.repeat(np.arange(10), np.arange(150, 50, -10) - 1)
    sizes = [len(part) for part in feddf(labels, clients, 0.5, draws(2))]
    assert sum(sizes) == len(labels) and max(sizes) - min(sizes) == (len(labels) % clients > 0)


def test_half_of_feddfs_even_share_is_rounded_down(monkeypatch):
    """50 samples for 10 clients are 5 each: half of that is 2.5, and FedDF's code asks for int(2.5)."""
    monkeypatch.setattr(partitions, "DRAWS", 1)
    fewest = set()
    for seed in range(30):
        generator = draws(seed)
        generator.permutation(50)
        ends = np.floor(np.cumsum(generator.dirichlet([8.0] * 10)) * 50)
        least = int(np.diff([0, *ends[:-1], 50]).min())
        fewest.add(least)
        if least >= 2:
            assert len(feddf(np.zeros(50, np.int64), 10, 8.0, draws(seed))) == 10
            continue
        with pytest.raises(SettingError):
            feddf(np.zeros(50, np.int64), 10, 8.0, draws(seed))
    assert {1, 2} <= fewest


@pytest.mark.parametrize("alpha", [0.1, 0.9, 1.0])
def test_llt_of_ten_clients(alpha):
    """The main client of class k is client k. A tenth is each client's even share."""
    labels = np.repeat(np.arange(10), 1000)
    held = counts(labels, llt(labels, 10, 10, alpha, draws()))
    assert np.abs(np.diag(held) - 1000 * alpha).max() <= 1
    rest = held[~np.eye(10, dtype=bool)]
    assert np.abs(rest - 1000 * (1 - alpha) / 9).max() <= 1


def test_llt_of_a_hundred_clients_keeps_alpha_at_the_main_clients():
    """The public code gives the others 1 - alpha / 10 and then normalizes, so that its main clients have less."""
    labels = np.repeat(np.arange(10), 5000)
    held = counts(labels, llt(labels, 100, 10, 0.9, draws()))
    for label in range(10):
        others = np.delete(held[:, label], np.s_[label::10])
        assert np.abs(held[label::10, label] - 500 * 0.9).max() <= 1
        assert np.abs(others - 5000 * 0.1 / 90).max() <= 1


def test_llt_clients_have_one_class_and_some_of_all():
    """IWDS, Figure 1, of ten clients with CIFAR-10's labels: under LDA a client has a few classes instead."""
    labels = np.repeat(np.arange(10), 5000)
    for alpha, share in ((0.9, 0.88), (0.99, 0.98)):
        counts_KC = counts(labels, llt(labels, 10, 10, alpha, draws()))
        assert (counts_KC.max(1) / counts_KC.sum(1)).mean() >= share
        assert (counts_KC > 0).all()
    skewed, weakly = (counts(labels, lda(labels, 10, alpha, draws())) for alpha in (0.1, 0.5))
    assert (skewed > 0).sum(1).mean() <= 7
    assert (weakly.max(1) / weakly.sum(1)).mean() <= 0.6


@pytest.mark.parametrize(("clients", "held"), [(10, 1), (20, 3), (5, 2), (7, 10)])
def test_a_client_holds_so_many_classes_and_shares_them_equally(clients, held):
    held_KC = counts(BALANCED, classes_per_client(BALANCED, clients, 10, held, draws(2)))
    assert ((held_KC > 0).sum(axis=1) == held).all()
    assert all(held_KC[client, client % 10] for client in range(clients))
    for column in held_KC.T:
        assert np.ptp(column[column > 0]) <= 1


# ---- domains ---------------------------------------------------------------------------------------------------------

DOMAINS = np.repeat([0, 1, 2], [7438, 7438, 1000])
IN_DOMAINS = draws(3).integers(0, 10, len(DOMAINS))


def test_ten_parts_of_a_domain():
    """FedBN's 7,438 images a domain are cut into parts of 743 or 744 at int(743.8 j), each with the same classes."""
    parts = domain_parts(IN_DOMAINS, DOMAINS, 3, 10, draws())
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(DOMAINS)))
    assert all((np.diff(part) > 0).all() for part in parts)
    cuts = [int(743.8 * part) for part in range(11)]
    assert [len(part) for part in parts[::3]] == np.diff(cuts).tolist()
    for client, part in enumerate(parts):
        of_domain = client % 3 == DOMAINS
        assert of_domain[part].all()
        even = np.bincount(IN_DOMAINS[of_domain], minlength=10) / 10
        assert np.abs(np.bincount(IN_DOMAINS[part], minlength=10) - even).max() <= 2


def test_each_of_ten_parts_has_a_tenth_of_every_class():
    """Example k of a class with n stands at (k + 1/2) / n of the order that is cut into ten."""
    labels_N = np.repeat([0, 1], [10, 90])
    parts = domain_parts(labels_N, np.zeros(100, int), 1, 10, draws())
    assert [np.bincount(labels_N[part]).tolist() for part in parts] == [[1, 9]] * 10
    rare_N = np.repeat([0, 1], [98, 2])
    parts = domain_parts(rare_N, np.zeros(100, int), 1, 10, draws())
    assert [part for part in range(10) if rare_N[parts[part]].any()] == [2, 7]


@pytest.mark.parametrize(("percent", "sizes"), [(100, 7438), (30, 743 + 744 + 744), (9.9, 735)])
def test_percent_of_a_domain(percent, sizes):
    parts = domain_shares(IN_DOMAINS, DOMAINS, 3, percent, draws())
    assert [len(part) for part in parts[:2]] == [sizes, sizes]
    assert [set(DOMAINS[part]) for part in parts] == [{0}, {1}, {2}]
    assert all((np.diff(part) > 0).all() for part in parts)
    assert np.bincount(IN_DOMAINS[parts[0]], minlength=10).std() < 0.1 * sizes / 10 + 1
