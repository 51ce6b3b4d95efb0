"""Samples that no client trains on: the server's hold-out, validation samples, and a domain without a client.

The settings are holdout-per-class, validation-fraction with evaluate-on, and unseen-domain.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from data.dataset import Dataset
from data.partitions import Indices
from data.random_draws import draw_of_each_domain
from data.rules import require


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
    """Return the domain `name` with its share of the drawn indices `train` and `test`.

    Raises:
        SettingError: fewer than two training images, which have no variance.
    """
    assert data.train_domains is not None, "partition domains needs domains"
    assert data.test_domains is not None, "partition domains needs domains"
    index = data.domain_names.index(name)
    of_train = data.train_domains[train] == index
    of_test = data.test_domains[test] == index
    domain = UnseenDomain(index, name, train[of_train], test[of_test])
    rule = "must have at least two training images, as one has no variance"
    require(len(domain.train) >= 2, "unseen-domain", name, rule)
    return domain


def without(domain: UnseenDomain, indices: Indices, domains_N: NDArray[np.int64] | None) -> Indices:
    """Return the indices that are not of the domain."""
    if domains_N is None:
        return indices
    others: Indices = indices[domains_N[indices] != domain.index]
    return others


def hold_out(data: Dataset, per_class: int, seed: int) -> tuple[Indices, Indices]:
    """Return the server's own samples and those left to the clients, sorted indices into the training set.

    The server holds `per_class` of each class (of each domain), of as few subjects as can be; 0 is none. Nobody trains
    on the other samples of its subjects.

    Raises:
        SettingError: a class has fewer samples, no subject is left to the clients, or the data name the subjects of
            the test samples alone.
    """
    everything = np.arange(len(data.train_labels), dtype=np.int64)
    if per_class == 0:
        return everything[:0], everything

    key = "holdout-per-class"
    require_subjects(data, key, per_class)
    held = draw_of_each_domain(
        data.train_labels,
        data.train_domains,
        data.domain_names,
        np.full(data.num_classes, per_class, np.int64),
        key,
        per_class,
        seed,
        data.train_groups,
    )
    if data.train_groups is None:
        return held, np.setdiff1d(everything, held)
    subjects_of_server = data.train_groups[held]
    of_server = np.isin(data.train_groups, subjects_of_server)
    left = np.flatnonzero(~of_server)
    rule = "takes samples of every subject, and somebody has to train"
    require(len(left) > 0, key, per_class, rule)
    return held, left


def cut_off(
    data: Dataset,
    parts: list[Indices],
    share: float,
    draws: np.random.Generator,
) -> tuple[list[Indices], tuple[Indices, ...]]:
    """Return what each client trains on and what it keeps for validation, sorted indices into the training set.

    Of n samples of a class a client keeps share * n, a fraction of one with its probability, but always trains on one
    sample at least. Where the data name the subjects of the training samples, the same is done with subjects: no
    subject is kept by one client and trained on by any.

    Raises:
        SettingError: nobody keeps anything, or the data name the subjects of the test samples alone.
    """
    require_subjects(data, "validation-fraction", share)
    shown = parts[:10]  # a sentence about more clients is not read
    if data.train_groups is not None:
        kept = _kept_subjects(data.train_labels, data.train_groups, parts, share, draws)
        sizes = [len(np.unique(data.train_groups[part])) for part in shown]
        units = "subjects"
    else:
        kept = _kept_samples(data.train_labels, parts, share, draws)
        sizes = [len(part) for part in shown]
        units = "samples"

    of_clients = ", ".join(f"client {client} has {size}" for client, size in enumerate(sizes))
    rule = f"cuts nothing off, as the clients have too few {units}: {of_clients}"
    require(any(map(len, kept)), "validation-fraction", share, rule)

    trained = [np.setdiff1d(part, cut) for part, cut in zip(parts, kept, strict=True)]
    return trained, tuple(kept)


def require_subjects(data: Dataset, key: str, value: object) -> None:
    """Raise SettingError, naming `key` and `value`, where the data name the subjects of the test samples alone.

    A cut of the training set would go through subjects that nobody knows: the same patient on both sides.
    """
    rule = (
        f"cuts the training set, and {data.name} says whose its test samples are and "
        "does not say whose its training samples are: in an npz file train_subjects (N,) says it"
    )
    unknown = data.test_subjects is not None and data.train_groups is None
    require(not unknown, key, value, rule)


def _kept_samples(
    labels_N: NDArray[np.int64],
    parts: list[Indices],
    share: float,
    draws: np.random.Generator,
) -> list[Indices]:
    """Return what each client keeps where every sample stands for itself."""
    kept = []
    for part in parts:
        labels = labels_N[part]
        # A client's permutations all come before its fractions: runs repeat by this order of draws.
        shuffled = [draws.permutation(part[labels == label]) for label in np.unique(labels)]
        cut = []
        for of_class in shuffled:
            count = int(share * len(of_class) + draws.random())
            cut.append(of_class[:count])
        most = len(part) - 1  # a client has to train on something
        kept.append(np.sort(np.concatenate(cut))[:most])
    return kept


def _kept_subjects(
    labels_N: NDArray[np.int64],
    subjects_N: NDArray[np.int64],
    parts: list[Indices],
    share: float,
    draws: np.random.Generator,
) -> list[Indices]:
    """Return what each client keeps: all its samples of the subjects that are drawn for validation.

    A partition may deal the samples of one subject out to several clients. Such a subject is drawn once, at the client
    that holds most of its samples and for the class that most of them have, and every client keeps what it holds of it.
    """
    sizes_K = [len(part) for part in parts]
    assigned = np.concatenate(parts)
    subject_D = np.unique(subjects_N[assigned], return_inverse=True)[1]
    client_D = np.repeat(np.arange(len(parts)), sizes_K)
    home_S = most_common(subject_D, client_D)
    class_S = most_common(subject_D, labels_N[assigned])
    kept_S = np.zeros(len(home_S), np.bool_)
    for members in _alike(home_S, class_S):
        drawn = draws.permutation(members)
        count = int(share * len(members) + draws.random())
        kept_S[drawn[:count]] = True
    of_client = np.split(subject_D, np.cumsum(sizes_K)[:-1])
    for subjects in of_client:
        if len(subjects) and kept_S[subjects].all():
            kept_S[subjects[0]] = False  # a client has to train on something
    return [part[kept_S[subjects]] for part, subjects in zip(parts, of_client, strict=True)]


def most_common(subject_D: NDArray[np.int64], values_D: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return (S,): of each subject 0..S-1 the value that most of its samples have, the smallest of several such."""
    pairs_2D = np.stack([subject_D, values_D])
    distinct_2P, count_P = np.unique(pairs_2D, axis=1, return_counts=True)
    subject_P, value_P = distinct_2P

    # By subject, then the most common value first, then the smallest; lexsort takes the last key first.
    order_P = np.lexsort((value_P, -count_P, subject_P))
    sorted_subject_P = subject_P[order_P]
    _, first_S = np.unique(sorted_subject_P, return_index=True)
    chosen_S: NDArray[np.int64] = value_P[order_P[first_S]]
    return chosen_S


