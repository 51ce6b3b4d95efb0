"""Resolution of data settings: `auto`, 0 and empty values are replaced by the values that they stand for.

Of sites:FILE, data that the server never sees, federation.toml says the values, and every site reads its own data.
"""

import difflib
import os
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from data.agreement import Agreement, read_agreement
from data.errors import DataError, SettingError, shortened
from data.files import BOUND, bound_path, check_bound
from data.partition_files import bound, read
from data.readers.catalog import (
    ALIASES,
    FAMILIES,
    KNOWN,
    NOT_SAVED,
    SITES_PREFIX,
    CatalogEntry,
    has_domains,
    is_own,
    is_sites,
    labels_file,
    members,
    own_path,
)
from data.settings import OF_OWN, PARTITIONS, DataSettings
from data.text import in_shell, is_whole, name_list

OWN = CatalogEntry((), (), (0.5,), (0.5,), layout="own", family="own")
"""What is known of a user's own data."""
TABLES_AND_FOLDERS = ("csv", "hf", "folder")
"""The kinds of a user's own data that are rows or files."""
USED_IN = {
    "window_stride": ("abide",),
    **dict.fromkeys(OF_OWN, ("npz", "medmnist", *TABLES_AND_FOLDERS)),
    "test_fold": ("abide", *TABLES_AND_FOLDERS),
    "frame": TABLES_AND_FOLDERS,
    "columns": TABLES_AND_FOLDERS,
    "labels": ("folder",),
}
"""By field, the file layouts of named data sets, and the kinds of a user's own, for which it has an effect."""
OF_ALL = ("dataset", "augmentation", "clients", "partition")
"""What a run states for all sites beside what the agreement says."""
NOT_OF_SITES = (
    "does not go with dataset = sites:FILE: a site reads its own data, and the server has no sample"
)


def resolve(settings: DataSettings) -> DataSettings:
    """Return the settings with explicit partition, clients, classes, input-shape, mean and std.

    Of vectors of a user's own data, a mean or std that is not stated stays empty: the training rows decide.
    Reads only the partition-file, the column `site` of a user's table, or federation.toml.
    Resolving twice changes nothing.

    Raises:
        SettingError: the data set is unknown, a value cannot be parsed, or settings contradict each other.
        DataError: a table or federation.toml cannot be read.
    """
    if is_sites(settings.dataset):
        return _resolved_of_sites(settings)
    names = members(settings.dataset)
    for name in names:
        _check_name(name, settings.dataset)
    settings.require(len(set(names)) == len(names), "dataset", "must name each domain once")
    classes = _classes(settings, names)
    usual = _usual(settings, names)
    shape = _shape(settings, names) if settings.input_shape.strip() else usual.shape
    if len(shape) == 1 and any(map(is_own, names)):
        usual = replace(usual, mean=(), std=())  # standardized by the training rows
    mean = _by_channel(settings, "mean", settings.means, usual.mean, shape)
    std = _by_channel(settings, "std", settings.stds, usual.std, shape)
    settings.require(all(value > 0 for value in settings.stds), "std", "must be greater than 0")
    _check_choices(settings, names, shape)

    sites: tuple[str, ...] = ()  # in a table or DICOM files
    if settings.dataset.startswith(("csv:", "hf:", "folder:")):
        # It imports torch, which other data sets do not need here.
        from data.readers.user_data import sites_of

        sites = sites_of(settings.dataset, settings)
    partition = settings.partition
    if partition == "auto":
        several = bool(sites) or has_domains(settings.dataset)
        partition = "domains" if several else "lda"
        partition = "file" if settings.partition_file else partition
    _check_partition(settings, partition, bool(sites))
    clients = _clients(settings, partition, len(sites or names))
    if partition == "llt" and clients % len(classes):
        rule = f"must be a multiple of the number of classes, {len(classes)}, under partition llt"
        raise SettingError("clients", clients, rule)
    return replace(
        settings,
        partition=partition,
        partition_file=bound(settings.partition_file) if partition == "file" else "",
        clients=clients,
        classes=name_list(classes),
        input_shape="x".join(map(str, shape)),
        mean=mean,
        std=std,
    )


