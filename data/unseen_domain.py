"""The setting unseen-domain: a domain without a client."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data.dataset import Dataset
from data.rules import require

Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class UnseenDomain:
    """A site that takes no part in training."""

    index: int
    """Into the data set's domain_names."""
    name: str
    train: Indices
    """Sorted indices into the training set: its inputs may be used, its labels not."""
    test: Indices
    """Sorted indices into the test set."""


def left_out(data: Dataset, name: str, train: Indices, test: Indices) -> UnseenDomain:
    """The domain `name` with its share of the drawn indices `train` and `test`.

    Raises:
        SettingError: fewer than two training images, which have no variance.
    """
    assert data.train_domains is not None and data.test_domains is not None, (
        "partition domains needs domains"
    )
    index = data.domain_names.index(name)
    of_train = data.train_domains[train] == index
    of_test = data.test_domains[test] == index
    domain = UnseenDomain(index, name, train[of_train], test[of_test])
    rule = "must have at least two training images, as one has no variance"
    require(len(domain.train) >= 2, "unseen-domain", name, rule)
    return domain


def without(domain: UnseenDomain, indices: Indices, domains_N: NDArray[np.int64] | None) -> Indices:
    """The indices that are not of the domain."""
    if domains_N is None:
        return indices
    others: Indices = indices[domains_N[indices] != domain.index]
    return others
