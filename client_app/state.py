"""States: named tensors, and the few operations that rounds need on them.

Sums run in float64 in the order given and the result takes each tensor's own dtype, so that a sum over clients in the
order of their ids is the same on every engine.
"""

import hashlib
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

State = Mapping[str, Tensor]
Item = TypeVar("Item")
Result = TypeVar("Result")
CHUNK = 2**18
"""Values that are summed at a time, so that their sum stays in the processor's cache while every state is added."""
LEAST = 2**12
"""Values of each of many states that are computed with at a time: of fewer, the calls take longer than the sums."""


def size(state: State) -> int:
    """Return the bytes of the state's values: what a message costs, but for some 150 bytes a tensor."""
    return sum(tensor.numel() * tensor.element_size() for tensor in state.values())


def weighted_mean(states: Sequence[State], weights: Sequence[float]) -> dict[str, Tensor]:
    """Return sum_i w_i s_i / sum_i w_i, tensor by tensor.

    Integer tensors (batch-norm's step counters) are no quantities to average: the largest is kept.
    Raises ValueError without states, or with weights that do not sum to a positive finite number.
    """
    total = math.fsum(weights)
    has_mean = len(states) > 0 and 0 < total < math.inf
    if not has_mean:
        raise ValueError(f"a mean of {len(states)} states with weights that sum to {total:g}")
    shares = [weight / total for weight in weights]
    return weighted_sum(states, shares)


def weighted_sum(states: Sequence[State], weights: Sequence[float]) -> dict[str, Tensor]:
    """Return sum_i w_i s_i, added up in float64; of integer tensors the largest."""
    result: dict[str, Tensor] = {}
    for name, first in states[0].items():
        if first.is_floating_point():
            result[name] = torch.empty_like(first, memory_format=torch.contiguous_format)
        else:
            result[name] = torch.stack([state[name] for state in states]).amax(0)
    quantities = [name for name, tensor in result.items() if tensor.is_floating_point()]

    def add_up(piece: Piece) -> None:
        sums, *parts = piece
        total = [torch.zeros_like(tensor, dtype=torch.float64) for tensor in sums]
        wide = [torch.empty_like(tensor) for tensor in total]  # one client's values in float64
        for values, weight in zip(parts, weights, strict=True):
            torch._foreach_copy_(wide, values)
            torch._foreach_add_(total, wide, alpha=weight)
        torch._foreach_copy_(sums, total)

    on_cores(add_up, pieces([result, *states], quantities, CHUNK))
    return result


Piece = Sequence[list[Tensor]]
"""Some of the values of several states, as the same tensors of each."""


def pieces(states: Sequence[State], names: Iterable[str], chunk: int) -> Iterator[Piece]:
    """Yield the named tensors' values by at most `chunk` of each state: parts of a tensor, or whole ones together."""
    small = list[str]()
    size = 0
    for name in names:
        count = states[0][name].numel()
        if count > chunk:
            parts_of_state = [torch.split(state[name].reshape(-1), chunk) for state in states]
            for parts in zip(*parts_of_state, strict=True):
                yield [[part] for part in parts]
            continue
        if size + count > chunk:
            yield [[state[name] for name in small] for state in states]
            small, size = [], 0
        small.append(name)
        size += count
    if small:
        yield [[state[name] for name in small] for state in states]


