"""Networks without numbers: torch's meta device has their shapes and no memory.

For some layers torch computes shapes there in Python, and imports its compiler for that: three seconds, more than all
else that a plan does. The functions of these layers are answered here; tests compare the shapes with torch's.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


@contextmanager
def without_numbers() -> Iterator[None]:
    """Within this context, networks that are built have shapes alone, and compute shapes alone, without gradient."""
    with torch.no_grad(), torch.device("meta"), ShapesAlone():
        yield


class ShapesAlone(TorchFunctionMode):
    """Answers ANSWERS for tensors of the meta device, and leaves everything else to torch."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = kwargs or {}
        first = args[0] if args else None
        if func is torch.cat and first:
            first = first[0]
        if isinstance(first, Tensor):
            on_meta = first.is_meta
        else:  # a new tensor
            default = torch.get_default_device()
            on_meta = default.type == "meta" and "device" not in named
        answer = ANSWERS.get(func) if on_meta else None
        return func(*args, **named) if answer is None else answer(*args, **named)


def unchanged(tensor: Tensor, *arguments: object, **named: object) -> Tensor:
    """Return the tensor, of whose shape the function's result is."""
    return tensor


def drawn(*size: Any, dtype: torch.dtype | None = None, **named: object) -> Tensor:
    """Return what has the shape of torch.randn's result."""
    return torch.empty(*size, dtype=dtype)


def added(tensor: Tensor, other: Tensor | float, **named: object) -> Tensor:
    """Return what has the shape and the type of a sum."""
    shapes = [tensor.shape]
    if isinstance(other, Tensor):
        shapes.append(other.shape)
    dtype = torch.result_type(tensor, other)
    shape = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
    return tensor.new_empty(shape, dtype=dtype)


def projected(tensor: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return what has the shape of F.linear's result."""
    return tensor.new_empty((*tensor.shape[:-1], weight.shape[0]))


def convolved(
    tensor: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | str | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor:
    """Return what has the shape of F.conv2d's result."""
    if padding == "valid":
        padding = 0
    steps, dilations = pair(stride), pair(dilation)
    sides = []
    for axis, side in enumerate(tensor.shape[-2:]):
        if padding == "same":
            sides.append(side)
            continue
        around = 2 * pair(padding)[axis]  # type: ignore[arg-type]
        covered = dilations[axis] * (weight.shape[axis + 2] - 1)
        sides.append((side + around - covered - 1) // steps[axis] + 1)
    return tensor.new_empty((*tensor.shape[:-3], weight.shape[0], *sides))


def largest_of(
    tensor: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor:
    """Return what has the shape of F.max_pool2d's result."""
    steps = pair(kernel_size if stride is None else stride)
    if ceil_mode or return_indices:  # in no model that comes with FedSkew
        compute: Callable[..., Tensor] = F.max_pool2d
        return compute(tensor, kernel_size, steps, padding, dilation, ceil_mode, return_indices)
    sides = []
    for axis, side in enumerate(tensor.shape[-2:]):
        covered = pair(dilation)[axis] * (pair(kernel_size)[axis] - 1)
        sides.append((side + 2 * pair(padding)[axis] - covered - 1) // steps[axis] + 1)
    return tensor.new_empty((*tensor.shape[:-2], *sides))


def pair(value: int | Sequence[int]) -> Sequence[int]:
    """Return the values of both axes; a single one is for both."""
    return (value, value) if isinstance(value, int) else tuple(value) * (2 // len(value))


def joined(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Return what has the shape of torch.cat's result."""
    first = tensors[0]
    shape = list(first.shape)
    shape[dim] = sum(tensor.shape[dim] for tensor in tensors)
    dtype = reduce(torch.promote_types, [tensor.dtype for tensor in tensors])
    return first.new_empty(shape, dtype=dtype)


def pooled(tensor: Tensor, output_size: int | Sequence[int | None]) -> Tensor:
    """Return what has the shape of F.adaptive_avg_pool2d's result."""
    wanted = [output_size, output_size] if isinstance(output_size, int) else output_size
    *leading, height, width = tensor.shape
    wanted_height, wanted_width = wanted
    if wanted_height is not None:
        height = wanted_height
    if wanted_width is not None:
        width = wanted_width
    return tensor.new_empty((*leading, height, width))


ANSWERS: dict[Callable[..., Any], Callable[..., Tensor]] = {
    Tensor.normal_: unchanged,  # first weights
    Tensor.add: added,
    Tensor.add_: unchanged,
    Tensor.__add__: added,
    Tensor.__iadd__: unchanged,
    torch.add: added,
    torch.cat: joined,
    torch.rand: drawn,
    torch.randn: drawn,
    F.adaptive_avg_pool2d: pooled,
    F.batch_norm: unchanged,
    F.conv2d: convolved,
    F.group_norm: unchanged,
    F.layer_norm: unchanged,
    F.linear: projected,
    F.max_pool2d: largest_of,
    F.relu: unchanged,
    F.relu6: unchanged,
    F.hardtanh: unchanged,
    F.hardswish: unchanged,
    F.gelu: unchanged,
}
"""What stands in for a function of a layer."""
