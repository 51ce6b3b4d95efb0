"""Conversion of a state to bytes in the safetensors format, and safe reading of untrusted bytes.

In a blob the tensors follow each other without a gap, in the order of its head, which is the state's.
"""

import json
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import load
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
LONGEST_HEAD = 2**22
"""Bytes of a head."""
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
    kilobyte of memory. Raises DecodeError.
    """
    if most is not None and len(blob) > most.bytes:
        raise DecodeError(f"{len(blob)} bytes arrived, and at most {most.bytes} are expected")
    names = names_in(blob, most)
    try:
        tensors = load(blob)
    except Exception as error:  # the library's own, and torch's for a shape that no tensor has
        raise DecodeError(f"the bytes are no tensors: {str(error)[:200]!a}") from None
    # The library knows no order. Copied, as in the blob they lie at any byte, and a matrix product's last bits depend
    # on that.
    state = {name: tensors[name].clone() for name in names if name in tensors}
    for name, tensor in state.items():
        if tensor.dtype not in NAMES:
            raise DecodeError(f"{name[:80]!a} is of type {tensor.dtype}")
    return state


def names_in(blob: bytes, most: Expected | None) -> list[str]:
    """Return the names in a blob's head, in its order. Raises DecodeError for a head that is none, or of more."""
    length = int.from_bytes(blob[:HEAD], "little")
    longest = LONGEST_HEAD if most is None else most.head
    if length > longest:
        raise DecodeError(f"a head of {length} bytes, and at most {longest} are expected")
    try:
        head = json.loads(blob[HEAD : HEAD + length])
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"the head is no JSON: {str(error)[:200]!a}") from None
    if not isinstance(head, dict):
        raise DecodeError("the head is no JSON object of tensors")
    if most is not None and len(head) > most.tensors:
        raise DecodeError(f"{len(head)} tensors arrived, and at most {most.tensors} are expected")
    return list(head)
