"""A site's data as `client_app` sees them: read by its own rules, checked against the agreement, under its policy."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
import torch

from client_app import local_site
from client_app.column_sums import asked_variants
from client_app.features import changes_images, with_features
from client_app.local_site import LocalData, NotAgreed
from client_app.models import ModelSettings
from client_app.process import choose_device
from client_app.run_spec import RunSpec
from data import DataError
from data.agreement import Agreement
from data.dataset import Dataset
from data.errors import SetOption
from data.federation import Federation, federate
from data.readers.input_columns import order_of
from data.readers.npz import read_arrays
from data.readers.user_data import input_columns, path_of
from data.samples import SampleCache, Samples
from data.settings import OF_OWN, USUAL, DataSettings
from data.sites import OF_ALL, as_settings, in_messages, settings_at_site
from data.text import name_list, printable
from site_agent.agreed_files import check_model, load_module, own_model_settings
from site_agent.config import Site
from site_agent.policy import Policy, check_names, check_run
from site_agent.run_approval import check_approved
from site_agent.signature import check_signed
from site_agent.sum_ledger import SumLedger

DATA_HASH = "data.sha256"
"""In a site's folder of a run, the hash of the data that it has trained on."""
READ_KEYS = {DataSettings.key(field): field for field in OF_OWN}
"""The fields of the settings that [read] of site.toml holds, by key."""


class SiteView:
    """What one site holds, read from its own files and normalized as the agreement says.

    Implements `client_app.local_site.LocalData`.
    """

    own_columns: tuple[str, ...]
    """The names of the input columns in the order of the site's own file; empty where it has none."""

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
        self.number = number
        self.clients = len(agreement.sites)
        here = settings_at_site(settings, agreement, spec, cache, reading)
        try:
            if spec.startswith("npz:"):
                check_class_names(path_of(spec, here), here)
            self.own_columns = input_columns(spec, here)
            if self.own_columns and agreement.input_columns:
                # Before the data are read: with a column too many they are of another shape than agreed.
                wanted = agreement.input_columns
                of_table = here if spec.startswith("csv:") else None
                order_of(self.own_columns, wanted, *of_columns(spec, here), reading=of_table)
            self.federation: Federation = federate(here, 0)
        except DataError as error:
            raise error.with_remedy_for(in_site_toml) from error
        in_order = self.dataset.with_columns(agreement.input_columns, *of_columns(spec, here))
        if in_order is not self.dataset:
            # With a cache of its own: that of `federate` has samples in the file's order.
            self.federation = replace(self.federation, dataset=in_order, _cache=SampleCache())
        if not len(self.dataset.test.labels):
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

    def standardize(self, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        """Normalize a table's columns by these numbers of all sites, one of each per column."""
        if (self.dataset.mean, self.dataset.std) == (mean, std):
            return
        dataset = replace(self.dataset, mean=mean, std=std)
        # With a cache of its own: the samples so far are normalized by other numbers.
        self.federation = replace(self.federation, dataset=dataset, _cache=SampleCache())

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


def of_columns(spec: str, settings: DataSettings) -> tuple[str, str]:
    """Return how errors name a site's file, and the text that its input columns are compared with."""
    return str(path_of(spec, settings)), "federation.toml"


def in_site_toml(option: SetOption) -> str:
    """Return how site.toml states a setting; one that it cannot state as the run states it."""
    field = READ_KEYS.get(option.key)
    if field is None:
        return str(option)
    text = isinstance(getattr(USUAL, field), str)
    # JSON's texts are TOML's too.
    value = json.dumps(option.value, ensure_ascii=False) if text else option.value
    return f"under [read] of site.toml, {option.key} = {value}"


def check_class_names(path: Path, settings: DataSettings) -> None:
    """Raise DataError where an npz file's class_names, if it has them, are others than agreed, or in another order."""
    arrays = read_arrays(path, (), (("class_names",),), settings)
    if "class_names" not in arrays:
        return
    names = tuple(map(str, arrays["class_names"].tolist()))
    if names != settings.class_names:
        in_file = printable(name_list(names, ", "))
        agreed = name_list(settings.class_names, ", ")
        rule = f"class_names are {in_file}, and federation.toml says {agreed}, in this order"
        raise DataError(rule, where=str(path))


@dataclass(frozen=True)
class ConfiguredSite:
    """Implements `client_app.local_site.LocalSite` from a site.toml."""

    site: Site
    signed_runs: bool = True
    """Whether it takes signed runs alone, where federation.toml has a run-key."""

    @property
    def name(self) -> str:
        """Its name in the agreement."""
        return self.site.name

    @property
    def device(self) -> str:
        """cpu, cuda or auto."""
        return self.site.device

    @property
    def threads(self) -> int:
        """Threads to train with."""
        return self.site.threads

    @property
    def sums(self) -> SumLedger | None:
        """Its part in masked sums; None where federation.toml says sums = plain."""
        return SumLedger(self.site) if self.site.agreement.masked else None

    def run_folder(self, run: str) -> Path:
        """Return the folder of a run's memory. Raises NotAgreed for a text that is not a run's id."""
        return self.site.run_folder(run)

    def check_signed(self, settings: str, signature: str) -> None:
        """Raise RunNotSigned for a run that the coordinator has to sign and has not."""
        if self.signed_runs:
            check_signed(self.site.agreement, settings, signature)

    def check_approved(self, settings: str) -> None:
        """Raise RunNotAllowed for settings of a run that need an approval and have none."""
        check_approved(self.site, settings)

    def check_run(self, run_spec: RunSpec) -> None:
        """Raise RunNotAllowed for a run that the policy excludes, and DataError for a policy with unknown names."""
        check_names(self.site)
        check_run(self.site, run_spec)

    def load_module(self, model: str, variants: Sequence[str]) -> str:
        """Load the site's own file of the agreed module, and return the module's name."""
        return load_module(self.site, model, variants)

    def open_data(self, run_spec: RunSpec) -> SiteView:
        """Return the site's data. Raises NotAgreed or DataError for data that do not fit the agreement or the run."""
        # First: with a text that is not a run's id no data are read.
        folder = self.run_folder(str(run_spec.folder))
        data = view(self.site, run_spec)
        check_samples(self.site, int(data.counts_C.sum()))
        check_same(folder, data.dataset.content)
        settings = self.model_settings(run_spec)
        device = choose_device(self.device)
        cache = str(self.site.cache)
        changes = changes_images(run_spec.variants)
        data.federation = with_features(
            data.federation, run_spec.model, settings, cache, device, changes
        )
        return data

    def model_settings(self, run_spec: RunSpec) -> ModelSettings:
        """Return a run's settings of the model, with this site's own file of weights."""
        return own_model_settings(self.site, run_spec)

    def keep_data_hash(self, run: Path, content: str) -> None:
        """Keep the data's hash in the folder of a run: the data must not change from now on."""
        file = run / DATA_HASH
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content)

    def policy(self, run_spec: RunSpec, data: LocalData) -> Policy:
        """Return the rules for a run on these data."""
        return Policy(
            self.site, asked_variants(run_spec), data.counts_C, data.tested, run_spec.training
        )


