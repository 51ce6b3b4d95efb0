"""A site's own view of a federation: one client, with the number that the agreement gives it."""

from pathlib import Path

import numpy as np
import torch

from data.agreement import Agreement
from data.dataset import Dataset
from data.errors import DataError, SetOption
from data.federation import Federation, federate
from data.readers.npz import read_arrays
from data.readers.user_data import path_of
from data.samples import Samples
from data.settings import OF_OWN, USUAL, DataSettings
from data.sites import settings_at_site
from data.text import printable

READ_KEYS = {DataSettings.key(field): field for field in OF_OWN}
"""The fields of the settings that [read] of site.toml holds, by key."""


class SiteView:
    """What one site holds, read from its own files and normalized as the agreement says."""

    def __init__(
        self,
        settings: DataSettings,
        agreement: Agreement,
        number: int,
        spec: str,
        cache: Path,
        reading: DataSettings = USUAL,
    ) -> None:
        """`settings` are the run's; `spec` says where the site's data are, `reading` by which settings they are read.

        Raises:
            SettingError: settings that the data cannot be read with.
            DataError: data that are missing, damaged, of other classes or another shape, or no test set.
        """
        self.number, self.clients = number, len(agreement.sites)
        here = settings_at_site(settings, agreement, spec, cache, reading)
        try:
            if spec.startswith("npz:"):
                check_names(path_of(spec, here), here)
            self.federation: Federation = federate(here, 0)
        except DataError as error:
            raise error.with_remedy_for(in_site_toml) from error
        if not len(self.dataset.test_labels):
            raise DataError("the test set is empty", where=spec.partition(":")[2])

    @property
    def dataset(self) -> Dataset:
        """The site's data."""
        return self.federation.dataset

    @property
    def counts_C(self) -> torch.Tensor:
        """(C,) int64: training samples of each class."""
        return torch.from_numpy(self.federation.counts_KC[0])

    @property
    def tested(self) -> int:
        """Test samples; subjects, where samples are parts of one."""
        return int(np.sum(self.federation.tested_C("test", 0)))

    def train(self, client: int, device: str = "cpu") -> Samples:
        """The training samples. Raises LookupError for another client than this site."""
        self.check(client)
        return self.federation.train(0, device)

    def test(self, client: int, device: str = "cpu") -> Samples:
        """The test samples. Raises LookupError for another client than this site."""
        self.check(client)
        return self.federation.test(None, device)

    def validation(self, client: int, device: str = "cpu") -> None:
        """None: a validation set stays the site's own affair."""

    def check(self, client: int) -> None:
        """Raise LookupError for another client than this site."""
        if client != self.number:
            raise LookupError(f"this is site {self.number}, not {client}")


def in_site_toml(option: SetOption) -> str:
    """Return how site.toml states a setting; one that it cannot state as the run states it."""
    field = READ_KEYS.get(option.key)
    if field is None:
        return str(option)
    text = isinstance(getattr(USUAL, field), str)
    value = f'"{option.value}"' if text else option.value
    return f"under [read] of site.toml, {option.key} = {value}"


def check_names(path: Path, settings: DataSettings) -> None:
    """Raise DataError where an npz file's class_names, if it has them, are others than agreed, or in another order."""
    names = read_arrays(path, (), (("class_names",),), settings).get("class_names")
    if names is not None and tuple(map(str, names.tolist())) != settings.class_names:
        stated = printable(", ".join(map(str, names.tolist())))
        agreed = ", ".join(settings.class_names)
        rule = f"class_names are {stated}, and federation.toml says {agreed}, in this order"
        raise DataError(rule, where=str(path))
