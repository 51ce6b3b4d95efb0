"""How much memory a run needs, by a rough formula, and which runs a machine cannot hold."""

from collections.abc import Iterable
from functools import lru_cache

import psutil
import torch

from client_app.client import Variant
from client_app.messages import size
from client_app.models import Classifier, build
from client_app.models.classifier import INFERENCE_BATCH
from client_app.variants.augmented_gradients import AugmentedGradients
from client_app.variants.class_statistics import ClassStatistics
from client_app.variants.control_variates import ControlVariates
from client_app.variants.feature_gradients import FeatureGradients
from data import SettingError
from fedskew.costs.sizes import Sizes
from fedskew.numbers import in_bytes
from server_app.run_settings import RunSettings
from strategies.ratio_loss import RatioLoss

PROCESS = 100 * 2**20
"""Bytes that a worker process has for itself beside data and models; most of it is shared with the others."""
MODELS = 8
"""Copies of the model that server and client hold at a time: shared, start, scratchpad, gradients, momentum, ..."""
ALIVE = 3
"""Layers' outputs that are there at a time in evaluation; in training all are."""


def memory_of(settings: RunSettings, sizes: Sizes | None) -> int:
    """Return the bytes that a run needs in one process: data, models, all replies of a round, a batch's activations.

    Replies count twice, as they are summed. Without `sizes` data and replies count nothing.
    """
    model, shape = model_of(settings), shape_of(settings)
    largest, every = output_bytes(settings.general.model, shape, classes_of(settings))
    own = size(model.state_dict())
    evaluated = INFERENCE_BATCH["cuda" if settings.general.device != "cpu" and torch.cuda.is_available() else "cpu"]
    need = PROCESS + MODELS * own + max(evaluated * ALIVE * largest, settings.training.batch_size * every)
    if sizes is None:
        return need
    one = 4 * shape[0] if len(shape) == 1 else shape[0] * shape[1] * shape[2]
    if settings.data.dataset != "imagenet-lt":  # whose images stay in their files
        need += (sum(sizes.train) + sizes.test + sizes.holdout) * one
    held, every_round = max(sizes.held), [one for one in settings.variants if not isinstance(one, ClassStatistics)]
    answers = participants(settings) * (own + upload_of(every_round, model, held))
    statistics = settings.data.clients * upload_of(set(settings.variants) - set(every_round), model, held)
    replies = max(answers, statistics)
    displacements = 8 * classes_of(settings) * model.head.weight.numel()  # of every head on each class
    monitors = displacements if any(isinstance(monitor, RatioLoss) for monitor in settings.monitors) else 0
    return need + 2 * replies + monitors


def participants(settings: RunSettings) -> int:
    """Return how many clients take part in a round."""
    return max(1, int(settings.general.participation * settings.data.clients + 1e-9))


def upload_of(variants: Iterable[Variant], model: Classifier, held: int) -> int:
    """Return the bytes that a client holding samples of `held` classes sends at most beside its model."""
    classes, width = model.head.weight.shape
    total = 0
    for one in variants:
        match one:
            case FeatureGradients():
                total += one.sent(held) * (8 + 4 * classes * width)
            case AugmentedGradients():
                total += held * (8 + 4 * classes * (width + 1))
            case ClassStatistics():
                total += held * (16 + 8 * width + 8 * width**2)
            case ControlVariates():
                total += size(dict(model.named_parameters()))
    return total


def shape_of(settings: RunSettings) -> tuple[int, ...]:
    """Return the shape of one input."""
    return tuple(int(side) for side in settings.data.input_shape.split("x"))


def classes_of(settings: RunSettings) -> int:
    """Return the number of classes."""
    return len(settings.data.classes.split(","))


def model_of(settings: RunSettings) -> Classifier:
    """Return the run's model, for the sizes of its tensors."""
    return cached_model(settings.general.model, shape_of(settings), classes_of(settings))


@lru_cache(maxsize=16)
def cached_model(name: str, shape: tuple[int, ...], classes: int) -> Classifier:
    """Return a model."""
    return build(name, shape, classes, 0)


@lru_cache(maxsize=16)
def output_bytes(name: str, shape: tuple[int, ...], classes: int) -> tuple[int, int]:
    """Return the bytes for one sample of the largest layer's output, and of all; nothing is computed for that."""
    model, found = build(name, shape, classes, 0).eval().to("meta"), [0]

    def count(module: object, inputs: object, output: object) -> None:
        if isinstance(output, torch.Tensor):
            found.append(output.numel() * output.element_size())

    for module in model.modules():
        if not list(module.children()):
            module.register_forward_hook(count)
    try:
        model(torch.empty(1, *shape, device="meta"))
    except (RuntimeError, NotImplementedError):
        return 0, 0  # somebody's own model may need numbers to know its shapes
    return max(found), sum(found)


def refuse_what_cannot_fit(settings: RunSettings, sizes: Sizes | None) -> None:
    """Raise SettingError for a run that this machine's memory cannot hold, with the remedy."""
    need, there = memory_of(settings, sizes), psutil.virtual_memory().total
    if sizes is None or need <= there:
        return
    model, held = model_of(settings), max(sizes.held)
    for one in settings.variants:
        if isinstance(one, FeatureGradients) and one.sent(held) > 1:
            upload = upload_of([one], model, held)
            rule = (
                f"the gradients of {one.sent(held)} classes are up to {in_bytes(upload)} a client and the run needs "
                f"{in_bytes(need)} of memory, where this machine has {in_bytes(there)}: must be smaller (0 is all)"
            )
            raise SettingError("feature-gradients.classes-per-round", one.classes_per_round, rule)
    statistics = sum(upload_of([one], model, held) for one in settings.variants if isinstance(one, ClassStatistics))
    if 2 * statistics * settings.data.clients > there:
        rule = (
            f"CCVR's covariances are up to {in_bytes(statistics)} a client and the run needs {in_bytes(need)} of "
            f"memory, where this machine has {in_bytes(there)}: must be without ccvr, or with a model of fewer features"
        )
        raise SettingError("method", settings.general.method, rule)
    rule = f"the run needs {in_bytes(need)} of memory and this machine has {in_bytes(there)}: must be lower"
    raise SettingError("participation", settings.general.participation, rule)
