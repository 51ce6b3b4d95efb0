"""The seconds of a round: from the records of similar finished rounds, else from one timed step and batch."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from client_app.client import Client
from client_app.models import ModelSettings, build
from client_app.models.classifier import INFERENCE_BATCH, in_batches
from client_app.optimizer import TrainingSettings
from client_app.personal import variants_with_models
from client_app.process import make_deterministic, tune_allocator
from client_app.training import private_names, train_round
from data import Samples
from fedskew.costs.footprint import deploying_share, device_of, model_of, participants, parts_of
from fedskew.costs.sizes import Sizes, mean_steps
from server_app.run_folder import RunFolder
from server_app.run_settings import WITHOUT_EFFECT_ON_NUMBERS, RunSettings
from strategies.head import train_head

WITHOUT_EFFECT_ON_TIME = (WITHOUT_EFFECT_ON_NUMBERS - {"device"}) | {
    "seed", "rounds", "evaluate-every", "keep-best", "patience", "alpha",
    "learning-rate", "learning-rate-decay", "learning-rate-decay-every",
    "schedule", "schedule-unit", "schedule-rounds", "warm-up", "second-momentum", "epsilon",
    "momentum", "weight-decay", "server-learning-rate", "server-momentum", "server-momentum-form",
    "server-optimizer", "server-second-momentum", "server-adaptivity",
}  # fmt: skip
FEW = 2
"""Samples that are timed first: batch norm cannot train on fewer."""
LIMIT = 0.1
"""Seconds from which on an action is long enough to be timed."""
LONG = 0.5
"""Seconds from which on an action is not timed on all samples."""
REPEATS = 20
"""Times that a short action is timed at most."""
FEATURES, HEAD_STEPS = 500, 4
"""Features and steps with which a head's training is timed."""


@dataclass(frozen=True)
class Pace:
    """Seconds of one core, or of the GPU."""

    clients: float
    """All clients' work in a round."""
    server: float
    """What else belongs to a round, evaluation aside."""
    evaluation: float
    """An evaluation."""
    once: float = 0.0
    """What is done after the last round alone."""


# ---- from records ----------------------------------------------------------------------------------------------------


class Records:
    """The runs that a results folder holds."""

    def __init__(self, results: Path) -> None:
        self.runs = []
        """Folder and settings of each."""
        for file in results.glob("*/settings.json"):
            folder = RunFolder(file.parent)
            settings = folder.origin().get("settings")
            if settings:
                self.runs.append((folder, settings))

    def pace(self, settings: RunSettings) -> Pace | None:
        """Return the mean over all rounds of runs with the same settings; None where there are none."""
        relevant = {}
        for key, value in settings.flat().items():
            if key not in WITHOUT_EFFECT_ON_TIME:
                relevant[key] = value
        rounds = []
        for folder, recorded in self.runs:
            if relevant.items() <= recorded.items():
                rounds += folder.rounds()
        if not rounds:
            return None

        clients, server, evaluations = [], [], []
        for record in rounds:
            seconds = record.seconds
            clients.append(seconds.client_work)
            server.append(seconds.round - seconds.clients - seconds.evaluation)
            if record.models:
                evaluations.append(seconds.evaluation)
        return Pace(
            clients=statistics.fmean(clients),
            server=statistics.fmean(server),
            evaluation=statistics.fmean(evaluations or [0.0]),
        )


# ---- by the clock ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rates:
    """A model's seconds."""

    step: float
    """Per training step on a full mini-batch."""
    tested: float
    """Per test sample."""
    feature: float
    """Per feature in a step of the head's training."""


