"""Verdicts on an experiment's claims: whether what a paper says of its rows holds in these runs.

A claim becomes parts: numbers of rows, a difference between them by seed, and the margin that it must exceed. One rule
judges the parts of all forms.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import numpy as np

from fedskew.experiments.claims import Better, Claim, Contrast, HeldBy, Same, Series
from fedskew.formatting import p_value, plural
from fedskew.report.format import (
    NONE,
    SELECTION_WORDS,
    Table,
    TableCell,
    ends_words,
    in_percent,
    named,
    signed,
    words,
)
from fedskew.report.inference import (
    Estimate,
    Strata,
    holm,
    is_significant,
    p_of_several,
    seeds_to_decide,
    with_interval,
)
from fedskew.report.results import ExperimentResults, RowResults, SeedResult
from fedskew.report.rounds_to_target import in_last_alone, no_level, rounding_of, rounds_sooner
from fedskew.report.strata import strata

HASH_DIGITS = 16
"""Digits of a model's hash that a verdict shows."""
SAYS = {
    "holds": "holds",
    "unclear": "not distinguishable",
    "fails": "does not hold",
    "open": "not measured yet",
    "never": "cannot be measured",
}
"""A claim's status in words."""
PLURAL = {"holds": "hold", "fails": "do not hold"}
"""What several claims do, where it is not what one does."""

UNMEASURED = Estimate({})


@dataclass(frozen=True)
class Margin:
    """One part of a claim in one seed, measured."""

    difference: float
    strata: tuple[Strata | None, Strata | None] = (None, None)
    """Test examples of the two numbers; None where there are none to draw, as of rounds."""
    rounding: float = 0.0
    """Standard deviation of what rounding adds to the difference: rounds are known up to the last evaluation."""


@dataclass(frozen=True)
class Part:
    """One difference that a claim says to be above a margin: of a column, of a step, or of a whole line."""

    name: str
    by: float
    rows: Sequence[RowResults]
    """What is compared: rows by the claim's number, each in a column."""
    measure: Callable[..., Margin | str]
    """Takes one run of each of them, of one seed. Returns the difference, or why there never is one."""
    names: tuple[str, str]
    """What seeds the bootstrap's draws: two rows have the interval that they have among the differences."""
    by_curve: Sequence[str] = ()
    """The rows that need no number in the round that is selected: theirs by round are looked at."""

    @property
    def columns(self) -> set[str]:
        return {row.column for row in self.rows}

    def of_seed(self, seed: int) -> Margin | str:
        """Return the difference; why there never is one; the empty text where a run is still to come."""
        runs = [row.of_seed(seed) for row in self.rows]
        reasons = []
        for row, run in zip(self.rows, runs, strict=True):
            needs_number = row.row not in self.by_curve
            reasons.append(why_never(row, seed) if run is None or needs_number else "")
        if any(reasons) or None in runs:
            return next(filter(None, reasons), "")
        return self.measure(*runs)

    def over_seeds(self, margins: Mapping[int, Margin]) -> Estimate:
        """Return the difference from its margins by seed."""
        differences = {}
        examples = []
        rounding = 0.0
        for seed, margin in margins.items():
            differences[seed] = margin.difference
            examples.append(margin.strata)
            rounding = max(rounding, margin.rounding)
        return with_interval(differences, examples, self.names, self.by, rounding)


