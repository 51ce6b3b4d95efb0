"""A data set: memory-mapped inputs of one shape, with the label, domain and subject of each sample."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data.agreement import Agreement
from data.errors import DataError, text_of
from data.readers import cache
from data.readers.array_conversion import checked
from data.readers.catalog import KNOWN, domain_names, has_domains, is_own, is_sites, members
from data.readers.image_files import ImageFiles, as_float
from data.readers.input_columns import column_labels, order_of
from data.readers.named import fedbn, files_of, read_named
from data.readers.splits import Raw, Split
from data.readers.user_data import files_of_own, read_own
from data.resolve import resolve
from data.settings import OF_OWN, DataSettings

log = logging.getLogger("fedskew")
Arrays = dict[str, NDArray[np.generic]]
"""The arrays of a data set by name, such as train_inputs, as its cached copy stores them."""
TRIES = 3
"""How often to write the cached copy: another process that found the previous copy damaged may delete the new one."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test data, and validation data if the data set has some."""

    name: str
    class_names: tuple[str, ...]
    shape: tuple[int, ...]
    """(C, H, W), or (F,) for vectors."""
    mean: tuple[float, ...]
    """One value per channel, on the scale 0..1. () of vectors whose training rows decide: `federate` fills it in."""
    std: tuple[float, ...]
    train_inputs: NDArray[np.generic] | ImageFiles
    """(N, *shape), uint8 or float32, memory-mapped and read-only; for ImageNet-LT image files, decoded on demand."""
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
    """(N,): the subject of each test sample, if all samples of a subject are evaluated together.

    Numbers are unique across domains. None if samples are evaluated one by one.
    """
    train_groups: NDArray[np.int64] | None
    """(N,): the subject (patient) of each training sample. No split of the training set may separate its samples.

    Numbers are unique across domains, and comparable within the training split only. None if the data do not name the
    subjects. If only some domains name them, each sample of the others counts as a subject.
    """
    val_groups: NDArray[np.int64] | None
    """(N,): as `train_groups`, for the data's own validation samples."""
    test_subjects: NDArray[np.int64] | None
    """(N,): as `train_groups`, for the test samples. It can be set although `test_groups` is None: a table of images
    names each image's patient and is evaluated image by image."""
    domain_names: tuple[str, ...]
    content: str
    """Hash of inputs, labels and domains."""
    input_columns: tuple[str, ...] = ()
    """The names of the vectors' columns in order; empty for images, and where nothing names them."""
    medians: Mapping[str, float] = field(default_factory=dict)
    """By column's name (its number from 1 without names), what `missing = median` filled gaps with. Empty under any
    other setting, and for several files, of which each has medians of its own."""

    def with_columns(self, wanted: tuple[str, ...], where: str, wanted_by: str) -> "Dataset":
        """Return the data set with its input columns in the order of `wanted`.

        Without names on one of both sides, the order stays as it is. Raises DataError as `order_of`.
        """
        if not wanted or not self.input_columns or wanted == self.input_columns:
            return self
        order = order_of(self.input_columns, wanted, where, wanted_by)
        in_order: dict[str, NDArray[np.generic]] = {}
        for name in ("train_inputs", "test_inputs", "val_inputs"):
            inputs = getattr(self, name)
            if inputs is not None:
                in_order[name] = inputs[:, order]
        return replace(self, input_columns=wanted, **in_order)  # type: ignore[arg-type]

    def tested_as_one(self, split: str) -> NDArray[np.int64] | None:
        """Return (N,): the subject of each sample of a split, if all samples of a subject are evaluated together.

        None if the test set is evaluated sample by sample, or if the subjects of the split are unknown.

        Args:
            split: `train`, `test` or `val`.
        """
        if self.test_groups is None:
            return None
        groups = {"train": self.train_groups, "test": self.test_groups, "val": self.val_groups}
        return groups[split]

    @property
    def num_classes(self) -> int:
        return len(self.class_names)


