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
        groups = {"train": self.train_groups, "test": self.test_groups, "val": self.val_groups}
        return None if self.test_groups is None else groups[split]

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
    classes = settings.class_names
    shape = settings.shape
    # One's own labels may be names, whose numbers depend on the classes' order; all others depend on their number.
    by_name = classes if any(map(is_own, names)) else len(classes)
    identity = [names, shape, by_name, *_choices(settings, names)]
    folder = _folder(settings, identity, names)
    copy = cache.read(folder)
    for _ in range(TRIES):
        if copy is not None:
            break
        arrays = _read(settings, names, classes, shape)
        folder = _folder(
            settings, identity, names
        )  # again: a download has made the files that the key is about
        cache.write(folder, arrays)
        copy = cache.read(folder)
    if copy is None:
        raise DataError("the cached copy vanished while it was being read", where=str(folder))
    mapped, content = copy

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
        channels, height, width = shape
        return ImageFiles(root, paths, (channels, height, width), known.central, settings)

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
        class_names=classes,
        shape=shape,
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


def without_samples(settings: DataSettings, agreement: Agreement) -> Dataset:
    """The data set of resolved settings as one who holds nothing of it knows it; its hash is the agreement's."""
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


def _choices(settings: DataSettings, names: tuple[str, ...]) -> list[object]:
    """The settings that change what is read from the same files, where they do."""
    layouts = {KNOWN[name].layout for name in names if name in KNOWN}
    if "abide" in layouts:
        abide = [settings.window_width, settings.window_stride, settings.test_fold]
    else:
        abide = []
    stated = {field: getattr(settings, field) for field in OF_OWN if not settings.is_default(field)}
    if settings.test_fold and any(map(is_own, names)):
        stated["test_fold"] = settings.test_fold
    return [
        *abide,
        *([stated] if stated else []),
        # Copies of earlier versions do not say whose the training samples are.
        *(["subjects"] if abide or any(map(is_own, names)) else []),
        *([settings.recipe] if settings.recipe != "none" else []),
        *([settings.cinic_train] if "cinic" in layouts else []),
        # copies of tables from before `site` and `patient` meant something by name hold these as inputs
        *(["roles by name"] if any(name.startswith("csv:") for name in names) else []),
    ]


def _folder(settings: DataSettings, identity: object, names: tuple[str, ...]) -> Path:
    files = _files(names, settings)
    readable = "-".join(domain_names(names))[:40]
    return cache.cache_folder(settings.cache) / f"{readable}-{cache.key_of(identity, files)[:24]}"


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


