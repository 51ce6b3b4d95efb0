"""Partitions: functions that assign samples to clients.

Each function takes the labels (N,), domains (N,) or number of the samples, and returns one sorted array of indices per
client. The arrays are disjoint. Together they cover every sample, except in `domain_parts` and `domain_shares`.
"""

import hashlib

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from data.errors import SettingError
from data.readers.array_types import Integers
from data.rules import require

Indices = Integers
Shares = NDArray[np.float64]

GROUP = 10
"""feddf: clients that share one Dirichlet partition."""
DRAWS = 10_000
"""The number of draws after which a partition that rejects draws gives up, such as lda for min-samples. One draw takes
about 100 microseconds, so giving up takes seconds."""
TRIAL = 20
"""lda: the number of draws after which it may give up early, see HOPELESS."""
HOPELESS = 30
"""lda: give up early if every draw so far left at least this many clients with too few samples. If their number is
Poisson with mean 30, only one draw in 10^13 leaves none."""


def generator(seed: int, purpose: str) -> Generator:
    """Return a generator that depends on the run's seed and the purpose's name alone: no draw changes another one's."""
    digest = hashlib.sha256(f"{seed}\n{purpose}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest, "little"))


def iid(labels_N: Integers, clients: int, generator: Generator) -> list[Indices]:
    """Shuffle and divide; sizes differ by at most one."""
    total = len(labels_N)
    _require_enough(total, clients, 1)
    shuffled_N = generator.permutation(total)
    parts = np.array_split(shuffled_N, clients)
    return [np.sort(part) for part in parts]


def lda(
    labels_N: Integers,
    clients: int,
    alpha: float,
    generator: Generator,
    min_samples: int = 10,
    balanced: bool = True,
) -> list[Indices]:
    """Split each class by shares from a Dirichlet(alpha); repeat the draw until every client has `min_samples` samples.

    With `balanced`, a client that already has N / clients samples or more gets nothing of the next class
    (Wang et al., FedMA, 2020; FedShift, IWDS and FedNova use the same code). Without, the shares alone decide, as in
    the papers' texts.

    Raises:
        SettingError: the minimum cannot be met, was not met in `DRAWS` draws, or is very unlikely to be met (HOPELESS).
    """
    _require_enough(len(labels_N), clients, min_samples)
    sizes_C = np.bincount(labels_N)
    counts_KC = _first_draw(sizes_C, clients, alpha, generator, min_samples, balanced)
    return _assign(labels_N, counts_KC, generator)


def feddf(
    labels_N: Integers,
    clients: int,
    alpha: float,
    generator: Generator,
) -> list[Indices]:
    """Partition groups of ten clients independently as `lda` does, then cut the result into parts of equal size.

    The samples are shuffled and divided over the groups, so 20 clients are two independent partitions of 10. In each
    group, draws repeat until every client has half of its even share (Lin et al., FedDF, 2020). All clients' samples,
    class by class, then form one list, which is cut into contiguous parts whose sizes differ by at most one. To spread
    the remainder in place of dropping it comes from CReFF (Shang et al., 2022).

    Raises:
        SettingError: fewer than ten clients, or the minimum was not met in `DRAWS` draws.
    """
    total = len(labels_N)
    rule = f"must be at least {GROUP}, the size of a group of partition feddf"
    require(clients >= GROUP, "clients", clients, rule)
    _require_enough(total, clients, 1)

    # The last group is smaller if the number of clients is not a multiple of ten.
    shuffled = generator.permutation(total)
    first_clients = np.arange(0, clients, GROUP)
    members = np.diff(first_clients, append=clients)
    groups = np.split(shuffled, first_clients[1:] * total // clients)

    chain: list[Indices] = []
    for group, size in zip(groups, members.tolist(), strict=True):
        labels_G = labels_N[group]
        least = len(group) // 2 // size
        sizes_C = np.bincount(labels_G)
        counts_KC = _first_draw(sizes_C, size, alpha, generator, least)
        chain += [group[part] for part in _divided(labels_G, counts_KC)]
    equal_parts = np.array_split(np.concatenate(chain), clients)
    return [np.sort(part) for part in equal_parts]


def llt(
    labels_N: Integers,
    clients: int,
    classes: int,
    alpha: float,
    generator: Generator,
) -> list[Indices]:
    """Give the share `alpha` of class k to its main clients k, k + C, k + 2C, ... and the rest to all other clients.

    Both groups divide their share equally. This is the long-tailed partition of GossipFL and VHL (Tang et al., 2022),
    whose code defines it for 10 and 100 clients and 10 classes. With 100 clients that code gives the main clients of a
    class .497 of it at alpha = .9.

    The number of clients is a multiple of the number of classes.
    """
    _require_enough(len(labels_N), clients, 1)
    main = clients // classes
    tail = (1 - alpha) / (clients - main)
    # 1 but for rounding, which the hashes of runs have in them.
    total_share = alpha + tail * (clients - main)
    shares_KC = np.full((clients, classes), tail / total_share)
    for client in range(clients):
        shares_KC[client, client % classes] = alpha / main / total_share
    return _assign(labels_N, _counts_of(shares_KC, labels_N), generator)


def quantity(
    total: int,
    clients: int,
    alpha: float,
    generator: Generator,
    min_samples: int,
) -> list[Indices]:
    """Split all samples as one class of plain `lda`: clients differ in size but not in class distribution.

    Source: Li et al. (NIID-Bench, 2022). Raises SettingError as `lda`.
    """
    one_class_N = np.zeros(total, np.int64)
    return lda(one_class_N, clients, alpha, generator, min_samples, balanced=False)


def classes_per_client(
    labels_N: Integers,
    clients: int,
    classes: int,
    per_client: int,
    generator: Generator,
) -> list[Indices]:
    """Give client i class i modulo C and `per_client` - 1 random others. The clients of a class share it equally.

    With fewer clients than classes, the draw is repeated until every class has a client
    (Li et al., NIID-Bench, 2022: #C = k).

    Raises:
        SettingError: `per_client` is larger than the number of classes, or too small for the clients to cover all
            classes, or `DRAWS` draws left a class without a client.
    """
    key = "classes-per-client"
    require(
        per_client <= classes, key, per_client, f"must be at most the number of classes, {classes}"
    )
    rule = f"{clients} clients with so many classes each cannot hold all {classes}"
    require(clients * per_client >= classes, key, per_client, rule)
    for _ in range(DRAWS):
        has_class_KC = np.zeros((clients, classes))
        for client in range(clients):
            first = client % classes
            others = np.delete(np.arange(classes), first)
            drawn = generator.permutation(others)[: per_client - 1]
            has_class_KC[client, first] = 1
            has_class_KC[client, drawn] = 1
        clients_C = has_class_KC.sum(axis=0)
        if clients_C.all():
            shares_KC = has_class_KC / clients_C
            return _assign(labels_N, _counts_of(shares_KC, labels_N), generator)
    rule = f"in {DRAWS} draws some class had no holder; raise it, or clients"
    raise SettingError(key, per_client, rule)


def domain_parts(
    labels_N: Integers,
    domains_N: Integers,
    domains: int,
    parts_per_domain: int,
    generator: Generator,
) -> list[Indices]:
    """Cut every domain into ten parts and give each of the first `parts_per_domain` parts to one client.

    Clients 0..D-1 have the first part of each of the D domains, clients D..2D-1 the second, and so on, so more clients
    are less heterogeneous (heterogeneity study of FedBN, Li et al., 2021). All parts have the class distribution of
    their domain. The other parts are unused.
    """
    parts_of_domain = ten_parts(labels_N, domains_N, domains, generator)
    clients: list[Indices] = []
    for part in range(parts_per_domain):
        clients += [np.sort(parts[part]) for parts in parts_of_domain]
    return clients


def domain_shares(
    labels_N: Integers,
    domains_N: Integers,
    domains: int,
    percent: float,
    generator: Generator,
) -> list[Indices]:
    """Give client i a part of domain i: `percent` / 10 of its ten parts, or a piece of one part if `percent` < 10.

    Source: the data-size study of FedBN (Li et al., 2021).
    """
    by_client = []
    tenths = percent / 10
    for parts in ten_parts(labels_N, domains_N, domains, generator):
        if tenths >= 1:
            chosen = np.concatenate(parts[: int(tenths)])
        else:
            chosen = parts[0][: int(tenths * len(parts[0]))]
        by_client.append(np.sort(chosen))
    return by_client


def ten_parts(
    labels_N: Integers,
    domains_N: Integers,
    domains: int,
    generator: Generator,
) -> list[list[Indices]]:
    """Cut each domain's n samples at floor(j n / 10), j = 1..9, into ten parts with the domain's class distribution.

    Classes are evenly mixed, so any first samples of a part also have about the domain's class distribution.
    """
    parts_of_domain = []
    for domain in range(domains):
        shuffled = generator.permutation(np.flatnonzero(domains_N == domain))
        labels = labels_N[shuffled]
        # A sort key in 0..1 that spreads each class evenly over the domain.
        key = np.empty(len(shuffled))
        for label in np.unique(labels):
            of_class = np.flatnonzero(labels == label)
            key[of_class] = (np.arange(len(of_class)) + 0.5) / len(of_class)
        mixed = shuffled[np.argsort(key, kind="stable")]
        parts_of_domain.append(np.split(mixed, np.arange(1, 10) * len(mixed) // 10))
    return parts_of_domain


def _require_enough(total: int, clients: int, min_samples: int) -> None:
    """Raise SettingError if `total` samples are too few for the clients."""
    rule = f"{clients} clients on {total} samples: some would hold none"
    require(clients <= total, "clients", clients, rule)
    needed = clients * min_samples
    rule = f"{clients} clients with at least {min_samples} samples each need {needed}; there are {total}"
    require(needed <= total, "min-samples", min_samples, rule)


def _first_draw(
    sizes_C: Integers,
    clients: int,
    alpha: float,
    generator: Generator,
    least: int,
    balanced: bool = True,
) -> Integers:
    """Return (clients, classes): the sample counts of the first draw of `lda` in which all clients have `least`.

    Raises SettingError after `DRAWS` draws, or as HOPELESS says.
    """
    fewest = clients
    for draw in range(1, DRAWS + 1):
        counts_KC = _lda_counts(sizes_C, clients, alpha, generator, balanced)
        too_small_K = counts_KC.sum(axis=1) < least
        fewest = min(fewest, int(too_small_K.sum()))
        if fewest == 0:
            return counts_KC
        if draw >= TRIAL and fewest >= HOPELESS:
            break
    found = f"in {draw} draws, at least {fewest} of {clients} clients held fewer than {least}"
    remedy = "raise alpha or lower clients (or min-samples, but for feddf)"
    rule = f"{found} of {sizes_C.sum()} samples; {remedy}"
    raise SettingError("alpha", alpha, rule)


def _lda_counts(
    sizes_C: Integers,
    clients: int,
    alpha: float,
    generator: Generator,
    balanced: bool,
) -> Integers:
    """Return (clients, classes): the sample counts of one draw of `lda`."""
    counts_KC = np.zeros((clients, len(sizes_C)), np.int64)
    target = sizes_C.sum() / clients if balanced else np.inf
    for label, size in enumerate(sizes_C.tolist()):
        below_target_K = counts_KC.sum(axis=1) < target
        shares_K = generator.dirichlet(np.full(clients, alpha)) * below_target_K
        if not shares_K.sum() > 0:
            # A very small alpha makes every share 0 or NaN. One random client below its target then gets the class,
            # as in the limit alpha -> 0 (any client if none is below).
            candidates = np.flatnonzero(below_target_K) if below_target_K.any() else clients
            shares_K = np.zeros(clients)
            shares_K[generator.choice(candidates)] = 1
        counts_KC[:, label] = _cut(shares_K / shares_K.sum(), size)
    return counts_KC


def _counts_of(shares_KC: Shares, labels_N: Integers) -> Integers:
    """Return (clients, classes): the sample counts for the clients' shares of each class."""
    classes = shares_KC.shape[1]
    sizes_C = np.bincount(labels_N, minlength=classes)
    columns = []
    for label, size in enumerate(sizes_C.tolist()):
        shares_K = shares_KC[:, label]
        columns.append(_cut(shares_K, size))
    return np.stack(columns, axis=1)


def _cut(shares_K: Shares, size: int) -> Integers:
    """Return (clients,): each client's samples of a class of `size` samples, cut at floor(cumulative share x size)."""
    # Without 1e-9, a sum of shares such as .9999999999999999 in place of 1 would move a sample to the next client.
    cuts = np.floor(np.cumsum(shares_K) * size + 1e-9).astype(np.int64)
    cuts[-1] = size
    return np.diff(np.minimum(cuts, size), prepend=0)


def _assign(labels_N: Integers, counts_KC: Integers, generator: Generator) -> list[Indices]:
    """Shuffle each class, divide it by `counts_KC`, (clients, classes), and return each client's sorted indices."""
    return [np.sort(part) for part in _divided(labels_N, counts_KC, generator)]


def _divided(
    labels_N: Integers,
    counts_KC: Integers,
    generator: Generator | None = None,
) -> list[Indices]:
    """Return each client's indices, class by class; each class is shuffled where there is a generator."""
    by_client: list[list[Indices]] = [[] for _ in counts_KC]
    for label, counts_K in enumerate(counts_KC.T):
        of_class = np.flatnonzero(labels_N == label)
        if generator is not None:
            of_class = generator.permutation(of_class)
        parts = np.split(of_class, np.cumsum(counts_K[:-1]))
        for client_parts, part in zip(by_client, parts, strict=True):
            client_parts.append(part)
    return list(map(np.concatenate, by_client))


def hash_of(content: str, groups: list[list[Indices]]) -> str:
    """Return the SHA-256 of a data set's content hash and of groups of index arrays, as hexadecimal text."""
    digest = hashlib.sha256(content.encode())
    for group in groups:
        digest.update(f"group of {len(group)}\n".encode())
        for indices in group:
            digest.update(f"{len(indices)}\n".encode())
            digest.update(indices.astype("<i8").tobytes())
    return digest.hexdigest()
