"""Which client holds which sample.

Each partition takes the labels (N,) of the samples to deal out and returns one sorted array of indices a client; the
arrays are disjoint and cover every sample.
"""

import numpy as np
from numpy.typing import NDArray

from data.settings import SettingError, require

Indices = NDArray[np.int64]

DRAWS = 10_000
"""lda: draws until every client has its minimum. A draw costs some 100 microseconds, so giving up takes seconds."""


def iid(labels_N: NDArray[np.int64], clients: int, generator: np.random.Generator) -> list[Indices]:
    """Shuffled and dealt out; sizes differ by at most one."""
    _enough(len(labels_N), clients, 1)
    return [np.sort(part) for part in np.array_split(generator.permutation(len(labels_N)), clients)]


def lda(
    labels_N: NDArray[np.int64],
    clients: int,
    alpha: float,
    generator: np.random.Generator,
    min_samples: int = 10,
    balance: bool = True,
) -> list[Indices]:
    """Each class split by shares from a Dirichlet(alpha), drawn anew until every client holds `min_samples`.

    With `balance`, a client that already holds N / clients samples or more takes no share of the next class
    (Wang et al., FedMA, 2020; the same code deals out the data of FedShift, IWDS and FedNova).

    Raises:
        SettingError: the minimum cannot be met, or was not met in `DRAWS` draws.
    """
    total = len(labels_N)
    _enough(total, clients, min_samples)
    sizes_C = np.bincount(labels_N)
    for _ in range(DRAWS):
        # Only the counts decide whether a draw is kept, so the samples are shuffled once, after it.
        counts_KC = _lda_counts(sizes_C, clients, alpha, generator, balance)
        if counts_KC.sum(axis=1).min() >= min_samples:
            return _deal(labels_N, counts_KC, generator)
    raise SettingError(
        "alpha",
        alpha,
        f"in {DRAWS} draws of partition lda, clients = {clients} never held min-samples = {min_samples} of {total} "
        "images each; raise alpha or lower one of the other two",
    )


def llt(
    labels_N: NDArray[np.int64], clients: int, classes: int, alpha: float, generator: np.random.Generator
) -> list[Indices]:
    """The main clients k, k + C, k + 2C, ... of class k hold the share `alpha` of it, the others the rest, all equally.

    Long-tailed partition of GossipFL and VHL (Tang et al., 2022), whose code defines it for 10 and 100 clients of 10
    classes and, for 100, gives the main clients .497 instead of alpha = .9; here they hold alpha for any number.

    Raises:
        SettingError: the number of clients is no multiple of the number of classes.
    """
    total = len(labels_N)
    _enough(total, clients, 1)
    rule = f"must be a multiple of the number of classes, {classes}, under partition llt"
    require(clients % classes == 0, "clients", clients, rule)
    main = clients // classes
    shares_KC = np.full((clients, classes), (1 - alpha) / (clients - main))
    for client in range(clients):
        shares_KC[client, client % classes] = alpha / main
    sizes_C = np.bincount(labels_N, minlength=classes)
    counts_KC = np.stack([_cut(shares_KC[:, label], int(size)) for label, size in enumerate(sizes_C)], axis=1)
    return _deal(labels_N, counts_KC, generator)


def by_domain(domains_N: NDArray[np.int64], clients: int) -> list[Indices]:
    """Client i holds every sample of domain i."""
    return [np.flatnonzero(domains_N == client) for client in range(clients)]


def _enough(total: int, clients: int, min_samples: int) -> None:
    require(clients <= total, "clients", clients, f"{clients} clients on {total} images: some would hold none")
    rule = f"{clients} clients with at least {min_samples} images each need {clients * min_samples}; there are {total}"
    require(clients * min_samples <= total, "min-samples", min_samples, rule)


def _lda_counts(
    sizes_C: NDArray[np.int64], clients: int, alpha: float, generator: np.random.Generator, balance: bool
) -> NDArray[np.int64]:
    """(clients, classes) samples of one draw."""
    counts_KC = np.zeros((clients, len(sizes_C)), np.int64)
    target = sizes_C.sum() / clients
    for label, size in enumerate(sizes_C.tolist()):
        shares_K = generator.dirichlet(np.full(clients, alpha))
        if balance:
            shares_K = shares_K * (counts_KC.sum(axis=1) < target)
        if not shares_K.sum() > 0:
            # Every share is 0 (or NaN, for a minute alpha): one open client takes the class, the limit alpha -> 0.
            open_K = np.flatnonzero(counts_KC.sum(axis=1) < target) if balance else np.arange(clients)
            shares_K = np.zeros(clients)
            shares_K[generator.choice(open_K if len(open_K) else clients)] = 1
        counts_KC[:, label] = _cut(shares_K / shares_K.sum(), size)
    return counts_KC


def _cut(shares_K: NDArray[np.float64], size: int) -> NDArray[np.int64]:
    """(clients,) samples of a class of `size`, cut at floor(cumulative share x size)."""
    # The small term keeps a cumulative share of .9999999999999999 from losing a sample to the next client.
    cuts = np.floor(np.cumsum(shares_K) * size + 1e-9).astype(np.int64)
    cuts[-1] = size
    return np.diff(np.minimum(cuts, size), prepend=0)


def _deal(labels_N: NDArray[np.int64], counts_KC: NDArray[np.int64], generator: np.random.Generator) -> list[Indices]:
    """Each class shuffled and dealt out by the counts."""
    held: list[list[Indices]] = [[] for _ in counts_KC]
    for label in range(counts_KC.shape[1]):
        shuffled = generator.permutation(np.flatnonzero(labels_N == label))
        for client, part in enumerate(np.split(shuffled, np.cumsum(counts_KC[:-1, label]))):
            held[client].append(part)
    return [np.sort(np.concatenate(parts)) for parts in held]
