"""The data of all clients: the subset that a seed draws from a data set, and its partition."""

from dataclasses import dataclass, field, replace
from functools import lru_cache, partial

import numpy as np
import torch
from numpy.typing import NDArray

from data.dataset import Dataset, load, without_samples
from data.errors import DataError, SettingError
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
from data.text import printable
from data.unseen_domain import UnseenDomain, left_out, without
from data.validation import cut_off, in_place_of_test, require_subjects


@dataclass(frozen=True, eq=False)
class Federation:
    """A data set and its partition over clients."""

    dataset: Dataset
    train_indices: tuple[Indices, ...]
    """Sorted indices into the training set, one array a client."""
    test_indices: tuple[Indices, ...] | None
    """Sorted indices into the test set, one array a client; None: every client is tested on the global test set."""
    domains: tuple[int, ...] | None
    """Each client's domain; None where clients are not of one domain each."""
    global_test: Indices
    """Sorted indices into the test set."""
    counts_KC: NDArray[np.int64]
    """(clients, classes): training samples of each class at each client."""
    augmentation: str
    """Of training samples, in training steps."""
    holdout_indices: Indices
    """Sorted indices into the training set of the images that the server keeps for itself; no client holds one."""
    hash: str
    """Over the data's contents and all indices: equal hashes are the same samples at the same clients."""
    unseen: UnseenDomain | None = None
    """The domain that no client holds; None where there is none."""
    validation_indices: tuple[Indices, ...] | None = None
    """Sorted indices into the training set of what each client keeps for validation; None where nothing was cut off."""
    noise: tuple[float, int] = (0.0, 0)
    """Variance on the last client's training images, of the scale 0..1, client i's being i / K of it; and its seed."""
    _cache: SampleCache = field(default_factory=SampleCache, repr=False)

    @property
    def clients(self) -> int:
        return len(self.train_indices)

    @property
    def client_names(self) -> list[str]:
        """Each client's number, with its domain where it has one."""
        if self.domains is None:
            return [str(client) for client in range(self.clients)]
        return [
            f"{client} {self.dataset.domain_names[domain]}"
            for client, domain in enumerate(self.domains)
        ]

    def train(self, client: int, device: str = "cpu") -> Samples:
        """The training samples of one client."""
        return self._samples("train", client, device)

    def subjects(self, client: int) -> NDArray[np.int64] | None:
        """Return (N,): the subject of each of a client's training samples, numbered as `Dataset.train_groups` does;
        None where the data do not say it."""
        groups = self.dataset.train_groups
        return None if groups is None else groups[self.train_indices[client]]

    def validation_subjects(self, client: int) -> NDArray[np.int64] | None:
        """Return (N,): the subject of each of a client's validation samples, numbered as `Dataset.train_groups` where
        they were cut off the training set, else as `Dataset.val_groups`; None where the data do not say it."""
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
        """The test samples of one client, or the global test set, which is also every client's own without domains."""
        return self._samples("test", client if self.test_indices is not None else None, device)

    def validation(self, client: int | None = None, device: str = "cpu") -> Samples | None:
        """The validation samples of one client, or all of them; None where the data have none.

        As with the test set, without domains every client's are all of them.
        """
        if self.validation_indices is not None:
            return self._samples("cut", client if self.test_indices is not None else None, device)
        if self.dataset.val_labels is None:
            return None
        return self._samples("val", client, device)

    @property
    def validated(self) -> bool:
        """Whether there are validation samples."""
        return self.validation_indices is not None or self.dataset.val_labels is not None

    def tested_C(self, kind: str, client: int) -> NDArray[np.int64]:
        """Return (C,): what of each class `client` is tested on, with kind `test` or `validation`; subjects, where
        samples are parts of one."""
        cut = "val" if self.validation_indices is None else "cut"
        split = cut if kind == "validation" else kind
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

    def tested_subjects(self, client: int | None = None) -> NDArray[np.int64] | None:
        """Return (N,): the subject of each test sample of one client, or of the global test set; None where the data do
        not say it."""
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
        """The server's own samples, equally many of each class; None where it keeps none."""
        if len(self.holdout_indices):
            return self._samples("holdout", None, device)
        return None

    def unseen_inputs(self, device: str = "cpu") -> Samples:
        """The training samples of the domain without a client; every label is -1, as no label may be read."""
        samples = self._samples("unseen-train", None, device)
        return replace(samples, labels_N=torch.full_like(samples.labels_N, -1))

    def unseen_test(self, device: str = "cpu") -> Samples:
        """The test samples of the domain that no client holds."""
        return self._samples("unseen-test", None, device)

    def at(
        self,
        split: str,
        indices: Indices,
        device: str = "cpu",
        augmentation: str = "none",
    ) -> Samples:
        """The samples of the split train, test or val at `indices`; training samples each for itself."""
        data = self.dataset
        inputs = getattr(self.dataset, f"{split}_inputs")
        chosen = inputs.only(indices) if isinstance(inputs, ImageFiles) else inputs[indices]
        shape = (-1, 1, 1) if len(data.shape) == 3 else (-1,)
        groups = None if split == "train" else data.tested_as_one(split)
        subjects = None if groups is not None else self._subjects_of(split)
        return Samples(
            chosen
            if isinstance(chosen, ImageFiles)
            else torch.from_numpy(np.ascontiguousarray(chosen)).to(device),
            torch.from_numpy(getattr(data, f"{split}_labels")[indices]).to(device),
            torch.tensor(data.mean, device=device).view(shape),
            torch.tensor(data.std, device=device).view(shape),
            augmentation,
            None if groups is None else torch.from_numpy(groups[indices]).to(device),
            None if subjects is None else torch.from_numpy(subjects[indices]).to(device),
        )

    def _samples(self, split: str, client: int | None, device: str) -> Samples:
        return self._cache.get((split, client, device), partial(self._read, split, client, device))

    def _read(self, split: str, client: int | None, device: str) -> Samples:
        source = "train" if split in ("holdout", "cut") else split.removeprefix("unseen-")
        augmentation = self.augmentation if split == "train" else "none"
        indices = self._indices(split, client)
        samples = self.at(source, indices, device, augmentation)
        if split == "cut":
            groups = self.dataset.tested_as_one("train")
            subjects = self.dataset.train_groups
            if groups is not None:
                groups_N = torch.from_numpy(groups[indices]).to(device)
                samples = replace(samples, groups_N=groups_N)
            elif subjects is not None:
                subjects_N = torch.from_numpy(subjects[indices]).to(device)
                samples = replace(samples, subjects_N=subjects_N)
        strongest, noise_seed = self.noise
        if strongest and split == "train" and client is not None:
            strength = strongest * (client + 1) / self.clients
            samples = noisy(samples, strength, noise_seed, client)
        return samples

    def _indices(self, split: str, client: int | None) -> Indices:
        if split == "train" and client is not None:
            return self.train_indices[client]
        if split == "holdout":
            return self.holdout_indices
        if split == "cut" and self.validation_indices is not None:
            kept = self.validation_indices
            if client is None:
                return np.sort(np.concatenate(kept))
            return kept[client]
        if split.startswith("unseen-") and self.unseen is not None:
            if split == "unseen-train":
                return self.unseen.train
            return self.unseen.test
        if split == "test":
            if client is None or self.test_indices is None:
                return self.global_test
            return self.test_indices[client]
        return self._validation_indices(client)

    def _validation_indices(self, client: int | None) -> Indices:
        """Return indices into the data's own validation set: of the client's domain, or all that are trained on."""
        domains_N = self.dataset.val_domains
        if client is not None and self.domains is not None and domains_N is not None:
            return np.flatnonzero(domains_N == self.domains[client])
        labels = self.dataset.val_labels if self.dataset.val_labels is not None else ()
        everything = np.arange(len(labels), dtype=np.int64)
        if self.unseen is None:
            return everything
        return without(self.unseen, everything, domains_N)


