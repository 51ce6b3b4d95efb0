"""The plan of a race for the available time: decided once from the measured speed, and stored in a file."""

import json
import math
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from data import SettingError, require
from fedskew.costs.estimate import cost_of
from fedskew.costs.pace import timed
from fedskew.costs.sizes import Sizes
from fedskew.method_selection.race import BASELINE, Candidate, Rung, rungs
from fedskew.method_selection.uploads import permitted
from server_app.composition import compose
from server_app.run_folder import write_text
from server_app.run_settings import RunSettings, Scalar
from server_app.settings import parse

METHODS = (
    BASELINE,
    "fedshift",
    "ccvr",
    "iwds",
    "creff",
    "fedbn",
    "fedprox",
    "scaffold",
    "fedlc",
    "fedavgm",
)
"""Those that need nothing but what clients have."""
RATES = (1.0, 1 / 3, 3.0)
"""Of the settings' learning rate."""
RACE_SEEDS, LAST_SEEDS = (0, 1, 2), (10, 11, 12, 13, 14)
"""Of the race, and of the comparison of its winner with FedAvg."""
ENOUGH = 2 / 3
"""Of the settings' rounds; with fewer a race has fewer candidates instead, as methods change places meanwhile."""
START = 2.0
"""Seconds that a run takes beside its rounds."""
SHARE = 0.2
"""Of the clients' samples, kept for validation where the data bring none."""


@dataclass(frozen=True)
class Plan:
    """A race."""

    candidates: tuple[Candidate, ...]
    ladder: tuple[Rung, ...]
    last: Rung
    """The comparison of the winner with FedAvg, on seeds of its own."""
    seconds: float
    """Its expected duration."""

    def save(self, path: Path) -> None:
        """Write the plan."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(asdict(self), indent=2) + "\n")

    @staticmethod
    def load(path: Path) -> "Plan":
        """Undo `save`. Raises SettingError for a file that is damaged."""
        try:
            saved = json.loads(path.read_text())
            candidates = tuple(Candidate(**candidate) for candidate in saved["candidates"])
            ladder = tuple(rung_of(rung) for rung in saved["ladder"])
            return Plan(candidates, ladder, rung_of(saved["last"]), saved["seconds"])
        except (ValueError, TypeError, KeyError) as error:
            remedy = "delete it, and the race is planned anew"
            raise SettingError("plan", str(path), "is damaged", remedy=remedy) from error


def rung_of(saved: Mapping[str, Any]) -> Rung:
    """Return a rung of a plan's file."""
    return Rung(int(saved["rounds"]), tuple(saved["seeds"]), int(saved["enter"]))


def possible(
    methods: Sequence[str],
    settings: Mapping[str, Scalar],
    without: Collection[str] = (),
) -> dict[str, RunSettings]:
    """Return the methods that go with the model and the data, each with its run; what fails for FedAvg is an error.

    Methods that need one of the permissions in `without` are left out.
    """
    runs = {BASELINE: parse({**settings, "method": BASELINE})}
    for method in methods:
        compose(method)  # a name that there is not is an error
        try:
            runs[method] = parse({**settings, "method": method})
        except SettingError as error:
            if error.key not in ("model", "method"):
                raise
    rule = "none but FedAvg goes with the model and the data"
    require(len(runs) > 1, "--method", ",".join(methods), rule)
    allowed, left_out = permitted(runs, without)
    rule = f"leaves none but FedAvg: {', '.join(left_out)} upload it"
    require(len(allowed) > 1, "--without", ",".join(without), rule)
    return allowed


def affordable(
    runs: Mapping[str, RunSettings],
    sizes: Sizes,
    minutes: float,
    cores: int = 0,
) -> Plan:
    """Return the largest race that fits into the time: with as many rounds as can be, up to those of the settings.

    Short of time it has one learning rate instead of three, then half of the methods, then two: the first of `runs`.
    Raises SettingError where not even a round of two methods fits.
    """
    cores = cores or os.cpu_count() or 1
    costs = {method: by_round(run, sizes) for method, run in runs.items()}
    base = runs[BASELINE].training.learning_rate
    most = runs[BASELINE].general.rounds
    names = list(runs)
    half = names[: max(2, math.ceil(len(names) / 2))]
    levels = [
        (names, RATES, RACE_SEEDS, LAST_SEEDS),
        (names, RATES[:1], RACE_SEEDS, LAST_SEEDS),
        (half, RATES[:1], RACE_SEEDS, LAST_SEEDS),
        (names[:2], RATES[:1], RACE_SEEDS[:2], LAST_SEEDS[:3]),
    ]
    best: Plan | None = None
    for methods, rates, seeds, last in levels:
        learning_rates = [float(f"{base * rate:.3g}") for rate in rates]
        pairs = product(methods, learning_rates)
        candidates = tuple(Candidate(method, rate) for method, rate in pairs)
        fitting = None
        for rounds in range(most, 0, -1):
            plan = planned(candidates, rounds, seeds, last, costs, cores)
            if plan.seconds <= 60 * minutes:
                fitting = plan
                break
        if fitting is not None and (best is None or fitting.last.rounds > best.last.rounds):
            best = fitting
        if best is not None and best.last.rounds >= ENOUGH * most:
            return best
    if best is not None:
        return best
    smallest = planned(candidates, 1, seeds, last, costs, cores)
    least = math.ceil(smallest.seconds / 6) / 10  # minutes, rounded up to one decimal
    two = f"{names[0]} and {names[1]}"
    rule = f"is less than one round of two methods, {two}, takes: {least:g} minutes"
    raise SettingError("--minutes", minutes, rule)


def planned(
    candidates: tuple[Candidate, ...],
    rounds: int,
    seeds: Sequence[int],
    last: Sequence[int],
    costs: Mapping[str, tuple[float, float]],
    cores: int,
) -> Plan:
    """Return a race whose last rung has so many rounds; its time is for the costliest candidates in later rungs."""
    ladder = rungs(len(candidates), rounds, seeds)
    final = Rung(rounds, tuple(last), 2)
    work = 0.0
    for rung in [*ladder, final]:
        seconds = []
        for candidate in candidates:
            every_round, once = costs[candidate.method]
            seconds.append(once + rung.rounds * every_round)
        costliest = sorted(seconds, reverse=True)[: rung.enter]
        work += len(rung.seeds) * sum(costliest)
    return Plan(candidates, tuple(ladder), final, work / cores)


def by_round(run: RunSettings, sizes: Sizes) -> tuple[float, float]:
    """Return the seconds of one core of a round of a run, and those of the run beside its rounds."""
    pace = timed(run, sizes)
    cost = cost_of(run, sizes, pace)
    if not cost.left:  # every round is finished
        return 0.0, 0.0
    once = pace.once + pace.evaluation + START
    return pace.clients + pace.server, once
