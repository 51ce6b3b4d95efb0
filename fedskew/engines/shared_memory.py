"""Objects for another process of this machine: pickled, with their tensors in memory that both processes map.

The kernel takes the memory back with the last process that holds it, however that one ends.
"""

import io
import math
import os
import pickle
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

ALIGNMENT = 64
"""Bytes; torch allocates so, and a matrix product's last bits depend on where its operand begins."""
Bytes = NDArray[np.uint8]


class TensorPickler(pickle.Pickler):
    """Pickles an object without its tensors' bytes, which `arrays` collects: one array per tensor."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5, buffer_callback=self.collect)
        self.arrays: list[Bytes] = []

    def collect(self, buffer: pickle.PickleBuffer) -> None:
        """Keep a tensor's bytes out of the pickle."""
        self.arrays.append(np.frombuffer(buffer, np.uint8))

    def reducer_override(self, value: Any) -> Any:
        """Reduce a tensor to its bytes on the CPU, in the memory order of its shape."""
        if not isinstance(value, Tensor):
            return NotImplemented
        flat = value.detach().cpu().contiguous().reshape(-1)
        buffer = pickle.PickleBuffer(flat.view(torch.uint8).numpy())
        return tensor_of, (buffer, value.dtype, tuple(value.shape))


def tensor_of(values: Bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """Return the tensor of these bytes: without a copy, unless they are read-only."""
    if values.size and values.flags.writeable:
        return torch.from_numpy(values).view(dtype).reshape(shape)
    tensor = torch.empty(shape, dtype=dtype)
    tensor.reshape(-1).view(torch.uint8).numpy()[:] = values
    return tensor


def packed(value: object) -> tuple[bytes, list[Bytes]]:
    """Return an object's pickle and its tensors' bytes; `pickle.loads(text, buffers=arrays)` returns the object."""
    file = io.BytesIO()
    pickler = TensorPickler(file)
    pickler.dump(value)
    return file.getvalue(), pickler.arrays


@dataclass(frozen=True)
class Written:
    """An object in a file: its pickle, and where the bytes of each of its tensors begin and end."""

    path: str
    text: bytes
    spans: tuple[tuple[int, int], ...]

    def read(self) -> Any:
        """Return the object; its tensors are the file's memory, which stays as long as one of them."""
        memory = np.memmap(self.path, np.uint8, "r+")
        arrays = [memory[begin:end] for begin, end in self.spans]
        return pickle.loads(self.text, buffers=arrays)


class SharedFile:
    """A file in memory, which another process of this machine opens by its path; gone when nobody has it open."""

    def __init__(self) -> None:
        if hasattr(os, "memfd_create"):
            self.number = os.memfd_create("fedskew")
            self.path = f"/proc/{os.getpid()}/fd/{self.number}"
        else:
            self.number, self.path = tempfile.mkstemp(prefix="fedskew-")

    def write(self, value: object) -> Written:
        """Write an object's tensors, and return what reads them."""
        text, arrays = packed(value)
        spans = []
        end = 0
        for array in arrays:
            spans.append((end, end + array.size))
            end += math.ceil(array.size / ALIGNMENT) * ALIGNMENT
        memory = np.memmap(self.path, np.uint8, "r+", shape=max(1, end))
        for array, (begin, end) in zip(arrays, spans, strict=True):
            memory[begin:end] = array
        return Written(self.path, text, tuple(spans))

    def close(self) -> None:
        """Give the file up; who has read an object in it keeps its memory."""
        os.close(self.number)
        if not self.path.startswith("/proc/"):
            Path(self.path).unlink()