@dataclass(frozen=True)
class Verdict:
    """The result for one claim. Its numbers are those of the part that decides: see `decided`."""

    claim: Claim
    metric: str = ""
    selection: str = ""
    columns: tuple[str, ...] = ()
    status: str = "open"
    """A key of SAYS."""
    deciding: str = ""
    """The name of the part that decides."""
    found: Estimate = UNMEASURED
    """Its difference, in points, or in rounds for `sooner`; the interval has the whole claim's p-value."""
    p_holm: float | None = None
    """The p-value, corrected for the claims that are judged beside it; None for one seed."""
    parts: int = 0
    above: int = 0
    """The number of parts whose mean difference exceeds its margin."""
    unmeasured: int = 0
    """The number of seeds for which a part lacks one of its runs, or its number."""
    why_not: str = ""
    """Why the unmeasured seeds can never be measured; empty while one of their runs is unfinished."""
    unfit: str = ""
    """Which rows diverged in a seed, or are no better than chance although they should be better; empty where none."""
    more_seeds: int | None = None
    """The seeds that would decide; None where it is decided, or where one seed says nothing of others."""

    @property
    def holds(self) -> int:
        """The number of seeds whose difference exceeds the margin."""
        return sum(value > self.found.margin for value in self.found.by_seed.values())

    @property
    def n(self) -> int:
        """The number of measured seeds."""
        return self.found.n

    @property
    def unit(self) -> str:
        if isinstance(self.claim, Better) and self.claim.sooner:
            return "rounds"
        return "points" if self.metric and in_percent(self.metric) else ""

    @property
    def in_words(self) -> tuple[str, str, str]:
        """The mean difference, its interval and the difference of every seed; empty where there is none."""
        if not self.n:
            return "", "", ""
        found, metric = self.found, self.metric
        effect = f"{signed(found.mean, metric)} {self.unit}".rstrip()
        interval = ends_words(*found.ends, metric).strip()
        seeds = [signed(value, metric) for value in found.by_seed.values()]
        return effect, interval, ", ".join(seeds)


def judge(results: ExperimentResults) -> list[Verdict]:
    """Return the verdicts on the experiment's claims.

    A claim holds only where its p-value, corrected for the number of claims that are judged, agrees.
    """
    verdicts = []
    for one in corrected([judge_claim(results, claim) for claim in results.experiment.claims]):
        stands = one.status != "holds" or not one.n or is_significant(one.p_holm)
        verdicts.append(one if stands else replace(one, status="unclear"))
    return verdicts


def counted(statuses: Sequence[str], says: Mapping[str, str] = SAYS) -> list[str]:
    """Return in words how many claims have which status, in the order of `says`."""
    parts = []
    for status, singular in says.items():
        number = statuses.count(status)
        if number:
            parts.append(f"{number} {singular if number == 1 else PLURAL.get(status, singular)}")
    return parts


