"""What a client may change of its reply: names, numbers, tensors, arrays, bytes and whole messages."""

import copy
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from federation import CLIENTS, Records, Stage, message_of, node_of
from files import npy
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from harness import EDITS, Edit, Payload
from hypothesis import strategies as st
from torch import Tensor

from client_app.messages import pack, unpack
from client_app.state import State

NUMBERS = [0, 1, -1, 0.5, -0.0, 2, 7, 1e-45, 1e10, 1.1e10, 1e30, 3e38, 1e308, -1e308, math.nan, math.inf, -math.inf,
           2**31, 2**53, 2**62, 2**63 - 1, -(2**63), 10**18, 10**400, 10**5000]  # fmt: skip
ODD = [*NUMBERS, True, "1", b"", b"\x80", [], [1], [1.5], ["x"], "x" * 10_000]
TEXTS = ["", "no", "[/b]", "<script>alert(1)</script>", "a\nb\x1b[31m\u202e", "x" * 10**7, "9" * 5000,
         "\0"]  # fmt: skip
NAMES = ["0{k}/{rest}", "{wide}/{rest}", "+{k}/{rest}", " {k}/{rest}", "{k} /{rest}", "{k}.0/{rest}", "{k}_0/{rest}",
         "-1/{rest}", "{other}/{rest}", "77/{rest}", "{long}/{rest}", "{k}//{rest}", "{k}/{rest}/x", "{k}/{rest}\0",
         "{k}/", "/", "", "{rest}", "{k}/upload/x", "{k}/model", "{k}/metrics", "{k}/worker", "{k}/error",
         "{k}/test/average", "{k}/test/../x", "{k}/" + "x" * 300, "x" * 100_000, "[/b]/{rest}",
         "\x1b[31m/{rest}"]  # fmt: skip
TENSOR_NAMES = ["", "x", "classes", "head.bias2", "x" * 5000, "\0"]
FIELDS: dict[str, list[Any]] = {
    "dtype": ["int64", "object", "bogus", "V9999999999", ""],
    "shape": [(), (0,), (-1,), (2**40, 2**40), (1,) * 40, (64, 64)],
    "stype": ["bogus", "", "safetensors", "pickle"],
    "data": [b"", npy(np.array([Payload()], object)), npy(np.zeros(3)), b"\x93NUMPY\x01\x00"],
}
"""What an array says of itself."""
JUNK = [
    ArrayRecord(),
    MetricRecord({"a": 1}),
    ConfigRecord({"a": b"x"}),
    ConfigRecord({"reason": "x"}),
]
DTYPES = [torch.float16, torch.float64, torch.int64, torch.uint8, torch.bool, torch.complex64]
OF_MESSAGES = ["no message", "message twice", "message error"]
OF_TENSORS = ["value", "value", "value", "all values", "all values", "scale", "dtype", "shape", "tensor name",
              "tensor extra", "bytes", "bytes"]  # fmt: skip
OF_ARRAYS = ["array", "array bytes"]
OF_RECORDS = ["name", "name", "twice", "missing", "silent", "type", "error", "exchange", "metric", "metric", "metric",
              "scaled metric", "no metric"]  # fmt: skip


@dataclass(frozen=True)
class Change:
    """One change of a client's reply; `where` and `part` are shares: which record, and what of it."""

    kind: str
    where: float
    part: float
    number: float
    odd: Any
    edit: Edit


@dataclass(frozen=True)
class Reply:
    """What a client changes of its reply."""

    client: int
    changes: list[Change]


SHARE = st.floats(0, 1, exclude_max=True, width=16)
KINDS = st.sampled_from([*OF_MESSAGES, *OF_TENSORS, *OF_ARRAYS, *OF_RECORDS])
CHANGES = st.builds(
    Change, KINDS, SHARE, SHARE, st.sampled_from(NUMBERS), st.sampled_from(ODD), EDITS
)
REPLIES = st.builds(Reply, st.integers(0, CLIENTS - 1), st.lists(CHANGES, min_size=1, max_size=3))


def pick(items: Iterable[Any], share: float) -> Any:
    """Return the item at a share of the sequence; None of none."""
    listed = list(items)
    return listed[int(share * len(listed))] if listed else None


def arrived(stage: Stage, reply: Reply) -> list[Message]:
    """Return both nodes' messages, one of which holds the changed reply."""
    node = node_of(reply.client)
    honest, records = stage.replies[node], stage.records(node)
    others = [message for number, message in stage.replies.items() if number != node]
    changed = message_of(honest, records)
    messages = [changed]
    for change in reply.changes:
        match change.kind:
            case "no message":
                messages = []
            case "message twice":
                messages = [*messages, message_of(honest, stage.records(node))]
            case "message error":
                broken = copy.copy(honest)
                broken.__dict__.update(_content=None, _error=Error(2, pick(TEXTS, change.part)))
                messages = [broken]
            case _:
                change_records(stage, records, reply.client, change)
    if messages and messages[0] is changed:
        changed.__dict__["_content"] = RecordDict(records)
    return [*messages, *others]