@lru_cache(maxsize=4)
def federate(settings: DataSettings, seed: int) -> Federation:
    """Hold out, draw the subset, cut the long tail, deal out; equal settings, data and seed give the same federation.

    Raises:
        SettingError: settings that contradict each other or the data.
        DataError: data that are missing or cannot be used.
    """
    settings = resolve(settings)
    if is_sites(settings.dataset):
        return _of_sites(settings)
    data = load(settings)
    if settings.partition_file:
        return _from_file(settings, data, seed)
    everything = np.arange(len(data.train_labels), dtype=np.int64)
    holdout = everything[:0]
    train = everything
    if (
        per_class := settings.holdout_per_class
    ):  # before anything else is drawn: the pool is still balanced
        holdout = _held_out(data, per_class, seed)
        train = np.setdiff1d(everything, holdout)
        if data.train_groups is not None:  # nobody holds the other samples of the server's subjects
            of_server = np.isin(data.train_groups, data.train_groups[holdout])
            train = np.flatnonzero(~of_server)
            rule = "takes samples of every subject, and somebody has to train"
            require(len(train) > 0, "holdout-per-class", per_class, rule)
    domains_N = None if data.train_domains is None else data.train_domains[train]
    train = train[
        _subset(
            data, data.train_labels[train], domains_N, settings.train_images, "train-images", seed
        )
    ]
    tail = (settings.imbalance_factor, settings.largest_class, generator(seed, "long tail"))
    train = train[long_tail(data.train_labels[train], data.num_classes, *tail)]
    global_test = _subset(
        data, data.test_labels, data.test_domains, settings.test_images, "test-images", seed
    )
    parts = [train[part] for part in partition_indices(settings, data, train, seed)]
    domains: tuple[int, ...] | None = None
    if settings.partition == "domains":
        domains = tuple(client % len(data.domain_names) for client in range(len(parts)))
    unseen: UnseenDomain | None = None
    if settings.unseen_domain and domains is not None:
        unseen = left_out(data, settings.unseen_domain, train, global_test)
        parts = [
            part for part, domain in zip(parts, domains, strict=True) if domain != unseen.index
        ]
        domains = tuple(domain for domain in domains if domain != unseen.index)
        holdout = without(unseen, holdout, data.train_domains)
        global_test = without(unseen, global_test, data.test_domains)
    for client, part in enumerate(parts):
        if len(part) == 0:
            rule = f"client {client} would hold no image under partition {settings.partition}"
            raise SettingError("clients", settings.clients, rule)
    return _federation(settings, data, parts, global_test, domains, holdout, unseen, seed)


