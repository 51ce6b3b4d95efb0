"""A data set: memory-mapped inputs of one shape, labels, and the domain of each sample."""

import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data.agreement import Agreement
from data.errors import DataError
from data.readers import cache
from data.readers.catalog import KNOWN, domain_names, has_domains, is_own, is_sites, members
from data.readers.image_files import ImageFiles, as_float
from data.readers.named import fedbn, files_of, read_named
from data.readers.splits import Raw, Split, checked
from data.readers.user_data import files_of_own, read_own
from data.resolve import resolve
from data.settings import OF_OWN, DataSettings

log = logging.getLogger("fedskew")
Arrays = dict[str, NDArray[np.generic]]
"""A data set's arrays by name, as its cached copy has them."""
TRIES = 3
"""Times that a cached copy is made: another process may take it away, which had found the one before it damaged."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Train, test and perhaps validation data."""

    name: str
    class_names: tuple[str, ...]
    shape: tuple[int, ...]
    """(C, H, W), or (F,) for vectors."""
    mean: tuple[float, ...]
    """One value a channel, on the scale 0..1."""
    std: tuple[float, ...]
    train_inputs: NDArray[np.generic] | ImageFiles
    """(N, *shape), uint8 or float32, memory-mapped and read-only; of ImageNet-LT the files, decoded when asked for."""
    train_labels: NDArray[np.int64]
    test_inputs: NDArray[np.generic] | ImageFiles
    test_labels: NDArray[np.int64]
    val_inputs: NDArray[np.generic] | ImageFiles | None
    val_labels: NDArray[np.int64] | None
    val_domains: NDArray[np.int64] | None
    train_domains: NDArray[np.int64] | None
    """(N,): each sample's index into domain_names; None where there are no domains."""
    test_domains: NDArray[np.int64] | None
    test_groups: NDArray[np.int64] | None
    """(N,): the subject that each test sample is of, where the samples of one are tested as one; no two domains share
    a number. None where samples are tested one by one."""
    train_groups: NDArray[np.int64] | None
    """(N,): the subject (patient) that each training sample is of, who must stand on one side of every cut.

    No two domains share a number, and the numbers are the training split's own. None where the data do not say it.
    In a domain that does not say it, while another one does, every sample is a subject of its own.
    """
    val_groups: NDArray[np.int64] | None
    """As `train_groups`, of the validation samples that the data bring."""
    test_subjects: NDArray[np.int64] | None
    """As `train_groups`, of the test samples. There is more than in `test_groups`: a table of images tests its
    patients' images one by one, and says all the same whose they are."""
    domain_names: tuple[str, ...]
    content: str
    """Hash of inputs, labels and domains."""

    def tested_as_one(self, split: str) -> NDArray[np.int64] | None:
        """(N,): the subjects by which samples of the split train, test or val are measured, as the test set is.

        None where the test set measures samples one by one, or where the split's subjects are unknown.
        """
        if self.test_groups is None:
            return None
        groups = {"train": self.train_groups, "test": self.test_groups, "val": self.val_groups}
        return groups[split]

    @property
    def num_classes(self) -> int:
        return len(self.class_names)


def load(settings: DataSettings) -> Dataset:
    """The data set of the settings, from its memory-mapped copy, which is made first where there is none.

    Raises:
        SettingError: settings that cannot be resolved.
        DataError: data that are missing or cannot be used, or a cache that cannot be written.
    """
    settings = resolve(settings)
    names = members(settings.dataset)
    mapped, content = _cached_copy(settings, names)

    def loaded(name: str) -> NDArray[np.int64]:
        return np.array(mapped[name], np.int64)

    def optional(name: str) -> NDArray[np.int64] | None:
        return loaded(name) if name in mapped else None

    def inputs(name: str) -> NDArray[np.generic] | ImageFiles:
        if not settings.in_files:
            return mapped[name]
        known = KNOWN[names[0]]
        root = Path(settings.data_root).expanduser() / known.image_folder
        paths = np.array(mapped[name], np.uint8)
        channels, height, width = settings.shape
        return ImageFiles(
            root,
            names=paths,
            size=(channels, height, width),
            central=known.central,
            settings=settings,
        )

    # Under any other partition a table's sites are no domains: its rows are pooled.
    by_site = "domain_names" in mapped and settings.partition in ("domains", "file")
    domains = by_site or has_domains(settings.dataset)
    has_val = "val_inputs" in mapped
    names_of_domains: tuple[str, ...] = ()
    if by_site:
        names_of_domains = decoded(mapped["domain_names"])
    elif domains:
        names_of_domains = domain_names(names)
    return Dataset(
        name=settings.dataset,
        class_names=settings.class_names,
        shape=settings.shape,
        mean=settings.means,
        std=settings.stds,
        train_inputs=inputs("train_inputs"),
        train_labels=loaded("train_labels"),
        test_inputs=inputs("test_inputs"),
        test_labels=loaded("test_labels"),
        val_inputs=inputs("val_inputs") if has_val else None,
        val_labels=loaded("val_labels") if has_val else None,
        val_domains=loaded("val_domains") if has_val and domains else None,
        train_domains=loaded("train_domains") if domains else None,
        test_domains=loaded("test_domains") if domains else None,
        test_groups=optional("test_groups"),
        train_groups=optional("train_groups"),
        val_groups=optional("val_groups") if has_val else None,
        test_subjects=optional("test_subjects"),
        domain_names=names_of_domains,
        content=content,
    )


