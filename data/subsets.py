"""The samples that a run uses: subsets, a long tail over the classes, and what no client trains on.

The settings are train-images and test-images; imbalance-factor and largest-class; holdout-per-class; and
validation-fraction with evaluate-on.
"""

from dataclasses import replace

import numpy as np
from numpy.random import Generator

from data.dataset import Dataset, SplitData
from data.errors import SettingError
from data.partitions import Indices, generator
from data.readers.array_types import Integers

HOLDOUT = "holdout-per-class"


def draw_of_each_class(
    labels_N: Integers,
    wanted_C: Integers,
    draws: Generator,
    key: str,
    value: object,
    subjects_N: Integers | None = None,
    where: str = "",
) -> Indices:
    """Return sorted indices: a random `wanted_C[k]` of the samples of each class k.

    With `subjects_N`, (N,), subjects are drawn, the same ones for every class as far as they have samples of it, and of
    each all samples of a class until there are `wanted_C[k]`.

    Raises:
        SettingError: naming `key`, `value` and `where`, where a class has fewer samples than wanted.
    """
    rank_N: Integers | None = None
    if subjects_N is not None:
        # One order of the subjects for all classes, so that the draw takes as few subjects as it can.
        names, subject_N = np.unique(subjects_N, return_inverse=True)
        rank_N = draws.permutation(len(names))[subject_N]
    chosen = []
    for label, wanted in enumerate(wanted_C.tolist()):
        of_class = np.flatnonzero(labels_N == label)
        if len(of_class) < wanted:
            rule = f"{where}needs {wanted} images of class {label}, which has {len(of_class)}"
            raise SettingError(key, value, rule)
        if rank_N is None:
            order = draws.permutation(of_class)
        else:
            order = of_class[np.argsort(rank_N[of_class], kind="stable")]
        chosen.append(order[:wanted])
    return np.sort(np.concatenate(chosen))


def draw(
    data: Dataset,
    split: SplitData,
    wanted_C: Integers,
    seed: int,
    key: str,
    value: object,
    among: Indices,
) -> Indices:
    """Return `wanted_C` samples of each class, of every domain where there are domains, as sorted indices.

    The hold-out is drawn from few subjects if the data name them.

    Args:
        data: The data set.
        split: Its split that samples are drawn from.
        wanted_C: (C,), the number of samples of each class.
        seed: The run's seed.
        key: The setting that asks for the samples, for the error and for the draw's generator.
        value: Its value.
        among: The indices that samples are drawn from.

    Raises:
        SettingError: naming the setting, and the domain, where a class has fewer samples than wanted.
    """
    subjects_N = split.subjects if key == HOLDOUT else None
    pools = [(key, "", among)]
    if split.domains is not None:
        domains_N = split.domains[among]
        pools = [
            (f"{key} of {name}", f"domain {name}: ", among[domains_N == domain])
            for domain, name in enumerate(data.domain_names)
        ]
    chosen = []
    for purpose, where, pool in pools:
        subjects = None if subjects_N is None else subjects_N[pool]
        labels, draws = split.labels[pool], generator(seed, purpose)
        drawn = draw_of_each_class(labels, wanted_C, draws, key, value, subjects, where)
        chosen.append(pool[drawn])
    return np.sort(np.concatenate(chosen))


def subset(
    data: Dataset, split: SplitData, among: Indices, number: int, key: str, seed: int
) -> Indices:
    """Return sorted indices of `number` samples, equally many of each class, of `among`; all of them if it is 0.

    With domains, draw `number` samples from each domain. The first classes get the remainder.

    Raises:
        SettingError: naming `key`, if a class has too few samples.
    """
    if number == 0:
        return among
    each, remainder = divmod(number, data.num_classes)
    wanted_C = np.full(data.num_classes, each, np.int64)
    wanted_C[:remainder] += 1
    return draw(data, split, wanted_C, seed, key, number, among)


def long_tail_counts(largest: int, imbalance_factor: float, classes: int) -> Integers:
    """(classes,): n_k = int(n_max (1/IF)^(k/(C-1))), in label order (Cao et al., LDAM, 2019).

    IF, the imbalance factor, is the largest class over the smallest; 1 makes all equal.
    """
    counts = []
    for label in range(classes):
        share = (1.0 / imbalance_factor) ** (label / (classes - 1.0))
        counts.append(int(largest * share))
    return np.array(counts, np.int64)


def long_tail(
    labels_N: Integers,
    classes: int,
    imbalance_factor: float,
    largest: int,
    draws: Generator,
) -> Indices:
    """Sorted indices of a random subset with long-tailed classes; all of them if IF is 1 and `largest` 0.

    `largest` is the size n_max of class 0; 0 is the size of the smallest class.

    Raises:
        SettingError: a class has too few samples, or would be left with none.
    """
    if imbalance_factor == 1 and largest == 0:
        return np.arange(len(labels_N), dtype=np.int64)
    sizes_C = np.bincount(labels_N, minlength=classes)
    size = largest or int(sizes_C.min())
    wanted_C = long_tail_counts(size, imbalance_factor, classes)
    if wanted_C.min() == 0:
        rule = f"would leave class {np.argmin(wanted_C)} without an image, as class 0 has {size}"
        raise SettingError("imbalance-factor", imbalance_factor, rule)
    key, value = ("largest-class", largest) if largest else ("imbalance-factor", imbalance_factor)
    return draw_of_each_class(labels_N, wanted_C, draws, key, value)


