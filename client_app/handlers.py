"""Handle the server's requests for the clients of this process: train, evaluate, query.

Neither the equations nor the transport are here. A client that fails gets an error of its own; the others go on.
"""

import itertools
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from client_app.client import Client, Report
from client_app.local_site import (
    NOT_FINITE,
    NOT_SIGNED,
    POLICY,
    QUESTION,
    DataChanged,
    NotAgreed,
    NotAllowed,
    RunNotSigned,
    installed,
)
from client_app.memory import BEST_ROUNDS, MemoryLost
from client_app.memory import load as load_memory
from client_app.memory import prune as prune_memory
from client_app.memory import save as save_memory
from client_app.metrics import evaluate_models
from client_app.personal import FINE_TUNED, fine_tuned, model_of_variant, variants_with_models
from client_app.process import make_deterministic
from client_app.runtime import ClientRuntime, runtime_of
from client_app.state import State
from client_app.summed_questions import (
    LIST_QUESTION,
    NONCE,
    NONCE_QUESTION,
    WORDS,
    purpose_of,
    words_of,
)
from client_app.tensor_files import Damaged
from client_app.training import train_round
from data import DataError, SettingError
from data.text import sentence

Record = TypeVar("Record")
log = logging.getLogger("fedskew")
site_log = logging.getLogger("fedskew.site")
"""The site's own log; nothing in it leaves the site."""
READY: State = {"ready": torch.ones(())}
FAILURE_KINDS: Mapping[type[Exception], str] = {
    MemoryLost: "memory",
    Damaged: "memory",
    DataError: "data",
    SettingError: "setting",
    FloatingPointError: NOT_FINITE,
    DataChanged: "data changed",
    NotAgreed: "agreement",
    NotAllowed: POLICY,
    RunNotSigned: NOT_SIGNED,
}
"""All that leaves a site about an error of one of these classes, with a number; of any other class: failure.

The permission or key of a policy that an error is about leaves the site as well.
"""
_failure_numbers = itertools.count(1)


@dataclass(frozen=True)
class ExpectedState:
    """The state in which the server expects a client: the round of its last accepted update, and its digests."""

    round: int
    memory: str
    data: str

    def load_memory(self, folder: Path) -> dict[str, dict[str, Tensor]]:
        """Return the client's memory. Raises MemoryLost or Damaged."""
        return load_memory(folder, self.round, expected_digest=self.memory)


@dataclass(frozen=True)
class ClientRequest:
    """The server's request to clients, the same for all clients of this process."""

    kind: str
    """train, evaluate or query."""
    task: Mapping[str, object]
    """The round, or the question."""
    states: Mapping[str, State]
    """model, broadcast/NAME or deployed/NAME; not to be changed in place."""
    run_spec: str
    node_config: Mapping[str, object] = field(default_factory=dict)
    """The node's configuration; empty in a simulation."""
    signature: str = ""
    """The coordinator's of the run; "" without one."""
    of_status: bool = False
    """Whether the run only asks whether sites are ready, as `fedskew federation status` does."""

    @property
    def signature_to_check(self) -> str | None:
        """The signature; None for the one question that needs none, as it trains nothing and leaves nothing behind."""
        is_readiness = self.kind == "query" and self.task.get("question") == QUESTION
        return None if self.of_status and is_readiness else self.signature

    def named(self, kind: str) -> dict[str, State]:
        """Return the states named `kind/NAME`, by NAME."""
        return named(self.states, kind)


@dataclass(frozen=True)
class ClientReply:
    """One client's reply."""

    states: Mapping[str, State] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    worker: Mapping[str, int | str] = field(default_factory=dict)
    """The process that computed the reply: process id, device, visible GPUs."""
    digests: Mapping[str, str] = field(default_factory=dict)
    """sha256 of the client's memory and of its data, where it has any."""

    def named(self, kind: str) -> dict[str, State]:
        """Return the states named `kind/NAME`, by NAME."""
        return named(self.states, kind)


@dataclass(frozen=True)
class ClientFailure:
    """Why a client has no reply."""

    reason: str
    """For people. Of a site it names the kind, the permission and the number alone."""
    kind: str = ""
    """One of FAILURE_KINDS, or failure."""
    permission: str = ""
    """Of kind POLICY and NOT_SIGNED: the permission that the site lacks, or the key of its policy or the agreement."""
    number: int = 0
    """Of the line in the site's log; 0 in a simulation."""


ClientHandler = Callable[[ClientRuntime, int, ExpectedState], ClientReply]
"""(runtime, client number, its expected state) -> the client's reply."""
ClientOutcome = tuple[int, ClientReply | ClientFailure]
"""A client's number, and its reply or the reason why there is none."""


def named(records: Mapping[str, Record], kind: str) -> dict[str, Record]:
    """Return the records named `kind/NAME`, by NAME."""
    prefix = f"{kind}/"
    found = {}
    for name, record in records.items():
        if name.startswith(prefix):
            found[name.removeprefix(prefix)] = record
    return found


