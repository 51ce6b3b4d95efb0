"""The steps of a race, in a file: each is written before it runs, so a killed race repeats no decision."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from data import SettingError
from fedskew.method_selection.candidates import Entrant
from fedskew.method_selection.planning import Cost
from server_app.run_folder import write_text

FORMAT = 2
PACE, FIRST, FULL, RATES, SEEDS, LAST = ("pace", "first", "full", "rates", "seeds", "last")
"""The purposes of steps, in the order in which they come."""


@dataclass
class Step:
    """Trainings of equal budget."""

    purpose: str
    entrants: tuple[Entrant, ...]
    rounds: int
    seeds: tuple[int, ...]
    predicted: float = 0.0
    """Seconds by the costs known before, uncorrected."""
    seconds: float | None = None
    """What it took; None before it has ended."""
    costs: Mapping[str, Cost] = field(default_factory=dict)
    """Measured costs by training; empty where they were known before."""
    without_time: tuple[str, ...] = ()
    """What was wanted as much as the last one taken, and did not fit into the time."""


class RaceLog:
    """The steps so far.

    Args:
        path: of the file; what stands there is read.

    Raises:
        SettingError: the file is damaged, or of another version.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.steps: list[Step] = []
        self.entry: dict[str, Any] = {}
        """What entered, and what did not: `rounds`, `seeds`, `taken`, `left_out`, `at_margin`."""
        self.guess: dict[str, Cost] = {}
        """Costs before anything ran."""
        if path.exists():
            self.read()

    def read(self) -> None:
        """Read the file."""
        try:
            saved = json.loads(self.path.read_text())
            if saved["format"] != FORMAT:
                raise ValueError("another format")
            self.entry = saved["entry"]
            self.guess = costs_of(saved["guess"])
            self.steps = [step_of(step) for step in saved["steps"]]
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            remedy = "delete it, and the race is planned anew"
            raise SettingError("plan", str(self.path), "is damaged", remedy=remedy) from error

    def save(self) -> None:
        """Write the file."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        content = {
            "format": FORMAT,
            "entry": self.entry,
            "guess": {name: asdict(cost) for name, cost in self.guess.items()},
            "steps": [asdict(step) for step in self.steps],
        }
        write_text(self.path, json.dumps(content, indent=2) + "\n")

    @property
    def used(self) -> float:
        """The seconds of the steps that have ended."""
        return sum(step.seconds for step in self.steps if step.seconds is not None)


def costs_of(saved: Mapping[str, Mapping[str, float]]) -> dict[str, Cost]:
    """Return costs of a file."""
    return {name: Cost(**cost) for name, cost in saved.items()}


def step_of(saved: Mapping[str, Any]) -> Step:
    """Return a step of a file."""
    return Step(
        purpose=saved["purpose"],
        entrants=tuple(Entrant(**entrant) for entrant in saved["entrants"]),
        rounds=int(saved["rounds"]),
        seeds=tuple(saved["seeds"]),
        predicted=saved["predicted"],
        seconds=saved["seconds"],
        costs=costs_of(saved["costs"]),
        without_time=tuple(saved["without_time"]),
    )
