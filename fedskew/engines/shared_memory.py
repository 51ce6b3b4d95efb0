"""Shared memory for states, used by several processes of one machine.

It has no name anywhere: the kernel takes it back with the last process that holds it, however that one ends, so that
there is nothing to clean up. What is written into it begins at multiples of 64 bytes, as what torch allocates does: a
matrix product's last bits depend on that.
"""

import math
import mmap
import os
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from functools import lru_cache
from multiprocessing.reduction import DupFd
from typing import Any

import numpy as np
import torch
from torch import Tensor

from client_app.state import State

SPAN = 2**40
"""Bytes between the beginnings of two regions: no more than addresses until they are written to."""
STEP = 2**20
"""A region is mapped in multiples of so many bytes."""
ALIGNMENT = 64
"""Bytes; torch allocates so, and a matrix product's last bits depend on where its operand begins."""
Form = tuple[tuple[str, torch.dtype, tuple[int, ...]], ...]
"""Name, type and shape of every tensor of a state."""
TensorLocation = tuple[Form, int]
"""A state's form, and the byte of its region at which it begins."""


class SharedMemory:
    """Regions of memory; one process at a time writes to one, and others then read it. Pickled, it is the same one.

    Regions are taken and freed by the process that made it, which is the one that reads last.
    """

    def __init__(self, file: int | None = None) -> None:
        self.file = nameless_file() if file is None else file
        self.mapped: dict[int, mmap.mmap] = {}
        self.free: list[int] = []
        self.taken = 0
        weakref.finalize(self, os.close, self.file).atexit = False

    def __reduce__(self) -> tuple[Any, ...]:
        return opened, (DupFd(self.file),)

    def take(self) -> int:
        """Return a region that nobody uses."""
        if self.free:
            return self.free.pop()
        self.taken += 1
        return self.taken - 1

    def write(self, region: int, states: Sequence[State]) -> list[TensorLocation]:
        """Write states one after the other, from a region's beginning, and return where they are."""
        locations = []
        end = 0
        for state in states:
            form = form_of(state)
            locations.append((form, end))
            end += bytes_of(form)
        flat = self.flat(region, end)
        for (form, begin), state in zip(locations, states, strict=True):
            if state:
                torch._foreach_copy_(views(flat, form, begin), list(state.values()))
        return locations

    def read(
        self,
        region: int,
        locations: Sequence[TensorLocation],
        frees: bool = False,
    ) -> list[dict[str, Tensor]]:
        """Return the states at locations of a region, without a copy.

        With `frees` the region is free once the last of their tensors is gone; nobody may write to it before that.
        """
        end = 0
        for form, begin in locations:
            end = max(end, begin + bytes_of(form))
        flat = self.flat(region, end, frees)
        states = []
        for form, begin in locations:
            names = [name for name, _, _ in form]
            states.append(dict(zip(names, views(flat, form, begin), strict=True)))
        return states

    def flat(self, region: int, size: int, frees: bool = False) -> Mapping[torch.dtype, Tensor]:
        """Return a region's first `size` bytes at least, as a vector of every type asked for."""
        steps = max(1, math.ceil(size / STEP))
        size = steps * STEP
        mapping = self.mapped.get(region)
        if mapping is None or len(mapping) < size:
            begin = region * SPAN
            end = begin + size
            if os.fstat(self.file).st_size < end:
                # Makes the file longer, and never shorter as a truncation might.
                os.pwrite(self.file, b"\0", end - 1)
            mapping = mmap.mmap(self.file, size, offset=begin)
            self.mapped[region] = mapping
        values = np.frombuffer(mapping, np.uint8)
        if frees:
            # Every tensor of the region refers to `values`, so it goes with the last of them.
            finalizer = weakref.finalize(values, self.free.append, region)
            finalizer.atexit = False
        return Vectors(torch.from_numpy(values))


class Vectors(dict[torch.dtype, Tensor]):
    """Bytes as a vector of each type."""

    def __init__(self, values: Tensor) -> None:
        super().__init__()
        self.values_B = values

    def __missing__(self, dtype: torch.dtype) -> Tensor:
        vector = self.values_B.view(dtype)
        self[dtype] = vector
        return vector


def opened(file: Any) -> SharedMemory:
    """Return the memory of a file that another process has passed on."""
    return SharedMemory(file.detach())


def nameless_file() -> int:
    """Return a file in memory; where the system has none, a temporary one, which has no name either."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("fedskew")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def form_of(state: State) -> Form:
    """Return a state's form; of equal states the same object, which is pickled once."""
    parts = [(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in state.items()]
    return only_one(tuple(parts))


@lru_cache(maxsize=256)
def only_one(form: Form) -> Form:
    """Return the first of all forms that equal this one."""
    return form


@lru_cache(maxsize=256)
def layout(
    form: Form,
) -> tuple[list[tuple[torch.dtype, tuple[int, ...], tuple[int, ...], int]], int]:
    """Return type, shape, strides and first byte of every tensor of a state, and how many bytes all take."""
    parts = []
    end = 0
    for _, dtype, shape in form:
        # One step along a side passes all elements of the sides after it.
        sides = range(1, len(shape) + 1)
        strides = tuple(math.prod(shape[side:]) for side in sides)
        parts.append((dtype, shape, strides, end))
        used = math.prod(shape) * dtype.itemsize
        end += math.ceil(used / ALIGNMENT) * ALIGNMENT
    return parts, end


def bytes_of(form: Form) -> int:
    """Return how many bytes a state takes."""
    _, size = layout(form)
    return size


def views(flat: Mapping[torch.dtype, Tensor], form: Form, begin: int) -> list[Tensor]:
    """Return the tensors of a state that begins at a byte."""
    parts, _ = layout(form)
    tensors = []
    for dtype, shape, strides, first in parts:
        offset = (begin + first) // dtype.itemsize
        tensors.append(flat[dtype].as_strided(shape, strides, offset))
    return tensors
