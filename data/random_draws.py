"""Random draws: one generator for each purpose, so that no draw depends on how much another one consumed."""

import hashlib

import numpy as np
from numpy.typing import NDArray

from data.rules import SettingError


def generator(seed: int, purpose: str) -> np.random.Generator:
    """A generator that depends on nothing but the run's seed and the purpose's name."""
    digest = hashlib.sha256(f"{seed}\n{purpose}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest, "little"))


def balanced_counts(total: int, classes: int) -> NDArray[np.int64]:
    """(classes,): `total` spread over the classes; the first classes take the remainder."""
    return np.array([total // classes + (label < total % classes) for label in range(classes)], np.int64)


def draw_of_each_class(
    labels_N: NDArray[np.int64], wanted_C: NDArray[np.int64], draws: np.random.Generator, key: str, value: object
) -> NDArray[np.int64]:
    """Sorted indices: a random `wanted_C[k]` of the samples of each class k.

    Raises:
        SettingError: naming `key` and `value`, where a class has fewer samples than wanted.
    """
    chosen = []
    for label, wanted in enumerate(wanted_C.tolist()):
        of_class = np.flatnonzero(labels_N == label)
        if len(of_class) < wanted:
            raise SettingError(key, value, f"needs {wanted} images of class {label}, which has {len(of_class)}")
        chosen.append(draws.permutation(of_class)[:wanted])
    return np.sort(np.concatenate(chosen))
