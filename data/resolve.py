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
    require(
        len(set(names)) == len(names), "dataset", settings.dataset, "must name each domain once"
    )
    classes, shape = _classes(settings, names), _shape(settings, names)
    mean, std = _normalization(settings, names, shape)
    _check_choices(settings, names)
    rule = f"is for images, and the inputs are vectors of {shape[0]}"
    require(
        settings.augmentation == "none" or len(shape) == 3,
        "augmentation",
        settings.augmentation,
        rule,
    )
    sites = _sites(settings)
    partition = _partition(settings, bool(sites))
    images = len(shape) == 3 and not settings.in_files
    settings.require(not settings.noise or images, "noise", "is for images, which are in memory")
    domains = has_domains(settings.dataset) or (bool(sites) and partition == "domains")
    _check_partition(settings, partition, bool(sites))
    known = sites or domain_names(names)
    if settings.unseen_domain:
        _check_unseen(settings, known)
    trained_on = len(known) - bool(settings.unseen_domain)
    expected_clients = 10
    if partition == "domains":
        expected_clients = trained_on * (settings.parts_per_domain or 1)
    if partition == "file":
        expected_clients = len(read(settings.partition_file).train)
        rule = f"must be 0 or {expected_clients}, the clients of partition-file"
        require(settings.clients in (0, expected_clients), "clients", settings.clients, rule)
    clients = settings.clients or (1 if partition == "pooled" else expected_clients)
    if partition == "pooled":
        require(
            clients == 1,
            "clients",
            settings.clients,
            "must be 0 or 1: partition pooled is one client",
        )
    if partition == "domains":
        one = "part of a domain" if settings.parts_per_domain else "domain"
        of = f"one client a {one} of dataset = {settings.dataset!r}"
        if settings.unseen_domain:
            of += f" but {settings.unseen_domain}"
        require(
            clients == expected_clients,
            "clients",
            settings.clients,
            f"must be 0 or {expected_clients}, {of}",
        )
    if domains:
        rule = f"a long tail over classes is not defined for dataset = {settings.dataset!r}"
        require(settings.imbalance_factor == 1, "imbalance-factor", settings.imbalance_factor, rule)
        require(settings.largest_class == 0, "largest-class", settings.largest_class, rule)
    if settings.train_images:
        rule = f"contradicts imbalance-factor = {settings.imbalance_factor}: a long tail is sized by largest-class"
        require(settings.imbalance_factor == 1, "train-images", settings.train_images, rule)
        rule = f"contradicts largest-class = {settings.largest_class}"
        settings.require(settings.largest_class == 0, "train_images", rule, "set one of the two")
    if partition == "llt":
        rule = f"must be a multiple of the number of classes, {len(classes)}, under partition llt"
        require(clients % len(classes) == 0, "clients", clients, rule)
        rule = f"has no effect with clients = {clients}, as many as classes: there the two forms are one"
        require(
            settings.llt_form == "exact" or clients > len(classes),
            "llt-form",
            settings.llt_form,
            rule,
        )
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


def _check_name(name: str, dataset: str) -> None:
    if is_own(name):
        require(not name.endswith(":"), "dataset", dataset, f"{name!r} must go on with a path")
        return
    if name in KNOWN:
        return
    everything = [*KNOWN, *ALIASES, *(prefix + "PATH" for prefix in OWN_PREFIXES)]
    everything += [DOMAINS_PREFIX + "NAME,NAME", SITES_PREFIX + "FILE"]
    near = difflib.get_close_matches(name.lower(), [*KNOWN, *ALIASES], n=1)
    remedy = f"did you mean {near[0]!r}?" if near else ""
    path = Path(name)
    if not near and ("/" in name or path.exists()):
        kind = {".npz": "npz", ".csv": "csv"}.get(path.suffix, "folder")
        meant = f"{kind}:{name}"
        remedy = f"did you mean {meant!r}?"
        raise SettingError("dataset", dataset, "no data set is called so", remedy=remedy)
    rule = f"no data set is called {name!r}; known are {', '.join(everything)}"
    raise SettingError("dataset", dataset, rule, remedy=remedy)


