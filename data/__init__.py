"""Data sets, long tails, partitions, and the samples of each client."""

from data.datasets import Dataset, load
from data.federation import Federation, federate
from data.resolve import resolve
from data.samples import Samples
from data.settings import DataError, DataSettings, SettingError, at_least, positive, require

__all__ = [
    "DataError",
    "DataSettings",
    "Dataset",
    "Federation",
    "Samples",
    "SettingError",
    "at_least",
    "federate",
    "load",
    "positive",
    "require",
    "resolve",
]