def change_records(stage: Stage, records: Records, client: int, change: Change) -> None:
    """Change the client's records in place."""
    names = [name for name in records if name.startswith(f"{client}/")]
    name = pick(names, change.where)
    if name is None:
        return
    record, rest = records[name], name.split("/", 1)[1]
    other = (client + 1) % CLIENTS
    words = {
        "k": client,
        "rest": rest,
        "wide": chr(0xFF10 + client),
        "other": other,
        "long": "9" * 4301,
    }
    match change.kind:
        case "name" | "twice":
            records[pick(NAMES, change.part).format(**words)] = record
            if change.kind == "name":
                records.pop(name)
        case "missing":
            del records[name]
        case "silent":
            for of_client in names:
                del records[of_client]
        case "type":
            records[name] = pick(JUNK, change.part)
        case "error":
            key = pick(["reason", "reason", "reason", "x"], change.where)
            records[f"{client}/error"] = ConfigRecord({key: pick(TEXTS, change.part)})
        case "exchange":
            records[name] = stage.records(node_of(other)).get(f"{other}/{rest}", record)
        case "metric" | "scaled metric" | "no metric" if f"{client}/metrics" in records:
            change_metrics(records, f"{client}/metrics", change)
        case "array" | "array bytes" if isinstance(record, ArrayRecord) and record:
            records[name] = change_array(record, change)
        case _ if isinstance(record, ArrayRecord):
            try:
                records[name] = pack(change_state(unpack(record), change))
            except Exception:  # changed before, so that nothing is left to change
                return


def change_metrics(records: Records, name: str, change: Change) -> None:
    """Change a number of the metrics, or leave it out."""
    metrics = dict(records[name])
    key = pick(sorted(metrics), change.where)
    if key is None:
        return
    value = metrics.pop(key)
    if change.kind == "metric":
        metrics[key] = change.odd
    elif change.kind == "scaled metric" and isinstance(value, int | float):
        metrics[key] = value * pick([1 + 1e-9, 1 + 1e-3, 2, 1000, -1], change.part)
    for kind in (MetricRecord, ConfigRecord):  # the second holds texts
        try:
            records[name] = kind(metrics)
            return
        except (TypeError, ValueError):
            continue


def change_array(record: ArrayRecord, change: Change) -> ArrayRecord:
    """Return a record of which one packed array is changed: what it says of itself, or its bytes."""
    name = pick(record, change.where)
    array = record[name]
    fields = {key: getattr(array, key) for key in FIELDS}
    if change.kind == "array":
        key = pick(FIELDS, change.part)
        fields[key] = pick(FIELDS[key], change.edit.place)
    else:
        fields["data"] = change.edit.apply(array.data)
    return ArrayRecord({**record, name: Array(**fields)})


def change_state(state: State, change: Change) -> dict[str, Tensor]:
    """Return the state with one tensor changed before it is packed."""
    changed = {name: tensor.clone() for name, tensor in state.items()}
    name = pick(sorted(changed), change.where)
    tensor = changed[name]
    flat = tensor.flatten()
    place = int(change.part * tensor.numel())
    match change.kind:
        case "value" | "all values":
            number = change.number if abs(change.number) < 2**63 else 3e38
            if not (tensor.is_floating_point() or math.isfinite(number)):
                number = -1
            flat[slice(None) if change.kind == "all values" else slice(place, place + 1)] = number
            changed[name] = flat.reshape(tensor.shape)
        case "scale":
            factor = pick([-1, 1000, 1e-30, 0, 2, 1e6], change.part)
            changed = {key: (part * factor).to(part.dtype) for key, part in changed.items()}
        case "dtype":
            changed[name] = tensor.to(pick(DTYPES, change.part))
        case "shape":
            turned = tensor.mT.contiguous() if tensor.dim() > 1 else flat[:, None]
            shapes = [flat, tensor[None], turned, flat[:0], flat[:-1], torch.cat([flat, flat])]
            changed[name] = pick(shapes, change.part)
        case "tensor name":
            changed[pick([*TENSOR_NAMES, f"{name} "], change.part)] = changed.pop(name)
        case "tensor extra":
            changed[pick(TENSOR_NAMES, change.part)] = tensor
        case "bytes":
            length = tensor.numel() * tensor.element_size()
            raw = bytearray(
                change.edit.apply(tensor.numpy().tobytes())[:length].ljust(length, b"\0")
            )
            if raw:
                changed[name] = torch.frombuffer(raw, dtype=tensor.dtype).reshape(tensor.shape)
    return changed
