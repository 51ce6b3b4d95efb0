"""A data set: memory-mapped inputs of one shape, with the label, domain and subject of each sample."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from data.errors import DataError, InputError, text_of
from data.readers import cache
from data.readers.array_conversion import checked
from data.readers.array_types import Array, Integers
from data.readers.catalog import KNOWN, domain_names, has_domains, is_own, is_sites, members
from data.readers.image_files import ImageFiles, as_float, letters_of
from data.readers.input_columns import column_labels, order_of
from data.readers.named import fedbn, files_of, read_named
from data.readers.splits import Raw
from data.readers.user_data import files_of_own, read_own
from data.resolve import resolve
from data.settings import OF_OWN, DataSettings

log = logging.getLogger("fedskew")
SPLITS = ("train", "test", "val")
Arrays = dict[str, Array]
"""The arrays of a data set by name, such as train_inputs, as its cached copy stores them."""


@dataclass(frozen=True, eq=False)
class SplitData:
    """The N samples of one split."""

    inputs: Array | ImageFiles
    """(N, *shape), uint8 or float32, memory-mapped and read-only; for ImageNet-LT image files, decoded on demand."""
    labels: Integers
    domains: Integers | None = None
    """(N,): each sample's index into domain_names; None where there are no domains."""
    subjects: Integers | None = None
    """(N,): the subject (patient) of each sample, unique across domains and comparable within the split only.

    None if the data do not name the subjects. If only some domains name them, each sample of the others counts as a
    subject.
    """


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
    train: SplitData
    """No further split of it may separate the samples of a subject."""
    test: SplitData
    val: SplitData | None
    domain_names: tuple[str, ...]
    content: str
    """Hash of inputs, labels and domains."""
    tests_subjects: bool = False
    """Whether all samples of a subject are evaluated together. A table of images names each image's patient, and is
    evaluated image by image."""
    input_columns: tuple[str, ...] = ()
    """The names of the vectors' columns in order; empty for images, and where nothing names them."""
    medians: Mapping[str, float] = field(default_factory=dict)
    """By column's name (its number from 1 without names), what `missing = median` filled gaps with. Empty under any
    other setting, and for several files, of which each has medians of its own."""

    def with_columns(self, wanted: tuple[str, ...], where: str, wanted_by: str) -> "Dataset":
        """Return the data set with its input columns in the order of `wanted`.

        Without names on one of both sides, the order stays as it is. Raises DataError as `order_of`.
        """
        order = _order(self.input_columns, wanted, where, wanted_by)
        if order is None:
            return self
        changed = {}
        for key in SPLITS:
            split = getattr(self, key)
            if split is not None:
                changed[key] = replace(split, inputs=split.inputs[:, order])
        return replace(self, input_columns=wanted, **changed)

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
    arrays, content = cache.cached(lambda: _folder(settings, names), lambda: _read(settings, names))

    domains: tuple[str, ...] = ()
    # A table's sites are domains only under this partition. Under any other one, its rows are pooled.
    if "domain_names" in arrays and settings.partition == "domains":
        domains = decoded(arrays["domain_names"])
    elif has_domains(settings.dataset):
        domains = domain_names(names)

    def numbers(name: str) -> Integers | None:
        return np.array(arrays[name], np.int64) if name in arrays else None

    splits = {}
    for key in SPLITS:
        labels = numbers(f"{key}_labels")
        if labels is not None:
            inputs: Array | ImageFiles = arrays[f"{key}_inputs"]
            if settings.in_files:  # of ImageNet-LT, whose inputs are paths
                folder = Path(settings.data_root).expanduser() / "ImageNet"
                paths = np.array(inputs, np.uint8)
                inputs = ImageFiles(folder, paths, settings.shape, central=True, settings=settings)
            splits[key] = SplitData(
                inputs=inputs,
                labels=labels,
                domains=numbers(f"{key}_domains") if domains else None,
                subjects=numbers(f"{key}_subjects"),
            )
    columns = decoded(arrays["input_columns"]) if "input_columns" in arrays else ()
    medians: dict[str, float] = {}
    if "medians" in arrays:
        medians_F = arrays["medians"].tolist()
        medians = dict(zip(column_labels(columns, len(medians_F)), medians_F, strict=True))
    return Dataset(
        name=settings.dataset,
        class_names=settings.class_names,
        shape=settings.shape,
        mean=settings.means,
        std=settings.stds,
        train=splits["train"],
        test=splits["test"],
        val=splits.get("val"),
        domain_names=domains,
        content=content,
        tests_subjects="test_groups" in arrays,
        input_columns=columns,
        medians=medians,
    )


