"""The forms that a statement of a paper can have, each as differences by seed.

"A is better than B", "A rises over the columns" or "A peaks at this column" become parts: a difference and the margin
that it must exceed. statements.py judges the parts.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from fedskew.experiments.experiments import Experiment
from fedskew.experiments.statements import Alike, Better, Gap, Knee, Peak, Series, Term, Trend
from fedskew.report.claims import Margin, pair, why_never
from fedskew.report.format import in_percent, words
from fedskew.report.inference import Pair, measure, strata
from fedskew.report.results import ExperimentResults, SeedResult
from fedskew.report.rounds_to_target import (
    by_seed,
    ends_below,
    no_level,
    reach,
    round_of_never,
    rounding_of,
)


@dataclass(frozen=True)
class Part:
    """One difference that a statement says to be above a margin: of a column, of a step, or of a whole line."""

    name: str
    by: float
    measure: Callable[[int], Margin | str]
    """Of a seed: the difference; why there never is one; the empty text where a run is still to come."""


def parts_of(term: Term, results: ExperimentResults, columns: Sequence[str]) -> list[Part]:
    """Return the differences that a term says to be above their margins."""
    if isinstance(term, Better):
        return [better_part(term, results, column) for column in columns]
    if isinstance(term, Gap):
        return [line_part(term, results, columns, (term.better, term.than), term.gap)]
    forms: dict[type[Term], Callable[..., list[Part]]] = {
        Alike: alike_parts,
        Trend: trend_parts,
        Peak: peak_parts,
        Knee: knee_parts,
        Series: series_parts,
    }
    return forms[type(term)](term, results, columns)


def metric_of(term: Term, experiment: Experiment, column: str) -> str:
    """Return the number that a term compares in a column."""
    if isinstance(term, Series):
        return term.series
    return getattr(term, "metric", "") or experiment.metric_of(column)


def selection_of(term: Term, experiment: Experiment) -> str:
    """Return the round that a term compares."""
    return getattr(term, "selection", "") or experiment.selection


def unit_of_test(term: Term, metric: str) -> str:
    """Return the unit of a term's differences."""
    if isinstance(term, Better) and term.sooner:
        return "rounds"
    return "points" if in_percent(metric) else ""


def better_part(term: Better, results: ExperimentResults, column: str) -> Part:
    """Return one column's difference of two rows."""
    metric = metric_of(term, results.experiment, column)
    selection = selection_of(term, results.experiment)

    def difference(seed: int) -> Margin | str:
        if term.smoother or term.times:
            runs = finished_pair(results, term, column, seed)
            if isinstance(runs, str):
                return runs
            if term.smoother:
                return smoother(*runs, metric)
            return so_many_times_sooner(*runs, term.times, selection, metric)
        return pair(results, term.claim, column, seed, selection, metric)

    return Part(column or f"{term.better} beside {term.than}", term.by, difference)


def finished_pair(
    results: ExperimentResults, term: Better, column: str, seed: int
) -> tuple[SeedResult, SeedResult] | str:
    """Return the two rows' runs; why there never are, or the empty text where one is still to come."""
    better = by_seed(results, term.better, column, seed)
    than = by_seed(results, term.than, column, seed)
    if better is None or than is None:
        return ""
    return better, than


def smoother(better: SeedResult, than: SeedResult, metric: str) -> Margin | str:
    """Return by how much the second row's curve is rougher than the first one's."""
    roughness_of_both = []
    for measured in (better, than):
        roughness = roughness_of(measured, metric)
        if roughness is None:
            return f"{measured.cell.row}'s curve has fewer than four evaluated rounds, or gaps"
        roughness_of_both.append(roughness)
    ours, theirs = roughness_of_both
    return Margin(theirs - ours, (None, None))


