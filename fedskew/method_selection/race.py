"""Successive halving over candidates with equal budgets (Jamieson and Talwalkar, 2016), and its conclusion.

Nothing here trains: scores come from a function, so that a race can be run on drawn ones.
"""

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fedskew.report.inference import Comparison, Interval, Pair, compare

BASELINE = "fedavg"
THIRD = 3
"""A rung keeps one candidate of three, as Jamieson and Talwalkar do."""


@dataclass(frozen=True, order=True)
class Candidate:
    """A method with a learning rate."""

    method: str
    learning_rate: float

    def __str__(self) -> str:
        return f"{self.method} ({self.learning_rate:g})"


@dataclass(frozen=True)
class Rung:
    """The budget of every candidate that is still in the race: rounds and seeds."""

    rounds: int
    seeds: tuple[int, ...]
    enter: int
    """Candidates that enter; FedAvg's best is one of them, or comes beside them."""


Scores = Mapping[Candidate, Mapping[int, float]]
"""By candidate and seed, in percent; a run that failed has none."""
Score = Callable[[Sequence[Candidate], Rung], Scores]


@dataclass(frozen=True)
class RungResult:
    """How the candidates stood after a rung, best first."""

    rung: Rung
    means: Mapping[Candidate, float]


def rungs(candidates: int, rounds: int, seeds: Sequence[int]) -> list[Rung]:
    """Return the rungs: all candidates for a third of the rounds, a third of them for all, a ninth with all the seeds.

    Fewer rounds than a third would favor what learns fast. A rung that would drop no candidate is left out.
    """
    third = max(2, math.ceil(candidates / THIRD))
    ninth = max(2, math.ceil(candidates / THIRD**2))
    one_seed = tuple(seeds[:1])
    all_seeds = tuple(seeds)
    ladder = []
    if candidates > third:
        ladder.append(Rung(math.ceil(rounds / THIRD), one_seed, candidates))
    if third > ninth:
        ladder.append(Rung(rounds, one_seed, third))
    ladder.append(Rung(rounds, all_seeds, ninth))
    return ladder


def race(
    candidates: Sequence[Candidate],
    ladder: Sequence[Rung],
    score: Score,
    uploads_nothing: Collection[str] = (),
) -> tuple[list[RungResult], Candidate]:
    """Return the standings after every rung, and the winner: of equal ones the first by name.

    Of FedAvg the best so far stays in the race to its end, as the others are compared with it, and so does the best
    of the methods that upload nothing beside the model. In the last rung every method has one learning rate, so that
    two rates of one do not displace another method.

    Args:
        candidates: all of them.
        ladder: the rungs.
        score: trains candidates for a rung's budget.
        uploads_nothing: the methods that upload nothing beside the model.
    """
    results: list[RungResult] = []
    running = list(candidates)
    for rung in ladder:
        if results:
            ranked = list(results[-1].means)
            running = entering(ranked, rung, rung is ladder[-1], uploads_nothing)
        scores = score(running, rung)
        means: dict[Candidate, float] = {}
        for candidate in sorted(running):  # of equal means the first by name
            by_seed = scores.get(candidate, {})
            if len(by_seed) == len(rung.seeds):
                means[candidate] = statistics.fmean(by_seed.values())
        by_mean = sorted(means, key=means.__getitem__, reverse=True)
        results.append(RungResult(rung, {candidate: means[candidate] for candidate in by_mean}))
        if not means:
            reason = "no run of the race has finished: each one's reason stands in the overview"
            raise RuntimeError(reason)
    return results, next(iter(results[-1].means))


def entering(
    ranked: Sequence[Candidate],
    rung: Rung,
    is_last: bool,
    uploads_nothing: Collection[str] = (),
) -> list[Candidate]:
    """Return the candidates that enter a rung, of the earlier rung's from best to worst; see `race`."""
    best_of_method: dict[str, Candidate] = {}
    for candidate in ranked:
        best_of_method.setdefault(candidate.method, candidate)
    order = list(best_of_method.values()) if is_last else ranked
    chosen = list(order[: rung.enter])
    for always in (best_of_method.get(BASELINE), best_without_uploads(ranked, uploads_nothing)):
        if always is not None and always not in chosen:
            chosen.append(always)
    return chosen


def best_without_uploads(
    ranked: Iterable[Candidate], uploads_nothing: Collection[str]
) -> Candidate | None:
    """Return the first candidate whose method uploads nothing beside the model; None where there is none."""
    quiet = (candidate for candidate in ranked if candidate.method in uploads_nothing)
    return next(quiet, None)


@dataclass(frozen=True)
class Gain:
    """What the winner has over FedAvg on the test set, by seeds that the race has not seen."""

    winner: Mapping[int, float]
    baseline: Mapping[int, float]
    made_of: Sequence[Pair] = ()
    """By seed, in ascending order, the test examples of the two numbers; without them the interval is over seeds
    alone."""

    @property
    def differences(self) -> list[float]:
        """The winner less FedAvg, by seed, in points."""
        return [self.winner[seed] - self.baseline[seed] for seed in sorted(self.winner)]

    @property
    def comparison(self) -> Comparison:
        """The winner less FedAvg, with the interval that reports have: over seeds and test examples."""
        by_seed = dict(zip(sorted(self.winner), self.differences, strict=True))
        pairs = self.made_of or [(None, None) for _ in by_seed]
        return compare(by_seed, pairs, ("winner", BASELINE))

    @property
    def interval(self) -> Interval:
        """The 95 % interval of the mean difference."""
        interval = self.comparison.interval
        assert interval is not None, "a gain has two seeds at least"
        return interval

    @property
    def distinguishable(self) -> bool:
        """Whether the winner is above FedAvg beyond what other seeds and other test examples would give."""
        return self.comparison.verdict() == "above"


def take(winner: Candidate, baseline: Candidate | None, gain: Gain | None) -> Candidate:
    """Return the candidate to take: the winner where it is distinguishably above FedAvg, else FedAvg.

    Args:
        winner: of the race.
        baseline: FedAvg with its best learning rate; None where none of its runs has finished.
        gain: what the winner has over it; None where the two could not be compared, or are the same.
    """
    if baseline is None or (gain is not None and gain.distinguishable):
        return winner
    return baseline


def conclusion(winner: Candidate, baseline: Candidate | None, gain: Gain | None) -> list[str]:
    """Return what the race ends with, in lines; arguments as in `take`."""
    lines = [f"winner: {winner}"]
    nobody = "no method is distinguishable from FedAvg here"
    if gain is not None:
        lines.append(gain_line(gain))
        if not gain.distinguishable:
            lines.append(nobody)
    elif winner.method == BASELINE:
        lines.append(f"{nobody}: FedAvg itself is the best")
    elif baseline is None:
        lines.append("FedAvg has finished no run: the winner is compared with nothing")
    else:
        lines.append("the winner and FedAvg have fewer than two seeds in common: nothing is told")
    return [*lines, f"take {take(winner, baseline, gain)}"]


def gain_line(gain: Gain) -> str:
    """Return the gain over FedAvg in a line: mean, interval and the differences by seed."""
    interval = gain.interval
    mean = f"{statistics.fmean(gain.differences):+.1f} points"
    ends = f"95 % interval {interval.low:+.1f} to {interval.high:+.1f} over {interval.resampled}"
    differences = ", ".join(f"{value:+.1f}" for value in gain.differences)
    return f"gain over FedAvg on the test set: {mean}, {ends} ({differences})"
