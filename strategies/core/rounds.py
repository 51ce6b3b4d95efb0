"""Rounds: sample clients, collect replies, validate, combine, deploy, and record."""

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from client_app.client import Variant
from client_app.handlers import ExpectedState
from client_app.models import Classifier
from client_app.run_spec import RunSpec
from client_app.serialization import Expected
from client_app.site_questions import STANDARDIZATION, ColumnSums, asks_for_column_sums
from client_app.state import State, copy, size
from client_app.training import private_names, total_proximal_mu
from data import Samples
from data.agreement import Member
from strategies.core.exchange import (
    TRAIN,
    Exchange,
    Grid,
    Request,
    TooFewReplies,
    client_name,
    collect_replies,
)
from strategies.core.masked_sums import MaskedSums
from strategies.core.node_assignment import ExchangeSettings, NodeAssigner
from strategies.core.server import AVERAGE, Diverged, Server, ServerMethod, Update
from strategies.core.server_optimizer import ServerOptimizer
from strategies.core.update_statistics import (
    Round,
    Seconds,
    UpdateStatistics,
    method_numbers,
    update_statistics,
)
from strategies.core.validation import (
    RejectedUpdate,
    UpdateOutOfRange,
    checked_update,
    expected_of,
    not_finite,
)

HEADER_BYTES = 2**16
"""Bytes allowed for the names and shapes in a record, in addition to its tensors."""


@dataclass
class RoundResult:
    """What a round makes, which the run adopts only if all of it is finite."""

    shared: State
    states: dict[str, State] = field(default_factory=dict)
    """Of the methods, by part."""
    deployed: dict[str, State] = field(default_factory=dict)
    """By name, without the average."""
    metrics: dict[str, float | Sequence[float]] = field(default_factory=dict)
    """To record."""

    def deploy(
        self,
        server: Server,
        parts: Sequence[ServerMethod],
        states: Mapping[str, State],
        updates: Sequence[Update],
    ) -> None:
        """Add what the parts deploy beside the shared weights; `states` are theirs before, by part."""
        for part in parts:
            made = part.deploy(server, states[part.name], self.shared, updates)
            self.states[part.name] = made.state
            self.deployed |= made.models
            self.metrics |= made.metrics

    def not_finite(self) -> str:
        """Return which of it has a NaN or an infinity; "" if all is finite."""
        parts = {f"model {AVERAGE}": self.shared}
        parts |= {f"model {name}": state for name, state in self.deployed.items()}
        parts |= {f"state {name}": state for name, state in self.states.items()}
        for part, state in parts.items():
            tensor = not_finite(state)
            if tensor:
                return f"{part}: {tensor}"
        return ""


