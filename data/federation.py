"""The data of all clients: a seed draws a subset of a data set and partitions it over the clients."""

from dataclasses import dataclass, field, replace
from functools import lru_cache, partial

import numpy as np
import torch
from numpy.typing import NDArray

from data.dataset import Dataset, load, without_samples
from data.errors import DataError, SettingError
from data.holdouts import hold_out, split_validation, validation_as_test
from data.long_tail import long_tail
from data.partition_files import path_of, read
from data.partitions import (
    Indices,
    by_domain,
    classes_per_client,
    domain_parts,
    domain_shares,
    feddf,
    hash_of,
    iid,
    lda,
    llt,
    quantity,
)
from data.random_draws import balanced_counts, draw_of_each_domain, generator
from data.readers.catalog import is_sites
from data.readers.image_files import ImageFiles
from data.resolve import resolve
from data.rules import require
from data.samples import SampleCache, Samples, noisy
from data.settings import DataSettings
from data.sites import agreement_of
from data.standardization import column_sums, standardization
from data.text import printable


@dataclass(frozen=True, eq=False)
class Federation:
    """A data set and its partition over clients."""

    dataset: Dataset
    train_indices: tuple[Indices, ...]
    """Sorted indices into the training set, one array per client."""
    test_indices: tuple[Indices, ...] | None
    """Sorted indices into the test set, one array per client. None: every client is tested on the global test set."""
    domains: tuple[int, ...] | None
    """The index of each client's domain in `dataset.domain_names`; None unless every client has exactly one domain."""
    global_test: Indices
    """Sorted indices into the test set: the global test set."""
    counts_KC: NDArray[np.int64]
    """(clients, classes): the number of training samples of each class at each client."""
    augmentation: str
    """The augmentation of training images; it is applied in training steps only."""
    holdout_indices: Indices
    """Sorted indices into the training set: the server's hold-out, which no client has."""
    hash: str
    """SHA-256 of the data's content hash and all indices. Equal hashes mean the same samples at the same clients.

    For sites:FILE it is the SHA-256 of federation.toml, as the server has no samples.
    """
    validation_indices: tuple[Indices, ...] | None = None
    """Sorted indices into the training set: each client's validation samples.

    None without validation-fraction, and with evaluate-on = validation, where these samples are the test set.
    """
    standardized_rows: int = 0
    """Training rows that mean and std of a table's columns are from; 0 where settings state them, and for images."""
    noise: tuple[float, int] = (0.0, 0)
    """(variance, seed) of Gaussian noise on training images, on the scale 0..1.

    Client i = 0..K-1 gets variance * (i + 1) / K; 0 is no noise.
    """
    _cache: SampleCache = field(default_factory=SampleCache, repr=False)

    @property
    def clients(self) -> int:
        return len(self.train_indices)

    @property
    def client_names(self) -> list[str]:
        """Each client's number, followed by the name of its domain if it has one."""
        if self.domains is None:
            return [str(client) for client in range(self.clients)]
        return [
            f"{client} {self.dataset.domain_names[domain]}"
            for client, domain in enumerate(self.domains)
        ]

    def train(self, client: int, device: str = "cpu") -> Samples:
        """Return the training samples of one client."""
        return self._samples("train", client, device)

    def subjects(self, client: int) -> NDArray[np.int64] | None:
        """Return (N,): the subject of each training sample of a client, numbered as in `Dataset.train_groups`.

        None if the data do not name the subjects.
        """
        groups = self.dataset.train_groups
        if groups is None:
            return None
        return groups[self.train_indices[client]]

    def validation_subjects(self, client: int) -> NDArray[np.int64] | None:
        """Return (N,): the subject of each validation sample of a client.

        The numbers are those of `Dataset.train_groups` for validation samples taken from the training set, else those
        of `Dataset.val_groups`. None if the data do not name the subjects.
        """
        if self.validation_indices is None:
            groups = self.dataset.val_groups
            split = "val"
            own = True
        else:
            groups = self.dataset.train_groups
            split = "cut"
            own = self.test_indices is not None
        if groups is None:
            return None
        return groups[self._indices(split, client if own else None)]

    def test(self, client: int | None = None, device: str = "cpu") -> Samples:
        """Return the test samples of one client; the global test set for None, or if `test_indices` is None."""
        return self._samples("test", client if self.test_indices is not None else None, device)

    def validation(self, client: int | None = None, device: str = "cpu") -> Samples | None:
        """Return the validation samples of one client, or all of them for None. Return None if there are none.

        Without domains, all clients share all validation samples, as they share the test set.
        """
        if self.validation_indices is not None:
            return self._samples("cut", client if self.test_indices is not None else None, device)
        if self.dataset.val_labels is None:
            return None
        return self._samples("val", client, device)

    @property
    def validated(self) -> bool:
        """Whether the federation has validation samples."""
        return self.validation_indices is not None or self.dataset.val_labels is not None

    def tested_C(self, kind: str, client: int) -> NDArray[np.int64]:
        """Return (C,): how many samples of each class `client` is evaluated on.

        If all samples of a subject are evaluated together, each subject counts once.

        Args:
            kind: `test` or `validation`.
            client: The client's number.
        """
        split = self.split_of(kind)
        # Without domains, all clients share the test set and the validation samples from the training set.
        # The data's own validation set (`val`) is selected by domain in _validation_indices.
        shared = split != "val" and self.test_indices is None
        indices = self._indices(split, None if shared else client)
        source = "train" if split == "cut" else split
        labels_N = getattr(self.dataset, f"{source}_labels")[indices]
        groups = self.dataset.tested_as_one(source)
        if groups is not None:
            _, first_of_group = np.unique(groups[indices], return_index=True)
            labels_N = labels_N[first_of_group]
        counts_C = np.bincount(labels_N, minlength=self.dataset.num_classes)
        return counts_C.astype(np.int64)

    def tested_indices(self, kind: str) -> Indices:
        """Return (N,): the numbers of the samples that a server measures on, in their data set.

        Args:
            kind: `test` or `validation`.
        """
        return self._indices(self.split_of(kind), None).astype(np.int64)

    def split_of(self, kind: str) -> str:
        """Return where the samples of a kind, `test` or `validation`, come from."""
        if kind != "validation":
            return kind
        return "val" if self.validation_indices is None else "cut"

    def tested_subjects(self, client: int | None = None) -> NDArray[np.int64] | None:
        """Return (N,): the subject of each test sample of one client, or of the global test set for None.

        None if the data do not name the subjects.
        """
        subjects = self._subjects_of("test")
        indices = self._indices("test", client if self.test_indices is not None else None)
        return None if subjects is None else subjects[indices]

    def _subjects_of(self, split: str) -> NDArray[np.int64] | None:
        """Return (N,): the subject of each sample of the split test or val; None for others, or if unknown."""
        if split == "val":
            return self.dataset.val_groups
        if split != "test":
            return None
        data = self.dataset
        if data.test_subjects is None:
            return data.test_groups
        return data.test_subjects

    def holdout(self, device: str = "cpu") -> Samples | None:
        """Return the server's hold-out, with equally many samples of each class; None if there is none."""
        if len(self.holdout_indices):
            return self._samples("holdout", None, device)
        return None

    def at(
        self,
        split: str,
        indices: Indices,
        device: str = "cpu",
        augmentation: str = "none",
    ) -> Samples:
        """Return samples of one split of the data set, with the subjects by which they are evaluated.

        Training samples come without subjects.

        Args:
            split: `train`, `test` or `val`.
            indices: Indices into that split.
            device: The torch device of the returned tensors.
            augmentation: The augmentation of the returned samples.
        """
        data = self.dataset
        inputs = getattr(data, f"{split}_inputs")
        labels_N = getattr(data, f"{split}_labels")
        chosen: torch.Tensor | ImageFiles
        if isinstance(inputs, ImageFiles):
            chosen = inputs.only(indices)
        else:
            chosen = _to_device(device, np.ascontiguousarray(inputs[indices]))
        groups = None if split == "train" else data.tested_as_one(split)
        subjects = self._subjects_of(split) if groups is None else None
        broadcasts = (-1, 1, 1) if len(data.shape) == 3 else (-1,)
        return Samples(
            inputs_N=chosen,
            labels_N=_to_device(device, labels_N[indices]),
            mean=torch.tensor(data.mean, device=device).view(broadcasts),
            std=torch.tensor(data.std, device=device).view(broadcasts),
            augmentation=augmentation,
            groups_N=None if groups is None else _to_device(device, groups[indices]),
            subjects_N=None if subjects is None else _to_device(device, subjects[indices]),
        )

    def _samples(self, split: str, client: int | None, device: str) -> Samples:
        """Return the samples of a split, cached.

        `split` is train, test, val, holdout or cut (validation samples from the training set).
        """
        return self._cache.get((split, client, device), partial(self._read, split, client, device))

    def _read(self, split: str, client: int | None, device: str) -> Samples:
        # The split of the data set that the indices refer to.
        source = "train" if split in ("holdout", "cut") else split
        augmentation = self.augmentation if split == "train" else "none"
        indices = self._indices(split, client)
        samples = self.at(source, indices, device, augmentation)
        if split == "cut":
            groups = self.dataset.tested_as_one("train")
            subjects = self.dataset.train_groups
            if groups is not None:
                samples = replace(samples, groups_N=_to_device(device, groups[indices]))
            elif subjects is not None:
                samples = replace(samples, subjects_N=_to_device(device, subjects[indices]))
        highest_variance, noise_seed = self.noise
        if highest_variance and split == "train" and client is not None:
            variance = highest_variance * (client + 1) / self.clients
            samples = noisy(samples, variance, noise_seed, client)
        return samples

    def _indices(self, split: str, client: int | None) -> Indices:
        if split == "train" and client is not None:
            return self.train_indices[client]
        if split == "holdout":
            return self.holdout_indices
        if split == "cut" and self.validation_indices is not None:
            if client is None:
                return np.sort(np.concatenate(self.validation_indices))
            return self.validation_indices[client]
        if split == "test":
            if client is None or self.test_indices is None:
                return self.global_test
            return self.test_indices[client]
        return self._validation_indices(client)

    def _validation_indices(self, client: int | None) -> Indices:
        """Return indices into the data's own validation set: those of the client's domain.

        Without domains or for client None, return all indices.
        """
        domains_N = self.dataset.val_domains
        if client is not None and self.domains is not None and domains_N is not None:
            return np.flatnonzero(domains_N == self.domains[client])
        labels_N = self.dataset.val_labels
        size = 0 if labels_N is None else len(labels_N)
        return np.arange(size, dtype=np.int64)


