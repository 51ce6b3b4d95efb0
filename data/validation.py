"""What clients keep of their training samples for validation: the settings validation-fraction and tested-on."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from data.datasets import Dataset
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
        chosen = [
            draws.permutation(part[labels_N[part] == label]) for label in np.unique(labels_N[part])
        ]
        of_classes = [held[: int(share * len(held) + draws.random())] for held in chosen]
        kept.append(np.sort(np.concatenate(of_classes))[: len(part) - 1])
    sizes = ", ".join(f"client {client} has {len(part)}" for client, part in enumerate(parts[:10]))
    rule = f"cuts nothing off, as the clients have too few samples: {sizes}"
    require(any(map(len, kept)), "validation-fraction", share, rule)
    return [np.setdiff1d(part, held) for part, held in zip(parts, kept, strict=True)], tuple(kept)


def in_place_of_test(data: Dataset, kept: tuple[Indices, ...] | None) -> tuple[Dataset, Indices]:
    """Return the data with their validation samples as test set, and which of these count: `kept` of the training set,
    else what the data bring.

    Raises SettingError where there are none.
    """
    domains_N = data.val_domains if kept is None else data.train_domains
    inputs, labels_N = (
        (data.val_inputs, data.val_labels)
        if kept is None
        else (data.train_inputs, data.train_labels)
    )
    rule = f"needs validation-fraction, as {data.name} brings no validation data"
    require(inputs is not None and labels_N is not None, "tested-on", "validation", rule)
    assert inputs is not None and labels_N is not None, "just required"
    chosen = np.arange(len(labels_N)) if kept is None else np.sort(np.concatenate(kept))
    tests = replace(data, test_inputs=inputs, test_labels=labels_N, test_groups=None)
    named = replace(tests, test_domains=None if data.test_domains is None else domains_N)
    content = f"{data.content} validation"  # a cache of its test samples' features is another one
    return replace(
        named, val_inputs=None, val_labels=None, val_domains=None, content=content
    ), chosen
