"""Playing clients: what the server asks of them in, their answers out; no maths, and no transport.

One client that fails answers with an error of its own and does not cost the others their work.
"""

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from torch import Tensor

from client_app.client import Client, Report
from client_app.memory import forget_all_but, recall, remember
from client_app.metrics import measure_all
from client_app.policy import QUESTION, READY, count_question
from client_app.process import repeat_to_the_bit
from client_app.runtime import Player, player_of
from client_app.site import installed, reason_of
from client_app.state import State
from client_app.training import train_round

Record = TypeVar("Record")
log = logging.getLogger("fedskew")


@dataclass(frozen=True)
class Known:
    """What the server knows of a client: the round of its last update that counts, and the digests that it told."""

    round: int
    memory: str
    data: str

    def recall(self, folder: Path) -> dict[str, dict[str, Tensor]]:
        """Return the client's memory. Raises MemoryLost or Damaged."""
        return recall(folder, self.round, known=self.memory)


@dataclass(frozen=True)
class Asked:
    """What clients are asked, whichever of them this process plays."""

    kind: str
    """train, evaluate or query."""
    task: Mapping[str, object]
    """The round, or the question."""
    states: Mapping[str, State]
    """model, broadcast/NAME or deployed/NAME; not to be changed in place."""
    assignment: str
    node_config: Mapping[str, object] = field(default_factory=dict)
    """What the configuration of the node says; empty in a simulation."""

    def named(self, kind: str) -> dict[str, State]:
        """Return the states named `kind/NAME`, by NAME."""
        return named(self.states, kind)


@dataclass(frozen=True)
class Answer:
    """One client's answer."""

    states: Mapping[str, State] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    worker: Mapping[str, int | str] = field(default_factory=dict)
    """The process that played the client."""
    digests: Mapping[str, str] = field(default_factory=dict)
    """sha256 of the client's memory and of its data, as far as it has any."""

    def named(self, kind: str) -> dict[str, State]:
        """Return the states named `kind/NAME`, by NAME."""
        return named(self.states, kind)


Play = Callable[[Player, int, Known], Answer]
"""(player, client, what the server knows of it) -> the client's answer."""
Outcome = tuple[int, Answer | str]
"""A client's number, and its answer or why there is none."""


def named(records: Mapping[str, Record], kind: str) -> dict[str, Record]:
    """Return the records named `kind/NAME`, by NAME."""
    return {
        name.removeprefix(f"{kind}/"): r
        for name, r in records.items()
        if name.startswith(f"{kind}/")
    }


def answers(asked: Asked, clients: Mapping[int, Known]) -> Iterator[Outcome]:
    """Play clients, one after the other, and yield what each of them answers."""
    play, sites = (
        {"train": train, "evaluate": evaluate, "query": query}[asked.kind](asked, clients),
        installed(),
    )
    for number, known in clients.items():
        repeat_to_the_bit(sites[number].threads if number in sites else 1)
        try:
            player = player_of(asked.assignment, number)
            player.check_data(known.data)
            outcome: Answer | str = play(player, number, known)
        except Exception as error:
            outcome = reason_of(error, number)
        yield number, outcome
    repeat_to_the_bit()  # in a rehearsal the server computes in this process as well


