"""Whether what a paper says of two rows holds in our runs, and rounds and bytes to an accuracy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedskew.experiments.experiments import Claim, Experiment
from fedskew.report.gather import Gathered, Measured
from fedskew.report.statistics import (
    Interval,
    Strata,
    among_highest,
    bootstrap,
    holm,
    measure,
    signed_rank,
    strata,
)
from fedskew.report.units import chance_of, in_percent
from server_app.record import RoundRecord
from server_app.selection import select


@dataclass(frozen=True)
class Reached:
    """When a run first had an accuracy."""

    round: int
    bytes: int
    """Down and up until then, of the whole training, which rows that differ in what is deployed share."""


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
    p: float | None = None
    """Wilcoxon's signed-rank test, one-sided; None below six seeds."""
    p_holm: float | None = None

    @property
    def holds(self) -> int:
        """In how many seeds the claim holds."""
        return sum(margin > self.claim.by for margin in self.margins.values())

    @property
    def n(self) -> int:
        return len(self.margins)

    @property
    def status(self) -> str:
        """holds, mixed, fails or open."""
        if not self.n:
            return "open"
        return "holds" if self.holds == self.n else "mixed" if self.holds else "fails"

    @property
    def unit(self) -> str:
        return "rounds" if self.claim.sooner else "points" if in_percent(self.metric) else ""


def judge(gathered: Gathered) -> list[Verdict]:
    """Return what came of the experiment's claims; p-values are corrected for their number."""
    verdicts = [verdict(gathered, claim, number) for number, claim in enumerate(gathered.experiment.claims)]
    corrected = holm([judged.p for judged in verdicts])
    return [replace(judged, p_holm=p) for judged, p in zip(verdicts, corrected, strict=True)]


def verdict(gathered: Gathered, claim: Claim, number: int) -> Verdict:
    """Return what came of one claim; `number` seeds its resampling."""
    experiment = gathered.experiment
    columns = claim.columns or tuple(experiment.columns)
    metrics = {column: claim.metric or experiment.metric_of(column) for column in columns}
    selection = claim.selection or experiment.selection
    seeds = sorted({cell.seed for cell in gathered.cells})
    complete: dict[int, list[Pair]] = {}
    for seed in seeds:
        pairs = [pair(gathered, claim, column, seed, selection, metrics[column]) for column in columns]
        known = [measured for measured in pairs if measured is not None]
        if len(known) == len(columns):
            complete[seed] = known
    metric = claim.metric or (experiment.metric if len(set(metrics.values())) > 1 else metrics[columns[0]])
    if not complete:
        return Verdict(claim, metric, selection, columns, {}, float("nan"), len(seeds), None)
    by_column = list(zip(*complete.values(), strict=True))
    differences_LS = np.array([[measured.difference for measured in row] for row in by_column])
    among = claim.in_columns or len(columns)
    margins = dict(zip(complete, map(float, among_highest(differences_LS, among)), strict=True))
    interval = bootstrap(
        differences_LS, [[measured.strata for measured in row] for row in by_column], claim.by, among, number
    )
    estimate = float(among_highest(differences_LS.mean(1), among))
    p = signed_rank([margin - claim.by for margin in margins.values()])
    return Verdict(claim, metric, selection, columns, margins, estimate, len(seeds) - len(margins), interval, p)


@dataclass(frozen=True)
class Pair:
    """What a claim says of one column and seed, measured."""

    difference: float
    strata: tuple[Strata | None, Strata | None]
    """What the two numbers are made of; None where they are rounds."""


def pair(gathered: Gathered, claim: Claim, column: str, seed: int, selection: str, metric: str) -> Pair | None:
    """Return the two runs' difference; None where a run, or its number, is not there."""
    better, than = by_seed(gathered, claim.better, column, seed), by_seed(gathered, claim.than, column, seed)
    if better is None or than is None:
        return None
    measured = difference(claim, better, than, selection, metric)
    if measured is None:
        return None
    made_of = (None, None) if claim.sooner else (strata(better, selection, metric), strata(than, selection, metric))
    return Pair(measured, made_of)


def by_seed(gathered: Gathered, row: str, column: str, seed: int) -> Measured | None:
    """Return the finished run of one cell and seed; None where there is none."""
    return next((measured for measured in gathered.of(row, column) if measured.cell.seed == seed), None)


def difference(claim: Claim, better: Measured, than: Measured, selection: str, metric: str) -> float | None:
    """Return by how much one run is above the other, or how many rounds sooner it is there; never counts as one more
    round than were run."""
    if not claim.sooner:
        values = (measure(better, selection, metric), measure(than, selection, metric))
        return None if values[0] is None or values[1] is None else values[0] - values[1]
    if (target := measure(than, selection, metric)) is None:
        return None
    reached = reach(better, target, metric)
    return select(than.points, selection)[-1].round - (reached.round if reached else better.points[-1].round + 1)


def reach(measured: Measured, target: float, metric: str) -> Reached | None:
    """Return when a run first had a number of at least `target`; None is never. Only evaluated rounds are seen."""
    scale = 100 if in_percent(metric) else 1
    for point in measured.points:
        number = measured.number(point, metric)
        if number is not None and scale * number >= target:
            return Reached(point.round, bytes_until(measured.run.records, point.round))
    return None


def bytes_until(records: Sequence[RoundRecord], round: int) -> int:
    """Return the bytes sent both ways up to a round."""
    return sum(record.bytes_down + record.bytes_up for record in records if record.round <= round)


def reference(experiment: Experiment) -> str:
    """Return the row whose number the others are to reach: the stated one, FedAvg's, a claim's, or the first."""
    if experiment.reaches:
        return experiment.reaches
    for row in experiment.rows:
        if row.method == "fedavg" and not row.settings:
            return row.label
    return experiment.claims[0].than if experiment.claims else experiment.rows[0].label


def reached(gathered: Gathered, row: str, column: str) -> dict[int, Reached | None]:
    """Return by seed when a row first had the reference's number; the reference itself has it where it is selected,
    as in FedShift's Table 2. Seeds without either run are left out."""
    experiment, result = gathered.experiment, dict[int, Reached | None]()
    standard, metric = reference(experiment), experiment.metric_of(column)
    for measured in gathered.of(row, column):
        base = by_seed(gathered, standard, column, measured.cell.seed)
        target = measure(base, experiment.selection, metric) if base else None
        if base is None or target is None:
            continue
        if row == standard:
            selected = select(measured.points, experiment.selection)[-1].round
            result[measured.cell.seed] = Reached(selected, bytes_until(measured.run.records, selected))
        else:
            result[measured.cell.seed] = reach(measured, target, metric)
    return result


def takes_training(gathered: Gathered, column: str) -> bool:
    """Return whether the reference is above chance, and above what it had in its first evaluated round, in every seed:
    only then the rounds until it is reached mean anything."""
    metric = gathered.experiment.metric_of(column)
    for measured in gathered.of(reference(gathered.experiment), column):
        target = measure(measured, gathered.experiment.selection, metric)
        chance = chance_of(metric, measured.run.settings.data.num_classes)
        if target is None or (chance is not None and target <= chance + 1e-9):
            return False
        first = reach(measured, target, metric)
        if first is not None and len(measured.points) > 1 and first.round == measured.points[0].round:
            return False
    return True


def mean_or_never(reached: Sequence[Reached | None], what: str) -> float | None:
    """Return the mean of rounds or bytes; None where a seed never got there."""
    known = [getattr(reach, what) for reach in reached if reach is not None]
    return float(np.mean(known)) if known and len(known) == len(reached) else None
