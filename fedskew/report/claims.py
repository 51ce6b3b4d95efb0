"""Verdicts on an experiment's claims: whether what a paper says of its rows holds in these runs.

A claim becomes parts: a difference by seed, and the margin that it must exceed. One rule judges the parts of every form.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from fedskew.experiments.claims import Better, Claim, Contrast, HeldBy, Series
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
    compare,
    holm,
    is_significant,
    measure,
    p_of,
    p_of_several,
    seeds_to_decide,
    strata,
)
from fedskew.report.results import ExperimentResults, SeedResult
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
class Margin:
    """One part of a claim in one seed, measured."""

    difference: float
    strata: Pair = (None, None)
    """Test examples of the two numbers; None where there are none to draw, as of rounds."""
    rounding: float = 0.0
    """Standard deviation of what rounding adds to the difference: rounds are known up to the last evaluation."""


@dataclass(frozen=True)
class Part:
    """One difference that a claim says to be above a margin: of a column, of a step, or of a whole line."""

    name: str
    by: float
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
    judged: bool = True
    """Whether as many parts as the claim needs have no diverged seed."""
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


def judge(results: ExperimentResults) -> list[Verdict]:
    """Return the verdicts on the experiment's claims.

    A claim holds only where its p-value, corrected for the number of claims that are judged, agrees.
    """
    verdicts = corrected([judge_claim(results, claim) for claim in results.experiment.claims])
    return [
        replace(one, status="unclear")
        if one.status == "holds" and one.n and not is_significant(one.p_holm)
        else one
        for one in verdicts
    ]


def corrected(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Return the verdicts with p-values that are corrected for how many there are (Holm 1979)."""
    p_values = [p_of(verdict.interval) if verdict.judged else None for verdict in verdicts]
    return [replace(verdict, p_holm=p) for verdict, p in zip(verdicts, holm(p_values), strict=True)]


def judge_claim(results: ExperimentResults, claim: Claim) -> Verdict:
    """Return the verdict on one claim, its p-value not corrected yet."""
    if isinstance(claim, HeldBy):
        return held(claim)
    experiment = results.experiment
    columns = claim.columns or tuple(experiment.columns)
    metrics = {column: metric_of(results, claim, column) for column in columns}
    selection = claim.selection or experiment.selection
    parts = parts_of(results, claim, columns)
    among = claim.in_columns or len(parts)

    diverged, at_chance = {}, {}
    for column in columns:
        of_rows = [diverged_words(results, row, column) for row in claim.rows]
        if any(of_rows):
            diverged[column] = ", ".join(filter(None, of_rows))
        elif isinstance(claim, Better) and not claim.within:
            beside = chance_words(results, claim.better, column, metrics[column], selection)
            if beside:
                at_chance[column] = f"{claim.better} is no better than chance ({beside})"
    sound = [part for part in parts if not diverged.keys() & {*part.columns}]
    fit = [part for part in sound if not at_chance.keys() & {*part.columns}]
    # Parts that cannot count for the claim stay where it needs them: it can still be refuted there.
    counted = next((some for some in (fit, sound) if len(some) >= among), parts)
    unfit = {**diverged, **at_chance}

    complete: dict[int, list[Margin]] = {}
    reasons = []  # per incomplete seed; empty while one of its runs is unfinished
    for seed in results.seeds:
        measured = [part.measure(seed) for part in counted]
        margins = [margin for margin in measured if isinstance(margin, Margin)]
        if len(margins) == len(counted):
            complete[seed] = margins
        else:
            known = [reason for reason in measured if reason and isinstance(reason, str)]
            reasons.append(known[0] if known else "")
    why_not = "; ".join(dict.fromkeys(reasons)) if all(reasons) else ""

    one_metric = len(set(metrics.values())) == 1
    verdict = Verdict(
        claim=claim,
        metric=metrics[columns[0]] if one_metric else experiment.metric,
        selection=selection,
        columns=columns,
        status="open",
        unmeasured=len(reasons),
        parts=len(parts),
        why_not=why_not,
        unfit="; ".join(f"{named(column)}{unfit[column]}" for column in columns if column in unfit),
        judged=len(sound) >= among,
    )
    if complete:
        comparisons = [
            compared(claim, part, {seed: margins[number] for seed, margins in complete.items()})
            for number, part in enumerate(counted)
        ]
        verdict = decided(verdict, counted, comparisons, among)
    elif why_not:
        verdict = replace(verdict, status="never")
    if not verdict.judged:
        return replace(verdict, status="never")
    if verdict.status == "holds" and len(fit) < among:
        return replace(verdict, status="unclear")
    return verdict


def held(claim: HeldBy) -> Verdict:
    """Return the verdict on an equation."""
    return Verdict(claim, status="holds", why_not=f"in closed form; {claim.held_by} checks it")


