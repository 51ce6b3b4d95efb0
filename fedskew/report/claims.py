"""Verdicts on an experiment's claims: whether what a paper says of its rows holds in these runs.

A claim becomes parts: differences by seed, each with the margin that it must exceed. One rule judges the parts of all
forms.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from fedskew.experiments.claims import Better, Claim, Contrast, HeldBy, Series
from fedskew.formatting import p_value, plural
from fedskew.report.differences import in_last_alone, no_level, rounding_of, rounds_sooner, strata
from fedskew.report.format import (
    NONE,
    SELECTION_WORDS,
    Table,
    TableCell,
    ends_words,
    in_percent,
    named,
    scale_of,
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
from fedskew.report.results import ExperimentResults, RowResults

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
    strata: Sequence[Strata | None] = (None, None)
    """Test examples of the two numbers; None where there are none to draw, as of rounds."""
    rounding: float = 0.0
    """Standard deviation of what rounding adds to the difference: rounds are known up to the last evaluation."""


@dataclass(frozen=True)
class Part:
    """One difference that a claim says to be above a margin: of a column, of a step, or of a whole line."""

    name: str
    by: float
    columns: Sequence[str]
    """Whose runs it takes."""
    of_seed: Callable[[int], Margin | str]
    """Returns the difference in a seed, or why there never is one: the empty text where a run is still to come."""
    names: tuple[str, str]
    """What seeds the bootstrap's draws: two rows have the interval that they have among the differences."""

    def over_seeds(self, margins: Mapping[int, Margin]) -> Estimate:
        """Return the difference from its margins by seed."""
        by_seed = {seed: margin.difference for seed, margin in margins.items()}
        examples = [margin.strata for margin in margins.values()]
        rounding = max(margin.rounding for margin in margins.values())
        return with_interval(by_seed, examples, self.names, self.by, rounding)


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
    def is_decided(self) -> bool:
        """Whether the claim holds or does not hold."""
        return self.status in ("holds", "fails")

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
    def in_words(self) -> tuple[str, str]:
        """The mean difference and its interval; empty where there is none."""
        if not self.n:
            return "", ""
        effect = f"{signed(self.found.mean, self.metric)} {self.unit}".rstrip()
        return effect, ends_words(*self.found.ends, self.metric).strip()


