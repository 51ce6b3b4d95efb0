"""ClientRuntime: the data, model and variants with which a process runs the clients of one run."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from client_app.client import Client, Variant
from client_app.features import with_features
from client_app.local_site import (
    DataChanged,
    LocalSite,
    NotAgreed,
    SitePolicy,
    installed,
)
from client_app.memory import folder_of
from client_app.models import build
from client_app.process import choose_device, tune_allocator
from client_app.run_spec import RunSpec, user_code_of
from client_app.site_questions import asked_variants, asks_for_column_sums, is_standardization
from client_app.state import State, copy, on_device, seed_of
from client_app.training import private_names
from client_app.vectorized import VectorizedTraining
from data import Federation, Samples, federate
from data.readers.catalog import is_sites
from data.samples import SampleCache


class ClientRuntime:
    """Data, model and variants of one run. In a simulation all clients of a process share one, a site has its own.

    Raises NotAgreed for a run between sites in a process without site.toml, and what the site's checks raise.
    """

    def __init__(self, run_spec: RunSpec, site: LocalSite | None = None) -> None:
        tune_allocator()
        self.run_spec = run_spec
        self.site = site
        self.policy: SitePolicy | None = None
        self.digests: dict[str, str] = {}
        """sha256 of a site's own data, under "data"; empty in a simulation."""
        self.federation: Federation
        """At a site its own data alone, those of a single client."""
        model_settings = run_spec.model_settings
        if site is None and is_sites(run_spec.data.dataset):
            raise NotAgreed("this node is no site: it has no site.toml")
        if site is None:
            self.device = choose_device(run_spec.device)
            self.run_folder = run_spec.folder
            self.federation = with_features(
                federate(run_spec.data, run_spec.seed),
                run_spec.model,
                run_spec.model_settings,
                folder=run_spec.data.cache,
                device=self.device,
                variants=run_spec.variants,
            )
        else:
            self.federation = site.open_data(run_spec)
            self.run_folder = site.run_folder(str(run_spec.folder))
            model_settings = site.model_settings(run_spec)
            self.digests["data"] = self.federation.dataset.content
            self.policy = site.policy(run_spec, self.federation)
            self.device = choose_device(site.device)
        dataset = self.federation.dataset
        self.classes = dataset.num_classes
        self.model = build(
            run_spec.model,
            dataset.shape,
            self.classes,
            seed=initial_seed(run_spec.seed),
            settings=model_settings,
        ).to(self.device)
        self.private = private_names(self.model, run_spec.variants)
        state = self.model.state_dict()
        self.initial = copy({name: state[name] for name in state if name in self.private})

    def memory_folder(self, client: int) -> Path:
        """Return the folder of a client's memory."""
        return folder_of(self.run_folder, client)

    def model_state(self, shared: State, memory: Mapping[str, State]) -> State:
        """Return the shared weights with the client's private tensors: those in its memory, else the initial ones."""
        return {**shared, **self.initial, **memory.get("private", {})}

    def test_sets(self, client: int) -> dict[str, Samples]:
        """Return a client's test set and, if the data have one, its validation set, by "test" and "validation".

        A site's validation set stays its own affair.
        """
        index = self.index_of(client)
        sets = {"test": self.federation.test(index, self.device)}
        validation = self.federation.validation(index, self.device)
        if self.site is None and validation is not None:
            sets["validation"] = validation
        return sets

    def check_data(self, expected_digest: str) -> None:
        """Raise DataChanged if the data do not have `expected_digest`; an empty digest matches any data."""
        if expected_digest and self.digests.get("data") != expected_digest:
            raise DataChanged("the data are not those of the first answer in this run")

    def standardize(self, numbers: State | None) -> None:
        """Use the mean and std of all sites' training rows that a message holds, where a table is without.

        Raises NotAgreed for a message without them.
        """
        if self.site is None or not asks_for_column_sums(self.run_spec):
            return
        if numbers is None:
            raise NotAgreed("the message has no mean and std of the table's columns")
        columns = self.run_spec.data.shape[0]
        if not is_standardization(numbers, columns):
            raise NotAgreed(f"the message's mean and std do not fit the table's {columns} columns")
        mean = tuple(numbers["mean"].tolist())
        std = tuple(numbers["std"].tolist())
        dataset = self.federation.dataset
        if (dataset.mean, dataset.std) != (mean, std):
            dataset = replace(dataset, mean=mean, std=std)
            # With a cache of its own: the samples so far are normalized by other numbers.
            self.federation = replace(self.federation, dataset=dataset, _cache=SampleCache())

    def index_of(self, client: int) -> int:
        """Return a client's number in the federation. Raises LookupError for a client that does not exist."""
        if self.site is not None:  # `runtime_of` has chosen it by the number
            return 0
        last = self.federation.clients - 1
        if not 0 <= client <= last:
            raise LookupError(f"there is no client {client}, only 0 to {last}")
        return client

    def client(
        self,
        client: int,
        round: int,
        shared: State,
        broadcast: Mapping[str, State],
        memory: Mapping[str, State],
    ) -> Client:
        """Return a client at the start of a round, with its tensors on the runtime's device; `load` loads its weights.

        Args:
            client: its number.
            round: 1-based; 0 for a question outside training.
            shared: the weights that the server sent.
            broadcast: the other states that the server sent, by variant.
            memory: the states that the client saved in its last accepted round, by variant.

        Raises LookupError for a client that does not exist.
        """
        index = self.index_of(client)
        if self.site is not None:
            self.site.keep_data_hash(self.run_folder, self.digests["data"])
        return Client(
            id=client,
            model=self.model,
            samples=self.federation.train(index, self.device),
            num_classes=self.classes,
            round=round,
            start=on_device(shared, self.device),
            broadcast={name: on_device(state, self.device) for name, state in broadcast.items()},
            memory={name: on_device(state, self.device) for name, state in memory.items()},
            seed=seed_of(self.run_spec.seed, round, client),
        )

    def load(self, client: Client) -> None:
        """Load a client's weights into the runtime's model: the received ones and its private tensors."""
        self.model.load(self.state_of(client))

    def state_of(self, client: Client) -> State:
        """Return the model's state with which a client starts its round: shared weights and private tensors."""
        return self.model_state(client.start, client.memory)

    @cached_property
    def vectorized(self) -> VectorizedTraining:
        """Trains several clients of this process stacked in one pass."""
        return VectorizedTraining(
            self.model,
            shape=self.federation.dataset.shape,
            variants=self.run_spec.variants,
            settings=self.run_spec.training,
            state_of=self.state_of,
        )

    def answer(self, client: Client, question: str) -> dict[str, State]:
        """Return the answers of the variants that ask `question`, by variant."""
        answers = {}
        for variant in sorted_by_name(asked_variants(self.run_spec)):
            if question and variant.upload.question == question:
                answers[variant.name] = variant.answer(client)
        return answers


