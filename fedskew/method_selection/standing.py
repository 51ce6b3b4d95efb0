"""How the candidates of a race stand: their ranking, and which of them a cut keeps.

Cuts are by standard error: a candidate that is not clearly worse than the last one kept is kept as well. In the end, of
those within one standard error of the best, the simplest wins.
"""

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fedskew.method_selection.candidates import BASELINE, Candidate
from fedskew.method_selection.planning import THIRD
from fedskew.method_selection.race_log import Step
from fedskew.method_selection.uncertainty import BySeed, Difference, difference

ERRORS = 2.0
"""Standard errors within which a candidate counts as equal to the last one that is kept."""
SIMPLER = 1.0
"""Standard errors behind the best within which a simpler candidate is taken (Breiman et al. 1984, the 1 SE rule)."""
NEAR = 3
"""Candidates behind the last one that is kept, whose differences to it have an error together."""
MOST_SHOWN = 10
"""Rows of the table that a race ends with; those who could win to the end are always in it."""

Measurements = Mapping[Candidate, BySeed]
"""Measurements by candidate and seed; a run that failed has none."""


@dataclass(frozen=True)
class StepResult:
    """How the candidates stood after a step, best first."""

    step: Step
    means: Mapping[Candidate, float]


def mean_of(by_seed: BySeed) -> float:
    """Return the mean score over the seeds."""
    return statistics.fmean(measurement.score for measurement in by_seed.values())


def rank(measured: Measurements, candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return the candidates whose runs have all finished, best first; of equal means the first by name."""
    by_name = sorted(candidates)
    seeds = {candidate: len(measured.get(candidate, {})) for candidate in by_name}
    most = max(seeds.values(), default=0)
    if not most:
        return []
    complete = [candidate for candidate in by_name if seeds[candidate] == most]
    means = {candidate: mean_of(measured[candidate]) for candidate in complete}
    return sorted(complete, key=means.__getitem__, reverse=True)


def best_third(ranked: Sequence[Candidate], measured: Measurements) -> list[Candidate]:
    """Return the best third of the candidates, two at least, and those who are not clearly worse than its last."""
    least = max(2, math.ceil(len(ranked) / THIRD))
    return cut(ranked, measured, least)


def cut(ranked: Sequence[Candidate], measured: Measurements, least: int) -> list[Candidate]:
    """Return the first `least` candidates, and those who are within two standard errors of the last of them.

    A difference over two seeds has an error that is itself uncertain, so it counts as no less than that of the next
    `least` candidates together, NEAR at least.
    """
    kept = list(ranked[:least])
    if len(kept) == len(ranked):
        return kept
    near = within(ERRORS, kept[-1], ranked[least:], measured, max(NEAR, least))
    return [*kept, *near]


def within(
    errors: float,
    first: Candidate,
    others: Sequence[Candidate],
    measured: Measurements,
    together: int,
) -> list[Candidate]:
    """Return those of `others` that are within so many standard errors of `first`.

    A difference's error counts as no less than that of the first `together` of them.
    """
    differences: dict[Candidate, Difference] = {}
    for candidate in others:
        found = difference(measured[first], measured[candidate])
        if found is not None:
            differences[candidate] = found
    least = root_mean_square([found.error for found in differences.values()][:together])
    near = []
    for candidate, found in differences.items():
        if found.mean <= errors * max(found.error, least):
            near.append(candidate)
    return near


def root_mean_square(errors: Sequence[float]) -> float:
    """Return the error that several differences have together; 0 of none."""
    return math.sqrt(statistics.fmean(error**2 for error in errors)) if errors else 0.0


def simplest(ranked: Sequence[Candidate], measured: Measurements) -> Candidate:
    """Return the candidate with the fewest parts, of those within one standard error of the first.

    FedAvg wins only where it is the first: else the comparison by other seeds decides whether anything is above it.
    """
    first = ranked[0]
    if first.method == BASELINE:
        return first
    others = [candidate for candidate in ranked[1:] if candidate.method != BASELINE]
    equal = [first, *within(SIMPLER, first, others, measured, NEAR)]
    return min(equal, key=lambda candidate: candidate.parts)  # of as many parts the best


def one_rate_each(
    ranked: Sequence[Candidate], measured: Measurements, own_rate: float
) -> list[Candidate]:
    """Return of each method one learning rate, best first.

    That is the settings' own one, unless another one is better by more than one standard error. An error counts as no
    less than that of all methods' differences together: one of two or three seeds is itself uncertain.
    """
    behind: dict[Candidate, Difference | None] = {}
    chosen = best_rate_each(ranked)
    own_of = {one.method: one for one in ranked if one.learning_rate == own_rate}
    for best in chosen:
        own = own_of.get(best.method)
        if own is not None and own != best:
            behind[best] = difference(measured[best], measured[own])
    least = root_mean_square([found.error for found in behind.values() if found is not None])
    settled = []
    for best in chosen:
        found = behind.get(best)
        keeps_own = found is not None and found.mean <= SIMPLER * max(found.error, least)
        settled.append(own_of[best.method] if keeps_own else best)
    return rank(measured, settled)


def best_rate_each(ranked: Sequence[Candidate]) -> list[Candidate]:
    """Return of each method the best learning rate, best first."""
    best: dict[str, Candidate] = {}
    for candidate in ranked:
        best.setdefault(candidate.method, candidate)
    return list(best.values())


def shown(means: Mapping[Candidate, float], finalists: Collection[Candidate]) -> list[Candidate]:
    """Return the candidates of the table that a race ends with, best first: the first of each method, not too many."""
    best = best_rate_each(list(means))
    return [one for index, one in enumerate(best) if index < MOST_SHOWN or one in finalists]


def best_without_uploads(
    ranked: Iterable[Candidate], uploads_nothing: Collection[str]
) -> Candidate | None:
    """Return the first candidate whose method uploads nothing beside the model; None where there is none."""
    without_uploads = (one for one in ranked if one.method in uploads_nothing)
    return next(without_uploads, None)
