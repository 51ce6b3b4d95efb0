"""The data of all clients: a seed draws a subset of a data set and partitions it over the clients.

`write_sites` writes a file OUT/NAME/data.npz per client for a trial between sites (`fedskew data export-sites`).
"""

import re
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import torch

from data.dataset import Dataset, SplitData, files_key, load
from data.errors import DataError, SettingError
from data.files import bound_path
from data.partition_files import read
from data.partitions import (
    Indices,
    classes_per_client,
    domain_parts,
    domain_shares,
    feddf,
    generator,
    hash_of,
    iid,
    lda,
    llt,
    quantity,
)
from data.readers.array_types import Array, Integers
from data.readers.catalog import is_sites
from data.readers.image_files import ImageFiles
from data.resolve import agreement_of, resolve
from data.samples import SampleCache, Samples
from data.settings import DataSettings
from data.standardization import column_sums, standardization
from data.subsets import hold_out, long_tail, split_validation, subset, validation_as_test


@dataclass(frozen=True, eq=False)
class Federation:
    """A data set and its partition over clients.

    Samples are of one of four kinds: train, test, validation, and holdout, the server's own.
    """

    dataset: Dataset
    train_indices: tuple[Indices, ...]
    """Sorted indices into the training set, one array per client."""
    test_indices: tuple[Indices, ...] | None
    """Sorted indices into the test set, one array per client. None: every client is tested on the global test set."""
    domains: tuple[int, ...] | None
    """The index of each client's domain in `dataset.domain_names`; None unless every client has exactly one domain."""
    global_test: Indices
    """Sorted indices into the test set: the global test set."""
    counts_KC: Integers
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

    @property
    def validated(self) -> bool:
        """Whether the federation has validation samples."""
        return self.validation_indices is not None or self.dataset.val is not None

    def train(self, client: int, device: str = "cpu") -> Samples:
        """Return the training samples of one client."""
        return self._samples("train", client, device)

    def test(self, client: int | None = None, device: str = "cpu") -> Samples:
        """Return the test samples of one client; the global test set for None, or if `test_indices` is None."""
        return self._samples("test", client, device)

    def validation(self, client: int | None = None, device: str = "cpu") -> Samples | None:
        """Return the validation samples of one client, or all of them for None. Return None if there are none.

        Without domains, all clients share all validation samples, as they share the test set.
        """
        return self._samples("validation", client, device) if self.validated else None

    def holdout(self, device: str = "cpu") -> Samples | None:
        """Return the server's hold-out, with equally many samples of each class; None if there is none."""
        return self._samples("holdout", None, device) if len(self.holdout_indices) else None

    def selected(self, kind: str, client: int | None = None) -> tuple[SplitData, Indices]:
        """Return the split of the data set that samples of a kind are from, and their indices (N,) in it.

        Args:
            kind: train, test, validation or holdout.
            client: The client's number; None for all test or validation samples.
        """
        data = self.dataset
        if kind == "train" and client is not None:
            return data.train, self.train_indices[client]
        if kind == "holdout":
            return data.train, self.holdout_indices
        tests, cut = self.test_indices, self.validation_indices
        if client is None or tests is None:
            # Without tests of their own all clients are tested, and validated, on the same samples.
            if kind == "test":
                return data.test, self.global_test
            if cut is not None:
                return data.train, np.sort(np.concatenate(cut))
            assert data.val is not None, "there are validation samples"
            return data.val, np.arange(len(data.val.labels))
        if kind == "test":
            return data.test, tests[client]
        if cut is not None:
            return data.train, cut[client]
        assert data.val is not None and data.val.domains is not None and self.domains is not None
        return data.val, np.flatnonzero(data.val.domains == self.domains[client])

    def subjects(self, kind: str, client: int | None = None) -> Integers | None:
        """Return (N,): the subject of each sample that `selected` chooses; None if the data do not name them."""
        split, indices = self.selected(kind, client)
        return None if split.subjects is None else split.subjects[indices]

    def tested_C(self, kind: str, client: int) -> Integers:
        """Return (C,): how many samples of each class `client` is evaluated on.

        If all samples of a subject are evaluated together, each subject counts once.

        Args:
            kind: `test` or `validation`.
            client: The client's number.
        """
        split, indices = self.selected(kind, client)
        labels_N = split.labels[indices]
        if self.dataset.tests_subjects and split.subjects is not None:
            _, first_of_subject = np.unique(split.subjects[indices], return_index=True)
            labels_N = labels_N[first_of_subject]
        counts_C = np.bincount(labels_N, minlength=self.dataset.num_classes)
        return counts_C.astype(np.int64)

    def at(self, split: SplitData, indices: Indices, device: str = "cpu") -> Samples:
        """Return samples of one split of the data set, without subjects and augmentation."""
        data = self.dataset
        chosen: torch.Tensor | ImageFiles
        if isinstance(split.inputs, ImageFiles):
            chosen = split.inputs[indices]
        else:
            chosen = _to_device(device, np.ascontiguousarray(split.inputs[indices]))
        broadcasts = (-1, 1, 1) if len(data.shape) == 3 else (-1,)
        return Samples(
            inputs_N=chosen,
            labels_N=_to_device(device, split.labels[indices]),
            mean=torch.tensor(data.mean, device=device).view(broadcasts),
            std=torch.tensor(data.std, device=device).view(broadcasts),
        )

    def _samples(self, kind: str, client: int | None, device: str) -> Samples:
        """Return the samples of a kind, cached."""
        return self._cache.get((kind, client, device), partial(self._read, kind, client, device))

    def _read(self, kind: str, client: int | None, device: str) -> Samples:
        split, indices = self.selected(kind, client)
        samples = self.at(split, indices, device)
        if kind == "train" and client is not None:
            samples = replace(samples, augmentation=self.augmentation)
        if kind in ("test", "validation") and split.subjects is not None:
            subjects_N = _to_device(device, split.subjects[indices])
            if self.dataset.tests_subjects:
                return replace(samples, groups_N=subjects_N)
            return replace(samples, subjects_N=subjects_N)
        return samples


