"""Whether what a paper says of two rows holds in our runs, and what these can never say of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedskew.experiments.experiments import Claim
from fedskew.report.format import SELECTION_WORDS, in_percent, named, words
from fedskew.report.inference import (
    Comparison,
    Interval,
    Pair,
    among_highest,
    compare,
    holm,
    measure,
    p_of,
    strata,
    verdict,
)
from fedskew.report.results import ExperimentResults, SeedResult
from fedskew.report.rounds_to_target import by_seed, ends_below, in_last_alone, no_level, reach
from server_app.round_selection import select

SAYS = {
    "holds": "holds", "unclear": "cannot be told", "fails": "does not hold", "open": "not measured yet",
    "never": "cannot be measured",
}  # fmt: skip
"""A claim's status in words."""


@dataclass(frozen=True)
class Verdict:
    """What came of a claim."""

    claim: Claim
    metric: str
    selection: str
    columns: tuple[str, ...]
    margins: Mapping[int, float]
    """By seed: the smallest difference over the columns that count, in points; for `sooner` in rounds saved."""
    estimate: float
    """The smallest of the columns' mean differences over the seeds, likewise; NaN without seeds."""
    unmeasured: int
    """Seeds for which a column lacks one of the two runs, or its number."""
    interval: Interval | None
    """Of the columns' intervals the lowest ends that count; its p-value is that of the column whose interval reaches
    lowest. None without seeds, and for one seed whose test examples are not known."""
    p_holm: float | None = None
    """The interval's p-value, corrected for the experiment's claims; None for one seed."""
    why_not: str = ""
    """Why the seeds that are not measured never can be; empty where any of their runs is still to come."""

    @property
    def holds(self) -> int:
        """In how many seeds the difference exceeds what is claimed."""
        return sum(margin > self.claim.by for margin in self.margins.values())

    @property
    def n(self) -> int:
        return len(self.margins)

    @property
    def status(self) -> str:
        """holds, unclear, fails, open or never.

        A claim holds where the whole interval lies above the margin, and fails where no part of it does. One seed is
        always unclear: its interval says nothing about other seeds.
        """
        if not self.n:
            return "never" if self.why_not else "open"
        if verdict(self.interval, self.n, self.claim.by) == "above":
            return "holds"
        refuted = self.interval is not None and self.n > 1 and self.interval.high <= self.claim.by
        return "fails" if refuted else "unclear"

    @property
    def unit(self) -> str:
        return "rounds" if self.claim.sooner else "points" if in_percent(self.metric) else ""


def judge(results: ExperimentResults) -> list[Verdict]:
    """Return what came of the experiment's claims; p-values are corrected for their number."""
    verdicts = [judge_claim(results, claim) for claim in results.experiment.claims]
    corrected = holm([p_of(judged.interval) for judged in verdicts])
    return [replace(judged, p_holm=p) for judged, p in zip(verdicts, corrected, strict=True)]


def judge_claim(results: ExperimentResults, claim: Claim) -> Verdict:
    """Return what came of one claim."""
    experiment = results.experiment
    columns = claim.columns or tuple(experiment.columns)
    metrics = {column: claim.metric or experiment.metric_of(column) for column in columns}
    selection = claim.selection or experiment.selection
    seeds = sorted({cell.seed for cell in results.cells})
    complete, reasons = dict[int, list[Margin]](), list[str]()
    for seed in seeds:
        pairs = [
            pair(results, claim, column, seed, selection, metrics[column]) for column in columns
        ]
        known = [measured for measured in pairs if isinstance(measured, Margin)]
        if len(known) == len(columns):
            complete[seed] = known
        else:
            reasons.append(
                next(filter(None, (reason for reason in pairs if isinstance(reason, str))), "")
            )
    why_not = "; ".join(dict.fromkeys(reasons)) if all(reasons) else ""
    metric = claim.metric or (
        experiment.metric if len(set(metrics.values())) > 1 else metrics[columns[0]]
    )
    if not complete:
        return Verdict(
            claim, metric, selection, columns, {}, float("nan"), len(seeds), None, why_not=why_not
        )
    among = claim.in_columns or len(columns)
    by_column = [compare_column(claim, complete, number) for number in range(len(columns))]
    differences_LS = np.array([list(comparison.by_seed.values()) for comparison in by_column])
    margins = dict(zip(complete, map(float, among_highest(differences_LS, among)), strict=True))
    estimate = float(among_highest(differences_LS.mean(1), among))
    missing = len(seeds) - len(margins)
    interval = interval_of(by_column, among)
    return Verdict(
        claim, metric, selection, columns, margins, estimate, missing, interval, why_not=why_not
    )


