"""Partitions: the assignment of samples to clients.

Each partition takes the labels (N,) of the samples and returns one sorted array of indices per client; the arrays are
disjoint and, but for `domain_parts` and `domain_shares`, cover every sample.
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
    total = len(labels_N)
    _enough(total, clients, 1)
    shuffled_N = generator.permutation(total)
    parts = np.array_split(shuffled_N, clients)
    return [np.sort(part) for part in parts]


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
        too_small_K = counts_KC.sum(axis=1) < min_samples
        fewest = min(fewest, int(too_small_K.sum()))
        if fewest == 0:
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
    rule = f"must be at least {GROUP}, the size of a group of partition feddf"
    require(clients >= GROUP, "clients", clients, rule)
    _enough(total, clients, 1)

    # Groups of ten clients, the last one of fewer where the number is no multiple of ten.
    shuffled = generator.permutation(total)
    first_clients = np.arange(0, clients, GROUP)
    members = np.diff(first_clients, append=clients)
    groups = np.split(shuffled, first_clients[1:] * total // clients)

    chain: list[Indices] = []
    for group, size in zip(groups, members.tolist(), strict=True):
        labels_G = labels_N[group]
        counts_KC = _feddf_counts(np.bincount(labels_G), size, alpha, generator)
        of_class = []
        for label in range(counts_KC.shape[1]):
            ends = np.cumsum(counts_KC[:-1, label])
            of_class.append(np.split(group[labels_G == label], ends))
        for client in range(size):
            chain += [parts[client] for parts in of_class]
    equal_parts = np.array_split(np.concatenate(chain), clients)
    return [np.sort(part) for part in equal_parts]


def _feddf_counts(
    sizes_C: NDArray[np.int64],
    clients: int,
    alpha: float,
    generator: np.random.Generator,
) -> NDArray[np.int64]:
    """(clients, classes) samples of the first draw in which every client has half of its even share."""
    least = int(sizes_C.sum()) // 2 // clients
    for _ in range(DRAWS):
        counts_KC = _lda_counts(sizes_C, clients, alpha, generator)
        if counts_KC.sum(axis=1).min() >= least:
            return counts_KC
    rule = f"in {DRAWS} draws of partition feddf some client held less than half of its even share; raise alpha"
    raise SettingError("alpha", alpha, rule)


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
    taken = alpha / main if literal else alpha
    tail = (1 - taken) / (clients - main)
    total_share = alpha + tail * (clients - main)  # 1, but for the literal form
    shares_KC = np.full((clients, classes), tail / total_share)
    for client in range(clients):
        shares_KC[client, client % classes] = alpha / main / total_share
    return _deal(labels_N, _counts_of(shares_KC, labels_N), generator)


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
        if not np.isfinite(shares_K).all():  # NaN, for a minute alpha
            continue
        sizes_K = _cut(shares_K, total)
        if sizes_K.min() >= min_samples:
            ends = np.cumsum(sizes_K[:-1])
            shuffled = generator.permutation(total)
            return [np.sort(part) for part in np.split(shuffled, ends)]
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
        SettingError: more classes per client than there are, or too few to hold every class.
    """
    key = "classes-per-client"
    require(held <= classes, key, held, f"must be at most the number of classes, {classes}")
    rule = f"{clients} clients with so many classes each cannot hold all {classes}"
    require(clients * held >= classes, key, held, rule)
    for _ in range(DRAWS):
        holds_KC = np.zeros((clients, classes))
        for client in range(clients):
            first = client % classes
            others = np.delete(np.arange(classes), first)
            drawn = generator.permutation(others)[: held - 1]
            holds_KC[client, first] = 1
            holds_KC[client, drawn] = 1
        holders_C = holds_KC.sum(axis=0)
        if holders_C.all():
            return _deal(labels_N, _counts_of(holds_KC / holders_C, labels_N), generator)
    rule = f"in {DRAWS} draws some class had no holder; raise it, or clients"
    raise SettingError(key, held, rule)


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
    parts_of_domain = []
    for domain in range(domains):
        of_domain = np.flatnonzero(domains_N == domain)
        parts_of_domain.append(ten_parts(labels_N, of_domain, generator))
    clients: list[Indices] = []
    for part in range(parts_per_domain):
        clients += [parts[part] for parts in parts_of_domain]
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
    tenths = percent / 10
    for domain in range(domains):
        of_domain = np.flatnonzero(domains_N == domain)
        parts = ten_parts(labels_N, of_domain, generator, ordered=False)
        if tenths >= 1:
            chosen = np.concatenate(parts[: int(tenths)])
        else:
            chosen = parts[0][: int(tenths * len(parts[0]))]
        held.append(np.sort(chosen))
    return held


