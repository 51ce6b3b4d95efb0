"""The planner of a race: what fits into the minutes that are left, as a function of measured times alone.

Nothing here trains, measures or reads a clock.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from data import SettingError

THIRD = 3
"""Of the rounds, the first rung's part; of the candidates, what a cut keeps at least (Jamieson and Talwalkar, 2016)."""
FIRST_SHARE = 0.3
"""Of the time, what the first rung may take."""
ONE_SHARE = 0.25
"""Of the time, what two full runs of one training may take: what is costlier is left out alone."""
LAST_SHARE = 0.2
"""Of the time, what is kept at least for the comparison with FedAvg."""
LEAST_LAST = 3
"""Seeds of that comparison at least."""
AIM = 0.95
"""Of the time, what is planned: a race must not be longer than 1.1 times its minutes."""
FULL_SEEDS = (4, 3, 2)
"""Seeds of the first full runs: as many as all who are wanted have time for."""
MARGIN = 1.25
"""A training that would be treated otherwise, were the machine this much faster or slower, is at the margin of time."""


@dataclass(frozen=True)
class Cost:
    """The seconds of a training's run."""

    every_round: float
    once: float
    """What a run takes beside its rounds."""

    def of(self, rounds: int, factor: float = 1.0) -> float:
        """Return the seconds of so many rounds, times a factor."""
        return factor * (self.once + rounds * self.every_round)


Costs = Mapping[str, Cost]
"""By training."""


@dataclass(frozen=True)
class Entry:
    """What the first rung trains."""

    rounds: int
    """Of the full runs; the first rung has a third."""
    seeds: int
    """Of the first rung."""
    taken: tuple[str, ...]
    """Trainings, in the order in which they were wanted."""
    left_out: tuple[str, ...] = ()
    """Trainings without time."""
    at_margin: tuple[str, ...] = ()
    """Those of both that another start of the same race may treat otherwise."""


def first_rounds(rounds: int) -> int:
    """Return the rounds of the first rung."""
    return math.ceil(rounds / THIRD)


def entry(
    costs: Costs,
    always: Collection[str],
    rounds: int,
    seconds: float,
    minutes: float,
) -> Entry:
    """Return which trainings enter the race, and with how many rounds.

    Args:
        costs: of all trainings, in the order in which they are wanted; the first is FedAvg's.
        always: trainings that are never left out.
        rounds: of the settings: as many as can be.
        seconds: that the race may still take.
        minutes: what the user stated, for the error.

    Raises:
        SettingError: not even one round of what is always in fits.
    """
    chosen = entered(costs, always, rounds, seconds)
    if chosen is None:
        least = smallest_race(costs, always, 1)
        needed = math.ceil((least + 60 * minutes - seconds) / AIM / 6) / 10  # minutes, rounded up
        names = " and ".join(name for name in costs if name in always)
        rule = f"is less than a race of one round takes, of {names} alone: about {needed:g} minutes"
        raise SettingError("--minutes", minutes, rule)
    margin = set[str]()
    for factor in (1 / MARGIN, MARGIN):
        other = entered(scaled(costs, factor), always, rounds, seconds)
        taken = set(other.taken) if other is not None else set(always)
        margin |= taken ^ set(chosen.taken)
    at_margin = tuple(name for name in costs if name in margin)
    return Entry(chosen.rounds, chosen.seeds, chosen.taken, chosen.left_out, at_margin)


def entered(costs: Costs, always: Collection[str], rounds: int, seconds: float) -> Entry | None:
    """Return the entry without what is at the margin; None where nothing fits."""
    full = rounds
    while full and smallest_race(costs, always, full) > seconds:
        full -= 1
    if not full:
        return None
    first = first_rounds(full)
    certain = [name for name in costs if name in always]
    spent = sum(costs[name].of(first) for name in certain)
    taken = list(certain)
    for name, cost in costs.items():
        if name in certain:
            continue
        fits = spent + cost.of(first) <= FIRST_SHARE * seconds
        if fits and 2 * cost.of(full) <= ONE_SHARE * seconds:
            taken.append(name)
            spent += cost.of(first)
    # Of a time that is too short for all rounds, nothing is spent on a second seed of a third of them.
    seeds = 2 if full == rounds and 2 * spent <= FIRST_SHARE * seconds else 1
    ordered = tuple(name for name in costs if name in taken)
    left_out = tuple(name for name in costs if name not in taken)
    return Entry(full, seeds, ordered, left_out)


