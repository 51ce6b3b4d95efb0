"""FedSkew's states as flwr's records, the names of the records in a message, and the reading of a client's reply.

Down: the model's ArrayRecord and the ConfigRecord `config`, as flwr's FedAvg sends them, and one ArrayRecord
`broadcast/VARIANT` for everything that a method sends beside the model.
Up: the model's ArrayRecord with the names that came, a MetricRecord, the ConfigRecord `fedskew`, and one ArrayRecord
`upload/VARIANT` for everything that a variant sends beside the model. Uploads are ArrayRecords on purpose: flwr's
privacy mods and wrappers protect ArrayRecords, and refuse a reply with one that they cannot protect. Bytes inside a
ConfigRecord would pass them unnoticed.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from torch import nn

from client_app.client import check_numbers
from client_app.messages import to_flower
from client_app.state import State
from strategies.core.validation import METRICS as NUMBERS
from strategies.core.validation import RejectedUpdate

BROADCAST = "broadcast/"
UPLOAD = "upload/"
MEMORY = "fedskew/"
"""Begins the names of the records that a client keeps in `context.state`."""
REPORT = "fedskew"
"""The ConfigRecord of a reply with the client's number, its steps and what FedNova needs."""
METRICS = "metrics"
PRIVATE = "private"
"""The memory of the tensors that never leave the client."""
UPLOADS = "fedskew-uploads"
"""The entry of the train config that names the uploads which the server's strategy takes."""
SGD_ALONE = "fedskew-sgd"
"""The entry of the train config that names the server's method whose equations assume SGD."""
BATCH_NORM = "batch-norm"
"""The upload with the batch norm that a client keeps, where UPLOADS names it."""
KEEPS_BATCH_NORM = "keeps-batch-norm"
"""The entry of REPORT that is true where the client keeps its batch norm."""
QUESTION = "question"
"""The entry of a query's config that names the question."""
FLAT = "flat-float32"
"""The one array that stands for a whole model: all its floating-point tensors, in the model's own order."""


def to_state(record: ArrayRecord, device: str | torch.device = "cpu") -> dict[str, torch.Tensor]:
    """Return a record as tensors on `device`. They are copies, because flwr's arrays are read-only."""
    return {name: torch.tensor(array.numpy(), device=device) for name, array in record.items()}


def with_prefix(records: Mapping[str, ArrayRecord], prefix: str) -> dict[str, ArrayRecord]:
    """Return the records whose names begin so, by the rest of their names."""
    return {
        name.removeprefix(prefix): record
        for name, record in records.items()
        if name.startswith(prefix)
    }


def states_in(
    content: RecordDict, prefix: str, device: str | torch.device = "cpu"
) -> dict[str, State]:
    """Return the records whose names begin with `prefix` as states on `device`, by the rest of their names."""
    records = with_prefix(content.array_records, prefix)
    return {name: to_state(record, device) for name, record in records.items()}


def config_of(message: Message) -> Mapping[str, Any]:
    """Return the entries of all of the message's ConfigRecords."""
    entries: dict[str, Any] = {}
    for record in message.content.config_records.values():
        entries.update(record)
    return entries


def model_record(message: Message) -> tuple[str, ArrayRecord]:
    """Return the name and the record of the model's arrays. Raises ValueError unless there is exactly one."""
    records = message.content.array_records
    names = [name for name in records if not name.startswith((BROADCAST, UPLOAD))]
    if len(names) != 1:
        raise ValueError(
            f"the message has the ArrayRecords {sorted(names)} and must have one with the model: "
            "start the strategy with initial_arrays=ArrayRecord(model.state_dict())"
        )
    return names[0], records[names[0]]


def flat_arrays(model: nn.Module) -> ArrayRecord:
    """Return a model as one float32 array, for `initial_arrays`.

    flwr moves every array as two objects, some 0.1 s each per exchange between sites: 251 objects for ResNet-18, and 6
    with this. All of flwr's strategies average one array as they average many. Integer buffers, such as batch norm's
    counter, stay behind. `local_round` and `load_model` take the array apart again.
    """
    return to_flower(flatten(model.state_dict()))


