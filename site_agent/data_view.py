"""A site as `client_app` sees it: its data, read by its own rules and checked against the agreement, and its policy."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import torch

from client_app import local_site
from client_app.features import with_features
from client_app.local_site import NotAgreed
from client_app.models import ModelSettings
from client_app.models.settings import of_hash
from client_app.process import choose_device
from client_app.run_spec import RunSpec
from client_app.site_questions import asked_variants
from client_app.tensor_files import flush_to_disk
from client_app.user_code import load_agreed
from data import DataError
from data.agreement import Agreement
from data.errors import SetOption
from data.federation import Federation, federate
from data.readers.input_columns import order_of
from data.readers.npz import read_arrays
from data.readers.user_data import input_columns, path_of
from data.resolve import OF_ALL, as_settings, in_messages, settings_at_site
from data.samples import SampleCache
from data.settings import OF_OWN, USUAL, DataSettings
from data.text import name_list, printable
from site_agent.agreed_files import check_model, own_module, own_weights
from site_agent.config import Site
from site_agent.policy import Policy, check_listed, check_names, check_run, is_of_module
from site_agent.run_approval import check_approved, check_signed
from site_agent.sum_ledger import SumLedger

DATA_HASH = "data.sha256"
"""In a site's folder of a run, the hash of the data that it has trained on."""


@dataclass(frozen=True)
class ConfiguredSite:
    """Implements `client_app.local_site.LocalSite` by a site.toml."""

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

    def run_folder(self, run: str) -> Path:
        """Return the folder of a run's memory. Raises NotAgreed for a text that is no run's id."""
        return self.site.run_folder(run)

    @property
    def sums(self) -> SumLedger | None:
        """Its part in masked sums; None where federation.toml says sums = plain."""
        return SumLedger(self.site) if self.site.agreement.masked else None

    def check_accepted(self, settings: str, signature: str | None) -> None:
        """Raise RunNotAllowed for settings of a run that lack the coordinator's signature, or an approval here."""
        if self.signed_runs and signature is not None:
            check_signed(self.site.agreement, settings, signature)
        check_approved(self.site, settings)

    def load_module(self, model: str, variants: Sequence[str]) -> str:
        """Load the site's own file of the agreed module for a run, and return the module's name.

        The policy is asked before the file is read, and the file is read once: what was compared is what runs.

        Args:
            model: MODULE:FUNCTION of the run's model, or "".
            variants: MODULE:CLASS of its local methods.

        Raises:
            NotAgreed: another module than the agreed one.
            RunNotAllowed: a model or a method that the policy excludes.
            DataError: no such file, one with another sha256, or one that fails.
        """
        agreed = self.site.agreement.module
        models = [model] if model else []
        for name in (*models, *variants):
            if not is_of_module(name, agreed):
                raise NotAgreed(f"{name} is the site's own affair")
        check_listed(self.site.policy, "models", models)
        check_listed(self.site.policy, "methods", variants)
        load_agreed(agreed, *own_module(self.site))
        return agreed

    def open_data(self, run_spec: RunSpec) -> Federation:
        """Return the site's data, as a federation of one client.

        Raises:
            RunNotAllowed: the policy excludes the run.
            NotAgreed, DataError: the data do not fit the agreement or the run.
        """
        check_names(self.site)
        check_run(self.site, run_spec)
        # Before the data are read: what is no run's id, another data set or another model.
        folder = self.run_folder(str(run_spec.folder))
        check_data_settings(self.site.agreement, run_spec.data)
        check_model(self.site, run_spec)
        self.site.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        federation = federation_of(self.site, run_spec.data)
        check_samples(self.site, int(federation.counts_KC.sum()))
        check_same(folder, federation.dataset.content)
        return with_features(
            federation,
            run_spec.model,
            self.model_settings(run_spec),
            folder=str(self.site.cache),
            device=choose_device(self.device),
            variants=run_spec.variants,
        )

    def model_settings(self, run_spec: RunSpec) -> ModelSettings:
        """Return a run's settings of the model, with this site's own file of weights."""
        settings = run_spec.model_settings
        if not settings.weights:
            return settings
        return of_hash(
            replace(settings, weights=own_weights(self.site)), self.site.agreement.weights
        )

    def keep_data_hash(self, run: Path, content: str) -> None:
        """Keep the data's hash in the folder of a run: the data must not change from now on."""
        if kept_data_hash(run):
            return
        run.mkdir(parents=True, exist_ok=True)
        part = run / f"{DATA_HASH}.part"
        part.write_text(content)
        flush_to_disk(part)
        part.replace(run / DATA_HASH)
        flush_to_disk(run)  # the file's name is written in its folder

    def policy(self, run_spec: RunSpec, federation: Federation) -> Policy:
        """Return the rules for a run on these data."""
        counts_C = torch.from_numpy(federation.counts_KC[0])
        tested = int(federation.tested_C("test", 0).sum())
        return Policy(
            self.site.policy,
            asked_variants(run_spec),
            counts_C,
            tested,
            run_spec.training,
            run_spec.rounds,
        )


