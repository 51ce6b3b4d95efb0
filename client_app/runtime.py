"""What a process keeps to compute for any client of a run: data, model and variants."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cached_property
from pathlib import Path

from client_app.client import Client, Variant
from client_app.features import with_features
from client_app.memory import folder_of
from client_app.models import build
from client_app.policy import Policy, check_names, check_run
from client_app.process import choose_device, code_version, tune_allocator
from client_app.run_approval import check_approved
from client_app.run_spec import RunSpec
from client_app.site import DataChanged, NotAgreed, Site, installed
from client_app.state import State, copy, seed_of
from client_app.training import private_names
from client_app.vectorized import Together
from data import DataError, Federation, Samples, federate
from data.readers.catalog import SITES_PREFIX
from data.site_view import SiteView
from data.sites import OF_ALL, in_messages

DATA_HASH = "data.sha256"
"""In a site's folder of a run, the hash of the data that it has trained on."""


class ClientRuntime:
    """Data, model and variants of one run, kept by a process for any client of a simulation, or for its site's."""

    def __init__(self, run_spec: RunSpec, site: Site | None = None) -> None:
        if run_spec.code != code_version():
            raise RuntimeError(
                "this client runs other code than the server: another checkout is on its path "
                "(restart Flower's SuperLink, or use `fedskew run`)"
            )
        tune_allocator()
        self.run_spec = run_spec
        self.policy: Policy | None = None
        self.digests: dict[str, str] = {}
        """Of a site's own data; in a simulation nobody has any."""
        self.federation: Federation | SiteView
        if site is None and run_spec.data.dataset.startswith(SITES_PREFIX):
            raise NotAgreed("this node is no site: it has no site.toml")
        if site is None:
            device, self.run_folder = run_spec.device, run_spec.folder
            dealt, kept = federate(run_spec.data, run_spec.seed), run_spec.data.cache
            at = choose_device(device)
            self.federation = with_features(
                dealt, run_spec.model, run_spec.model_settings, kept, at
            )
        else:
            check_names(site)
            check_run(site, run_spec)
            device, self.run_folder = site.device, site.run_folder(str(run_spec.folder))
            self.federation = seen = view(site, run_spec)
            check_samples(site, int(seen.counts_C.sum()))
            check_same(self.run_folder, seen.dataset.content)
            self.digests["data"] = seen.dataset.content
            self.policy = Policy(
                site, run_spec.variants, seen.counts_C, seen.tested, run_spec.training
            )
        self.device = choose_device(device)
        dataset = self.federation.dataset
        self.classes = dataset.num_classes
        about = (run_spec.model, dataset.shape, self.classes, initial_seed(run_spec.seed))
        self.model = build(*about, run_spec.model_settings).to(self.device)
        self.private = private_names(self.model, run_spec.variants)
        self.initial = copy(
            {name: t for name, t in self.model.state_dict().items() if name in self.private}
        )

    def memory_folder(self, client: int) -> Path:
        """Return the folder of a client's memory."""
        return folder_of(self.run_folder, client)

    def whole(self, shared: State, memory: Mapping[str, State]) -> State:
        """Return the model's state: the shared weights and the client's private tensors (the initial ones at first)."""
        return {**shared, **self.initial, **memory.get("private", {})}

    def test_sets(self, client: int) -> dict[str, Samples]:
        """Return what a client's models are measured on: its test set and, where the data have one, validation set."""
        sets = {"test": self.federation.test(client, self.device)}
        validation = self.federation.validation(client, self.device)
        return sets if validation is None else {**sets, "validation": validation}

    def check_data(self, known: str) -> None:
        """Raise DataChanged where the data are not those of the `known` digest, if one is known."""
        if known and self.digests.get("data") != known:
            raise DataChanged("the data are not those of the first answer in this run")

    def check_number(self, client: int) -> None:
        """Raise LookupError for a client that does not exist."""
        if not 0 <= client < self.federation.clients:
            raise LookupError(
                f"there is no client {client}, only 0 to {self.federation.clients - 1}"
            )

    def client(
        self,
        client: int,
        round: int,
        shared: State,
        broadcast: Mapping[str, State],
        memory: Mapping[str, State],
        node_config: Mapping[str, object] | None = None,
        load: bool = True,
    ) -> Client:
        """Return client number `client` at the start of `round`, its weights in the runtime's model if `load`.

        Raises LookupError for one that does not exist.
        """
        self.check_number(client)
        if content := self.digests.get("data"):
            keep(self.run_folder, content)
        member = Client(
            id=client,
            model=self.model,
            samples=self.federation.train(client, self.device),
            num_classes=self.classes,
            round=round,
            start=on_device(shared, self.device),
            broadcast={name: on_device(state, self.device) for name, state in broadcast.items()},
            memory={name: on_device(state, self.device) for name, state in memory.items()},
            seed=seed_of(self.run_spec.seed, round, client),
            node_config=node_config or {},
        )
        if load:
            self.load(member)
        return member

    def load(self, client: Client) -> None:
        """Load into the runtime's model the weights that a client receives."""
        self.model.load(self.state_of(client))

    def state_of(self, client: Client) -> State:
        """Return the model's state as a client receives it."""
        return self.whole(client.start, client.memory)

    @cached_property
    def together(self) -> Together:
        """How this process trains several clients in one pass."""
        work, shape = self.run_spec, self.federation.dataset.shape
        return Together(self.model, shape, work.variants, work.training, self.state_of)

    def answer(self, client: Client, question: str) -> dict[str, State]:
        """Return every variant's answer to `question`."""
        answers = {
            v.name: v.answer(client, question) for v in sorted_by_name(self.run_spec.variants)
        }
        return {name: state for name, state in answers.items() if state}


