"""Resolution of data settings: `auto` and derived values become explicit."""

import difflib
from dataclasses import replace
from pathlib import Path

from data.errors import SettingError
from data.partition_files import marked, read
from data.readers.catalog import (
    ALIASES,
    DOMAINS_PREFIX,
    FAMILIES,
    KNOWN,
    OWN_PREFIXES,
    SITES_PREFIX,
    domain_names,
    has_domains,
    is_own,
    is_sites,
    members,
)
from data.rules import require
from data.settings import OF_OWN, PARTITIONS, USED_BY, DataSettings
from data.sites import resolved
from data.text import is_whole


def resolve(settings: DataSettings) -> DataSettings:
    """The same settings with partition, clients, classes, input-shape, mean and std spelled out.

    Reads no data but the partition-file, a table's column site, or federation.toml; only where a user's own data lack
    `classes` or `input-shape` it looks at them to say what would fit. Resolving twice changes nothing.

    Raises:
        SettingError: an unknown data set, a value that cannot be read, or settings that contradict each other.
    """
    if is_sites(settings.dataset):
        return resolved(settings)
    names = members(settings.dataset)
    for name in names:
        _check_name(name, settings.dataset)
    settings.require(len(set(names)) == len(names), "dataset", "must name each domain once")
    classes = _classes(settings, names)
    shape = _shape(settings, names)
    mean, std = _normalization(settings, names, shape)
    _check_choices(settings, names)
    rule = f"is for images, and the inputs are vectors of {shape[0]}"
    images = len(shape) == 3
    settings.require(settings.augmentation == "none" or images, "augmentation", rule)

    sites = _sites(settings)
    partition = _partition(settings, bool(sites))
    in_memory = images and not settings.in_files
    settings.require(not settings.noise or in_memory, "noise", "is for images, which are in memory")
    _check_partition(settings, partition, bool(sites))
    domains = sites or domain_names(names)
    if settings.unseen_domain:
        _check_unseen(settings, domains)
    clients = _clients(settings, partition, len(domains))
    if has_domains(settings.dataset) or (sites and partition == "domains"):
        rule = f"a long tail over classes is not defined for dataset = {settings.dataset!r}"
        settings.require(settings.imbalance_factor == 1, "imbalance_factor", rule)
        settings.require(settings.largest_class == 0, "largest_class", rule)
    if settings.train_images:
        rule = f"contradicts imbalance-factor = {settings.imbalance_factor}: a long tail is sized by largest-class"
        settings.require(settings.imbalance_factor == 1, "train_images", rule)
        rule = f"contradicts largest-class = {settings.largest_class}"
        settings.require(settings.largest_class == 0, "train_images", rule, "set one of the two")
    if partition == "llt":
        rule = f"must be a multiple of the number of classes, {len(classes)}, under partition llt"
        require(clients % len(classes) == 0, "clients", clients, rule)
        rule = f"has no effect with clients = {clients}, as many as classes: there the two forms are one"
        differs = clients > len(classes)
        settings.require(settings.llt_form == "exact" or differs, "llt_form", rule)
    return replace(
        settings,
        partition=partition,
        partition_file=marked(settings.partition_file) if partition == "file" else "",
        clients=clients,
        classes=",".join(classes),
        input_shape="x".join(map(str, shape)),
        mean=",".join(map(str, mean)),
        std=",".join(map(str, std)),
    )


def _clients(settings: DataSettings, partition: str, domains: int) -> int:
    """The number of clients: the one stated, or what 0 stands for. Raises SettingError where the partition has another.

    `domains` is the number of the data set's domains, or of a table's sites.
    """
    stated = settings.clients
    if partition == "file":
        saved = len(read(settings.partition_file).train)
        rule = f"must be 0 or {saved}, the clients of partition-file"
        settings.require(stated in (0, saved), "clients", rule)
        return saved
    if partition == "pooled":
        rule = "must be 0 or 1: partition pooled is one client"
        settings.require(stated in (0, 1), "clients", rule)
        return 1
    if partition == "domains":
        trained_on = domains - 1 if settings.unseen_domain else domains
        expected = trained_on * (settings.parts_per_domain or 1)
        one = "part of a domain" if settings.parts_per_domain else "domain"
        rule = f"must be 0 or {expected}, one client a {one} of dataset = {settings.dataset!r}"
        if settings.unseen_domain:
            rule += f" but {settings.unseen_domain}"
        settings.require(stated in (0, expected), "clients", rule)
        return expected
    return stated or 10


