"""By how much each row differs from the row it is compared with, paired by seed, and whether that can be told."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedskew.report.gather import Gathered
from fedskew.report.levels import by_seed, reference
from fedskew.report.statistics import (
    Strata,
    bootstrap,
    holm,
    measure,
    strata,
    student,
    summarize_seeds,
)
from fedskew.report.table import (
    NONE,
    SELECTION_WORDS,
    Table,
    TableCell,
    ends_words,
    named,
    plain,
    signed,
    spread_words,
    words,
    words_and_unit,
)
from fedskew.report.units import in_percent

LEVEL = 0.05
ABOUT = (
    "Each row minus the one that it is compared with, seed by seed: both saw the same data and partition. The 95 % "
    "interval is the wider of Student's over the seeds and a bootstrap of seeds and test examples; of one seed it is "
    "about test examples alone. A difference can be told where the interval leaves out 0 and p, of the paired t-test "
    f"and corrected for the column's rows (Holm), is below {LEVEL:g}: nothing can be told from one seed."
)


@dataclass(frozen=True)
class Difference:
    """A row's number minus that of the row that it is compared with."""

    row: str
    than: str
    by_seed: Mapping[int, float]
    low: float
    """NaN without an interval, as is `high`."""
    high: float
    p: float | None
    """None of one seed."""

    @property
    def n(self) -> int:
        return len(self.by_seed)

    @property
    def estimate(self) -> float:
        return float(np.mean(list(self.by_seed.values())))

    @property
    def distinguishable(self) -> bool:
        """Whether the difference can be told from none, which takes two seeds."""
        return self.p is not None and self.p < LEVEL and (self.low > 0 or self.high < 0)


def differences(gathered: Gathered, column: str) -> list[Difference]:
    """Return the differences of a column, of the rows that share a seed with the one they are compared with."""
    standard = reference(gathered.experiment)
    rows = [row.label for row in gathered.experiment.rows if row.label != standard]
    shown = [
        difference
        for number, row in enumerate(rows)
        if (difference := of_row(gathered, row, column, number))
    ]
    return [
        replace(part, p=p) for part, p in zip(shown, holm([part.p for part in shown]), strict=True)
    ]


def of_row(gathered: Gathered, row: str, column: str, number: int) -> Difference | None:
    """Return the difference of a row, its p not corrected yet; None without a common seed. `number` seeds the draws."""
    experiment, standard = gathered.experiment, reference(gathered.experiment)
    metric, selection = experiment.metric_of(column), experiment.selection
    margins, pairs = dict[int, float](), list[tuple[Strata | None, Strata | None]]()
    for measured in gathered.of(row, column):
        than = by_seed(gathered, standard, column, measured.cell.seed)
        ours, theirs = (
            measure(measured, selection, metric),
            measure(than, selection, metric) if than else None,
        )
        if than is not None and ours is not None and theirs is not None:
            margins[measured.cell.seed] = ours - theirs
            pairs.append((strata(measured, selection, metric), strata(than, selection, metric)))
    if not margins:
        return None
    values, p = list(margins.values()), None
    drawn = bootstrap(np.array([values]), [pairs], 0.0, 1, number)
    lows, highs = ([drawn.low], [drawn.high]) if drawn else ([math.nan], [math.nan])
    if len(values) > 1:
        low, high, p = student(values)
        lows, highs = [*lows, low], [*highs, high]
    return Difference(row, standard, margins, min(lows), max(highs), p)


def interval_words(difference: Difference, metric: str) -> str:
    """Return the difference with its unit and its interval."""
    unit = " points" if in_percent(metric) else ""
    return (
        signed(difference.estimate, metric)
        + unit
        + ends_words(difference.low, difference.high, metric)
    )


def difference_tables(gathered: Gathered) -> list[Table]:
    """Return the differences, a table a column."""
    tables = []
    for column in gathered.experiment.columns:
        metric, rows = gathered.experiment.metric_of(column), []
        for shown in differences(gathered, column):
            seeds = ", ".join(signed(margin, metric) for margin in shown.by_seed.values())
            said = "yes" if shown.distinguishable else "no" if shown.n > 1 else NONE
            below = "one seed" if shown.p is None else f"p {shown.p:.3f}"
            rows.append([TableCell(shown.row), TableCell(interval_words(shown, metric)), TableCell(seeds),
                         TableCell(said, below, strong=shown.distinguishable)])  # fmt: skip
        if rows:
            selected = SELECTION_WORDS[gathered.experiment.selection]
            caption = f"{named(column)}{words_and_unit(metric)}, {selected}: difference from {shown.than}."
            headings = ("method", "difference", "by seed", "can be told")
            tables.append(Table(caption, list(map(TableCell, headings)), rows))
    return tables


def comparison(gathered: Gathered, column: str) -> str:
    """Return in a sentence whether the rows of a column can be told from the one that they are compared with."""
    experiment = gathered.experiment
    metric, where = experiment.metric_of(column), f"In {column}, " if column else ""
    shown = differences(gathered, column)
    shown = [difference for difference in shown if difference.n > 1] or shown
    if not shown:
        return ""
    standard, seeds = shown[0].than, max(difference.n for difference in shown)
    summary = summarize_seeds(gathered.of(standard, column), experiment.selection, metric)
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
        f"{ends_words(difference.low, difference.high, metric)}"
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
