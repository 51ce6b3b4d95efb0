"""FedSkew's states as flwr's records, and the names of the records in a message.

Down: the model's ArrayRecord and the ConfigRecord `config`, as flwr's FedAvg sends them, and one ArrayRecord
`broadcast/VARIANT` for everything that a method sends beside the model.
Up: the model's ArrayRecord with the names that came, a MetricRecord, the ConfigRecord `fedskew`, and one ArrayRecord
`upload/VARIANT` for everything that a variant sends beside the model. Uploads are ArrayRecords on purpose: flwr's
privacy mods and wrappers protect ArrayRecords, and refuse a reply with one that they cannot protect. Bytes inside a
ConfigRecord would pass them unnoticed.
"""

from collections.abc import Mapping
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, Message, RecordDict
from torch import nn

from client_app.state import State

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


def to_record(state: State) -> ArrayRecord:
    """Return a state as flwr's strategies expect it, one array per tensor."""
    arrays = {}
    for name, tensor in state.items():
        values = tensor.detach().cpu().contiguous().numpy()
        arrays[name] = Array(values)
    return ArrayRecord(arrays)


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
    return to_record(flatten(model.state_dict()))


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