def corrected(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Return the verdicts with p-values that are corrected for how many there are (Holm 1979)."""
    p_values = []
    for verdict in verdicts:
        p_values.append(None if verdict.status == "never" else verdict.found.p)
    pairs = zip(verdicts, holm(p_values), strict=True)
    return [replace(verdict, p_holm=p) for verdict, p in pairs]


def judge_claim(results: ExperimentResults, claim: Claim) -> Verdict:
    """Return the verdict on one claim, its p-value not corrected yet."""
    if isinstance(claim, HeldBy):
        return Verdict(claim, status="holds", why_not=f"in closed form; {claim.held_by} checks it")
    if isinstance(claim, Same):
        return judge_models(results, claim)
    columns = claim.columns or tuple(results.experiment.columns)
    compared = Compared(results, claim, columns)
    parts = compared.parts()
    among = claim.in_columns or len(parts)

    diverged, at_chance = compared.unfit()
    sound = [part for part in parts if not diverged.keys() & part.columns]
    fit = [part for part in sound if not at_chance.keys() & part.columns]
    # Parts that cannot count for the claim stay where it needs them: it can still be refuted there.
    counted = next((some for some in (fit, sound) if len(some) >= among), parts)

    complete: dict[int, list[Margin]] = {}
    reasons = []  # per incomplete seed; empty while one of its runs is unfinished
    for seed in results.seeds:
        measured = [part.of_seed(seed) for part in counted]
        margins = [margin for margin in measured if isinstance(margin, Margin)]
        if len(margins) == len(counted):
            complete[seed] = margins
        else:
            known = [reason for reason in measured if isinstance(reason, str) and reason]
            reasons.append(known[0] if known else "")
    why_not = "; ".join(dict.fromkeys(reasons)) if all(reasons) else ""
    unfit = diverged | at_chance
    metrics = {compared.metric_of(column) for column in columns}
    verdict = Verdict(
        claim=claim,
        metric=metrics.pop() if len(metrics) == 1 else results.experiment.metric,
        selection=compared.selection,
        columns=columns,
        status="never" if why_not else "open",
        unmeasured=len(reasons),
        parts=len(parts),
        why_not=why_not,
        unfit="; ".join(f"{named(column)}{unfit[column]}" for column in columns if column in unfit),
    )
    if complete:
        verdict = decided(verdict, counted, complete, among)
    if len(sound) < among:
        return replace(verdict, status="never")
    if verdict.status == "holds" and len(fit) < among:
        return replace(verdict, status="unclear")
    return verdict


def judge_models(results: ExperimentResults, claim: Same) -> Verdict:
    """Return whether each row has one model, to the bit, in all columns and seeds."""
    statuses = []
    sentences = []
    for row in claim.same:
        hashes = []
        for cell in results.cells:
            if cell.row == row:
                summary = results.runs[cell.run.run_id].summary or {}
                hashes.append(summary.get("model-hashes", {}).get(cell.deployed))
        known = [code for code in hashes if code is not None]
        number = len(set(known))
        what = f"{number} models"
        if number == 1:
            what = f"one model, {known[0][:HASH_DIGITS]},"
        sentences.append(f"{row}: {what} in {len(known)} of {len(hashes)} runs")
        if number > 1:
            statuses.append("fails")
        elif not known or len(known) < len(hashes):
            statuses.append("open")
    status = min(statuses, default="holds")  # fails goes before open
    return Verdict(claim, status=status, why_not="; ".join(sentences))


def decided(
    verdict: Verdict, parts: Sequence[Part], complete: Mapping[int, Sequence[Margin]], among: int
) -> Verdict:
    """Return the verdict by the one rule, from every part's own interval.

    A claim holds where every part's interval lies above its margin, which needs no correction for their number (an
    intersection-union test), or where `among` of them do. It does not hold where so many lie below that it cannot. Else
    it is not distinguishable: one seed always is, as its interval says nothing about other seeds.

    The numbers shown are those of the part with the lowest lower end, beside the margins; of a claim that does not
    hold, of the part with the lowest upper end, which refutes it. With `among` parts it is the among-th of the highest.
    The p-value is that of the whole claim, see `p_of_several`.

    Args:
        verdict: without numbers.
        parts: those that count.
        complete: by seed the margin of every part.
        among: how many parts the claim needs.
    """
    estimates = []
    for number, part in enumerate(parts):
        margins = {seed: of_seed[number] for seed, of_seed in complete.items()}
        estimates.append(part.over_seeds(margins))
    holds = [one.side for one in estimates].count("above") >= among
    fails = not holds and sum(one.is_refuted for one in estimates) > len(parts) - among
    status = "unclear"
    if holds or fails:
        status = "holds" if holds else "fails"

    ends = []
    for one in estimates:
        end = one.ends[fails]  # the high one of a claim that fails
        # Fewer than `among` parts are not refuted where it fails, so that the chosen one is refuted.
        last = fails and one.is_refuted
        ends.append((last, one.margin - (one.mean if one.interval is None else end)))
    chosen = sorted(range(len(parts)), key=ends.__getitem__)[among - 1]
    deciding = estimates[chosen]
    interval = deciding.interval
    if interval is not None:
        interval = replace(interval, p=p_of_several(estimates, among))

    # It fails as soon as one part does, and holds once the last one does.
    failing = [one for one in estimates if one.mean <= one.margin]
    undecided = failing or [one for one in estimates if one.side == "unclear"]
    needed = [] if holds or fails else [*map(seeds_to_decide, undecided)]
    known = [number for number in needed if number is not None]
    return replace(
        verdict,
        status=status,
        deciding=parts[chosen].name,
        found=replace(deciding, interval=interval),
        above=len(estimates) - len(failing),
        more_seeds=(min if failing else max)(known, default=None),
    )


# ---- the parts of each form ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Compared:
    """What a claim compares: its rows by its number, in its columns."""

    results: ExperimentResults
    claim: Claim
    columns: Sequence[str]

    @property
    def selection(self) -> str:
        """The round that is compared."""
        return self.claim.selection or self.results.experiment.selection

    def metric_of(self, column: str) -> str:
        """Return the number that is compared in a column."""
        if isinstance(self.claim, Series):
            return self.claim.series
        return self.claim.metric or self.results.experiment.metric_of(column)

    def row(self, row: str, column: str) -> RowResults:
        """Return a row in a column by that number."""
        return self.results.of(row, column, self.metric_of(column), self.selection)

    def unfit(self) -> tuple[dict[str, str], dict[str, str]]:
        """Return by column which rows diverged, and whether the one that should be better is no better than chance."""
        claim = self.claim
        diverged, at_chance = {}, {}
        for column in self.columns:
            found = [self.row(row, column).divergence for row in claim.rows]
            if any(found):
                diverged[column] = ", ".join(filter(None, found))
            elif isinstance(claim, Better) and not claim.within:
                beside = self.row(claim.better, column).at_chance
                if beside:
                    at_chance[column] = f"{claim.better} is no better than chance ({beside})"
        return diverged, at_chance

    def parts(self) -> list[Part]:
        """Return the differences that the claim says to be above their margins."""
        if isinstance(self.claim, Contrast):
            return self.contrast(self.claim)
        parts: list[Part] = []
        for column in self.columns:
            if isinstance(self.claim, Better):
                parts += self.better(self.claim, column)
            elif isinstance(self.claim, Series):
                parts += self.series(self.claim, column)
        return parts

    def better(self, claim: Better, column: str) -> list[Part]:
        """Return one column's difference of two rows; of equivalent rows both differences (two one-sided tests)."""
        names = (claim.better, claim.than)
        rows = [self.row(name, column) for name in names]
        name = column or f"{claim.better} beside {claim.than}"
        if not claim.within:
            measure: Callable[..., Margin | str] = partial(weighted, (1.0, -1.0))
            by_curve: Sequence[str] = ()
            if claim.sooner:
                measure = partial(sooner, claim)
                by_curve = (claim.better,)  # without the number it is later than every round
            elif claim.smoother:
                measure = smoother
            return [Part(name, claim.by, rows, measure, names, by_curve)]
        parts = []
        for better, than in (rows, rows[::-1]):
            side = f"{better.row} no more than {claim.within:g} below {than.row}"
            terms = [(1.0, better), (-1.0, than)]
            parts.append(self.sum(f"{named(column)}{side}", -claim.within, terms))
        return parts

    def sum(self, name: str, by: float, terms: Sequence[tuple[float, RowResults]]) -> Part:
        """Return a weighted sum of numbers as a part."""
        weights = []
        rows = []
        for weight, row in terms:
            weights.append(weight)
            rows.append(row)
        names = (" ".join(self.claim.rows), name)
        return Part(name, by, rows, partial(weighted, weights), names)

    def contrast(self, claim: Contrast) -> list[Part]:
        """Return what a shape over the columns asks of every row, or of its difference from another one."""
        parts = []
        for row in claim.over:
            for name, by, weights in shape_of(claim, self.columns):
                terms = []
                for column, weight in weights.items():
                    if weight and claim.than:
                        terms.append((-weight, self.row(claim.than, column)))
                    if weight:
                        terms.append((weight, self.row(row, column)))
                # The number that is above comes first, as in a difference of two rows.
                terms.sort(key=lambda term: -term[0])
                beside = f" minus {claim.than}" if claim.than else ""
                parts.append(self.sum(f"{row}{beside}: {name}", by, terms))
        return parts

    def series(self, claim: Series, column: str) -> list[Part]:
        """Return what a number by round stays below, by how much it falls, and what it stays above."""
        sides = {}
        if claim.below is not None:
            sides["below"] = f"below {claim.below:g} from round {claim.by_round} on"
        if claim.falls:
            sides["falls"] = "falls"
        if claim.stays_above is not None:
            sides["above"] = f"above {claim.stays_above:g}"
        parts = []
        for side, what in sides.items():
            name = f"{named(column)}{words(claim.series)} {what}"
            measure = partial(series_margin, claim, side)
            row = self.row(claim.row, column)
            parts.append(Part(name, 0.0, [row], measure, (claim.row, name), (claim.row,)))
        return parts


