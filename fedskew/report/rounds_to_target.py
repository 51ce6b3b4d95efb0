"""Rounds and bytes until a row reaches a target: the reference row's number.

A target counts as worth reaching when it is above chance and takes training.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedskew.experiments.claims import Better
from fedskew.experiments.experiments import Experiment
from fedskew.formatting import in_bytes
from fedskew.report.format import (
    NONE,
    SELECTION_WORDS,
    Table,
    TableCell,
    in_percent,
    words,
)
from fedskew.report.inference import measure
from fedskew.report.results import ExperimentResults, SeedResult
from fedskew.report.unfit_rows import beside_chance, seeds_words, tested_in
from server_app.record import RoundRecord
from server_app.round_selection import select


@dataclass(frozen=True)
class Reached:
    """When a run first had a number."""

    round: int
    bytes: int
    """Down and up until then, of the training, which rows that differ in what is deployed share."""


def by_seed(results: ExperimentResults, row: str, column: str, seed: int) -> SeedResult | None:
    """Return the finished run of one cell and seed; None where there is none."""
    for measured in results.of(row, column):
        if measured.cell.seed == seed:
            return measured
    return None


def reach(measured: SeedResult, target: float, metric: str) -> Reached | None:
    """Return when a run first had at least `target`, in evaluated rounds; None is never."""
    scale = 100 if in_percent(metric) else 1
    for point in measured.points:
        number = measured.number(point, metric)
        if number is not None and scale * number >= target:
            sent = bytes_until(measured.run.records, point.round)
            return Reached(point.round, sent)
    return None


def ends_below(measured: SeedResult, target: float, selection: str, metric: str) -> bool:
    """Return whether a run's own selected number is below `target`: then reaching it is no gain."""
    own = measure(measured, selection, metric)
    return own is None or own < target


def bytes_until(records: Sequence[RoundRecord], round: int) -> int:
    """Return the bytes sent both ways up to a round."""
    sent = 0
    for record in records:
        if record.round <= round:
            sent += record.bytes_down + record.bytes_up
    return sent


def reference(experiment: Experiment) -> str:
    """Return the row that the others are compared with.

    That is the experiment's own choice, else plain FedAvg, else a claim's row, else the first.
    """
    if experiment.reaches:
        return experiment.reaches
    for row in experiment.rows:
        if row.method == "fedavg" and not row.settings:
            return row.label
    than = [claim.than for claim in experiment.claims if isinstance(claim, Better)]
    return than[0] if than else experiment.rows[0].label


def target_of(results: ExperimentResults, column: str, seed: int) -> float | None:
    """Return the reference's number in a column and seed; None without its run."""
    experiment = results.experiment
    base = by_seed(results, reference(experiment), column, seed)
    if base is None:
        return None
    return measure(base, experiment.selection, experiment.metric_of(column))


def reached(results: ExperimentResults, row: str, column: str) -> dict[int, Reached | None]:
    """Return by seed when a row first had the reference's number.

    The reference itself has it in the round that is selected, as in FedShift's Table 2. Seeds without either run are
    left out.
    """
    experiment = results.experiment
    rounds: dict[int, Reached | None] = {}
    for measured in results.of(row, column):
        seed = measured.cell.seed
        target = target_of(results, column, seed)
        if target is None:
            continue
        if row == reference(experiment):
            selected = select(measured.points, experiment.selection)[-1].round
            rounds[seed] = Reached(selected, bytes_until(measured.run.records, selected))
        else:
            rounds[seed] = reach(measured, target, experiment.metric_of(column))
    return rounds


def first_had(results: ExperimentResults, column: str) -> dict[int, Reached | None]:
    """Return by seed when the reference itself first had its number, at the latest in its selected round.

    A speed-up is over that round.
    """
    experiment = results.experiment
    metric = experiment.metric_of(column)
    rounds: dict[int, Reached | None] = {}
    for run in results.of(reference(experiment), column):
        target = measure(run, experiment.selection, metric)
        if target is not None:
            rounds[run.cell.seed] = reach(run, target, metric)
    return rounds


def seeds_below(results: ExperimentResults, row: str, column: str) -> list[int]:
    """Return the seeds in which a row ends below the reference's number: there it earns no speed-up."""
    selection = results.experiment.selection
    metric = results.experiment.metric_of(column)
    below = []
    for measured in results.of(row, column):
        target = target_of(results, column, measured.cell.seed)
        if target is not None and ends_below(measured, target, selection, metric):
            below.append(measured.cell.seed)
    return below


def in_last_alone(measured: SeedResult, than: SeedResult) -> bool:
    """Return whether a row has a model in the last round alone, as CCVR has, while the other has earlier ones."""
    return len(measured.points) == 1 < len(than.points)


def no_level(measured: SeedResult, selection: str, metric: str) -> str:
    """Return why a run's number is no target that others could reach sooner; empty where it is one.

    It is none where it is not above chance, or where the run had it in its first evaluated round.
    """
    target = measure(measured, selection, metric)
    if target is None:
        return "is none"
    if beside_chance(target, metric, tested_in([measured], selection)):
        return "is not above chance"
    if len(measured.points) == 1:
        return ""
    first = reach(measured, target, metric)
    if first is not None and first.round == measured.points[0].round:
        return "is had in the first evaluated round"
    return ""


def takes_training(results: ExperimentResults, column: str) -> bool:
    """Return whether the reference's number is a target worth reaching in every seed."""
    selection = results.experiment.selection
    metric = results.experiment.metric_of(column)
    runs = results.of(reference(results.experiment), column)
    return not any(no_level(run, selection, metric) for run in runs)


