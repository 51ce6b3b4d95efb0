"""What FedSkew's server methods have in common as flwr strategies: FedAvg's arguments and loop, FedSkew's equations.

What clients send beside the model is taken out of their replies and checked as FedSkew's own server checks it. The
rest goes to flwr's own aggregation. A reply that is refused takes part in neither.
"""

import copy
import inspect
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, ClassVar

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result, Strategy
from torch import Tensor, nn

from client_app.client import InvalidReply, check_numbers
from client_app.models import Classifier, batch_norm_names
from client_app.optimizer import TrainingSettings
from client_app.state import State, weighted_mean
from client_app.training import private_names, total_proximal_mu
from client_app.variants.feature_statistics import GridStatistics
from data import Samples, SettingError
from fedskew.flower.model import as_classifier, outside_names
from fedskew.flower.records import (
    BATCH_NORM,
    BROADCAST,
    FLAT,
    KEEPS_BATCH_NORM,
    REPORT,
    SGD_ALONE,
    UPLOAD,
    UPLOADS,
    as_dtype_of,
    flatten,
    renamed,
    to_record,
    to_state,
    unflatten,
    with_prefix,
)
from fedskew.flower.replies import check_size, check_steps, client_number, client_order, read
from fedskew.flower.samples import check_input_names, samples_of
from fedskew.flower.variants import (
    GRID,
    NamedVariant,
    as_list,
    composed,
    largest_upload,
    variants_of,
)
from strategies.core.server import Deployment, Server, ServerMethod, Update
from strategies.core.validation import (
    METRICS,
    RejectedUpdate,
    check_samples,
    check_uploads,
    check_values,
    differences,
    expected_of,
    not_finite,
)
from strategies.fedavg import FedAvg as ExactMean
from strategies.registry import SERVER_METHODS