def missing(settings: DataSettings) -> dict[str, str]:
    """Return the data sets of the settings whose files are missing and cannot be downloaded, with a sentence each.

    Looks for the files without reading them.
    """
    absent: dict[str, str] = {}
    if is_sites(settings.dataset):
        return absent
    for name in members(settings.dataset):
        try:
            _files((name,), settings)
        except DataError as error:
            absent[name] = str(error)
    return absent


def files_key(settings: DataSettings) -> str:
    """Return what is another text once a file of the data has changed; empty where there are none to look at."""
    try:
        names = members(settings.dataset)
        files = _files(names, settings)
        return cache.key_of([names, str(cache.cache_folder(settings.cache))], files)
    except (KeyError, InputError):  # sites, and what `resolve` or `load` refuses
        return ""


def _folder(settings: DataSettings, names: tuple[str, ...]) -> Path:
    """Return the folder of the cached copy.

    Its key has the files and only the settings that change what is read from them, so that runs that differ in other
    settings share a copy.
    """
    fields = ("recipe", "test_fold", "window_stride", *OF_OWN)
    values = [getattr(settings, field) for field in fields]
    # Labels of a user's own data can be class names, which `classes` numbers in its order.
    identity = [names, settings.shape, settings.class_names, values]
    files = _files(names, settings)
    key = cache.key_of(identity, files)
    readable = "-".join(domain_names(names))[:40]  # for people who list the cache
    return cache.cache_folder(settings.cache) / f"{readable}-{key[:24]}"


def _files(names: Sequence[str], settings: DataSettings) -> list[Path]:
    """Return the files of all these data sets. Raises DataError where one is missing."""
    files: list[Path] = []
    for name in names:
        files += files_of_own(name, settings) if is_own(name) else files_of(name, settings)
    return files


def _read(settings: DataSettings, names: tuple[str, ...]) -> Arrays:
    """Return the arrays of every split, those of the member data sets concatenated."""
    raws = []
    for name in names:
        if is_own(name):
            raw = read_own(name, settings)
        else:
            raw = read_named(name, settings)
        for note in raw.notes:
            log.info("%s: %s", name, text_of(note))
        raws.append(raw)
    if settings.recipe == "fedbn":
        raws = fedbn(raws, KNOWN[names[0]].family)

    arrays: Arrays = {}
    columns = [raw.input_columns for raw in raws if raw.input_columns]
    if columns:
        arrays["input_columns"] = letters_of(columns[0])
    if len(raws) == 1:
        if raws[0].medians:
            arrays["medians"] = np.array(raws[0].medians, np.float64)
        if raws[0].sites:
            arrays["domain_names"] = letters_of(raws[0].sites)
    if settings.in_files:
        for key, split in raws[0].splits.items():
            images: Any = split.images
            arrays[f"{key}_inputs"], arrays[f"{key}_labels"] = images.names, split.labels
        return arrays
    arrays |= _inputs_and_labels(raws, settings)
    for key in SPLITS:
        if f"{key}_labels" in arrays:
            arrays |= _domains_and_subjects(raws, key, has_domains(settings.dataset))
    return arrays