def on_device(state: State, device: str) -> State:
    """Return the state with its tensors on `device`; what a process is sent is on the CPU."""
    return state if device == "cpu" else {name: tensor.to(device) for name, tensor in state.items()}


def sorted_by_name(variants: Sequence[Variant]) -> list[Variant]:
    """Return the variants in the one order that every loop walks them."""
    return sorted(variants, key=lambda variant: variant.name)


def initial_seed(run_seed: int) -> int:
    """Return the seed of the model's first weights; server and clients draw the same."""
    return seed_of(run_seed, "model")


def view(site: Site, run_spec: RunSpec) -> SiteView:
    """Return the site's own data. Raises NotAgreed for a spec that is not the agreement's, or names a path."""
    agreement, data = site.agreement, run_spec.data
    if data.dataset != in_messages(agreement):
        raise NotAgreed(f"the data set {data.dataset!r} is not the agreement {agreement.sha256}")
    agreed = ("classes", "input_shape", "mean", "std", *OF_ALL)
    stated = [
        field.name
        for field in fields(data)
        if field.name not in agreed and not data.is_default(field.name)
    ]
    file = run_spec.model_settings.weights
    if (
        stated or file or ":" in run_spec.model
    ):  # neither a module nor a file, nor what another package would bring
        raise NotAgreed(f"{', '.join(stated) or file or run_spec.model} is the site's own affair")
    site.state.mkdir(mode=0o700, parents=True, exist_ok=True)
    return SiteView(data, agreement, site.number, site.data, site.cache, site.reading)


def check_samples(site: Site, samples: int) -> None:
    """Raise DataError where a site has more training samples than the agreement lets it state."""
    agreed = site.agreement.sites[site.number].samples
    if agreed and samples > agreed:
        raise DataError(
            f"{site.data}: has {samples} training samples, and federation.toml agrees on at most {agreed} "
            f"of site {site.name}"
        )


def check_same(folder: Path, content: str) -> None:
    """Raise DataError where a run's folder keeps another hash of the data: they have changed since the run began."""
    file = folder / DATA_HASH
    if file.exists() and file.read_text() != content:
        raise DataError(
            f"the data have changed since the run began: their hash is {content}, not that of {file}"
        )


def keep(folder: Path, content: str) -> None:
    """Keep the data's hash in the folder of a run that asks for more than whether a site is ready."""
    file = folder / DATA_HASH
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)


def runtime_of(run_spec: str, client: int) -> ClientRuntime:
    """Return the runtime of a client from a RunSpec's JSON: its site's own where this process serves sites.

    Raises NotAgreed for a client that is no site of this process.
    """
    sites = installed()
    if sites and client not in sites:
        raise NotAgreed(f"client {client} is not played here")
    if not sites:
        return simulation_runtime(run_spec)
    check_approved(sites[client], run_spec)
    return site_runtime(run_spec, sites[client])


@functools.lru_cache(maxsize=2)
def simulation_runtime(run_spec: str) -> ClientRuntime:
    """Return a simulation's runtime from a RunSpec's JSON; a process keeps the last two."""
    return ClientRuntime(RunSpec.from_json(run_spec))


@functools.lru_cache(maxsize=64)
def site_runtime(run_spec: str, site: Site) -> ClientRuntime:
    """Return the runtime of one site; a rehearsal has one per site."""
    try:
        return ClientRuntime(RunSpec.from_json(run_spec, own_code=False), site)
    except KeyError as error:
        raise NotAgreed(f"the variant {error} is not of this code") from error