def on_cores(compute: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Return compute(item) of every item, in their order, with a thread for each core of this process.

    A server combines while its clients wait, so that its cores have nothing else to do. Each item is computed by
    itself, so that the results do not depend on the number of cores.
    """
    every = list(items)
    threads = min(len(every), cores())
    if threads < 2:
        return [compute(item) for item in every]

    def compute_share(first: int) -> list[Result]:
        return [compute(item) for item in every[first::threads]]

    # One task for each thread: a task for each item would take as long as the item.
    with ThreadPoolExecutor(threads) as pool:
        shares = list(pool.map(compute_share, range(threads)))
    return [shares[index % threads][index // threads] for index in range(len(every))]


def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def fill(
    results: Sequence[State],
    formula: Callable[..., Sequence[Tensor]],
    states: Sequence[State],
    names: Iterable[str],
    chunk: int = 0,
) -> None:
    """Write formula(tensors of `states`) into the named tensors of `results`, a piece at a time.

    The formula computes each value from the values at the same coordinate. Its temporary tensors are as small as a
    piece and stay in the processor's cache, where those of a large model would each take a trip through memory.

    Args:
        results: the states to write into.
        formula: takes a tensor of each of `states` and returns one for each of `results`.
        states: the states to read.
        names: of the tensors to compute.
        chunk: values of each state in a piece; 0 lets the pieces of all states share the cache. A formula that reads
            one state after the other is faster with CHUNK.
    """
    chunk = chunk or max(LEAST, CHUNK // len(states))

    def compute(piece: Piece) -> None:
        for tensors in zip(*piece, strict=True):
            outputs = tensors[: len(results)]
            inputs = tensors[len(results) :]
            for output, values in zip(outputs, formula(*inputs), strict=True):
                output.copy_(values)

    on_cores(compute, pieces([*results, *states], names, chunk))


def empty(state: State, names: Iterable[str]) -> dict[str, Tensor]:
    """Return tensors like the named ones of `state`, laid out as their shapes say, with values yet to be written."""
    tensors = {}
    for name in names:
        tensors[name] = torch.empty_like(state[name], memory_format=torch.contiguous_format)
    return tensors


def difference(left: State, right: State) -> dict[str, Tensor]:
    """Return left - right over the floating-point tensors."""
    result = {}
    for name, tensor in left.items():
        if tensor.is_floating_point():
            result[name] = tensor - right[name]
    return result


def norm(state: State) -> float:
    """Return the Euclidean norm over all tensors, summed in float64."""
    squares = [tensor.double().square().sum().item() for tensor in state.values()]
    return math.sqrt(math.fsum(squares))


def copy(state: State) -> dict[str, Tensor]:
    """Return a copy that shares no memory with `state`, carries no gradient and is laid out as its shape says."""
    copied = {}
    for name, tensor in state.items():
        copied[name] = tensor.detach().clone(memory_format=torch.contiguous_format)
    return copied


def on_device(state: State, device: str) -> State:
    """Return the state with its tensors on `device`, which are the same ones where they are there."""
    return {name: tensor.to(device) for name, tensor in state.items()}


def with_prefix(prefix: str, state: State) -> dict[str, Tensor]:
    """Return the same tensors under `prefix/name`."""
    return {f"{prefix}/{name}": tensor for name, tensor in state.items()}


def split_prefix(state: State, separator: str = "/") -> dict[str, dict[str, Tensor]]:
    """Undo `with_prefix`: a state for each first part of the names."""
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in state.items():
        prefix, rest = name.split(separator, 1)
        part = parts.setdefault(prefix, {})
        part[rest] = tensor
    return parts


def digest(states: Iterable[State], *words: str) -> str:
    """Return the sha256 of every word, and of every name, dtype, shape and value, in the order given, names sorted."""
    sha = hashlib.sha256("\n".join(words).encode())
    for state in states:
        sha.update(f"{len(state)} tensors;".encode())
        for name in sorted(state):
            tensor = state[name].detach().cpu().contiguous()
            head = f"{name} {tensor.dtype} {tuple(tensor.shape)};"
            sha.update(head.encode())
            flat = tensor.reshape(-1)
            memory = flat.view(torch.uint8).numpy()
            sha.update(memory.data)
    return sha.hexdigest()


def seed_of(*words: object) -> int:
    """Return a 63-bit seed that depends on every word, and on nothing else."""
    text = "/".join(map(str, words))
    first_64_bits = hashlib.sha256(text.encode()).digest()[:8]
    return int.from_bytes(first_64_bits, "big") >> 1


def seed_global(seed: int, device: torch.device) -> None:
    """Seed the device's global generator, which dropout draws from.

    torch.manual_seed gives the same draws; it seeds every kind of device there is, and takes down the whole call stack
    for each kind that nobody has used yet.
    """
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)
