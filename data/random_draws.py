"""Random draws: one generator for each purpose, so that no draw depends on how much another one consumed."""

import hashlib

import numpy as np


def generator(seed: int, purpose: str) -> np.random.Generator:
    """A generator that depends on nothing but the run's seed and the purpose's name."""
    digest = hashlib.sha256(f"{seed}\n{purpose}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest, "little"))