log = logging.getLogger("flwr")
ONE_RECORD = "exactly one ArrayRecord"
"""In the reasons of flwr's privacy mods, which refuse a message with more."""
MODS_ON_APP = "; flwr's privacy mods belong to training alone, @app.train(mods=[...]), and not to ClientApp(mods=[...])"
INITIAL_BATCH_NORM = (
    "the clients keep batch norm, so evaluate_fn and result.arrays have the initial one: evaluate at the clients, or "
    "give the strategy the clients' variants and evaluated_batch_norm='mean'"
)
WIDEST = 8
"""Bytes of a value at most: flwr's wrappers and mods make float64 of a model."""


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
        names: list[str] = []
        for base in type(self).__mro__:  # a class made of several strategies has the methods of all
            names += vars(base).get("methods", ())
        given = as_list(variants)
        chosen = variants_of(given)
        parts = composed(given, names)
        kinds = [SERVER_METHODS[name] for name in (*parts.monitors, *parts.deploys)]
        combining = SERVER_METHODS[parts.combine] is not ExactMean
        if combining or self.exact:
            kinds.insert(0, SERVER_METHODS[parts.combine])
            self._check_alone(parts.combine)
        self.parts: list[ServerMethod] = []
        of_flwr = dict(arguments)
        for kind in kinds:
            settings = settings_of(kind, kinds, arguments)
            self.parts.append(kind(**settings))
            for name in settings:
                of_flwr.pop(name, None)
        at_work = {variant.name: variant for variant in variants_of(given, names)}
        grid = {name: arguments[name] for name in GRID if name in arguments}
        for variant_name, variant in at_work.items():
            if isinstance(variant, GridStatistics):
                at_work[variant_name] = replace(variant, **grid)
                for name in grid:
                    of_flwr.pop(name, None)
        super().__init__(**of_flwr)

        self.deployed: dict[str, dict[str, Tensor]] = {}
        self.metrics: dict[int, Mapping[str, Any]] = {}
        self._running = False
        self._states: dict[str, State] = {}
        # The copy is nobody else's, so it stays a classifier for as long as the strategy lives.
        self._copy = as_classifier(copied(model), head)
        self.model: Classifier = self._copy.__enter__()
        self._outside = outside_names(self.model)
        self._inside = {name: own for own, name in self._outside.items()}
        private = private_names(self.model, chosen)
        self._kept_norm = private & batch_norm_names(self.model)
        self._averages_norm = evaluated_batch_norm == "mean"
        self._mean_norm: State = {}
        """Empty until clients have sent theirs."""
        self._warns_of_norm = False
        check_batch_norm(evaluated_batch_norm, self._kept_norm)
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
            holdout=holdout_of(holdout, model, device),
            variants=at_work,
        )
        for part in self.parts:
            if part.needs_holdout:
                self.server.own_samples(part.name)  # raises now, and not after a round

    def _check_alone(self, method: str) -> None:
        """Raise TypeError where another of flwr's strategies combines the models as well."""
        for base in type(self).__mro__:
            own = issubclass(base, MethodStrategy)
            combine = getattr(base, "aggregate_train", FedAvg.aggregate_train)
            if not own and combine not in (FedAvg.aggregate_train, Strategy.aggregate_train):
                raise TypeError(
                    f"{method} combines the clients' models itself, and so does {base.__name__}: "
                    "use one of the two"
                )

    def start(self, grid: Grid, initial_arrays: ArrayRecord, *args: Any, **named: Any) -> Result:
        """Run the rounds as flwr's strategies do and return the result."""
        call = inspect.signature(super().start).bind(grid, initial_arrays, *args, **named)
        evaluate = call.arguments.get("evaluate_fn")
        if evaluate is not None:
            call.arguments["evaluate_fn"] = lambda number, arrays: evaluate(
                number, self._evaluated(arrays)
            )
        self._warns_of_norm = evaluate is not None and not self._averages_norm
        self._mean_norm = {}  # of a run before
        if self._kept_norm:
            self._warn_of_norm()
        self._running = True
        try:
            result = super().start(*call.args, **call.kwargs)
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
        if not self._running and (makes_more or self._averages_norm):
            raise RuntimeError(self._inside_another())
        consumed = [part.consumes for part in self.parts if part.consumes]
        if self._averages_norm:
            consumed.append(BATCH_NORM)
        if consumed:
            config[UPLOADS] = consumed
        for part in self.parts:
            if part.needs_sgd:
                config[SGD_ALONE] = part.name
        messages = list(super().configure_train(server_round, arrays, config, grid))
        self._begin(server_round, arrays, len(list(grid.get_node_ids())))
        records = {}
        for part in self.parts:
            broadcast = part.broadcast(self.server, self._states[part.name])
            for name, state in broadcast.items():
                records[BROADCAST + name] = to_record(renamed(state, self._outside))
        for message in messages:  # flwr's messages of a round share one content
            for name, record in records.items():
                message.content[name] = record
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
        if any(keeps_batch_norm(reply) for reply in kept):
            self._warn_of_norm()
        if arrays is None:
            return arrays, metrics
        if self._averages_norm:
            norms = [update.uploads[BATCH_NORM] for update in updates]
            self._mean_norm = weighted_mean(norms, [update.examples for update in updates])
        return self._combined(arrays, updates), metrics

    def aggregate_evaluate(
        self,
        server_round: int,
        replies: Iterable[Message],
    ) -> MetricRecord | None:
        """Combine the metrics as flwr's strategy does; log the first reason where every client fails."""
        replies = list(replies)
        if replies and all(reply.has_error() for reply in replies):
            reason = str(replies[0].error.reason)
            hint = MODS_ON_APP if ONE_RECORD in reason else ""
            log.error(
                "all %d clients failed to evaluate in round %d, the first because: %s%s",
                len(replies),
                server_round,
                reason,
                hint,
            )
        return super().aggregate_evaluate(server_round, replies)

    def _nobody_left(self, server_round: int, reasons: Sequence[str]) -> str:
        """Return the sentence about a round without any reply that can be used."""
        beside = [part.consumes or part.name for part in self.parts if part.consumes or sends(part)]
        if self._averages_norm:
            beside.append(BATCH_NORM)
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
        if self._averages_norm:
            remedy += ", without evaluated_batch_norm='mean'"
        return (
            f"{own} is inside another strategy, as flwr's privacy wrappers are, whose clipping and noise would "
            f"not cover what it makes: wrap FedAvg or ExactFedAvg{remedy}"
        )

    def _begin(self, server_round: int, arrays: ArrayRecord, clients: int) -> None:
        """Set the round's starting point."""
        start = self._tensors_of(arrays)
        parameters = self.server.parameters & start.keys()
        self.server = replace(
            self.server,
            start=start,
            clients=clients,
            round=server_round,
            parameters=parameters,
        )
        for part in self.parts:
            if part.name not in self._states:  # drawn for round 0, as in FedSkew's own runs
                self._states[part.name] = part.initial_state(replace(self.server, round=0))

    def _combined(self, arrays: ArrayRecord, updates: Sequence[Update]) -> ArrayRecord:
        """Return the round's arrays, and keep what the methods make of them."""
        numbers: dict[str, Any] = {}
        for part in self.parts:
            state = self._states[part.name]
            if overridden(part, "monitor"):
                self._states[part.name], recorded = part.monitor(self.server, state, updates)
                numbers.update(recorded)
            elif overridden(part, "combine"):
                combined, self._states[part.name] = part.combine(self.server, state, updates)
                self._check_finite(part.name, combined)
                model = self._by_user_names(combined)
                arrays = to_record(flatten(model) if FLAT in arrays else model)
            elif not part.final_question and not part.closed_form:
                average = self._tensors_of(arrays)
                made = part.deploy(self.server, state, average, updates)
                self._states[part.name] = made.state
                numbers.update(made.metrics)
                self._keep(made)
        self.metrics[self.server.round] = numbers
        return arrays

    def _keep(self, made: Deployment) -> None:
        """Keep the models that a method deploys, by the user's names."""
        for name, model in made.models.items():
            self._check_finite(name, model)
            self.deployed[name] = self._by_user_names({**model, **self._mean_norm})

    def _evaluated(self, arrays: ArrayRecord) -> ArrayRecord:
        """Return a model as the server evaluates and returns it: with the mean batch norm of the clients, if any."""
        if not self._mean_norm:
            return arrays
        model = self._by_user_names({**self._tensors_of(arrays), **self._mean_norm})
        return to_record(flatten(model) if FLAT in arrays else model)

    def _warn_of_norm(self) -> None:
        """Warn, once in a run, that what the server evaluates has another batch norm than every client."""
        if self._warns_of_norm:
            log.warning(INITIAL_BATCH_NORM)
        self._warns_of_norm = False

    def _by_user_names(self, model: State) -> dict[str, Tensor]:
        """Return a model's tensors by the user's names, in the order of the user's model."""
        by_name = renamed(model, self._outside)
        return {name: by_name[name] for name in self._inside if name in by_name}

    def _check_finite(self, name: str, state: State) -> None:
        """Raise FloatingPointError for a model that is not finite."""
        broken = not_finite(state)
        if broken:
            when = f"in round {self.server.round}"
            raise FloatingPointError(
                f"{name}: {broken} is not finite {when}: lower the learning rate"
            )

    def _update(self, reply: Message) -> Update:
        """Return a reply's update and take its uploads out of the reply. Raises RejectedUpdate."""
        norm = self._norm_of(reply)
        uploads = self._uploads(reply)
        check_uploads(uploads, self.server, self.parts)
        for name, state in uploads.items():
            check_values(state, f"{name}: ")
        if norm:
            uploads[BATCH_NORM] = norm
        shared = self._shared(reply)
        metrics = next(iter(reply.content.metric_records.values()), MetricRecord())
        number = client_number(reply)
        examples = metrics.get(self.weighted_by_key, 0)
        if not isinstance(examples, int | float):
            raise RejectedUpdate(f"metric {self.weighted_by_key} is no number")
        reason = METRICS["num-examples"].violation_of_number(float(examples))
        if reason:
            raise RejectedUpdate(f"metric {self.weighted_by_key} {reason}")
        check_samples(number, int(examples), "num-examples is", self.server)
        check_own_numbers(reply, metrics)
        return Update(number, shared, int(examples), uploads, self._numbers(reply))

    def _norm_of(self, reply: Message) -> dict[str, Tensor]:
        """Take the client's own batch norm out of a reply and return it; {} where it is not asked for.

        Raises RejectedUpdate where it is missing or not the model's.
        """
        if not self._averages_norm:
            return {}
        name = UPLOAD + BATCH_NORM
        record = reply.content.array_records.get(name)
        if record is None:
            raise RejectedUpdate(
                "its own batch norm is missing: use local_round(..., variants=['fedbn']) or fedbn_mod on the clients"
            )
        del reply.content[name]
        own = self.model.state_dict()
        due = {inner: own[inner] for inner in sorted(self._kept_norm)}
        values = sum(tensor.numel() for tensor in due.values())
        check_size(record, WIDEST * values, f"upload {BATCH_NORM}", len(due))
        norm = renamed(read(to_state, record), self._inside)
        reason = differences(norm, expected_of(due))
        if reason:
            raise RejectedUpdate(f"{BATCH_NORM}: {reason}")
        check_values(norm, f"{BATCH_NORM}: ")
        return norm

    def _uploads(self, reply: Message) -> dict[str, State]:
        """Take the uploads out of a reply and return them. Raises RejectedUpdate for one that is too large."""
        consumed = {part.consumes for part in self.parts if part.consumes}
        uploads: dict[str, State] = {}
        for name, record in with_prefix(reply.content.array_records, UPLOAD).items():
            del reply.content[UPLOAD + name]
            if name not in consumed:
                raise RejectedUpdate(
                    f"it sends the upload {ascii(name)[:80]}, which {type(self).__name__} does not take: give "
                    "client and server the same method"
                )
            check_size(record, largest_upload(name, self.model), f"upload {name}")
            uploads[name] = renamed(read(to_state, record), self._inside)
        for name in consumed - uploads.keys():
            raise RejectedUpdate(
                f"upload {name} is missing: use local_round(..., variants=[{name!r}]) on the clients"
            )
        return uploads

    def _shared(self, reply: Message) -> dict[str, Tensor]:
        """Return the model in a reply. Raises RejectedUpdate where it is not the server's in names and shapes."""
        records = list(reply.content.array_records.values())
        if len(records) != 1:
            names = sorted(reply.content.array_records)
            raise RejectedUpdate(f"it sends the ArrayRecords {names} and must send the model alone")
        own = self.model.state_dict().values()
        values = sum(tensor.numel() for tensor in own)
        check_size(records[0], WIDEST * values, "the model", len(self._outside))
        shared: dict[str, Tensor] = read(self._tensors_of, records[0])
        reason = differences(shared, expected_of(self.server.start))
        if reason:
            raise RejectedUpdate(f"model: {reason}")
        check_values(shared, "model: ")
        return shared

    def _numbers(self, reply: Message) -> dict[str, float]:
        """Return the client's steps and coefficient sum, for FedNova. Raises RejectedUpdate for impossible ones."""
        report = reply.content.config_records.get(REPORT, ConfigRecord())
        numbers = {}
        for name, value in report.items():
            if name not in METRICS or not isinstance(value, int | float):
                continue
            numbers[name] = float(value)
            reason = METRICS[name].violation_of_number(numbers[name])
            if reason:
                raise RejectedUpdate(f"{name} {reason}")
        if any(part.name == "fednova" for part in self.parts):
            check_steps(numbers)
        return numbers

    def _tensors_of(self, arrays: ArrayRecord) -> dict[str, Tensor]:
        """Return arrays by the classifier's names and in the model's own dtypes."""
        own = self.model.state_dict()
        by_user_name = {name: own[inner] for inner, name in self._outside.items()}
        received = unflatten(to_state(arrays), by_user_name)
        received = as_dtype_of(received, by_user_name)
        tensors = {}
        for name, tensor in received.items():
            inner = self._inside.get(name, name)
            tensors[inner] = tensor
        return tensors