def _to_device(device: str, array: Array) -> torch.Tensor:
    return torch.from_numpy(array).to(device)


def federate(settings: DataSettings, seed: int) -> Federation:
    """Return the federation of these settings: draw hold-out, subset and long tail, then partition the rest.

    Equal settings, data and seed give the same federation. The last few are kept, until a file of theirs changes.

    Raises:
        SettingError: settings contradict each other or the data.
        DataError: the data are missing or cannot be used.
    """
    return _federated(settings, seed, files_key(settings))


@lru_cache(maxsize=4)
def _federated(settings: DataSettings, seed: int, files: str) -> Federation:
    """Return what `federate` does. `files` only serves as a key of the cache."""
    settings = resolve(settings)
    if is_sites(settings.dataset):
        return _federation_of_sites(settings)
    data = load(settings)
    if settings.partition == "file":
        holdout = np.zeros(0, np.int64)
        parts = read(settings.partition_file)
        last = max(part[-1] for part in parts)
        if last >= len(data.train.labels):
            rule = f"has sample {last}, and the data have {len(data.train.labels)}, from 0"
            raise DataError(rule, where=str(bound_path(settings.partition_file)))
    else:
        holdout, parts = _drawn(settings, data, seed)
    return _federation(settings, data, parts, holdout, seed)


