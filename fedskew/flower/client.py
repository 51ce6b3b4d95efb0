"""What a user's own ClientApp calls: a round of local training, or the pieces of one for its own training loop."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from flwr.app import (
    ConfigRecord,
    Context,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from torch import Tensor, nn

from client_app.client import Client, Report, Variant
from client_app.messages import kind_of, to_flower
from client_app.models import Classifier, batch_norm_names
from client_app.optimizer import TrainingSettings
from client_app.state import State, copy, seed_of
from client_app.training import private_names, task_of, train_round
from data import Samples
from fedskew.flower.model import as_classifier, received, sent, to_inside, to_outside
from fedskew.flower.records import (
    BATCH_NORM,
    BROADCAST,
    KEEPS_BATCH_NORM,
    MEMORY,
    METRICS,
    PRIVATE,
    QUESTION,
    REPORT,
    SGD_ALONE,
    UPLOAD,
    UPLOADS,
    config_of,
    model_record,
    state_like,
    states_in,
    with_prefix,
)
from fedskew.flower.samples import batch_size_of, check_input_names, drops_last, samples_of
from fedskew.flower.variants import (
    CLASS_COUNTS,
    NamedVariant,
    check_model,
    check_server,
    check_training,
    is_loss,
    on_grid,
    sums_class_counts,
    variants_of,
    with_servers_mu,
)

PROBE = 2
"""Samples with which the head is checked: enough for a comparison, and few beside a round."""
LEARNING_RATE = 0.01
"""The learning rate where neither the call nor the train config states one."""


def local_round(
    message: Message,
    context: Context,
    model: nn.Module,
    data: Any,
    *,
    variants: Iterable[NamedVariant] = (),
    epochs: int = 1,
    local_steps: int = 0,
    lr: float | None = None,
    momentum: float = 0.9,
    batch_size: int | None = None,
    device: str | torch.device = "cpu",
    head: str = "",
    label: str = "",
    seed: int | None = None,
    **training: Any,
) -> Message:
    """Train one round on a train message, or answer a query for the variants; return the reply.

    Use it under `@app.train()`, and under `@app.query()` as well for methods that ask the clients something (FedShift,
    reweighting, CCVR, heads in closed form). The training loop is FedSkew's: SGD with momentum or AdamW, and
    seeded batches.

    Args:
        message: the message of flwr's FedAvg, one of its subclasses, or one of `fedskew.flower`'s strategies.
        context: the app's context. `partition-id` in its node config, else the node's id, is the client's number.
        model: any module with a linear head; it holds the trained weights afterwards.
        data: (inputs, labels), a DataLoader or a Dataset. Inputs are taken as they are. A loader's sampler says which
            samples are the client's; with drop_last an epoch has no last, smaller batch.
        variants: names of methods (`fedshift`) or variants (`logit-shift`), or variants (`LogitShift(scale=0.5)`).
        epochs: passes over the data.
        local_steps: optimizer steps, in place of epochs; 0 takes epochs.
        lr: the learning rate; without it `lr` of the train config, else 0.01.
        batch_size: samples in a batch; without it the loader's, else 32.
        head: the name of the linear head, such as `classifier.3`; the last nn.Linear when empty.
        label: the name of the labels in batches that are dicts.
        seed: the run's seed; without it `seed` of the run config, else 0.
        training: other fields of TrainingSettings: weight_decay, clip_norm, precision, batch_limit, ...

    Returns:
        A reply that flwr's strategies, mods and wrappers take: one ArrayRecord with the names that came and one
        MetricRecord with `num-examples`, `train_loss` and the variants' numbers by VARIANT/NAME. A variant's upload is
        a further ArrayRecord, `upload/NAME`.

    Raises:
        SettingError: a name is none, two variants contradict each other, or a training setting breaks a rule.
        ValueError: the model or the data cannot be used; the message says what to change.
        LookupError: the server's strategy does not send what a variant needs.
    """
    for name in ("clients_per_pass", "finetune_epochs", "finetune_sampling"):
        if name in training:
            raise TypeError(f"{name} is a setting of `fedskew run` alone")
    config = config_of(message)
    chosen = with_servers_mu(variants_of(variants), config)
    settings = TrainingSettings(
        local_epochs=epochs,
        local_steps=local_steps,
        learning_rate=float(config.get("lr", LEARNING_RATE)) if lr is None else lr,
        momentum=momentum,
        batch_size=batch_size_of(data) if batch_size is None else batch_size,
        **training,
    )
    if settings.schedule == "cosine":
        rule = "must be the number of rounds: a node does not know it"
        settings.require(settings.schedule_rounds > 0, "schedule_rounds", rule)
    is_question = kind_of(message) == MessageType.QUERY
    if not is_question:
        check_broadcast(message, chosen)
        check_training(chosen, str(config.get(SGD_ALONE, "")), settings)
    samples = samples_of(data, device, label)
    check_input_names(samples.inputs_N, model)
    if drops_last(data):
        settings = without_last_batch(settings, len(samples))
    few = torch.arange(min(PROBE, len(samples)), device=samples.labels_N.device)
    with as_classifier(model.to(device), head, samples.batch(few)) as classifier:
        check_model(chosen, classifier, samples.inputs_N)
        start = copy(classifier.state_dict())
        if message.content.array_records:  # else it is a question about the data alone
            start |= received(classifier, model_record(message)[1])
        memory = states_in(context.state, MEMORY, device)
        private = private_names(classifier, chosen)
        run_seed = int(context.run_config.get("seed", 0)) if seed is None else seed
        client = client_of(
            message,
            context,
            chosen,
            classifier,
            samples,
            start={name: tensor for name, tensor in start.items() if name not in private},
            memory={name: to_inside(classifier, state) for name, state in memory.items()},
        )
        client = replace(client, seed=seed_of(run_seed, client.round, client.id))
        classifier.load({**start, **client.memory.get(PRIVATE, {})})
        if is_question:
            return answer(message, client, chosen)
        report = train_round(client, chosen, settings)
        for name, state in report.memory.items():
            context.state[MEMORY + name] = to_flower(to_outside(classifier, state))
        return reply(message, client, report, start)


def without_last_batch(settings: TrainingSettings, samples: int) -> TrainingSettings:
    """Return the settings with as many batches in an epoch as are full.

    Raises ValueError where none is, and beside local_steps, which counts no epochs.
    """
    full = samples // settings.batch_size
    if settings.local_steps or not full:
        raise ValueError(
            f"the DataLoader has drop_last=True, which needs epochs of a full batch at least; here are {samples} "
            f"samples, batch_size={settings.batch_size} and local_steps={settings.local_steps}: use drop_last=False"
        )
    return replace(settings, batch_limit=min(full, settings.batch_limit or full))


def check_broadcast(message: Message, variants: Sequence[Variant]) -> None:
    """Raise LookupError where the server does not send what a variant needs."""
    config = config_of(message)
    sent = with_prefix(message.content.array_records, BROADCAST)
    check_server(variants, [*sent, *config.get(UPLOADS, [])])
    for variant in variants:
        if sums_class_counts(variant) and CLASS_COUNTS not in config:
            raise LookupError(
                f"{variant.name} needs the class counts of all clients: "
                "pass train_config=ConfigRecord(class_counts(grid)) to strategy.start, and put @app.query() "
                "above the client's train function"
            )


def client_of(
    message: Message,
    context: Context,
    variants: Sequence[Variant],
    model: Classifier,
    samples: Samples,
    **states: Any,
) -> Client:
    """Return the client as the training loop and the variants see it.

    Raises ValueError for a label beyond the head's classes.
    """
    classes = model.head.out_features
    largest = int(samples.labels_N.max())
    if largest >= classes:
        raise ValueError(f"a label is {largest}, and the model's head has {classes} classes")
    device = samples.labels_N.device
    config = config_of(message)
    broadcast = states_in(message.content, BROADCAST, device)
    for variant in variants:  # the class counts go to every variant that needs them
        if sums_class_counts(variant) and CLASS_COUNTS in config:
            broadcast[variant.name] = {"counts": torch.tensor(config[CLASS_COUNTS], device=device)}
    return Client(
        id=int(context.node_config.get("partition-id", context.node_id)),
        model=model,
        samples=samples,
        num_classes=classes,
        round=int(config.get("server-round", 0)),
        broadcast={name: to_inside(model, state) for name, state in broadcast.items()},
        **states,
    )


def reply(message: Message, client: Client, report: Report, start: State) -> Message:
    """Return the reply to a train message. What is private goes back as it came."""
    key, record = model_record(message)
    model = client.model
    usual = {"num-examples": report.examples, "train_loss": report.loss}
    trained = {"steps": report.trained.steps, "coefficient-sum": report.trained.coefficient_sum}
    content = RecordDict({key: sent(model, {**start, **report.shared}, record)})
    content[METRICS] = MetricRecord({**usual, **report.numbers})
    content[REPORT] = ConfigRecord({"client": client.id, "loss": report.loss, **trained})
    uploads = dict(report.uploads)
    private = report.memory.get(PRIVATE, {})
    norm = {name: private[name] for name in sorted(batch_norm_names(model) & private.keys())}
    if norm:
        content.config_records[REPORT][KEEPS_BATCH_NORM] = True
        if BATCH_NORM in config_of(message).get(UPLOADS, []):
            uploads[BATCH_NORM] = norm
    for name, upload in uploads.items():
        content[UPLOAD + name] = to_flower(to_outside(model, upload))
    return Message(content, reply_to=message)


def answer(message: Message, client: Client, variants: Sequence[Variant]) -> Message:
    """Return the reply to a query: class counts are numbers, any other answer is an ArrayRecord.

    Raises LookupError where no variant answers.
    """
    config = config_of(message)
    question = str(config.get(QUESTION, ""))
    content = RecordDict({REPORT: ConfigRecord({"client": client.id})})
    for variant in on_grid(variants, config):
        if not question or variant.upload.question != question:
            continue
        state = variant.answer(client)
        if question == CLASS_COUNTS:
            content[METRICS] = MetricRecord({question: state["counts"].tolist()})
        else:
            content[UPLOAD + variant.name] = to_flower(state)
    if len(content) == 1:
        names = ", ".join(variant.name for variant in variants) or "none"
        raise LookupError(
            f"the server asks {question!r}, and none of this client's variants ({names}) answers: give the "
            "query function the same variants= as the train function"
        )
    return Message(content, reply_to=message)


def load_model(message: Message, context: Context, model: nn.Module) -> nn.Module:
    """Load the weights of a message into the model, and over them what this client keeps; return the model.

    It is for the app's own evaluate function: with FedBN or SiloBN the client's batch norm is part of its model.
    Raises ValueError where the names are not the model's.
    """
    own = model.state_dict()
    sent = state_like(model_record(message)[1], own)
    private = states_in(context.state, MEMORY).get(PRIVATE, {})
    model.load_state_dict({**own, **sent, **private})
    return model


def local_loss(
    message: Message,
    context: Context,
    labels: Tensor,
    classes: int,
    *,
    variants: Iterable[NamedVariant],
) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the loss for a training loop of the app's own, in the place of nn.CrossEntropyLoss.

    For variants that change the loss alone: fedshift, fedlc, reweighting, fed-focal, fedrs and ratio-loss.

    Args:
        labels: (N,), the class numbers of all of the client's training samples.
        classes: the number of classes.

    Returns:
        A function of logits (B, C) and labels (B,), on any devices, that returns the mean loss.

    Raises:
        ValueError: a variant does more than a loss function can.
        LookupError: the server's strategy does not send what a variant needs.
    """
    chosen = variants_of(variants)
    check_broadcast(message, chosen)
    beyond = [variant.name for variant in chosen if not is_loss(variant)]
    if beyond:
        raise ValueError(f"{' and '.join(beyond)} cannot be a loss function: use local_round")
    head = nn.Linear(1, classes, device=labels.device)
    stand_in = Classifier(nn.Identity(), head)
    samples = samples_of((labels, labels), labels.device)
    client = client_of(message, context, chosen, stand_in, samples)
    task = task_of(client, chosen, TrainingSettings())

    def mean_loss(logits_BC: Tensor, labels_B: Tensor) -> Tensor:
        return task.losses(logits_BC, labels_B.to(labels.device)).mean()

    return mean_loss
