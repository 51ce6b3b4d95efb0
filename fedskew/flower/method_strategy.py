"""What FedSkew's server methods have in common as flwr strategies: FedAvg's arguments and loop, FedSkew's equations.

What clients send beside the model is taken out of their replies and checked as FedSkew's own server checks it. The
rest goes to flwr's own aggregation. A reply that is refused takes part in neither.
"""

import copy
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, ClassVar

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result, Strategy
from torch import Tensor, nn

from client_app.client import Variant
from client_app.messages import to_flower
from client_app.models import Classifier, batch_norm_names
from client_app.optimizer import TrainingSettings
from client_app.state import State, weighted_mean
from client_app.training import private_names, total_proximal_mu
from data import SettingError
from fedskew.flower.model import as_classifier, received, sent, to_inside, to_outside
from fedskew.flower.records import (
    BATCH_NORM,
    BROADCAST,
    KEEPS_BATCH_NORM,
    REPORT,
    SGD_ALONE,
    UPLOAD,
    UPLOADS,
    check_steps,
    client_order,
    numbers_of,
    read,
    to_state,
    with_prefix,
)
from fedskew.flower.samples import check_input_names, samples_of
from fedskew.flower.variants import (
    GRID,
    NamedVariant,
    has_grid,
    on_grid,
    resolved,
)
from strategies import SERVER_METHODS
from strategies.core.rounds import RoundResult
from strategies.core.server import Server, ServerMethod, Update
from strategies.core.validation import (
    RejectedUpdate,
    check_samples,
    check_tensors,
    check_uploads,
    expected_of,
)
from strategies.fedavg import FedAvg as ExactMean

log = logging.getLogger("flwr")
ONE_RECORD = "exactly one ArrayRecord"
"""In the reasons of flwr's privacy mods, which refuse a message with more."""
INITIAL_BATCH_NORM = (
    "the clients keep batch norm, so evaluate_fn and result.arrays have the initial one: evaluate at the clients, or "
    "give the strategy the clients' variants and evaluated_batch_norm='mean'"
)