def require_there(settings: DataSettings) -> None:
    """Raise DataError unless the files and folders of a user's own data are there. Nothing is read.

    A data set of medmnist: goes by a name, and is not looked for.
    """
    for name in members(settings.dataset):
        if is_own(name) and not name.startswith("medmnist:"):
            path = own_path(name, settings.data_root)
            if not path.exists():
                absent = "there is no such file or folder"
                raise DataError(NOT_SAVED if name.startswith("hf:") else absent, where=str(path))
    table = labels_file(settings.labels, settings.data_root)
    if table is not None and not table.is_file():
        raise DataError(
            "there is no such file", where=str(table), key="labels", value=settings.labels
        )


def _clients(settings: DataSettings, partition: str, domains: int) -> int:
    """Return the number of clients; if the setting is 0, the number that the partition implies.

    Args:
        settings: The settings.
        partition: The resolved partition.
        domains: The number of the data set's domains, or of a table's sites.

    Raises:
        SettingError: the setting is not 0, and the partition has another number of clients.
    """
    if partition == "file":
        implied = len(read(settings.partition_file))
        rule = f"must be 0 or {implied}, the clients of partition-file"
    elif partition == "pooled":
        implied, rule = 1, "must be 0 or 1: partition pooled is one client"
    elif partition == "domains":
        implied = domains * (settings.parts_per_domain or 1)
        one = "part of a domain" if settings.parts_per_domain else "domain"
        rule = f"must be 0 or {implied}, one client a {one} of dataset = {settings.dataset!r}"
    else:
        return settings.clients or 10
    settings.require(settings.clients in (0, implied), "clients", rule)
    return implied


def _check_name(name: str, dataset: str) -> None:
    """Raise SettingError, with a suggestion if there is one, if `name`, a member of `dataset`, is no data set."""
    if is_own(name):
        if name.endswith(":"):
            raise SettingError("dataset", dataset, f"{name!r} must go on with a path")
        return
    if name in KNOWN:
        return
    similar = difflib.get_close_matches(name.lower(), [*KNOWN, *ALIASES], n=1)
    remedy = "`fedskew data list` names all"
    if similar:
        remedy = f"did you mean {similar[0]!r}?"
    # Path.exists raises OSError for a text that is too long for a path; os.path.exists does not.
    elif "/" in name or os.path.exists(name):  # noqa: PTH110
        # The user gave a path without the prefix that says how to read it.
        prefix = {".npz": "npz", ".csv": "csv", ".tsv": "csv"}.get(Path(name).suffix, "folder")
        remedy = f"did you mean {shortened(repr(f'{prefix}:{name}'))}?"
    what = "so" if name == dataset else shortened(repr(name))
    raise SettingError("dataset", dataset, f"no data set is called {what}", remedy=remedy)


def _check_choices(settings: DataSettings, names: tuple[str, ...], shape: tuple[int, ...]) -> None:
    """Raise SettingError for settings that have no effect with these data or do not apply to them."""
    entries = [KNOWN.get(name, OWN) for name in names]
    layouts = {entry.layout for entry in entries} | {name.split(":")[0] for name in names}
    families = {entry.family for entry in entries}
    for field, used_in in USED_IN.items():
        used = not layouts.isdisjoint(used_in)
        rule = f"has no effect with dataset = {settings.dataset!r}"
        remedy = f"it is for {', '.join(used_in)}"
        settings.require(used or settings.is_default(field), field, rule, remedy)
    beyond_abide = "abide" in layouts and settings.test_fold > 4
    settings.require(not beyond_abide, "test_fold", "must be 0 to 4")
    if settings.recipe != "none":
        one_family = len(families) == 1 and families <= {"digits", "office", "domainnet", "pacs"}
        has_recipe = has_domains(settings.dataset) and one_family
        rule = "is for several domains of digits, of Office-Caltech10, of DomainNet or of PACS"
        settings.require(has_recipe, "recipe", rule)
    images = len(shape) == 3
    rule = f"is for images, and the inputs are vectors of {shape[0]}"
    settings.require(images or settings.augmentation == "none", "augmentation", rule)