def ten_parts(
    labels_N: NDArray[np.int64],
    pool: Indices,
    generator: np.random.Generator,
    ordered: bool = True,
) -> list[Indices]:
    """The indices in `pool` in ten parts cut at floor(j n / 10), each with the pool's distribution of classes.

    The samples of a part are sorted, or, with `ordered` false, in an order whose beginnings have that distribution too.
    """
    shuffled = generator.permutation(pool)
    labels = labels_N[shuffled]
    # A sort key in 0..1 that spreads each class evenly over the pool.
    key = np.empty(len(pool))
    for label in np.unique(labels):
        of_class = np.flatnonzero(labels == label)
        key[of_class] = (np.arange(len(of_class)) + 0.5) / len(of_class)
    mixed = shuffled[np.argsort(key, kind="stable")]
    parts = np.split(mixed, np.arange(1, 10) * len(pool) // 10)
    return [np.sort(part) for part in parts] if ordered else parts


def _enough(total: int, clients: int, min_samples: int) -> None:
    """Raise SettingError where the samples are too few for the clients."""
    rule = f"{clients} clients on {total} images: some would hold none"
    require(clients <= total, "clients", clients, rule)
    needed = clients * min_samples
    rule = f"{clients} clients with at least {min_samples} images each need {needed}; there are {total}"
    require(needed <= total, "min-samples", min_samples, rule)


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
            candidates = np.flatnonzero(open_K) if open_K.any() else clients
            shares_K = np.zeros(clients)
            shares_K[generator.choice(candidates)] = 1
        counts_KC[:, label] = _cut(shares_K / shares_K.sum(), size)
    return counts_KC


def _counts_of(shares_KC: NDArray[np.float64], labels_N: NDArray[np.int64]) -> NDArray[np.int64]:
    """(clients, classes) samples, each class cut at the clients' shares of it."""
    classes = shares_KC.shape[1]
    sizes_C = np.bincount(labels_N, minlength=classes)
    columns = []
    for label, size in enumerate(sizes_C.tolist()):
        shares_K = shares_KC[:, label]
        columns.append(_cut(shares_K, size))
    return np.stack(columns, axis=1)


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
    by_client: list[list[Indices]] = [[] for _ in counts_KC]
    for label in range(counts_KC.shape[1]):
        of_class = np.flatnonzero(labels_N == label)
        shuffled = generator.permutation(of_class)
        ends = np.cumsum(counts_KC[:-1, label])
        parts = np.split(shuffled, ends)
        for client_parts, part in zip(by_client, parts, strict=True):
            client_parts.append(part)
    return [np.sort(np.concatenate(parts)) for parts in by_client]


def hash_of(content: str, groups: list[list[Indices]]) -> str:
    """Hash of the data's contents and of all groups of indices."""
    digest = hashlib.sha256(content.encode())
    for group in groups:
        digest.update(f"group of {len(group)}\n".encode())
        for indices in group:
            digest.update(f"{len(indices)}\n".encode())
            digest.update(indices.astype("<i8").tobytes())
    return digest.hexdigest()
