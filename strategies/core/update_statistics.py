"""Statistics of each client's update in a round, for the records, so that outliers can be found."""

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from client_app.state import State
from strategies.core.server import Server, Update

FAR, MOST = 5.0, 100
"""Times the median of the round's norms from which an update stands out; clients that a round's record tells of one by
one, at most."""
CHUNK, VALUES, KEPT = 2**15, 2**23, 2**24
"""Coordinates at a time, and of all clients together at most, so that the updates' parts stay in the processor's cache
for all that is asked of them; and values of all clients that are not read twice: what is asked second depends on the
first."""


@dataclass(frozen=True)
class UpdateStatistics:
    """How far and in which direction one client's update moved the model."""

    client: int
    norm: float
    """Euclidean norm of w_i - w over the parameters."""
    cosine: float
    """Cosine of w_i - w and the mean of the other clients' directions, which have length 1 each so that none outweighs
    the others; NaN without others, or where nothing moved."""
    examples: int


@dataclass(frozen=True)
class MethodNumbers:
    """One of the numbers that the clients' methods contribute (`Contribution.numbers`), in one round."""

    mean: float
    """Weighted by training samples, over the clients that sent it."""
    values: Sequence[float]
    """In the order of the round's clients, of more than MOST the first; NaN for a client that did not send it."""


def method_numbers(updates: Sequence[Update]) -> dict[str, MethodNumbers]:
    """Return the numbers of the clients' methods, by VARIANT/NAME."""
    names = {name for update in updates for name in update.metrics if "/" in name}
    found = {}
    for name in sorted(names):
        values = [update.metrics.get(name, math.nan) for update in updates]
        sent = [update for update in updates if name in update.metrics]
        total = sum(update.examples for update in sent)
        parts = [update.metrics[name] * (update.examples / total) for update in sent]
        found[name] = MethodNumbers(math.fsum(parts), values)
    return found


def update_statistics(server: Server, updates: Sequence[Update]) -> list[UpdateStatistics]:
    """Return the statistics of every update, in the order of the updates."""
    clients = len(updates)
    shared = [update.shared for update in updates]
    parts = partial(steps, server.start, shared, sorted(server.parameters))
    parameters = sum(server.start[name].numel() for name in server.parameters)
    if clients * parameters <= KEPT:
        parts = partial(iter, list(parts()))

    squares_K = torch.zeros(clients, dtype=torch.float64)
    for steps_KP in parts():
        norms_K = torch.linalg.vector_norm(steps_KP, dim=1)
        squares_K += norms_K.double().square()
    norms_K = squares_K.sqrt()
    scales_K = torch.where(norms_K > 0, 1 / norms_K, torch.zeros((), dtype=torch.float64))

    # s, the sum of the unit vectors, part by part: its products with every update, and with itself.
    towards_K = torch.zeros(clients, dtype=torch.float64)
    length = 0.0
    for steps_KP in parts():
        sum_P = scales_K.float() @ steps_KP
        towards_K += steps_KP @ sum_P
        length += float(sum_P @ sum_P)
    # With unit vectors u_i and their sum s: cos(u_i, s - u_i) = (u_i s - 1) / ||s - u_i||.
    along_K = towards_K * scales_K
    cosines_K = (along_K - 1) / (length - 2 * along_K + 1).clamp(min=0).sqrt()
    # An update that did not move has no direction, nor has the only one that moved another to compare with.
    several_moved = int((scales_K > 0).sum()) > 1
    rows = zip(updates, norms_K.tolist(), scales_K.tolist(), cosines_K.tolist(), strict=True)
    result = []
    for update, norm, scale, cosine in rows:
        has_direction = scale > 0 and several_moved
        within_1 = max(-1.0, min(1.0, cosine))  # rounding can lead beyond 1
        client_cosine = within_1 if has_direction else math.nan
        entry = UpdateStatistics(update.client, norm, client_cosine, update.examples)
        result.append(entry)
    return result


def steps(start: State, shared: Sequence[State], names: Sequence[str]) -> Iterator[Tensor]:
    """Yield (K, P) float32 parts of w_i - w, parameter by parameter, at most CHUNK coordinates."""
    values_per_client = VALUES // max(1, len(shared))
    width = max(1, min(CHUNK, values_per_client))
    for name in names:
        begin = start[name]
        tensors = [state[name] for state in shared]
        if begin.numel() <= width:
            moved = torch.stack(tensors).sub_(begin)
            yield moved.flatten(1).float()
            continue
        # A large parameter in parts, so that its difference from K clients is never in memory as one.
        begin_parts = torch.split(begin.reshape(-1), width)
        client_parts = [torch.split(tensor.reshape(-1), width) for tensor in tensors]
        for begin_P, *values_KP in zip(begin_parts, *client_parts, strict=True):
            yield torch.stack(values_KP).sub_(begin_P).float()


def median_norm(entries: Sequence[UpdateStatistics]) -> float:
    """Return the median of the norms; 0 without any."""
    if entries:
        return statistics.median(entry.norm for entry in entries)
    return 0.0


def standing_out(entries: Sequence[UpdateStatistics], median: float) -> dict[int, str]:
    """Return why clients stand out from the others of their round, in words, by client.

    By a norm of more than FAR times the median of all of them, or a direction against the others'. Both have innocent
    reasons, such as a client with classes that nobody else holds: it is for a person to look at.
    """
    reasons: dict[int, str] = {}
    for entry in entries:
        if entry.norm > FAR * median:
            reasons[entry.client] = "far"
        elif entry.cosine < 0:
            reasons[entry.client] = "against the others"
    return reasons


def noteworthy(entries: Sequence[UpdateStatistics]) -> Sequence[UpdateStatistics]:
    """Return all entries, or of more than MOST those furthest out: half by norm, half by direction."""
    if len(entries) <= MOST:
        return entries
    half = MOST // 2
    by_norm = sorted(entries, key=lambda entry: -entry.norm)
    longest = by_norm[:half]
    rest = by_norm[half:]
    # NaN, of an update without a direction, comes last.
    by_cosine = sorted(rest, key=lambda entry: (math.isnan(entry.cosine), entry.cosine))
    return sorted([*longest, *by_cosine[:half]], key=lambda entry: entry.client)
