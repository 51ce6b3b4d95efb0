"""Partitions: the assignment of samples to clients.

Each partition takes the labels (N,) of the samples to deal out and returns one sorted array of indices a client; the
arrays are disjoint and cover every sample.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

from data.errors import SettingError
from data.rules import require

Indices = NDArray[np.int64]

GROUP = 10
"""feddf: clients that share one Dirichlet partition."""
DRAWS = 10_000
"""lda, feddf: draws until every client has its minimum. A draw costs 100 microseconds, giving up seconds."""


TRIAL, HOPELESS = 20, 30
"""lda: draws after which it gives up where each has left so many clients short, or more: were their number Poisson, one
draw in 10^12 would leave none."""


def iid(labels_N: NDArray[np.int64], clients: int, generator: np.random.Generator) -> list[Indices]:
    """Shuffle and divide; sizes differ by at most one."""
    _enough(len(labels_N), clients, 1)
    return [np.sort(part) for part in np.array_split(generator.permutation(len(labels_N)), clients)]


def lda(
    labels_N: NDArray[np.int64],
    clients: int,
    alpha: float,
    generator: np.random.Generator,
    min_samples: int = 10,
) -> list[Indices]:
    """Each class split by shares from a Dirichlet(alpha), drawn anew until every client holds `min_samples`.

    A client that already holds N / clients samples or more takes no share of the next class
    (Wang et al., FedMA, 2020; the same code deals out the data of FedShift, IWDS and FedNova).

    Raises:
        SettingError: the minimum cannot be met, or was not met in `DRAWS` draws, or there is no hope that it will be.
    """
    total = len(labels_N)
    _enough(total, clients, min_samples)
    sizes_C = np.bincount(labels_N)
    fewest = clients
    for draw in range(1, DRAWS + 1):
        # Only the counts decide whether a draw is kept, so the samples are shuffled once, after it.
        counts_KC = _lda_counts(sizes_C, clients, alpha, generator)
        fewest = min(fewest, int((counts_KC.sum(axis=1) < min_samples).sum()))
        if not fewest:
            return _deal(labels_N, counts_KC, generator)
        if draw >= TRIAL and fewest >= HOPELESS:
            break
    raise SettingError(
        "alpha",
        alpha,
        f"in {draw} draws of partition lda, at least {fewest} of clients = {clients} held fewer than min-samples = "
        f"{min_samples} of {total} images; raise alpha or lower one of the other two",
    )


def feddf(
    labels_N: NDArray[np.int64],
    clients: int,
    alpha: float,
    generator: np.random.Generator,
) -> list[Indices]:
    """Shuffle, split over groups of ten clients, partition each group by `lda`, then re-cut into equal parts.

    Lin et al. (FedDF, 2020): in a group a draw counts once every client holds half of its even share. The groups'
    lists, client by client and class by class, are laid end to end and cut into contiguous parts whose sizes differ by
    at most one; that the remainder is spread and not dropped is CReFF's (Shang et al., 2022). So 20 clients are two
    independent partitions of 10.

    Raises:
        SettingError: fewer than ten clients, or the minimum was not met in `DRAWS` draws.
    """
    total = len(labels_N)
    require(
        clients >= GROUP,
        "clients",
        clients,
        f"must be at least {GROUP}, the size of a group of partition feddf",
    )
    _enough(total, clients, 1)
    shuffled = generator.permutation(total)
    starts = np.arange(0, clients, GROUP)
    members = np.diff(starts, append=clients)
    chain: list[Indices] = []
    for group, size in zip(
        np.split(shuffled, starts[1:] * total // clients), members.tolist(), strict=True
    ):
        sizes_C = np.bincount(labels_N[group])
        labels_G = labels_N[group]
        for _ in range(DRAWS):
            counts_KC = _lda_counts(sizes_C, size, alpha, generator)
            if counts_KC.sum(axis=1).min() >= len(group) // 2 // size:
                break
        else:
            rule = f"in {DRAWS} draws of partition feddf some client held less than half of its even share; raise alpha"
            raise SettingError("alpha", alpha, rule)
        of_class = [
            np.split(group[labels_G == c], np.cumsum(counts_KC[:-1, c]))
            for c in range(len(sizes_C))
        ]
        for client in range(size):
            chain += [parts[client] for parts in of_class]
    return [np.sort(part) for part in np.array_split(np.concatenate(chain), clients)]


def llt(
    labels_N: NDArray[np.int64],
    clients: int,
    classes: int,
    alpha: float,
    generator: np.random.Generator,
    literal: bool = False,
) -> list[Indices]:
    """The main clients k, k + C, k + 2C, ... of class k hold the share `alpha` of it, the others the rest, all equally.

    Long-tailed partition of GossipFL and VHL (Tang et al., 2022), whose code defines it for 10 and 100 clients of 10
    classes. With `literal` the shares are that code's: the others' is short of one main client's share alone and all
    are then normalized, so that of 100 clients the main ones hold .497 of a class instead of alpha = .9.

    Raises:
        SettingError: the number of clients is no multiple of the number of classes.
    """
    total = len(labels_N)
    _enough(total, clients, 1)
    rule = f"must be a multiple of the number of classes, {classes}, under partition llt"
    require(clients % classes == 0, "clients", clients, rule)
    main = clients // classes
    tail = (1 - (alpha / main if literal else alpha)) / (clients - main)
    total_share = alpha + tail * (clients - main)  # 1, but for the literal form
    shares_KC = np.full((clients, classes), tail / total_share)
    for client in range(clients):
        shares_KC[client, client % classes] = alpha / main / total_share
    sizes_C = np.bincount(labels_N, minlength=classes)
    counts_KC = np.stack(
        [_cut(shares_KC[:, label], int(size)) for label, size in enumerate(sizes_C)], axis=1
    )
    return _deal(labels_N, counts_KC, generator)


def quantity(
    total: int,
    clients: int,
    alpha: float,
    generator: np.random.Generator,
    min_samples: int = 10,
) -> list[Indices]:
    """Shuffled and cut at shares from a Dirichlet(alpha): sizes differ, classes do not (Li et al., NIID-Bench, 2022).

    Raises:
        SettingError: the minimum cannot be met, or was not met in `DRAWS` draws.
    """
    _enough(total, clients, min_samples)
    for _ in range(DRAWS):
        shares_K = generator.dirichlet(np.full(clients, alpha))
        if np.isfinite(shares_K).all() and (sizes_K := _cut(shares_K, total)).min() >= min_samples:
            cuts = np.cumsum(sizes_K[:-1])
            return [np.sort(part) for part in np.split(generator.permutation(total), cuts)]
    rule = (
        f"in {DRAWS} draws of partition quantity some client held fewer than min-samples = "
        f"{min_samples}; raise alpha"
    )
    raise SettingError("alpha", alpha, rule)


def classes_per_client(
    labels_N: NDArray[np.int64],
    clients: int,
    classes: int,
    held: int,
    generator: np.random.Generator,
) -> list[Indices]:
    """Client i holds class i modulo C and `held` - 1 others drawn at random; a class's holders share it equally.

    Li et al. (NIID-Bench, 2022: #C = k). Where there are fewer clients than classes the draw is repeated until every
    class has a holder.

    Raises:
        SettingError: more classes a client than there are, or too few to hold every class.
    """
    key = "classes-per-client"
    require(held <= classes, key, held, f"must be at most the number of classes, {classes}")
    rule = f"{clients} clients with so many classes each cannot hold all {classes}"
    require(clients * held >= classes, key, held, rule)
    for _ in range(DRAWS):
        holds_KC = np.zeros((clients, classes))
        for client in range(clients):
            others = np.delete(np.arange(classes), client % classes)
            holds_KC[client, generator.permutation(others)[: held - 1]] = 1
            holds_KC[client, client % classes] = 1
        if (holders_C := holds_KC.sum(axis=0)).all():
            sizes_C = np.bincount(labels_N, minlength=classes)
            shares_KC = holds_KC / holders_C
            columns = [_cut(shares_KC[:, label], int(size)) for label, size in enumerate(sizes_C)]
            return _deal(labels_N, np.stack(columns, axis=1), generator)
    raise SettingError(
        key, held, f"in {DRAWS} draws some class had no holder; raise it, or clients"
    )


def by_domain(domains_N: NDArray[np.int64], clients: int) -> list[Indices]:
    """Client i holds every sample of domain i."""
    return [np.flatnonzero(domains_N == client) for client in range(clients)]


def domain_parts(
    labels_N: NDArray[np.int64],
    domains_N: NDArray[np.int64],
    domains: int,
    parts_per_domain: int,
    generator: np.random.Generator,
) -> list[Indices]:
    """Every domain cut into ten parts, of which the first `parts_per_domain` are a client each.

    Heterogeneity study of FedBN (Li et al., 2021): clients 0..D-1 hold the first part of each of the D domains, the
    next D the second, and so on, so more clients are less heterogeneous. All parts have the domain's distribution of
    classes. Parts that no client holds are left out.
    """
    cut = [
        ten_parts(labels_N, np.flatnonzero(domains_N == domain), generator)
        for domain in range(domains)
    ]
    clients: list[Indices] = []
    for part in range(parts_per_domain):
        clients += [cut[domain][part] for domain in range(domains)]
    return clients


def domain_shares(
    labels_N: NDArray[np.int64],
    domains_N: NDArray[np.int64],
    domains: int,
    percent: float,
    generator: np.random.Generator,
) -> list[Indices]:
    """Client i holds `percent` of domain i: percent / 10 of its ten parts, or less than one part.

    Data-size study of FedBN (Li et al., 2021).
    """
    held = []
    for domain in range(domains):
        parts = ten_parts(labels_N, np.flatnonzero(domains_N == domain), generator, ordered=False)
        whole = parts[: int(percent / 10)] or [parts[0][: int(percent / 10 * len(parts[0]))]]
        held.append(np.sort(np.concatenate(whole)))
    return held


def ten_parts(
    labels_N: NDArray[np.int64],
    pool: Indices,
    generator: np.random.Generator,
    ordered: bool = True,
) -> list[Indices]:
    """The indices in `pool` in ten parts cut at floor(j n / 10), each with the pool's distribution of classes."""
    shuffled = generator.permutation(pool)
    place = np.empty(len(pool))
    for label in np.unique(labels_N[pool]):
        of_class = np.flatnonzero(labels_N[shuffled] == label)
        place[of_class] = (np.arange(len(of_class)) + 0.5) / len(
            of_class
        )  # each class evenly over the whole
    parts = np.split(shuffled[np.argsort(place, kind="stable")], np.arange(1, 10) * len(pool) // 10)
    return [np.sort(part) for part in parts] if ordered else parts


def _enough(total: int, clients: int, min_samples: int) -> None:
    require(
        clients <= total,
        "clients",
        clients,
        f"{clients} clients on {total} images: some would hold none",
    )
    rule = f"{clients} clients with at least {min_samples} images each need {clients * min_samples}; there are {total}"
    require(clients * min_samples <= total, "min-samples", min_samples, rule)


def _lda_counts(
    sizes_C: NDArray[np.int64],
    clients: int,
    alpha: float,
    generator: np.random.Generator,
) -> NDArray[np.int64]:
    """(clients, classes) samples of one draw."""
    counts_KC = np.zeros((clients, len(sizes_C)), np.int64)
    target = sizes_C.sum() / clients
    for label, size in enumerate(sizes_C.tolist()):
        open_K = counts_KC.sum(axis=1) < target
        shares_K = generator.dirichlet(np.full(clients, alpha)) * open_K
        if not shares_K.sum() > 0:
            # Every share is 0 (or NaN, for a minute alpha): one open client takes the class, the limit alpha -> 0.
            shares_K = np.zeros(clients)
            shares_K[generator.choice(np.flatnonzero(open_K) if open_K.any() else clients)] = 1
        counts_KC[:, label] = _cut(shares_K / shares_K.sum(), size)
    return counts_KC


def _cut(shares_K: NDArray[np.float64], size: int) -> NDArray[np.int64]:
    """(clients,) samples of a class of `size`, cut at floor(cumulative share x size)."""
    # The small term keeps a cumulative share of .9999999999999999 from losing a sample to the next client.
    cuts = np.floor(np.cumsum(shares_K) * size + 1e-9).astype(np.int64)
    cuts[-1] = size
    return np.diff(np.minimum(cuts, size), prepend=0)


def _deal(
    labels_N: NDArray[np.int64], counts_KC: NDArray[np.int64], generator: np.random.Generator
) -> list[Indices]:
    """Shuffle each class and divide it by the counts."""
    held: list[list[Indices]] = [[] for _ in counts_KC]
    for label in range(counts_KC.shape[1]):
        of_class = np.flatnonzero(labels_N == label)
        shuffled = generator.permutation(of_class)
        ends = np.cumsum(counts_KC[:-1, label])
        for client, part in enumerate(np.split(shuffled, ends)):
            held[client].append(part)
    return [np.sort(np.concatenate(parts)) for parts in held]


def hash_of(content: str, groups: list[list[Indices]]) -> str:
    """Hash of the data's contents and of all groups of indices."""
    digest = hashlib.sha256(content.encode())
    for group in groups:
        digest.update(f"group of {len(group)}\n".encode())
        for indices in group:
            digest.update(f"{len(indices)}\n".encode())
            digest.update(indices.astype("<i8").tobytes())
    return digest.hexdigest()
