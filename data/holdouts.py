"""Samples that no client trains on: the server's hold-out and validation samples.

The settings are holdout-per-class, and validation-fraction with evaluate-on.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from data.dataset import Dataset
from data.partitions import Indices
from data.random_draws import draw_of_each_domain
from data.rules import require

SHOWN = 10
"""Clients whose samples a refusal lists. Nobody reads a sentence about more."""


def hold_out(data: Dataset, per_class: int, seed: int) -> tuple[Indices, Indices]:
    """Return the server's hold-out and the clients' samples, both as sorted indices into the training set.

    The hold-out has `per_class` samples of each class (with domains: of each class of each domain); 0 means no
    hold-out. If the data name subjects, it is drawn from few subjects, and nobody trains on their other samples.

    Raises:
        SettingError: a class has too few samples, no subject is left for the clients, or the data name the subjects
            of test samples but not of training samples.
    """
    everything = np.arange(len(data.train_labels), dtype=np.int64)
    if per_class == 0:
        return everything[:0], everything

    key = "holdout-per-class"
    require_subjects(data, key, per_class)
    holdout = draw_of_each_domain(
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
        return holdout, np.setdiff1d(everything, holdout)
    subjects_of_server = data.train_groups[holdout]
    of_server = np.isin(data.train_groups, subjects_of_server)
    of_clients = np.flatnonzero(~of_server)
    rule = "takes samples of every subject, and somebody has to train"
    require(len(of_clients) > 0, key, per_class, rule)
    return holdout, of_clients


def split_validation(
    data: Dataset,
    parts: list[Indices],
    fraction: float,
    draws: np.random.Generator,
) -> tuple[list[Indices], tuple[Indices, ...]]:
    """Return each client's training samples and its validation samples, as sorted indices into the training set.

    Of its n samples of a class, a client uses fraction * n for validation, rounded up or down at random so that the
    mean is exact. Every client keeps at least one training sample. If the data name the subjects of the training
    samples, whole subjects are drawn instead, so that no subject is in both sets of the same or of different clients.

    Raises:
        SettingError: no client gets a validation sample, or the data name the subjects of test samples but not of
            training samples.
    """
    require_subjects(data, "validation-fraction", fraction)
    shown = parts[:SHOWN]
    if data.train_groups is not None:
        validation = _validation_by_subject(
            data.train_labels, data.train_groups, parts, fraction, draws
        )
        sizes = [len(np.unique(data.train_groups[part])) for part in shown]
        units = "subjects"
    else:
        validation = _validation_by_sample(data.train_labels, parts, fraction, draws)
        sizes = [len(part) for part in shown]
        units = "samples"

    of_clients = ", ".join(f"client {client} has {size}" for client, size in enumerate(sizes))
    rule = f"cuts nothing off, as the clients have too few {units}: {of_clients}"
    require(any(map(len, validation)), "validation-fraction", fraction, rule)

    training = [np.setdiff1d(part, cut) for part, cut in zip(parts, validation, strict=True)]
    return training, tuple(validation)


def require_subjects(data: Dataset, key: str, value: object) -> None:
    """Raise SettingError if the data name the subjects of test samples but not of training samples.

    Splitting such a training set could put samples of one patient on both sides of the split.

    Args:
        data: The data set.
        key: The setting that splits the training set, for the error.
        value: Its value.
    """
    rule = (
        f"cuts the training set, and {data.name} says whose its test samples are and "
        "does not say whose its training samples are: in an npz file train_subjects (N,) says it"
    )
    unknown = data.test_subjects is not None and data.train_groups is None
    require(not unknown, key, value, rule)


def _validation_by_sample(
    labels_N: NDArray[np.int64],
    parts: list[Indices],
    fraction: float,
    draws: np.random.Generator,
) -> list[Indices]:
    """Return each client's validation samples, drawn class by class."""
    validation = []
    for part in parts:
        labels = labels_N[part]
        # Draw all permutations of a client before its first draws.random(): another order changes every seed's split.
        shuffled = [draws.permutation(part[labels == label]) for label in np.unique(labels)]
        cut = []
        for of_class in shuffled:
            count = int(fraction * len(of_class) + draws.random())
            cut.append(of_class[:count])
        most = len(part) - 1  # at least one sample stays for training
        validation.append(np.sort(np.concatenate(cut))[:most])
    return validation