class Rounds:
    """The rounds of one run.

    Each round samples clients by number, checks their replies, and combines them in the order of the clients. So a
    repeated run is bit-identical, whatever the number of nodes and the order in which they reply.

    The attributes `round`, `shared`, `states`, `deployed` and `client_states` are the run's state: a checkpoint
    stores them, and setting them resumes the run.
    """

    def __init__(
        self,
        model: Classifier,
        run_spec: RunSpec,
        *,
        clients: int,
        participation: float = 1.0,
        combine: ServerMethod,
        deploys: Sequence[ServerMethod] = (),
        optimizer: ServerOptimizer | None = None,
        exchange: ExchangeSettings | None = None,
        examples: Mapping[int, int] | None = None,
        holdout: Samples | None = None,
        device: str = "cpu",
        assigner: NodeAssigner | None = None,
        sites: Sequence[Member] = (),
        masked_sums: MaskedSums | None = None,
        is_evaluated: Callable[[int], bool] = lambda round: True,
    ) -> None:
        self.clients = clients
        self.participation = participation
        self.is_evaluated = is_evaluated
        self.combine = combine
        self.optimizer = optimizer or ServerOptimizer()
        self.deploys = deploys
        self.exchange_settings = exchange or ExchangeSettings()
        self.assigner = assigner or NodeAssigner()
        self.run_spec = run_spec.to_json()
        self.masked_sums = masked_sums
        self.variants: Sequence[Variant] = run_spec.variants
        self.column_sums: ColumnSums | None = None
        """Asks for the sums of a table's columns between sites; None where mean and std are known without."""
        if asks_for_column_sums(run_spec):
            self.column_sums = ColumnSums(run_spec.data.shape[0])
        private = private_names(model, self.variants)
        state = model.state_dict()
        # A copy: `model` is a scratchpad that evaluation loads other weights into.
        self.shared: State = copy({name: state[name] for name in state if name not in private})
        self.expected = expected_of(self.shared)
        self.largest = largest_record(model)
        self.server = Server(
            model=model,
            start=self.shared,
            clients=clients,
            round=0,
            seed=run_spec.seed,
            training=run_spec.training,
            device=device,
            parameters=frozenset(model.trained) - private,
            examples_by_client=examples or {},
            holdout=holdout,
            proximal_mu=total_proximal_mu(self.variants),
            variants={variant.name: variant for variant in self.variants},
            sites=sites,
        )
        self.round = 0
        self.client_states: dict[int, ExpectedState] = {}
        self.states: dict[str, State] = {
            part.name: part.initial_state(self.server) for part in self.parts
        }
        self.deployed: dict[str, State] = {AVERAGE: self.shared}
        self.last = Round(0)
        self.update_statistics: Callable[[], Sequence[UpdateStatistics]] = tuple
        """Computes how each update of the last round moved the model. It is called while the next round trains, and the
        updates stay in memory until it is replaced."""
        self._began = 0.0

    @property
    def parts(self) -> list[ServerMethod]:
        """The server methods of this run."""
        return [self.combine, *self.deploys]

    def ask(self, grid: Grid, clients: Sequence[int], request: Request) -> Exchange:
        """Send a request to clients and return their replies.

        The first request waits until `exchange_settings.nodes` nodes are connected; later ones need a single node. An
        answer is refused if the client's data changed since its first answer in this run.
        """
        exchange = collect_replies(grid, clients, request, self.exchange_settings, self.assigner)
        self.exchange_settings = replace(self.exchange_settings, nodes=1)
        for client, answer in list(exchange.answers.items()):
            digest = answer.digests.get("data", "")
            known = self.client_states.get(client, ExpectedState())
            if digest and not known.data:
                self.client_states[client] = replace(known, data=digest)
            elif digest and digest != known.data:
                exchange.refuse(client, "its data are not those of its first answer")
        return exchange

    def request(
        self,
        kind: str,
        task: Mapping[str, int | str],
        states: Mapping[str, State],
    ) -> Request:
        """Return a request to clients, with the run's settings and the memory that each client should load.

        Between sites it also has the mean and std of a table's columns, once they are known.
        """
        if STANDARDIZATION in self.states:
            states = {**states, STANDARDIZATION: self.states[STANDARDIZATION]}
        return Request(
            kind=kind,
            task=task,
            states=states,
            run_spec=self.run_spec,
            client_states=self.client_states,
            largest=self.largest,
            examples=self.server.examples_by_client,
        )

    def training_request(self) -> Request:
        """Return the request to train: the shared weights, broadcasts and the round's number."""
        states = {"model": self.shared}
        for name, state in self.broadcast().items():
            states[f"broadcast/{name}"] = state
        return self.request(TRAIN, {"round": self.server.round}, states)

    def broadcast(self) -> dict[str, State]:
        """Return the states sent to clients in addition to the model, by variant."""
        sent = {}
        for variant in self.variants:
            if variant.name in self.states and variant.upload.returned:
                sent[variant.name] = self.states[variant.name]
        for part in self.parts:
            sent |= part.broadcast(self.server, self.states[part.name])
        return sent

    def sample(self, number: int) -> list[int]:
        """Return the sorted clients of round `number`.

        Each round has its own generator, so that a resumed run draws the same clients.
        """
        # 1e-9 makes up for rounding: 0.29 * 100 is a little less than 29 in floating point.
        count = max(1, math.floor(self.participation * self.clients + 1e-9))
        draws = random.Random(f"{self.server.seed}/{number}")
        return sorted(draws.sample(range(self.clients), count))

    def known_examples(self) -> dict[int, int]:
        """Return the training samples of each client, as far as the server knows them or the client has stated them."""
        examples = dict(self.server.examples_by_client)
        # Reported in a round before, perhaps of the run that is resumed.
        for client, state in self.client_states.items():
            if state.examples:
                examples[client] = state.examples
        return examples

    def begin_round(self, number: int) -> list[int]:
        """Begin a round with the shared weights, and return its clients."""
        answers = {}
        for variant in self.variants:
            if variant.upload.is_answer and variant.name in self.states:
                answers[variant.name] = self.states[variant.name]
        self.server = replace(
            self.server,
            start=self.shared,
            round=number,
            examples_by_client=self.known_examples(),
            answers=answers,
        )
        self._began = time.perf_counter()
        return self.sample(number)

    def deploy_without_rounds(self) -> None:
        """Deploy the heads in closed form for rounds = 0. No averaged model is deployed, as no client has trained."""
        self.begin_round(0)
        result = RoundResult(self.shared)
        result.deploy(self.server, self.deploys, self.states, [])
        self.deployed = {}
        self.adopt(result)

        # The traffic is that of the questions before round 1. Stacked answers have the size of all clients' answers,
        # and a sum has the size of one.
        up = 0
        for name, answers in self.server.answers.items():
            times = 1 if self.server.variants[name].upload.by_client else self.clients
            up += times * size(answers)
        seconds = time.perf_counter() - self._began
        self.last = Round(
            0,
            clients=list(range(self.clients)),
            bytes_down=size(self.shared) * self.clients * len(self.server.answers),
            bytes_up=up,
            seconds=Seconds(server=seconds),
            metrics=result.metrics,
        )

    def adopt(self, result: RoundResult) -> None:
        """Make a result that of the run. Raises Diverged if it is not finite."""
        unfit = result.not_finite()
        if unfit:
            raise Diverged(self.server.round, f"{unfit} is not finite")
        self.shared = result.shared
        self.states |= result.states
        self.deployed |= result.deployed

    def finish_round(self, exchange: Exchange) -> None:
        """Check the answers, combine the valid ones, deploy, and store the round's statistics in `last`.

        Raises TooFewReplies when fewer are valid than min-reply-share asks for. While a result is not finite, the
        update of the largest norm is left out and the others are combined again; raises Diverged when too few are left.
        """
        answered = time.perf_counter()
        number = self.server.round
        updates = self.checked(exchange)
        down = size(self.shared) + sum(map(size, self.broadcast().values()))
        result = self.result(updates)
        while unfit := result.not_finite():
            updates = self.without_largest(exchange, updates, unfit)
            result = self.result(updates)
        self.deployed = {AVERAGE: result.shared}
        self.adopt(result)
        self.round = number
        for update in updates:
            known = self.client_states.get(update.client, ExpectedState())
            state = known
            if update.client not in self.server.examples_by_client:
                state = replace(state, examples=update.examples)
            if "memory" in update.digests:
                state = replace(state, round=number, memory=update.digests["memory"])
            if state != known:
                self.client_states[update.client] = state
        total = sum(update.examples for update in updates)
        uploaded = len(updates) * size(self.shared)  # checked: each has the shapes of `shared`
        for update in updates:
            uploaded += sum(map(size, update.uploads.values()))
        losses = [update.metrics["loss"] * update.examples / total for update in updates]
        client_work = [update.metrics["seconds"] for update in updates]
        self.update_statistics = partial(update_statistics, self.server, updates)
        self.last = Round(
            number,
            clients=[update.client for update in updates],
            failures=dict(sorted(exchange.failures.items())),
            loss=math.fsum(losses),
            bytes_down=down * len(exchange.asked),
            bytes_up=uploaded,
            seconds=Seconds(
                clients=answered - self._began,
                client_work=math.fsum(client_work),
                server=time.perf_counter() - answered,
            ),
            workers=workers_of(exchange),
            metrics=result.metrics,
            method_numbers=method_numbers(updates) or None,
        )

    def result(self, updates: Sequence[Update]) -> RoundResult:
        """Return the weights, states, deployed models and metrics computed from the updates.

        No attribute changes, so that `finish_round` can discard a result that is not finite and compute another.
        """
        states: dict[str, State] = {}
        before = self.states[self.combine.name]
        combined, state = self.combine.combine(self.server, before, updates)
        states[self.combine.name] = state

        before = self.states.get("server-optimizer", {})
        shared, state = self.optimizer.step(self.server, before, combined)
        states["server-optimizer"] = state

        result = RoundResult(shared, states)
        # Nothing is deployed from weights that are not finite: a method may fail on them. `finish_round` checks the
        # deployed models as well.
        if not result.not_finite():
            evaluated = self.is_evaluated(self.server.round)
            due = [
                part
                for part in self.deploys
                if not self.asks_finally(part) and (evaluated or not part.deploys_for_evaluation)
            ]
            result.deploy(self.server, due, self.states, updates)
        return result

    def asks_finally(self, part: ServerMethod) -> bool:
        """Return whether a part deploys once, from the answers to a question after the last round."""
        return part.uses != "" and self.server.variants[part.uses].upload.at_end

    def without_largest(
        self, exchange: Exchange, updates: Sequence[Update], unfit: str
    ) -> list[Update]:
        """Refuse the update of the largest norm, and return the others.

        `unfit` names the tensor that was not finite with all of `updates`. Raises Diverged when fewer would be left
        than min-reply-share asks for.
        """
        largest = max(update_statistics(self.server, updates), key=lambda update: update.norm)
        client = largest.client
        reason = f"{unfit} is not finite with it: its update of norm {largest.norm:.3g}"
        exchange.refuse(client, reason)
        if len(exchange.answers) < exchange.least(self.exchange_settings.min_reply_share):
            name = client_name(client, self.assigner.names)
            reason = f"{unfit} is not finite; {name} moved it furthest"
            raise Diverged(self.server.round, reason, client=name)
        return [update for update in updates if update.client != client]

    def checked(self, exchange: Exchange) -> list[Update]:
        """Return the valid updates, sorted by client, refuse the other answers in `exchange`, and log who is left out.

        Raises TooFewReplies if fewer are valid than min-reply-share asks for, and Diverged if that is because some are
        not finite or impossibly large.
        """
        updates = []
        diverged = []
        for client in sorted(exchange.answers):
            answer = exchange.answers[client]
            try:
                update = checked_update(client, answer, self.server, self.expected, self.parts)
                updates.append(update)
            except RejectedUpdate as reason:
                exchange.refuse(client, str(reason))
                if isinstance(reason, UpdateOutOfRange):
                    diverged.append(client)
        share = self.exchange_settings.min_reply_share
        try:
            exchange.check_enough(share, f"round {self.server.round}")
        except TooFewReplies as error:
            # They are to blame only where their replies would have been enough.
            enough_with_them = len(updates) + len(diverged) >= exchange.least(share)
            if not diverged or (updates and not enough_with_them):
                raise
            name = client_name(diverged[0], self.assigner.names)
            words = f"{name}: {exchange.failures[diverged[0]]}"
            raise Diverged(self.server.round, words, client=name) from error
        return updates


def largest_record(model: Classifier) -> Expected:
    """Return the limits of one record in a reply, in bytes and tensors. Every method's upload is smaller.

    The limit in bytes is 2 (C + 1) times a model and a (D, D) float64 covariance of the features.
    """
    classes, width = model.head.weight.shape
    state = model.state_dict()
    covariance = 8 * width**2
    bytes_at_most = HEADER_BYTES + 2 * (classes + 1) * (size(state) + covariance)
    tensors_at_most = 2 * len(state) + 8 * classes + 64
    return Expected(bytes_at_most, tensors_at_most)


def workers_of(exchange: Exchange) -> list[Mapping[str, object]]:
    """Return the processes that computed the answers, each once, in a fixed order."""
    workers = [answer.worker for answer in exchange.answers.values() if answer.worker]
    by_text = {str(sorted(worker.items())): worker for worker in workers}
    return [by_text[text] for text in sorted(by_text)]