def _to_device(device: str, array: NDArray[np.generic]) -> torch.Tensor:
    return torch.from_numpy(array).to(device)


@lru_cache(maxsize=4)
def federate(settings: DataSettings, seed: int) -> Federation:
    """Return the federation of these settings: draw hold-out, subset and long tail, then partition the rest.

    Equal settings, data and seed give the same federation.

    Raises:
        SettingError: settings contradict each other or the data.
        DataError: the data are missing or cannot be used.
    """
    settings = resolve(settings)
    if is_sites(settings.dataset):
        return _federation_of_sites(settings)
    data = load(settings)
    if settings.partition_file:
        return _federation_from_file(settings, data, seed)

    # Draw the hold-out first: the subset and the long tail below can leave too few samples of a class.
    holdout, train = hold_out(data, settings.holdout_per_class, seed)
    labels_N = data.train_labels[train]
    domains_N = None if data.train_domains is None else data.train_domains[train]
    train = train[_subset(data, labels_N, domains_N, settings.train_images, "train-images", seed)]
    cut = long_tail(
        data.train_labels[train],
        data.num_classes,
        settings.imbalance_factor,
        settings.largest_class,
        generator(seed, "long tail"),
    )
    train = train[cut]
    global_test = _subset(
        data, data.test_labels, data.test_domains, settings.test_images, "test-images", seed
    )

    parts = [train[part] for part in partition_indices(settings, data, train, seed)]
    domains: tuple[int, ...] | None = None
    if settings.partition == "domains":
        # With parts-per-domain, clients 0..D-1 have the first part of the D domains, clients D..2D-1 the second, ...
        count = len(data.domain_names)
        domains = tuple(client % count for client in range(len(parts)))
    for client, part in enumerate(parts):
        if len(part) == 0:
            rule = f"client {client} would hold no image under partition {settings.partition}"
            raise SettingError("clients", settings.clients, rule)
    return _federation(settings, data, parts, global_test, domains, holdout, seed)


