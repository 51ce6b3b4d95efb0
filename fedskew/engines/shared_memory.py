"""Tensors for another process of this machine: pickled objects whose tensors lie in memory that both processes map.

The memory has no name anywhere: the kernel takes it back with the last process that holds it, however that one ends.
"""

import io
import math
import mmap
import os
import pickle
import tempfile
import weakref
from dataclasses import dataclass
from multiprocessing.reduction import DupFd
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

ALIGNMENT = 64
"""Bytes; torch allocates so, and a matrix product's last bits depend on where its operand begins."""
SPAN = 2**40
"""Bytes between the beginnings of two regions: no more than addresses until they are written to."""
STEP = 2**20
"""A region is mapped in multiples of so many bytes."""
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
    """An object in a region: its pickle, and where the bytes of each of its tensors begin and end."""

    number: int
    """Of the writing: no two are equal, so that a reader may keep what it has read."""
    region: int
    text: bytes
    spans: tuple[tuple[int, int], ...]


class SharedMemory:
    """Regions of memory; one process at a time writes to one, and others then read it. Pickled, it is the same one.

    Regions are taken and freed by the process that made it, which is the one that reads last.
    """

    def __init__(self, file: int | None = None) -> None:
        self.file = nameless_file() if file is None else file
        self.mapped: dict[int, mmap.mmap] = {}
        self.free: list[int] = []
        self.taken = self.writings = 0
        weakref.finalize(self, os.close, self.file).atexit = False

    def __reduce__(self) -> tuple[Any, ...]:
        return opened, (DupFd(self.file),)

    def take(self) -> int:
        """Return a region that nobody uses."""
        if self.free:
            return self.free.pop()
        self.taken += 1
        return self.taken - 1

    def write(self, region: int, value: object) -> Written:
        """Write an object's tensors into a region and return what reads them."""
        text, arrays = packed(value)
        spans = []
        end = 0
        for array in arrays:
            spans.append((end, end + array.size))
            end += math.ceil(array.size / ALIGNMENT) * ALIGNMENT
        memory = self.map(region, end)
        for array, (begin, end) in zip(arrays, spans, strict=True):
            memory[begin:end] = array
        self.writings += 1
        return Written(self.writings, region, text, tuple(spans))

    def read(self, written: Written, frees: bool = False) -> Any:
        """Return a written object, its tensors without a copy.

        With `frees` the region is free once the last of its tensors is gone; nobody may write to it before that.
        """
        size = max((end for _, end in written.spans), default=0)
        memory = self.map(written.region, size)
        if frees:
            # Every tensor refers to `memory`, so it goes with the last of them.
            weakref.finalize(memory, self.free.append, written.region).atexit = False
        arrays = [memory[begin:end] for begin, end in written.spans]
        return pickle.loads(written.text, buffers=arrays)

    def map(self, region: int, size: int) -> Bytes:
        """Return at least `size` bytes of a region."""
        size = max(1, math.ceil(size / STEP)) * STEP
        mapping = self.mapped.get(region)
        if mapping is None or len(mapping) < size:
            begin = region * SPAN
            if os.fstat(self.file).st_size < begin + size:
                # Makes the file longer, and never shorter as a truncation might.
                os.pwrite(self.file, b"\0", begin + size - 1)
            mapping = mmap.mmap(self.file, size, offset=begin)
            self.mapped[region] = mapping
        return np.frombuffer(mapping, np.uint8)


def opened(file: Any) -> SharedMemory:
    """Return the memory of a file that another process has passed on."""
    return SharedMemory(file.detach())


def nameless_file() -> int:
    """Return a file in memory; where the system has none, a temporary one, which has no name either."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("fedskew")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
