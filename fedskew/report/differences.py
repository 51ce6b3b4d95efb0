"""By how much each row differs from the row it is compared with, paired by seed, and whether that is distinguishable
from no difference."""

import math
from dataclasses import dataclass, replace

from fedskew.formatting import p_value, plural
from fedskew.report.format import (
    NONE,
    SELECTION_WORDS,
    Table,
    TableCell,
    ends_words,
    first_upper,
    in_percent,
    named,
    signed,
    words,
    words_and_unit,
)
from fedskew.report.inference import (
    LEVEL,
    Comparison,
    Pair,
    compare,
    holm,
    is_significant,
    measure,
    p_of,
    strata,
    summarize_seeds,
)
from fedskew.report.results import ExperimentResults
from fedskew.report.rounds_to_target import by_seed, reference
from fedskew.report.tables import spread_words
from fedskew.report.unfit_rows import unfit_words

ABOUT = (
    "Each row minus the one that it is compared with, seed by seed: both saw the same data and partition. The 95 % "
    "interval is the wider of Student's over the seeds and a bootstrap of seeds and test examples (subjects, where "
    "these are tested); claims have the same one. p is of the paired t-test, corrected for the column's rows (Holm). A "
    f"row is distinguishable where the interval excludes 0 and p is below {LEVEL:g}. One seed decides nothing: its "
    "interval covers test examples alone. A row that diverged in a seed, or is no better than chance, is not judged, "
    "nor is any row against it; the correction is for the rows that are."
)


@dataclass(frozen=True)
class Difference:
    """A row's number minus that of the row that it is compared with."""

    row: str
    than: str
    comparison: Comparison
    p_holm: float | None = None
    """Corrected for the column's rows that are judged; None for one seed."""
    unfit: str = ""
    """Which of the two rows diverged in a seed or is no better than chance; empty where none, so that it is judged."""

    @property
    def n(self) -> int:
        return self.comparison.n

    @property
    def estimate(self) -> float:
        return self.comparison.estimate

    @property
    def ends(self) -> tuple[float, float]:
        """The ends of the 95 % interval; NaN without one."""
        interval = self.comparison.interval
        if interval is None:
            return (math.nan, math.nan)
        return (interval.low, interval.high)

    @property
    def distinguishable(self) -> bool:
        """Whether the interval leaves out 0, which takes two seeds, and so does the test among the column's rows.

        A row that diverged in a seed is not judged by its others, nor is one that is no better than chance.
        """
        if self.unfit or self.comparison.verdict() == "unclear":
            return False
        return is_significant(self.p_holm)


def differences(results: ExperimentResults, column: str) -> list[Difference]:
    """Return the differences of a column, of the rows that share a seed with the one they are compared with."""
    experiment = results.experiment
    standard = reference(experiment)
    metric = experiment.metric_of(column)
    of_standard = unfit_words(results, standard, column)
    shown = []
    for row in experiment.rows:
        if row.label == standard:
            continue
        comparison = compare_rows(
            results, row.label, standard, column, experiment.selection, metric
        )
        if comparison is not None:
            unfit = unfit_words(results, row.label, column) or of_standard
            shown.append(Difference(row.label, standard, comparison, unfit=unfit))
    p_values = [None if one.unfit else p_of(one.comparison.interval) for one in shown]
    return [replace(one, p_holm=p) for one, p in zip(shown, holm(p_values), strict=True)]


def compare_rows(
    results: ExperimentResults,
    row: str,
    than: str,
    column: str,
    selection: str,
    metric: str,
) -> Comparison | None:
    """Return a row's number minus another row's, over the seeds that both have; None where there is no such seed."""
    by_seeds: dict[int, float] = {}
    pairs: list[Pair] = []
    for ours in results.of(row, column):
        theirs = by_seed(results, than, column, ours.cell.seed)
        if theirs is None:
            continue
        our_number = measure(ours, selection, metric)
        their_number = measure(theirs, selection, metric)
        if our_number is None or their_number is None:
            continue
        by_seeds[ours.cell.seed] = our_number - their_number
        pairs.append((strata(ours, selection, metric), strata(theirs, selection, metric)))
    return compare(by_seeds, pairs, (row, than)) if by_seeds else None


def interval_words(difference: Difference, metric: str) -> str:
    """Return the difference with its unit and its interval."""
    unit = " points" if in_percent(metric) else ""
    return signed(difference.estimate, metric) + unit + ends_words(*difference.ends, metric)


def difference_tables(results: ExperimentResults) -> list[Table]:
    """Return the differences, one table per column."""
    selected = SELECTION_WORDS[results.experiment.selection]
    standard = reference(results.experiment)
    headings = list(map(TableCell, ("method", "difference", "by seed", "distinguishable")))
    tables = []
    for column in results.experiment.columns:
        metric = results.experiment.metric_of(column)
        shown = {difference.row: difference for difference in differences(results, column)}
        test = "Holm's p" if sum(not one.unfit for one in shown.values()) > 1 else "p"
        rows = []
        for row in results.experiment.rows:
            difference = shown.get(row.label)
            if difference is not None:
                seeds = [signed(one, metric) for one in difference.comparison.by_seed.values()]
                cells = [interval_words(difference, metric), ", ".join(seeds)]
                verdict = verdict_cell(difference, test)
            elif row.label != standard and results.diverged(row.label, column):
                cells = [NONE, NONE]
                verdict = TableCell("not judged", unfit_words(results, row.label, column))
            else:
                continue
            rows.append([*map(TableCell, (row.label, *cells)), verdict])
        if rows:
            measured = f"{named(column)}{words_and_unit(metric)}, {selected}"
            tables.append(Table(f"{measured}: difference from {standard}.", headings, rows))
    return tables


def verdict_cell(difference: Difference, test: str) -> TableCell:
    """Return whether a difference is distinguishable; `test` is what its p-value is called."""
    if difference.unfit:
        return TableCell("not judged", difference.unfit)
    if difference.p_holm is None:
        return TableCell(NONE, "one seed")
    yes = difference.distinguishable
    return TableCell("yes" if yes else "no", f"{test} {p_value(difference.p_holm)}", strong=yes)


def comparison(results: ExperimentResults, column: str) -> str:
    """Return in a sentence which rows of a column are distinguishable from the one they are compared with.

    Rows that diverged or are no better than chance are not in it; nothing is compared with such a row.
    """
    metric = results.experiment.metric_of(column)
    judged = [difference for difference in differences(results, column) if not difference.unfit]
    # A row with a single seed would make the sentence about all rows weaker than it is.
    shown = [difference for difference in judged if difference.n > 1] or judged
    if not shown:
        return ""
    standard = shown[0].than
    summary = summarize_seeds(results.of(standard, column), results.experiment.selection, metric)
    percent = " percent" if in_percent(metric) else ""
    number = f"{spread_words(summary, metric)}{percent} {words(metric)}"
    against = f"{named(column)}against {standard} ({number})"
    highest_first = sorted(shown, key=lambda difference: difference.estimate, reverse=True)
    texts: dict[bool, list[str]] = {True: [], False: []}
    for difference in highest_first:
        text = f"{difference.row} {interval_words(difference, metric)}"
        texts[difference.distinguishable].append(text)
    parts = [", ".join(texts[True]) or "no row is distinguishable"]
    if texts[False]:
        parts.append(
            f"not distinguishable in {plural(shown[0].n, 'seed')}: {', '.join(texts[False])}"
        )
    return first_upper(f"{against}: {'; '.join(parts)}.")