def load(settings: DataSettings) -> Dataset:
    """Return the data set of the settings, memory-mapped from its cached copy. Write the copy first if there is none.

    Raises:
        SettingError: the settings cannot be resolved.
        DataError: the data are missing or cannot be used, or the cache cannot be written.
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

    # A table's sites are domains only under these partitions. Under any other one, its rows are pooled.
    by_site = "domain_names" in mapped and settings.partition in ("domains", "file")
    domains = by_site or has_domains(settings.dataset)
    has_val = "val_inputs" in mapped
    names_of_domains: tuple[str, ...] = ()
    if by_site:
        names_of_domains = decoded(mapped["domain_names"])
    elif domains:
        names_of_domains = domain_names(names)
    columns = decoded(mapped["input_columns"]) if "input_columns" in mapped else ()
    medians: dict[str, float] = {}
    if "medians" in mapped:
        medians_F = np.array(mapped["medians"], np.float64).tolist()
        medians = dict(zip(column_labels(columns, len(medians_F)), medians_F, strict=True))
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
        input_columns=columns,
        medians=medians,
    )


def _cached_copy(settings: DataSettings, names: tuple[str, ...]) -> tuple[Arrays, str]:
    """Return the memory-mapped arrays and their content hash. Write the cached copy first if there is none."""
    identity = _identity(settings, names)
    folder = _folder(settings, identity, names)
    copy = cache.read(folder)
    for _ in range(TRIES):
        if copy is not None:
            return copy
        arrays = _read(settings, names)
        # Compute the key again: it covers the data files, which `_read` may just have downloaded.
        folder = _folder(settings, identity, names)
        cache.write(folder, arrays)
        copy = cache.read(folder)
    if copy is None:
        raise DataError("the cached copy vanished while it was being read", where=str(folder))
    return copy


def without_samples(settings: DataSettings, agreement: Agreement) -> Dataset:
    """Return an empty data set for a server that sees no samples. Its content hash is that of federation.toml.

    The settings are resolved ones.
    """
    no_inputs = np.zeros((0, *settings.shape), np.uint8)
    no_labels = np.zeros(0, np.int64)
    return Dataset(
        name=settings.dataset,
        class_names=settings.class_names,
        shape=settings.shape,
        mean=settings.means,
        std=settings.stds,
        train_inputs=no_inputs,
        train_labels=no_labels,
        test_inputs=no_inputs,
        test_labels=no_labels,
        val_inputs=None,
        val_labels=None,
        val_domains=None,
        train_domains=no_labels,
        test_domains=no_labels,
        test_groups=None,
        train_groups=None,
        val_groups=None,
        test_subjects=None,
        domain_names=tuple(agreement.names),
        content=agreement.sha256,
        input_columns=agreement.input_columns,
    )


def _identity(settings: DataSettings, names: tuple[str, ...]) -> list[object]:
    """Return the part of a cached copy's key that depends on the settings.

    It has only the settings that change which data are read, so that runs that differ in other settings share a copy.
    """
    layouts = {KNOWN[name].layout for name in names if name in KNOWN}
    own = any(map(is_own, names))
    # The labels of a user's own data can be class names, which `classes` numbers in its order. For other data, only
    # the number of classes matters.
    classes = settings.class_names if own else len(settings.class_names)
    fields = ["recipe", *OF_OWN]
    if own or "abide" in layouts:
        fields.append("test_fold")
    if "abide" in layouts:
        fields += ["window_width", "window_stride"]
    if "cinic" in layouts:
        fields.append("cinic_train")
    return [names, settings.shape, classes, {field: getattr(settings, field) for field in fields}]


def _folder(settings: DataSettings, identity: object, names: tuple[str, ...]) -> Path:
    key = cache.key_of(identity, _files(names, settings))
    readable = "-".join(domain_names(names))[:40]  # for people who list the cache
    return cache.cache_folder(settings.cache) / f"{readable}-{key[:24]}"


def missing(settings: DataSettings) -> str:
    """Return a sentence that names the missing files; empty if the data are there or can be downloaded.

    Looks for the files without reading them.
    """
    if is_sites(settings.dataset):
        return ""
    try:
        _files(members(settings.dataset), settings)
    except DataError as error:
        return str(error)
    return ""


def missing_names(settings: DataSettings) -> list[str]:
    """Return the data sets of the settings whose files are missing and cannot be downloaded."""
    absent = []
    for name in members(settings.dataset):
        try:
            _files((name,), settings)
        except DataError:
            absent.append(name)
    return absent


def _files(names: tuple[str, ...], settings: DataSettings) -> list[Path]:
    files: list[Path] = []
    for name in names:
        files += files_of_own(name, settings) if is_own(name) else files_of(name, settings)
    return files


def _read(settings: DataSettings, names: tuple[str, ...]) -> Arrays:
    """Return the arrays of every split, those of the member data sets concatenated."""
    raws = [_read_one(name, settings) for name in names]
    for name, raw in zip(names, raws, strict=True):
        for note in raw.notes:
            log.info("%s: %s", name, text_of(note))
    if settings.recipe == "fedbn":
        raws = fedbn(raws, KNOWN[names[0]].family)
    raws = _in_one_order(raws)
    arrays: Arrays = {}
    named = [raw.input_columns for raw in raws if raw.input_columns]
    if named:
        arrays["input_columns"] = encoded(named[0])
    if len(raws) == 1 and raws[0].medians:
        arrays["medians"] = np.array(raws[0].medians, np.float64)
    for key in ("train", "test", "val"):
        if settings.in_files:
            arrays |= _image_paths(key, getattr(raws[0], key))
        else:
            _add_split(arrays, key, raws, settings)
    return arrays | _subjects(raws)


def _in_one_order(raws: list[Raw]) -> list[Raw]:
    """Return the members with their input columns in the order of the first one that names them.

    Raises:
        DataError: a member has other input columns.
    """
    named = [raw for raw in raws if raw.input_columns]
    if not named:
        return raws
    first = named[0]
    return [_in_order(raw, first) if raw.input_columns else raw for raw in raws]


def _in_order(raw: Raw, first: Raw) -> Raw:
    """Return a data set with its input columns in the order of `first`. Raises DataError."""
    wanted = first.input_columns
    if raw.input_columns == wanted:
        return raw
    order = order_of(raw.input_columns, wanted, raw.train.where, first.train.where)

    def in_order(split: Split) -> Split:
        assert not isinstance(split.images, ImageFiles)  # images have no columns
        return replace(split, images=split.images[:, order])

    return replace(
        raw,
        train=in_order(raw.train),
        test=in_order(raw.test),
        val=None if raw.val is None else in_order(raw.val),
        input_columns=wanted,
    )


def _add_split(arrays: Arrays, key: str, raws: list[Raw], settings: DataSettings) -> None:
    """Add the split `key` of all members to `arrays`. If a member lacks the split, add nothing."""
    splits = _splits(raws, key)
    inputs = []
    labels = []
    for split in splits:  # check them even if a member lacks the split
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
        arrays["test_groups"] = _renumbered(groups)


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
    """Return the members' inputs with one dtype, that of the training and test inputs already in `arrays`.

    Pixels from image files are uint8, 0..255, or float32, 0..1. If both occur, convert all to float32, including those
    already in `arrays`. Other arrays are not converted, as their scale is unknown.

    Raises:
        DataError: arrays that are not from image files have several dtypes.
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


