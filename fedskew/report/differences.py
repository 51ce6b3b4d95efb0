"""By how much each row differs from the row it is compared with, paired by seed, and whether that is distinguishable
from no difference. An interval draws the test examples anew of which a number is made.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

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
from fedskew.report.inference import (
    LEVEL,
    Estimate,
    Floats,
    Strata,
    holm,
    is_significant,
    with_interval,
)
from fedskew.report.results import ColumnResults, RowResults, SeedResult
from server_app.evaluation import shot_groups
from server_app.record import Spread

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
    """Return the differences of a column, and which rows are not judged."""
    metric = column.metric
    found = {one.row.row: one for one in differences(column)}
    judged = [one for one in found.values() if not one.unfit]
    test = "Holm's p" if len(judged) > 1 else "p"
    lines: list[Line] = []
    for row in column.rows:
        one = found.get(row.row)
        words_of_row, seeds, p = NONE, NONE, None
        if one is not None:
            words_of_row, p = one.in_words, one.p_holm
            seeds = ", ".join(signed(value, metric) for value in one.found.by_seed.values())
        elif row.row == column.reference.row or not row.diverged:
            continue
        unfit = one.unfit if one is not None else row.unfit
        verdict = TableCell(NONE, "one seed")
        if unfit:
            verdict = TableCell("not judged", unfit)
        elif one is not None and p is not None:
            is_other = one.distinguishable
            verdict = TableCell("yes" if is_other else "no", f"{test} {p_value(p)}", is_other)
        lines.append([row.row, words_of_row, seeds, verdict])
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
    texts: dict[bool, list[str]] = {True: [], False: []}
    for one in sorted(shown, key=lambda one: one.found.mean, reverse=True):
        texts[one.distinguishable].append(f"{one.row.row} {one.in_words}")
    sentence, seeds = ", ".join(texts[True]), plural(shown[0].found.n, "seed")
    if texts[False]:
        verdict = "; not distinguishable" if sentence else "no row is distinguishable"
        sentence += f"{verdict} in {seeds}: {', '.join(texts[False])}"
    standard = f"{column.reference.row}'s {words(column.metric)}"
    return first_upper(column.titled(f"against {standard}: {sentence}."))


# ---- what a number is made of -------------------------------------------------------------------------------------


def strata(run: SeedResult) -> Strata | None:
    """Return how a run's number comes from its test examples; None where the records do not say that.

    Where all clients are tested on one test set, recall is their mean and the examples count once. An AUROC counts as
    the share of right answers of as many examples as give it its recorded standard error.
    """
    metric, points, samples = run.metric, run.selected, run.run.samples
    if metric == "auroc":
        return auroc_strata(run)
    if not points or not samples:
        return None
    if metric.startswith("client-accuracy.") and samples["client-test"]:
        return client_strata(run)
    own_models = any("client-accuracy" in point.numbers.spreads for point in points)
    if metric == "local-accuracy.mean" and own_models:
        return None  # recalls are means over the clients' models, which each client weighs by its own classes
    tested_C = np.array(samples.get("tested", samples["test"]))
    weights_C = class_weights(run, tested_C)
    if weights_C is None:
        return None
    recalls = [np.nan_to_num(point.numbers.recall) for point in points]
    independent_C = np.array(samples.get("independent", tested_C))
    return Strata(np.mean(recalls, axis=0), independent_C, weights_C)


def estimated(row: RowResults) -> Estimate | None:
    """Return a row's number over the seeds with its interval; None where no seed has it."""
    terms = [(strata(run),) for run in row.runs if run.number is not None]
    return with_interval(row.numbers, terms, (row.row, row.column)) if terms else None


def compare_rows(row: RowResults, than: RowResults) -> Estimate | None:
    """Return a row's number minus another row's, over the seeds that both have; None where there is no such seed."""
    by_seed: dict[int, float] = {}
    pairs = []
    for ours in row.runs:
        theirs = than.of_seed(ours.seed)
        if theirs is None or ours.number is None or theirs.number is None:
            continue
        by_seed[ours.seed] = ours.number - theirs.number
        pairs.append((strata(ours), strata(theirs)))
    return with_interval(by_seed, pairs, (row.row, than.row)) if pairs else None


def auroc_strata(run: SeedResult) -> Strata | None:
    """Return the AUROC as a share of so many right answers that it has its recorded standard error."""
    area = run.mean("auroc")
    error = run.mean("auroc-error")
    if area is None or not error:
        return None
    examples = round(area * (1 - area) / error**2)
    return Strata(np.array([area]), np.array([examples]), np.ones(1))


def client_strata(run: SeedResult) -> Strata | None:
    """Return a number over the clients' own test sets as a function of each client's accuracy."""
    name, _, part = run.metric.partition(".")
    samples = run.run.samples
    sizes_K = np.array(samples.get("client-independent") or samples["client-test"])
    clients = len(sizes_K)
    accuracies = [point.numbers.spreads.get(name, Spread()).values for point in run.selected]
    if any(len(values) != clients or np.isnan(values).any() for values in accuracies):
        return None
    rates_K = np.mean(accuracies, axis=0)
    lowest = {"mean": clients, "worst": 1, "worst-decile": max(1, clients // 10)}
    if part in lowest:
        counted_K = np.arange(clients) < lowest[part]
        return Strata(rates_K, sizes_K, counted_K / lowest[part], ascending=True)
    of_site = np.eye(clients)[run.site(run.metric)]  # the metric names one client
    return Strata(rates_K, sizes_K, of_site)


def class_weights(run: SeedResult, sizes_C: NDArray[np.int64]) -> Floats | None:
    """Return the weight of each class's recall in a number; None where it is not a weighted sum of them."""
    tested_C = sizes_C > 0
    train_KC = np.array(run.run.samples["train"])
    weights_C = tested_C * 1.0
    if run.metric in ("accuracy", "client-accuracy.mean"):  # every client's test set is the same
        weights_C *= sizes_C
    elif run.metric == "local-accuracy.mean":
        tested_KC = train_KC * tested_C
        tested_KC = tested_KC[tested_KC.sum(1) > 0]
        shares_KC = tested_KC / tested_KC.sum(1, keepdims=True)
        return np.asarray(shares_KC.mean(0))
    elif run.metric != "balanced-accuracy":
        groups = shot_groups(train_KC.sum(0).tolist(), run.run.settings.data.long_tailed)
        group = groups.get(run.metric.removesuffix("-recall"))
        if group is None:
            return None
        weights_C *= np.isin(np.arange(len(sizes_C)), group)
    return np.asarray(weights_C / weights_C.sum())