def _check_name(name: str, dataset: str) -> None:
    if is_own(name):
        require(not name.endswith(":"), "dataset", dataset, f"{name!r} must go on with a path")
        return
    if name in KNOWN:
        return
    near = difflib.get_close_matches(name.lower(), [*KNOWN, *ALIASES], n=1)
    remedy = f"did you mean {near[0]!r}?" if near else ""
    path = Path(name)
    if not near and ("/" in name or path.exists()):
        kind = {".npz": "npz", ".csv": "csv"}.get(path.suffix, "folder")
        meant = f"{kind}:{name}"
        remedy = f"did you mean {meant!r}?"
        raise SettingError("dataset", dataset, "no data set is called so", remedy=remedy)
    everything = [*KNOWN, *ALIASES]
    everything += [f"{prefix}PATH" for prefix in OWN_PREFIXES]
    everything += [f"{DOMAINS_PREFIX}NAME,NAME", f"{SITES_PREFIX}FILE"]
    rule = f"no data set is called {name!r}; known are {', '.join(everything)}"
    raise SettingError("dataset", dataset, rule, remedy=remedy)


USED_IN = {
    "cinic_train": ("cinic",),
    "window_width": ("abide",),
    "window_stride": ("abide",),
    "test_fold": ("abide", "own"),
    **dict.fromkeys(OF_OWN, ("own",)),
}
"""By field, the layouts of data sets that it changes; `own` is a user's own data."""


def _check_choices(settings: DataSettings, names: tuple[str, ...]) -> None:
    """Refuse what would change nothing for these data."""
    layouts = {KNOWN[name].layout if name in KNOWN else "own" for name in names}
    families = {KNOWN[name].family if name in KNOWN else "own" for name in names}
    for field, used_in in USED_IN.items():
        used = not layouts.isdisjoint(used_in)
        rule = f"has no effect with dataset = {settings.dataset!r}"
        settings.require(used or settings.is_default(field), field, rule)
    beyond_abide = "abide" in layouts and settings.test_fold > 4
    settings.require(not beyond_abide, "test_fold", "must be 0 to 4")
    if settings.recipe != "none":
        one_family = len(families) == 1 and families <= {"digits", "office", "domainnet", "pacs"}
        has_recipe = has_domains(settings.dataset) and one_family
        rule = "is for several domains of digits, of Office-Caltech10, of DomainNet or of PACS"
        settings.require(has_recipe, "recipe", rule)


def _sites(settings: DataSettings) -> tuple[str, ...]:
    """The sites that one's own table names."""
    if not settings.dataset.startswith(("csv:", "hf:")):
        return ()
    from data.readers.user_data import sites_of  # it loads torch, and most have no table

    return sites_of(settings.dataset, settings)


def _partition(settings: DataSettings, sites: bool) -> str:
    """The partition that is meant: the one stated, or what `auto` stands for. Nothing else decides it.

    `sites` is whether the user's own table names the sites of its rows.
    """
    if settings.partition != "auto":
        return settings.partition
    if settings.partition_file:
        return "file"
    return "domains" if sites or has_domains(settings.dataset) else "lda"


def _check_partition(settings: DataSettings, partition: str, sites: bool) -> None:
    """Refuse a partition that the data do not go with, and settings that it does not look at."""
    from_file = bool(settings.partition_file)
    rule = "must be auto with a partition-file" if from_file else "needs a partition-file"
    # resolved settings name the file's partition
    stated = ("auto", "file") if from_file else PARTITIONS[:-1]
    settings.require(settings.partition in stated, "partition", rule)
    for field, partitions in USED_BY.items():
        used = partition in partitions or settings.is_default(field)
        settings.require(used, field, f"has no effect with partition = {partition}")
    agree = has_domains(settings.dataset) == (partition == "domains")
    rule = (
        f"does not go with dataset = {settings.dataset!r}: partition domains and a dataset domains:NAME,... (or a "
        "table with a column site) need each other"
    )
    settings.require(agree or sites or partition in ("pooled", "file"), "partition", rule)


