"""By how much each row differs from the row it is compared with, paired by seed, and whether that is distinguishable
from no difference."""

from dataclasses import dataclass, replace

from fedskew.formatting import p_value, plural
from fedskew.report.format import (
    NONE,
    SELECTION_WORDS,
    Line,
    Table,
    TableCell,
    ends_words,
    first_upper,
    in_percent,
    signed,
    table,
    words,
    words_and_unit,
)
from fedskew.report.inference import LEVEL, Estimate, holm, is_significant
from fedskew.report.results import ColumnResults, RowResults
from fedskew.report.strata import compare_rows
from fedskew.report.tables import spread_words

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

    row: RowResults
    than: str
    found: Estimate
    p_holm: float | None = None
    """Corrected for the column's rows that are judged; None for one seed."""
    unfit: str = ""
    """Which of the two rows diverged in a seed or is no better than chance; empty where none, so that it is judged."""

    @property
    def distinguishable(self) -> bool:
        """Whether the interval leaves out 0, which takes two seeds, and so does the test among the column's rows.

        A row that diverged in a seed is not judged by its others, nor is one that is no better than chance.
        """
        if self.unfit or self.found.side == "unclear":
            return False
        return is_significant(self.p_holm)

    @property
    def in_words(self) -> str:
        """The difference with its unit and its interval."""
        metric = self.row.metric
        unit = " points" if in_percent(metric) else ""
        return signed(self.found.mean, metric) + unit + ends_words(*self.found.ends, metric)


def differences(column: ColumnResults) -> list[Difference]:
    """Return the differences of a column, of the rows that share a seed with the one they are compared with."""
    reference = column.reference
    shown = []
    for row in column.rows:
        found = compare_rows(row, reference)
        if row.row != reference.row and found is not None:
            shown.append(Difference(row, reference.row, found, unfit=row.unfit or reference.unfit))
    p_values = [None if one.unfit else one.found.p for one in shown]
    return [replace(one, p_holm=p) for one, p in zip(shown, holm(p_values), strict=True)]


def difference_table(column: ColumnResults) -> Table:
    """Return the differences of a column."""
    metric = column.metric
    shown = differences(column)
    judged = [one for one in shown if not one.unfit]
    test = "Holm's p" if len(judged) > 1 else "p"
    by_row: dict[str, Line] = {}
    for row in column.rows:
        if row.row != column.reference.row and row.diverged:
            by_row[row.row] = [row.row, NONE, NONE, TableCell("not judged", row.unfit)]
    for one in shown:
        seeds = ", ".join(signed(value, metric) for value in one.found.by_seed.values())
        verdict = TableCell("yes" if one.distinguishable else "no", strong=one.distinguishable)
        if one.unfit:
            verdict = TableCell("not judged", one.unfit)
        elif one.p_holm is None:
            verdict = TableCell(NONE, "one seed")
        else:
            verdict = replace(verdict, below=f"{test} {p_value(one.p_holm)}")
        by_row[one.row.row] = [one.row.row, one.in_words, seeds, verdict]
    lines = [by_row[row.row] for row in column.rows if row.row in by_row]
    measured = f"{words_and_unit(metric)}, {SELECTION_WORDS[column.selection]}"
    caption = f"{measured}: difference from {column.reference.row}."
    return table(caption, ("method", "difference", "by seed", "distinguishable"), lines)


def comparison(column: ColumnResults) -> str:
    """Return in a sentence which rows of a column are distinguishable from the one they are compared with.

    Rows that diverged or are no better than chance are not in it; nothing is compared with such a row.
    """
    judged = [difference for difference in differences(column) if not difference.unfit]
    # A row with a single seed would make the sentence about all rows weaker than it is.
    shown = [difference for difference in judged if difference.found.n > 1] or judged
    if not shown:
        return ""
    percent = " percent" if in_percent(column.metric) else ""
    number = spread_words(column.reference.estimate, column.metric)
    standard = f"{column.reference.row} ({number}{percent} {words(column.metric)})"
    texts: dict[bool, list[str]] = {True: [], False: []}
    for one in sorted(shown, key=lambda one: one.found.mean, reverse=True):
        texts[one.distinguishable].append(f"{one.row.row} {one.in_words}")
    sentence = ", ".join(texts[True]) or "no row is distinguishable"
    if texts[False]:
        seeds = plural(shown[0].found.n, "seed")
        sentence += f"; not distinguishable in {seeds}: {', '.join(texts[False])}"
    return first_upper(column.titled(f"against {standard}: {sentence}."))