def smallest_race(costs: Costs, always: Collection[str], rounds: int) -> float:
    """Return the seconds of the smallest race: what is always in with one seed, and FedAvg beside the costliest."""
    of_always = [cost.of(rounds) for name, cost in costs.items() if name in always]
    first = sum(cost.of(first_rounds(rounds)) for name, cost in costs.items() if name in always)
    return first + sum(of_always) + LEAST_LAST * pair_cost(of_always)


def pair_cost(of_trainings: Sequence[float]) -> float:
    """Return the seconds of one seed of the last comparison, at most: of the costliest training and of FedAvg, the
    first."""
    costliest = max(of_trainings)
    return costliest + of_trainings[0]


def scaled(costs: Costs, factor: float) -> dict[str, Cost]:
    """Return the costs times a factor."""
    return {
        name: Cost(factor * cost.every_round, factor * cost.once) for name, cost in costs.items()
    }


@dataclass(frozen=True)
class Choice:
    """What of a wish list fits."""

    taken: tuple[int, ...]
    """Indices."""
    left_out: tuple[int, ...] = field(default=())


def fitting(seconds_of: Sequence[float], always: Collection[int], budget: float) -> Choice:
    """Return what of a list fits into the budget, the first ones first; single costly ones are skipped.

    Args:
        seconds_of: of each, in the order in which they are wanted.
        always: indices that are taken whatever they cost.
        budget: in seconds.
    """
    spent = sum(seconds_of[index] for index in always)
    taken = set(always)
    for index, seconds in enumerate(seconds_of):
        if index not in taken and spent + seconds <= budget:
            taken.add(index)
            spent += seconds
    indices = range(len(seconds_of))
    return Choice(
        tuple(index for index in indices if index in taken),
        tuple(index for index in indices if index not in taken),
    )


def reserve(of_trainings: Sequence[float], seconds: float) -> float:
    """Return the seconds to keep for the last comparison.

    Args:
        of_trainings: seconds of a full run of each training that is still in the race, FedAvg's first.
        seconds: of the race.
    """
    return max(LEAST_LAST * pair_cost(of_trainings), LAST_SHARE * seconds)


def seeds_that_fit(seconds_per_seed: float, budget: float, have: int, most: int) -> int:
    """Return how many more seeds to train at once: at most as many as there are, so that times are seen in between."""
    fitting_seeds = int(budget / seconds_per_seed) if seconds_per_seed > 0 else most
    return max(0, min(fitting_seeds, max(1, have), most - have))


def correction(predicted: Sequence[float], measured: Sequence[float]) -> float:
    """Return the factor by which measured times differ from predicted ones; 1 before anything is measured.

    Old steps count less, as a machine becomes busy or idle meanwhile.
    """
    if not predicted or not sum(predicted):
        return 1.0
    last = len(predicted) - 1
    of_measured = 0.0
    of_predicted = 0.0
    for index, (before, after) in enumerate(zip(predicted, measured, strict=True)):
        weight = 2.0 ** (index - last)
        of_predicted += weight * before
        of_measured += weight * after
    return of_measured / of_predicted


def full_seeds(costs: Sequence[float], certain: int, budget: float) -> int:
    """Return how many seeds the full runs get: as many as all entrants have time for, else two, or one.

    Args:
        costs: seconds of one seed, by entrant.
        certain: how many of the first entrants are trained in any case.
        budget: seconds for the full runs.
    """
    for number in FULL_SEEDS:
        if number * sum(costs) <= budget:
            return number
    return 2 if 2 * sum(costs[:certain]) <= budget else 1
