"""Verdicts on an experiment's claims: whether what a paper says of its rows holds in these runs.

A claim becomes parts: a difference by seed, and the margin that it must exceed. One rule judges the parts of all forms.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fedskew.experiments.claims import Better, Claim, Contrast, HeldBy, Same, Series
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
    Estimate,
    Interval,
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
from fedskew.report.unfit_rows import chance_words, diverged_words

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
    names: tuple[str, str]
    """What seeds the bootstrap's draws: two rows have the interval that they have among the differences."""
    columns: tuple[str, ...]
    measure: Callable[[int], Margin | str]
    """Of a seed: the difference; why there never is one; the empty text where a run is still to come."""


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
    by: float = 0.0
    """The margin of that part."""
    margins: Mapping[int, float] = field(default_factory=dict)
    """By seed the difference, in points, or in rounds for `sooner`."""
    estimate: float = math.nan
    """The mean difference; NaN without seeds."""
    interval: Interval | None = None
    """Of the mean difference, with the whole claim's p-value.

    None without seeds, and for one seed whose test examples are not recorded.
    """
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
        return sum(margin > self.by for margin in self.margins.values())

    @property
    def n(self) -> int:
        """The number of measured seeds."""
        return len(self.margins)

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
        effect = f"{signed(self.estimate, self.metric)} {self.unit}".rstrip()
        margins = [signed(margin, self.metric) for margin in self.margins.values()]
        seeds = ", ".join(margins)
        if self.interval is None:
            return effect, "", seeds
        low = signed(self.interval.low, self.metric)
        high = signed(self.interval.high, self.metric)
        return effect, f"[{low}, {high}]", seeds


def judge(results: ExperimentResults) -> list[Verdict]:
    """Return the verdicts on the experiment's claims.

    A claim holds only where its p-value, corrected for the number of claims that are judged, agrees.
    """
    verdicts = []
    for one in corrected([judge_claim(results, claim) for claim in results.experiment.claims]):
        stands = one.status != "holds" or not one.n or is_significant(one.p_holm)
        verdicts.append(one if stands else replace(one, status="unclear"))
    return verdicts