def _federation_of_sites(settings: DataSettings) -> Federation:
    """Return the federation of sites:FILE as the server sees it: the sites' names, without samples."""
    settings.require(settings.evaluate_on == "test", "evaluate_on", "must be test between sites")
    agreement = agreement_of(settings.dataset)
    data = without_samples(settings, agreement)
    clients = len(agreement.sites)
    none = data.train_labels  # it is empty
    return Federation(
        dataset=data,
        train_indices=(none,) * clients,
        test_indices=(none,) * clients,
        domains=tuple(range(clients)),
        global_test=none,
        counts_KC=np.zeros((clients, data.num_classes), np.int64),
        augmentation=settings.augmentation,
        holdout_indices=none,
        hash=data.content,
    )


def _federation_from_file(settings: DataSettings, data: Dataset, seed: int) -> Federation:
    """Return the federation that a partition file describes.

    Raises:
        SettingError: holdout-per-class differs from the file's hold-out.
        DataError: the file was made for other data, or has an index or a domain out of range.
    """
    saved = read(settings.partition_file)
    path = path_of(settings.partition_file)
    if saved.content != data.content:
        hash_there = printable(saved.content[:16])
        raise DataError(
            f"{path}: is a partition of other data: their hash is {hash_there}, "
            f"that of {settings.dataset} as set here {data.content[:16]}"
        )
    trained = np.concatenate([*saved.train, saved.holdout])
    for part, size in ((trained, len(data.train_labels)), (saved.test, len(data.test_labels))):
        if not len(part) or part.min() < 0 or part.max() >= size:
            raise DataError(f"{path}: its samples must be 0..{size - 1}, at least one")
    domains = len(data.domain_names)
    if any(not 0 <= domain < domains for domain in saved.domains or ()):
        rule = f"its domains must be 0..{domains - 1}" if domains else "the data have no domains"
        raise DataError(f"{path}: {rule}")

    # The file determines the hold-out. The setting has no effect, but it must describe the run correctly.
    holdout_C = np.bincount(data.train_labels[saved.holdout], minlength=data.num_classes)
    expected = settings.holdout_per_class * max(1, domains)  # it is drawn from every domain
    listed = ", ".join(map(str, holdout_C))
    rule = f"must be the partition file's: its hold-out has {listed} samples of the classes"
    fits = bool((holdout_C == expected).all())
    require(fits, "holdout-per-class", settings.holdout_per_class, rule)
    return _federation(
        settings, data, list(saved.train), saved.test, saved.domains, saved.holdout, seed
    )