def roughness_of(measured: SeedResult, metric: str) -> float | None:
    """Return the mean absolute change of a number between evaluated rounds, over the second half of them.

    None where the run has fewer than four evaluated rounds, or a round without the number.
    """
    values = []
    for point in measured.points:
        value = measured.number(point, metric)
        if value is None:
            return None
        values.append(value)
    if len(values) < 4:
        return None

    second_half = values[len(values) // 2 :]
    changes = np.abs(np.diff(second_half))
    scale = 100 if in_percent(metric) else 1
    return float(changes.mean()) * scale


def so_many_times_sooner(
    better: SeedResult, than: SeedResult, times: float, selection: str, metric: str
) -> Margin | str:
    """Return by how many rounds `times` the first row's rounds stay below the second row's, to its selected number."""
    if reason := no_level(than, selection, metric):
        return f"{than.cell.row}'s {words(metric)} {reason}: nothing can be sooner there"
    target = measure(than, selection, metric)
    assert target is not None  # no_level has refused a run without a number
    ours = reach(better, target, metric)
    theirs = reach(than, target, metric)
    our_round = round_of_never(better)
    if ours is not None and not ends_below(better, target, selection, metric):
        our_round = ours
    their_round = theirs if theirs is not None else than.points[-1].round
    sooner = their_round - times * our_round
    return Margin(sooner, (None, None), rounding_of(better, than, times))


def alike_parts(term: Alike, results: ExperimentResults, columns: Sequence[str]) -> list[Part]:
    """Return, by column, that the difference is above -within, and that its negative is (two one-sided tests)."""
    first, second = term.alike
    parts = []
    for column in columns:
        for better, than in ((first, second), (second, first)):
            of_pair = Better(
                better, than, -term.within, metric=term.metric, selection=term.selection
            )
            part = better_part(of_pair, results, column)
            side = f"{better} no more than {term.within:g} below {than}"
            parts.append(replace(part, name=f"{column}: {side}" if column else side))
    return parts


Numbers = list[float]


def row_numbers(
    term: Term, results: ExperimentResults, row: str, columns: Sequence[str], seed: int
) -> Numbers | str:
    """Return a row's numbers over the columns; why one never is there, or the empty text where a run is to come."""
    numbers = []
    selection = selection_of(term, results.experiment)
    open_reason = None
    for column in columns:
        metric = metric_of(term, results.experiment, column)
        if reason := why_never(results, row, column, seed, selection, metric):
            return reason
        measured = by_seed(results, row, column, seed)
        number = None if measured is None else measure(measured, selection, metric)
        if number is None:
            open_reason = ""
        else:
            numbers.append(number)
    return numbers if open_reason is None else open_reason


def slope_weights(columns: int) -> list[float]:
    """Return the weights of columns, equally far apart, whose sum is the fitted line's rise from first to last."""
    centered = np.arange(columns) - (columns - 1) / 2
    weights = centered * (columns - 1) / float((centered**2).sum())
    return [float(weight) for weight in weights]


def line_part(
    term: Trend | Gap,
    results: ExperimentResults,
    columns: Sequence[str],
    rows: Sequence[str],
    direction: str,
) -> Part:
    """Return the fitted line's rise of a row, or of the difference of two, over the columns."""
    sign = 1.0 if direction == "rises" else -1.0
    weights = slope_weights(len(columns))

    def rise(seed: int) -> Margin | str:
        lines = []
        for row in rows:
            numbers = row_numbers(term, results, row, columns, seed)
            if isinstance(numbers, str):
                return numbers
            lines.append(numbers)
        values = lines[0]
        if len(lines) == 2:
            values = [ours - theirs for ours, theirs in zip(*lines, strict=True)]
        total = math.fsum(weight * value for weight, value in zip(weights, values, strict=True))
        return Margin(sign * total, (None, None))

    name = " minus ".join(rows)
    return Part(f"{name} {direction}", term.by, rise)


def difference_part(
    term: Term,
    results: ExperimentResults,
    name: str,
    by: float,
    terms: Sequence[tuple[float, str, str]],
) -> Part:
    """Return a weighted sum of numbers as a part; `terms` are weight, row and column."""

    def total(seed: int) -> Margin | str:
        values = []
        for weight, row, column in terms:
            numbers = row_numbers(term, results, row, [column], seed)
            if isinstance(numbers, str):
                return numbers
            values.append(weight * numbers[0])
        return Margin(math.fsum(values), examples_of(term, results, terms, seed))

    return Part(name, by, total)


def examples_of(
    term: Term,
    results: ExperimentResults,
    terms: Sequence[tuple[float, str, str]],
    seed: int,
) -> Pair:
    """Return the test examples of a plain difference of two numbers; none of any other sum."""
    if [weight for weight, _, _ in terms] != [1.0, -1.0]:
        return (None, None)
    selection = selection_of(term, results.experiment)
    found = []
    for _, row, column in terms:
        measured = by_seed(results, row, column, seed)
        assert measured is not None  # its number was read before
        found.append(strata(measured, selection, metric_of(term, results.experiment, column)))
    return (found[0], found[1])


def trend_parts(term: Trend, results: ExperimentResults, columns: Sequence[str]) -> list[Part]:
    """Return of every row the whole rise and each step of it."""
    sign = 1.0 if term.trend == "rises" else -1.0
    parts = []
    for row in term.over:
        parts.append(line_part(term, results, columns, [row], term.trend))
        for before, after in pairwise(columns):
            step = [(sign, row, after), (-sign, row, before)]
            if sign < 0:
                step.reverse()
            name = f"{row}: {before} to {after}"
            parts.append(difference_part(term, results, name, -term.slack, step))
    return parts


def peak_parts(term: Peak, results: ExperimentResults, columns: Sequence[str]) -> list[Part]:
    """Return by how much every row, or its difference from another one, is higher in one column than in the others."""
    parts = []
    for row in term.over:
        for column in columns:
            if column == term.peak:
                continue
            terms = [(1.0, row, term.peak), (-1.0, row, column)]
            if term.than:
                terms += [(-1.0, term.than, term.peak), (1.0, term.than, column)]
            name = f"{row}: {term.peak} above {column}"
            parts.append(difference_part(term, results, name, term.by, terms))
    return parts


def knee_parts(term: Knee, results: ExperimentResults, columns: Sequence[str]) -> list[Part]:
    """Return the fall after the knee, and by how much it is larger than the one before it."""
    start, bend, end = columns
    row = term.knee
    fall = [(1.0, row, bend), (-1.0, row, end)]
    # The fall from bend to end, less the one from start to bend.
    excess = [(2.0, row, bend), (-1.0, row, end), (-1.0, row, start)]

    falls = f"{row} falls from {bend} to {end}"
    falls_more = f"more than from {start} to {bend}"
    return [
        difference_part(term, results, falls, term.by, fall),
        difference_part(term, results, falls_more, 0.0, excess),
    ]


def series_parts(term: Series, results: ExperimentResults, columns: Sequence[str]) -> list[Part]:
    """Return what a number by round stays below, by how much it falls, and what it stays above."""
    parts = []
    for column in columns:
        where = f"{column}: " if column else ""
        if term.below is not None:
            name = f"{where}{words(term.series)} below {term.below:g} from round {term.by_round} on"
            parts.append(Part(name, 0.0, series_margin(term, results, column, "below")))
        if term.falls:
            name = f"{where}{words(term.series)} falls"
            parts.append(Part(name, 0.0, series_margin(term, results, column, "falls")))
        if term.stays_above is not None:
            name = f"{where}{words(term.series)} above {term.stays_above:g}"
            parts.append(Part(name, 0.0, series_margin(term, results, column, "above")))
    return parts


def series_margin(
    term: Series, results: ExperimentResults, column: str, what: str
) -> Callable[[int], Margin | str]:
    """Return what measures one side of a series in a seed: how far it is on the right side."""

    def margin(seed: int) -> Margin | str:
        measured = by_seed(results, term.row, column, seed)
        if measured is None:
            return ""
        values = series_of(measured, term.series)
        if len(values) < 2:
            return f"{term.row}'s records have no {words(term.series)} by round"
        rounds = sorted(values)
        if what == "falls":
            return Margin(values[rounds[0]] - values[rounds[-1]], (None, None))
        if what == "above":
            assert term.stays_above is not None
            return Margin(min(values.values()) - term.stays_above, (None, None))
        assert term.below is not None
        later = [values[round] for round in rounds if round >= term.by_round]
        if not later:
            return f"{term.row} has no round {term.by_round}"
        return Margin(term.below - max(later), (None, None))

    return margin


def series_of(measured: SeedResult, name: str) -> dict[int, float]:
    """Return a number by evaluated round, of the rounds that have it."""
    values = {}
    for point in measured.points:
        value = measured.number(point, name)
        if value is not None:
            values[point.round] = value
    return values