def _renumbered(parts: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Concatenate the members' subject numbers, shifted so that they are unique across members."""
    shifted = []
    start = 0
    for part in parts:
        shifted.append(part.astype(np.int64) + start)
        start += int(part.max()) + 1
    return np.concatenate(shifted)


def _subjects(raws: list[Raw]) -> Arrays:
    """Return the subjects of each split's samples, by array name. A split without known subjects has no array.

    Numbers are unique across members. If only some members name subjects, each sample of the others counts as a
    subject. A training or validation split has no array if a member names the subjects of its test samples but not of
    this split: the member has subjects, and nobody knows which samples of this split belong together.
    """
    arrays: Arrays = {}
    names = {"train": "train_groups", "test": "test_subjects", "val": "val_groups"}
    for key, name in names.items():
        splits = _splits(raws, key)
        if len(splits) < len(raws) or all(split.subjects is None for split in splits):
            continue
        only_in_test = [
            raw.test.subjects is not None and split.subjects is None
            for raw, split in zip(raws, splits, strict=True)
        ]
        if any(only_in_test):
            continue
        parts = []
        for split in splits:
            subjects = split.subjects
            one_per_sample = np.arange(len(split.labels), dtype=np.int64)
            parts.append(one_per_sample if subjects is None else subjects)
        arrays[name] = _renumbered(parts)
    return arrays


def encoded(names: tuple[str, ...]) -> NDArray[np.uint8]:
    """Return (names, bytes): each name in UTF-8, padded with zero bytes. The cache stores no object arrays."""
    encoded_names = [name.encode() for name in names]
    width = max(map(len, encoded_names))
    padded = b"".join(name.ljust(width, b"\0") for name in encoded_names)
    letters = np.frombuffer(padded, np.uint8)
    return letters.reshape(len(names), width)


def decoded(names: NDArray[np.generic]) -> tuple[str, ...]:
    """Return the names in an array of `encoded`."""
    return tuple(row.tobytes().rstrip(b"\0").decode() for row in names)


def _image_paths(key: str, split: Split | None) -> Arrays:
    """Return the arrays of a split whose inputs are the paths of image files in place of images."""
    if split is None:
        return {}
    assert isinstance(split.images, ImageFiles)
    return {f"{key}_inputs": split.images.names, f"{key}_labels": split.labels}


def _read_one(name: str, settings: DataSettings) -> Raw:
    if is_own(name):
        return read_own(name, settings.class_names, settings.shape, settings)
    return read_named(name, settings, settings.shape)