def _inputs_and_labels(raws: list[Raw], settings: DataSettings) -> Arrays:
    """Return the inputs and labels of every split that all members have, those of the members concatenated.

    Columns have the order of the first member that names them. Inputs have one type: pixels from image files are uint8,
    0..255, or float32, 0..1, and float32 where both occur. Other arrays are not converted, as their scale is unknown.

    Raises:
        DataError: a member cannot be trained on, has other columns, or has arrays of another type.
    """
    first = next((raw for raw in raws if raw.input_columns), raws[0])
    orders = []
    for raw in raws:
        places = raw.train.where, first.train.where
        orders.append(_order(raw.input_columns, first.input_columns, *places))
    inputs: dict[str, list[Array]] = {}
    arrays: Arrays = {}
    in_files = True
    for key in SPLITS:
        splits = [raw.splits[key] for raw in raws if key in raw.splits]
        if len(splits) < len(raws):
            continue
        read = [checked(split, settings.shape, settings.num_classes) for split in splits]
        inputs[key] = []
        for (member, _), order in zip(read, orders, strict=True):
            inputs[key].append(member if order is None else member[:, order])
        arrays[f"{key}_labels"] = np.concatenate([labels for _, labels in read])
        in_files = in_files and all(isinstance(split.images, ImageFiles) for split in splits)

    types = {str(member.dtype) for of_members in inputs.values() for member in of_members}
    if len(types) > 1 and not in_files:
        rule = f"images are {' and '.join(sorted(types))}: must all be of one type"
        raise DataError(rule, where=settings.dataset)
    for key, of_members in inputs.items():
        if len(types) > 1:
            of_members = [
                as_float(member) if member.dtype == np.uint8 else member for member in of_members
            ]
        # Concatenating a single array would copy it.
        single = len(of_members) == 1
        arrays[f"{key}_inputs"] = of_members[0] if single else np.concatenate(of_members)
    return arrays


def _order(
    present: tuple[str, ...], wanted: tuple[str, ...], where: str, wanted_by: str
) -> Integers | None:
    """Return the order that brings input columns into that of `wanted`; None where they are in it or lack names.

    Raises DataError as `order_of`.
    """
    if not present or not wanted or present == wanted:
        return None
    return order_of(present, wanted, where, wanted_by)


def _domains_and_subjects(raws: list[Raw], key: str, has_domains: bool) -> Arrays:
    """Return the domain and the subject of each sample of a split, by array name, as far as they are known.

    Domains are the sites of one file, or the data sets themselves. Subjects' numbers are unique across members. If only
    some members name subjects, each sample of the others counts as a subject. There is no array if a member names the
    subjects of its test samples but not of this split: nobody knows which samples of this split belong together.
    """
    arrays: Arrays = {}
    splits = [raw.splits[key] for raw in raws]
    sizes = [len(split.labels) for split in splits]
    if has_domains:
        arrays[f"{key}_domains"] = np.repeat(np.arange(len(sizes)), sizes)
    elif splits[0].sites is not None:
        arrays[f"{key}_domains"] = splits[0].sites

    subjects = []
    start = 0
    for raw, split, size in zip(raws, splits, sizes, strict=True):
        if split.subjects is None and raw.test.subjects is not None:
            return arrays
        numbers_N = np.arange(size) if split.subjects is None else split.subjects
        subjects.append(numbers_N.astype(np.int64) + start)
        start += int(numbers_N.max()) + 1
    if any(split.subjects is not None for split in splits):
        arrays[f"{key}_subjects"] = np.concatenate(subjects)
        as_one = [split.where for split in splits if split.tested_as_one]
        by_sample = [split.where for split in splits if not split.tested_as_one]
        if as_one and by_sample:
            rule = f"test_subjects: is missing, and is in {as_one[0]}: name them in all files, or in none"
            raise DataError(rule, where=by_sample[0])
        if key == "test" and as_one:
            arrays["test_groups"] = arrays["test_subjects"]  # a part of the content's hash
    return arrays


def decoded(names: Array) -> tuple[str, ...]:
    """Return the names in an array of `letters_of`."""
    return tuple(row.tobytes().rstrip(b"\0").decode() for row in names)