def _alike(home_S: NDArray[np.int64], class_S: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return the subjects in groups of one client and one class, in that order."""
    order_S = np.lexsort((class_S, home_S))  # by client, then by class: the last key comes first
    sorted_home_S = home_S[order_S]
    sorted_class_S = class_S[order_S]
    # A group begins where client or class differ from the subject before.
    differs = (np.diff(sorted_home_S) != 0) | (np.diff(sorted_class_S) != 0)
    begins = np.flatnonzero(differs) + 1
    return np.split(order_S, begins)


def in_place_of_test(data: Dataset, kept: tuple[Indices, ...] | None) -> tuple[Dataset, Indices]:
    """Return the data with their validation samples as test set, and which of these count: `kept` of the training set,
    else what the data bring. They are tested as the test set is: by subject, where that tests subjects as one.

    Raises SettingError where there are none, or where nobody knows their subjects.
    """
    inputs = data.val_inputs if kept is None else data.train_inputs
    labels_N = data.val_labels if kept is None else data.train_labels
    domains_N = data.val_domains if kept is None else data.train_domains
    subjects_N = data.val_groups if kept is None else data.train_groups
    rule = f"needs validation-fraction, as {data.name} brings no validation data"
    require(inputs is not None and labels_N is not None, "evaluate-on", "validation", rule)
    assert inputs is not None and labels_N is not None, "just required"
    chosen = np.arange(len(labels_N)) if kept is None else np.sort(np.concatenate(kept))

    as_one = data.test_groups is not None
    rule = (
        f"tests subjects as one, as the test set does, and {data.name} does not say whose its "
        "validation samples are: in an npz file val_subjects (N,) says it"
    )
    require(not as_one or subjects_N is not None, "evaluate-on", "validation", rule)
    tests = replace(
        data,
        test_inputs=inputs,
        test_labels=labels_N,
        test_domains=None if data.test_domains is None else domains_N,
        test_groups=subjects_N if as_one else None,
        test_subjects=subjects_N,
        val_inputs=None,
        val_labels=None,
        val_domains=None,
        val_groups=None,
        # A cache of the test samples' features is found by it, and these are other samples.
        content=f"{data.content} validation",
    )
    return tests, chosen
