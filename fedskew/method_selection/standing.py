"""How the candidates of a race stand: their ranking, and which of them a cut keeps.

Cuts are by standard error: a candidate that is not clearly worse than the last one kept is kept as well.
"""

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fedskew.method_selection.candidates import Candidate
from fedskew.method_selection.planning import THIRD
from fedskew.method_selection.race_log import Step
from fedskew.method_selection.uncertainty import BySeed, Difference, difference

ERRORS = 2.0
"""Standard errors within which a candidate counts as equal to the last one that is kept."""
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
    last = kept[-1]
    differences: dict[Candidate, Difference] = {}
    for candidate in ranked[least:]:
        found = difference(measured[last], measured[candidate])
        if found is not None:
            differences[candidate] = found
    near = list(differences.values())[: max(NEAR, least)]
    pooled = math.sqrt(statistics.fmean(found.error**2 for found in near)) if near else 0.0
    for candidate, found in differences.items():
        if found.mean <= ERRORS * max(found.error, pooled):
            kept.append(candidate)
    return kept


def one_rate_each(ranked: Sequence[Candidate]) -> list[Candidate]:
    """Return of each method the best learning rate, best first."""
    best: dict[str, Candidate] = {}
    for candidate in ranked:
        best.setdefault(candidate.method, candidate)
    return list(best.values())


def shown(means: Mapping[Candidate, float], finalists: Collection[Candidate]) -> list[Candidate]:
    """Return the candidates of the table that a race ends with, best first: the first of each method, not too many."""
    best = one_rate_each(list(means))
    return [one for index, one in enumerate(best) if index < MOST_SHOWN or one in finalists]


def best_without_uploads(
    ranked: Iterable[Candidate], uploads_nothing: Collection[str]
) -> Candidate | None:
    """Return the first candidate whose method uploads nothing beside the model; None where there is none."""
    without_uploads = (one for one in ranked if one.method in uploads_nothing)
    return next(without_uploads, None)