def _held_out(data: Dataset, per_class: int, seed: int) -> Indices:
    """Return the server's samples, sorted: `per_class` of each class (of each domain), of as few subjects as can be.

    Raises SettingError where a class has fewer, or the data name the subjects of the test samples alone.
    """
    key = "holdout-per-class"
    require_subjects(data, key, per_class)
    wanted_C = np.full(data.num_classes, per_class, np.int64)
    pool = (data.train_labels, data.train_domains, data.domain_names)
    return draw_of_each_domain(*pool, wanted_C, key, per_class, seed, data.train_groups)


def _of_sites(settings: DataSettings) -> Federation:
    """The server's view of sites: their names, and no sample."""
    settings.require(settings.evaluate_on == "test", "evaluate_on", "must be test between sites")
    agreement = agreement_of(settings.dataset)
    data = without_samples(settings, agreement)
    clients = len(agreement.sites)
    none = data.train_labels  # an empty array
    parts = (none,) * clients
    domains = tuple(range(clients))
    counts_KC = np.zeros((clients, data.num_classes), np.int64)
    return Federation(
        data, parts, parts, domains, none, counts_KC, settings.augmentation, none, data.content
    )


def _from_file(settings: DataSettings, data: Dataset, seed: int) -> Federation:
    saved = read(settings.partition_file)
    if saved.content != data.content:
        hash_there = printable(saved.content[:16])
        raise DataError(
            f"{path_of(settings.partition_file)}: is a partition of other data: their hash is {hash_there}, "
            f"that of {settings.dataset} as set here {data.content[:16]}"
        )
    trained = np.concatenate([*saved.train, saved.holdout])
    for part, size in ((trained, len(data.train_labels)), (saved.test, len(data.test_labels))):
        if not len(part) or part.min() < 0 or part.max() >= size:
            raise DataError(
                f"{path_of(settings.partition_file)}: its samples must be 0..{size - 1}, at least one"
            )
    if data.domain_names:
        rule = f"its domains must be 0..{len(data.domain_names) - 1}"
    else:
        rule = "the data have no domains"
    if saved.domains is not None and not all(
        0 <= domain < len(data.domain_names) for domain in saved.domains
    ):
        raise DataError(f"{path_of(settings.partition_file)}: {rule}")
    held_C = np.bincount(data.train_labels[saved.holdout], minlength=data.num_classes)
    rule = f"must be the partition file's: its hold-out has {', '.join(map(str, held_C))} samples of the classes"
    stated = settings.holdout_per_class * max(
        1, len(data.domain_names)
    )  # it is drawn from every domain
    require(bool((held_C == stated).all()), "holdout-per-class", settings.holdout_per_class, rule)
    return _federation(
        settings, data, list(saved.train), saved.test, saved.domains, saved.holdout, None, seed
    )