def _drawn(settings: DataSettings, data: Dataset, seed: int) -> tuple[Indices, list[Indices]]:
    """Return the server's hold-out and the clients' samples that a seed draws, as sorted indices.

    Raises SettingError for data that cannot be partitioned in this way.
    """
    # Draw the hold-out first: the subset and the long tail below can leave too few samples of a class.
    holdout, train = hold_out(data, settings.holdout_per_class, seed)
    train = subset(data, data.train, train, settings.train_images, "train-images", seed)
    cut = long_tail(
        data.train.labels[train],
        data.num_classes,
        settings.imbalance_factor,
        settings.largest_class,
        generator(seed, "long tail"),
    )
    train = train[cut]
    parts = [train[part] for part in partition_indices(settings, data, train, seed)]
    for client, part in enumerate(parts):
        if len(part) == 0:
            rule = f"client {client} would hold no image under partition {settings.partition}"
            raise SettingError("clients", settings.clients, rule)
    return holdout, parts


def _federation_of_sites(settings: DataSettings) -> Federation:
    """Return the federation of sites:FILE as the server sees it: the sites' names, without samples."""
    agreement = agreement_of(settings.dataset)
    none = np.zeros(0, np.int64)
    empty = SplitData(np.zeros((0, *settings.shape), np.uint8), labels=none, domains=none)
    data = Dataset(
        name=settings.dataset,
        class_names=settings.class_names,
        shape=settings.shape,
        mean=settings.means,
        std=settings.stds,
        train=empty,
        test=empty,
        val=None,
        domain_names=tuple(agreement.names),
        content=agreement.sha256,
        input_columns=agreement.input_columns,
    )
    clients = len(agreement.sites)
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


def _federation(
    settings: DataSettings, data: Dataset, parts: list[Indices], holdout: Indices, seed: int
) -> Federation:
    """Return a Federation: draw test and validation samples, and compute counts and hash."""
    tests = np.arange(len(data.test.labels))
    global_test = subset(data, data.test, tests, settings.test_images, "test-images", seed)
    domains: tuple[int, ...] | None = None
    if settings.partition == "domains":
        # With parts-per-domain, clients 0..D-1 have the first part of the D domains, clients D..2D-1 the second, ...
        count = len(data.domain_names)
        domains = tuple(client % count for client in range(len(parts)))
    validation: tuple[Indices, ...] | None = None
    if fraction := settings.validation_fraction:
        rule = f"has no effect: {settings.dataset} brings validation data of its own"
        settings.require(data.val is None, "validation_fraction", rule)
        draws = generator(seed, "validation")
        parts, validation = split_validation(data, parts, fraction, draws)
    if settings.evaluate_on == "validation":
        data, global_test = validation_as_test(data, validation)
        validation = None
    test_parts: tuple[Indices, ...] | None = None
    if data.test.domains is not None and domains is not None:
        domains_T = data.test.domains[global_test]
        test_parts = tuple(global_test[domains_T == domain] for domain in domains)
    standardized_rows = 0
    if not (data.mean and data.std):
        trained = np.concatenate(parts)
        assert not isinstance(data.train.inputs, ImageFiles)  # images have a mean of their own
        mean, std = standardization(column_sums(data.train.inputs[trained]))
        data = replace(data, mean=data.mean or mean, std=data.std or std)
        standardized_rows = len(trained)
    counts = [np.bincount(data.train.labels[part], minlength=data.num_classes) for part in parts]
    counts_KC: Integers = np.stack(counts).astype(np.int64)

    # A group of indices is hashed only if its setting is used.
    groups = [parts, list(test_parts or ()), [global_test]]
    if len(holdout):
        groups.append([holdout])
    if validation is not None:
        groups.append(list(validation))
    return Federation(
        dataset=data,
        train_indices=tuple(parts),
        test_indices=test_parts,
        domains=domains,
        global_test=global_test,
        counts_KC=counts_KC,
        augmentation=settings.augmentation,
        holdout_indices=holdout,
        hash=hash_of(data.content, groups),
        validation_indices=validation,
        standardized_rows=standardized_rows,
    )