def sorted_by_name(variants: Sequence[Variant]) -> list[Variant]:
    """Return the variants sorted by name: results must not depend on the order in which a run lists them."""
    return sorted(variants, key=lambda variant: variant.name)


def initial_seed(run_seed: int) -> int:
    """Return the seed of the model's initial weights, which server and clients draw alike."""
    return seed_of(run_seed, "model")


def runtime_of(run_spec: str, client: int, signature: str | None = "") -> ClientRuntime:
    """Return the runtime of a client; at a site, check first that the site accepts the run.

    Args:
        run_spec: a RunSpec as JSON.
        client: the client's number.
        signature: the coordinator's signature of the run, "" without one; None for a question that needs none.

    Raises:
        NotAgreed: the process runs sites, and none of them is this client.
        RunNotSigned, RunNotAllowed: the site does not accept the run.
    """
    sites = installed()
    if sites and client not in sites:
        raise NotAgreed(f"client {client} is not run here")
    if not sites:
        return simulation_runtime(run_spec)
    sites[client].check_accepted(run_spec, signature)
    return site_runtime(run_spec, sites[client])


@functools.lru_cache(maxsize=2)
def simulation_runtime(run_spec: str) -> ClientRuntime:
    """Return a simulation's runtime for a RunSpec as JSON. The process caches the runtimes of the last two runs."""
    return ClientRuntime(RunSpec.from_json(run_spec))


@functools.lru_cache(maxsize=64)
def site_runtime(run_spec: str, site: LocalSite) -> ClientRuntime:
    """Return the runtime of one site; a rehearsal has one per site, all in one process.

    Raises NotAgreed for a variant that this code does not have, and what `LocalSite.load_module` and the site's checks
    of run and data raise.
    """
    model, variants = user_code_of(run_spec)
    modules = []
    if model or variants:
        modules.append(site.load_module(model, variants))
    try:
        return ClientRuntime(RunSpec.from_json(run_spec, modules), site)
    except KeyError as error:
        raise NotAgreed(f"the variant {error} is not of this code") from error