def _validation_by_subject(
    labels_N: NDArray[np.int64],
    subjects_N: NDArray[np.int64],
    parts: list[Indices],
    fraction: float,
    draws: np.random.Generator,
) -> list[Indices]:
    """Return each client's validation samples: all its samples of the subjects that are drawn for validation.

    A partition may spread one subject over several clients. Such a subject is drawn once, at the client with most of
    its samples and in the class that most of them have. All clients then use its samples for validation.
    In names, D is the number of samples that the partition assigns, and S the number of subjects.
    """
    sizes_K = [len(part) for part in parts]
    assigned = np.concatenate(parts)
    subject_D = np.unique(subjects_N[assigned], return_inverse=True)[1]
    client_D = np.repeat(np.arange(len(parts)), sizes_K)
    home_S = most_common(subject_D, client_D)
    class_S = most_common(subject_D, labels_N[assigned])
    is_drawn_S = np.zeros(len(home_S), np.bool_)
    for members in _by_client_and_class(home_S, class_S):
        drawn = draws.permutation(members)
        count = int(fraction * len(members) + draws.random())
        is_drawn_S[drawn[:count]] = True
    of_client = np.split(subject_D, np.cumsum(sizes_K)[:-1])
    for subjects in of_client:
        if len(subjects) and is_drawn_S[subjects].all():
            is_drawn_S[subjects[0]] = False  # at least one subject stays for training
    return [part[is_drawn_S[subjects]] for part, subjects in zip(parts, of_client, strict=True)]


def most_common(subject_D: NDArray[np.int64], values_D: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return (S,): the most common value among each subject's samples; of equally common values, the smallest.

    Args:
        subject_D: (D,), each sample's subject, 0..S-1.
        values_D: (D,), each sample's value.
    """
    pairs_2D = np.stack([subject_D, values_D])
    distinct_2P, count_P = np.unique(pairs_2D, axis=1, return_counts=True)
    subject_P, value_P = distinct_2P

    # Sort by subject, then by decreasing count, then by value. lexsort takes its last key first.
    order_P = np.lexsort((value_P, -count_P, subject_P))
    sorted_subject_P = subject_P[order_P]
    _, first_S = np.unique(sorted_subject_P, return_index=True)
    chosen_S: NDArray[np.int64] = value_P[order_P[first_S]]
    return chosen_S


def _by_client_and_class(
    home_S: NDArray[np.int64], class_S: NDArray[np.int64]
) -> list[NDArray[np.int64]]:
    """Return the subjects of each (client, class) pair as one array per pair, sorted by client and then by class."""
    order_S = np.lexsort((class_S, home_S))  # lexsort takes its last key first
    sorted_home_S = home_S[order_S]
    sorted_class_S = class_S[order_S]
    # A group begins where the client or the class differs from that of the previous subject.
    differs = (np.diff(sorted_home_S) != 0) | (np.diff(sorted_class_S) != 0)
    begins = np.flatnonzero(differs) + 1
    return np.split(order_S, begins)


def validation_as_test(
    data: Dataset, validation: tuple[Indices, ...] | None
) -> tuple[Dataset, Indices]:
    """Return the data with the validation samples as test set, and the sorted indices of the samples to test on.

    If the test set is evaluated by subject, so are the validation samples.

    Args:
        data: The data set.
        validation: Each client's validation samples, indices into the training set. With None, the validation samples
            are the data's own validation set.

    Raises:
        SettingError: there are no validation samples, or the data do not name their subjects although the test set is
            evaluated by subject.
    """
    use_own = validation is None
    inputs = data.val_inputs if use_own else data.train_inputs
    labels_N = data.val_labels if use_own else data.train_labels
    domains_N = data.val_domains if use_own else data.train_domains
    subjects_N = data.val_groups if use_own else data.train_groups
    rule = f"needs validation-fraction, as {data.name} brings no validation data"
    require(inputs is not None and labels_N is not None, "evaluate-on", "validation", rule)
    assert inputs is not None and labels_N is not None, "just required"
    if validation is None:
        chosen = np.arange(len(labels_N))
    else:
        chosen = np.sort(np.concatenate(validation))

    by_subject = data.test_groups is not None
    rule = (
        f"tests subjects as one, as the test set does, and {data.name} does not say whose its "
        "validation samples are: in an npz file val_subjects (N,) says it"
    )
    require(not by_subject or subjects_N is not None, "evaluate-on", "validation", rule)
    tests = replace(
        data,
        test_inputs=inputs,
        test_labels=labels_N,
        test_domains=None if data.test_domains is None else domains_N,
        test_groups=subjects_N if by_subject else None,
        test_subjects=subjects_N,
        val_inputs=None,
        val_labels=None,
        val_domains=None,
        val_groups=None,
        # Cached features of test samples are keyed by `content`, and these are other samples.
        content=f"{data.content} validation",
    )
    return tests, chosen
