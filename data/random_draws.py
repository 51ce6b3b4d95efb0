"""Random draws: one generator for each purpose, so that no draw depends on how much another one consumed."""

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from data.errors import SettingError


def generator(seed: int, purpose: str) -> np.random.Generator:
    """A generator that depends on nothing but the run's seed and the purpose's name."""
    digest = hashlib.sha256(f"{seed}\n{purpose}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest, "little"))


def balanced_counts(total: int, classes: int) -> NDArray[np.int64]:
    """(classes,): `total` spread over the classes; the first classes take the remainder."""
    each, remainder = divmod(total, classes)
    counts_C = np.full(classes, each, np.int64)
    counts_C[:remainder] += 1
    return counts_C


def draw_of_each_class(
    labels_N: NDArray[np.int64],
    wanted_C: NDArray[np.int64],
    draws: np.random.Generator,
    key: str,
    value: object,
    subjects_N: NDArray[np.int64] | None = None,
) -> NDArray[np.int64]:
    """Sorted indices: a random `wanted_C[k]` of the samples of each class k.

    With `subjects_N`, (N,), subjects are drawn, the same ones for every class as far as they have samples of it, and of
    each all samples of a class until there are `wanted_C[k]`.

    Raises:
        SettingError: naming `key` and `value`, where a class has fewer samples than wanted.
    """
    rank_N: NDArray[np.int64] | None = None
    if subjects_N is not None:
        # One order of the subjects for all classes, so that the draw takes as few subjects as it can.
        names, subject_N = np.unique(subjects_N, return_inverse=True)
        rank_N = draws.permutation(len(names))[subject_N]
    chosen = []
    for label, wanted in enumerate(wanted_C.tolist()):
        of_class = np.flatnonzero(labels_N == label)
        if len(of_class) < wanted:
            rule = f"needs {wanted} images of class {label}, which has {len(of_class)}"
            raise SettingError(key, value, rule)
        if rank_N is None:
            order = draws.permutation(of_class)
        else:
            order = of_class[np.argsort(rank_N[of_class], kind="stable")]
        chosen.append(order[:wanted])
    return np.sort(np.concatenate(chosen))


def draw_of_each_domain(
    labels_N: NDArray[np.int64],
    domains_N: NDArray[np.int64] | None,
    domain_names: Sequence[str],
    wanted_C: NDArray[np.int64],
    key: str,
    value: object,
    seed: int,
    subjects_N: NDArray[np.int64] | None = None,
) -> NDArray[np.int64]:
    """Sorted indices of `wanted_C` samples of each class, from every domain where there are domains.

    `subjects_N` is that of `draw_of_each_class`.

    Raises:
        SettingError: naming `key` and `value`, and the domain, where a class has fewer samples than wanted.
    """
    if domains_N is None:
        draws = generator(seed, key)
        return draw_of_each_class(labels_N, wanted_C, draws, key, value, subjects_N)
    chosen = []
    for domain, name in enumerate(domain_names):
        of_domain = np.flatnonzero(domains_N == domain)
        draws = generator(seed, f"{key} of {name}")
        labels = labels_N[of_domain]
        subjects = None if subjects_N is None else subjects_N[of_domain]
        try:
            drawn = draw_of_each_class(labels, wanted_C, draws, key, value, subjects)
        except SettingError as error:
            raise SettingError(key, value, f"domain {name}: {error.rule}") from None
        chosen.append(of_domain[drawn])
    return np.sort(np.concatenate(chosen))