def _cached_copy(settings: DataSettings, names: tuple[str, ...]) -> tuple[Arrays, str]:
    """Return the memory-mapped arrays and their content hash, made first where there are none."""
    identity = _identity(settings, names)
    folder = _folder(settings, identity, names)
    copy = cache.read(folder)
    for _ in range(TRIES):
        if copy is not None:
            return copy
        arrays = _read(settings, names)
        # Again, as the key covers the files, which a download may just have made.
        folder = _folder(settings, identity, names)
        cache.write(folder, arrays)
        copy = cache.read(folder)
    if copy is None:
        raise DataError("the cached copy vanished while it was being read", where=str(folder))
    return copy


def without_samples(settings: DataSettings, agreement: Agreement) -> Dataset:
    """The data set of resolved settings for a party that has no sample of it; its hash is the agreement's."""
    nothing = np.zeros((0, *settings.shape), np.uint8)
    none = np.zeros(0, np.int64)
    return Dataset(
        name=settings.dataset,
        class_names=settings.class_names,
        shape=settings.shape,
        mean=settings.means,
        std=settings.stds,
        train_inputs=nothing,
        train_labels=none,
        test_inputs=nothing,
        test_labels=none,
        val_inputs=None,
        val_labels=None,
        val_domains=None,
        train_domains=none,
        test_domains=none,
        test_groups=None,
        train_groups=None,
        val_groups=None,
        test_subjects=None,
        domain_names=tuple(agreement.names),
        content=agreement.sha256,
    )


def _identity(settings: DataSettings, names: tuple[str, ...]) -> list[object]:
    """Return the part of a cached copy's key that the settings decide.

    A setting is in it only where it changes what is read, so that all other runs share one copy. The order must not
    change: copies of earlier versions are found by it.
    """
    layouts = {KNOWN[name].layout for name in names if name in KNOWN}
    own = any(map(is_own, names))
    classes = settings.class_names
    # One's own labels may be names, whose numbers depend on the classes' order; all others depend on their number.
    by_name = classes if own else len(classes)
    identity: list[object] = [names, settings.shape, by_name]

    if "abide" in layouts:
        identity += [settings.window_width, settings.window_stride, settings.test_fold]
    stated = {field: getattr(settings, field) for field in OF_OWN if not settings.is_default(field)}
    if settings.test_fold and own:
        stated["test_fold"] = settings.test_fold
    if stated:
        identity.append(stated)
    if "abide" in layouts or own:
        # Copies of earlier versions do not say whose the training samples are.
        identity.append("subjects")
    if settings.recipe != "none":
        identity.append(settings.recipe)
    if "cinic" in layouts:
        identity.append(settings.cinic_train)
    if any(name.startswith("csv:") for name in names):
        # Copies of tables from before `site` and `patient` meant something by name hold these as inputs.
        identity.append("roles by name")
    return identity


def _folder(settings: DataSettings, identity: object, names: tuple[str, ...]) -> Path:
    key = cache.key_of(identity, _files(names, settings))
    readable = "-".join(domain_names(names))[:40]
    return cache.cache_folder(settings.cache) / f"{readable}-{key[:24]}"


def missing(settings: DataSettings) -> str:
    """Why the data cannot be read, naming what is not there; empty where it is, or may be downloaded. Reads nothing."""
    if is_sites(settings.dataset):
        return ""
    try:
        _files(members(settings.dataset), settings)
    except DataError as error:
        return str(error)
    return ""


def missing_names(settings: DataSettings) -> list[str]:
    """The data sets, of all that the settings name, whose files are not there and may not be downloaded."""
    lacking = []
    for name in members(settings.dataset):
        try:
            _files((name,), settings)
        except DataError:
            lacking.append(name)
    return lacking


def _files(names: tuple[str, ...], settings: DataSettings) -> list[Path]:
    files: list[Path] = []
    for name in names:
        files += files_of_own(name, settings) if is_own(name) else files_of(name, settings)
    return files


def _read(settings: DataSettings, names: tuple[str, ...]) -> Arrays:
    """Every split's inputs, labels and domains, the members one after the other."""
    raws = [_read_one(name, settings) for name in names]
    for name, raw in zip(names, raws, strict=True):
        for note in raw.notes:
            log.info("%s: %s", name, note)
    if settings.recipe == "fedbn":
        raws = fedbn(raws, KNOWN[names[0]].family)
    arrays: Arrays = {}
    for key in ("train", "test", "val"):
        if settings.in_files:
            arrays |= _listed(key, getattr(raws[0], key))
        else:
            _add_split(arrays, key, raws, settings)
    return arrays | _subjects(raws)