def compare_column(
    claim: Claim, complete: Mapping[int, Sequence["Margin"]], number: int
) -> Comparison:
    """Return the comparison of a claim's two rows in one column, over the seeds that have all columns."""
    by_seeds = {seed: columns[number].difference for seed, columns in complete.items()}
    pairs = [columns[number].strata for columns in complete.values()]
    return compare(by_seeds, pairs, (claim.better, claim.than), claim.by)


def interval_of(by_column: Sequence[Comparison], among: int) -> Interval | None:
    """Return the interval of a claim that is made in several columns, from each column's own.

    A claim about every column holds where every column's interval lies above the margin, which needs no correction for
    their number (an intersection-union test). Of a claim about `among` of them the highest ends count.
    """
    intervals = [comparison.interval for comparison in by_column]
    known = [interval for interval in intervals if interval is not None]
    if len(known) < len(by_column):
        return None
    lows = np.array([interval.low for interval in known])
    highs = np.array([interval.high for interval in known])
    deciding = known[int(np.argsort(-lows, kind="stable")[among - 1])]
    return replace(deciding, high=float(among_highest(highs, among)))


@dataclass(frozen=True)
class Margin:
    """What a claim says of one column and seed, measured."""

    difference: float
    strata: Pair
    """What the two numbers are made of; None where they are rounds."""


def pair(
    results: ExperimentResults, claim: Claim, column: str, seed: int, selection: str, metric: str
) -> Margin | str:
    """Return the two runs' difference; in words why there never is one, nothing where a run is still to come."""
    rows = (claim.better, claim.than)
    reasons = [
        why_never(results, row, column, seed, selection, metric) for row in rows[claim.sooner :]
    ]
    better, than = (by_seed(results, row, column, seed) for row in rows)
    if any(reasons) or better is None or than is None:
        return next(filter(None, reasons), "")
    if not claim.sooner:
        values = [measure(measured, selection, metric) for measured in (better, than)]
        assert values[0] is not None and values[1] is not None  # as nothing stands against them
        return Margin(
            values[0] - values[1],
            (strata(better, selection, metric), strata(than, selection, metric)),
        )
    if reason := no_level(than, selection, metric):
        return f"{claim.than}'s {words(metric)} {reason}: nothing can be sooner there"
    if in_last_alone(better, than):
        return f"{claim.better} has a model in the last round alone"
    return Margin(rounds_sooner(better, than, selection, metric), (None, None))


def why_never(
    results: ExperimentResults, row: str, column: str, seed: int, selection: str, metric: str
) -> str:
    """Return why a row will never have a number; empty where it has it, or its run is still to come."""
    cell = next(
        (c for c in results.cells if (c.row, c.column, c.seed) == (row, column, seed)), None
    )
    if cell is None:
        return f"{row} is not run there"
    measured = by_seed(results, row, column, seed)
    if not results.runs[cell.run.run_id].finished or (
        measured and measure(measured, selection, metric) is not None
    ):
        return ""
    if measured is None:
        return f"{row}'s finished run has no model {cell.deployed}"
    if not select(measured.points, selection):
        rounds = f"{len(measured.points)} evaluated round{'s' * (len(measured.points) != 1)}"
        return f"{row} has {rounds}: no {SELECTION_WORDS[selection]}"
    return f"{row}'s finished run has no {words(metric)}"


def never_lines(results: ExperimentResults) -> list[str]:
    """Return a sentence for every number of the main table that finished runs do not have and never will."""
    experiment, lines = results.experiment, list[str]()
    for column in experiment.columns:
        for cell in (cell for cell in results.cells if cell.column == column):
            place = (
                cell.row,
                column,
                cell.seed,
                experiment.selection,
                experiment.metric_of(column),
            )
            if reason := why_never(results, *place):
                lines.append(f"{named(column)}cannot be measured: {reason}.")
    return list(dict.fromkeys(lines))


def rounds_sooner(better: SeedResult, than: SeedResult, selection: str, metric: str) -> int:
    """Return how many rounds earlier one run first has the other's number than that one itself.

    A run that never has it, or that ends below it, counts as one more round than were run: a number that is lost again
    is no gain.
    """
    target = measure(than, selection, metric)
    assert target is not None  # as it is a level
    ours, theirs = reach(better, target, metric), reach(than, target, metric)
    if ends_below(better, target, selection, metric):
        ours = None
    last = better.points[-1].round
    return (theirs.round if theirs else select(than.points, selection)[-1].round) - (
        ours.round if ours else last + 1
    )
