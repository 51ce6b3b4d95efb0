"""What each row has over the row that it is compared with: by how much it differs, and how many rounds and bytes it
needs for that row's number.

Differences are paired by seed. An interval draws the test examples anew of which a number is made. A number counts as
worth reaching when it is above chance and takes training.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedskew.formatting import in_bytes, p_value, plural
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
from fedskew.report.results import (
    ROUNDING,
    ColumnResults,
    ExperimentResults,
    RowResults,
    SeedResult,
)
from server_app.evaluation import shot_groups
from server_app.record import RoundRecord, Spread
from server_app.round_selection import lower_is_better

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
    sentence = ", ".join(texts[True])
    if texts[False]:
        # Runs can be missing in some rows alone.
        numbers = sorted({one.found.n for one in shown if not one.distinguishable})
        seeds = " or ".join(map(str, numbers[:-1])) + " or " if len(numbers) > 1 else ""
        seeds += plural(numbers[-1], "seed")
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


# ---- rounds and bytes until a target ---------------------------------------------------------------------------------


def reach(run: SeedResult, target: float) -> int | None:
    """Return the evaluated round in which a run first had at least `target`; None is never."""
    return next((round for round, number in run.by_round.items() if number >= target), None)


def ends_below(run: SeedResult, target: float) -> bool:
    """Return whether a run's own selected number is below `target`: then reaching it is no gain."""
    return run.number is None or run.number < target


def bytes_until(records: Sequence[RoundRecord], round: int) -> int:
    """Return the bytes sent both ways up to a round, of the training, which several rows can share."""
    until = [record for record in records if record.round <= round]
    return sum(record.bytes_down + record.bytes_up for record in until)


def reached(row: RowResults, reference: RowResults) -> dict[int, int | None]:
    """Return by seed the round in which a row first had the reference's number; None is never.

    The reference itself has it in the round that is selected, as in FedShift's Table 2. Seeds without either run are
    left out.
    """
    rounds: dict[int, int | None] = {}
    for seed, target in reference.numbers.items():
        run = row.of_seed(seed)
        if run is not None:
            itself = row.row == reference.row
            rounds[seed] = run.selected[-1].round if itself else reach(run, target)
    return rounds


def in_last_alone(run: SeedResult, than: SeedResult) -> bool:
    """Return whether a row has a model in the last round alone, as CCVR has, while the other has earlier ones."""
    return len(run.points) == 1 < len(than.points)


def no_level(run: SeedResult) -> str:
    """Return why a run's number is no target that others could reach sooner; empty where it is one.

    It is none where less of it is better, where it is not above chance, or where the run had it in its first evaluated
    round.
    """
    if run.number is None:
        return "is none"
    if lower_is_better(run.metric):
        return "is better where it is lower"
    if run.chance is not None and run.number <= run.chance + ROUNDING:
        return "is not above chance"
    at_once = reach(run, run.number) == run.points[0].round
    return "is had in the first evaluated round" if at_once and len(run.points) > 1 else ""


def takes_training(column: ColumnResults) -> bool:
    """Return whether the reference's number is a target worth reaching in every seed."""
    return not any(map(no_level, column.reference.runs))


def rounds_sooner(better: SeedResult, than: SeedResult, times: float = 1) -> float:
    """Return the rounds that `than` needs for its own number, less `times` those that `better` needs for it.

    A run that never has it, or that ends below it, counts as one more round than were run: a number that is lost again
    is no gain.
    """
    target = than.number
    assert target is not None  # no_level has refused a run without a number
    ours = reach(better, target)
    if ours is None or ends_below(better, target):
        ours = better.points[-1].round + 1
    return (reach(than, target) or than.selected[-1].round) - times * ours


def rounding_of(better: SeedResult, than: SeedResult, times: float = 1.0) -> float:
    """Return the standard deviation that rounding adds to `than`'s rounds less `times` those of `better`.

    A number that is first seen in one evaluated round was reached at any time since the one before, so that its round
    is uniform over the g rounds between, with the variance g^2 / 12.
    """
    variance = 0.0
    for run, factor in ((better, times), (than, 1.0)):
        gap = run.points[-1].round / len(run.points)
        variance += (factor * gap) ** 2 / 12
    return math.sqrt(variance)


def reach_table(results: ExperimentResults) -> Table:
    """Return the rounds and bytes that each row needs for the reference's number."""
    headings = ["method"]
    lines: list[Line] = [[row.label] for row in results.experiment.rows]
    for column in results.columns:
        headings.append(column.name or "rounds")
        for row, line in zip(column.rows, lines, strict=True):
            line.append(reach_cell(row, column))
    number = f"{words(results.experiment.metric)} ({SELECTION_WORDS[results.experiment.selection]})"
    caption = (
        f"Rounds until {results.reference}'s {number} is reached, "
        "mean over seeds; below, bytes sent both ways until then by the whole training."
    )
    return table(caption, headings, lines)


def reach_cell(row: RowResults, column: ColumnResults) -> TableCell:
    """Return a row's mean rounds until it reached the target, and below them the bytes.

    A row that ends below the target had the number and lost it again.
    """
    if row.diverged:
        return TableCell("diverged", row.seeds_with(len(row.runs)))
    if lower_is_better(row.metric):
        return TableCell(NONE, "less of it is better")
    reference = column.reference
    by_seed = reached(row, reference)
    ours = [run for run in row.runs if run.seed in by_seed]
    theirs = [run for run in reference.runs if run.seed in by_seed]
    if any(map(in_last_alone, ours, theirs)):
        return TableCell(NONE, "a model in the last round alone")
    rounds = [round for round in by_seed.values() if round is not None]
    never = len(by_seed) - len(rounds)
    if never:
        texts = ["never" if round is None else str(round) for round in by_seed.values()]
        return TableCell(", ".join(texts), f"by seed; never in {never} of {len(by_seed)}")
    if not rounds or not takes_training(column):
        return TableCell(NONE, "a level that is had at once, or by chance" if rounds else "")

    sent = [bytes_until(run.run.records, by_seed[run.seed] or 0) for run in ours]
    below = in_bytes(float(np.mean(sent)))
    lost = sum(ends_below(run, reference.numbers[run.seed]) for run in ours)
    if lost and row.row != reference.row:
        below = f"ends below it in {lost} of {plural(len(rounds), 'seed')}, {below}"
    return TableCell(in_rounds(float(np.mean(rounds))), below)


def in_rounds(rounds: float) -> str:
    """Return a mean of rounds."""
    return f"{rounds:.1f}".removesuffix(".0")