def copied(model: nn.Module) -> nn.Module:
    """Return a copy of the clients' model. Raises ValueError for one that PyTorch cannot copy."""
    try:
        return copy.deepcopy(model)
    except RuntimeError as error:
        raise ValueError(
            "the model has a layer whose weight is computed by a hook, and cannot be copied: use "
            "torch.nn.utils.parametrizations in place of torch.nn.utils.weight_norm or spectral_norm, and "
            "torch.nn.utils.prune.remove after pruning"
        ) from error


def check_batch_norm(evaluated: str, kept: frozenset[str]) -> None:
    """Raise SettingError for a choice of the evaluated batch norm that is none, or without one that clients keep."""
    choices = ("initial", "mean")
    if evaluated not in choices:
        rule = f"must be one of {', '.join(choices)}"
        raise SettingError("evaluated_batch_norm", evaluated, rule)
    if evaluated == "mean" and not kept:
        rule = "needs clients that keep batch norm"
        remedy = "name their variants here too, as variants=['fedbn']"
        raise SettingError("evaluated_batch_norm", evaluated, rule, remedy=remedy)


def keeps_batch_norm(reply: Message) -> bool:
    """Return whether a reply says that its client keeps batch norm."""
    if reply.has_error():
        return False
    report = reply.content.config_records.get(REPORT, ConfigRecord())
    return report.get(KEEPS_BATCH_NORM) is True


