"""Rounds: choose clients, ask, check, combine, deploy, and remember what to record."""

import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from client_app.assignment import Assignment
from client_app.client import Variant
from client_app.messages import size
from client_app.models import Classifier
from client_app.state import State, copy
from client_app.training import private_names, total_pull
from data import Samples
from strategies.checks import Refused, checked_update, expected_of
from strategies.exchange import TRAIN, Exchange, ExchangeSettings, Grid, Request, converse
from strategies.fedavg import FedAvg
from strategies.round import Round, sorted_workers
from strategies.server import Deployment, Numbers, Server, ServerMethod, Update
from strategies.server_optimizer import ServerOptimizer

AVERAGE = "average"
"""Name of the combined model among the deployed ones."""


class Rounds:
    """The rounds of a method made of its parts.

    Client ids are sampled, replies are checked, sorted by client and combined in that order: a run repeats to the bit
    whatever the number of nodes and the order of their replies. `round`, `shared`, `states` and `memory_rounds` are all
    there is to save, and setting them resumes a run.
    """

    def __init__(
        self,
        model: Classifier,
        assignment: Assignment,
        *,
        clients: int,
        participation: float = 1.0,
        combine: ServerMethod | None = None,
        monitors: Sequence[ServerMethod] = (),
        deploys: Sequence[ServerMethod] = (),
        optimizer: ServerOptimizer | None = None,
        exchange: ExchangeSettings | None = None,
        examples: int = 0,
        holdout: Samples | None = None,
        device: str = "cpu",
    ) -> None:
        self.clients, self.participation = clients, participation
        self.combine, self.optimizer = combine or FedAvg(), optimizer or ServerOptimizer()
        self.monitors, self.deploys = monitors, deploys
        self.exchange_settings = exchange or ExchangeSettings()
        self.assignment = assignment.to_json()
        self.variants: Sequence[Variant] = assignment.variants
        private = private_names(model, self.variants)
        # a copy: `model` is a scratchpad that evaluation loads other weights into
        self.shared: State = copy({name: t for name, t in model.state_dict().items() if name not in private})
        self.expected = expected_of(self.shared)
        self.server = Server(
            model=model,
            start=self.shared,
            clients=clients,
            round=0,
            seed=assignment.seed,
            training=assignment.training,
            device=device,
            parameters=frozenset(name for name, _ in model.named_parameters()) - private,
            examples=examples,
            holdout=holdout,
            pull=total_pull(self.variants),
        )
        self.round = 0
        self.memory_rounds: dict[int, int] = {}
        self.states: dict[str, State] = {part.name: part.initial_state(self.server) for part in self.parts}
        self.deployed: dict[str, State] = {AVERAGE: self.shared}
        self.last = Round(0, ())
        self._began = 0.0

    @property
    def parts(self) -> list[ServerMethod]:
        """The server methods at work."""
        return [self.combine, *self.monitors, *self.deploys]

    def ask(self, grid: Grid, clients: Sequence[int], request: Request) -> Exchange:
        """Ask clients; the first time as many nodes as the settings demand must be there, later those that are left."""
        exchange = converse(grid, clients, request, self.exchange_settings)
        self.exchange_settings = replace(self.exchange_settings, nodes=1)
        return exchange

    def request(self, kind: str, task: Mapping[str, int | str], states: Mapping[str, State]) -> Request:
        """Return what clients are asked, with what they need to know of the run."""
        return Request(kind, task, states, self.assignment, self.memory_rounds)

    def training_request(self) -> Request:
        """Return what the round's clients are asked."""
        broadcast = {f"broadcast/{name}": state for name, state in self.broadcast().items()}
        return self.request(TRAIN, {"round": self.server.round}, {"model": self.shared, **broadcast})

    def broadcast(self) -> dict[str, State]:
        """Return what goes down beside the model, by variant."""
        asked = {variant.name: self.states[variant.name] for variant in self.variants if variant.name in self.states}
        for part in self.parts:
            asked |= part.broadcast(self.server, self.states[part.name])
        return asked

    def sample(self, number: int) -> list[int]:
        """Return the clients of a round, from a generator of its own."""
        count = max(1, math.floor(self.participation * self.clients + 1e-9))
        return sorted(random.Random(f"{self.server.seed}/{number}").sample(range(self.clients), count))

    def begin_round(self, number: int, shared: State) -> list[int]:
        """Take the round's starting point and return its clients."""
        self.shared = shared
        self.server = replace(self.server, start=shared, round=number)
        self._began = time.perf_counter()
        return self.sample(number)

    def finish_round(self, exchange: Exchange) -> None:
        """Check the answers, combine the good ones, deploy, and remember what to record.

        Raises TooFewReplies when too few are good.
        """
        answered, number = time.perf_counter(), self.server.round
        updates = self.checked(exchange)
        exchange.check_enough(self.exchange_settings.min_replies, f"round {number}")
        down = size(self.shared) + sum(size(state) for state in self.broadcast().values())

        metrics: dict[str, float | Sequence[float]] = {}
        for part in self.monitors:
            self.states[part.name], numbers = part.monitor(self.server, self.states[part.name], updates)
            metrics |= numbers
        combined, self.states[self.combine.name] = self.combine.combine(
            self.server, self.states[self.combine.name], updates
        )
        self.shared, self.states["server-optimizer"] = self.optimizer.step(
            self.server, self.states.get("server-optimizer", {}), combined
        )
        self.deployed = {AVERAGE: self.shared}
        for part in (part for part in self.deploys if not part.final_question):
            metrics |= self.deploy(part, part.deploy(self.server, self.states[part.name], self.shared, updates))

        self.round = number
        self.memory_rounds |= {update.client: number for update in updates if update.metrics["remembers"]}
        total = sum(update.examples for update in updates)
        self.last = Round(
            number=number,
            clients=[update.client for update in updates],
            failures=exchange.failures,
            loss=math.fsum(update.metrics["loss"] * update.examples / total for update in updates),
            bytes_down=down * len(exchange.asked),
            bytes_up=sum(size(u.shared) + sum(size(state) for state in u.uploads.values()) for u in updates),
            seconds={
                "clients": answered - self._began,
                "client-work": math.fsum(update.metrics["seconds"] for update in updates),
                "server": time.perf_counter() - answered,
            },
            workers=sorted_workers(exchange),
            metrics=metrics,
        )

    def deploy(self, part: ServerMethod, deployment: Deployment) -> Numbers:
        """Take what a part deploys, and its state; return its numbers for the record."""
        self.states[part.name] = deployment.state
        self.deployed |= deployment.models
        return deployment.metrics

    def checked(self, exchange: Exchange) -> list[Update]:
        """Return the good updates sorted by client; the others are refused in `exchange`, with their reasons."""
        updates = []
        for client in sorted(exchange.answers):
            try:
                answer = exchange.answers[client]
                updates.append(checked_update(client, answer, self.server, self.expected, self.parts))
            except Refused as reason:
                exchange.refuse(client, str(reason))
        return updates
