"""Handle the server's requests (train, evaluate, query) for the clients that this process runs.

training.py and variants/ have the equations, app.py and messages.py the transport. A failure of one client becomes its
ClientFailure and does not affect the others.
"""

import itertools
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
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
from client_app.memory import MemoryLost
from client_app.memory import load as load_memory
from client_app.memory import prune as prune_memory
from client_app.memory import save as save_memory
from client_app.metrics import evaluate_models
from client_app.personal import FINE_TUNED, fine_tuned, model_of_variant, variants_with_models
from client_app.process import make_deterministic
from client_app.runtime import ClientRuntime, runtime_of
from client_app.site_questions import (
    LIST_QUESTION,
    NONCE,
    NONCE_QUESTION,
    STANDARDIZATION,
    WORDS,
    ColumnSums,
    asked_variants,
    purpose_of,
    words_of,
)
from client_app.state import State
from client_app.tensor_files import Damaged
from client_app.training import train_round
from data import DataError, SettingError
from data.text import sentence

Record = TypeVar("Record")
log = logging.getLogger("fedskew")
site_log = logging.getLogger("fedskew.site")
"""The site's own log; nothing in it leaves the site."""
READY: State = {"ready": torch.ones(())}
"""The answer of a client that can do its part of the run."""
GPU_MEMORY = "GPU memory"
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
    torch.OutOfMemoryError: GPU_MEMORY,
}
"""The kind of an error by its class; the kind of all other classes is "failure".

Only this leaves a site about an error: its kind, a number, and for NotAllowed the permission or key of its policy.
"""
_failure_numbers = itertools.count(1)
"""Numbers that let a site's operator find an error in the site's log."""


@dataclass(frozen=True)
class ExpectedState:
    """The memory and data that the server expects a client to have."""

    round: int = 0
    """Round of the client's last update that was used and left memory; 0 if there is none."""
    memory: str = ""
    """sha256 of that memory."""
    data: str = ""
    """sha256 of the client's data at its first answer; "" if the server has none."""
    examples: int = 0
    """Training samples that the client has stated first; 0 where the server knows them without."""

    def load_memory(self, folder: Path) -> dict[str, dict[str, Tensor]]:
        """Return the client's memory, by variant. Raises MemoryLost for a missing file and Damaged for a wrong one."""
        return load_memory(folder, self.round, expected_digest=self.memory)


@dataclass(frozen=True)
class ClientRequest:
    """The server's request to clients, the same for all clients of this process."""

    kind: str
    """train, evaluate or query."""
    task: Mapping[str, object]
    """The round, or the question."""
    states: Mapping[str, State]
    """model, broadcast/NAME or deployed/NAME. All clients share these tensors: do not change them in place."""
    run_spec: str
    """The run's settings, a RunSpec as JSON."""
    signature: str = ""
    """The coordinator's signature of the run; "" without one."""
    readiness_only: bool = False
    """Whether the run only asks whether sites are ready, as `fedskew federation status` does."""

    @property
    def signature_to_check(self) -> str | None:
        """The signature that a site checks; None if the request needs none.

        Only the readiness question of a run that asks nothing else needs none: it trains nothing.
        A site with approve-runs keeps its settings for somebody to look at, of at most 100 runs.
        """
        is_readiness_question = self.kind == "query" and self.task.get("question") == QUESTION
        needs_no_signature = self.readiness_only and is_readiness_question
        return None if needs_no_signature else self.signature

    def named(self, kind: str) -> dict[str, State]:
        """Return the states named `kind/NAME`, by NAME."""
        return named(self.states, kind)


@dataclass(frozen=True)
class ClientReply:
    """One client's reply."""

    states: Mapping[str, State] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    worker: Mapping[str, int | str] = field(default_factory=dict)
    """The process that computed the reply: process id, device, and the GPU's model."""
    digests: Mapping[str, str] = field(default_factory=dict)
    """By "memory" and "data", the sha256 of the client's memory and of its data, if it has any."""

    def named(self, kind: str) -> dict[str, State]:
        """Return the states named `kind/NAME`, by NAME."""
        return named(self.states, kind)


@dataclass(frozen=True)
class ClientFailure:
    """Why a client has no reply."""

    reason: str
    """A sentence for people. A site's sentence has only the kind, the permission and the number."""
    kind: str = ""
    """One of FAILURE_KINDS, or failure."""
    permission: str = ""
    """For POLICY and NOT_SIGNED: the missing permission, or the key of the site's policy or of federation.toml."""
    number: int = 0
    """The number of the error in the site's log; 0 in a simulation."""