def compared(claim: Claim, part: Part, margins: Mapping[int, Margin]) -> Comparison:
    """Return the comparison of a part over the seeds."""
    # The names seed the bootstrap's draws: two rows have the interval that they have among the differences.
    names = (" ".join(claim.rows), part.name)
    if isinstance(claim, Better) and not claim.within:
        names = (claim.better, claim.than)
    differences = {seed: margin.difference for seed, margin in margins.items()}
    pairs = [margin.strata for margin in margins.values()]
    rounding = max(margin.rounding for margin in margins.values())
    return compare(differences, pairs, names, part.by, rounding)


def decided(
    verdict: Verdict, parts: Sequence[Part], comparisons: Sequence[Comparison], among: int
) -> Verdict:
    """Return the verdict by the one rule, from every part's own interval.

    A claim holds where every part's interval lies above its margin, which needs no correction for their number (an
    intersection-union test), or where `among` of them do. It does not hold where so many lie below that it cannot. Else
    it is not distinguishable: one seed always is, as its interval says nothing about other seeds.

    The numbers shown are those of the part with the lowest lower end, beside the margins; of a claim that does not
    hold, of the part with the lowest upper end, which refutes it. With `among` parts it is the among-th of the highest.
    The p-value is that of the whole claim, see `p_of_several`.
    """
    margins = [part.by for part in parts]
    pairs = list(zip(comparisons, margins, strict=True))
    sides = [comparison.verdict(by) for comparison, by in pairs]
    refuted = [is_refuted(comparison, by) for comparison, by in pairs]
    holds = sides.count("above") >= among
    fails = not holds and sum(refuted) > len(parts) - among

    ends = []
    for comparison, by in pairs:
        interval = comparison.interval
        low = comparison.estimate if interval is None else interval.low
        high = comparison.estimate if interval is None else interval.high
        ends.append((high if fails else low) - by)
    # Fewer than `among` parts are not refuted where it fails, so that the chosen one is refuted.
    from_highest = sorted(range(len(parts)), key=lambda one: (fails and refuted[one], -ends[one]))
    chosen = from_highest[among - 1]
    interval = comparisons[chosen].interval
    if interval is not None:
        interval = replace(interval, p=p_of_several(comparisons, margins, among))

    more_seeds = None
    if not holds and not fails:
        # It fails as soon as one part does, and holds once the last one does.
        failing = [pair for pair in pairs if pair[0].estimate <= pair[1]]
        unclear = [pair for pair, side in zip(pairs, sides, strict=True) if side == "unclear"]
        needed = [seeds_to_decide(*pair) for pair in failing or unclear]
        known = [number for number in needed if number is not None]
        if known:
            more_seeds = min(known) if failing else max(known)
    return replace(
        verdict,
        status="holds" if holds else "fails" if fails else "unclear",
        deciding=parts[chosen].name,
        by=margins[chosen],
        margins=comparisons[chosen].by_seed,
        estimate=comparisons[chosen].estimate,
        interval=interval,
        above=sum(comparison.estimate > by for comparison, by in pairs),
        more_seeds=more_seeds,
    )


def is_refuted(comparison: Comparison, by: float) -> bool:
    """Return whether no part of a difference's interval lies above its margin, over several seeds.

    A difference that is the margin itself in every seed is refuted as well, whatever the rounding of rounds adds.
    """
    interval = comparison.interval
    if comparison.n < 2 or interval is None:
        return False
    is_tie = set(comparison.by_seed.values()) == {by} and comparison.rounding > 0
    return interval.high <= by or is_tie


# ---- the parts of each form ------------------------------------------------------------------------------------------


def metric_of(results: ExperimentResults, claim: Claim, column: str) -> str:
    """Return the number that a claim compares in a column."""
    if isinstance(claim, Series):
        return claim.series
    return claim.metric or results.experiment.metric_of(column)


def parts_of(results: ExperimentResults, claim: Claim, columns: tuple[str, ...]) -> list[Part]:
    """Return the differences that a claim says to be above their margins."""
    match claim:
        case Better():
            return [part for column in columns for part in better_parts(results, claim, column)]
        case Contrast():
            return contrast_parts(results, claim, columns)
        case Series():
            return [part for column in columns for part in series_parts(results, claim, column)]
    raise TypeError(claim)


def better_parts(results: ExperimentResults, claim: Better, column: str) -> list[Part]:
    """Return one column's difference of two rows; of equivalent rows both differences (two one-sided tests)."""
    first, second = claim.better, claim.than
    if claim.within:
        parts = []
        for better, than in ((first, second), (second, first)):
            name = f"{named(column)}{better} no more than {claim.within:g} below {than}"
            terms = [(1.0, better, column), (-1.0, than, column)]
            parts.append(weighted(results, claim, name, -claim.within, terms))
        return parts
    name = column or f"{first} beside {second}"
    if claim.sooner or claim.smoother:
        return [curves(results, claim, name, column)]
    terms = [(1.0, first, column), (-1.0, second, column)]
    return [weighted(results, claim, name, claim.by, terms)]


