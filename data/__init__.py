"""Data sets, long tails, partitions, and the samples of each client."""

from data.datasets import Dataset, load
from data.federation import Federation, federate
from data.resolve import resolve
from data.rules import OneOf, Rule, SettingError, Settings, require
from data.samples import Samples
from data.settings import DataError, DataSettings

__all__ = [
    "DataError",
    "DataSettings",
    "Dataset",
    "Federation",
    "OneOf",
    "Rule",
    "Samples",
    "SettingError",
    "Settings",
    "federate",
    "load",
    "require",
    "resolve",
]
