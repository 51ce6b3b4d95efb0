"""What a round leaves for its record, with statistics of each client's update by which outliers are found."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial

import torch
from torch import Tensor

from client_app.state import State
from strategies.core.server import Numbers, Server, Update

MOST = 100
"""Clients that a round's record tells of one by one, at most."""
CHUNK, VALUES = 2**15, 2**23
"""Coordinates at a time, and of all clients together at most, so that the updates' parts stay in the processor's cache
for all that is asked of them."""


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


@dataclass(frozen=True)
class Seconds:
    """The seconds of a round."""

    clients: float = 0.0
    """From the request to the last reply."""
    client_work: float = 0.0
    """The clients' own time, summed."""
    server: float = 0.0
    """To check and combine the replies, and to deploy."""
    evaluation: float = 0.0
    round: float = 0.0
    """All of it, and what is none of these."""


@dataclass(frozen=True)
class Round:
    """A finished round, but for the models' metrics, which its record adds."""

    round: int
    _: KW_ONLY
    clients: Sequence[int] = ()
    """Clients whose updates were used."""
    failures: Mapping[int, str] = field(default_factory=dict)
    """By client, why its update, its answer or its evaluation is missing."""
    loss: float = math.nan
    """Mean training loss in nats, weighted by samples."""
    bytes_down: int = 0
    """Bytes of model and broadcasts times the number of clients asked, as if each client had its own node."""
    bytes_up: int = 0
    """Bytes of the models and uploads that were used."""
    seconds: Seconds = Seconds()
    workers: Sequence[Mapping[str, object]] = ()
    """The processes that ran the clients: process id, device, and the GPU's model."""
    metrics: Numbers = field(default_factory=dict)
    """Numbers that the server methods record, by name."""
    method_numbers: Mapping[str, MethodNumbers] | None = None
    """Numbers that the clients' methods contribute, by VARIANT/NAME; None where they have none."""


def method_numbers(updates: Sequence[Update]) -> dict[str, MethodNumbers]:
    """Return the numbers of the clients' methods, by VARIANT/NAME."""
    names = {name for update in updates for name in update.metrics if "/" in name}
    found = {}
    for name in sorted(names):
        sent = [update for update in updates if name in update.metrics]
        total = sum(update.examples for update in sent)
        mean = math.fsum(update.metrics[name] * (update.examples / total) for update in sent)
        values = [update.metrics.get(name, math.nan) for update in updates]
        found[name] = MethodNumbers(mean, values)
    return found


def update_statistics(server: Server, updates: Sequence[Update]) -> list[UpdateStatistics]:
    """Return the statistics of every update, in the order of the updates."""
    shared = [update.shared for update in updates]
    parts = partial(steps, server.start, shared, sorted(server.parameters))
    squares_K = torch.zeros(len(updates), dtype=torch.float64)
    for steps_KP in parts():
        squares_K += torch.linalg.vector_norm(steps_KP, dim=1).double().square()
    norms_K = squares_K.sqrt()
    scales_K = torch.where(norms_K > 0, 1 / norms_K, torch.zeros((), dtype=torch.float64))

    # s, the sum of the unit vectors, part by part: its products with every update, and with itself.
    towards_K = torch.zeros(len(updates), dtype=torch.float64)
    length = 0.0
    for steps_KP in parts():
        sum_P = scales_K.float() @ steps_KP
        towards_K += steps_KP @ sum_P
        length += float(sum_P @ sum_P)
    # With unit vectors u_i and their sum s: cos(u_i, s - u_i) = (u_i s - 1) / ||s - u_i||.
    along_K = towards_K * scales_K
    cosines_K = (along_K - 1) / (length - 2 * along_K + 1).clamp(min=0).sqrt()
    cosines_K = cosines_K.clamp(-1, 1)  # rounding can lead beyond 1
    # An update that did not move has no direction, nor has the only one that moved another to compare with.
    moved_K = scales_K > 0
    has_direction_K = moved_K & (moved_K.sum() > 1)
    cosines_K = torch.where(has_direction_K, cosines_K, math.nan)
    rows = zip(updates, norms_K.tolist(), cosines_K.tolist(), strict=True)
    return [
        UpdateStatistics(update.client, norm, cosine, update.examples)
        for update, norm, cosine in rows
    ]


def steps(start: State, shared: Sequence[State], names: Sequence[str]) -> Iterator[Tensor]:
    """Yield (K, P) float32 parts of w_i - w, parameter by parameter, at most CHUNK coordinates.

    In parts, so that the difference of K clients from a large parameter is never in memory as one.
    """
    width = max(1, min(CHUNK, VALUES // max(1, len(shared))))
    for name in names:
        begin_P = start[name].reshape(-1)
        ends = [state[name].reshape(-1) for state in shared]
        for first in range(0, len(begin_P), width):
            piece = slice(first, first + width)
            ends_KP = torch.stack([end_P[piece] for end_P in ends])
            yield ends_KP.sub_(begin_P[piece]).float()


def median_norm(entries: Sequence[UpdateStatistics]) -> float:
    """Return the median of the norms; 0 without any."""
    return statistics.median(entry.norm for entry in entries) if entries else 0.0


def noteworthy(entries: Sequence[UpdateStatistics]) -> Sequence[UpdateStatistics]:
    """Return all entries, or of more than MOST those of the largest norms, in the order of the clients."""
    largest = sorted(entries, key=lambda entry: -entry.norm)[:MOST]
    return sorted(largest, key=lambda entry: entry.client)
