"""Rounds of a run in turns with other work, so that both see the same machine."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence

from benchmarks.figures import MEASUREMENTS
from client_app.handlers import ClientOutcome
from fedskew.engines.workers import WorkersGrid
from fedskew.signals import one_interrupt
from server_app.app import run
from server_app.run_settings import RunSettings
from strategies.core.exchange import Request

PLAYERS = {"inprocess": 0, "workers": 2}
"""Worker processes, by engine."""


class InTurns(WorkersGrid):
    """Plays clients, and after every `block` rounds does each of `others` as often.

    A turn ends when the last of its rounds is on the disk: what a run left alone writes beside its next round would be
    written beside the others' turn, at no one's cost.
    """

    def __init__(self, workers: int, block: int, others: Sequence[Callable[[], object]]) -> None:
        super().__init__(workers)
        self.lines = threading.Semaphore(0)
        self.block = block
        self.actions = [self.lines.acquire, *others]
        self.rounds = 0
        self.seconds: list[list[float]] = [[] for _ in self.actions]
        """Of a round, by turn: the run's, then the others'."""
        self.began = time.perf_counter()

    def tell(self, line: str) -> None:
        """Take a line of the run: one that begins with its number says that a round is on the disk."""
        if line.startswith("round"):
            self.lines.release()

    def outcomes(
        self,
        request: Request,
        clients: Sequence[int],
        timeout: float,
    ) -> Iterator[ClientOutcome]:
        """Play a round, after what is due of the others."""
        if self.rounds and self.rounds % self.block == 0:
            self.end_turn()
        self.rounds += 1
        yield from super().outcomes(request, clients, timeout)

    def end_turn(self) -> None:
        """Wait for the disk, then let the others have their turn."""
        for action, series in zip(self.actions, self.seconds, strict=True):
            for _ in range(self.block):
                action()
            ended = time.perf_counter()
            series.append((ended - self.began) / self.block)
            self.began = ended


def rounds_of(block: int) -> int:
    """Return the rounds of a run in turns: the first turn does not count, and none follows the last round."""
    return (MEASUREMENTS + 1) * block + 1


def in_turns(
    settings: RunSettings,
    engine: str,
    block: int,
    *others: Callable[[], object],
) -> list[list[float]]:
    """Return the seconds of a round in the run's turns, and in those of each of the others, without the first turns."""
    with one_interrupt(), InTurns(PLAYERS[engine], block, others) as grid:
        run(grid, settings, grid.tell)
    return [series[1:] for series in grid.seconds]
