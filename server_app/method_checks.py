"""The contract of methods: two tiny clients train two rounds with a method of the user's own.

Three trials of made-up data: with classes missing, with clients of one class, and with a client of one sample. A
method runs, changes nothing that it is given, repeats to the bit, sends what a part of it takes and no more than it
says, and what it makes is finite.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from client_app.client import Client
from client_app.handlers import ClientReply, reply_of
from client_app.local_site import QUESTION
from client_app.models import build
from client_app.optimizer import TrainingSettings
from client_app.run_spec import RunSpec
from client_app.state import State, copy, digest, seed_of
from client_app.training import train_round
from client_app.variants import VARIANTS
from data import DataSettings, Samples
from server_app.methods import ContractViolation, Method, breaks_contract
from server_app.record import RoundRecord
from strategies import SERVER_METHODS
from strategies.core.exchange import TRAIN, Exchange, Grid, Request
from strategies.core.questions import ask_class_prior, ask_finally
from strategies.core.rounds import RoundResult, Rounds
from strategies.core.server import AVERAGE, Update
from strategies.core.validation import expected_of
from strategies.fedavg import FedAvg

CLASSES, SHAPE, MODEL = 4, (1, 4, 4), "mlp-bn"
COUNTS = (((6, 0, 3, 1), (1, 2, 0, 4)), ((0, 0, 5, 0), (3, 1, 0, 0)), ((0, 1, 0, 0), (2, 2, 2, 2)))
"""Samples of each class at both clients, by trial."""
TRAINING = TrainingSettings(local_epochs=1, batch_size=4, learning_rate=0.05)
TAKEN = frozenset(field.name.replace("_", "-") for field in fields(RoundRecord))
"""Names in the record of every round: a method's number of the same name would take its place."""
MEMORY = "0" * 64
"""Stands for the digest of a client's memory, which no trial writes into a file."""


def check(method: Method) -> None:
    """Try a method. Raises SettingError with the rule of the contract that it breaks."""
    for counts in COUNTS:
        try:
            first = TrialRun(method, counts).run()
            if first != TrialRun(method, counts).run():
                rule = "gives other numbers when it is repeated: draw from client.generator"
                raise ContractViolation(rule)
        except ContractViolation as violation:
            raise breaks_contract(method.name, str(violation)) from violation
        except Exception as error:  # a user's class may fail in any way
            where = f"fails on clients with {counts} samples of the classes"
            reason = f"{where}: {type(error).__name__}: {error}"
            raise breaks_contract(method.name, reason) from error


class TrialRun(Rounds):
    """Two rounds of a method on two small clients: a run's own server, which trains the clients right here."""

    def __init__(self, method: Method, counts: Sequence[Sequence[int]]) -> None:
        model = build(MODEL, SHAPE, CLASSES, 0)
        self.initial = copy(model.state_dict())
        self.samples = [samples_of(held, number) for number, held in enumerate(counts)]
        self.memories: list[Mapping[str, State]] = [{} for _ in counts]
        run_spec = RunSpec(
            data=DataSettings(),
            training=TRAINING,
            model=MODEL,
            variants=tuple(VARIANTS[name]() for name in method.variants),
            seed=0,
            device="cpu",
            folder=Path(),
            code="",
        )
        super().__init__(
            model,
            run_spec,
            clients=len(counts),
            combine=SERVER_METHODS[method.combine or FedAvg.name](),
            deploys=[SERVER_METHODS[method.deploy]()] if method.deploy else [],
            examples={number: len(samples) for number, samples in enumerate(self.samples)},
            holdout=samples_of((2,) * CLASSES, len(counts)),
        )

    def run(self) -> str:
        """Run it and return a hash of everything that it made."""
        grid: Any = None  # `ask` needs none
        ask_class_prior(self, grid)
        for number in (1, 2):
            clients = self.begin_round(number)
            self.finish_round(self.ask(grid, clients, self.training_request()))
        ask_finally(self, grid)
        for part in self.deploys:
            adds = self.deployed.keys() > {AVERAGE}
            if adds != part.adds_model:
                what = "a model" if adds else "no model"
                raise ContractViolation(f"deploys {what}: state adds_model = {adds}")
        states = [self.states[name] for name in sorted(self.states)]
        return digest([*self.deployed.values(), *states])

    def ask(self, grid: Grid, clients: Sequence[int], request: Request) -> Exchange:
        """Return the clients' replies. A reply that the server refuses is raised by `finish_round`."""
        reply = self.trained if request.kind == TRAIN else self.answered
        exchange = Exchange(clients, self.largest)
        for number in clients:
            exchange.answers[number] = reply(self.client(number, request), request)
        return exchange

    def client(self, number: int, request: Request) -> Client:
        """Return a client that gets a request."""
        round = int(request.task.get("round", 0))
        memory = self.memories[number]
        model = build(MODEL, SHAPE, CLASSES, 0)
        start = copy(request.states["model"])
        model.load_state_dict({**self.initial, **start, **memory.get("private", {})})
        sent = request.client_request.named("broadcast")
        return Client(
            id=number,
            model=model,
            samples=self.samples[number],
            num_classes=CLASSES,
            round=round,
            start=start,
            broadcast={name: copy(state) for name, state in sent.items()},
            memory=memory,
            seed=seed_of(0, round, number),
        )

    def trained(self, client: Client, request: Request) -> ClientReply:
        """Return a client's reply to a round."""
        assert isinstance(client.samples.inputs_N, torch.Tensor)
        samples = {"inputs": client.samples.inputs_N, "labels": client.samples.labels_N}
        given = [client.start, samples, *client.broadcast.values(), *client.memory.values()]
        before = digest(given)
        report = train_round(client, self.variants, TRAINING)
        if digest(given) != before:
            raise ContractViolation("changes what the client gives it")
        self.memories[client.id] = report.memory
        return reply_of(report, 0.0, {"memory": MEMORY} if report.memory else {})

    def answered(self, client: Client, request: Request) -> ClientReply:
        """Return a client's answer to a question."""
        question = str(request.task["question"])
        if question == QUESTION:
            raise ContractViolation(f"asks {question}, which is a question of the server's own")
        states = {}
        for variant in self.variants:
            if variant.upload.question == question:
                states[f"upload/{variant.name}"] = variant.answer(client)
        return ClientReply(states)

    def result(self, updates: Sequence[Update]) -> RoundResult:
        """Return what the method's parts make of the updates, once it is looked at."""
        given = [self.shared, *self.states.values()]
        for update in updates:
            given += [update.shared, *update.uploads.values()]
        before = digest(given)
        result = super().result(updates)
        if digest(given) != before:
            raise ContractViolation("changes what the server gives it")
        unfit = result.not_finite()
        if unfit:
            raise ContractViolation(f"makes a {unfit} that is not finite")
        taken = sorted(TAKEN & result.metrics.keys())
        if taken:
            raise ContractViolation(f"records {taken[0]}, which the record of every round has")
        if expected_of(result.shared) != expected_of(self.shared):
            raise ContractViolation("makes another model")
        return result


def samples_of(counts: Sequence[int], seed: int) -> Samples:
    """Return random images with so many of each class."""
    classes_C = torch.arange(CLASSES)
    labels_N = classes_C.repeat_interleave(torch.tensor(counts))
    draws = torch.Generator().manual_seed(seed)
    inputs_N = torch.randn(len(labels_N), *SHAPE, generator=draws)
    # Mean 0 and deviation 1: the inputs are standardized as drawn.
    return Samples(inputs_N, labels_N, mean=torch.zeros(1), std=torch.ones(1))
