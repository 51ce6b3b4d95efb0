"""Data sets, long tails, partitions, and the samples of each client."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from data.errors import DataError, InputError, SettingError
from data.resolve import resolve
from data.rules import OneOf, Rule, Settings, When, require
from data.settings import DataSettings

if TYPE_CHECKING:
    from data.dataset import Dataset, load
    from data.federation import Federation, federate
    from data.samples import Samples

__all__ = [
    "DataError",
    "DataSettings",
    "Dataset",
    "Federation",
    "InputError",
    "OneOf",
    "Rule",
    "Samples",
    "SettingError",
    "Settings",
    "When",
    "federate",
    "load",
    "require",
    "resolve",
]
WITH_TORCH = {
    "Dataset": "dataset", "load": "dataset", "Samples": "samples",
    "Federation": "federation", "federate": "federation",
}  # fmt: skip
"""By name the module that it is in, which loads torch: a gateway, or a node's key, needs 500 MB less."""


def __getattr__(name: str) -> Any:
    if name not in WITH_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{WITH_TORCH[name]}"), name)