def check_own_numbers(reply: Message, metrics: MetricRecord) -> None:
    """Raise RejectedUpdate for numbers of the variants, VARIANT/NAME, that no `local_round` sends.

    The metrics of an app that trains in a loop of its own are its own.
    """
    if REPORT not in reply.content.config_records:
        return
    numbers = {}
    for name, value in metrics.items():
        if "/" not in name:
            continue
        if not isinstance(value, int | float):
            raise RejectedUpdate(f"number {ascii(name)[:80]} is no number")
        numbers[name] = float(value)
    try:
        check_numbers(numbers)
    except InvalidReply as reason:
        raise RejectedUpdate(str(reason)) from None


def holdout_of(holdout: Any, model: nn.Module, device: str) -> Samples | None:
    """Return the server's own data as samples for the model, None without them. Raises ValueError as `samples_of`."""
    if holdout is None:
        return None
    samples = samples_of(holdout, device)
    check_input_names(samples.inputs_N, model)
    return samples


def settings_of(
    kind: type[ServerMethod],
    kinds: Sequence[type[ServerMethod]],
    arguments: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the arguments that are settings of a method. Raises TypeError for one that two methods have."""
    names = setting_names(kind) & arguments.keys()
    for other in kinds:
        if other is kind:
            continue
        for name in sorted(names):
            if name in setting_names(other):
                raise TypeError(
                    f"{name} is a setting of {kind.name} and of {other.name}: use one of them, and "
                    "the other's calibrate, or TauNorm(model).normalize, on its result"
                )
    return {name: arguments[name] for name in names}


def setting_names(kind: type[ServerMethod]) -> set[str]:
    """Return the names of a method's settings."""
    return {field.name for field in fields(kind)}


def overridden(part: ServerMethod, hook: str) -> bool:
    """Return whether a method overrides a hook: combine, monitor or deploy."""
    return getattr(type(part), hook) is not getattr(ServerMethod, hook)


def sends(part: ServerMethod) -> bool:
    """Return whether a method sends the clients something beside the model."""
    return type(part).broadcast is not ServerMethod.broadcast