def train(asked: Asked, clients: Mapping[int, Known]) -> Play:
    """Return what trains a client for one round; those that can train together have done so already."""
    shared, broadcast, round = (
        asked.states["model"],
        asked.named("broadcast"),
        int(str(asked.task["round"])),
    )

    def begin(player: Player, number: int, known: Known) -> Client:
        folder = player.memory_folder(number)
        memory = known.recall(folder)
        forget_all_but(folder, known.round)
        return player.client(
            number, round, shared, broadcast, memory, asked.node_config, load=False
        )

    reports = trained_together(asked, clients, begin)

    def play(player: Player, number: int, known: Known) -> Answer:
        if player.policy is not None:
            player.policy.check_training()
            sent = [shared, *(broadcast[name] for name in sorted(broadcast))]
            count_question(player.policy.site, player.run_folder, round, sent)
        if number in reports:
            report, seconds = reports.pop(number)
            if isinstance(report, Exception):
                raise report
        else:
            client = begin(player, number, known)
            began = time.perf_counter()
            player.load(client)
            report = train_round(client, player.assignment.variants, player.assignment.training)
            seconds = time.perf_counter() - began
        if player.policy is not None:
            player.policy.check_update(shared, report)
        kept = remember(player.memory_folder(number), round, report.memory) if report.memory else ""
        digests = {**player.digests, "memory": kept}
        return Answer(
            {
                "model": report.shared,
                **{f"upload/{name}": state for name, state in report.uploads.items()},
            },
            {
                "num-examples": report.examples,
                "loss": report.loss,
                "steps": report.trained.steps,
                "coefficient-sum": report.trained.coefficient_sum,
                "remembers": int(bool(report.memory)),
                "seconds": seconds,
            },
            {} if player.policy is not None else worker(player),
            {kind: code for kind, code in digests.items() if code},
        )

    return play


def trained_together(
    asked: Asked, clients: Mapping[int, Known], begin: Callable[[Player, int, Known], Client]
) -> dict[int, tuple[Report | Exception, float]]:
    """Return what training made of the clients, and its seconds; nothing where they train one by one."""
    members, reports = list[Client](), dict[int, tuple[Report | Exception, float]]()
    try:
        if installed() or len(clients) < 2:
            return {}
        player = player_of(asked.assignment, next(iter(clients)))
        if player.assignment.training.clients_together == 1 or player.together.obstacle:
            return {}
        repeat_to_the_bit()
        for number, known in clients.items():
            try:
                members.append(begin(player, number, known))
            except Exception as error:
                reports[number] = error, 0.0
        reports |= {
            client.id: (report, seconds)
            for client, report, seconds in player.together.train(members)
        }
    except Exception as error:  # whatever is wrong is each client's own when it trains alone
        log.warning("clients train one by one: %s", error)
    return reports


def evaluate(asked: Asked, clients: Mapping[int, Known]) -> Play:
    """Return what measures every deployed model, with each client's private tensors, on that client's test set."""
    deployed = asked.named("deployed")

    def play(player: Player, number: int, known: Known) -> Answer:
        player.check_number(number)
        memory = known.recall(player.memory_folder(number))
        whole = {name: player.whole(shared, memory) for name, shared in deployed.items()}
        scores = {
            f"{kind}/{name}": measured
            for kind, samples in player.test_sets(number).items()
            for name, measured in measure_all(player.model, whole, samples).items()
        }
        numbers: dict[str, float] = {}
        if player.policy is not None:  # the server of sites knows no counts
            player.policy.check_scores()
            counts_C = player.policy.counts_C
            numbers = {
                f"local-accuracy/{name}": scores[f"test/{name}"].local_accuracy(counts_C)
                for name in deployed
            }
        return Answer({name: measured.state() for name, measured in scores.items()}, numbers)

    return play


def query(asked: Asked, clients: Mapping[int, Known]) -> Play:
    """Return what answers a question about a client."""
    shared, question = asked.states["model"], str(asked.task["question"])

    def play(player: Player, number: int, known: Known) -> Answer:
        if question == QUESTION:
            if player.policy is not None:
                player.policy.check_ready()
            return Answer({f"upload/{QUESTION}": READY}, digests=player.digests)
        memory = known.recall(player.memory_folder(number))
        client = player.client(number, 0, shared, {}, memory, asked.node_config)
        uploads = player.answer(client, question)
        if player.policy is not None:
            player.policy.check_uploads(uploads)
        return Answer({f"upload/{name}": state for name, state in uploads.items()})

    return play


def worker(player: Player) -> dict[str, int | str]:
    """Return which process played a client, on what."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "all")
    return {"process": os.getpid(), "device": player.device, "visible-gpus": visible}