def _read(
    settings: DataSettings,
    names: tuple[str, ...],
    classes: tuple[str, ...],
    shape: tuple[int, ...],
) -> dict[str, NDArray[np.generic]]:
    """Every split's inputs, labels and domains, the members one after the other."""
    raws = [_read_one(name, settings, classes, shape) for name in names]
    for name, raw in zip(names, raws, strict=True):
        for note in raw.notes:
            log.info("%s: %s", name, note)
    if settings.recipe == "fedbn":
        raws = fedbn(raws, KNOWN[names[0]].family)
    arrays: dict[str, NDArray[np.generic]] = {}
    for key in ("train", "test", "val"):
        splits: list[Split | None] = [getattr(raw, key) for raw in raws]
        if settings.in_files:
            arrays |= _listed(key, splits[0])
            continue
        parts = [checked(split, shape, len(classes)) for split in splits if split is not None]
        if len(parts) < len(raws):
            continue  # validation data count only where every member has them
        types = {str(inputs.dtype) for inputs, _ in parts} | {
            str(arrays.get("train_inputs", parts[0][0]).dtype)
        }
        if len(types) > 1 and not all(is_of_files(split) for split in splits):
            raise DataError(
                f"{key}_images: {' and '.join(sorted(types))}: must all be of one type",
                where=settings.dataset,
            )
        if len(types) > 1:  # of files bytes are 0..255 and numbers 0..1
            parts = [
                (as_float(inputs) if inputs.dtype == np.uint8 else inputs, labels)
                for inputs, labels in parts
            ]
            for name in ("train_inputs", "test_inputs"):
                if name in arrays and arrays[name].dtype == np.uint8:
                    arrays[name] = as_float(arrays[name])
        arrays[f"{key}_inputs"] = (
            np.concatenate([inputs for inputs, _ in parts]) if len(parts) > 1 else parts[0][0]
        )
        arrays[f"{key}_labels"] = np.concatenate([labels for _, labels in parts])
        if (
            raws[0].sites
            and len(raws) == 1
            and splits[0] is not None
            and splits[0].sites is not None
        ):
            arrays[f"{key}_domains"] = splits[0].sites
            arrays["domain_names"] = encoded(raws[0].sites)
        if has_domains(settings.dataset):
            arrays[f"{key}_domains"] = np.repeat(
                np.arange(len(parts)), [len(labels) for _, labels in parts]
            )
        groups = [
            split.groups for split in splits if split is not None and split.groups is not None
        ]
        if key == "test" and len(groups) == len(raws):
            starts = np.cumsum([0, *(int(part.max()) + 1 for part in groups)])
            arrays["test_groups"] = np.concatenate(
                [part + start for part, start in zip(groups, starts, strict=False)]
            )
    return arrays | _subjects(raws)


def _subjects(raws: list[Raw]) -> dict[str, NDArray[np.generic]]:
    """The subjects of each split's samples, by the array's name; none of a split of which nothing is known.

    No two members share a number. A member that names no subject has one a sample, where another member names some.
    The training split has none where a member names the subjects that it tests and not those that it trains on: nobody
    can tell then which of its samples belong together.
    """
    arrays: dict[str, NDArray[np.generic]] = {}
    names = {"train": "train_groups", "test": "test_subjects", "val": "val_groups"}
    for key, name in names.items():
        splits: list[Split | None] = [getattr(raw, key) for raw in raws]
        there = [split for split in splits if split is not None]
        if len(there) < len(raws) or all(split.subjects is None for split in there):
            continue
        unsaid = [
            raw.test.subjects is not None and split.subjects is None
            for raw, split in zip(raws, there, strict=True)
        ]
        if any(unsaid):
            continue
        parts, start = [], 0
        for split in there:
            stated = split.subjects
            alone = np.arange(len(split.labels), dtype=np.int64)
            part = alone if stated is None else stated.astype(np.int64)
            parts.append(part + start)
            start += int(part.max()) + 1
        arrays[name] = np.concatenate(parts)
    return arrays


def encoded(names: tuple[str, ...]) -> NDArray[np.uint8]:
    """(N, L): names in UTF-8, padded with zeros."""
    words = [name.encode() for name in names]
    width = max(map(len, words))
    padded = b"".join(word.ljust(width, b"\0") for word in words)
    return np.frombuffer(padded, np.uint8).reshape(len(words), width)


def decoded(names: NDArray[np.generic]) -> tuple[str, ...]:
    """The names that `encoded` made an array of."""
    return tuple(row.tobytes().rstrip(b"\0").decode() for row in names)


def is_of_files(split: Split | None) -> bool:
    """Whether a split's images come from files, whose numbers have one scale."""
    return split is not None and isinstance(split.images, ImageFiles)


def _listed(key: str, split: Split | None) -> dict[str, NDArray[np.generic]]:
    """Paths instead of images."""
    if split is None:
        return {}
    assert isinstance(split.images, ImageFiles)
    return {f"{key}_inputs": split.images.names, f"{key}_labels": split.labels}


def _read_one(
    name: str,
    settings: DataSettings,
    classes: tuple[str, ...],
    shape: tuple[int, ...],
) -> Raw:
    if is_own(name):
        return read_own(name, classes, shape, settings)
    return read_named(name, settings, shape)