def rounds_sooner(
    better: SeedResult, than: SeedResult, selection: str, metric: str, times: float = 1
) -> float:
    """Return the rounds that `than` needs for its own number, less `times` those that `better` needs for it.

    A run that never has it, or that ends below it, counts as one more round than were run: a number that is lost again
    is no gain.
    """
    target = measure(than, selection, metric)
    assert target is not None  # no_level has refused a run without a number

    ours = reach(better, target, metric)
    if ours is None or ends_below(better, target, selection, metric):
        our_round = round_of_never(better)
    else:
        our_round = ours.round

    theirs = reach(than, target, metric)
    their_round = theirs.round if theirs else select(than.points, selection)[-1].round
    return their_round - times * our_round


def round_of_never(measured: SeedResult) -> int:
    """Return the round that stands for never: one after the run's last one.

    A run that ended early counts as one with all rounds of its settings: to end early is no way to be sooner.
    """
    if measured.run.ended:
        return measured.run.settings.general.rounds + 1
    return measured.points[-1].round + 1


def rounding_of(better: SeedResult, than: SeedResult, times: float = 1.0) -> float:
    """Return the standard deviation that rounding adds to `than`'s rounds less `times` those of `better`.

    A number that is first seen in one evaluated round was reached at any time since the one before, so that its round
    is uniform over the g rounds between, with the variance g^2 / 12.
    """
    gaps = [measured.points[-1].round / len(measured.points) for measured in (better, than)]
    ours, theirs = gaps
    return math.sqrt(((times * ours) ** 2 + theirs**2) / 12)


def mean_or_never(reached: Sequence[Reached | None], what: str) -> float | None:
    """Return the mean of `what`, round or bytes; None where a seed never reached the target."""
    values = []
    for reach in reached:
        if reach is None:
            return None
        values.append(getattr(reach, what))
    return float(np.mean(values)) if values else None


def reach_table(results: ExperimentResults) -> Table:
    """Return the rounds and bytes that each row needs for the reference's number."""
    experiment = results.experiment
    columns = list(experiment.columns)
    rows = []
    for row in experiment.rows:
        cells = [column_reach_cell(results, row.label, column) for column in columns]
        rows.append([TableCell(row.label), *cells])

    selected = SELECTION_WORDS[experiment.selection]
    caption = (
        f"Rounds until {reference(experiment)}'s {words(experiment.metric)} ({selected}) is reached, "
        "mean over seeds; below, speed-up and bytes sent both ways until then by the whole training."
    )
    headings = [TableCell("method")]
    headings += [TableCell(column or "rounds") for column in columns]
    return Table(caption, headings, rows)


def column_reach_cell(results: ExperimentResults, row: str, column: str) -> TableCell:
    """Return a row's cell of `reach_table`."""
    standard = reference(results.experiment)
    if results.diverged(row, column):
        return TableCell("diverged", seeds_words(results, row, column))
    for run in results.of(row, column):
        than = by_seed(results, standard, column, run.cell.seed)
        if than is not None and in_last_alone(run, than):
            return TableCell(NONE, "a model in the last round alone")
    return reach_cell(
        reached(results, row, column),
        first_had(results, column),
        fair=takes_training(results, column),
        standard=row == standard,
        below=seeds_below(results, row, column),
    )


def reach_cell(
    by_seed: Mapping[int, Reached | None],
    base: Mapping[int, Reached | None],
    fair: bool = True,
    standard: bool = False,
    below: Sequence[int] = (),
) -> TableCell:
    """Return mean rounds, and below them the speed-up and the bytes.

    Args:
        by_seed: when the row reached the target.
        base: when the reference first had it; a speed-up is over that round.
        fair: whether the target takes training; else nothing is shown of a row that reached it.
        standard: whether the row is the reference itself: its first round then stands for the speed-up.
        below: the seeds in which the row ends below the target. It had the number and lost it again, so that it has
            no speed-up.
    """
    if not by_seed:
        return TableCell(NONE)
    ours = list(by_seed.values())
    never = sum(reach is None for reach in ours)
    if never == len(ours):
        return TableCell("never", f"in {never} seeds" if never > 1 else "")
    if never:
        rounds_by_seed = ", ".join("never" if reach is None else str(reach.round) for reach in ours)
        return TableCell(rounds_by_seed, f"by seed; never in {never} of {len(ours)}")
    if any(reach is not None and reach.round == 0 for reach in [*ours, *base.values()]):
        return TableCell(NONE, "without rounds")
    if not fair:
        return TableCell(NONE, "a level that is had at once, or by chance")

    rounds = mean_or_never(ours, "round")
    sent = mean_or_never(ours, "bytes")
    first = mean_or_never([base[seed] for seed in by_seed], "round")
    assert rounds is not None and sent is not None and first is not None
    if standard:
        beside = f"first in {in_rounds(first)}"
    elif below and len(ours) > 1:
        beside = f"ends below it in {len(below)} of {len(ours)} seeds"
    elif below:
        beside = "ends below it"
    else:
        beside = f"{first / rounds:.2f}\N{MULTIPLICATION SIGN}"
    return TableCell(in_rounds(rounds), f"{beside}, {in_bytes(sent)}")


def in_rounds(rounds: float) -> str:
    """Return a mean of rounds."""
    return f"{rounds:.1f}".removesuffix(".0")