def timed(settings: RunSettings, sizes: Sizes) -> Pace:
    """Return the pace by one training step, one batch of evaluation and a few steps of the head's training."""
    training = settings.training
    model = model_of(settings)
    data = settings.data
    rates = rates_of(
        settings.general.model, settings.input_shape, data.num_classes, settings.model,
        training.batch_size, training.precision, data.augmentation, device_of(settings),
    )  # fmt: skip
    sample = rates.step / training.batch_size
    samples = round(statistics.fmean(sizes.train))
    classes = round(statistics.fmean(sizes.held))
    taking = participants(settings)

    # Seconds of one client in a round, and of what it does once, after the last round.
    own_models = len(variants_with_models(settings.variants))
    client_round = (1 + own_models) * mean_steps(training, sizes) * rates.step
    client_once = 0.0
    for variant in settings.variants:
        seconds = sample * variant.extra_samples(samples, classes)
        if variant.upload.once:
            client_once += seconds
        else:
            client_round += seconds
    client_once += sample * samples * training.finetune_epochs

    server_round = server_once = 0.0
    for part in parts_of(settings):
        work = part.work(model, sizes.holdout, taking, training)
        seconds = work.samples * sample + work.features * rates.feature
        seconds *= deploying_share(settings, part)
        if part.final_question:
            server_once += seconds
        else:
            server_round += seconds

    # Clients that keep a part of the model each measure it on the server's test set.
    has_private = bool(private_names(model, settings.variants))
    by_every_client = sizes.test * (1 if sizes.own_tests else data.clients)
    tested = by_every_client if has_private else sizes.test
    # Their own models they measure in any case; fine-tuned ones once.
    tested += by_every_client * own_models
    if training.finetune_epochs:
        server_once += by_every_client * rates.tested
    return Pace(
        clients=taking * client_round,
        server=server_round,
        evaluation=tested * rates.tested,
        once=data.clients * client_once + server_once,
    )


@cache
def rates_of(
    name: str,
    shape: tuple[int, ...],
    classes: int,
    about: ModelSettings,
    batch_size: int,
    precision: str,
    augmentation: str,
    device: str,
) -> Rates:
    """Return a model's rates on random samples."""
    make_deterministic()  # one thread, as clients have
    tune_allocator()
    model = build(name, shape, classes, 0, about).to(device)
    batch = INFERENCE_BATCH[device]
    samples = random_samples(max(batch, batch_size), shape, classes, augmentation, device)
    one_step = TrainingSettings(
        local_steps=1,
        batch_size=batch_size,
        learning_rate=1e-6,
        precision=precision,
    )

    def first(count: int) -> Samples:
        return samples.only(torch.arange(count, device=samples.labels_N.device))

    def train(count: int) -> None:
        train_round(Client(0, model, first(count), classes), [], one_step)

    def evaluate(count: int) -> None:
        model.eval()
        in_batches(model, first(count))

    head = {name: tensor.detach() for name, tensor in model.head.named_parameters()}
    features_ND = torch.rand(FEATURES, model.head.in_features, device=device)
    labels_N = torch.arange(FEATURES, device=device) % classes
    retraining = clock(device, train_head, head, features_ND, labels_N, HEAD_STEPS, 0.1)
    return Rates(
        step=seconds_of(train, batch_size, device),
        tested=seconds_of(evaluate, batch, device) / batch,
        feature=retraining / (FEATURES * HEAD_STEPS),
    )


def seconds_of(action: Callable[[int], object], count: int, device: str) -> float:
    """Return the seconds of an action on `count` samples.

    The number of samples is doubled until the action takes LONG. Twice as many then tell what a sample takes beside
    what the action takes for any number: an optimizer's step over many weights can be most of it.
    """
    tried = min(FEW, count)
    action(tried)  # what a process does first is slow
    seconds = clock(device, action, tried)
    while seconds < LONG and tried < count:
        tried = min(2 * tried, count)
        seconds = clock(device, action, tried)
    if tried < count:
        more = min(2 * tried, count)
        of_more = clock(device, action, more)
        of_a_sample = max(of_more - seconds, 0.0) / (more - tried)
        return of_more + of_a_sample * (count - more)

    times = 1
    total = seconds
    while total < LIMIT and times < REPEATS:
        total += clock(device, action, count)
        times += 1
    return total / times


def clock(device: str, action: Callable[..., object], *inputs: object) -> float:
    """Return the seconds of an action: on the CPU those of its one thread, which other processes do not lengthen."""
    if device == "cpu":
        began = time.process_time()
        action(*inputs)
        return time.process_time() - began
    began = time.perf_counter()
    action(*inputs)
    torch.cuda.synchronize()
    return time.perf_counter() - began


def random_samples(
    number: int,
    shape: tuple[int, ...],
    classes: int,
    augmentation: str,
    device: str,
) -> Samples:
    """Return samples of random inputs: vectors, or pixels."""
    if len(shape) == 1:
        inputs_N = torch.rand(number, *shape)
        mean = torch.zeros(shape[0], device=device)
    else:
        inputs_N = torch.randint(256, (number, *shape)).byte()
        mean = torch.zeros(shape[0], 1, 1, device=device)  # one per channel
    labels_N = torch.arange(number, device=device) % classes
    return Samples(
        inputs_N.to(device),
        labels_N,
        mean=mean,
        std=mean + 1,
        augmentation=augmentation,
    )
