"""Conversion of a state to bytes in the safetensors format, and safe reading of untrusted bytes.

In a blob the tensors follow each other without a gap, in the order of its head, which is the state's. A reader looks at
the whole head before it builds anything, and what it builds takes no more bytes than arrived.
"""

import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from client_app.state import State

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
"""The format's names of the types that a state may have."""
NAMES = {dtype: name for name, dtype in DTYPES.items()}
HEAD = 8
"""Bytes that say how long the head is."""
LONGEST_HEAD, MOST_SIDES, LARGEST = 2**22, 16, 2**62
"""Bytes of a head, dimensions of a tensor, and values that its shape may speak of."""
LONGEST_ENTRY = 2**10
"""Bytes of a head for each tensor that is expected; this project's names and shapes take about 100."""


@dataclass(frozen=True)
class Expected:
    """The largest contents that a blob may have."""

    bytes: int
    tensors: int

    @property
    def head(self) -> int:
        """Bytes that its head may have."""
        return min(LONGEST_HEAD, LONGEST_ENTRY * self.tensors)


class DecodeError(ValueError):
    """Bytes that do not decode to a state; the message says why."""


@dataclass(frozen=True)
class TensorSpec:
    """A tensor's name, type, shape and position in a blob."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    """The first byte, counted from the blob's."""

    @property
    def bytes(self) -> int:
        """Bytes that the tensor takes."""
        return math.prod(self.shape) * self.dtype.itemsize


def to_bytes(state: State) -> bytes:
    """Return the state as a blob."""
    head = dict[str, Any]()
    parts = list[memoryview]()
    end = 0
    for name, tensor in state.items():
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        values = flat.view(torch.uint8).numpy()
        begin = end
        end += values.nbytes
        head[name] = {
            "dtype": NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
        parts.append(values.data)
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the format aligns the tensors to 8 bytes
    length = len(text).to_bytes(HEAD, "little")
    return b"".join([length, text, *parts])


def from_bytes(blob: bytes, most: Expected | None = None) -> dict[str, Tensor]:
    """Return the state in a blob of at most `most`, if that is given.

    Bytes, head and tensors are counted before anything is built: an empty tensor takes no bytes of a blob, but half a
    kilobyte of memory. The tensors share no memory with the blob: there they lie at any byte, and a matrix product's
    last bits depend on that. Raises DecodeError.
    """
    if most is not None and len(blob) > most.bytes:
        raise DecodeError(f"{len(blob)} bytes arrived, and at most {most.bytes} are expected")
    state = {}
    for spec in tensor_specs(blob, most):
        tensor = torch.empty(spec.shape, dtype=spec.dtype)
        flat = tensor.reshape(-1)
        memory = flat.view(torch.uint8).numpy()  # of the tensor itself
        memory[:] = np.frombuffer(blob, np.uint8, count=spec.bytes, offset=spec.begin)
        state[spec.name] = tensor
    return state


def tensor_specs(blob: bytes, most: Expected | None = None) -> list[TensorSpec]:
    """Return a blob's tensors, each right behind the one before.

    Raises DecodeError for a head that says otherwise, or that is of more than `most`.
    """
    length = int.from_bytes(blob[:HEAD], "little")
    if len(blob) < HEAD or length > min(LONGEST_HEAD, len(blob) - HEAD):
        raise DecodeError(f"a head of {length} bytes, and {len(blob)} bytes arrived")
    if most is not None and length > most.head:
        raise DecodeError(f"a head of {length} bytes, and at most {most.head} are expected")
    try:
        head = json.loads(blob[HEAD : HEAD + length].decode(), object_pairs_hook=named_once)
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"the head is no JSON object of tensors: {str(error)[:200]}") from None
    if not isinstance(head, dict):
        raise DecodeError("the head is no JSON object of tensors")
    if most is not None and len(head) > most.tensors:
        raise DecodeError(f"{len(head)} tensors arrived, and at most {most.tensors} are expected")
    start = end = HEAD + length
    specs = []
    for name, entry in head.items():
        spec = tensor_spec(name, entry, end)
        specs.append(spec)
        end += spec.bytes
        if entry["data_offsets"] != [spec.begin - start, end - start]:
            raise DecodeError(f"{name[:80]!a} has other bytes than follow the tensor before it")
    if end != len(blob):
        raise DecodeError(f"the head is of {end} bytes, and {len(blob)} arrived")
    return specs


def tensor_spec(name: str, entry: Any, begin: int) -> TensorSpec:
    """Return what a head's entry says of a tensor that begins at a byte. Raises DecodeError."""
    where = ascii(name[:80])
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise DecodeError(f"{where} has not dtype, shape and data_offsets alone")
    dtype = entry["dtype"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        shown = ascii(str(dtype)[:20])
        raise DecodeError(f"{where} is of type {shown}, not one of {', '.join(DTYPES)}")
    shape = entry["shape"]
    if not is_shape(shape):
        shown = ascii(str(shape)[:80])
        raise DecodeError(f"{where} is of shape {shown}, which no tensor has")
    return TensorSpec(
        name=name,
        dtype=DTYPES[dtype],
        shape=tuple(shape),
        begin=begin,
    )


def is_shape(shape: Any) -> bool:
    """Return whether what a head says is the shape of a tensor that memory could hold."""
    if not isinstance(shape, list) or len(shape) > MOST_SIDES:
        return False
    if not all(type(side) is int and side >= 0 for side in shape):  # True is an int as well
        return False
    # A side of 0 must not hide another that is too large.
    elements: int = math.prod(max(1, side) for side in shape)
    return elements <= LARGEST


def named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs as a dict. Raises ValueError for a name that comes twice."""
    entries = dict(pairs)
    if len(entries) < len(pairs):
        raise ValueError("a name comes twice")
    return entries
