"""Verdicts on an experiment's claims: whether a paper's statement about two rows holds in these runs.

A claim that finished runs can never answer gets the reason. So do rows whose model must be the same everywhere.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedskew.experiments.experiments import Claim
from fedskew.formatting import p_value, plural
from fedskew.report.format import (
    NONE,
    SELECTION_WORDS,
    Table,
    TableCell,
    in_percent,
    named,
    signed,
    words,
)
from fedskew.report.inference import (
    Comparison,
    Interval,
    Pair,
    among_highest,
    compare,
    holm,
    is_significant,
    measure,
    p_of,
    p_of_several,
    strata,
    verdict,
)
from fedskew.report.results import ExperimentResults
from fedskew.report.rounds_to_target import (
    by_seed,
    in_last_alone,
    no_level,
    rounding_of,
    rounds_sooner,
)
from fedskew.report.unfit_rows import chance_words, diverged_words
from server_app.round_selection import select

SAYS = {
    "holds": "holds",
    "unclear": "not distinguishable",
    "fails": "does not hold",
    "open": "not measured yet",
    "never": "cannot be measured",
}
"""A claim's status in words."""


@dataclass(frozen=True)
class Verdict:
    """The result for one claim."""

    claim: Claim
    metric: str
    selection: str
    columns: tuple[str, ...]
    margins: Mapping[int, float]
    """By seed: the smallest difference over the columns that count, in points, or in rounds saved for `sooner`."""
    estimate: float
    """The smallest mean difference over the columns that count, in the same unit; NaN without seeds."""
    unmeasured: int
    """The number of seeds for which a column lacks one of the two runs, or its number."""
    interval: Interval | None
    """The lowest ends of the columns' intervals that count, with the largest p-value of these columns.

    None without seeds, and for one seed whose test examples are not recorded.
    """
    p_holm: float | None = None
    """The interval's p-value, corrected for the experiment's claims that are judged; None for one seed."""
    why_not: str = ""
    """Why the unmeasured seeds can never be measured; empty while one of their runs is unfinished."""
    unfit: str = ""
    """Which rows diverged in a seed, or are no better than chance although they should be better; empty where none."""
    judged: bool = True
    """Whether as many columns as the claim is about have no diverged seed."""
    may_hold: bool = True
    """Whether in as many of these the row that should be better is better than chance."""

    @property
    def holds(self) -> int:
        """The number of seeds whose difference exceeds the claim's margin."""
        return sum(margin > self.claim.by for margin in self.margins.values())

    @property
    def n(self) -> int:
        """The number of measured seeds."""
        return len(self.margins)

    @property
    def status(self) -> str:
        """One of holds, unclear, fails, open and never.

        A claim holds if its interval lies above the margin and its test, corrected for the experiment's claims, agrees;
        it fails if no part of the interval does. One seed is always unclear: its interval says nothing about other
        seeds. A claim about a row that diverged in a seed is never judged, and one for a row that is no better than
        chance never holds.
        """
        if not self.judged:
            return "never"
        if not self.n:
            return "never" if self.why_not else "open"
        if verdict(self.interval, self.n, self.claim.by) == "above":
            return "holds" if self.may_hold and is_significant(self.p_holm) else "unclear"
        if self.n == 1 or self.interval is None:
            return "unclear"
        return "fails" if self.interval.high <= self.claim.by else "unclear"

    @property
    def unit(self) -> str:
        if self.claim.sooner:
            return "rounds"
        return "points" if in_percent(self.metric) else ""


@dataclass(frozen=True)
class Margin:
    """One column and seed of a claim, measured."""

    difference: float
    strata: Pair
    """Test examples of the two numbers; None if the numbers are rounds."""
    rounding: float = 0.0
    """Standard deviation of what rounding adds to the difference: rounds are known up to the last evaluation."""


def judge(results: ExperimentResults) -> list[Verdict]:
    """Return the verdicts on the experiment's claims; p-values are corrected for the number of those judged."""
    verdicts = [judge_claim(results, claim) for claim in results.experiment.claims]
    p_values = [p_of(verdict.interval) if verdict.judged else None for verdict in verdicts]
    return [replace(verdict, p_holm=p) for verdict, p in zip(verdicts, holm(p_values), strict=True)]