def _federation(
    settings: DataSettings,
    data: Dataset,
    parts: list[Indices],
    global_test: Indices,
    domains: tuple[int, ...] | None,
    holdout: Indices,
    seed: int,
) -> Federation:
    """Return a Federation: split off the validation samples, and compute counts and hash.

    Args:
        settings: The resolved settings.
        data: The data set.
        parts: Each client's sorted indices into the training set, from which validation samples are still to be taken.
        global_test: Sorted indices into the test set.
        domains: Each client's domain, or None.
        holdout: Sorted indices into the training set: the server's hold-out.
        seed: The run's seed.
    """
    validation: tuple[Indices, ...] | None = None
    if fraction := settings.validation_fraction:
        rule = f"has no effect: {settings.dataset} brings validation data of its own"
        require(data.val_labels is None, "validation-fraction", fraction, rule)
        draws = generator(seed, "validation")
        parts, validation = split_validation(data, parts, fraction, draws)
    if settings.evaluate_on == "validation":
        data, global_test = validation_as_test(data, validation)
        validation = None
    test_parts: tuple[Indices, ...] | None = None
    if data.test_domains is not None and domains is not None:
        of_domain = by_domain(data.test_domains[global_test], len(data.domain_names))
        test_parts = tuple(global_test[of_domain[domain]] for domain in domains)
    by_rows = not (data.mean and data.std)
    if by_rows:
        data = _standardized(data, parts)
    counts = [np.bincount(data.train_labels[part], minlength=data.num_classes) for part in parts]
    counts_KC: NDArray[np.int64] = np.stack(counts).astype(np.int64)

    # A group of indices is hashed only if its setting is used.
    groups = [parts, list(test_parts or ()), [global_test]]
    if len(holdout):
        groups.append([holdout])
    if validation is not None:
        groups.append(list(validation))
    content = data.content
    if settings.noise:
        content += f" noise {settings.noise} {seed}"
    return Federation(
        dataset=data,
        train_indices=tuple(parts),
        test_indices=test_parts,
        domains=domains,
        global_test=global_test,
        counts_KC=counts_KC,
        augmentation=settings.augmentation,
        holdout_indices=holdout,
        hash=hash_of(content, groups),
        validation_indices=validation,
        standardized_rows=sum(map(len, parts)) if by_rows else 0,
        noise=(settings.noise, seed),
    )


