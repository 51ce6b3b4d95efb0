"""Formulas for a run's memory and bytes on disk and in messages, and the runs that do not fit this machine."""

import math
import statistics
from copy import deepcopy
from functools import lru_cache

import psutil
import torch

from client_app.models import Classifier, ModelSettings
from client_app.models.classifier import INFERENCE_BATCH
from client_app.models.outline import without_numbers
from client_app.personal import variants_with_models
from client_app.process import choose_device
from client_app.state import size
from client_app.training import private_names
from data import SettingError
from data.readers.catalog import KNOWN
from fedskew.costs.sizes import Sizes
from fedskew.formatting import in_bytes
from server_app.predictions import LARGEST
from server_app.run_settings import RunSettings, sized_model
from strategies.core.server import Server, ServerMethod

PROCESS = 400 * 2**20
"""Bytes that a process of a run has for itself before it has data and a model: Python, torch and flwr."""
MODELS = 8
"""Copies of the model that server and client hold at a time: shared, start, gradients, momentum, ..."""
STACKED = 4
"""Copies of the model for every further client of a pass: weights, gradients, momentum, directions."""
ADAM = 2
"""Copies of the model that Adam has beyond SGD's, per client of a pass: squares of gradients, and their roots."""
ALIVE = 3
"""Layers' outputs that are there at a time in evaluation. In training all are."""
FILES = 3
"""Files that a client keeps: of the last round and of the two before."""
RECORD, SUMMARY = 5000, 10_000
"""Bytes of a round's record, and of what the summary says of a deployed model."""


def participants(settings: RunSettings) -> int:
    """Return how many clients take part in a round."""
    share = settings.general.participation * settings.data.clients
    return max(1, int(share + 1e-9))  # 0.29 * 100 is a little below 29


def parts_of(settings: RunSettings) -> list[ServerMethod]:
    """Return the methods' server sides."""
    return [settings.combine, *settings.monitors, *settings.deploys]


def device_of(settings: RunSettings) -> str:
    """Return where the run would compute; one that demands a GPU counts on the CPU where there is none."""
    device = settings.general.device
    return choose_device("auto" if device == "cuda" else device)


def model_of(settings: RunSettings) -> Classifier:
    """Return the run's model, for the sizes of its tensors."""
    classes = settings.data.num_classes
    return sized_model(settings.general.model, settings.input_shape, classes, settings.model)


def server_of(settings: RunSettings) -> Server:
    """Return the server before round 1, for the sizes of its tensors."""
    model = model_of(settings)
    private = private_names(model, settings.variants)
    return Server(
        model=model,
        start={name: tensor for name, tensor in model.tensors.items() if name not in private},
        clients=settings.data.clients,
        round=1,
        seed=settings.general.seed,
        training=settings.training,
        parameters=frozenset(model.trained) - private,
    )


def memory_of(settings: RunSettings, sizes: Sizes | None) -> int:
    """Return the bytes that a run needs in one process: models, activations, the methods' own work, data, replies.

    Without `sizes` data and replies count nothing.
    """
    model = model_of(settings)
    state = size(model.tensors)
    taking = participants(settings)
    stacked = min(settings.training.clients_per_pass, taking) - 1
    copies = MODELS + STACKED * stacked
    if settings.training.optimizer != "sgd":
        copies += ADAM * (1 + stacked)
    work = sum(part.memory_bytes(model) for part in parts_of(settings))
    need = PROCESS + copies * state + activations_of(settings) + work
    if sizes is None:
        return need

    known = KNOWN.get(settings.data.dataset)
    in_memory = known is None or not known.image_folder  # folders of images are read when needed
    if in_memory:
        shape = settings.input_shape
        bytes_per_value = 4 if len(shape) == 1 else 1  # float32, or pixels
        samples = sum(sizes.train) + sizes.test + sizes.holdout
        need += samples * bytes_per_value * math.prod(shape)

    classes = max(sizes.held)
    updates = taking * (state + upload_of(settings, classes, once=False))
    answers = settings.data.clients * upload_of(settings, classes, once=True)
    return need + 2 * max(updates, answers)  # they are there twice while they are summed


def activations_of(settings: RunSettings) -> int:
    """Return the bytes of the layers' outputs of a batch, in training or in evaluation."""
    largest, every = output_bytes(
        settings.general.model,
        settings.input_shape,
        settings.data.num_classes,
        settings.model,
    )
    together = min(settings.training.clients_per_pass, participants(settings))
    in_training = together * settings.training.batch_size * every
    in_evaluation = INFERENCE_BATCH[device_of(settings)] * ALIVE * largest
    return max(in_training, in_evaluation)


@lru_cache(maxsize=16)
def output_bytes(
    name: str,
    shape: tuple[int, ...],
    classes: int,
    settings: ModelSettings,
) -> tuple[int, int]:
    """Return the bytes for one sample of the largest layer's output, and of all. Nothing is computed for that."""
    # A copy, as it gets hooks and another mode.
    model = deepcopy(sized_model(name, shape, classes, settings)).eval().to("meta")
    outputs = [0]

    def count(module: object, inputs: object, output: object) -> None:
        if isinstance(output, torch.Tensor):
            outputs.append(output.numel() * output.element_size())

    for module in model.modules():
        if not list(module.children()):
            module.register_forward_hook(count)
    try:
        with without_numbers():
            model(torch.empty(1, *shape))
    except (RuntimeError, NotImplementedError):
        return 0, 0  # a model of the user's own may need numbers to know its shapes
    return max(outputs), sum(outputs)


