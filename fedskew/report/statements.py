"""Verdicts on what papers say: every form of the grammar becomes differences by seed, which one rule judges."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from data import DataSettings, federate
from data.dataset import missing_names
from fedskew.experiments.experiments import Experiment
from fedskew.experiments.plan import Cell
from fedskew.experiments.statements import (
    FACT,
    Alike,
    Better,
    Gap,
    HeldBy,
    Knee,
    Partition,
    Peak,
    Series,
    Statement,
    Term,
    Trend,
)
from fedskew.report.claims import Margin, pair, why_never
from fedskew.report.format import in_percent, words
from fedskew.report.inference import (
    Comparison,
    Interval,
    Pair,
    compare,
    holm,
    measure,
    p_of,
    seeds_to_decide,
    strata,
)
from fedskew.report.results import ExperimentResults, SeedResult
from fedskew.report.rounds_to_target import by_seed, ends_below, no_level, reach, round_of_never

STATUS_WORDS = {
    "holds": "holds",
    "fails": "does not hold",
    "unclear": "not distinguishable",
    "never": "cannot be judged",
    "open": "not measured yet",
}
"""A statement's status in words, in the order in which a paper's are counted."""
TITLES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "mnist": "MNIST", "usps": "USPS"}
"""Data sets whose usual name is not their name here in capitals, word by word."""
MOST_SEEDS = 20
"""A statement that takes more seeds than these cannot be judged."""
OF_CHANCE = 1.96
"""Standard errors of the test set above chance that a level must have."""


@dataclass(frozen=True)
class Part:
    """One difference that a statement says to be above a margin: of a column, of a step, or of a whole line."""

    name: str
    by: float
    measure: Callable[[int], Margin | str]
    """Of a seed: the difference; why there never is one; the empty text where a run is still to come."""


@dataclass(frozen=True)
class Judged:
    """The result for one statement."""

    statement: Statement
    status: str
    """A key of STATUS_WORDS."""
    reason: str = ""
    """Why it cannot be judged or is not measured, or how a statement without runs is."""
    deciding: str = ""
    """Of which part the numbers are: the one whose interval reaches lowest beside its margin."""
    by: float = 0.0
    """The margin that they must exceed."""
    estimate: float = math.nan
    by_seed: Mapping[int, float] = field(default_factory=dict)
    interval: Interval | None = None
    p_holm: float | None = None
    """Corrected for the statements of the same paper."""
    above: int = 0
    """Parts whose mean difference exceeds its margin."""
    parts: int = 0
    more_seeds: int | None = None
    """The seeds that would decide; None where it is decided, or where one seed says nothing of others."""
    unit: str = ""
    metric: str = ""
    cells: Sequence[Cell] = ()
    """The runs behind it."""
    seconds: float = 0.0
    """Of the finished ones."""

    @property
    def words(self) -> str:
        """The verdict with what belongs to it: "not distinguishable (12 seeds would tell)"."""
        verdict = STATUS_WORDS[self.status]
        if self.reason:
            return f"{verdict}: {self.reason}"
        if self.status != "unclear":
            return verdict
        if self.more_seeds is None:
            return f"{verdict}: one seed says nothing of others"
        return f"{verdict}: {self.more_seeds} seeds would decide"


def judge_all(
    statements: Sequence[Statement], results: Mapping[str, ExperimentResults], size: str
) -> list[Judged]:
    """Return the verdicts; p-values are corrected for the number of statements of a paper (Holm 1979).

    Args:
        statements: of one file.
        results: by the name of the entry, at this size.
        size: smoke, laptop or full.
    """
    verdicts = [judge_statement(statement, results, size) for statement in statements]
    corrected: list[Judged] = list(verdicts)
    for paper in dict.fromkeys(statement.short_paper for statement in statements):
        chosen = [
            index for index, statement in enumerate(statements) if statement.short_paper == paper
        ]
        p_values = holm([p_of(verdicts[index].interval) for index in chosen])
        for index, p in zip(chosen, p_values, strict=True):
            corrected[index] = replace(verdicts[index], p_holm=p)
    return corrected


def judge_statement(
    statement: Statement, results: Mapping[str, ExperimentResults], size: str
) -> Judged:
    """Return the verdict on one statement, its p-value not corrected yet."""
    if isinstance(statement.test, HeldBy):
        return Judged(statement, "holds", f"in closed form; {statement.test.held_by} checks it")
    location = statement.location(size)
    assert location is not None  # the reader refuses a statement with runs and without places
    of_entry = results[location.entry]
    columns = location.columns_of(of_entry.experiment)
    if isinstance(statement.test, Partition):
        return judge_partition(statement, statement.test, of_entry)

    cells = [
        cell
        for cell in of_entry.cells
        if cell.column in columns and cell.row in statement.test.rows
    ]
    parts = parts_of(statement.test, of_entry, columns)
    among = getattr(statement.test, "in_columns", 0) or len(parts)
    seeds = sorted({cell.seed for cell in cells})
    complete, reasons = measured_seeds(parts, seeds)
    metric = metric_of(statement.test, of_entry.experiment, columns[0])
    judged = Judged(
        statement,
        "open",
        unit=unit_of_test(statement.test, metric),
        metric=metric,
        cells=cells,
        parts=len(parts),
        seconds=seconds_of(of_entry, cells),
    )
    if not complete:
        return without_seeds(judged, of_entry, reasons)
    if reason := at_chance(statement.test, of_entry, columns):
        return replace(judged, status="never", reason=reason)
    comparisons = [
        compare_part(statement.test, part, complete, number) for number, part in enumerate(parts)
    ]
    return decide(judged, parts, comparisons, among)


def measured_seeds(
    parts: Sequence[Part], seeds: Sequence[int]
) -> tuple[dict[int, list[Margin]], list[str]]:
    """Return by seed the differences of every part, of seeds that have all, and the others' reasons."""
    complete: dict[int, list[Margin]] = {}
    reasons = []
    for seed in seeds:
        margins, of_seed = [], []
        for part in parts:
            measured = part.measure(seed)
            if isinstance(measured, Margin):
                margins.append(measured)
            else:
                of_seed.append(measured)
        if of_seed:
            reasons.append(next(filter(None, of_seed), ""))
        else:
            complete[seed] = margins
    return complete, reasons