Sums = list[tuple[str, float, dict[str, float]]]
"""Weighted sums over the columns: name, margin, and weight by column."""


def shape_of(claim: Contrast, columns: Sequence[str]) -> Sums:
    """Return the sums over the columns that a shape says to be above a margin."""
    if claim.peak:
        others = [column for column in columns if column != claim.peak]
        return [
            (f"{claim.peak} above {column}", claim.by, {claim.peak: 1.0, column: -1.0})
            for column in others
        ]
    if claim.knee:
        start, bend, end = columns
        # The fall from bend to end, less the one from start to bend.
        excess = {start: -1.0, bend: 2.0, end: -1.0}
        return [
            (f"falls from {bend} to {end}", claim.by, {bend: 1.0, end: -1.0}),
            (f"falls more than from {start} to {bend}", 0.0, excess),
        ]
    sign = 1.0 if claim.trend == "rises" else -1.0
    # The columns count as equally far apart; the sum is the fitted line's rise from the first to the last.
    last = len(columns) - 1
    centered = np.arange(len(columns)) - last / 2
    line = sign * centered * last / (centered**2).sum()
    shape: Sums = [(claim.trend, claim.by, dict(zip(columns, line.tolist(), strict=True)))]
    if not math.isinf(claim.slack):
        for before, after in pairwise(columns):
            step = {before: -sign, after: sign}
            shape.append((f"{before} to {after}", -claim.slack, step))
    return shape