def flatten(state: State) -> dict[str, torch.Tensor]:
    """Return the floating-point tensors of a state as one float32 vector named FLAT."""
    vectors = [t.detach().reshape(-1).float() for t in state.values() if t.is_floating_point()]
    return {FLAT: torch.cat(vectors)}


def state_like(record: ArrayRecord, own: State) -> dict[str, torch.Tensor]:
    """Return a model's record, flat or not, in the dtypes and on the device of `own`.

    flwr's mean makes float64 of integer buffers, and some wrappers make it of every tensor.

    Raises ValueError for a tensor that `own` does not have in that shape, and for a flat one of another length.
    """
    sent = to_state(record)
    if sent.keys() == {FLAT}:
        names = [name for name, tensor in own.items() if tensor.is_floating_point()]
        sizes = [own[name].numel() for name in names]
        shape, total = tuple(sent[FLAT].shape), sum(sizes)
        if shape != (total,):
            raise ValueError(f"{FLAT} has the shape {shape}, and the model has {total} values")
        parts = torch.split(sent[FLAT], sizes)
        sent = {name: part.view(own[name].shape) for name, part in zip(names, parts, strict=True)}
    result = {}
    for name, tensor in sent.items():
        if name not in own or tensor.shape != own[name].shape:
            raise ValueError(
                f"{ascii(name)[:80]} of shape {tuple(tensor.shape)} is not in the model: build the same one everywhere"
            )
        if tensor.is_floating_point() and not own[name].is_floating_point():
            tensor = tensor.round()
        result[name] = tensor.to(own[name])
    return result


def client_order(reply: Message) -> tuple[int, int]:
    """Return the key by which replies are sorted: the client's number, or its node's where it states none; the node."""
    node = reply.metadata.src_node_id
    stated: object = None
    if not reply.has_error() and REPORT in reply.content.config_records:
        stated = reply.content.config_records[REPORT].get("client")
    return stated if isinstance(stated, int) else node, node


def read(function: Callable[[ArrayRecord], Any], record: ArrayRecord) -> Any:
    """Return what `function` makes of a record. Raises RejectedUpdate for bytes that are no arrays."""
    try:
        return function(record)
    except Exception as error:  # whatever a client sends must not end the server
        raise RejectedUpdate(f"its arrays cannot be read: {error}") from error


def numbers_of(reply: Message, weighted_by: str) -> dict[str, float]:
    """Return num-examples, which the app's metric `weighted_by` is, loss, steps and coefficient-sum of a reply.

    The numbers of variants, VARIANT/NAME, are checked as well. Raises RejectedUpdate for impossible ones.
    """
    record = next(iter(reply.content.metric_records.values()), MetricRecord())
    metrics: dict[str, Any] = dict(record)
    report = reply.content.config_records.get(REPORT)
    stated: dict[str, Any] = {**(report or {}), "num-examples": metrics.get(weighted_by, 0)}
    try:
        numbers = {name: float(stated[name]) for name in NUMBERS.keys() & stated.keys()}
        if report is not None:  # the metrics of an app that trains in a loop of its own are its own
            check_numbers({name: float(metrics[name]) for name in metrics if "/" in name})
    except (TypeError, ValueError) as error:  # a list, a text, or InvalidReply
        raise RejectedUpdate(str(error)) from None
    for name, value in numbers.items():
        reason = NUMBERS[name].violation(value, value)
        if reason:
            raise RejectedUpdate(f"{name} {reason}")
    return numbers


def check_steps(numbers: Mapping[str, float]) -> None:
    """Raise RejectedUpdate for a coefficient sum that no optimizer makes in so many steps.

    With any momentum and any pull towards the start, K steps make at least 1 and at most 1 + 2 + ... + K. A smaller sum
    would let one client own FedNova's mean.
    """
    missing = {"steps", "coefficient-sum"} - numbers.keys()
    if missing:
        raise RejectedUpdate(f"it sends no {min(missing)}: FedNova's clients use local_round")
    steps = numbers["steps"]
    total = numbers["coefficient-sum"]
    most = steps * (steps + 1) / 2
    rounding = 1e-6
    if not 1 - rounding <= total <= most + rounding:
        raise RejectedUpdate(f"coefficient-sum is {total:g}, which {steps:g} steps cannot make")
