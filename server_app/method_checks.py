"""Checks of a user's own method on two tiny clients: the contract tests' rules that need no row.

Two rounds of made-up data with a class missing, of one class, and of one sample: it runs, changes nothing that it is
given, repeats to the bit, sends what a part of it takes and no more than it says, and what it makes is finite.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import torch

from client_app.client import Client, Variant
from client_app.handlers import ClientReply
from client_app.local_site import QUESTION
from client_app.models import build
from client_app.optimizer import TrainingSettings
from client_app.run_spec import RunSpec
from client_app.state import State, copy, digest, seed_of
from client_app.training import train_round
from data import DataSettings, Samples
from server_app.contract_violation import ContractViolation, keep
from strategies.core.exchange import Exchange
from strategies.core.questions import in_order_of_asking, integer_sum, stacked
from strategies.core.rounds import RoundResult, Rounds
from strategies.core.server import ServerMethod
from strategies.core.validation import RejectedUpdate, check_upload, expected_of

CLASSES, SHAPE, MODEL = 4, (1, 4, 4), "mlp-bn"
COUNTS = (((6, 0, 3, 1), (1, 2, 0, 4)), ((0, 0, 5, 0), (3, 1, 0, 0)), ((0, 1, 0, 0), (2, 2, 2, 2)))
"""Samples of each class at both clients, by trial."""
TRAINING = TrainingSettings(local_epochs=1, batch_size=4, learning_rate=0.05)
MEMORY = "0" * 64


def check(
    variants: Sequence[Variant],
    combine: ServerMethod,
    monitors: Sequence[ServerMethod],
    deploys: Sequence[ServerMethod],
) -> list[str]:
    """Try a method's parts and return what was checked, a sentence each.

    Raises ContractViolation with the rule that it breaks.
    """
    for counts in COUNTS:
        results = []
        for _ in range(2):
            try:
                results.append(TrialRun(variants, combine, monitors, deploys, counts).run())
            except ContractViolation:
                raise
            except Exception as error:  # a user's class may fail in any way
                words = f"{type(error).__name__}: {error}"
                raise ContractViolation(
                    f"fails on clients with {counts} samples of the classes: {words}"
                ) from error
        first, repeated = results
        rule = "gives other numbers when it is repeated: draw from client.generator"
        keep(first == repeated, rule)
    return sentences(variants, deploys)


def sentences(variants: Sequence[Variant], deploys: Sequence[ServerMethod]) -> list[str]:
    """Return what `check` has checked of these parts. A rule about a thing that no part does is left out."""
    checked = [
        "It trains two rounds where a client lacks classes, holds one class alone, and holds a single sample.",
        "It gives the same bits when it is repeated.",
        "It changes no tensor that the client or the server gives it.",
        "Its model keeps the names, shapes and types of the tensors, and every number is finite.",
        "It uploads the tensors that it states.",
    ]
    questions = [variant.upload.question for variant in variants if variant.upload.question]
    questions += [part.final_question for part in deploys if part.final_question]
    for question in questions:
        checked.append(f"It accepts the answers to its question {question}.")
    return checked


class TrialRun:
    """Two rounds of a method on two small clients."""

    def __init__(
        self,
        variants: Sequence[Variant],
        combine: ServerMethod,
        monitors: Sequence[ServerMethod],
        deploys: Sequence[ServerMethod],
        counts: Sequence[Sequence[int]],
    ) -> None:
        model = build(MODEL, SHAPE, CLASSES, 0)
        run_spec = RunSpec(
            data=DataSettings(),
            training=TRAINING,
            model=MODEL,
            variants=tuple(variants),
            seed=0,
            device="cpu",
            folder=Path(),
            code="",
        )
        self.variants = variants
        self.samples = [samples_of(held, number) for number, held in enumerate(counts)]
        self.rounds = Rounds(
            model,
            run_spec,
            clients=len(counts),
            combine=combine,
            monitors=monitors,
            deploys=deploys,
            examples={number: len(samples) for number, samples in enumerate(self.samples)},
            holdout=samples_of((2,) * CLASSES, len(counts)),
        )
        self.initial = copy(model.state_dict())
        self.memories: list[Mapping[str, State]] = [{} for _ in counts]

    def run(self) -> str:
        """Run it and return a hash of everything that it made."""
        rounds = self.rounds
        for variant in in_order_of_asking(self.variants):
            upload = variant.upload
            if upload.question:
                answers = self.answers(variant, upload.question)
                kept = stacked(answers) if upload.by_client else integer_sum(answers)
                rounds.states[variant.name] = kept
        for number in (1, 2):
            self.run_round(number)
        for part in rounds.deploys:
            if part.final_question:
                self.deploy_finally(part)
        states = [rounds.states[name] for name in sorted(rounds.states)]
        return digest([*rounds.deployed.values(), *states])

    def run_round(self, number: int) -> None:
        """Train both clients, and let the server make its models of their updates."""
        rounds = self.rounds
        asked = rounds.begin_round(number)
        exchange = Exchange(asked, rounds.largest)
        for client in asked:
            exchange.answers[client] = self.trained(client, number)
        updates = rounds.checked(exchange)
        keep(not exchange.failures, next(iter(exchange.failures.values()), ""))

        before = prints(updates, rounds.shared, rounds.states)
        result = rounds.result(updates)
        after = prints(updates, rounds.shared, rounds.states)
        keep(after == before, "changes what the server gives it")
        self.check_finite(result)
        keep(expected_of(result.shared) == expected_of(rounds.shared), "makes another model")
        rounds.finish_round(exchange)

    def deploy_finally(self, part: ServerMethod) -> None:
        """Ask both clients the part's final question, and let it deploy what it makes of the answers."""
        rounds = self.rounds
        question = part.final_question
        variants = {variant.name: variant for variant in self.variants}
        keep(question in variants, f"{part.name} asks {question}, which is no variant of it")
        answers = self.answers(variants[question], question)
        result = RoundResult(rounds.shared)
        rounds.deploy(result, [part], [], answers)
        self.check_finite(result)
        rounds.deployed |= result.deployed

    @staticmethod
    def check_finite(result: RoundResult) -> None:
        """Raise ContractViolation for a number that is not finite."""
        unfit = result.not_finite()
        keep(not unfit, f"makes a {unfit} that is not finite")

    def client(self, number: int, round: int) -> Client:
        """Return a client at the start of a round."""
        model = build(MODEL, SHAPE, CLASSES, 0)
        memory = self.memories[number]
        model.load_state_dict({**self.initial, **self.rounds.shared, **memory.get("private", {})})
        broadcast = {}
        if round:  # a question comes without what is sent with rounds
            broadcast = {name: copy(state) for name, state in self.rounds.broadcast().items()}
        return Client(
            id=number,
            model=model,
            samples=self.samples[number],
            num_classes=CLASSES,
            round=round,
            start=copy(self.rounds.shared),
            broadcast=broadcast,
            memory=memory,
            seed=seed_of(0, round, number),
        )

    def trained(self, number: int, round: int) -> ClientReply:
        """Return a client's answer to a round."""
        client = self.client(number, round)
        before = prints(client.start, client.broadcast, client.memory, client.samples)
        report = train_round(client, self.variants, TRAINING)
        after = prints(client.start, client.broadcast, client.memory, client.samples)
        keep(before == after, "changes what the client gives it")
        self.memories[number] = report.memory
        return ClientReply(
            states={
                "model": report.shared,
                **{f"upload/{name}": state for name, state in report.uploads.items()},
            },
            metrics={
                "num-examples": report.examples,
                "loss": report.loss,
                "steps": report.trained.steps,
                "coefficient-sum": report.trained.coefficient_sum,
                "seconds": 0.0,
                **report.numbers,
            },
            digests={"memory": MEMORY} if report.memory else {},
        )

    def answers(self, variant: Variant, question: str) -> dict[int, State]:
        """Return all clients' answers to a variant's question."""
        rule = f"{variant.name} asks {question}, which is a question of the server's own"
        keep(question != QUESTION, rule)
        answers: dict[int, State] = {}
        needed = variant.upload.question_needs
        broadcast = {needed: self.rounds.states[needed]} if needed else {}
        for number, samples in enumerate(self.samples):
            client = replace(self.client(number, 0), broadcast=broadcast)
            answer = variant.answer(client, question)
            keep(bool(answer), f"{variant.name} has no answer to its question {question}")
            try:
                check_upload(variant.upload, answer, self.rounds.server, len(samples))
            except RejectedUpdate as reason:
                rule = f"{variant.name} refuses its own answer: {reason}"
                raise ContractViolation(rule) from None
            answers[number] = answer
        return answers


def samples_of(counts: Sequence[int], seed: int) -> Samples:
    """Return random images with so many of each class."""
    counts_C = torch.tensor(counts)
    labels_N = torch.arange(CLASSES).repeat_interleave(counts_C)
    draws = torch.Generator().manual_seed(seed)
    inputs_N = torch.randn(len(labels_N), *SHAPE, generator=draws)
    # Mean 0 and deviation 1: the inputs are standardized as drawn.
    return Samples(inputs_N, labels_N, mean=torch.zeros(1), std=torch.ones(1))


def prints(*values: Any) -> str:
    """Return a hash of all tensors in nested mappings, lists and dataclasses."""
    return digest([{str(number): tensor for number, tensor in enumerate(tensors(values))}])


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of nested mappings, lists and dataclasses."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors(item)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from tensors(getattr(value, field.name))