def _check_partition(settings: DataSettings, partition: str, sites: bool) -> None:
    """Raise SettingError for a partition that does not fit the data, and for settings that it does not use.

    `sites` is whether the user's own table names the site of each row.
    """
    if settings.partition_file:
        rule = "must be auto with a partition-file"
        settings.require(settings.partition in ("auto", "file"), "partition", rule)
    else:
        settings.require(partition != "file", "partition", "needs a partition-file")
    for used_fields in PARTITIONS.values():
        for field in used_fields:
            used = field in PARTITIONS[partition] or settings.is_default(field)
            settings.require(used, field, f"has no effect with partition = {partition}")
    by_domain = has_domains(settings.dataset)
    if not sites and partition not in ("pooled", "file"):
        rule = (
            f"does not go with dataset = {settings.dataset!r}: partition domains and a dataset domains:NAME,... (or a "
            "table with a column site) need each other"
        )
        settings.require(by_domain == (partition == "domains"), "partition", rule)
    if settings.train_images:
        rule = f"contradicts imbalance-factor = {settings.imbalance_factor}: a long tail is sized by largest-class"
        settings.require(settings.imbalance_factor == 1, "train_images", rule)
        rule = f"contradicts largest-class = {settings.largest_class}"
        settings.require(settings.largest_class == 0, "train_images", rule, "set one of the two")
    if by_domain or (sites and partition == "domains"):
        rule = f"a long tail over classes is not defined for dataset = {settings.dataset!r}"
        settings.require(settings.imbalance_factor == 1, "imbalance_factor", rule)
        settings.require(settings.largest_class == 0, "largest_class", rule)


def _usual(settings: DataSettings, names: tuple[str, ...]) -> CatalogEntry:
    """Return what the catalog says of the data: several domains are brought to one form. A user's own are 0.5, 0.5."""
    entry = KNOWN.get(names[0], OWN)
    if entry is OWN or not has_domains(settings.dataset):
        return entry
    family = FAMILIES[entry.family]
    return replace(entry, shape=family.shape, mean=(family.mean,), std=(family.std,))