def answers(
    request: ClientRequest, clients: Mapping[int, ExpectedState]
) -> Iterator[ClientOutcome]:
    """Yield the reply of each of `clients`, computed one after the other."""
    handlers = {"train": train, "evaluate": evaluate, "query": query}
    handle = handlers[request.kind](request, clients)
    sites = installed()
    for number, expected in clients.items():
        threads = sites[number].threads if number in sites else 1
        make_deterministic(threads)
        try:
            runtime = runtime_of(request.run_spec, number, request.signature_to_check)
            runtime.check_data(expected.data)
            outcome: ClientReply | ClientFailure = handle(runtime, number, expected)
        except Exception as error:
            outcome = failure_of(error, number)
        yield number, outcome
    make_deterministic()  # in a rehearsal the server computes in this process as well


def failure_of(error: Exception, client: int) -> ClientFailure:
    """Return why a client failed, as its reply may say it: for a site only the error's kind and its number in the log.

    The sentence may name a file or a patient, so it is written into the site's log and does not leave the site.
    """
    kind = failure_kind(error)
    sites = installed()
    if not sites:
        return ClientFailure(sentence(error), kind)
    permission = error.permission if isinstance(error, NotAllowed) else ""
    words = f"{kind}: {permission}" if permission else kind
    number = next(_failure_numbers)
    reason = f"{words} {number}"
    name = sites[client].name if client in sites else f"client {client}"
    error_type = type(error).__name__
    site_log.error(
        "%s: %s: %s: %s",
        name,
        reason,
        error_type,
        error,
        extra={"error_type": error_type},  # a field of the record, for who counts refusals by type
    )
    return ClientFailure(reason, kind, permission, number)


def failure_kind(error: Exception) -> str:
    """Return the kind of an error: the nearest of its classes decides."""
    for error_class in type(error).__mro__:
        if error_class in FAILURE_KINDS:
            return FAILURE_KINDS[error_class]
    return "failure"


def train(request: ClientRequest, clients: Mapping[int, ExpectedState]) -> ClientHandler:
    """Return the function that trains one client for one round.

    Clients that can train in one pass are trained here already; for them the function returns what that made.
    """
    shared = request.states["model"]
    broadcast = request.named("broadcast")
    round = int(str(request.task["round"]))
    best_rounds = [int(number) for number in str(request.task.get(BEST_ROUNDS, "")).split()]

    def begin(runtime: ClientRuntime, number: int, expected: ExpectedState) -> Client:
        folder = runtime.memory_folder(number)
        memory = expected.load_memory(folder)
        prune_memory(folder, expected.round, best_rounds)
        # The model is loaded later: in a pass of several clients it holds none of theirs.
        return runtime.client(
            number, round, shared, broadcast, memory, request.node_config, load=False
        )

    reports = trained_together(request, clients, begin)

    def handle(runtime: ClientRuntime, number: int, expected: ExpectedState) -> ClientReply:
        policy = runtime.policy
        if policy is not None:
            policy.check_training()
            sent = [shared, *(broadcast[name] for name in sorted(broadcast))]
            policy.count_question(runtime.run_folder, round, sent)
        if number in reports:
            report, seconds = reports.pop(number)
            if isinstance(report, Exception):
                raise report
        else:
            client = begin(runtime, number, expected)
            began = time.perf_counter()
            runtime.load(client)
            report = train_round(client, runtime.run_spec.variants, runtime.run_spec.training)
            seconds = time.perf_counter() - began
        if policy is not None:
            policy.check_update(shared, report)

        states = {"model": report.shared}
        states |= {f"upload/{name}": state for name, state in report.uploads.items()}
        digests = dict(runtime.digests)
        if report.memory:
            folder = runtime.memory_folder(number)
            digests["memory"] = save_memory(folder, round, report.memory)
        return ClientReply(
            states=states,
            metrics={
                "num-examples": report.examples,
                "loss": report.loss,
                "steps": report.trained.steps,
                "coefficient-sum": report.trained.coefficient_sum,
                "remembers": int(bool(report.memory)),
                "seconds": seconds,
            },
            # A site's process and devices are its own affair.
            worker={} if policy is not None else worker(runtime),
            digests=digests,
        )

    return handle


def trained_together(
    request: ClientRequest,
    clients: Mapping[int, ExpectedState],
    begin: Callable[[ClientRuntime, int, ExpectedState], Client],
) -> dict[int, tuple[Report | Exception, float]]:
    """Return each client's report and its seconds of training, or nothing where they train one by one."""
    members: list[Client] = []
    reports: dict[int, tuple[Report | Exception, float]] = {}
    try:
        if installed() or len(clients) < 2:
            return {}
        runtime = runtime_of(request.run_spec, next(iter(clients)))
        if runtime.run_spec.training.clients_per_pass == 1 or runtime.vectorized.obstacle:
            return {}
        make_deterministic()
        for number, expected in clients.items():
            try:
                members.append(begin(runtime, number, expected))
            except Exception as error:
                reports[number] = error, 0.0
        for client, report, seconds in runtime.vectorized.train(members):
            reports[client.id] = report, seconds
    except Exception as error:  # whatever is wrong is each client's own when it trains alone
        log.warning("clients train one by one: %s", error)
    return reports