def corrected(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Return the verdicts with p-values that are corrected for how many there are (Holm 1979)."""
    p_values = []
    for verdict in verdicts:
        is_judged = verdict.status != "never"
        p_values.append(verdict.interval.p if verdict.interval and is_judged else None)
    pairs = zip(verdicts, holm(p_values), strict=True)
    return [replace(verdict, p_holm=p) for verdict, p in pairs]


def judge_claim(results: ExperimentResults, claim: Claim) -> Verdict:
    """Return the verdict on one claim, its p-value not corrected yet."""
    if isinstance(claim, HeldBy):
        return Verdict(claim, status="holds", why_not=f"in closed form; {claim.held_by} checks it")
    if isinstance(claim, Same):
        return judge_models(results, claim)
    experiment = results.experiment
    columns = claim.columns or tuple(experiment.columns)
    metrics = {metric_of(results, claim, column): None for column in columns}
    parts = parts_of(results, claim, columns)
    among = claim.in_columns or len(parts)

    diverged, at_chance = unfit_columns(results, claim, columns)
    sound = [part for part in parts if not diverged.keys() & {*part.columns}]
    fit = [part for part in sound if not at_chance.keys() & {*part.columns}]
    # Parts that cannot count for the claim stay where it needs them: it can still be refuted there.
    counted = next((some for some in (fit, sound) if len(some) >= among), parts)

    complete: dict[int, list[Margin]] = {}
    reasons = []  # per incomplete seed; empty while one of its runs is unfinished
    for seed in results.seeds:
        measured = [part.measure(seed) for part in counted]
        margins = [margin for margin in measured if isinstance(margin, Margin)]
        if len(margins) == len(counted):
            complete[seed] = margins
        else:
            known = [reason for reason in measured if isinstance(reason, str) and reason]
            reasons.append(known[0] if known else "")
    why_not = "; ".join(dict.fromkeys(reasons)) if all(reasons) else ""
    unfit = {**diverged, **at_chance}
    verdict = Verdict(
        claim=claim,
        metric=next(iter(metrics)) if len(metrics) == 1 else experiment.metric,
        selection=selection_of(results, claim),
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


def unfit_columns(
    results: ExperimentResults, claim: Claim, columns: Sequence[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return by column which rows diverged, and whether the one that should be better is no better than chance."""
    diverged, at_chance = {}, {}
    for column in columns:
        of_rows = [diverged_words(row_of(results, claim, row, column)) for row in claim.rows]
        if any(of_rows):
            diverged[column] = ", ".join(filter(None, of_rows))
        elif isinstance(claim, Better) and not claim.within:
            beside = chance_words(row_of(results, claim, claim.better, column))
            if beside:
                at_chance[column] = f"{claim.better} is no better than chance ({beside})"
    return diverged, at_chance


def judge_models(results: ExperimentResults, claim: Same) -> Verdict:
    """Return whether each row has one model, to the bit, in all columns and seeds."""
    statuses = []
    sentences = []
    for row in claim.same:
        hashes = []
        for cell in results.cells:
            if cell.row != row:
                continue
            summary = results.runs[cell.run.run_id].summary or {}
            models = summary.get("model-hashes", {})
            hashes.append(models.get(cell.deployed))
        known = [code for code in hashes if code is not None]
        number = len(set(known))
        if number > 1:
            statuses.append("fails")
        elif not known or len(known) < len(hashes):
            statuses.append("open")
        what = f"{number} models"
        if number == 1:
            what = f"one model, {known[0][:HASH_DIGITS]},"
        sentences.append(f"{row}: {what} in {len(known)} of {len(hashes)} runs")
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
    estimates = [
        compared(part, {seed: margins[number] for seed, margins in complete.items()})
        for number, part in enumerate(parts)
    ]
    margins = [part.by for part in parts]
    pairs = list(zip(estimates, margins, strict=True))
    sides = [estimate.verdict(by) for estimate, by in pairs]
    refuted = [is_refuted(estimate, by) for estimate, by in pairs]
    holds = sides.count("above") >= among
    fails = not holds and sum(refuted) > len(parts) - among

    ends = []
    for estimate, by in pairs:
        end = estimate.ends[fails]  # the high one of a claim that fails
        ends.append((estimate.mean if estimate.interval is None else end) - by)
    # Fewer than `among` parts are not refuted where it fails, so that the chosen one is refuted.
    from_highest = sorted(range(len(parts)), key=lambda one: (fails and refuted[one], -ends[one]))
    chosen = from_highest[among - 1]
    interval = estimates[chosen].interval
    if interval is not None:
        interval = replace(interval, p=p_of_several(estimates, margins, among))

    # It fails as soon as one part does, and holds once the last one does.
    failing = [pair for pair in pairs if pair[0].mean <= pair[1]]
    unclear = [pair for pair, side in zip(pairs, sides, strict=True) if side == "unclear"]
    needed = [] if holds or fails else [seeds_to_decide(*pair) for pair in failing or unclear]
    known = [number for number in needed if number is not None]
    status = "unclear"
    if holds or fails:
        status = "holds" if holds else "fails"
    return replace(
        verdict,
        status=status,
        deciding=parts[chosen].name,
        by=margins[chosen],
        margins=estimates[chosen].by_seed,
        estimate=estimates[chosen].mean,
        interval=interval,
        above=sum(estimate.mean > by for estimate, by in pairs),
        more_seeds=(min if failing else max)(known, default=None),
    )


def compared(part: Part, margins: Mapping[int, Margin]) -> Estimate:
    """Return the difference of a part from its margins by seed."""
    differences = {seed: margin.difference for seed, margin in margins.items()}
    pairs = [margin.strata for margin in margins.values()]
    rounding = max(margin.rounding for margin in margins.values())
    return with_interval(differences, pairs, part.names, part.by, rounding)


def is_refuted(estimate: Estimate, by: float) -> bool:
    """Return whether no part of a difference's interval lies above its margin, over several seeds.

    A difference that is the margin itself in every seed is refuted as well, whatever the rounding of rounds adds.
    """
    if estimate.n < 2 or estimate.interval is None:
        return False
    is_tie = set(estimate.by_seed.values()) == {by} and estimate.rounding > 0
    return estimate.interval.high <= by or is_tie


# ---- the parts of each form ------------------------------------------------------------------------------------------


def metric_of(results: ExperimentResults, claim: Claim, column: str) -> str:
    """Return the number that a claim compares in a column."""
    if isinstance(claim, Series):
        return claim.series
    return claim.metric or results.experiment.metric_of(column)


def selection_of(results: ExperimentResults, claim: Claim) -> str:
    """Return the round that a claim compares."""
    return claim.selection or results.experiment.selection


def row_of(results: ExperimentResults, claim: Claim, row: str, column: str) -> RowResults:
    """Return a row in a column by the number that a claim compares."""
    return results.of(row, column, metric_of(results, claim, column), selection_of(results, claim))


def parts_of(results: ExperimentResults, claim: Claim, columns: tuple[str, ...]) -> list[Part]:
    """Return the differences that a claim says to be above their margins."""
    if isinstance(claim, Contrast):
        return contrast_parts(results, claim, columns)
    parts: list[Part] = []
    for column in columns:
        if isinstance(claim, Better):
            parts += better_parts(results, claim, column)
        elif isinstance(claim, Series):
            parts += series_parts(results, claim, column)
    return parts


def better_parts(results: ExperimentResults, claim: Better, column: str) -> list[Part]:
    """Return one column's difference of two rows; of equivalent rows both differences (two one-sided tests)."""
    rows = (claim.better, claim.than)
    name = column or f"{claim.better} beside {claim.than}"
    if claim.sooner or claim.smoother:
        measure_curves = partial(of_curves, results, claim, column)
        return [Part(name, claim.by, rows, (column,), measure_curves)]
    if not claim.within:
        terms = [(1.0, claim.better, column), (-1.0, claim.than, column)]
        return [weighted(results, claim, name, claim.by, terms, rows)]
    parts = []
    for better, than in (rows, rows[::-1]):
        side = f"{better} no more than {claim.within:g} below {than}"
        terms = [(1.0, better, column), (-1.0, than, column)]
        part = weighted(results, claim, f"{named(column)}{side}", -claim.within, terms)
        parts.append(part)
    return parts


def weighted(
    results: ExperimentResults,
    claim: Claim,
    name: str,
    by: float,
    terms: Sequence[tuple[float, str, str]],
    names: tuple[str, str] | None = None,
) -> Part:
    """Return a weighted sum of numbers as a part; `terms` are weight, row and column."""

    def total(seed: int) -> Margin | str:
        values, examples = [], []
        for weight, row, column in terms:
            found = row_of(results, claim, row, column)
            reason = why_never(results, found, seed)
            if reason:
                return reason
            run = found.of_seed(seed)
            if run is not None and run.number is not None:
                values.append(weight * run.number)
                examples.append(strata(run))
        if len(values) < len(terms):
            return ""
        # The test examples are known to add to a plain difference of two numbers alone.
        is_plain = [weight for weight, _, _ in terms] == [1.0, -1.0]
        pair = (examples[0], examples[1]) if is_plain else (None, None)
        return Margin(math.fsum(values), pair)

    columns = tuple(dict.fromkeys(column for _, _, column in terms))
    return Part(name, by, names or (" ".join(claim.rows), name), columns, total)


def of_curves(results: ExperimentResults, claim: Better, column: str, seed: int) -> Margin | str:
    """Return by how many rounds a row is sooner than another one, or by how much its curve is smoother."""
    rows = [row_of(results, claim, row, column) for row in (claim.better, claim.than)]
    reasons = [
        why_never(results, row, seed)
        for row in rows
        # A row that never has the number is no obstacle: it counts as later than every round.
        if row.row == claim.than or seed in row.diverged
    ]
    better, than = (row.of_seed(seed) for row in rows)
    if any(reasons) or better is None or than is None:
        return next(filter(None, reasons), "")
    if claim.smoother:
        ours, theirs = roughness_of(better), roughness_of(than)
        if ours is None or theirs is None:
            return "a curve has fewer than four evaluated rounds, or gaps"
        return Margin(theirs - ours)
    reason = no_level(than)
    if reason:
        return f"{claim.than}'s {words(than.metric)} {reason}: nothing can be sooner there"
    if in_last_alone(better, than):
        return f"{claim.better} has a model in the last round alone"
    sooner = rounds_sooner(better, than, claim.times)
    return Margin(sooner, rounding=rounding_of(better, than, claim.times))


def roughness_of(run: SeedResult) -> float | None:
    """Return the mean absolute change of a number between evaluated rounds, over the second half of them.

    None where the run has fewer than four evaluated rounds, or a round without the number.
    """
    values = [*run.by_round.values()]
    if not 4 <= len(values) == len(run.points):
        return None
    second_half = values[len(values) // 2 :]
    return float(np.abs(np.diff(second_half)).mean())


Sums = list[tuple[str, float, NDArray[np.float64]]]
"""Weighted sums over the columns: name, margin, and a weight per column."""


def contrast_parts(
    results: ExperimentResults, claim: Contrast, columns: tuple[str, ...]
) -> list[Part]:
    """Return what a shape over the columns asks of every row, or of its difference from another one."""
    parts = []
    for row in claim.over:
        for name, by, weights in shape_of(claim, columns):
            terms = []
            for weight, column in zip(weights.tolist(), columns, strict=True):
                if weight and claim.than:
                    terms.append((-weight, claim.than, column))
                if weight:
                    terms.append((weight, row, column))
            # The number that is above comes first, as in a difference of two rows.
            terms.sort(key=lambda term: -term[0])
            beside = f" minus {claim.than}" if claim.than else ""
            parts.append(weighted(results, claim, f"{row}{beside}: {name}", by, terms))
    return parts


def shape_of(claim: Contrast, columns: Sequence[str]) -> Sums:
    """Return the sums over the columns that a shape says to be above a margin."""
    number = len(columns)
    identity = np.eye(number)
    shape: Sums = []
    if claim.peak:
        top = columns.index(claim.peak)
        for place, column in enumerate(columns):
            if place == top:
                continue
            name = f"{claim.peak} above {column}"
            shape.append((name, claim.by, identity[top] - identity[place]))
        return shape
    if claim.knee:
        start, bend, end = columns
        fall = np.array([0.0, 1.0, -1.0])
        shape.append((f"falls from {bend} to {end}", claim.by, fall))
        # The fall from bend to end, less the one from start to bend.
        excess = np.array([-1.0, 2.0, -1.0])
        shape.append((f"falls more than from {start} to {bend}", 0.0, excess))
        return shape

    sign = 1.0 if claim.trend == "rises" else -1.0
    # The columns count as equally far apart; the sum is the fitted line's rise from the first to the last.
    centered = np.arange(number) - (number - 1) / 2
    line = centered * (number - 1) / (centered**2).sum()
    shape.append((claim.trend, claim.by, sign * line))
    if math.isinf(claim.slack):
        return shape
    for step, (before, after) in enumerate(pairwise(columns)):
        rise = identity[step + 1] - identity[step]
        shape.append((f"{before} to {after}", -claim.slack, sign * rise))
    return shape


def series_parts(results: ExperimentResults, claim: Series, column: str) -> list[Part]:
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
        margin = partial(series_margin, results, claim, column, side)
        parts.append(Part(name, 0.0, (claim.row, name), (column,), margin))
    return parts


def series_margin(
    results: ExperimentResults,
    claim: Series,
    column: str,
    side: str,
    seed: int,
) -> Margin | str:
    """Return how far a number by round is on the right side of one of its bounds: below, falls or above."""
    run = row_of(results, claim, claim.row, column).of_seed(seed)
    if run is None:
        return ""
    by_round = {point.round: run.value(point, claim.series) for point in run.points}
    values = [value for value in by_round.values() if value is not None]
    late = [
        value for round, value in by_round.items() if value is not None and round >= claim.by_round
    ]
    if len(values) < 2 or not late:
        return f"{claim.row}'s records have no {words(claim.series)} by round"
    if side == "below" and claim.below is not None:
        return Margin(claim.below - max(late))
    if side == "above" and claim.stays_above is not None:
        return Margin(min(values) - claim.stays_above)
    return Margin(values[0] - values[-1])


def why_never(results: ExperimentResults, row: RowResults, seed: int) -> str:
    """Return why a row can never have its number; "" if it has one, or while its run is unfinished."""
    place = (row.row, row.column, seed)
    cells = [cell for cell in results.cells if (cell.row, cell.column, cell.seed) == place]
    if not cells:
        return f"{row.row} is not run there"
    if seed in row.diverged:
        return f"{row.row} diverged in round {row.diverged[seed]['round']}"
    run = row.of_seed(seed)
    has_number = run is not None and run.number is not None
    if has_number or not results.runs[cells[0].run.run_id].finished:
        return ""
    if run is None:
        return f"{row.row}'s finished run has no model {cells[0].deployed}"
    if not run.selected:
        rounds = plural(len(run.points), "evaluated round")
        return f"{row.row} has {rounds}: no {SELECTION_WORDS[row.selection]}"
    return f"{row.row}'s finished run has no {words(row.metric)}"


def never_lines(results: ExperimentResults) -> list[str]:
    """Return a sentence for every number of the main table that the finished runs cannot give."""
    lines = []
    for column in results.columns:
        for row in column.rows:
            cells = [one for one in results.cells if (one.row, one.column) == (row.row, row.column)]
            for cell in cells:
                reason = "" if cell.seed in row.diverged else why_never(results, row, cell.seed)
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
    missing = "; ".join(filter(None, details)) or ("" if effect else verdict.why_not)
    several = verdict.n > 1
    p = TableCell(NONE, "one seed" if verdict.n == 1 else "")
    if verdict.interval is not None and verdict.p_holm is not None:
        p = TableCell(p_value(verdict.p_holm), f"over {verdict.interval.resampled}")
    if effect:
        seeds = f"in {verdict.holds} of {plural(verdict.n, 'seed')}"
        missing = ", ".join(filter(None, [seeds, missing]))
    return [
        TableCell(f"{number}. {verdict.claim.says}", claim_in_words(verdict, columns)),
        TableCell(SAYS[verdict.status], missing, strong=verdict.status == "holds"),
        TableCell(f"{effect} {ends}".strip() or NONE, f"seeds: {by_seed}" if several else ""),
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