def _classes(settings: DataSettings, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the class names: those of `classes`, else those of the data sets `names`. Raises SettingError."""
    stated = settings.classes.strip()
    for field in ("classes", "input_shape"):
        for name in filter(is_own, names):
            rule = f"must be set for {name}: it is a setting of the run and never read off a client's files"
            remedy = (
                f"fedskew data check {in_shell(settings.dataset)} proposes classes and input-shape"
            )
            is_stated = bool(getattr(settings, field).strip())
            settings.require(is_stated, field, rule, remedy)
    known = {name: KNOWN[name].class_names for name in names if name in KNOWN}
    for name, class_names in known.items():
        if stated:
            rule = f"must be {len(class_names)} classes for {name}"
            settings.require(settings.num_classes == len(class_names), "classes", rule)
        elif class_names != known[names[0]]:
            rule = f"the classes of {names[0]} and of {name} differ, so they cannot be domains of one problem"
            raise settings.error("dataset", rule)
    # `classes` can be a number in place of names. A data set of the catalog then keeps its own names.
    if known and (not stated or is_whole(stated)):
        return next(iter(known.values()))
    return settings.class_names


def _shape(settings: DataSettings, names: tuple[str, ...]) -> tuple[int, ...]:
    """Return input-shape, (C, H, W) or (F,). Raises SettingError where images cannot be brought to it."""
    shape = settings.shape
    image = len(shape) == 3 and shape[0] in (1, 3)
    for name in names:
        known_vectors = len(KNOWN.get(name, OWN).shape) == 1
        any_shape = known_vectors or name.startswith(("npz:", "csv:", "medmnist:"))
        rule = f"must be 1xHEIGHTxWIDTH or 3xHEIGHTxWIDTH for the images of {name}"
        settings.require(image or any_shape, "input_shape", rule)
    return shape


def _by_channel(
    settings: DataSettings,
    field: str,
    stated: tuple[float, ...],
    usual: tuple[float, ...],
    shape: tuple[int, ...],
) -> str:
    """Return mean or std as settings have it: a value per channel, of vectors one or as many as features, or none.

    Raises SettingError for another number of values.
    """
    channels = shape[0] if len(shape) == 3 else 1
    if len(usual) not in (0, 1, channels):  # of images of other channels
        usual = (round(sum(usual) / len(usual), 4),)
    rule = f"must be one value, or {shape[0]}, for input-shape {'x'.join(map(str, shape))}"
    settings.require(len(stated) in (0, 1, shape[0]), field, rule)
    return in_channels(stated or usual, shape)


# ---- sites:FILE ------------------------------------------------------------------------------------------------------


def agreement_of(dataset: str) -> Agreement:
    """Return the agreement of sites:FILE or sites:FILE#SHA256. Raises DataError where FILE is another text by now."""
    agreement = read_agreement(file_of(dataset))
    check_bound(dataset.removeprefix(SITES_PREFIX), agreement.sha256, "federation.toml")
    return agreement


def file_of(dataset: str) -> Path:
    """Return the path of federation.toml in sites:FILE or sites:FILE#SHA256."""
    return bound_path(dataset.removeprefix(SITES_PREFIX))


def in_messages(agreement: Agreement) -> str:
    """Return how messages name the data set: without a path."""
    return f"{SITES_PREFIX}{agreement.sha256}"


def _resolved_of_sites(settings: DataSettings) -> DataSettings:
    """Return the settings of sites: with what the agreement says. Resolving twice changes nothing.

    Raises:
        SettingError: a setting that is a site's own affair, needs samples at the server, or contradicts the agreement.
        DataError: the file cannot be read.
    """
    file = settings.dataset.removeprefix(SITES_PREFIX)
    if not file.strip():
        rule = "'sites:' must go on with the path of federation.toml"
        raise SettingError("dataset", settings.dataset, rule)
    agreement = agreement_of(settings.dataset)
    agreed = as_settings(agreement) | {"clients": len(agreement.sites), "partition": "domains"}
    free = ["dataset", "augmentation"]
    if len(agreement.shape) != 3:  # augmentation is for images
        free.remove("augmentation")
        agreed["augmentation"] = "none"
    for name in (field.name for field in fields(settings)):
        is_agreed = getattr(settings, name) == agreed.get(name)
        if is_agreed or name in free or settings.is_default(name):
            continue
        if name not in agreed:
            raise settings.error(name, NOT_OF_SITES)
        agreed_value = f"{agreed[name]}, by federation.toml, or " if agreed[name] else ""
        raise settings.error(name, f"must be {agreed_value}left out")
    if not BOUND.fullmatch(file):
        file = f"{Path(file).expanduser().resolve()}#{agreement.sha256}"
    return replace(settings, dataset=f"{SITES_PREFIX}{file}", **agreed)


def as_settings(agreement: Agreement) -> dict[str, Any]:
    """Return what the agreement says as the fields of settings that it stands for.

    Raises DataError for an agreement of another Flower app that says nothing of its inputs.
    """
    if not agreement.classes:
        rule = "has no classes and no input-shape, as it is about another Flower app than FedSkew's"
        raise DataError(rule, where=f"federation.toml of {agreement.name}")
    return {
        "classes": name_list(agreement.classes),
        "input_shape": "x".join(map(str, agreement.shape)),
        "mean": in_channels(agreement.mean, agreement.shape),
        "std": in_channels(agreement.std, agreement.shape),
    }


def in_channels(values: tuple[float, ...], shape: tuple[int, ...]) -> str:
    """Return the mean or standard deviation of each channel (of vectors, as stated) as settings have it."""
    channels = shape[0] if len(shape) == 3 else 1
    every_channel = values * channels if len(values) == 1 else values
    return ",".join(map(str, every_channel))


def settings_at_site(
    settings: DataSettings,
    agreement: Agreement,
    spec: str,
    cache: Path,
    reading: DataSettings,
) -> DataSettings:
    """Return the settings by which a site reads `spec`; of the run's, only what no site decides for itself counts.
    `reading` is how this one reads: of it the settings of OF_OWN count.
    """
    inputs = as_settings(agreement)
    if not agreement.mean:
        # The site's own mean and std would be others than all sites': `ClientRuntime.standardize` gets those.
        inputs |= {"mean": "0", "std": "1"}
    return DataSettings(
        dataset=spec,
        cache=str(cache),
        partition="pooled",
        clients=1,
        augmentation=settings.augmentation,
        **{field: getattr(reading, field) for field in OF_OWN},
        **inputs,
    )
