"""sites:FILE: data that the server never sees. FILE is federation.toml, and every site reads its own data."""

import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from data.agreement import Agreement, read_agreement
from data.errors import DataError, SettingError
from data.readers.catalog import SITES_PREFIX
from data.settings import OF_OWN, DataSettings
from data.text import name_list

RESOLVED = re.compile(r"(?P<path>.+)#(?P<sha256>[0-9a-f]{64})")
"""FILE#SHA256: how resolved settings name the agreement, so that it cannot be changed under a run."""
OF_ALL = ("dataset", "augmentation", "clients", "partition")
"""What a run states for all sites beside what the agreement says."""
NOT_OF_SITES = (
    "does not go with dataset = sites:FILE: a site reads its own data, and the server has no sample"
)


def agreement_of(dataset: str) -> Agreement:
    """Return the agreement of sites:FILE or sites:FILE#SHA256. Raises DataError where FILE is another text by now."""
    resolved = RESOLVED.fullmatch(dataset.removeprefix(SITES_PREFIX))
    agreement = read_agreement(file_of(dataset))
    if resolved and agreement.sha256 != resolved["sha256"]:
        raise DataError(
            f"{resolved['path']}: is not the federation.toml that the run began with: its sha256 is "
            f"{agreement.sha256[:16]}..., not {resolved['sha256'][:16]}...; start a new run"
        )
    return agreement


def file_of(dataset: str) -> Path:
    """Return the path of federation.toml in sites:FILE or sites:FILE#SHA256."""
    stated = dataset.removeprefix(SITES_PREFIX)
    resolved = RESOLVED.fullmatch(stated)
    return Path(resolved["path"] if resolved else stated).expanduser()


def in_messages(agreement: Agreement) -> str:
    """Return how messages name the data set: without a path."""
    return f"{SITES_PREFIX}{agreement.sha256}"


def resolved(settings: DataSettings) -> DataSettings:
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
    if not RESOLVED.fullmatch(file):
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