def _standardized(data: Dataset, parts: list[Indices]) -> Dataset:
    """Return a table with the mean and std of its columns that no setting states, from the clients' training rows."""
    inputs = data.train_inputs
    assert not isinstance(inputs, ImageFiles)  # images have a mean of their own
    mean, std = standardization(column_sums(inputs, np.concatenate(parts)))
    return replace(data, mean=data.mean or mean, std=data.std or std)


def _subset(
    data: Dataset,
    labels_N: Indices,
    domains_N: NDArray[np.int64] | None,
    number: int,
    key: str,
    seed: int,
) -> Indices:
    """Return sorted indices of `number` samples, equally many of each class; all samples if `number` is 0.

    With domains, draw `number` samples from each domain. The first classes get the remainder.

    Raises:
        SettingError: naming `key`, if a class has too few samples.
    """
    if number == 0:
        return np.arange(len(labels_N), dtype=np.int64)
    wanted_C = balanced_counts(number, data.num_classes)
    return draw_of_each_domain(labels_N, domains_N, data.domain_names, wanted_C, key, number, seed)


def partition_indices(
    settings: DataSettings, data: Dataset, train: Indices, seed: int
) -> list[Indices]:
    """Return one array per client of positions in `train`, under the partition of the settings.

    Raises:
        SettingError: the data cannot be partitioned in this way.
    """
    labels_N = data.train_labels[train]
    clients = settings.clients
    draws = generator(seed, "partition")
    if settings.partition == "domains" and data.train_domains is not None:
        domains_N = data.train_domains[train]
        domains = len(data.domain_names)
        if settings.parts_per_domain:
            return domain_parts(labels_N, domains_N, domains, settings.parts_per_domain, draws)
        if settings.domain_percent < 100:
            return domain_shares(labels_N, domains_N, domains, settings.domain_percent, draws)
        return by_domain(domains_N, domains)
    if settings.partition == "pooled":
        return [np.arange(len(train), dtype=np.int64)]
    if settings.partition == "iid":
        return iid(labels_N, clients, draws)
    if settings.partition == "feddf":
        return feddf(labels_N, clients, settings.alpha, draws)
    if settings.partition == "llt":
        literal = settings.llt_form == "literal"
        return llt(labels_N, clients, data.num_classes, settings.alpha, draws, literal)
    if settings.partition == "quantity":
        return quantity(len(train), clients, settings.alpha, draws, settings.min_samples)
    if settings.partition == "classes-per-client":
        number = settings.classes_per_client
        return classes_per_client(labels_N, clients, data.num_classes, number, draws)
    return lda(labels_N, clients, settings.alpha, draws, settings.min_samples)
