"""What a client may change of its reply: names, numbers, tensors, arrays, bytes and whole messages."""

import copy
import io
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from federation import CLIENTS, NODES, Records, Stage, message_of
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.common.serde import message_from_proto, message_to_proto
from harness import EDITS, Edit
from hypothesis import strategies as st
from torch import Tensor

from client_app.messages import pack, unpack
from client_app.state import State

NUMBERS = [0, 1, -1, 0.5, -0.0, 2, 7, 1e-45, 1e10, 1.1e10, 1e30, 3e38, 1e308, -1e308, math.nan, math.inf, -math.inf,
           2**31, 2**53, 2**62, 2**63 - 1, -(2**63), 10**18, 10**400, 10**5000]  # fmt: skip
ODD = [*NUMBERS, True, "1", b"", b"\x80", [], [1], [1.5], ["x"], "x" * 10_000]
TEXTS = [
    "",
    "no",
    "[/b]",
    "<script>alert(1)</script>",
    "a\nb\x1b[31m\u202e",
    "x" * 10**7,
    "9" * 5000,
    "\0",
]
NAMES = ["0{k}/{rest}", "{wide}/{rest}", "+{k}/{rest}", " {k}/{rest}", "{k} /{rest}", "{k}.0/{rest}", "{k}_0/{rest}",
         "-1/{rest}", "{other}/{rest}", "77/{rest}", "{long}/{rest}", "{k}//{rest}", "{k}/{rest}/x", "{k}/{rest}\0",
         "{k}/", "/", "", "{rest}", "{k}/upload/x", "{k}/model", "{k}/metrics", "{k}/worker", "{k}/error",
         "{k}/test/average", "{k}/test/../x", "{k}/" + "x" * 300, "x" * 100_000, "[/b]/{rest}",
         "\x1b[31m/{rest}"]  # fmt: skip
WORDS = [
    "float32",
    "int64",
    "object",
    "O",
    "bogus",
    "V9999999999",
    "",
    "numpy.ndarray",
    "safetensors",
    "pickle",
    "torch",
]
SHAPES = [(), (0,), (1,), (-1,), (2**40,), (2**40, 2**40), (1,) * 40, (64, 64), (3, 0)]
KINDS = ["name", "name", "twice", "missing", "type", "error", "exchange", "silent", "metric", "metric", "metric",
         "metrics", "worker", "value", "value", "value", "all values", "all values", "scale", "noise", "dtype", "shape",
         "tensor name", "tensor missing", "tensor extra", "array", "bytes", "bytes", "bytes", "array bytes",
         "array name", "no message", "message twice", "message error", "message of nobody"]  # fmt: skip


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
    """What a client changes of its reply, and whether it travels through protobuf."""

    client: int
    changes: list[Change]
    protobuf: bool


SHARE = st.floats(0, 1, exclude_max=True, width=16)
REPLIES = st.builds(
    Reply,
    st.integers(0, CLIENTS - 1),
    st.lists(
        st.builds(
            Change,
            st.sampled_from(KINDS),
            SHARE,
            SHARE,
            st.sampled_from(NUMBERS),
            st.sampled_from(ODD),
            EDITS,
        ),
        min_size=1,
        max_size=3,
    ),
    st.booleans(),
)


class Payload:
    """What a pickle would execute."""

    def __reduce__(self) -> tuple[Any, ...]:
        return eval, ("__import__('builtins').__dict__.update(executed=True)",)


