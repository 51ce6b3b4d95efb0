"""Verdicts on what papers say.

statement_forms.py turns every statement into differences by seed. One rule judges these, whatever the statement's form.
Facts of a partition are exact and need no rule.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from data import DataSettings, federate
from data.dataset import missing_names
from fedskew.experiments.plan import Cell
from fedskew.experiments.statements import FACT, Better, HeldBy, Partition, Statement, Term
from fedskew.report.claims import Margin
from fedskew.report.format import named
from fedskew.report.inference import (
    Comparison,
    Interval,
    compare,
    holm,
    measure,
    p_of,
    p_of_several,
    seeds_to_decide,
)
from fedskew.report.results import ExperimentResults, SeedResult
from fedskew.report.statement_forms import Part, metric_of, parts_of, unit_of_test

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
class Judged:
    """The result for one statement."""

    statement: Statement
    status: str
    """A key of STATUS_WORDS."""
    reason: str = ""
    """Why it cannot be judged or is not measured, or how a statement without runs is."""
    deciding: str = ""
    """Of which part the numbers are: the one whose interval reaches lowest beside its margin, or that refutes it."""
    by: float = 0.0
    """The margin that they must exceed."""
    estimate: float = math.nan
    by_seed: Mapping[int, float] = field(default_factory=dict)
    interval: Interval | None = None
    """Of that part; its p-value is the whole statement's."""
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
    def is_measured(self) -> bool:
        """Whether it has a verdict, or at least a number where more than MOST_SEEDS would be needed for one."""
        return self.status in ("holds", "fails", "unclear") or not math.isnan(self.estimate)

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
    if reason := diverged_words(cells, of_entry):
        return replace(judged, status="never", reason=reason)
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
    """Return the verdict on a statement without a measured seed: data are missing, it never can be, or it is open.

    Args:
        judged: what is known of the statement.
        of_entry: the runs.
        reasons: why each seed never can be measured; "" while its runs are unfinished.
    """
    if any(reasons):
        reason = "; ".join(dict.fromkeys(filter(None, reasons)))
        if not all(reasons):
            reason += ", in the seeds so far"
        return replace(judged, status="never", reason=reason)
    if reason := missing_data(judged.cells, of_entry):
        return replace(judged, status="never", reason=reason)
    return judged


def diverged_words(cells: Sequence[Cell], of_entry: ExperimentResults) -> str:
    """Return which row of a statement diverged in which seed; empty where none did."""
    for cell in cells:
        divergence = of_entry.runs[cell.run.run_id].divergence
        if divergence is not None:
            where = f"{cell.row} diverged in seed {cell.seed}, round {divergence['round']}"
            return f"{named(cell.column)}{where}"
    return ""


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

    The numbers shown are those of the part with the lowest lower end, beside the margins; of a statement that does not
    hold, of the part with the lowest upper end, which refutes it. With `among` parts it is the among-th of the highest.
    The p-value is that of the whole statement, see `p_of_several`.
    """
    verdicts = [
        comparison.verdict(part.by) for part, comparison in zip(parts, comparisons, strict=True)
    ]
    refuted = [
        verdict == "below" or is_tied(comparison, part.by)
        for part, comparison, verdict in zip(parts, comparisons, verdicts, strict=True)
    ]
    holds = verdicts.count("above") >= among
    fails = not holds and sum(refuted) > len(parts) - among
    ends = highest if fails else lowest
    beside = [
        ends(comparison) - part.by for part, comparison in zip(parts, comparisons, strict=True)
    ]

    # Fewer than `among` parts are not refuted where it fails, so that the chosen one is refuted.
    from_highest = sorted(
        range(len(parts)), key=lambda number: (fails and refuted[number], -beside[number])
    )
    chosen = from_highest[among - 1]
    estimates = [comparison.estimate for comparison in comparisons]
    above = sum(estimate > part.by for estimate, part in zip(estimates, parts, strict=True))
    interval = comparisons[chosen].interval
    if interval is not None:
        p = p_of_several(comparisons, [part.by for part in parts], among)
        interval = replace(interval, p=p)
    judged = replace(
        judged,
        status="unclear",
        deciding=parts[chosen].name,
        by=parts[chosen].by,
        estimate=estimates[chosen],
        by_seed=comparisons[chosen].by_seed,
        interval=interval,
        above=above,
    )
    if holds:
        return replace(judged, status="holds")
    if fails:
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
    """Return whether the difference is the margin itself in each of several seeds, no larger in any.

    Other test examples must not move it: the interval has no width beside that of rounding.
    """
    interval = comparison.interval
    if comparison.n < 2 or interval is None or set(comparison.by_seed.values()) != {by}:
        return False
    return comparison.rounding > 0 or interval.low == interval.high


def lowest(comparison: Comparison) -> float:
    """Return the interval's lower end; without one the mean."""
    return comparison.estimate if comparison.interval is None else comparison.interval.low


def highest(comparison: Comparison) -> float:
    """Return the interval's upper end; without one the mean."""
    return comparison.estimate if comparison.interval is None else comparison.interval.high


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
    rounding = max(margin.rounding for margin in margins.values())
    return compare(differences, pairs, names, part.by, rounding)


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