def judge_claim(results: ExperimentResults, claim: Claim) -> Verdict:
    """Return the verdict on one claim."""
    experiment = results.experiment
    columns = claim.columns or tuple(experiment.columns)
    among = claim.in_columns or len(columns)
    metrics = {column: claim.metric or experiment.metric_of(column) for column in columns}
    selection = claim.selection or experiment.selection

    diverged, at_chance = {}, {}
    for column in columns:
        of_rows = [diverged_words(results, row, column) for row in (claim.better, claim.than)]
        beside = chance_words(results, claim.better, column, metrics[column], selection)
        if any(of_rows):
            diverged[column] = ", ".join(filter(None, of_rows))
        elif beside:
            at_chance[column] = f"{claim.better} is no better than chance ({beside})"
    sound = [column for column in columns if column not in diverged]
    fit = [column for column in sound if column not in at_chance]
    # Columns that cannot count for the claim stay where it needs them: it can still be refuted there.
    counted = next((some for some in (fit, sound) if len(some) >= among), columns)
    unfit = {**diverged, **at_chance}

    seeds = sorted({cell.seed for cell in results.cells})
    complete: dict[int, list[Margin]] = {}
    reasons = []  # per incomplete seed; empty while one of its runs is unfinished
    for seed in seeds:
        margins, seed_reasons = [], []
        for column in counted:
            measured = pair(results, claim, column, seed, selection, metrics[column])
            if isinstance(measured, Margin):
                margins.append(measured)
            elif measured:
                seed_reasons.append(measured)
        if len(margins) == len(counted):
            complete[seed] = margins
        else:
            reasons.append(seed_reasons[0] if seed_reasons else "")

    one_metric = len(set(metrics.values())) == 1
    never_measured = all(reasons)
    unjudged = Verdict(
        claim=claim,
        metric=metrics[columns[0]] if one_metric else experiment.metric,
        selection=selection,
        columns=columns,
        margins={},
        estimate=float("nan"),
        unmeasured=len(seeds) - len(complete),
        interval=None,
        why_not="; ".join(dict.fromkeys(reasons)) if never_measured else "",
        unfit="; ".join(f"{named(column)}{unfit[column]}" for column in columns if column in unfit),
        judged=len(sound) >= among,
        may_hold=len(fit) >= among,
    )
    if not complete:
        return unjudged

    by_column = [compare_column(claim, complete, number) for number in range(len(counted))]
    differences_LS = np.array([list(comparison.by_seed.values()) for comparison in by_column])
    means_L = differences_LS.mean(1)
    margins_S = among_highest(differences_LS, among).tolist()
    return replace(
        unjudged,
        margins=dict(zip(complete, margins_S, strict=True)),
        estimate=float(among_highest(means_L, among)),
        interval=interval_of(by_column, among, claim.by),
    )


def compare_column(
    claim: Claim,
    complete: Mapping[int, Sequence[Margin]],
    number: int,
) -> Comparison:
    """Return the comparison of a claim's two rows in one column, over the seeds that have all columns."""
    differences: dict[int, float] = {}
    pairs = []
    for seed, margins in complete.items():
        differences[seed] = margins[number].difference
        pairs.append(margins[number].strata)
    rounding = max(margins[number].rounding for margins in complete.values())
    names = (claim.better, claim.than)
    return compare(differences, pairs, names, claim.by, rounding)


def interval_of(by_column: Sequence[Comparison], among: int, by: float) -> Interval | None:
    """Return the interval of a claim about several columns, from the interval of each column.

    A claim about every column holds if every column's interval lies above the margin, which needs no correction for
    their number (an intersection-union test), and its p-value is the largest of theirs. A claim about `among` columns
    uses the `among` highest ends. `by` is the claim's margin.
    """
    intervals = []
    for comparison in by_column:
        if comparison.interval is None:
            return None
        intervals.append(comparison.interval)

    lows = np.array([interval.low for interval in intervals])
    highs = np.array([interval.high for interval in intervals])
    from_highest = np.argsort(-lows, kind="stable")
    deciding = intervals[int(from_highest[among - 1])]
    p = p_of_several(by_column, [by] * len(by_column), among)
    return replace(deciding, high=float(among_highest(highs, among)), p=p)


