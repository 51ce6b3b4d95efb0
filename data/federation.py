"""The data of all clients: the subset that a seed draws from a data set, and its partition."""

from dataclasses import dataclass, field, replace
from functools import lru_cache, partial

import numpy as np
import torch
from numpy.typing import NDArray

from data.dataset import Dataset, load, without_samples
from data.errors import DataError, SettingError
from data.holdouts import (
    UnseenDomain,
    cut_off,
    hold_out,
    in_place_of_test,
    left_out,
    without,
)
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
        if groups is None:
            return None
        return groups[self.train_indices[client]]

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
        """Return (C,): the samples of each class that `client` is tested on, with kind `test` or `validation`.

        Subjects are counted instead where their samples are tested as one.
        """
        split = kind
        if kind == "validation":
            split = "val" if self.validation_indices is None else "cut"
        # Without domains all clients share one test set, and what they cut off; `val` is chosen by domain.
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
        inputs = getattr(data, f"{split}_inputs")
        labels_N = getattr(data, f"{split}_labels")
        chosen: torch.Tensor | ImageFiles
        if isinstance(inputs, ImageFiles):
            chosen = inputs.only(indices)
        else:
            chosen = _on(device, np.ascontiguousarray(inputs[indices]))
        groups = None if split == "train" else data.tested_as_one(split)
        subjects = self._subjects_of(split) if groups is None else None
        broadcasts = (-1, 1, 1) if len(data.shape) == 3 else (-1,)
        return Samples(
            inputs_N=chosen,
            labels_N=_on(device, labels_N[indices]),
            mean=torch.tensor(data.mean, device=device).view(broadcasts),
            std=torch.tensor(data.std, device=device).view(broadcasts),
            augmentation=augmentation,
            groups_N=None if groups is None else _on(device, groups[indices]),
            subjects_N=None if subjects is None else _on(device, subjects[indices]),
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
                samples = replace(samples, groups_N=_on(device, groups[indices]))
            elif subjects is not None:
                samples = replace(samples, subjects_N=_on(device, subjects[indices]))
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
        labels_N = self.dataset.val_labels
        size = 0 if labels_N is None else len(labels_N)
        everything = np.arange(size, dtype=np.int64)
        if self.unseen is None:
            return everything
        return without(self.unseen, everything, domains_N)


def _on(device: str, array: NDArray[np.generic]) -> torch.Tensor:
    return torch.from_numpy(array).to(device)


@lru_cache(maxsize=4)
def federate(settings: DataSettings, seed: int) -> Federation:
    """Hold out, draw the subset, cut the long tail, partition; equal settings, data and seed give the same federation.

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

    # The hold-out comes before anything else is drawn, while the pool is still balanced.
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
        # With parts-per-domain, clients 0..D-1 have the first part of each of the D domains, and so on.
        number = len(data.domain_names)
        domains = tuple(client % number for client in range(len(parts)))
    unseen: UnseenDomain | None = None
    if settings.unseen_domain and domains is not None:
        unseen = left_out(data, settings.unseen_domain, train, global_test)
        stay = [client for client, domain in enumerate(domains) if domain != unseen.index]
        parts = [parts[client] for client in stay]
        domains = tuple(domains[client] for client in stay)
        holdout = without(unseen, holdout, data.train_domains)
        global_test = without(unseen, global_test, data.test_domains)
    for client, part in enumerate(parts):
        if len(part) == 0:
            rule = f"client {client} would hold no image under partition {settings.partition}"
            raise SettingError("clients", settings.clients, rule)
    return _federation(settings, data, parts, global_test, domains, holdout, unseen, seed)


def _of_sites(settings: DataSettings) -> Federation:
    """The server's view of sites: their names, and no sample."""
    settings.require(settings.evaluate_on == "test", "evaluate_on", "must be test between sites")
    agreement = agreement_of(settings.dataset)
    data = without_samples(settings, agreement)
    clients = len(agreement.sites)
    none = data.train_labels  # an empty array
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


def _from_file(settings: DataSettings, data: Dataset, seed: int) -> Federation:
    """The federation of a partition file. Raises as `federate` does, for a file that does not fit data or settings."""
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

    # The file has the hold-out, so the setting decides nothing; it must still be true of the run.
    held_C = np.bincount(data.train_labels[saved.holdout], minlength=data.num_classes)
    stated = settings.holdout_per_class * max(1, domains)  # it is drawn from every domain
    listed = ", ".join(map(str, held_C))
    rule = f"must be the partition file's: its hold-out has {listed} samples of the classes"
    fits = bool((held_C == stated).all())
    require(fits, "holdout-per-class", settings.holdout_per_class, rule)
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
    """The federation of these samples, with validation samples cut off and counts and hash computed."""
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

    # A group is in the hash only where its setting is used, so that all other federations keep their hashes.
    groups = [parts, list(test_parts or ()), [global_test]]
    if len(holdout):
        groups.append([holdout])
    if unseen is not None:
        groups.append([unseen.train, unseen.test])
    if kept is not None:
        groups.append(list(kept))
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
        unseen=unseen,
        validation_indices=kept,
        noise=(settings.noise, seed),
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
        literal = settings.llt_form == "literal"
        return llt(labels_N, clients, data.num_classes, settings.alpha, draws, literal)
    if settings.partition == "quantity":
        return quantity(len(train), clients, settings.alpha, draws, settings.min_samples)
    if settings.partition == "classes-per-client":
        held = settings.classes_per_client
        return classes_per_client(labels_N, clients, data.num_classes, held, draws)
    return lda(labels_N, clients, settings.alpha, draws, settings.min_samples)