def partition_indices(
    settings: DataSettings, data: Dataset, train: Indices, seed: int
) -> list[Indices]:
    """Return one array per client of positions in `train`, under the partition of the settings.

    Raises:
        SettingError: the data cannot be partitioned in this way.
    """
    labels_N = data.train.labels[train]
    clients, classes = settings.clients, data.num_classes
    alpha, min_samples = settings.alpha, settings.min_samples
    draws = generator(seed, "partition")
    match settings.partition:
        case "domains":
            assert data.train.domains is not None
            domains_N = data.train.domains[train]
            domains = len(data.domain_names)
            if settings.parts_per_domain:
                return domain_parts(labels_N, domains_N, domains, settings.parts_per_domain, draws)
            return domain_shares(labels_N, domains_N, domains, settings.domain_percent, draws)
        case "pooled":
            return [np.arange(len(train), dtype=np.int64)]
        case "iid":
            return iid(labels_N, clients, draws)
        case "feddf":
            return feddf(labels_N, clients, alpha, draws)
        case "llt":
            return llt(labels_N, clients, classes, alpha, draws)
        case "quantity":
            return quantity(len(train), clients, alpha, draws, min_samples)
        case "classes-per-client":
            return classes_per_client(
                labels_N, clients, classes, settings.classes_per_client, draws
            )
        case _:
            balanced = settings.lda_form == "balanced"
            return lda(labels_N, clients, alpha, draws, min_samples, balanced)


# ---- a folder per client ---------------------------------------------------------------------------------------------


def write_sites(federation: Federation, out: Path) -> list[Path]:
    """Write a folder for every client, so that the npz reader gives its samples, and return the folders by client.

    Raises DataError where `out` is no empty folder, or images stay in their files.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError("must be an empty folder, or none", where=str(out))
    data = federation.dataset
    if not isinstance(data.train.inputs, np.ndarray):
        rule = "its images stay in their files, and are not copied into folders"
        raise DataError(rule, where=data.name)
    folders = [out / site for site in site_names(federation)]
    for client, folder in enumerate(folders):
        folder.mkdir(parents=True)
        np.savez(folder / "data.npz", allow_pickle=False, **arrays(federation, client))
    return folders


def site_names(federation: Federation) -> list[str]:
    """Return a name for each client: its domain's, with a number where several are of one; or site-NUMBER."""
    if federation.domains is None:
        return [f"site-{client}" for client in range(federation.clients)]
    names = []
    for domain in federation.domains:
        # Letters, digits, - and _, as a site's name must be.
        slug = re.sub(r"[^A-Za-z0-9_-]+", "-", federation.dataset.domain_names[domain])
        names.append(slug.strip("-_")[:34] or "sites")
    if len(set(names)) == len(names):
        return names
    return [f"{name}-{client}" for client, name in enumerate(names)]


def arrays(federation: Federation, client: int) -> dict[str, Array]:
    """Return one client's samples as an npz file of one's own data holds them."""
    data = federation.dataset
    kinds = {"test": "test", "train": "train"}
    if federation.validated:
        kinds["validation"] = "val"
    client_arrays: dict[str, Array] = {}
    subjects_before = 0
    for kind, key in kinds.items():
        split, indices = federation.selected(kind, client)
        assert isinstance(split.inputs, np.ndarray)
        inputs = split.inputs[indices]
        if inputs.ndim == 4:
            inputs = inputs.transpose(0, 2, 3, 1)  # (N, H, W, C), as npz files have images
        client_arrays[f"{key}_images"] = inputs
        client_arrays[f"{key}_labels"] = split.labels[indices]
        # With test_subjects in the file, subjects would be tested as one.
        if split.subjects is None or (kind == "test" and not data.tests_subjects):
            continue
        # A number is in one split alone, as a subject is.
        subjects, number_N = np.unique(split.subjects[indices], return_inverse=True)
        client_arrays[f"{key}_subjects"] = number_N + subjects_before
        subjects_before += len(subjects)
    if data.input_columns:
        client_arrays["columns"] = np.array(data.input_columns)
    return client_arrays