def pair(
    results: ExperimentResults,
    claim: Claim,
    column: str,
    seed: int,
    selection: str,
    metric: str,
) -> Margin | str:
    """Return the two runs' difference, or the reason why there can be none; "" while a run is unfinished."""
    # A row that never has the number is no obstacle to `sooner`: it counts as later than every round.
    needed = (claim.than,) if claim.sooner else (claim.better, claim.than)
    for row in (claim.better, claim.than):
        reason = why_never(results, row, column, seed, selection, metric)
        if reason and (row in needed or seed in results.diverged(row, column)):
            return reason
    better = by_seed(results, claim.better, column, seed)
    than = by_seed(results, claim.than, column, seed)
    if better is None or than is None:
        return ""

    if claim.sooner:
        reason = no_level(than, selection, metric)
        if reason:
            return f"{claim.than}'s {words(metric)} {reason}: nothing can be sooner there"
        if in_last_alone(better, than):
            return f"{claim.better} has a model in the last round alone"
        sooner = rounds_sooner(better, than, selection, metric)
        return Margin(sooner, (None, None), rounding_of(better, than))

    ours = measure(better, selection, metric)
    theirs = measure(than, selection, metric)
    assert ours is not None and theirs is not None  # why_never has found both
    examples = (strata(better, selection, metric), strata(than, selection, metric))
    return Margin(ours - theirs, examples)


def why_never(
    results: ExperimentResults,
    row: str,
    column: str,
    seed: int,
    selection: str,
    metric: str,
) -> str:
    """Return why a row can never have a number; "" if it has one, or while its run is unfinished."""
    cells = [
        cell for cell in results.cells if (cell.row, cell.column, cell.seed) == (row, column, seed)
    ]
    if not cells:
        return f"{row} is not run there"
    cell = cells[0]
    run = results.runs[cell.run.run_id]
    if not run.finished:
        diverged = run.divergence
        return "" if diverged is None else f"{row} diverged in round {diverged['round']}"
    measured = by_seed(results, row, column, seed)
    if measured is None:
        return f"{row}'s finished run has no model {cell.deployed}"
    if measure(measured, selection, metric) is not None:
        return ""
    if not select(measured.points, selection):
        evaluated = len(measured.points)
        rounds = "1 evaluated round" if evaluated == 1 else f"{evaluated} evaluated rounds"
        return f"{row} has {rounds}: no {SELECTION_WORDS[selection]}"
    return f"{row}'s finished run has no {words(metric)}"


def never_lines(results: ExperimentResults) -> list[str]:
    """Return a sentence for every number of the main table that the finished runs cannot give."""
    experiment = results.experiment
    lines = []
    for column in experiment.columns:
        metric = experiment.metric_of(column)
        for cell in results.cells:
            if cell.column != column or results.runs[cell.run.run_id].divergence is not None:
                continue
            reason = why_never(results, cell.row, column, cell.seed, experiment.selection, metric)
            if reason:
                lines.append(f"{named(column)}cannot be measured: {reason}.")
    return list(dict.fromkeys(lines))


def claims_table(results: ExperimentResults, verdicts: Sequence[Verdict]) -> Table:
    """Return the claims and their verdicts."""
    test = "paired t-test"
    if len(verdicts) > 1:
        test += ", Holm"
    headings = [
        TableCell("claim"),
        TableCell("verdict"),
        TableCell("difference", "95 % interval"),
        TableCell("p", test),
    ]
    columns = list(results.experiment.columns)
    rows = []
    for number, judged in enumerate(verdicts, 1):
        rows.append(claim_row(f"{number}. ", judged, columns))
    caption = "Each claim, its verdict, and the difference that it is about."
    return Table(caption, headings, rows, wordy=True)


def claim_row(
    number: str,
    verdict: Verdict,
    columns: Sequence[str],
) -> list[TableCell]:
    """Return the table row of one claim, of an experiment with these columns."""
    metric = verdict.metric
    claim_cell = TableCell(f"{number}{verdict.claim.says}", claim_in_words(verdict, columns))
    missing = verdict.unfit
    if verdict.judged:
        missing = "; ".join(filter(None, (unmeasured_words(verdict), verdict.unfit)))
    if not verdict.n:
        return [
            claim_cell,
            TableCell(SAYS[verdict.status], missing),
            TableCell(NONE),
            TableCell(NONE),
        ]

    difference = f"{signed(verdict.estimate, metric)} {verdict.unit}"
    seeds = f"in {verdict.holds} of {plural(verdict.n, 'seed')}"
    by_seeds = ""
    p = TableCell(NONE, "one seed")
    if verdict.n > 1:
        margins = [signed(margin, metric) for margin in verdict.margins.values()]
        by_seeds = "seeds: " + ", ".join(margins)
        p = TableCell(NONE)
    if interval := verdict.interval:
        difference += f" [{signed(interval.low, metric)}, {signed(interval.high, metric)}]"
        if verdict.p_holm is not None:
            p = TableCell(p_value(verdict.p_holm), f"over {interval.resampled}")
    if missing:
        seeds += f", {missing}"
    status = TableCell(SAYS[verdict.status], seeds, strong=verdict.status == "holds")
    return [claim_cell, status, TableCell(difference, by_seeds), p]