def _check_choices(settings: DataSettings, names: tuple[str, ...]) -> None:
    """Refuse what would change nothing for these data."""
    layouts = {KNOWN[name].layout if name in KNOWN else "own" for name in names}
    defaults = DataSettings()
    for field, layout in (
        ("cinic_train", "cinic"), ("window_width", "abide"), ("window_stride", "abide"), ("test_fold", "abide")
    ):  # fmt: skip
        idle = getattr(settings, field) == getattr(defaults, field) or layout in layouts
        idle = idle or (field == "test_fold" and "own" in layouts)
        rule = f"has no effect with dataset = {settings.dataset!r}"
        require(idle, field.replace("_", "-"), getattr(settings, field), rule)
    of_user = any(map(is_own, names))
    for field in OF_OWN:
        rule = f"has no effect with dataset = {settings.dataset!r}"
        settings.require(of_user or settings.is_default(field), field, rule)
    settings.require(
        settings.test_fold <= 4 or "abide" not in layouts, "test_fold", "must be 0 to 4"
    )
    families = {KNOWN[name].family if name in KNOWN else "own" for name in names}
    rule = "is for several domains of digits, of Office-Caltech10 or of DomainNet"
    fits = (
        has_domains(settings.dataset)
        and len(families) == 1
        and families <= {"digits", "office", "domainnet"}
    )
    require(settings.recipe == "none" or fits, "recipe", settings.recipe, rule)


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
    settings.require(
        has_domains(settings.dataset) == (partition == "domains")
        or partition in ("pooled", "file")
        or sites,
        "partition",
        f"does not go with dataset = {settings.dataset!r}: partition domains and a dataset domains:NAME,... (or a "
        "table with a column site) need each other",
    )


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
        for name in known[1:]:
            rule = f"the classes of {known[0]} and of {name} differ, so they cannot be domains of one problem"
            require(
                KNOWN[name].class_names == KNOWN[known[0]].class_names,
                "dataset",
                settings.dataset,
                rule,
            )
        return KNOWN[known[0]].class_names
    classes = settings.class_names
    for name in known:
        number = len(KNOWN[name].class_names)
        require(
            len(classes) == number,
            "classes",
            settings.classes,
            f"must be {number} classes for {name}",
        )
    # A number names no class, so a known data set keeps its own names.
    if known and is_whole(settings.classes.strip()):
        return KNOWN[known[0]].class_names
    return classes


def _shape(settings: DataSettings, names: tuple[str, ...]) -> tuple[int, ...]:
    if settings.input_shape.strip():
        shape = settings.shape
        image = len(shape) == 3 and shape[0] in (1, 3)
        for name in names:
            rule = f"must be 1xHEIGHTxWIDTH or 3xHEIGHTxWIDTH for the images of {name}"
            vectors = name.startswith(("npz:", "csv:", "medmnist:")) or (
                name in KNOWN and len(KNOWN[name].shape) == 1
            )
            require(image or vectors, "input-shape", settings.input_shape, rule)
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
    """One value a channel (a single one for vectors) of each; .5/.5 where a data set brings none of its own."""
    channels = shape[0] if len(shape) == 3 else 1
    default_mean: tuple[float, ...] = (0.5,) * channels
    default_std: tuple[float, ...] = (0.5,) * channels
    if len(shape) == 1:
        default_mean = (0.0,)
        default_std = (1.0,)
    elif has_domains(settings.dataset) and names[0] in KNOWN:
        family = FAMILIES[KNOWN[names[0]].family]
        default_mean = (family.mean,) * channels
        default_std = (family.std,) * channels
    elif settings.dataset in KNOWN:
        default_mean = _spread(KNOWN[settings.dataset].mean, channels)
        default_std = _spread(KNOWN[settings.dataset].std, channels)

    def spread(field: str, values: tuple[float, ...]) -> tuple[float, ...]:
        full = values * channels if len(values) == 1 else values
        shape_text = "x".join(map(str, shape))
        rule = f"must be one value, or {shape[0]}, for input-shape {shape_text}"
        settings.require(len(full) in (channels, shape[0]), field, rule)
        return full

    mean = spread("mean", settings.means if settings.mean.strip() else default_mean)
    std = spread("std", settings.stds if settings.std.strip() else default_std)
    all_positive = all(value > 0 for value in std)
    settings.require(all_positive, "std", "must be greater than 0")
    return mean, std


def _spread(values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    """The values of a data set's own channels for another number of channels."""
    if len(values) == channels:
        return values
    return (round(sum(values) / len(values), 4),) * channels


def _missing(name: str, settings: DataSettings, key: str) -> str:
    """The rule that a user's own data need `key`, with the value that the data on disk suggest."""
    from data.readers.user_data import seen  # only on this path: resolving reads no data

    value = seen(name, settings).get(key)
    rule = f"must be set for {name}: it is a setting of the run and never read off a client's files"
    if value:
        return f'{rule}; what is there now would fit {key} = "{value}"'
    return rule
