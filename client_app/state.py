"""States: named tensors, and the few operations that rounds need on them.

Sums run in float64 in the order given and the result takes each tensor's own dtype, so that a sum over clients in the
order of their ids is the same on every engine.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

State = Mapping[str, Tensor]
CHUNK = 2**15
"""Values that are summed at a time, so that their sum stays in the processor's cache while every state is added."""


def weighted_mean(states: Sequence[State], weights: Sequence[float]) -> dict[str, Tensor]:
    """Return sum_i w_i s_i / sum_i w_i, tensor by tensor.

    Integer tensors (batch-norm's step counters) are no quantities to average: the largest is kept.
    Raises ValueError without states, or with weights that do not sum to a positive finite number.
    """
    total = math.fsum(weights)
    if not states or not 0 < total < math.inf:
        raise ValueError(f"a mean of {len(states)} states with weights that sum to {total:g}")
    return weighted_sum(states, [weight / total for weight in weights])


def weighted_sum(states: Sequence[State], weights: Sequence[float]) -> dict[str, Tensor]:
    """Return sum_i w_i s_i; of integer tensors the largest."""
    result: dict[str, Tensor] = {}
    for name, first in states[0].items():
        tensors = [state[name] for state in states]
        result[name] = summed(tensors, weights) if first.is_floating_point() else torch.stack(tensors).amax(0)
    return result


def summed(tensors: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Return sum_i w_i t_i, added up in float64."""
    result = torch.empty_like(tensors[0], memory_format=torch.contiguous_format)
    parts_P = torch.split(result.view(-1), CHUNK)
    total_P, wide_P = torch.empty(2, len(parts_P[0]), dtype=torch.float64, device=result.device)
    for part_P, *parts_KP in zip(parts_P, *(torch.split(tensor.reshape(-1), CHUNK) for tensor in tensors), strict=True):
        sum_P = total_P[: len(part_P)].zero_()
        for values_P, weight in zip(parts_KP, weights, strict=True):
            sum_P.add_(wide_P[: len(part_P)].copy_(values_P), alpha=weight)
        part_P.copy_(sum_P)
    return result


def difference(left: State, right: State) -> dict[str, Tensor]:
    """Return left - right over the floating-point tensors."""
    return {name: tensor - right[name] for name, tensor in left.items() if tensor.is_floating_point()}


def norm(state: State) -> float:
    """Return the Euclidean norm over all tensors, summed in float64."""
    return math.sqrt(math.fsum(tensor.double().square().sum().item() for tensor in state.values()))


def copy(state: State) -> dict[str, Tensor]:
    """Return a copy that shares no memory with `state`, carries no gradient and is laid out as its shape says."""
    return {name: tensor.detach().clone(memory_format=torch.contiguous_format) for name, tensor in state.items()}


def with_prefix(prefix: str, state: State) -> dict[str, Tensor]:
    """Return the same tensors under `prefix/name`."""
    return {f"{prefix}/{name}": tensor for name, tensor in state.items()}


def split_prefix(state: State) -> dict[str, dict[str, Tensor]]:
    """Undo `with_prefix`: a state for each first part of the names."""
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in state.items():
        prefix, rest = name.split("/", 1)
        parts.setdefault(prefix, {})[rest] = tensor
    return parts


def digest(states: Iterable[State], *words: str) -> str:
    """Return the sha256 of every word, and of every name, dtype, shape and value, in the order given, names sorted."""
    sha = hashlib.sha256("\n".join(words).encode())
    for state in states:
        sha.update(f"{len(state)} tensors;".encode())
        for name in sorted(state):
            tensor = state[name].detach().cpu().contiguous()
            sha.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
            sha.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return sha.hexdigest()


def seed_of(*words: object) -> int:
    """Return a 63-bit seed that depends on every word, and on nothing else."""
    return int.from_bytes(hashlib.sha256("/".join(map(str, words)).encode()).digest()[:8], "big") >> 1


def seed_global(seed: int, device: torch.device) -> None:
    """Seed the device's global generator, which dropout draws from.

    torch.manual_seed gives the same draws; it seeds every kind of device there is, and takes down the whole call stack
    for each kind that nobody has used yet.
    """
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)
