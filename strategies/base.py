"""The one adapter between a method's equations and flwr: choose clients, ask, check, combine, deploy."""

import logging
import math
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from flwr.serverapp.strategy import Strategy as FlowerStrategy

from client_app.assignment import Assignment
from client_app.client import Variant
from client_app.messages import pack, size, unpack
from client_app.models import Classifier
from client_app.state import State, copy
from client_app.training import private_names, total_pull
from data import Samples
from strategies.checks import Refused, check_answer, checked_update, expected_of
from strategies.exchange import Compose, Exchange, ExchangeSettings, converse, messages
from strategies.fedavg import FedAvg
from strategies.integer_sum import IntegerSum, PlainSum
from strategies.round import Round, sorted_workers
from strategies.scoring import ClientScores, scores_of
from strategies.server import Deployment, Numbers, Server, ServerMethod, Update
from strategies.server_optimizer import ServerOptimizer

log = logging.getLogger("fedskew")

AVERAGE = "average"
"""Name of the combined model among the deployed ones."""


class Strategy(FlowerStrategy):
    """A flwr strategy made of a method's parts; any ServerApp can `start` it.

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
        integer_sum: IntegerSum | None = None,
        examples: int = 0,
        holdout: Samples | None = None,
        device: str = "cpu",
    ) -> None:
        self.clients, self.participation = clients, participation
        self.combine, self.optimizer = combine or FedAvg(), optimizer or ServerOptimizer()
        self.monitors, self.deploys = monitors, deploys
        self.exchange_settings, self.integer_sum = exchange or ExchangeSettings(), integer_sum or PlainSum()
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
        self._exchange = Exchange(())
        self._began = 0.0

    @property
    def parts(self) -> list[ServerMethod]:
        """The server methods at work."""
        return [self.combine, *self.monitors, *self.deploys]

    def ask(self, grid: Grid, clients: Sequence[int], compose: Compose, kind: str) -> Exchange:
        """Ask clients; the first time as many nodes as the settings demand must be there, later those that are left."""
        exchange = converse(grid, clients, compose, kind, self.exchange_settings)
        self.exchange_settings = replace(self.exchange_settings, nodes=1)
        return exchange

    # ---- questions outside training ----------------------------------------------------------------------------------

    def question(self, grid: Grid, question: str, variant: str, clients: Sequence[int] | None = None) -> Exchange:
        """Ask every client, or some, about the shared weights; a reply without `variant`'s answer is refused."""
        task = ConfigRecord({"question": question})
        asked = range(self.clients) if clients is None else clients
        exchange = self.ask(grid, asked, self.compose(task), MessageType.QUERY)
        for client, answer in list(exchange.answers.items()):
            if variant not in answer.named("upload"):
                exchange.refuse(client, f"the reply holds no answer for {variant}")
        return exchange

    def ask_class_prior(self, grid: Grid) -> bool:
        """Ask all clients, once in a run's life, what a variant must know of all of them; return whether it asked.

        The sum of their answers is sent with every round, as that variant's broadcast. Every client must answer.
        """
        asking = [variant for variant in self.variants if variant.question and variant.name not in self.states]
        for variant in asking:
            assert variant.question is not None
            exchange = self.question(grid, variant.question, variant.name)
            exchange.check_enough(1.0, f"question {variant.question} for {variant.name}")
            self.states[variant.name] = self.integer_sum.total(exchange.uploads(variant.name))
        return bool(asking)

    def ask_finally(self, grid: Grid) -> None:
        """After the last round, ask all clients what methods must know of the final model, and deploy what they make.

        It belongs to the last round: its numbers are recorded there, and a run that is killed before that round's
        checkpoint repeats both.
        """
        for part in (part for part in self.deploys if part.final_question):
            exchange = self.question(grid, part.final_question, part.final_question)
            for client, answer in exchange.uploads(part.final_question).items():
                try:
                    check_answer(answer, self.server, part)
                except Refused as refusal:
                    exchange.refuse(client, str(refusal))
            for client, reason in sorted(exchange.failures.items()):
                log.warning("question %s: client %d left out: %s", part.final_question, client, reason)
            exchange.check_enough(self.exchange_settings.min_replies, f"question {part.final_question} for {part.name}")
            answers, began = exchange.uploads(part.final_question), time.perf_counter()
            state, last = self.states[part.name], self.last
            metrics = self.deploy(part, part.deploy_finally(self.server, state, self.shared, answers))
            reasons = {client: f"{part.final_question}: {reason}" for client, reason in exchange.failures.items()}
            self.last = replace(
                last,
                failures=dict(sorted({**reasons, **last.failures}.items())),
                bytes_down=last.bytes_down + size(self.shared) * self.clients,
                bytes_up=last.bytes_up + sum(map(size, answers.values())),
                seconds={**last.seconds, "server": last.seconds["server"] + time.perf_counter() - began},
                metrics={**last.metrics, **metrics},
            )

    def broadcast(self) -> dict[str, State]:
        """Return what goes down beside the model, by variant."""
        asked = {variant.name: self.states[variant.name] for variant in self.variants if variant.name in self.states}
        for part in self.parts:
            asked |= part.broadcast(self.server, self.states[part.name])
        return asked

    # ---- a round -----------------------------------------------------------------------------------------------------

    def sample(self, server_round: int) -> list[int]:
        """Return the clients of a round, from a generator of its own."""
        count = max(1, math.floor(self.participation * self.clients + 1e-9))
        return sorted(random.Random(f"{self.server.seed}/{server_round}").sample(range(self.clients), count))

    def compose(self, task: ConfigRecord, models: Mapping[str, State] | None = None) -> Compose:
        """Return what makes the content of a message to a node that plays some clients."""
        records = {name: pack(state) for name, state in (models or {"model": self.shared}).items()}

        def content(clients: Sequence[int]) -> RecordDict:
            memory = [self.memory_rounds.get(client, 0) for client in clients]
            addressed = {**task, "assignment": self.assignment, "clients": list(clients), "memory": memory}
            return RecordDict({**records, "task": ConfigRecord(addressed)})

        return content

    def compose_training(self, server_round: int) -> Compose:
        """Return what makes a training message."""
        broadcast = {f"broadcast/{name}": state for name, state in self.broadcast().items()}
        return self.compose(ConfigRecord({"round": server_round}), {"model": self.shared, **broadcast})

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Return the round's messages, one a node."""
        self.begin_round(server_round, arrays)
        compose = self.compose_training(server_round)
        return messages(grid, self._exchange.asked, compose, MessageType.TRAIN, self.exchange_settings)

    def begin_round(self, server_round: int, arrays: ArrayRecord) -> None:
        """Take the round's starting point and choose its clients."""
        self.shared = unpack(arrays)
        self.server = replace(self.server, start=self.shared, round=server_round)
        self._exchange = Exchange(self.sample(server_round))
        self._began = time.perf_counter()

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[ArrayRecord, MetricRecord]:
        """Return the new shared weights. Raises TooFewReplies when too few of the replies are good."""
        self._exchange.receive(replies)
        self._exchange.close()
        return self.finish_round(server_round, self._exchange)

    def finish_round(self, server_round: int, exchange: Exchange) -> tuple[ArrayRecord, MetricRecord]:
        """Check the answers, combine the good ones, deploy, and remember what to record."""
        answered = time.perf_counter()
        updates = self.checked(exchange)
        for client, reason in sorted(exchange.failures.items()):
            log.warning("round %d: client %d left out: %s", server_round, client, reason)
        exchange.check_enough(self.exchange_settings.min_replies, f"round {server_round}")
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

        self.round = server_round
        self.memory_rounds |= {update.client: server_round for update in updates if update.metrics["remembers"]}
        total = sum(update.examples for update in updates)
        self.last = Round(
            number=server_round,
            clients=[update.client for update in updates],
            failures=dict(sorted(exchange.failures.items())),
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
        return pack(self.shared), MetricRecord({"loss": self.last.loss})

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

    # ---- flwr's loop -------------------------------------------------------------------------------------------------

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run the rounds after `self.round` up to `num_rounds`, with true round numbers.

        Unlike flwr's own loop it can begin in the middle, and asks again for clients whose worker died.
        `evaluate_fn` is called after every round.
        """
        self.exchange_settings = replace(self.exchange_settings, timeout=timeout)
        self.ask_class_prior(grid)
        arrays, result = initial_arrays, Result(arrays=initial_arrays)
        for server_round in range(self.round + 1, num_rounds + 1):
            self.begin_round(server_round, arrays)
            compose = self.compose_training(server_round)
            exchange = self.ask(grid, self._exchange.asked, compose, MessageType.TRAIN)
            arrays, metrics = self.finish_round(server_round, exchange)
            if server_round == num_rounds:
                self.ask_finally(grid)
            result.arrays, result.train_metrics_clientapp[server_round] = arrays, metrics
            if evaluate_fn and (measured := evaluate_fn(server_round, arrays)) is not None:
                result.evaluate_metrics_serverapp[server_round] = measured
        return result

    def evaluate_on_clients(
        self, grid: Grid, classes: int, kinds: Sequence[str] = ("test",)
    ) -> tuple[ClientScores, dict[int, str]]:
        """Return scores by kind of test set, deployed model and client, and why clients are missing from them.

        A client measures with its own private tensors, on its own test sets. Raises TooFewReplies when too few answer.
        """
        models = {f"deployed/{name}": state for name, state in self.deployed.items()}
        compose = self.compose(ConfigRecord({"round": self.round}), models)
        exchange = self.ask(grid, range(self.clients), compose, MessageType.EVALUATE)
        scores = scores_of(exchange, self.deployed, kinds, classes)
        for client, reason in sorted(exchange.failures.items()):
            log.warning("round %d: client %d not evaluated: %s", self.round, client, reason)
        exchange.check_enough(self.exchange_settings.min_replies, f"evaluation after round {self.round}")
        return scores, dict(sorted(exchange.failures.items()))

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Return no messages: `evaluate_on_clients` measures what is deployed, which may be more than one model."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> None:
        """Return nothing, as nothing was asked."""

    def summary(self) -> None:
        """Log what the strategy is made of."""
        parts = ", ".join([*(part.name for part in self.parts), *(variant.name for variant in self.variants)])
        log.info("%d clients, participation %g: %s", self.clients, self.participation, parts)