def _add_split(arrays: Arrays, key: str, raws: list[Raw], settings: DataSettings) -> None:
    """Add the split `key` of all members to `arrays`. Nothing is added where a member lacks the split."""
    splits = _splits(raws, key)
    inputs = []
    labels = []
    for split in splits:  # checked even where they are not added
        split_inputs, split_labels = checked(split, settings.shape, settings.num_classes)
        inputs.append(split_inputs)
        labels.append(split_labels)
    if len(splits) < len(raws):
        return

    of_one_type = _of_one_type(arrays, key, splits, inputs, settings)
    # Concatenating a single array would copy it.
    single = len(of_one_type) == 1
    arrays[f"{key}_inputs"] = of_one_type[0] if single else np.concatenate(of_one_type)
    arrays[f"{key}_labels"] = np.concatenate(labels)

    # Domains are the sites of one file, or the data sets themselves.
    sites = splits[0].sites
    if len(raws) == 1 and raws[0].sites and sites is not None:
        arrays[f"{key}_domains"] = sites
        arrays["domain_names"] = encoded(raws[0].sites)
    if has_domains(settings.dataset):
        sizes = [len(part) for part in labels]
        domains = np.arange(len(sizes))
        arrays[f"{key}_domains"] = np.repeat(domains, sizes)

    groups = [split.groups for split in splits if split.groups is not None]
    if key == "test" and len(groups) == len(raws):
        arrays["test_groups"] = _with_own_numbers(groups)


def _splits(raws: list[Raw], key: str) -> list[Split]:
    """Return the split `key` of the members that have it."""
    splits: list[Split | None] = [getattr(raw, key) for raw in raws]
    return [split for split in splits if split is not None]


def _of_one_type(
    arrays: Arrays,
    key: str,
    splits: list[Split],
    inputs: list[NDArray[np.generic]],
    settings: DataSettings,
) -> list[NDArray[np.generic]]:
    """Return the members' inputs as one type, that of the training inputs before them in `arrays`.

    Pixels of files are bytes 0..255 or float32 on the scale 0..1, so all become the latter where some are; so do those
    that `arrays` has already. Of arrays nobody knows the scale.

    Raises:
        DataError: arrays of several types.
    """
    types = {str(part.dtype) for part in inputs}
    if "train_inputs" in arrays:
        types.add(str(arrays["train_inputs"].dtype))
    if len(types) == 1:
        return inputs
    if not all(isinstance(split.images, ImageFiles) for split in splits):
        listed = " and ".join(sorted(types))
        rule = f"{key}_images: {listed}: must all be of one type"
        raise DataError(rule, where=settings.dataset)
    for name in ("train_inputs", "test_inputs"):
        if name in arrays and arrays[name].dtype == np.uint8:
            arrays[name] = as_float(arrays[name])
    return [as_float(part) if part.dtype == np.uint8 else part for part in inputs]


def _with_own_numbers(parts: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return the members' subjects one after the other, so that no two members share a number."""
    moved = []
    start = 0
    for part in parts:
        moved.append(part.astype(np.int64) + start)
        start += int(part.max()) + 1
    return np.concatenate(moved)


def _subjects(raws: list[Raw]) -> Arrays:
    """The subjects of each split's samples, by the array's name; none of a split of which nothing is known.

    No two members share a number. A member that names no subject has one a sample, where another member names some.
    The training split has none where a member names the subjects that it tests and not those that it trains on: nobody
    can tell then which of its samples belong together.
    """
    arrays: Arrays = {}
    names = {"train": "train_groups", "test": "test_subjects", "val": "val_groups"}
    for key, name in names.items():
        splits = _splits(raws, key)
        if len(splits) < len(raws) or all(split.subjects is None for split in splits):
            continue
        tested_alone = [
            raw.test.subjects is not None and split.subjects is None
            for raw, split in zip(raws, splits, strict=True)
        ]
        if any(tested_alone):
            continue
        parts = []
        for split in splits:
            stated = split.subjects
            one_per_sample = np.arange(len(split.labels), dtype=np.int64)
            parts.append(one_per_sample if stated is None else stated)
        arrays[name] = _with_own_numbers(parts)
    return arrays


def encoded(names: tuple[str, ...]) -> NDArray[np.uint8]:
    """(N, L): names in UTF-8, padded with zeros, so that the cache needs no arrays of objects."""
    encoded_names = [name.encode() for name in names]
    width = max(map(len, encoded_names))
    padded = b"".join(name.ljust(width, b"\0") for name in encoded_names)
    letters = np.frombuffer(padded, np.uint8)
    return letters.reshape(len(names), width)


def decoded(names: NDArray[np.generic]) -> tuple[str, ...]:
    """The names that `encoded` made an array of."""
    return tuple(row.tobytes().rstrip(b"\0").decode() for row in names)


def _listed(key: str, split: Split | None) -> Arrays:
    """Paths instead of images."""
    if split is None:
        return {}
    assert isinstance(split.images, ImageFiles)
    return {f"{key}_inputs": split.images.names, f"{key}_labels": split.labels}


def _read_one(name: str, settings: DataSettings) -> Raw:
    if is_own(name):
        return read_own(name, settings.class_names, settings.shape, settings)
    return read_named(name, settings, settings.shape)