def without_seeds(judged: Judged, of_entry: ExperimentResults, reasons: Sequence[str]) -> Judged:
    """Return the verdict on a statement without a measured seed: data are missing, it never can be, or it is open."""
    if reasons and all(reasons):
        return replace(judged, status="never", reason="; ".join(dict.fromkeys(reasons)))
    if reason := missing_data(judged.cells, of_entry):
        return replace(judged, status="never", reason=reason)
    return judged


def missing_data(cells: Sequence[Cell], of_entry: ExperimentResults) -> str:
    """Return which data sets of the unfinished runs are not there; empty where all are."""
    unfinished = [cell for cell in cells if not of_entry.runs[cell.run.run_id].finished]
    return not_in_root([cell.run.data for cell in unfinished])


def not_in_root(data: Sequence[DataSettings]) -> str:
    """Return in words which data sets are not there; empty where all are."""
    lacking: dict[str, None] = {}
    for settings in dict.fromkeys(data):
        lacking |= dict.fromkeys(missing_names(settings))
    if not lacking:
        return ""
    verb = "is" if len(lacking) == 1 else "are"
    return f"{' and '.join(map(title_of, lacking))} {verb} not in data-root"


def decide(
    judged: Judged, parts: Sequence[Part], comparisons: Sequence[Comparison], among: int
) -> Judged:
    """Return the verdict by the one rule, from every part's own interval.

    It holds where every part's interval lies above its margin, which needs no correction for their number (an
    intersection-union test), or where `among` of them do. It does not hold where so many lie below that it cannot.
    Else it is not distinguishable, and cannot be judged where more than MOST_SEEDS seeds would decide.
    """
    verdicts = [
        comparison.verdict(part.by) for part, comparison in zip(parts, comparisons, strict=True)
    ]
    at_margin = [
        is_tied(comparison, part.by) for part, comparison in zip(parts, comparisons, strict=True)
    ]
    beside = np.array(
        [lowest(comparison) - part.by for part, comparison in zip(parts, comparisons, strict=True)]
    )
    from_highest = np.argsort(-beside, kind="stable")
    chosen = int(from_highest[among - 1])
    estimates = [comparison.estimate for comparison in comparisons]
    above = sum(estimate > part.by for estimate, part in zip(estimates, parts, strict=True))
    judged = replace(
        judged,
        status="unclear",
        deciding=parts[chosen].name,
        by=parts[chosen].by,
        estimate=estimates[chosen],
        by_seed=comparisons[chosen].by_seed,
        interval=comparisons[chosen].interval,
        above=above,
    )
    if verdicts.count("above") >= among:
        return replace(judged, status="holds")
    refuted = [
        verdict == "below" or tied for verdict, tied in zip(verdicts, at_margin, strict=True)
    ]
    if sum(refuted) > len(parts) - among:
        return replace(judged, status="fails")

    needed = []
    for part, comparison, verdict in zip(parts, comparisons, verdicts, strict=True):
        if verdict == "unclear":
            needed.append(seeds_to_decide(comparison, part.by))
    known = [number for number in needed if number is not None]
    if not known:
        return judged
    # It fails as soon as one part does, and holds once the last one does.
    failing = [
        seeds_to_decide(comparison, part.by)
        for part, comparison in zip(parts, comparisons, strict=True)
        if comparison.estimate <= part.by
    ]
    decided_at = [number for number in failing if number is not None]
    number = min(decided_at) if decided_at else max(known)
    if number > MOST_SEEDS:
        many = f"more than {MOST_SEEDS} seeds would be needed"
        return replace(judged, status="never", reason=many, more_seeds=number)
    return replace(judged, more_seeds=number)


def is_tied(comparison: Comparison, by: float) -> bool:
    """Return whether the whole interval is the margin itself: the difference is no larger in any of several seeds."""
    interval = comparison.interval
    return comparison.n > 1 and interval is not None and interval.low == interval.high == by