def _check_unseen(settings: DataSettings, known: tuple[str, ...]) -> None:
    unseen = settings.unseen_domain
    rule = f"must be a domain of dataset = {settings.dataset!r}: {', '.join(known)}"
    require(unseen in known, "unseen-domain", unseen, rule)
    rule = f"is the only domain of dataset = {settings.dataset!r}, and somebody has to train"
    require(len(known) > 1, "unseen-domain", unseen, rule)


def _classes(settings: DataSettings, names: tuple[str, ...]) -> tuple[str, ...]:
    known = [name for name in names if not is_own(name)]
    if not settings.classes.strip():
        for name in names:
            if is_own(name):
                raise SettingError("classes", settings.classes, _missing(name, settings, "classes"))
        first, *others = known
        for name in others:
            same = KNOWN[name].class_names == KNOWN[first].class_names
            rule = f"the classes of {first} and of {name} differ, so they cannot be domains of one problem"
            settings.require(same, "dataset", rule)
        return KNOWN[first].class_names
    classes = settings.class_names
    for name in known:
        number = len(KNOWN[name].class_names)
        rule = f"must be {number} classes for {name}"
        settings.require(len(classes) == number, "classes", rule)
    # A number names no class, so a known data set keeps its own names.
    if known and is_whole(settings.classes.strip()):
        return KNOWN[known[0]].class_names
    return classes


def _shape(settings: DataSettings, names: tuple[str, ...]) -> tuple[int, ...]:
    if settings.input_shape.strip():
        shape = settings.shape
        image = len(shape) == 3 and shape[0] in (1, 3)
        for name in names:
            known_vectors = name in KNOWN and len(KNOWN[name].shape) == 1
            any_shape = known_vectors or name.startswith(("npz:", "csv:", "medmnist:"))
            rule = f"must be 1xHEIGHTxWIDTH or 3xHEIGHTxWIDTH for the images of {name}"
            settings.require(image or any_shape, "input_shape", rule)
        return shape
    for name in names:
        if is_own(name):
            raise SettingError(
                "input-shape", settings.input_shape, _missing(name, settings, "input-shape")
            )
    if has_domains(settings.dataset):
        return FAMILIES[KNOWN[names[0]].family].shape
    return KNOWN[names[0]].shape


def _normalization(
    settings: DataSettings, names: tuple[str, ...], shape: tuple[int, ...]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and std, one value per channel or a single one for vectors. Raises SettingError."""
    channels = shape[0] if len(shape) == 3 else 1
    default_mean, default_std = _default_normalization(settings, names, shape, channels)

    described = "x".join(map(str, shape))
    rule = f"must be one value, or {shape[0]}, for input-shape {described}"
    mean = settings.means if settings.mean.strip() else default_mean
    if len(mean) == 1:
        mean = mean * channels
    settings.require(len(mean) in (channels, shape[0]), "mean", rule)
    std = settings.stds if settings.std.strip() else default_std
    if len(std) == 1:
        std = std * channels
    settings.require(len(std) in (channels, shape[0]), "std", rule)
    settings.require(all(value > 0 for value in std), "std", "must be greater than 0")
    return mean, std


def _default_normalization(
    settings: DataSettings, names: tuple[str, ...], shape: tuple[int, ...], channels: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and std where the settings have none: the data set's, or 0.5 for images and 0 and 1 for vectors."""
    if len(shape) == 1:
        return (0.0,), (1.0,)
    if has_domains(settings.dataset) and names[0] in KNOWN:
        family = FAMILIES[KNOWN[names[0]].family]
        return (family.mean,) * channels, (family.std,) * channels
    if settings.dataset in KNOWN:
        entry = KNOWN[settings.dataset]
        return _spread(entry.mean, channels), _spread(entry.std, channels)
    return (0.5,) * channels, (0.5,) * channels


def _spread(values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    """The values of a data set's own channels for another number of channels."""
    if len(values) == channels:
        return values
    average = round(sum(values) / len(values), 4)
    return (average,) * channels


def _missing(name: str, settings: DataSettings, key: str) -> str:
    """The rule that a user's own data need `key`, with the value that the data on disk suggest."""
    from data.readers.user_data import seen  # only on this path: resolving reads no data

    value = seen(name, settings).get(key)
    rule = f"must be set for {name}: it is a setting of the run and never read off a client's files"
    if value:
        return f'{rule}; what is there now would fit {key} = "{value}"'
    return rule