# ---- the difference of one seed --------------------------------------------------------------------------------------


def weighted(weights: Sequence[float], *runs: SeedResult) -> Margin:
    """Return a weighted sum of the runs' numbers."""
    values = []
    for weight, run in zip(weights, runs, strict=True):
        assert run.number is not None  # a part asks `why_never` before
        values.append(weight * run.number)
    total = math.fsum(values)
    # The test examples are known to add to a plain difference of two numbers alone.
    if [*weights] != [1.0, -1.0]:
        return Margin(total)
    better, than = runs
    return Margin(total, (strata(better), strata(than)))


def sooner(claim: Better, better: SeedResult, than: SeedResult) -> Margin | str:
    """Return by how many rounds a run is sooner than another one at the other's number."""
    reason = no_level(than)
    if reason:
        return f"{claim.than}'s {words(than.metric)} {reason}: nothing can be sooner there"
    if in_last_alone(better, than):
        return f"{claim.better} has a model in the last round alone"
    rounds = rounds_sooner(better, than, claim.times)
    return Margin(rounds, rounding=rounding_of(better, than, claim.times))


def smoother(better: SeedResult, than: SeedResult) -> Margin | str:
    """Return by how much less a run's number changes between evaluated rounds, in the second half of them."""
    changes = []
    for run in (than, better):
        values = [*run.by_round.values()]
        if not 4 <= len(values) == len(run.points):
            return "a curve has fewer than four evaluated rounds, or gaps"
        second_half = values[len(values) // 2 :]
        changes.append(float(np.abs(np.diff(second_half)).mean()))
    return Margin(changes[0] - changes[1])


def series_margin(claim: Series, side: str, run: SeedResult) -> Margin | str:
    """Return how far a number by round is on the right side of one of its bounds: below, falls or above."""
    by_round = {}  # as recorded, a share from 0 to 1: a bound says 0.3, not 30
    for point in run.points:
        value = run.value(point, claim.series)
        if value is not None:
            by_round[point.round] = value
    values = [*by_round.values()]
    late = [value for round, value in by_round.items() if round >= claim.by_round]
    if len(values) < 2 or not late:
        return f"{claim.row}'s records have no {words(claim.series)} by round"
    if side == "below" and claim.below is not None:
        return Margin(claim.below - max(late))
    if side == "above" and claim.stays_above is not None:
        return Margin(min(values) - claim.stays_above)
    return Margin(values[0] - values[-1])


def why_never(row: RowResults, seed: int) -> str:
    """Return why a row can never have its number; "" if it has one, or while its run is unfinished."""
    if seed in row.diverged:
        return f"{row.row} diverged in round {row.diverged[seed]['round']}"
    if seed in row.lacking:
        return f"{row.row}'s finished run has no model {row.lacking[seed]}"
    run = row.of_seed(seed)
    if run is None or run.number is not None:
        return ""
    if not run.selected:
        rounds = plural(len(run.points), "evaluated round")
        return f"{row.row} has {rounds}: no {SELECTION_WORDS[row.selection]}"
    return f"{row.row}'s finished run has no {words(row.metric)}"


def never_lines(results: ExperimentResults) -> list[str]:
    """Return a sentence for every number of the main table that the finished runs cannot give."""
    lines = []
    for column in results.columns:
        for row in column.rows:
            for seed in results.seeds:
                reason = "" if seed in row.diverged else why_never(row, seed)
                if reason:
                    lines.append(column.titled(f"cannot be measured: {reason}."))
    return list(dict.fromkeys(lines))


# ---- tables ----------------------------------------------------------------------------------------------------------


def claims_table(results: ExperimentResults, verdicts: Sequence[Verdict]) -> Table:
    """Return the claims and their verdicts."""
    headings = [
        TableCell("claim"),
        TableCell("verdict"),
        TableCell("difference", "95 % interval"),
        TableCell("p", "paired t-test, Holm" if len(verdicts) > 1 else "paired t-test"),
    ]
    columns = list(results.experiment.columns)
    rows = [claim_row(number, verdict, columns) for number, verdict in enumerate(verdicts, 1)]
    caption = "Each claim, its verdict, and the difference that it is about."
    return Table(caption, headings, rows, wordy=True)


def claim_row(number: int, verdict: Verdict, columns: Sequence[str]) -> list[TableCell]:
    """Return the table row of one claim, of an experiment with these columns."""
    effect, ends, by_seed = verdict.in_words
    details = [verdict.unfit]
    if verdict.unmeasured and verdict.status != "never":
        later = "cannot be" if verdict.why_not else "not measured yet"
        details.insert(0, f"{verdict.unmeasured} {later}")
    if effect:
        details.insert(0, f"in {verdict.holds} of {plural(verdict.n, 'seed')}")
    beside = ", ".join(filter(None, details)) or verdict.why_not
    p = TableCell(NONE, "one seed" if verdict.n == 1 else "")
    interval = verdict.found.interval
    if interval is not None and verdict.p_holm is not None:
        p = TableCell(p_value(verdict.p_holm), f"over {interval.resampled}")
    return [
        TableCell(f"{number}. {verdict.claim.says}", claim_in_words(verdict, columns)),
        TableCell(SAYS[verdict.status], beside, strong=verdict.status == "holds"),
        TableCell(f"{effect} {ends}".strip() or NONE, f"seeds: {by_seed}" if verdict.n > 1 else ""),
        p,
    ]


def claim_in_words(verdict: Verdict, columns: Sequence[str]) -> str:
    """Return the rows compared, the metric, the selected round and the columns, in words."""
    claim = verdict.claim
    if not verdict.columns:
        return claim.relation
    compared = claim.relation
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