def evaluate(request: ClientRequest, clients: Mapping[int, ExpectedState]) -> ClientHandler:
    """Return the function that evaluates models on a client's test sets.

    The task's `models` names them: deployed ones, with the client's private tensors, and the client's own, which begin
    with the deployed model `start`. Without `models` every deployed model is evaluated.
    """
    deployed = request.named("deployed")
    names = str(request.task.get("models", ",".join(deployed))).split(",")
    start = str(request.task.get("start", ""))

    def handle(runtime: ClientRuntime, number: int, expected: ExpectedState) -> ClientReply:
        runtime.check_number(number)
        if runtime.policy is not None:
            runtime.policy.check_scores()
        memory = expected.load_memory(runtime.memory_folder(number))
        states = {name: runtime.model_state(shared, memory) for name, shared in deployed.items()}
        if start:
            for name in variants_with_models(runtime.run_spec.variants):
                states[name] = model_of_variant(name, states[start], memory)
        if FINE_TUNED in names:
            round = int(str(request.task["round"]))
            client = runtime.client(number, round, deployed[start], {}, memory)
            run = runtime.run_spec
            states[FINE_TUNED] = fine_tuned(client, run.training, run.variants)
        models = {name: states[name] for name in names}
        scores = {}
        for kind, samples in runtime.test_sets(number).items():
            for name, measured in evaluate_models(runtime.model, models, samples).items():
                scores[f"{kind}/{name}"] = measured
        metrics: dict[str, float] = {}
        if runtime.policy is not None:
            # A simulation's server computes it: it knows every client's class counts.
            counts_C = runtime.policy.counts_C
            for name in models:
                accuracy = scores[f"test/{name}"].local_accuracy(counts_C)
                metrics[f"local-accuracy/{name}"] = accuracy
        replied = {name: measured.state() for name, measured in scores.items()}
        return ClientReply(replied, metrics)

    return handle


def query(request: ClientRequest, clients: Mapping[int, ExpectedState]) -> ClientHandler:
    """Return the function that answers the request's question about a client."""
    shared = request.states["model"]
    broadcast = request.named("broadcast")
    question = str(request.task["question"])

    def handle(runtime: ClientRuntime, number: int, expected: ExpectedState) -> ClientReply:
        if question == QUESTION:
            if runtime.policy is not None:
                runtime.policy.check_ready()
            return ClientReply({f"upload/{QUESTION}": READY}, digests=runtime.digests)
        refuse_in_the_clear(runtime, question)
        memory = expected.load_memory(runtime.memory_folder(number))
        client = runtime.client(number, 0, shared, broadcast, memory, request.node_config)
        if question in (NONCE_QUESTION, LIST_QUESTION):
            return ClientReply(masked_reply(request.task, runtime, client))
        uploads = runtime.answer(client, question)
        if runtime.policy is not None:
            runtime.policy.check_uploads(uploads)
        return ClientReply({f"upload/{name}": state for name, state in uploads.items()})

    return handle


def refuse_in_the_clear(runtime: ClientRuntime, question: str) -> None:
    """Raise NotAllowed for a question whose answers leave a site under masks alone."""
    if runtime.site is None or runtime.site.sums is None:
        return
    for variant in runtime.run_spec.variants:
        if variant.upload.question == question:
            reason = (
                "federation.toml says sums = masked, and this question is not about a masked sum"
            )
            raise NotAllowed(variant.upload.permission, reason)


def masked_reply(
    task: Mapping[str, object], runtime: ClientRuntime, client: Client
) -> dict[str, State]:
    """Return a site's answer to a question about a masked sum: its nonce, or its masked words.

    Raises NotAgreed where the federation has no masked sums or the run no such variant, and as the site's ledger does.
    """
    sums = None if runtime.site is None else runtime.site.sums
    if sums is None or runtime.policy is None:
        raise NotAgreed("masked sums are between sites whose federation.toml says sums = masked")
    run_spec = runtime.run_spec
    by_name = {variant.name: variant for variant in run_spec.variants}
    variant = by_name.get(str(task.get("variant")))
    if variant is None or not variant.upload.question or variant.upload.by_client:
        raise NotAgreed("the run has no such variant whose answers are summed")
    runtime.policy.check_uploads({variant.name: {}})
    purpose = purpose_of(variant, run_spec)

    if task["question"] == NONCE_QUESTION:
        nonce = sums.nonce(purpose, lambda: words_of(variant, client, run_spec))
        nonce_bytes = torch.tensor(list(nonce), dtype=torch.uint8)
        return {f"upload/{NONCE}": {NONCE: nonce_bytes}}

    words = sums.answer(purpose, str(task.get("list", "")))
    integers = torch.from_numpy(words.view(np.int64))
    return {f"upload/{WORDS}": {WORDS: integers}}


def worker(runtime: ClientRuntime) -> dict[str, int | str]:
    """Return this process and the device on which it computes."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "all")
    return {"process": os.getpid(), "device": runtime.device, "visible-gpus": visible}
