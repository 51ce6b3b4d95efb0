"""Coordinate-wise median: less than half of the clients cannot move it beyond the others (Yin et al. 2018)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from client_app.state import State
from strategies.core.server import Server, ServerMethod, Update
from strategies.trimmed_mean import middle_mean


@dataclass(frozen=True)
class CoordinateMedian(ServerMethod):
    """w_j <- median_i (w_i)_j in every coordinate j (Definition 1); of an even number the mean of the middle two.

    Every client counts once, whatever number of samples it claims. Where clients are skewed the median drops what only
    few of them have learnt, such as a class that most do not hold: it replaces no mean among friends.
    """

    name: ClassVar[str] = "median"

    def combine(
        self, server: Server, state: State, updates: Sequence[Update]
    ) -> tuple[State, State]:
        # All but the middle one, or of an even number the middle two.
        trimmed = (len(updates) - 1) // 2
        return middle_mean([update.shared for update in updates], trimmed), state
