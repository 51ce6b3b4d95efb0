"""What clients keep of their training samples for validation: the setting validation-fraction."""

import numpy as np
from numpy.typing import NDArray

from data.partitions import Indices
from data.rules import require


def cut_off(
    labels_N: NDArray[np.int64], parts: list[Indices], share: float, draws: np.random.Generator
) -> tuple[list[Indices], tuple[Indices, ...]]:
    """Return what each client trains on and what it keeps, sorted.

    Of n samples of a class a client keeps share * n, a fraction of one with its probability, but always trains on one
    sample at least. Raises SettingError where nobody keeps anything.
    """
    kept = []
    for part in parts:
        chosen = [draws.permutation(part[labels_N[part] == label]) for label in np.unique(labels_N[part])]
        of_classes = [held[: int(share * len(held) + draws.random())] for held in chosen]
        kept.append(np.sort(np.concatenate(of_classes))[: len(part) - 1])
    sizes = ", ".join(f"client {client} has {len(part)}" for client, part in enumerate(parts[:10]))
    rule = f"cuts nothing off, as the clients have too few samples: {sizes}"
    require(any(map(len, kept)), "validation-fraction", share, rule)
    return [np.setdiff1d(part, held) for part, held in zip(parts, kept, strict=True)], tuple(kept)