def disk_of(settings: RunSettings, tested: int = 0, validated: int = 0) -> int:
    """Return the bytes of a finished run's folder.

    That is two checkpoints, what clients keep, a record per round, and per model its numbers and its predictions of the
    `tested` and `validated` samples that the server measures on. With keep-best it is also the best rounds of both
    checkpoints.
    """
    model = model_of(settings)
    with without_numbers():  # the methods' own code makes their states
        server = server_of(settings)
        states = states_bytes(settings, server)
    shared = size(server.start)
    head = size(dict(model.head.named_parameters()))
    checkpoint = shared + len(settings.deploys) * head + states

    private = size(model.tensors) - shared
    memories = sum(variant.kept_bytes(model) for variant in settings.variants)
    models = 1 + len(settings.deploys)
    own_models = len(variants_with_models(settings.variants))
    files = FILES
    best_rounds = 0
    if settings.general.keep_best:
        # Each model may have a best round of its own.
        best_rounds = 2 * (models + own_models) * (checkpoint - states)
        files += models + own_models
    clients = files * settings.data.clients * (private + memories)

    numbers_per_sample = settings.data.num_classes + 2  # log-probabilities, label, sample
    per_sample = 8 * models * numbers_per_sample
    predictions = (tested + validated) * per_sample
    if predictions > LARGEST:  # then the run does not keep those for validation
        predictions = tested * per_sample
    if predictions > LARGEST:  # nor the others
        predictions = 0
    text = max(settings.general.rounds, 1) * RECORD + (models + own_models) * SUMMARY
    return 2 * checkpoint + best_rounds + clients + text + predictions


def states_bytes(settings: RunSettings, server: Server) -> int:
    """Return the bytes of what a checkpoint has beside weights: states of methods and optimizer, clients' answers."""
    methods_bytes = 0
    for method in parts_of(settings):
        methods_bytes += size(method.initial_state(server))

    trained = {name: tensor for name, tensor in server.start.items() if name in server.parameters}
    optimizer_bytes = settings.general.optimizer.copies * size(trained)

    answers_bytes = 0
    for variant in settings.variants:
        upload = variant.upload
        if upload.question:
            # A sum of all clients' answers is kept once.
            answers = settings.data.clients if upload.by_client else 1
            answers_bytes += answers * upload.bytes(server.model, settings.data.num_classes)
    return methods_bytes + optimizer_bytes + answers_bytes


def down_of(settings: RunSettings) -> int:
    """Return the bytes that a client is sent in a round: the shared weights, and what the methods send beside."""
    with without_numbers():
        server = server_of(settings)
        total = size(server.start)
        for part in parts_of(settings):
            states = part.broadcast(server, part.initial_state(server))
            total += sum(size(state) for state in states.values())
    for variant in settings.variants:
        # The sum of all clients' answers goes back to each of them.
        if variant.upload.question and variant.upload.returned:
            total += variant.upload.bytes(server.model, settings.data.num_classes)
    return total


def up_of(settings: RunSettings, sizes: Sizes) -> tuple[float, float]:
    """Return the bytes that a client sends in a round, and once: the mean over all clients."""
    shared = size(server_of(settings).start)
    with_updates = [upload_of(settings, classes, once=False) for classes in sizes.held]
    asked_once = [upload_of(settings, classes, once=True) for classes in sizes.held]
    each_round = shared + statistics.fmean(with_updates)
    return each_round, statistics.fmean(asked_once)


def upload_of(settings: RunSettings, classes: int, once: bool) -> int:
    """Return the bytes that a client sends at most beside its model, as an answer (`once`) or with every update.

    Args:
        settings: of the run.
        classes: of which the client has samples.
        once: whether to count answers to questions that are asked once, or what every update has.
    """
    model = model_of(settings)
    total = 0
    for variant in settings.variants:
        if variant.upload.once is once:
            total += variant.upload.bytes(model, classes)
    return total


def refuse_what_cannot_fit(settings: RunSettings, sizes: Sizes | None) -> None:
    """Raise SettingError for a run that this machine's memory cannot hold, with the remedy."""
    need = memory_of(settings, sizes)
    there = psutil.virtual_memory().total
    if sizes is None or need <= there:
        return
    model = model_of(settings)
    classes = max(sizes.held)
    short = f"the run needs {in_bytes(need)} of memory and this machine has {in_bytes(there)}"
    for variant in settings.variants:
        upload = variant.upload
        limit = upload.limit
        sent = upload.bytes(model, classes)
        replies = settings.data.clients if upload.once else participants(settings)
        # Half of the memory, as replies count twice.
        if limit is not None and 4 * replies * sent > need:
            value = getattr(variant, limit.setting.replace("-", "_"))
            rule = f"a client's upload is up to {in_bytes(sent)}, {short}: {limit.remedy}"
            raise SettingError(f"{variant.name}.{limit.setting}", value, rule)
    for part in parts_of(settings):
        work = part.memory_bytes(model)
        if work > there / 2:
            takes = f"{part.name}'s own work takes {in_bytes(work)}"
            rule = f"{takes}, {short}: must be another one, or a smaller model"
            raise SettingError("method", settings.general.method, rule)
    raise SettingError("participation", settings.general.participation, f"{short}: must be lower")


def deploying_share(settings: RunSettings, part: ServerMethod) -> float:
    """Return in which share of the rounds a server method deploys."""
    rounds = settings.general.rounds
    if not part.deploys_for_evaluation or rounds == 0:
        return 1.0
    return sum(map(settings.general.is_evaluated, range(1, rounds + 1))) / rounds