ClientHandler = Callable[[ClientRuntime, int, ExpectedState], ClientReply]
"""(runtime, client number, its expected state) -> the client's reply."""
ClientOutcome = tuple[int, ClientReply | ClientFailure]
"""A client's number, and its reply or its failure."""


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
    """Yield the reply or failure of each of `clients`, in their order."""
    handlers = {"train": train, "evaluate": evaluate, "query": query}
    handle = handlers[request.kind](request, clients)
    sites = installed()
    for number, expected in clients.items():
        threads = sites[number].threads if number in sites else 1
        make_deterministic(threads)
        try:
            runtime = runtime_of(request.run_spec, number, request.signature_to_check)
            runtime.check_data(expected.data)
            if not is_about_columns(request.task):
                runtime.standardize(request.states.get(STANDARDIZATION))
            outcome: ClientReply | ClientFailure = handle(runtime, number, expected)
        except Exception as error:
            outcome = failure_of(error, number)
        yield number, outcome
    make_deterministic()  # back to one thread: in a rehearsal the server computes in this process as well


def is_about_columns(task: Mapping[str, object]) -> bool:
    """Return whether a question precedes the mean and std of a table's columns: readiness, or their sums."""
    question = task.get("question")
    about_sums = ColumnSums.name in (question, task.get("variant"))
    return question == QUESTION or about_sums


def failure_of(error: Exception, client: int) -> ClientFailure:
    """Return the failure to send for an error; a site's full error is logged at the site.

    The sentence of a site's error may name a file or a patient. So only its kind, a permission if there is one, and its
    number in the site's log are sent.
    """
    kind = failure_kind(error)
    sites = installed()
    if not sites:
        return ClientFailure(sentence(error), kind)
    permission = error.permission if isinstance(error, NotAllowed) else ""
    what = f"{kind}: {permission}" if permission else kind
    number = next(_failure_numbers)
    reason = f"{what} {number}"
    name = sites[client].name if client in sites else f"client {client}"
    error_type = type(error).__name__
    site_log.error(
        "%s: %s: %s: %s",
        name,
        reason,
        error_type,
        error,
        extra={"error_type": error_type},  # a field of the log record, to count refusals by type
    )
    return ClientFailure(reason, kind, permission, number)


def failure_kind(error: Exception) -> str:
    """Return the kind of an error: that of its class, or of the nearest base class in FAILURE_KINDS."""
    for error_class in type(error).__mro__:
        if error_class in FAILURE_KINDS:
            return FAILURE_KINDS[error_class]
    return "failure"


def train(request: ClientRequest, clients: Mapping[int, ExpectedState]) -> ClientHandler:
    """Return the handler that trains one client for one round.

    With clients-per-pass, clients that can be stacked are trained right here, and the handler returns their results.
    """
    shared = request.states["model"]
    broadcast = request.named("broadcast")
    round = int(str(request.task["round"]))

    def begin(runtime: ClientRuntime, number: int, expected: ExpectedState) -> Client:
        folder = runtime.memory_folder(number)
        memory = expected.load_memory(folder)
        prune_memory(folder, expected.round)
        return runtime.client(number, round, shared, broadcast, memory)

    reports = train_in_passes(request, clients, begin)

    def handle(runtime: ClientRuntime, number: int, expected: ExpectedState) -> ClientReply:
        policy = runtime.policy
        if policy is not None:
            policy.check_training()
            sent = [shared, *(broadcast[name] for name in sorted(broadcast))]
            sent.append(request.states.get(STANDARDIZATION, {}))
            policy.count_question(runtime.run_folder, round, sent)
        if number in reports:
            report, seconds = reports.pop(number)
        else:
            client = begin(runtime, number, expected)
            began = time.perf_counter()
            runtime.load(client)
            report = train_round(client, runtime.run_spec.variants, runtime.run_spec.training)
            seconds = time.perf_counter() - began
        if policy is not None:
            policy.check_update(shared, report)

        digests = dict(runtime.digests)
        if report.memory:
            folder = runtime.memory_folder(number)
            digests["memory"] = save_memory(folder, round, report.memory)
        reply = reply_of(report, seconds, digests)
        # A site does not tell the server about its processes and GPUs.
        return reply if policy is not None else replace(reply, worker=worker(runtime))

    return handle


def reply_of(report: Report, seconds: float, digests: Mapping[str, str]) -> ClientReply:
    """Return the reply to a request to train: what the report sends, and the seconds of the client's work."""
    states = {"model": report.shared}
    states |= {f"upload/{name}": state for name, state in report.uploads.items()}
    metrics = {
        "num-examples": report.examples,
        "loss": report.loss,
        "steps": report.trained.steps,
        "coefficient-sum": report.trained.coefficient_sum,
        "seconds": seconds,
        **report.numbers,
    }
    return ClientReply(states, metrics, digests=digests)


def train_in_passes(
    request: ClientRequest,
    clients: Mapping[int, ExpectedState],
    begin: Callable[[ClientRuntime, int, ExpectedState], Client],
) -> dict[int, tuple[Report, float]]:
    """Train clients stacked, up to clients-per-pass at once, and return by client its report and its seconds.

    Clients that have to train one by one are left out: all of them at a site, with clients-per-pass = 1, with a single
    client, if a variant or the model cannot be stacked, or if one of them cannot begin.
    """
    try:
        if installed() or len(clients) < 2:
            return {}
        runtime = runtime_of(request.run_spec, next(iter(clients)))
        if runtime.run_spec.training.clients_per_pass == 1 or runtime.vectorized.obstacle:
            return {}
        make_deterministic()
        members = [begin(runtime, number, expected) for number, expected in clients.items()]
        return runtime.vectorized.train(members)
    except Exception as error:  # each client, training alone, then gets its own failure
        log.warning("clients train one by one: %s", error)
        return {}


