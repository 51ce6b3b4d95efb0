"""A tiny federation, run honestly up to the replies of every exchange, from which a server can go on."""

import copy
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from flwr.app import Error, Message, RecordDict
from in_process import ManyNodes, faithful, small

from client_app.client import Variant
from client_app.state import State, digest
from data import federate
from server_app.app import Run
from server_app.evaluation import of_clients
from server_app.record import to_json
from server_app.run_folder import RunFolder
from strategies.core.questions import ask_class_prior, ask_finally, evaluate_on_clients
from strategies.core.rounds import Rounds

CLIENTS, NODES = 3, {3: (0, 2), 10: (1,)}
"""The federation, and which node runs which client."""
Records = dict[str, Any]
"""A node's records by name, as a reply holds them."""
Made = tuple[Mapping[int, str], Sequence[State], Any]
"""Why clients were left out, and the tensors and numbers that the server made."""


def node_of(client: int) -> int:
    """Return the node that runs a client."""
    return next(node for node, clients in NODES.items() if client in clients)


@dataclass
class Stage:
    """A server that has asked, and the honest replies."""

    name: str
    rounds: Rounds
    replies: Mapping[int, Message]
    take: Callable[[Rounds, Any], Made]
    """What the server does with the replies that a grid brings."""
    codes: dict[tuple[int, ...], str] = field(default_factory=dict)
    """What it makes without the clients of the key."""

    def records(self, node: int) -> Records:
        """Return a node's honest records."""
        return dict(self.replies[node].content.items())

    def outcome(self, messages: Iterable[Message]) -> tuple[Mapping[int, str], str]:
        """Return who is left out, and a hash of what the server makes of the messages, all of which is finite."""
        failures, states, numbers = self.take(copied(self.rounds), Replay(messages))
        for state in states:
            for name, tensor in state.items():
                assert torch.isfinite(tensor).all(), f"{name} is not finite"
        return failures, digest(states, json.dumps(to_json(numbers), allow_nan=False))

    def without(self, clients: tuple[int, ...]) -> str:
        """Return the hash of what the server makes when these clients are silent."""
        if clients not in self.codes:
            messages = []
            for node in NODES:
                records = self.records(node)
                for name in [name for name in records if int(name.split("/")[0]) in clients]:
                    del records[name]
                messages.append(message_of(self.replies[node], records))
            failures, code = self.outcome(messages)
            assert sorted(failures) == sorted(clients)
            self.codes[clients] = code
        return self.codes[clients]


class Replay:
    """A grid that brings the same messages once, whatever is asked."""

    def __init__(self, messages: Iterable[Message]) -> None:
        self.messages = list(messages)

    def get_node_ids(self) -> Iterable[int]:
        return list(NODES)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Give the messages the numbers that the replies speak of, and, for every reply beyond, none."""
        self.asked = list(messages)
        numbers = {
            reply.metadata.src_node_id: reply.metadata.reply_to_message_id
            for reply in self.messages
        }
        for message in self.asked:
            node = message.metadata.dst_node_id
            message.metadata.__dict__["_message_id"] = numbers.get(node, str(node))
        return [message.metadata.message_id for message in self.asked]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies, and an error from every node that sends none."""
        brought, self.messages = self.messages, []
        came = {reply.metadata.reply_to_message_id for reply in brought}
        silent = [message for message in self.asked if message.metadata.message_id not in came]
        return [*brought, *(Message(Error(0, ""), reply_to=message) for message in silent)]


class Recorder(ManyNodes):
    """Two nodes, whose latest replies are kept."""

    def get_node_ids(self) -> Iterable[int]:
        return list(NODES)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        self.replies: list[Message] = []
        return super().push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        arrived = list(super().pull_messages(message_ids))
        self.replies += arrived
        return arrived


def copied(rounds: Rounds) -> Rounds:
    """Return rounds that go on by themselves; models and states are shared, as nothing changes them in place."""
    other = copy.copy(rounds)
    other.states, other.deployed = dict(rounds.states), dict(rounds.deployed)
    other.client_states = dict(rounds.client_states)
    return other


def message_of(honest: Message, records: Records) -> Message:
    """Return an honest reply with other records."""
    message = copy.copy(honest)
    message.__dict__["_content"] = RecordDict(records)
    return message


def stages(root: Path, method: str) -> list[Stage]:
    """Play a method honestly and return its stages, as the server waits for the replies of each."""
    settings = small(
        root,
        method=method,
        clients=CLIENTS,
        train_images=150,
        local_epochs=1,
        min_reply_share=0.3,
    )
    federation, result = federate(settings.data, settings.general.seed), list[Stage]()
    with faithful(Recorder(2)) as grid:
        run = Run(grid, settings, federation, RunFolder(settings.folder), lambda line: None)
        rounds = run.strategy

        def stage(name: str, take: Callable[[Rounds, Any], Made]) -> None:
            waiting, grid.replies = copied(rounds), []
            take(rounds, grid)
            if grid.replies:
                replies = {reply.metadata.src_node_id: reply for reply in grid.replies}
                result.append(Stage(f"{method}: {name}", waiting, replies, take))

        def evaluation(rounds: Rounds, grid: Any) -> Made:
            classes = federation.dataset.num_classes
            scores, failures = evaluate_on_clients(
                rounds, grid, classes, run.evaluation.tested, [], False
            )
            counts, groups = run.evaluation.counts_KC, run.evaluation.groups
            numbers = [
                of_clients(by_client, counts, groups)
                for models in scores.values()
                for by_client in models.values()
            ]
            return failures, [], numbers

        asked = [variant for variant in rounds.variants if variant.upload.is_answer]
        for variant in sorted(asked, key=lambda variant: bool(variant.upload.question_needs)):
            stage(f"question of {variant.name}", partial(question, variant))
        rounds.begin_round(1)
        training(rounds, grid)
        rounds.begin_round(2)
        stage("training", training)
        stage("evaluation", evaluation)
        stage("final question", final)
    return result


def question(variant: Variant, rounds: Rounds, grid: Any) -> Made:
    """Ask one variant's question, as the server does before round 1; every client must answer."""
    every, rounds.variants = rounds.variants, [variant]
    try:
        ask_class_prior(rounds, grid)
    finally:
        rounds.variants = every
    return {}, list(rounds.states.values()), []


def training(rounds: Rounds, grid: Any) -> Made:
    number = rounds.server.round
    exchange = rounds.ask(grid, rounds.sample(number), rounds.training_request())
    rounds.finish_round(exchange)
    last = rounds.last
    recorded = [last, rounds.update_statistics()]
    json.dumps(to_json(recorded), allow_nan=False)  # all of it can be recorded
    states = [rounds.shared, *rounds.states.values(), *rounds.deployed.values()]
    numbers = [last.loss, last.metrics, sorted(map(str, rounds.client_states.items()))]
    return exchange.failures, states, numbers


def final(rounds: Rounds, grid: Any) -> Made:
    if not any(map(rounds.asks_finally, rounds.deploys)):
        return {}, [], []
    ask_finally(rounds, grid)
    return rounds.last.failures, [*rounds.states.values(), *rounds.deployed.values()], []
