"""What is worth recording about a round."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from strategies.core.exchange import Exchange
from strategies.core.server import Numbers
from strategies.core.update_statistics import Movement


@dataclass(frozen=True)
class Round:
    """What is worth recording about a finished round, beside how good the models are."""

    number: int
    clients: Sequence[int]
    """Clients whose updates were used."""
    failures: Mapping[int, str] = field(default_factory=dict)
    strays: Sequence[str] = ()
    """What nodes sent that they were not asked for."""
    movements: Callable[[], Sequence[Movement]] = tuple
    """Works out how every client whose update was used moved the model, which no round need wait for; it holds them."""
    loss: float = math.nan
    """Mean training loss, weighted by samples."""
    bytes_down: int = 0
    """Model and broadcasts, once for every client asked, as where each is a node of its own."""
    bytes_up: int = 0
    """Models and uploads of the updates that were used."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """clients: from asking to the last reply; client-work: clients' own time, summed; server: combine and deploy."""
    workers: Sequence[Mapping[str, object]] = ()
    """The processes that played the clients: process id, device, visible GPUs."""
    metrics: Numbers = field(default_factory=dict)


def sorted_workers(exchange: Exchange) -> list[Mapping[str, object]]:
    """Return the distinct processes behind the answers."""
    distinct = {
        str(sorted(a.worker.items())): a.worker for a in exchange.answers.values() if a.worker
    }
    return [distinct[key] for key in sorted(distinct)]