def evaluate(request: ClientRequest, clients: Mapping[int, ExpectedState]) -> ClientHandler:
    """Return the handler that evaluates models on a client's test set and, if it has one, its validation set.

    The task's entry `models` lists the models; without it every deployed model is evaluated. Deployed models get the
    client's private tensors. The client's own models (of variants, or fine-tuned) are built on the deployed model that
    the task's entry `start` names.
    """
    deployed = request.named("deployed")
    names = str(request.task.get("models", ",".join(deployed))).split(",")
    start = str(request.task.get("start", ""))
    round = int(str(request.task["round"]))

    def handle(runtime: ClientRuntime, number: int, expected: ExpectedState) -> ClientReply:
        runtime.index_of(number)  # raises for a client that does not exist
        policy = runtime.policy
        if policy is not None:
            policy.check_scores()
            standardization = request.states.get(STANDARDIZATION, {})
            policy.count_evaluation(runtime.run_folder, round, deployed, standardization)
        memory = expected.load_memory(runtime.memory_folder(number))
        states = {name: runtime.model_state(shared, memory) for name, shared in deployed.items()}
        if start:
            for name in variants_with_models(runtime.run_spec.variants):
                states[name] = model_of_variant(name, states[start], memory)
        if FINE_TUNED in names:
            client = runtime.client(number, round, deployed[start], {}, memory)
            runtime.load(client)
            run = runtime.run_spec
            states[FINE_TUNED] = fine_tuned(client, run.training, run.variants)
        models = {name: states[name] for name in names}
        scores = {}
        for kind, samples in runtime.test_sets(number).items():
            for name, measured in evaluate_models(runtime.model, models, samples).items():
                scores[f"{kind}/{name}"] = measured
        return ClientReply({name: measured.state() for name, measured in scores.items()})

    return handle


def query(request: ClientRequest, clients: Mapping[int, ExpectedState]) -> ClientHandler:
    """Return the handler that answers the task's question for a client."""
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
        client = runtime.client(number, 0, shared, broadcast, memory)
        runtime.load(client)
        if question in (NONCE_QUESTION, LIST_QUESTION):
            return ClientReply(masked_reply(request, runtime, client))
        uploads = runtime.answer(client, question)
        if runtime.policy is not None:
            runtime.policy.check_uploads(uploads)
        return ClientReply({f"upload/{name}": state for name, state in uploads.items()})

    return handle


def refuse_in_the_clear(runtime: ClientRuntime, question: str) -> None:
    """Raise NotAllowed for a variant's question asked without masks, if federation.toml says sums = masked."""
    if runtime.site is None or runtime.site.sums is None:
        return
    for variant in asked_variants(runtime.run_spec):
        upload = variant.upload
        if upload.is_answer and upload.question == question:
            reason = (
                "federation.toml says sums = masked, and this question is not about a masked sum"
            )
            raise NotAllowed(upload.permission, reason)


def masked_reply(
    request: ClientRequest, runtime: ClientRuntime, client: Client
) -> dict[str, State]:
    """Return a site's answer to a question about a masked sum: its nonce, or its masked integers.

    Raises NotAgreed if the federation has no masked sums or the run no variant with such a question, NotAllowed if the
    site's policy forbids the upload, and what `SiteSums.nonce` and `SiteSums.answer` raise.
    """
    sums = None if runtime.site is None else runtime.site.sums
    if sums is None or runtime.policy is None:
        raise NotAgreed("masked sums are between sites whose federation.toml says sums = masked")
    task = request.task
    run_spec = runtime.run_spec
    by_name = {variant.name: variant for variant in asked_variants(run_spec)}
    variant = by_name.get(str(task.get("variant")))
    if variant is None or not variant.upload.is_answer or variant.upload.by_client:
        raise NotAgreed("the run has no such variant whose answers are summed")
    runtime.policy.check_uploads({variant.name: {}})
    purpose = purpose_of(variant, run_spec, request.states)

    if task["question"] == NONCE_QUESTION:
        nonce = sums.nonce(purpose, lambda: words_of(variant, client, run_spec))
        nonce_bytes = torch.tensor(list(nonce), dtype=torch.uint8)
        return {f"upload/{NONCE}": {NONCE: nonce_bytes}}

    words = sums.answer(purpose, str(task.get("list", "")))
    integers = torch.from_numpy(words.view(np.int64))
    return {f"upload/{WORDS}": {WORDS: integers}}


def worker(runtime: ClientRuntime) -> dict[str, int | str]:
    """Return this process's id, its device and the GPU's model, as ClientReply.worker has them."""
    described: dict[str, int | str] = {"process": os.getpid(), "device": runtime.device}
    if runtime.device == "cuda":
        described["gpu"] = torch.cuda.get_device_name()
    return described