def saved(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def pick(items: Iterable[Any], share: float) -> Any:
    """Return the item at a share of the sequence; None of none."""
    listed = list(items)
    return listed[int(share * len(listed))] if listed else None


def arrived(stage: Stage, reply: Reply) -> list[Message]:
    """Return both nodes' messages, one of which holds the changed reply."""
    node = next(node for node, clients in NODES.items() if reply.client in clients)
    records, others = (
        stage.records(node),
        [message_of(honest, stage.records(n)) for n, honest in stage.replies.items() if n != node],
    )
    changed = message_of(stage.replies[node], records)
    messages = [changed]
    for change in reply.changes:
        match change.kind:
            case "no message":
                messages = []
            case "message twice":
                messages = [*messages, message_of(stage.replies[node], stage.records(node))]
            case "message error":
                broken = copy.copy(stage.replies[node])
                broken.__dict__.update(_content=None, _error=Error(2, pick(TEXTS, change.part)))
                messages = [broken]
            case "message of nobody":
                changed = copy.copy(changed)
                changed.__dict__["_metadata"] = copy.copy(changed.metadata)
                changed.metadata.__dict__["_src_node_id"] = 77
                messages = [changed]
            case _:
                change_records(stage, records, reply.client, change)
    if messages and messages[0] is changed:
        changed.__dict__["_content"] = RecordDict(records)
        if reply.protobuf:
            messages = [through_protobuf(message) for message in messages]
    return [*messages, *others]


def through_protobuf(message: Message) -> Message:
    """Return a message as it comes out of flwr's protobuf, or as it is where that cannot hold it."""
    try:
        return message_from_proto(message_to_proto(message))
    except (ValueError, TypeError, OverflowError, KeyError, AttributeError):
        return message


def change_records(stage: Stage, records: Records, client: int, change: Change) -> None:
    """Change the client's records in place."""
    names = [name for name in records if name.startswith(f"{client}/")]
    name = pick(names, change.where)
    if name is None:
        return
    record, rest = records[name], name.split("/", 1)[1]
    wide, other = chr(0xFF10 + client), (client + 1) % CLIENTS
    words = {"k": client, "rest": rest, "wide": wide, "other": other, "long": "9" * 4301}
    match change.kind:
        case "name":
            records[pick(NAMES, change.part).format(**words)] = records.pop(name)
        case "twice":
            records[pick(NAMES, change.part).format(**words)] = record
        case "missing":
            del records[name]
        case "silent":
            for name in names:
                del records[name]
        case "type":
            junk = [
                ArrayRecord(),
                MetricRecord({"a": 1}),
                ConfigRecord({"a": b"x"}),
                ConfigRecord({"reason": "x"}),
            ]
            records[name] = pick(junk, change.part)
        case "error":
            key = pick(["reason", "reason", "reason", "x"], change.where)
            records[f"{client}/error"] = ConfigRecord({key: pick(TEXTS, change.part)})
        case "exchange":
            records[name] = stage.of(other).get(rest, record)
        case "metric" | "metrics" if f"{client}/metrics" in records:
            change_metrics(records, f"{client}/metrics", change)
        case "worker":
            key = pick(["process", "device", "visible-gpus", "gpu", "x" * 1000], change.part)
            with_odd(records, f"{client}/worker", key, change.odd)
        case "array" | "array bytes" | "array name" if isinstance(record, ArrayRecord) and record:
            records[name] = change_array(record, change)
        case _ if isinstance(record, ArrayRecord):
            try:
                records[name] = pack(change_state(unpack(record), change))
            except Exception:  # changed before, so that nothing is left to change
                return


def change_metrics(records: Records, name: str, change: Change) -> None:
    """Change the metrics: one of them, or which there are."""
    metrics = dict(records[name])
    key = pick(sorted(metrics), change.where)
    if change.kind == "metrics" and key is not None:
        if change.part < 0.3:
            metrics[pick(TEXTS, change.part)] = 1.0
        elif change.part < 0.6:
            del metrics[key]
        elif isinstance(
            metrics[key], int | float
        ):  # else an earlier change has put something odd there
            metrics[key] = metrics[key] * pick([1 + 1e-9, 1 + 1e-3, 2, 1000, -1], change.edit.place)
        records[name] = type(records[name])(metrics) if metrics else ConfigRecord({"x": "y"})
    elif key is not None:
        with_odd(records, name, key, change.odd if change.part < 0.5 else change.number)


def with_odd(records: Records, name: str, key: str, value: Any) -> None:
    """Set a value in a record, of another type where this one cannot hold it."""
    held = dict(records.get(name, {}))
    for kind in (MetricRecord, ConfigRecord):
        try:
            records[name] = kind({**held, key: value})
            return
        except (TypeError, ValueError):
            continue


def change_array(record: ArrayRecord, change: Change) -> ArrayRecord:
    """Return a record whose packed arrays are changed: what they say of themselves, their bytes, or their names."""
    name = pick(record, change.where)
    array, rest = record[name], {key: part for key, part in record.items() if key != name}
    fields = {
        "dtype": array.dtype,
        "shape": tuple(array.shape),
        "stype": array.stype,
        "data": array.data,
    }
    if change.kind == "array name":
        return ArrayRecord(
            {**rest, pick(["", "x", "state ", "head.bias", "x" * 5000], change.part): array}
        )
    if change.kind == "array":
        key = pick(["dtype", "shape", "stype", "data"], change.part)
        hostile = [
            b"",
            saved(np.array([Payload()], object)),
            saved(np.zeros(3)),
            b"\x93NUMPY\x01\x00",
            huge_header(array.data),
        ]
        fields[key] = pick(
            {"dtype": WORDS, "shape": SHAPES, "stype": WORDS, "data": hostile}[key],
            change.edit.place,
        )
    else:
        fields["data"] = change.edit.apply(array.data)
    return ArrayRecord({**rest, name: Array(**fields)})


def huge_header(data: bytes) -> bytes:
    """Return array bytes that declare far more than there is."""
    for number in (b"64", b"10", b"32"):
        if number in data[:400]:
            return data.replace(number, b"9" * len(number), 1)
    return data[:8] + b"\xff" * 8 + data[16:]


def change_state(state: State, change: Change) -> dict[str, Tensor]:
    """Return the state with one tensor changed before it is packed."""
    changed = {name: tensor.clone() for name, tensor in state.items()}
    name = pick(sorted(changed), change.where)
    tensor = changed[name]
    place = int(change.part * tensor.numel())
    number = (
        change.number if abs(change.number) < 2**63 or not math.isfinite(change.number) else 3e38
    )
    match change.kind:
        case "value" | "all values":
            whole = tensor.flatten()
            indices = slice(None) if change.kind == "all values" else slice(place, place + 1)
            whole[indices] = number if tensor.is_floating_point() or math.isfinite(number) else -1
            changed[name] = whole.reshape(tensor.shape)
        case "scale":
            factor = pick([-1, 1000, 1e-30, 0, 2, 1e6], change.part)
            changed = {key: (part * factor).to(part.dtype) for key, part in changed.items()}
        case "noise":
            noise = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(place))
            changed[name] = (tensor + noise * (0.01 if tensor.is_floating_point() else 2)).to(
                tensor.dtype
            )
        case "dtype":
            kind = pick(
                ["float16", "float64", "int64", "int32", "uint8", "bool", "complex64", "int16"],
                change.part,
            )
            changed[name] = tensor.to(getattr(torch, kind))
        case "shape":
            changed[name] = reshaped(tensor, change.part)
        case "tensor name":
            changed[
                pick(["", "x", f"{name} ", name.upper(), "x" * 5000, "classes", "\0"], change.part)
            ] = changed.pop(name)
        case "tensor missing":
            del changed[name]
        case "tensor extra":
            changed[pick(["", "x", "classes", "head.bias2", "x" * 5000], change.part)] = tensor
        case "bytes":
            raw = change.edit.apply(tensor.numpy().tobytes())[
                : tensor.numel() * tensor.element_size()
            ]
            raw = raw.ljust(tensor.numel() * tensor.element_size(), b"\0")
            if raw:
                changed[name] = torch.frombuffer(bytearray(raw), dtype=tensor.dtype).reshape(
                    tensor.shape
                )
    return changed


def reshaped(tensor: Tensor, share: float) -> Tensor:
    """Return the tensor in another shape."""
    flat = tensor.flatten()
    turned = tensor.mT.contiguous() if tensor.dim() > 1 else flat[:, None]
    single, none = flat[:1].reshape(()) if len(flat) else flat, flat[:0]
    many = tensor.reshape(*(1,) * 30, -1) if len(flat) else flat
    shapes = [
        flat,
        tensor[None],
        turned,
        single,
        none,
        flat[:-1],
        torch.cat([flat, flat]),
        many,
        none.reshape(0, 7),
    ]
    return pick(shapes, share)