def hold_out(data: Dataset, per_class: int, seed: int) -> tuple[Indices, Indices]:
    """Return the server's hold-out and the clients' samples, both as sorted indices into the training set.

    The hold-out has `per_class` samples of each class (with domains: of each class of each domain); 0 means no
    hold-out. If the data name subjects, it is drawn from few subjects, and nobody trains on their other samples.

    Raises:
        SettingError: a class has too few samples, no subject is left for the clients, or the data name the subjects
            of test samples but not of training samples.
    """
    everything = np.arange(len(data.train.labels), dtype=np.int64)
    if per_class == 0:
        return everything[:0], everything

    require_subjects(data, HOLDOUT, per_class)
    wanted_C = np.full(data.num_classes, per_class, np.int64)
    holdout = draw(data, data.train, wanted_C, seed, HOLDOUT, per_class, everything)
    subjects_N = data.train.subjects
    if subjects_N is None:
        return holdout, np.setdiff1d(everything, holdout)
    of_server = np.isin(subjects_N, subjects_N[holdout])
    of_clients = np.flatnonzero(~of_server)
    if not len(of_clients):
        rule = "takes samples of every subject, and somebody has to train"
        raise SettingError(HOLDOUT, per_class, rule)
    return holdout, of_clients


def split_validation(
    data: Dataset,
    parts: list[Indices],
    fraction: float,
    draws: Generator,
) -> tuple[list[Indices], tuple[Indices, ...]]:
    """Return each client's training samples and its validation samples, as sorted indices into the training set.

    Of its n samples of a class, a client uses fraction * n for validation, rounded up or down at random so that the
    mean is exact. Every client keeps at least one training sample. If the data name the subjects of the training
    samples, whole subjects are drawn instead, so that no subject is in both sets of the same or of different clients.

    Raises:
        SettingError: no client gets a validation sample, or the data name the subjects of test samples but not of
            training samples.
    """
    key = "validation-fraction"
    require_subjects(data, key, fraction)
    labels_N, subjects_N = data.train.labels, data.train.subjects
    if subjects_N is None:
        validation = _validation_by_sample(labels_N, parts, fraction, draws)
        units, unit_N = "samples", np.arange(len(labels_N))
    else:
        validation = _validation_by_subject(labels_N, subjects_N, parts, fraction, draws)
        units, unit_N = "subjects", subjects_N
    if not any(map(len, validation)):
        largest = max(len(np.unique(unit_N[part])) for part in parts)
        rule = f"cuts nothing off, as the clients have too few {units}, {largest} at most"
        raise SettingError(key, fraction, rule)

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
    if data.test.subjects is not None and data.train.subjects is None:
        rule = (
            f"cuts the training set, and {data.name} says whose its test samples are and "
            "does not say whose its training samples are: in an npz file train_subjects (N,) says it"
        )
        raise SettingError(key, value, rule)


def _validation_by_sample(
    labels_N: Integers,
    parts: list[Indices],
    fraction: float,
    draws: Generator,
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
    labels_N: Integers,
    subjects_N: Integers,
    parts: list[Indices],
    fraction: float,
    draws: Generator,
) -> list[Indices]:
    """Return each client's validation samples: all its samples of the subjects that are drawn for validation.

    A partition may spread one subject over several clients. Such a subject is drawn once, at the client with most of
    its samples and in the class that most of them have. All clients then use its samples for validation.
    In names, D is the number of samples that the partition assigns, and S the number of subjects.
    """
    sizes_K = [len(part) for part in parts]
    assigned = np.concatenate(parts)
    subject_D = np.unique(subjects_N[assigned], return_inverse=True)[1]
    home_S = most_common(subject_D, np.repeat(np.arange(len(parts)), sizes_K))
    class_S = most_common(subject_D, labels_N[assigned])
    is_drawn_S = np.zeros(len(home_S), np.bool_)
    group_S = home_S * (class_S.max() + 1) + class_S
    for group in np.unique(group_S):
        members = np.flatnonzero(group_S == group)
        drawn = draws.permutation(members)
        count = int(fraction * len(members) + draws.random())
        is_drawn_S[drawn[:count]] = True
    of_client = np.split(subject_D, np.cumsum(sizes_K)[:-1])
    for subjects in of_client:
        if len(subjects) and is_drawn_S[subjects].all():
            is_drawn_S[subjects[0]] = False  # at least one subject stays for training
    return [part[is_drawn_S[subjects]] for part, subjects in zip(parts, of_client, strict=True)]


def most_common(subject_D: Integers, values_D: Integers) -> Integers:
    """Return (S,): the most common value among each subject's samples; of equally common values, the smallest.

    Args:
        subject_D: (D,), each sample's subject, 0..S-1.
        values_D: (D,), each sample's value, from 0.
    """
    values = values_D.max() + 1
    counts = np.bincount(subject_D * values + values_D, minlength=(subject_D.max() + 1) * values)
    most_common_S: Integers = counts.reshape(-1, values).argmax(axis=1)
    return most_common_S


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
    split = data.val if validation is None else data.train
    if split is None:
        rule = f"needs validation-fraction, as {data.name} brings no validation data"
        raise SettingError("evaluate-on", "validation", rule)
    if data.tests_subjects and split.subjects is None:
        rule = (
            f"tests subjects as one, as the test set does, and {data.name} does not say whose its "
            "validation samples are: in an npz file val_subjects (N,) says it"
        )
        raise SettingError("evaluate-on", "validation", rule)
    chosen = np.arange(len(split.labels))
    if validation is not None:
        chosen = np.sort(np.concatenate(validation))
    # Cached features of test samples are keyed by `content`, and these are other samples.
    content = f"{data.content} validation"
    return replace(data, test=split, val=None, content=content), chosen
