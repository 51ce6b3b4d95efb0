"""By how much each row differs from the row it is compared with, paired by seed, and whether that is distinguishable
from no difference."""

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
    first_upper,
    in_percent,
    named,
    plain,
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
    selection = experiment.selection
    compared = {}
    for row in experiment.rows:
        if row.label == standard:
            continue
        comparison = compare_rows(results, row.label, standard, column, selection, metric)
        if comparison is not None:
            compared[row.label] = comparison
    of_standard = unfit_words(results, standard, column)
    unfit = {label: unfit_words(results, label, column) or of_standard for label in compared}
    p_values = []
    for label, comparison in compared.items():
        p_values.append(None if unfit[label] else p_of(comparison.interval))
    shown = []
    for (label, comparison), p in zip(compared.items(), holm(p_values), strict=True):
        shown.append(Difference(label, standard, comparison, p, unfit[label]))
    return shown


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
    number = signed(difference.estimate, metric)
    unit = " points" if in_percent(metric) else ""
    low, high = difference.ends
    return number + unit + ends_words(low, high, metric)


def difference_tables(results: ExperimentResults) -> list[Table]:
    """Return the differences, one table per column."""
    selected = SELECTION_WORDS[results.experiment.selection]
    headings = ("method", "difference", "by seed", "distinguishable")
    tables = []
    for column in results.experiment.columns:
        metric = results.experiment.metric_of(column)
        shown = {difference.row: difference for difference in differences(results, column)}
        judged = sum(not difference.unfit for difference in shown.values())
        standard = reference(results.experiment)
        rows = []
        for row in results.experiment.rows:
            if row.label in shown:
                rows.append(difference_row(shown[row.label], metric, judged))
            elif row.label != standard and results.diverged(row.label, column):
                why = unfit_words(results, row.label, column)
                cells = [TableCell(row.label), TableCell(NONE), TableCell(NONE)]
                rows.append([*cells, TableCell("not judged", why)])
        if rows:
            measured = f"{named(column)}{words_and_unit(metric)}, {selected}"
            caption = f"{measured}: difference from {standard}."
            tables.append(Table(caption, list(map(TableCell, headings)), rows))
    return tables


def difference_row(difference: Difference, metric: str, judged: int) -> list[TableCell]:
    """Return the row of one difference in a table of which so many rows are judged."""
    by_seeds = difference.comparison.by_seed
    seeds = ", ".join(signed(margin, metric) for margin in by_seeds.values())
    if difference.unfit:
        verdict = TableCell("not judged", difference.unfit)
    elif difference.p_holm is None:
        verdict = TableCell(NONE, "one seed")
    else:
        test = "p" if judged == 1 else "Holm's p"
        below = f"{test} {p_value(difference.p_holm)}"
        distinguishable = difference.distinguishable
        verdict = TableCell("yes" if distinguishable else "no", below, strong=distinguishable)
    return [
        TableCell(difference.row),
        TableCell(interval_words(difference, metric)),
        TableCell(seeds),
        verdict,
    ]


def comparison(results: ExperimentResults, column: str) -> str:
    """Return in a sentence which rows of a column are distinguishable from the one they are compared with.

    Rows that diverged or are no better than chance are not in it; nothing is compared with such a row.
    """
    experiment = results.experiment
    metric = experiment.metric_of(column)
    all_rows = [difference for difference in differences(results, column) if not difference.unfit]
    if not all_rows:
        return ""
    # A row with a single seed would make the sentence about all rows weaker than it is.
    several_seeds = [difference for difference in all_rows if difference.n > 1]
    shown = several_seeds or all_rows
    standard = shown[0].than
    summary = summarize_seeds(results.of(standard, column), experiment.selection, metric)
    percent = " percent" if in_percent(metric) else ""
    base = f"{standard} ({spread_words(summary, metric)}{percent} {words(metric)})"
    if any(difference.distinguishable for difference in shown):
        text = distinguished(shown, base, metric)
    else:
        text = not_distinguished(shown, base, metric)
    return f"In {column}, {text}" if column else capitalized(text)


def not_distinguished(shown: Sequence[Difference], base: str, metric: str) -> str:
    """Return the sentence about rows that are all not distinguishable from `base`."""
    seeds = max(difference.n for difference in shown)
    largest = max(shown, key=lambda difference: abs(difference.estimate))
    several = len(shown) > 1
    if seeds == 1:
        which = "any method" if several else largest.row
        verdict = f"one seed cannot tell {which} from {base}"
    else:
        subject = "no method is" if several else f"{largest.row} is not"
        verdict = f"{subject} distinguishable from {base} in {seeds} seeds"
    whose = f"the largest difference is {largest.row}'s," if several else "the difference is"
    after_holm = ""
    if largest.p_holm is not None and largest.comparison.verdict() != "unclear":
        after_holm = (
            f", Holm's p {p_value(largest.p_holm)}"  # the interval alone would say that it is
        )
    return f"{verdict}; {whose} {interval_words(largest, metric)}{after_holm}."


def distinguished(shown: Sequence[Difference], base: str, metric: str) -> str:
    """Return the sentence about rows of which some are distinguishable from `base`, the highest first."""
    certain = [difference for difference in shown if difference.distinguishable]
    certain.sort(key=lambda difference: difference.estimate, reverse=True)
    unit = " points" if in_percent(metric) else ""
    parts: list[str] = []
    for difference in certain:
        side = "above" if difference.estimate > 0 else "below"
        than = difference.than if parts else base  # the first one also names the base's number
        by = plain(abs(difference.estimate), metric) + unit
        low, high = difference.ends
        ends = ends_words(low, high, metric)
        parts.append(f"{difference.row} is {side} {than} by {by}{ends}")

    text = ", ".join(parts)
    rest = [difference.row for difference in shown if not difference.distinguishable]
    if rest:
        verb = "is" if len(rest) == 1 else "are"
        text += f"; {listed(rest)} {verb} not distinguishable from it"
    return f"{text}."


def listed(names: Sequence[str]) -> str:
    """Return names as a sentence lists them."""
    if len(names) == 1:
        return names[0]
    return f"{', '.join(names[:-1])} and {names[-1]}"


def capitalized(text: str) -> str:
    """Return the text with a capital, except where it begins with a method's name."""
    return first_upper(text) if text.startswith(("no ", "one ")) else text