class MethodStrategy(FedAvg):
    """FedAvg with FedSkew's methods; the base of the strategies below.

    A subclass names its `methods`. Subclasses combine: `class CReFFExact(CReFF, ExactFedAvg)` has the methods of both,
    and `class CReFFAdam(CReFF, FedAdam)` deploys CReFF's model beside what flwr's FedAdam makes.

    Args:
        model: the clients' model. It is copied and never changed.
        variants: what the clients use besides, as in `local_round`. FedNova needs to know of FedProx, and SCAFFOLD of
            FedBN, whose tensors have no control variates.
        head: the name of the linear head; the last nn.Linear when empty.
        seed: the seed of the methods' own draws.
        device: where the methods' own optimization runs.
        holdout: the server's own data, as in `local_round`; for RatioLoss, FedDF and FedBE. Their batches are the
            method's own: a loader's batch size and drop_last are about clients.
        training: how the server itself trains, for RatioLoss.
        evaluated_batch_norm: the batch norm of what the server evaluates and returns, where `variants` keep it on the
            clients (fedbn, silobn). `initial` is that of the start. `mean` is the mean of the round's clients, weighted
            by samples: what each of them keeps leaves it in every round. Training is the same with both.
        arguments: the methods' settings, such as head_steps, and the arguments of flwr's strategy.

    Attributes:
        deployed: the models that the methods make beside the average, by method and by the user's own names.
        metrics: by round, what the methods record.

    Raises:
        SettingError: methods or variants contradict each other, or a setting breaks its rule.
        TypeError: a method that combines the models is mixed with another strategy that does.
    """

    methods: ClassVar[tuple[str, ...]] = ()
    """The names of the methods, of this class alone."""
    exact: ClassVar[bool] = False
    """Whether FedSkew's mean takes the place of flwr's."""

    def __init__(
        self,
        model: nn.Module,
        *,
        variants: Iterable[NamedVariant] = (),
        head: str = "",
        seed: int = 0,
        device: str = "cpu",
        holdout: Any = None,
        training: TrainingSettings | None = None,
        evaluated_batch_norm: str = "initial",
        **arguments: Any,
    ) -> None:
        chosen = self._take_methods(variants, arguments)
        super().__init__(**arguments)
        self.deployed: dict[str, dict[str, Tensor]] = {}
        self.metrics: dict[int, Mapping[str, Any]] = {}
        self._running = False
        self._states: dict[str, State] = {}
        # The copy is nobody else's, so it stays a classifier for as long as the strategy lives.
        self._copy = as_classifier(copy.deepcopy(model), head)
        self.model: Classifier = self._copy.__enter__()
        private = private_names(self.model, chosen)
        samples = None
        if holdout is not None:
            samples = samples_of(holdout, device)
            check_input_names(samples.inputs_N, model)
        self.server = Server(
            model=self.model,
            start={},
            clients=0,
            round=0,
            seed=seed,
            training=training or TrainingSettings(),
            device=device,
            parameters=frozenset(self.model.trained) - private,
            proximal_mu=total_proximal_mu(chosen),
            holdout=samples,
            variants={variant.name: variant for variant in chosen},
        )
        for part in self.parts:
            if part.needs_holdout:
                self.server.own_samples(part.name)  # raises now, and not after a round
        self._due_norm: State = {}
        """The batch norm that clients keep, for its shapes; empty where it is not averaged."""
        self._mean_norm: State = {}
        """Empty until clients have sent theirs."""
        self._warns_of_norm = False
        self._average_norm(evaluated_batch_norm, private & batch_norm_names(self.model))

    def _take_methods(
        self, variants: Iterable[NamedVariant], arguments: dict[str, Any]
    ) -> list[Variant]:
        """Set `parts`, the methods with their settings taken out of the arguments, and return the variants.

        Raises TypeError for a setting that two methods have.
        """
        # A class made of several strategies has the methods of all.
        names = [name for base in type(self).__mro__ for name in vars(base).get("methods", ())]
        composed, chosen = resolved(variants, names)
        kinds = [SERVER_METHODS[name] for name in composed.serving]
        if not self.exact:
            kinds = [kind for kind in kinds if kind is not ExactMean]
        self._check_alone(kinds)
        chosen = on_grid(chosen, arguments)
        owners: dict[str, type[ServerMethod]] = {}
        for kind in kinds:
            for name in arguments.keys() & {field.name for field in fields(kind)}:
                owner = owners.setdefault(name, kind)
                if owner is not kind:
                    raise TypeError(
                        f"{name} is a setting of {owner.name} and of {kind.name}: use one of them, and "
                        "the other's calibrate, or TauNorm(model).normalize, on its result"
                    )
        self.parts: list[ServerMethod] = []
        for kind in kinds:
            settings = {name: arguments[name] for name in owners if owners[name] is kind}
            self.parts.append(kind(**settings))
        grid = GRID if any(map(has_grid, chosen)) else ()
        for name in (*owners, *grid):
            arguments.pop(name, None)
        return chosen

    def _average_norm(self, evaluated: str, kept: Collection[str]) -> None:
        """Have the clients send the batch norm that they keep. Raises SettingError for a choice that cannot be."""
        if evaluated not in ("initial", "mean"):
            rule = "must be one of initial, mean"
            raise SettingError("evaluated_batch_norm", evaluated, rule)
        if evaluated == "initial":
            return
        if not kept:
            rule = "needs clients that keep batch norm"
            remedy = "name their variants here too, as variants=['fedbn']"
            raise SettingError("evaluated_batch_norm", evaluated, rule, remedy=remedy)
        own = self.model.state_dict()
        self._due_norm = {name: own[name] for name in sorted(kept)}

    def _check_alone(self, kinds: Sequence[type[ServerMethod]]) -> None:
        """Raise TypeError where a method and another of flwr's strategies both combine the models."""
        combining = [kind.name for kind in kinds if overridden(kind, "combine")]
        for base in type(self).__mro__:
            of_flwr = base in (FedAvg, Strategy) or issubclass(base, MethodStrategy)
            if combining and not of_flwr and "aggregate_train" in vars(base):
                raise TypeError(
                    f"{combining[0]} combines the clients' models itself, and so does {base.__name__}: "
                    "use one of the two"
                )

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        *args: Any,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
        **named: Any,
    ) -> Result:
        """Run the rounds as flwr's strategies do, with the same arguments, and return the result."""
        if evaluate_fn is not None:
            named["evaluate_fn"] = lambda number, arrays: evaluate_fn(
                number, self._evaluated(arrays)
            )
        self._warns_of_norm = evaluate_fn is not None and not self._due_norm
        self._mean_norm = {}  # of a run before
        self._running = True
        try:
            result = super().start(grid, initial_arrays, *args, **named)
        finally:
            self._running = False
        result.arrays = self._evaluated(result.arrays)
        return result

    def configure_train(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
    ) -> Iterable[Message]:
        """Ask as flwr's strategy does, and send the methods' broadcasts beside the model."""
        makes_more = any(not isinstance(part, ExactMean) for part in self.parts)
        if not self._running and (makes_more or self._due_norm):
            raise RuntimeError(self._inside_another())
        if self._consumed():
            config[UPLOADS] = self._consumed()
        for part in self.parts:
            if "sgd" in part.needs:
                config[SGD_ALONE] = part.name
        messages = list(super().configure_train(server_round, arrays, config, grid))
        self._begin(server_round, arrays, len(list(grid.get_node_ids())))
        for part in self.parts:
            broadcast = part.broadcast(self.server, self._states[part.name])
            for name, state in broadcast.items():
                record = to_flower(to_outside(self.model, state))
                for message in messages:  # flwr's messages of a round share one content
                    message.content[BROADCAST + name] = record
        return messages

    def aggregate_train(
        self,
        server_round: int,
        replies: Iterable[Message],
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Combine the models as flwr's strategy does, without the uploads, and deploy the methods' models.

        Replies are sorted by client, so that a run does not depend on the order of their arrival.

        Raises:
            RuntimeError: no reply can be used; the message has the first reason.
            FloatingPointError: what a method makes is not finite.
        """
        updates: list[Update] = []
        kept: list[Message] = []
        reasons: list[str] = []
        for reply in sorted(replies, key=client_order):
            if reply.has_error():
                kept.append(reply)  # flwr logs it
                reasons.append(str(reply.error.reason))
                continue
            try:
                updates.append(self._update(reply))
                kept.append(reply)
            except RejectedUpdate as reason:
                reasons.append(str(reason))
                log.warning("node %d is refused: %s", reply.metadata.src_node_id, reason)
        if reasons and not updates:
            raise RuntimeError(self._nobody_left(server_round, reasons))
        arrays, metrics = super().aggregate_train(server_round, kept)
        if self._warns_of_norm and any(map(keeps_batch_norm, kept)):
            log.warning(INITIAL_BATCH_NORM)
            self._warns_of_norm = False
        if arrays is None:
            return arrays, metrics
        if self._due_norm:
            norms = [update.uploads[BATCH_NORM] for update in updates]
            self._mean_norm = weighted_mean(norms, [update.examples for update in updates])
        return self._combined(arrays, updates), metrics

    def _consumed(self) -> list[str]:
        """Return the names of the uploads that every reply must have."""
        names = []
        for part in self.parts:
            if part.uses and not self.server.variants[part.uses].upload.question:
                names.append(part.uses)
        return [*names, BATCH_NORM] if self._due_norm else names

    def _nobody_left(self, server_round: int, reasons: Sequence[str]) -> str:
        """Return the sentence about a round without any reply that can be used."""
        sending = [part.name for part in self.parts if overridden(type(part), "broadcast")]
        beside = self._consumed() or sending
        hint = ""
        if beside and ONE_RECORD in reasons[0]:
            hint = (
                f"; flwr's privacy mods refuse {' and '.join(beside)}, which they cannot protect: "
                "leave out the method or the mod"
            )
        return (
            f"round {server_round}: none of {len(reasons)} replies can be used, the first because: "
            f"{reasons[0]}{hint}"
        )

    def _inside_another(self) -> str:
        """Return the sentence about a strategy that another one wraps."""
        own = type(self).__name__
        then = [name for name in ("calibrate", "normalize") if hasattr(self, name)]
        remedy = "".join(f", and use {own}(model).{name} on the wrapper's result" for name in then)
        return (
            f"{own} is inside another strategy, as flwr's privacy wrappers are, whose clipping and noise would "
            f"not cover what it makes: wrap FedAvg or ExactFedAvg{remedy}"
        )

    def _begin(self, server_round: int, arrays: ArrayRecord, clients: int) -> None:
        """Set the round's starting point."""
        start = received(self.model, arrays)
        self.server = replace(
            self.server,
            start=start,
            clients=clients,
            round=server_round,
            parameters=self.server.parameters & start.keys(),
        )
        for part in self.parts:
            if part.name not in self._states:  # drawn for round 0, as in FedSkew's own runs
                self._states[part.name] = part.initial_state(replace(self.server, round=0))

    def _combined(self, arrays: ArrayRecord, updates: Sequence[Update]) -> ArrayRecord:
        """Return the round's arrays, and keep what the methods make of them."""
        result = RoundResult(received(self.model, arrays))
        for part in self.parts:
            state = self._states[part.name]
            if overridden(type(part), "combine"):
                combined, result.states[part.name] = part.combine(self.server, state, updates)
                result = replace(result, shared=combined)
                arrays = sent(self.model, combined, arrays)
            elif not part.uses or not self.server.variants[part.uses].upload.question:
                result.deploy(self.server, [part], self._states, updates)
        self._adopt(result)
        return arrays

    def _adopt(self, result: RoundResult) -> None:
        """Keep what methods make, their models by the user's names. Raises FloatingPointError."""
        number = self.server.round
        unfit = result.not_finite()
        if unfit:
            raise FloatingPointError(
                f"{unfit} is not finite in round {number}: lower the learning rate"
            )
        self._states |= result.states
        for name, model in result.deployed.items():
            self.deployed[name] = to_outside(self.model, {**model, **self._mean_norm})
        self.metrics[number] = {**self.metrics.get(number, {}), **result.metrics}

    def _evaluated(self, arrays: ArrayRecord) -> ArrayRecord:
        """Return a model as the server evaluates and returns it: with the mean batch norm of the clients, if any."""
        if not self._mean_norm:
            return arrays
        return sent(self.model, {**received(self.model, arrays), **self._mean_norm}, arrays)

    def _update(self, reply: Message) -> Update:
        """Return a reply's update and take its uploads out of the reply. Raises RejectedUpdate."""
        uploads = self._uploads(reply)
        records = list(reply.content.array_records.values())
        if len(records) != 1:
            names = sorted(reply.content.array_records)
            raise RejectedUpdate(f"it sends the ArrayRecords {names} and must send the model alone")
        shared: dict[str, Tensor] = read(lambda record: received(self.model, record), records[0])
        check_like("model", shared, self.server.start)
        numbers = numbers_of(reply, self.weighted_by_key)
        number, _ = client_order(reply)
        examples = int(numbers["num-examples"])
        check_samples(number, examples, "num-examples is", self.server)
        if any(part.name == "fednova" for part in self.parts):
            check_steps(numbers)
        return Update(number, shared, examples, uploads, numbers)

    def _uploads(self, reply: Message) -> dict[str, State]:
        """Take the uploads out of a reply and return them.

        Raises RejectedUpdate for one that is missing, not asked for, or not what its method takes.
        """
        records = with_prefix(reply.content.array_records, UPLOAD)
        for name in records:
            del reply.content[UPLOAD + name]
        due = self._consumed()
        for name in due:
            if name not in records:
                word = "fedbn" if name == BATCH_NORM else name
                remedy = f"use local_round(..., variants=[{word!r}]) on the clients"
                raise RejectedUpdate(f"upload {name} is missing: {remedy}")
        uploads: dict[str, State] = {}
        for name in due:
            uploads[name] = to_inside(self.model, read(to_state, records[name]))
        of_methods = {name: uploads.get(name, {}) for name in records}
        if self._due_norm:
            norm = of_methods.pop(BATCH_NORM)
            check_like(BATCH_NORM, norm, self._due_norm)
        check_uploads(of_methods, self.server, self.parts)  # refuses what no method takes as well
        return uploads


def check_like(what: str, state: State, like: State) -> None:
    """Raise RejectedUpdate unless a state has the names, shapes and dtypes of another, and possible values."""
    try:
        check_tensors(state, expected_of(like))
    except RejectedUpdate as reason:
        raise RejectedUpdate(f"{what}: {reason}") from None


def keeps_batch_norm(reply: Message) -> bool:
    """Return whether a reply says that its client keeps batch norm."""
    if reply.has_error():
        return False
    report = reply.content.config_records.get(REPORT, ConfigRecord())
    return report.get(KEEPS_BATCH_NORM) is True


def overridden(kind: type[ServerMethod], hook: str) -> bool:
    """Return whether a method overrides a hook."""
    return getattr(kind, hook) is not getattr(ServerMethod, hook)