def weighted(
    results: ExperimentResults,
    claim: Claim,
    name: str,
    by: float,
    terms: Sequence[tuple[float, str, str]],
) -> Part:
    """Return a weighted sum of numbers as a part; `terms` are weight, row and column."""
    selection = claim.selection or results.experiment.selection

    def total(seed: int) -> Margin | str:
        values, examples, is_open = [], [], False
        for weight, row, column in terms:
            metric = metric_of(results, claim, column)
            reason = why_never(results, row, column, seed, selection, metric)
            if reason:
                return reason
            measured = by_seed(results, row, column, seed)
            number = None if measured is None else measure(measured, selection, metric)
            if measured is None or number is None:
                is_open = True
                continue
            values.append(weight * number)
            examples.append(strata(measured, selection, metric))
        if is_open:
            return ""
        difference = math.fsum(values)
        # The test examples are known to add to a plain difference of two numbers alone.
        if [weight for weight, _, _ in terms] == [1.0, -1.0]:
            return Margin(difference, (examples[0], examples[1]))
        return Margin(difference)

    columns = tuple(dict.fromkeys(column for _, _, column in terms))
    return Part(name, by, columns, total)


def curves(results: ExperimentResults, claim: Better, name: str, column: str) -> Part:
    """Return by how many rounds a row is sooner than another one, or by how much its curve is smoother."""
    metric = metric_of(results, claim, column)
    selection = claim.selection or results.experiment.selection

    def difference(seed: int) -> Margin | str:
        for row in claim.rows:
            # A row that never has the number is no obstacle: it counts as later than every round.
            counts = row == claim.than or seed in results.diverged(row, column)
            reason = why_never(results, row, column, seed, selection, metric) if counts else ""
            if reason:
                return reason
        better = by_seed(results, claim.better, column, seed)
        than = by_seed(results, claim.than, column, seed)
        if better is None or than is None:
            return ""
        if claim.smoother:
            ours, theirs = roughness_of(better, metric), roughness_of(than, metric)
            if ours is None or theirs is None:
                return "a curve has fewer than four evaluated rounds, or gaps"
            return Margin(theirs - ours)
        reason = no_level(than, selection, metric)
        if reason:
            return f"{claim.than}'s {words(metric)} {reason}: nothing can be sooner there"
        if in_last_alone(better, than):
            return f"{claim.better} has a model in the last round alone"
        sooner = rounds_sooner(better, than, selection, metric, claim.times)
        return Margin(sooner, rounding=rounding_of(better, than, claim.times))

    return Part(name, claim.by, (column,), difference)