def _federation(
    settings: DataSettings,
    data: Dataset,
    parts: list[Indices],
    global_test: Indices,
    domains: tuple[int, ...] | None,
    holdout: Indices,
    unseen: UnseenDomain | None,
    seed: int,
) -> Federation:
    kept: tuple[Indices, ...] | None = None
    if share := settings.validation_fraction:
        rule = f"has no effect: {settings.dataset} brings validation data of its own"
        require(data.val_labels is None, "validation-fraction", share, rule)
        parts, kept = cut_off(data, parts, share, generator(seed, "validation"))
    if settings.evaluate_on == "validation":
        data, global_test = in_place_of_test(data, kept)
        kept = None
    test_parts: tuple[Indices, ...] | None = None
    if data.test_domains is not None and domains is not None:
        of_domain = by_domain(data.test_domains[global_test], len(data.domain_names))
        test_parts = tuple(global_test[of_domain[domain]] for domain in domains)
    counts = [np.bincount(data.train_labels[part], minlength=data.num_classes) for part in parts]
    counts_KC: NDArray[np.int64] = np.stack(counts).astype(np.int64)
    groups = [parts, list(test_parts or ()), [global_test], *([[holdout]] if len(holdout) else [])]
    groups += [[unseen.train, unseen.test]] if unseen is not None else []
    groups += [list(kept)] if kept is not None else []
    content = data.content
    if settings.noise:
        content += f" noise {settings.noise} {seed}"
    return Federation(
        data,
        tuple(parts),
        test_parts,
        domains,
        global_test,
        counts_KC,
        settings.augmentation,
        holdout,
        hash_of(content, groups),
        unseen,
        kept,
        (settings.noise, seed),
    )


def _subset(
    data: Dataset,
    labels_N: Indices,
    domains_N: NDArray[np.int64] | None,
    number: int,
    key: str,
    seed: int,
) -> Indices:
    """Sorted indices of `number` samples (of each domain), equally many of each class; all of them if it is 0."""
    if number == 0:
        return np.arange(len(labels_N), dtype=np.int64)
    wanted_C = balanced_counts(number, data.num_classes)
    return draw_of_each_domain(labels_N, domains_N, data.domain_names, wanted_C, key, number, seed)


def partition_indices(
    settings: DataSettings, data: Dataset, train: Indices, seed: int
) -> list[Indices]:
    """Return indices into `train`, one array a client; raises as the partition does."""
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
        return llt(
            labels_N,
            clients,
            data.num_classes,
            settings.alpha,
            draws,
            settings.llt_form == "literal",
        )
    if settings.partition == "quantity":
        return quantity(len(train), clients, settings.alpha, draws, settings.min_samples)
    if settings.partition == "classes-per-client":
        return classes_per_client(
            labels_N, clients, data.num_classes, settings.classes_per_client, draws
        )
    return lda(labels_N, clients, settings.alpha, draws, settings.min_samples)
