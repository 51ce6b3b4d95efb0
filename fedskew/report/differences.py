"""By how much each row differs from the row it is compared with, paired by seed, and whether that can be told."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedskew.formatting import p_value
from fedskew.report.format import (
    NONE,
    SELECTION_WORDS,
    Table,
    TableCell,
    ends_words,
    in_percent,
    named,
    plain,
    signed,
    words,
    words_and_unit,
)
from fedskew.report.inference import (
    Comparison,
    Pair,
    compare,
    holm,
    measure,
    p_of,
    strata,
    summarize_seeds,
)
from fedskew.report.results import ExperimentResults
from fedskew.report.rounds_to_target import by_seed, reference
from fedskew.report.tables import spread_words

ABOUT = (
    "Each row minus the one that it is compared with, seed by seed: both saw the same data and partition. The 95 % "
    "interval is the wider of Student's over the seeds and a bootstrap of seeds and test examples (subjects, where "
    "these are tested); claims have the same one. A difference can be told where the interval leaves out 0. From one "
    "seed nothing can be told: its interval is about test examples alone. p is of the paired t-test. Every row is "
    "judged by itself, so of 20 rows that differ in nothing about one is told apart by chance; the p-value in brackets "
    "is corrected for the column's rows (Holm)."
)


@dataclass(frozen=True)
class Difference:
    """A row's number minus that of the row that it is compared with."""

    row: str
    than: str
    comparison: Comparison
    p_holm: float | None = None
    """Corrected for the rows of the column; None for one seed."""

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
        return (math.nan, math.nan) if interval is None else (interval.low, interval.high)

    @property
    def p(self) -> float | None:
        """None for one seed."""
        return p_of(self.comparison.interval)

    @property
    def distinguishable(self) -> bool:
        """Whether the difference can be told from none, which takes two seeds."""
        return self.comparison.verdict() != "unclear"


def differences(results: ExperimentResults, column: str) -> list[Difference]:
    """Return the differences of a column, of the rows that share a seed with the one they are compared with."""
    experiment = results.experiment
    standard = reference(experiment)
    metric, selection = experiment.metric_of(column), experiment.selection
    compared = {}
    for row in experiment.rows:
        if row.label == standard:
            continue
        comparison = compare_rows(results, row.label, standard, column, selection, metric)
        if comparison is not None:
            compared[row.label] = comparison
    corrected = holm([p_of(comparison.interval) for comparison in compared.values()])
    return [
        Difference(row, standard, comparison, p)
        for (row, comparison), p in zip(compared.items(), corrected, strict=True)
    ]


def compare_rows(
    results: ExperimentResults, row: str, than: str, column: str, selection: str, metric: str
) -> Comparison | None:
    """Return a row's number minus another row's, over the seeds that both have; None where there is no such seed."""
    by_seeds, pairs = dict[int, float](), list[Pair]()
    for ours in results.of(row, column):
        theirs = by_seed(results, than, column, ours.cell.seed)
        if theirs is None:
            continue
        values = [measure(run, selection, metric) for run in (ours, theirs)]
        if values[0] is None or values[1] is None:
            continue
        by_seeds[ours.cell.seed] = values[0] - values[1]
        pairs.append((strata(ours, selection, metric), strata(theirs, selection, metric)))
    return compare(by_seeds, pairs, (row, than)) if by_seeds else None


def interval_words(difference: Difference, metric: str) -> str:
    """Return the difference with its unit and its interval."""
    unit = " points" if in_percent(metric) else ""
    return signed(difference.estimate, metric) + unit + ends_words(*difference.ends, metric)


def difference_tables(results: ExperimentResults) -> list[Table]:
    """Return the differences, a table a column."""
    tables = []
    for column in results.experiment.columns:
        metric, rows = results.experiment.metric_of(column), []
        all_shown = differences(results, column)
        for shown in all_shown:
            by_seeds = shown.comparison.by_seed
            seeds = ", ".join(signed(margin, metric) for margin in by_seeds.values())
            said = "yes" if shown.distinguishable else "no" if shown.n > 1 else NONE
            below = "one seed" if shown.p is None else f"p {p_value(shown.p)}"
            if shown.p is not None and shown.p_holm is not None and len(all_shown) > 1:
                below += f" [{p_value(shown.p_holm)}]"
            rows.append([TableCell(shown.row), TableCell(interval_words(shown, metric)), TableCell(seeds),
                         TableCell(said, below, strong=shown.distinguishable)])  # fmt: skip
        if rows:
            selected = SELECTION_WORDS[results.experiment.selection]
            caption = f"{named(column)}{words_and_unit(metric)}, {selected}: difference from {shown.than}."
            headings = ("method", "difference", "by seed", "can be told")
            tables.append(Table(caption, list(map(TableCell, headings)), rows))
    return tables


def comparison(results: ExperimentResults, column: str) -> str:
    """Return in a sentence whether the rows of a column can be told from the one that they are compared with."""
    experiment = results.experiment
    metric, where = experiment.metric_of(column), f"In {column}, " if column else ""
    shown = differences(results, column)
    shown = [difference for difference in shown if difference.n > 1] or shown
    if not shown:
        return ""
    standard, seeds = shown[0].than, max(difference.n for difference in shown)
    summary = summarize_seeds(results.of(standard, column), experiment.selection, metric)
    base = f"{standard} ({spread_words(summary, metric)}{' percent' * in_percent(metric)} {words(metric)})"
    if not any(difference.distinguishable for difference in shown):
        largest = max(shown, key=lambda difference: abs(difference.estimate))
        several = len(shown) > 1
        subject = "no method is" if several else f"{largest.row} is not"
        verdict = f"{subject} distinguishable from {base} in {seeds} seeds"
        if seeds == 1:
            verdict = f"one seed cannot tell {'any method' if several else largest.row} from {base}"
        whose = f"the largest difference is {largest.row}'s," if several else "the difference is"
        return sentence(f"{where}{verdict}; {whose} {interval_words(largest, metric)}.")
    certain = [difference for difference in shown if difference.distinguishable]
    parts = [
        f"{difference.row} is {'above' if difference.estimate > 0 else 'below'} {base if not number else standard}"
        f" by {plain(abs(difference.estimate), metric)}{' points' * in_percent(metric)}"
        f"{ends_words(*difference.ends, metric)}"
        for number, difference in enumerate(
            sorted(certain, key=lambda difference: -difference.estimate)
        )
    ]
    rest = [difference.row for difference in shown if not difference.distinguishable]
    verb = "is" if len(rest) == 1 else "are"
    after = f"; {listed(rest)} {verb} not distinguishable from it" if rest else ""
    return sentence(f"{where}{', '.join(parts)}{after}.")


def listed(names: Sequence[str]) -> str:
    """Return names as a sentence lists them."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def sentence(text: str) -> str:
    """Return the text with a capital where it begins with a word of its own."""
    return text[0].upper() + text[1:] if text.startswith(("no ", "one ")) else text
