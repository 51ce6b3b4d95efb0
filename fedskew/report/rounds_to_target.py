"""Levels: when a row first had a number, in rounds and bytes, and which numbers are worth reaching."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedskew.experiments.experiments import Experiment
from fedskew.report.format import chance_of, in_percent
from fedskew.report.inference import measure
from fedskew.report.results import ExperimentResults, SeedResult
from server_app.record import RoundRecord
from server_app.round_selection import select


@dataclass(frozen=True)
class Reached:
    """When a run first had an accuracy."""

    round: int
    bytes: int
    """Down and up until then, of the whole training, which rows that differ in what is deployed share."""


def by_seed(results: ExperimentResults, row: str, column: str, seed: int) -> SeedResult | None:
    """Return the finished run of one cell and seed; None where there is none."""
    return next(
        (measured for measured in results.of(row, column) if measured.cell.seed == seed), None
    )


def reach(measured: SeedResult, target: float, metric: str) -> Reached | None:
    """Return when a run first had a number of at least `target`; None is never. Only evaluated rounds are seen."""
    scale = 100 if in_percent(metric) else 1
    for point in measured.points:
        number = measured.number(point, metric)
        if number is not None and scale * number >= target:
            return Reached(point.round, bytes_until(measured.run.records, point.round))
    return None


def ends_below(measured: SeedResult, target: float, selection: str, metric: str) -> bool:
    """Return whether a run's own selected number is below `target`, so that having had it before is no gain."""
    own = measure(measured, selection, metric)
    return own is None or own < target


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


def reached(results: ExperimentResults, row: str, column: str) -> dict[int, Reached | None]:
    """Return by seed when a row first had the reference's number; the reference itself has it where it is selected,
    as in FedShift's Table 2. Seeds without either run are left out."""
    experiment, result = results.experiment, dict[int, Reached | None]()
    standard, metric = reference(experiment), experiment.metric_of(column)
    for measured in results.of(row, column):
        base = by_seed(results, standard, column, measured.cell.seed)
        target = measure(base, experiment.selection, metric) if base else None
        if base is None or target is None:
            continue
        if row == standard:
            selected = select(measured.points, experiment.selection)[-1].round
            result[measured.cell.seed] = Reached(
                selected, bytes_until(measured.run.records, selected)
            )
        else:
            result[measured.cell.seed] = reach(measured, target, metric)
    return result


def first_had(results: ExperimentResults, column: str) -> dict[int, Reached | None]:
    """Return by seed when the reference itself first had its number, before the round that it is selected in or in it:
    a speed-up is over that round."""
    experiment, metric = results.experiment, results.experiment.metric_of(column)
    runs = results.of(reference(experiment), column)
    levels = {run.cell.seed: (run, measure(run, experiment.selection, metric)) for run in runs}
    return {
        seed: reach(run, level, metric)
        for seed, (run, level) in levels.items()
        if level is not None
    }


def seeds_below(results: ExperimentResults, row: str, column: str) -> list[int]:
    """Return the seeds in which a row ends below the reference's number: there it earns no speed-up."""
    experiment, below = results.experiment, []
    metric, selection = experiment.metric_of(column), experiment.selection
    for measured in results.of(row, column):
        base = by_seed(results, reference(experiment), column, measured.cell.seed)
        target = measure(base, selection, metric) if base else None
        if target is not None and ends_below(measured, target, selection, metric):
            below.append(measured.cell.seed)
    return below


def in_last_alone(measured: SeedResult, than: SeedResult) -> bool:
    """Return whether a row has a model in the last round alone, as CCVR's, while the other has earlier ones."""
    return len(measured.points) == 1 < len(than.points)


def no_level(measured: SeedResult, selection: str, metric: str) -> str:
    """Return why a run's number is no level that others could be sooner at: it is not above chance, or not above what
    the run had in its first evaluated round. Empty where it is one."""
    target = measure(measured, selection, metric)
    chance = chance_of(metric, measured.run.settings.data.num_classes)
    if target is not None and chance is not None and target <= chance + 1e-9:
        return "is not above chance"
    first = reach(measured, target, metric) if target is not None else None
    if first is not None and len(measured.points) > 1 and first.round == measured.points[0].round:
        return "is had in the first evaluated round"
    return "" if target is not None else "is none"


def takes_training(results: ExperimentResults, column: str) -> bool:
    """Return whether the reference's number is a level worth reaching in every seed."""
    selection, metric = results.experiment.selection, results.experiment.metric_of(column)
    return not any(
        no_level(run, selection, metric)
        for run in results.of(reference(results.experiment), column)
    )


def mean_or_never(reached: Sequence[Reached | None], what: str) -> float | None:
    """Return the mean of rounds or bytes; None where a seed never got there."""
    known = [getattr(reach, what) for reach in reached if reach is not None]
    return float(np.mean(known)) if known and len(known) == len(reached) else None