def claim_in_words(verdict: Verdict, columns: Sequence[str]) -> str:
    """Return the two rows compared, the metric, the selected round and the columns, in words."""
    claim = verdict.claim
    relation = "sooner than" if claim.sooner else "above"
    compared = f"{claim.better} {relation} {claim.than}"
    if claim.by:
        compared += f" by more than {claim.by:g} {verdict.unit}".rstrip()
    where = ""
    if claim.in_columns:
        where = f", in {claim.in_columns} of {len(verdict.columns)} columns"
    elif set(verdict.columns) != set(columns):
        where = f", in {', '.join(verdict.columns)}"
    elif len(columns) > 1:
        where = ", every column"
    return f"{compared}; {words(verdict.metric)}, {SELECTION_WORDS[verdict.selection]}{where}"


def unmeasured_words(verdict: Verdict) -> str:
    """Return the number of unmeasured seeds, and whether they can still be measured; "" if there are none."""
    if not verdict.unmeasured:
        return ""
    if verdict.why_not:
        return f"{verdict.unmeasured} cannot be"
    return f"{verdict.unmeasured} not measured yet"


ABOUT_SAME_MODEL = (
    "A head in closed form is computed from integer sums over all samples, so how these are split between clients "
    "may change no bit of it. The hash is of all weights of the deployed model, head and shared ones."
)
HASH_DIGITS = 16
"""Digits of a hash that the table shows."""


@dataclass(frozen=True)
class ModelVerdict:
    """Whether one row has one model."""

    row: str
    hashes: dict[str, list[str]]
    """The columns and seeds that end in a model, by its hash."""
    missing: int
    """Columns and seeds without a finished run."""

    @property
    def runs(self) -> int:
        """Columns and seeds with a finished run."""
        return sum(map(len, self.hashes.values()))

    @property
    def status(self) -> str:
        """The verdict in words."""
        if len(self.hashes) > 1:
            return "does not hold"
        if self.missing or not self.hashes:
            return "not measured yet"
        return "holds"


def judge_models(results: ExperimentResults) -> list[ModelVerdict]:
    """Return the verdict on each row of `same_model`."""
    return [judge_row(results, row) for row in results.experiment.same_model]


def judge_row(results: ExperimentResults, row: str) -> ModelVerdict:
    """Return the verdict on one row."""
    hashes: dict[str, list[str]] = {}
    missing = 0
    for cell in results.cells:
        if cell.row != row:
            continue
        summary = results.runs[cell.run.run_id].summary or {}
        code = summary.get("model-hashes", {}).get(cell.deployed)
        if code is None:
            missing += 1
            continue
        where = f"seed {cell.seed}"
        if cell.column:
            where = f"{cell.column}, {where}"
        hashes.setdefault(code, []).append(where)
    return ModelVerdict(row, hashes, missing)


def models_in_words(verdicts: Sequence[ModelVerdict]) -> str:
    """Return the verdicts, a sentence per row."""
    sentences = []
    for judged in verdicts:
        number = len(judged.hashes)
        models = "one model" if number == 1 else f"{number} models"
        planned = judged.runs + judged.missing
        finished = f"{judged.runs} of {planned} runs"
        sentences.append(f"{judged.row}: {models} in {finished}: {judged.status}.")
    return " ".join(sentences)


def same_model_tables(results: ExperimentResults) -> list[Table]:
    """Return the table of the rows' models; none where the experiment says of no row that it has one."""
    rows = []
    for judged in judge_models(results):
        status = TableCell(judged.status, strong=judged.status == "holds")
        for code, runs in judged.hashes.items():
            where = f"all {len(runs)}" if len(judged.hashes) == 1 else "; ".join(runs)
            model = TableCell(code[:HASH_DIGITS])
            rows.append([TableCell(judged.row), status, model, TableCell(where)])
    if not rows:
        return []
    headings = [TableCell(word) for word in ("method", "verdict", "hash", "runs")]
    return [Table("Each model's hash, over all columns and seeds.", headings, rows, wordy=True)]