def roughness_of(measured: SeedResult, metric: str) -> float | None:
    """Return the mean absolute change of a number between evaluated rounds, over the second half of them.

    None where the run has fewer than four evaluated rounds, or a round without the number.
    """
    values = [measured.number(point, metric) for point in measured.points]
    known = [value for value in values if value is not None]
    if len(known) < max(4, len(values)):
        return None
    changes = np.abs(np.diff(known[len(known) // 2 :]))
    return float(changes.mean()) * (100 if in_percent(metric) else 1)


def contrast_parts(
    results: ExperimentResults, claim: Contrast, columns: tuple[str, ...]
) -> list[Part]:
    """Return what a shape over the columns asks of every row, or of its difference from another one."""
    shapes: list[tuple[str, float, Sequence[float]]] = []
    """Per part its name, its margin and the weight of each column."""
    number = len(columns)
    identity = np.eye(number)
    if claim.trend:
        sign = 1.0 if claim.trend == "rises" else -1.0
        # The columns count as equally far apart; the sum is the fitted line's rise from the first to the last.
        centered = np.arange(number) - (number - 1) / 2
        line = sign * centered * (number - 1) / (centered**2).sum()
        shapes.append((claim.trend, claim.by, line))
        for step, (before, after) in enumerate(pairwise(columns)):
            if not math.isinf(claim.slack):
                weights = sign * (identity[step + 1] - identity[step])
                shapes.append((f"{before} to {after}", -claim.slack, weights))
    elif claim.peak:
        top = columns.index(claim.peak)
        for place, column in enumerate(columns):
            if column != claim.peak:
                name = f"{claim.peak} above {column}"
                shapes.append((name, claim.by, identity[top] - identity[place]))
    else:
        start, bend, end = columns
        shapes.append((f"falls from {bend} to {end}", claim.by, (0.0, 1.0, -1.0)))
        shapes.append((f"falls more than from {start} to {bend}", 0.0, (-1.0, 2.0, -1.0)))

    signs = ((1.0, ""), (-1.0, claim.than))[: 2 if claim.than else 1]
    parts = []
    for row in claim.over:
        for name, by, weights in shapes:
            terms = [
                (side * float(weight), than or row, column)
                for side, than in signs
                for weight, column in zip(weights, columns, strict=True)
                if weight
            ]
            # The row that is above comes first, as in a difference of two rows.
            terms.sort(key=lambda term: -term[0])
            label = f"{row} minus {claim.than}" if claim.than else row
            parts.append(weighted(results, claim, f"{label}: {name}", by, terms))
    return parts


def series_parts(results: ExperimentResults, claim: Series, column: str) -> list[Part]:
    """Return what a number by round stays below, by how much it falls, and what it stays above."""

    def part(what: str, margin: Callable[[Mapping[int, float]], float]) -> Part:
        def of_seed(seed: int) -> Margin | str:
            measured = by_seed(results, claim.row, column, seed)
            if measured is None:
                return ""
            numbers = {
                point.round: measured.number(point, claim.series) for point in measured.points
            }
            known = {round: value for round, value in numbers.items() if value is not None}
            if len(known) < 2 or max(known) < claim.by_round:
                return f"{claim.row}'s records have no {words(claim.series)} by round"
            return Margin(margin(known))

        return Part(f"{named(column)}{words(claim.series)} {what}", 0.0, (column,), of_seed)

    parts = []
    below, above, first = claim.below, claim.stays_above, claim.by_round
    if below is not None:
        what = f"below {below:g} from round {first} on"
        late = lambda known: below - max(known[round] for round in known if round >= first)  # noqa: E731
        parts.append(part(what, late))
    if claim.falls:
        parts.append(part("falls", lambda known: known[min(known)] - known[max(known)]))
    if above is not None:
        parts.append(part(f"above {above:g}", lambda known: min(known.values()) - above))
    return parts


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
    metric = verdict.metric
    cells = [TableCell(f"{number}. {verdict.claim.says}", claim_in_words(verdict, columns))]
    unmeasured = ""
    if verdict.unmeasured:
        later = "cannot be" if verdict.why_not else "not measured yet"
        unmeasured = f"{verdict.unmeasured} {later}"
    missing = "; ".join(filter(None, (unmeasured if verdict.judged else "", verdict.unfit)))
    if not verdict.n:
        return [*cells, TableCell(SAYS[verdict.status], missing), TableCell(NONE), TableCell(NONE)]

    seeds = f"in {verdict.holds} of {plural(verdict.n, 'seed')}"
    if missing:
        seeds += f", {missing}"
    cells.append(TableCell(SAYS[verdict.status], seeds, strong=verdict.status == "holds"))
    difference = f"{signed(verdict.estimate, metric)} {verdict.unit}"
    p = TableCell(NONE, "one seed" if verdict.n == 1 else "")
    if interval := verdict.interval:
        difference += f" [{signed(interval.low, metric)}, {signed(interval.high, metric)}]"
        if verdict.p_holm is not None:
            p = TableCell(p_value(verdict.p_holm), f"over {interval.resampled}")
    margins = [signed(margin, metric) for margin in verdict.margins.values()]
    by_seeds = f"seeds: {', '.join(margins)}" if verdict.n > 1 else ""
    return [*cells, TableCell(difference, by_seeds), p]


def claim_in_words(verdict: Verdict, columns: Sequence[str]) -> str:
    """Return the rows compared, the metric, the selected round and the columns, in words."""
    claim = verdict.claim
    if isinstance(claim, HeldBy):
        return claim.held_by
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
    def status(self) -> str:
        """The verdict in words."""
        if len(self.hashes) > 1:
            return "does not hold"
        return "not measured yet" if self.missing or not self.hashes else "holds"


def judge_models(results: ExperimentResults) -> list[ModelVerdict]:
    """Return the verdict on each row of `same_model`."""
    verdicts = []
    for row in results.experiment.same_model:
        hashes: dict[str, list[str]] = {}
        missing = 0
        for cell in results.cells:
            if cell.row != row:
                continue
            summary = results.runs[cell.run.run_id].summary or {}
            code = summary.get("model-hashes", {}).get(cell.deployed)
            if code is None:
                missing += 1
            else:
                where = f"{cell.column}, " if cell.column else ""
                hashes.setdefault(code, []).append(f"{where}seed {cell.seed}")
        verdicts.append(ModelVerdict(row, hashes, missing))
    return verdicts


def models_in_words(verdicts: Sequence[ModelVerdict]) -> str:
    """Return the verdicts, a sentence per row."""
    sentences = []
    for judged in verdicts:
        runs = sum(map(len, judged.hashes.values()))
        models = "one model" if len(judged.hashes) == 1 else f"{len(judged.hashes)} models"
        finished = f"{runs} of {runs + judged.missing} runs"
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