def claim_json(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict for other programs; the keys are public. JSON has neither NaN nor infinity: both are null."""
    entry: dict[str, Any] = {}
    for key, value in asdict(verdict).items():
        if key == "found":
            estimate = verdict.found.mean if verdict.n else None
            entry |= {"by": value["margin"], "margins": value["by_seed"]}
            entry |= {"estimate": estimate, "interval": value["interval"]}
        elif key == "claim":
            entry[key] = {name: None if part == math.inf else part for name, part in value.items()}
        else:
            entry[key] = value
    return {**entry, "holds": verdict.holds, "n": verdict.n}


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
    p_values = [None if one.status == "never" else one.found.p for one in verdicts]
    return [replace(one, p_holm=p) for one, p in zip(verdicts, holm(p_values), strict=True)]


def judge_claim(results: ExperimentResults, claim: Claim) -> Verdict:
    """Return the verdict on one claim, its p-value not corrected yet."""
    if isinstance(claim, HeldBy):
        return Verdict(claim, status="holds", why_not=f"in closed form; {claim.held_by} checks it")
    columns = claim.columns or tuple(results.experiment.columns)
    parts = parts_of(results, claim, columns)
    among = claim.in_columns or len(parts)

    diverged, at_chance = unfit_columns(results, claim, columns)
    sound = [part for part in parts if diverged.keys().isdisjoint(part.columns)]
    fit = [part for part in sound if at_chance.keys().isdisjoint(part.columns)]
    # Parts that cannot count for the claim stay where it needs them: it can still be refuted there.
    judged = next((some for some in (fit, sound) if len(some) >= among), parts)

    complete: dict[int, list[Margin]] = {}
    reasons = []  # per incomplete seed; empty while one of its runs is unfinished
    for seed in planned_seeds(results, claim.rows, columns):
        measured = [part.of_seed(seed) for part in judged]
        margins = [margin for margin in measured if isinstance(margin, Margin)]
        if len(margins) == len(judged):
            complete[seed] = margins
        else:
            reasons.append(next((one for one in measured if one and isinstance(one, str)), ""))
    why_not = "; ".join(dict.fromkeys(reasons)) if all(reasons) else ""
    unfit = diverged | at_chance
    shown = [compared(results, claim, claim.rows[0], column) for column in columns]
    metrics = {row.metric for row in shown}
    verdict = Verdict(
        claim=claim,
        metric=metrics.pop() if len(metrics) == 1 else results.experiment.metric,
        selection=shown[0].selection,
        columns=columns,
        status="never" if why_not else "open",
        unmeasured=len(reasons),
        parts=len(parts),
        why_not=why_not,
        unfit="; ".join(f"{named(column)}{unfit[column]}" for column in columns if column in unfit),
    )
    if complete:
        verdict = decided(verdict, judged, complete, among)
    if len(sound) < among:
        return replace(verdict, status="never")
    if verdict.status == "holds" and len(fit) < among:
        return replace(verdict, status="unclear")
    return verdict


def planned_seeds(
    results: ExperimentResults, rows: Sequence[str], columns: Sequence[str]
) -> list[int]:
    """Return the seeds that all of these rows have in all of these columns: a row can be limited to some."""
    planned = {(cell.row, cell.column, cell.seed) for cell in results.cells}
    places = [(row, column) for row in rows for column in columns]
    return [seed for seed in results.seeds if all((*place, seed) in planned for place in places)]


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
    estimates = {}
    for number, part in enumerate(parts):
        margins = {seed: of_seed[number] for seed, of_seed in complete.items()}
        estimates[part.name] = part.over_seeds(margins)
    found = list(estimates.values())
    holds = sum(one.side == "above" for one in found) >= among
    fails = not holds and sum(one.is_refuted for one in found) > len(parts) - among
    status = "unclear"
    if holds or fails:
        status = "holds" if holds else "fails"

    def how_low(name: str) -> tuple[bool, float]:
        """Return where a part comes among the others, those that speak most for the claim first."""
        one = estimates[name]
        end = one.mean
        if one.interval is not None:
            end = one.interval.high if fails else one.interval.low
        # Fewer than `among` parts are not refuted where it fails, so that the chosen one is refuted.
        return fails and one.is_refuted, one.margin - end

    deciding = sorted(estimates, key=how_low)[among - 1]
    shown = estimates[deciding]
    if shown.interval is not None:
        whole = replace(shown.interval, p=p_of_several(found, among))
        shown = replace(shown, interval=whole)

    # It fails as soon as one part does, and holds once the last one does.
    failing = [one for one in found if one.mean <= one.margin]
    needed: list[int] = []
    if not holds and not fails:
        open_ones = failing or [one for one in found if one.side == "unclear"]
        needed = [number for number in map(seeds_to_decide, open_ones) if number is not None]
    return replace(
        verdict,
        status=status,
        deciding=deciding,
        found=shown,
        above=len(found) - len(failing),
        more_seeds=(min if failing else max)(needed, default=None),
    )


# ---- the parts of each form ------------------------------------------------------------------------------------------

Terms = Sequence[tuple[float, RowResults]]
"""A weighted sum of rows' numbers, each in a column."""


def compared(results: ExperimentResults, claim: Claim, row: str, column: str) -> RowResults:
    """Return a row in a column by the claim's number."""
    metric = claim.series if isinstance(claim, Series) else claim.metric
    return results.of(row, column, metric, claim.selection)


def unfit_columns(
    results: ExperimentResults, claim: Claim, columns: Sequence[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return by column which rows diverged, and whether the one that should be better is no better than chance."""
    diverged, at_chance = {}, {}
    for column in columns:
        rows = [compared(results, claim, row, column) for row in claim.rows]
        found = ", ".join(row.divergence for row in rows if row.diverged)
        if found:
            diverged[column] = found
        elif isinstance(claim, Better) and not claim.within and rows[0].at_chance:
            better = rows[0]
            at_chance[column] = f"{better.row} is no better than chance ({better.at_chance})"
    return diverged, at_chance


def parts_of(results: ExperimentResults, claim: Claim, columns: Sequence[str]) -> list[Part]:
    """Return the differences that the claim says to be above their margins."""
    of = partial(compared, results, claim)
    parts: list[Part] = []
    if isinstance(claim, Contrast):
        return contrast_parts(claim, columns, of)
    for column in columns:
        if isinstance(claim, Better):
            better, than = (of(row, column) for row in claim.rows)
            parts += better_parts(claim, better, than)
        elif isinstance(claim, Series):
            parts += series_parts(claim, of(claim.row, column))
    return parts


def better_parts(claim: Better, better: RowResults, than: RowResults) -> list[Part]:
    """Return one column's difference of two rows; of equivalent rows both differences (two one-sided tests)."""
    if claim.within:
        parts = []
        for higher, lower in ((better, than), (than, better)):
            side = f"{higher.row} no more than {claim.within:g} below {lower.row}"
            name = named(better.column) + side
            parts.append(sum_part(claim, name, -claim.within, [(1.0, higher), (-1.0, lower)]))
        return parts
    of_seed: Callable[[int], Margin | str] = partial(weighted, [(1.0, better), (-1.0, than)])
    if claim.sooner:
        of_seed = partial(sooner, claim.times, better, than)
    elif claim.smoother:
        of_seed = partial(smoother, better, than)
    name = better.column or f"{claim.better} beside {claim.than}"
    return [Part(name, claim.by, [better.column], of_seed, (claim.better, claim.than))]


def sum_part(claim: Claim, name: str, by: float, terms: Terms) -> Part:
    """Return a weighted sum of numbers as a part."""
    columns = [row.column for _, row in terms]
    return Part(name, by, columns, partial(weighted, terms), (" ".join(claim.rows), name))


def contrast_parts(
    claim: Contrast, columns: Sequence[str], of: Callable[[str, str], RowResults]
) -> list[Part]:
    """Return what a shape over the columns asks of every row, or of its difference from another one."""
    parts = []
    for row in claim.over:
        for name, by, weights in shape_of(claim, columns):
            terms = []
            for column, weight in weights.items():
                if weight and claim.than:
                    terms.append((-weight, of(claim.than, column)))
                if weight:
                    terms.append((weight, of(row, column)))
            # The number that is above comes first, as in a difference of two rows.
            terms.sort(key=lambda term: -term[0])
            beside = f" minus {claim.than}" if claim.than else ""
            parts.append(sum_part(claim, f"{row}{beside}: {name}", by, terms))
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


def series_parts(claim: Series, row: RowResults) -> list[Part]:
    """Return what a number by round stays below, by how much it falls, and what it stays above."""
    sides: dict[str, Callable[[Mapping[int, float]], float]] = {}
    if claim.below is not None:
        below = claim.below
        sides[f"below {below:g} from round {claim.by_round} on"] = lambda by_round: (
            below - max(value for round, value in by_round.items() if round >= claim.by_round)
        )
    if claim.falls:
        sides["falls"] = lambda by_round: by_round[min(by_round)] - by_round[max(by_round)]
    if claim.stays_above is not None:
        above = claim.stays_above
        sides[f"above {above:g}"] = lambda by_round: min(by_round.values()) - above
    parts = []
    for what, side in sides.items():
        name = f"{named(row.column)}{words(claim.series)} {what}"
        of_seed = partial(series_margin, side, claim.by_round, row)
        parts.append(Part(name, 0.0, [row.column], of_seed, (claim.row, name)))
    return parts


# ---- the difference of one seed --------------------------------------------------------------------------------------


def weighted(terms: Terms, seed: int) -> Margin | str:
    """Return a weighted sum of the rows' numbers."""
    values = []
    reasons = []
    for weight, row in terms:
        reason = why_never(row, seed)
        number = row.numbers.get(seed)
        if reason or number is None:
            reasons.append(reason)
        else:
            values.append(weight * number)
    if reasons:
        return next(filter(None, reasons), "")
    total = math.fsum(values)
    # The test examples are known to add to a plain difference of two numbers alone.
    if [weight for weight, _ in terms] != [1.0, -1.0]:
        return Margin(total)
    runs = [run for _, row in terms for run in row.runs if run.seed == seed]
    return Margin(total, [*map(strata, runs)])


def sooner(times: float, better: RowResults, than: RowResults, seed: int) -> Margin | str:
    """Return by how many rounds a row is sooner than another one at the other's number.

    Without that number it is later than every round.
    """
    ours, theirs = better.of_seed(seed), than.of_seed(seed)
    absent = why_absent(better, seed) or why_never(than, seed)
    if absent or ours is None or theirs is None:
        return absent
    reason = no_level(theirs)
    if reason:
        return f"{than.row}'s {words(than.metric)} {reason}: nothing can be sooner there"
    if in_last_alone(ours, theirs):
        return f"{better.row} has a model in the last round alone"
    rounding = rounding_of(ours, theirs, times)
    return Margin(rounds_sooner(ours, theirs, times), rounding=rounding)


def smoother(better: RowResults, than: RowResults, seed: int) -> Margin | str:
    """Return by how much less a row's number changes between evaluated rounds, in the second half of them."""
    changes = []
    for row in (than, better):
        run = row.of_seed(seed)
        if run is None or run.number is None:
            return why_never(better, seed) or why_never(than, seed)
        values = [*run.by_round.values()]
        if not 4 <= len(values) == len(run.points):
            return "a curve has fewer than four evaluated rounds, or gaps"
        second_half = values[len(values) // 2 :]
        changes.append(float(np.abs(np.diff(second_half)).mean()))
    return Margin(changes[0] - changes[1])


def series_margin(
    side: Callable[[Mapping[int, float]], float], since: int, row: RowResults, seed: int
) -> Margin | str:
    """Return how far a number by round is on the right side of a bound; a round from `since` on must have it."""
    run = row.of_seed(seed)
    if run is None:
        return why_absent(row, seed)
    by_round = {}  # as recorded, a share from 0 to 1: a bound says 0.3, not 30; the result is in points
    for point in run.points:
        value = run.value(point, row.metric)
        if value is not None:
            by_round[point.round] = value
    if len(by_round) < 2 or max(by_round) < since:
        return f"{row.row}'s records have no {words(row.metric)} by round"
    return Margin(scale_of(row.metric) * side(by_round))


def why_absent(row: RowResults, seed: int) -> str:
    """Return why a row never has a finished run; "" if it has one, or while its run is unfinished."""
    if seed in row.diverged:
        return f"{row.row} diverged in round {row.diverged[seed]['round']}"
    if seed in row.lacking:
        return f"{row.row}'s finished run has no model {row.lacking[seed]}"
    return ""


def why_never(row: RowResults, seed: int) -> str:
    """Return why a row can never have its number; "" if it has one, or while its run is unfinished."""
    absent = why_absent(row, seed)
    run = row.of_seed(seed)
    if absent or run is None or run.number is not None:
        return absent
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
    rows = []
    for number, verdict in enumerate(verdicts, 1):
        details = [f"in {verdict.holds} of {plural(verdict.n, 'seed')}" if verdict.n else ""]
        if verdict.unmeasured and verdict.status != "never":
            later = "cannot be" if verdict.why_not else "not measured yet"
            details.append(f"{verdict.unmeasured} {later}")
        beside = ", ".join(filter(None, [*details, verdict.unfit])) or verdict.why_not
        found = verdict.found
        seeds = [signed(value, verdict.metric) for value in found.by_seed.values()]
        p = TableCell(NONE, "one seed" if verdict.n == 1 else "")
        if found.interval is not None and verdict.p_holm is not None:
            p = TableCell(p_value(verdict.p_holm), f"over {found.interval.resampled}")
        row = [
            TableCell(f"{number}. {verdict.claim.says}", claim_in_words(verdict, columns)),
            TableCell(SAYS[verdict.status], beside, strong=verdict.status == "holds"),
            TableCell(
                " ".join(verdict.in_words).strip() or NONE,
                f"seeds: {', '.join(seeds)}" if verdict.n > 1 else "",
            ),
            p,
        ]
        rows.append(row)
    caption = "Each claim, its verdict, and the difference that it is about."
    return Table(caption, headings, rows, wordy=True)


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