def install(sites: Mapping[int, Site], signed_runs: bool = True) -> None:
    """Let this process act for these sites, by number, in place of those before.

    `signed_runs` is False in a rehearsal: whoever makes one has the sites' data, and needs no coordinator.
    """
    installed = {number: ConfiguredSite(site, signed_runs) for number, site in sites.items()}
    local_site.install(installed)


def view(site: Site, run_spec: RunSpec) -> SiteView:
    """Return the site's own data. Raises NotAgreed for a spec that is not the agreement's, or names a path."""
    agreement, data = site.agreement, run_spec.data
    if data.dataset != in_messages(agreement):
        raise NotAgreed(f"the data set {data.dataset!r} is not the agreement {agreement.sha256}")
    stated = as_settings(agreement)
    if (data.mean, data.std) != (stated["mean"], stated["std"]):
        raise NotAgreed("mean and std are not those of the agreement")
    agreed = ("classes", "input_shape", "mean", "std", *OF_ALL)
    changed = []
    for field in fields(data):
        if field.name not in agreed and not data.is_default(field.name):
            changed.append(field.name)
    if changed:
        raise NotAgreed(f"{', '.join(changed)} is the site's own affair")
    check_model(site, run_spec)
    site.state.mkdir(mode=0o700, parents=True, exist_ok=True)
    return SiteView(data, agreement, site.number, site.data, site.cache, site.reading)


def check_samples(site: Site, samples: int) -> None:
    """Raise DataError where a site has more training samples than the agreement lets it state."""
    agreed = site.agreement.sites[site.number].samples
    if agreed and samples > agreed:
        raise DataError(
            f"has {samples} training samples, and federation.toml agrees on at most {agreed} "
            f"of site {site.name}",
            where=str(site.data),
        )


def check_same(folder: Path, content: str) -> None:
    """Raise DataError where a run's folder keeps another hash of the data: they have changed since the run began."""
    file = folder / DATA_HASH
    if file.exists() and file.read_text() != content:
        raise DataError(
            f"the data have changed since the run began: their hash is {content}, not that of {file}"
        )