def lowest(comparison: Comparison) -> float:
    """Return the interval's lower end; without one the mean."""
    return comparison.estimate if comparison.interval is None else comparison.interval.low


def compare_part(
    term: Term, part: Part, complete: Mapping[int, Sequence[Margin]], number: int
) -> Comparison:
    """Return the comparison of a part over the seeds that have all parts."""
    margins = {seed: of_parts[number] for seed, of_parts in complete.items()}
    differences = {seed: margin.difference for seed, margin in margins.items()}
    pairs = [margin.strata for margin in margins.values()]

    # The names seed the bootstrap's draws: two rows of a pair have the interval that claims and differences have.
    names = (" ".join(term.rows), part.name)
    if isinstance(term, Better):
        names = (term.rows[0], term.rows[1])
    return compare(differences, pairs, names, part.by)


# ---- the forms -------------------------------------------------------------------------------------------------------


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
        our_round = ours.round
    their_round = theirs.round if theirs is not None else than.points[-1].round
    return Margin(their_round - times * our_round, (None, None))


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


# ---- without training ------------------------------------------------------------------------------------------------


def judge_partition(statement: Statement, term: Partition, results: ExperimentResults) -> Judged:
    """Return the verdict on facts of a partition: they are exact, so that they hold in every seed or do not."""
    failures = []
    measured_facts = []
    cells = [cell for cell in results.cells if cell.column in term.partition]
    for column, fact in term.partition.items():
        of_column = {cell.seed: cell for cell in cells if cell.column == column}
        for cell in of_column.values():
            counts_KC = partition_of(cell, results)
            if counts_KC is None:
                reason = not_in_root([cell.run.data])
                return Judged(statement, "never", reason, cells=cells)
            name, comparison, bound = parsed_fact(fact)
            value = partition_fact(name, counts_KC)
            measured_facts.append(f"{column}: {name} {value:.2f}")
            holds = value >= bound if comparison == ">=" else value <= bound
            if not holds:
                failures.append(f"{column}: {name} is {value:.2f}, not {comparison} {bound:g}")
    if failures:
        return Judged(statement, "fails", "; ".join(failures), cells=cells)
    facts = "; ".join(dict.fromkeys(measured_facts))
    return Judged(statement, "holds", f"exact: {facts}", cells=cells)


def partition_of(cell: Cell, results: ExperimentResults) -> NDArray[np.int64] | None:
    """Return samples by client and class, from the data or else from the records of a run; None without both."""
    data_are_there = not missing_names(cell.run.data)
    if data_are_there:
        return federate(cell.run.data, cell.seed).counts_KC
    run = results.runs[cell.run.run_id]
    recorded = run.samples.get("train")
    if recorded is None:
        return None
    return np.array(recorded)


def parsed_fact(fact: str) -> tuple[str, str, float]:
    """Return name, comparison and bound of `FACT >= NUMBER`."""
    found = FACT.fullmatch(fact)
    assert found is not None  # the reader has refused any other text
    return found[1], found[2], float(found[3])


def partition_fact(name: str, counts_KC: NDArray[np.int64]) -> float:
    """Return a fact of a partition, a mean over the clients, from samples by client and class."""
    counts = np.asarray(counts_KC, float)
    if name == "classes-held":
        classes_K = (counts > 0).sum(1)
        return float(classes_K.mean())
    largest_share_K = counts.max(1) / counts.sum(1)
    return float(largest_share_K.mean())


def title_of(dataset: str) -> str:
    """Return what papers call a data set: CIFAR-100, Fashion-MNIST."""
    if dataset in TITLES:
        return TITLES[dataset]
    words_of_name = dataset.split("-")
    known = [TITLES.get(word, word.capitalize()) for word in words_of_name]
    return "-".join(known)


# ---- the runs behind it ----------------------------------------------------------------------------------------------


def at_chance(term: Term, results: ExperimentResults, columns: Sequence[str]) -> str:
    """Return in which column every row of a statement is at chance in all seeds; empty where none is."""
    for column in columns:
        levels = []
        for row in term.rows:
            levels += [is_at_chance(measured) for measured in results.of(row, column)]
        if levels and all(levels):
            where = f" in {column}" if column else ""
            return f"the level{where} is chance"
    return ""


def is_at_chance(measured: SeedResult) -> bool:
    """Return whether a run's last balanced accuracy is what guessing has, within the test set's own error."""
    value = measure(measured, "last", "balanced-accuracy")
    if value is None:
        return False
    chance = 1 / measured.run.settings.data.num_classes
    tested = sum(measured.run.samples.get("test", ()))
    error = math.sqrt(chance * (1 - chance) / tested) if tested else 0.0
    return value / 100 <= chance + OF_CHANCE * error


def seconds_of(results: ExperimentResults, cells: Sequence[Cell]) -> float:
    """Return the seconds of the finished runs behind cells, each run once."""
    total = 0.0
    for name in dict.fromkeys(cell.run.run_id for cell in cells):
        run = results.runs[name]
        if run.finished:
            total += math.fsum(record.seconds.round for record in run.records)
    return total