def install(sites: Mapping[int, Site], signed_runs: bool = True) -> None:
    """Let this process act for these sites, by number, in place of those before.

    `signed_runs` is False in a rehearsal: whoever makes one has the sites' data, and needs no coordinator.
    """
    local_site.install(
        {number: ConfiguredSite(site, signed_runs) for number, site in sites.items()}
    )


def federation_of(site: Site, settings: DataSettings) -> Federation:
    """Return a site's data as a federation of one client, read by its own rules and normalized as agreed.

    Args:
        site: whose data they are.
        settings: the run's, of which only what no site decides for itself counts.

    Raises:
        SettingError: settings that the data cannot be read with.
        DataError: data that are missing, damaged, of other classes or another shape, or no test set.
    """
    agreement, spec = site.agreement, site.data
    here = settings_at_site(settings, agreement, spec, site.cache, site.reading)
    file = path_of(spec, here)
    wanted, wanted_by = agreement.input_columns, "federation.toml"
    try:
        if spec.startswith("npz:"):
            check_class_names(file, here)
        columns = input_columns(spec, here)
        if columns and wanted:
            # Before the data are read: with a column too many they are of another shape than agreed.
            order_of(columns, wanted, str(file), wanted_by)
        federation: Federation = federate(here, 0)
    except DataError as error:
        raise error.with_remedy_for(in_site_toml) from error
    dataset = federation.dataset.with_columns(wanted, str(file), wanted_by)
    if not len(dataset.test.labels):
        raise DataError("the test set is empty", where=str(file))
    if dataset is federation.dataset:
        return federation
    # With a cache of its own: that of `federate` has samples in the file's order.
    return replace(federation, dataset=dataset, _cache=SampleCache())


def own_columns(site: Site) -> tuple[str, ...]:
    """Return the names of the input columns in the order of the site's own file; empty where it has none."""
    settings = settings_at_site(DataSettings(), site.agreement, site.data, site.cache, site.reading)
    return input_columns(site.data, settings)


def in_site_toml(option: SetOption) -> str:
    """Return how site.toml states a setting; one that it cannot state as the run states it."""
    field = option.key.replace("-", "_")
    if field not in OF_OWN:
        return str(option)
    value = option.value
    if isinstance(getattr(USUAL, field), str):
        value = json.dumps(value, ensure_ascii=False)  # JSON's texts are TOML's too
    return f"under [read] of site.toml, {option.key} = {value}"


def check_class_names(path: Path, settings: DataSettings) -> None:
    """Raise DataError where an npz file's class_names, if it has them, are others than agreed, or in another order."""
    arrays = read_arrays(path, (), (("class_names",),))
    if "class_names" not in arrays:
        return
    names = tuple(map(str, arrays["class_names"].tolist()))
    if names != settings.class_names:
        in_file = printable(name_list(names, ", "))
        agreed = name_list(settings.class_names, ", ")
        rule = f"class_names are {in_file}, and federation.toml says {agreed}, in this order"
        raise DataError(rule, where=str(path))


def check_data_settings(agreement: Agreement, data: DataSettings) -> None:
    """Raise NotAgreed for a run's settings of the data that are not the agreement's, or that a site decides itself."""
    if data.dataset != in_messages(agreement):
        raise NotAgreed(f"the data set {data.dataset!r} is not the agreement {agreement.sha256}")
    stated = as_settings(agreement)
    if (data.mean, data.std) != (stated["mean"], stated["std"]):
        raise NotAgreed("mean and std are not those of the agreement")
    agreed = (*stated, *OF_ALL)
    names = [field.name for field in fields(data) if field.name not in agreed]
    changed = [name for name in names if not data.is_default(name)]
    if changed:
        raise NotAgreed(f"{', '.join(changed)} is the site's own affair")


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
    kept = kept_data_hash(folder)
    if kept and kept != content:
        raise DataError(
            f"the data have changed since the run began: their hash is {content}, "
            f"not that of {folder / DATA_HASH}"
        )


def kept_data_hash(folder: Path) -> str:
    """Return the hash of the data that a run's folder keeps; "" for none.

    Older versions could leave an empty file after a loss of power.
    """
    file = folder / DATA_HASH
    return file.read_text() if file.exists() else ""
