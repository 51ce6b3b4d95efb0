"""Rounds and bytes until a row reaches a target: the reference row's number.

A target counts as worth reaching when it is above chance and takes training.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from fedskew.experiments.claims import Better
from fedskew.experiments.experiments import Experiment
from fedskew.formatting import in_bytes, plural
from fedskew.report.format import NONE, SELECTION_WORDS, Table, TableCell, in_percent, words
from fedskew.report.inference import measure
from fedskew.report.results import ExperimentResults, SeedResult
from fedskew.report.unfit_rows import beside_chance, seeds_words, tested_in
from server_app.record import RoundRecord
from server_app.round_selection import select


def by_seed(results: ExperimentResults, row: str, column: str, seed: int) -> SeedResult | None:
    """Return the finished run of one cell and seed; None where there is none."""
    of_seed = (one for one in results.of(row, column) if one.cell.seed == seed)
    return next(of_seed, None)


def reach(measured: SeedResult, target: float, metric: str) -> int | None:
    """Return the evaluated round in which a run first had at least `target`; None is never."""
    scale = 100 if in_percent(metric) else 1
    for point in measured.points:
        number = measured.number(point, metric)
        if number is not None and scale * number >= target:
            return point.round
    return None


def ends_below(measured: SeedResult, target: float, selection: str, metric: str) -> bool:
    """Return whether a run's own selected number is below `target`: then reaching it is no gain."""
    own = measure(measured, selection, metric)
    return own is None or own < target


def bytes_until(records: Sequence[RoundRecord], round: int) -> int:
    """Return the bytes sent both ways up to a round, of the training, which several rows can share."""
    until = [record for record in records if record.round <= round]
    return sum(record.bytes_down + record.bytes_up for record in until)


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


def targets(results: ExperimentResults, column: str) -> dict[int, float]:
    """Return the reference's number by seed."""
    experiment = results.experiment
    numbers = {}
    for run in results.of(reference(experiment), column):
        number = measure(run, experiment.selection, experiment.metric_of(column))
        if number is not None:
            numbers[run.cell.seed] = number
    return numbers


def reached(results: ExperimentResults, row: str, column: str) -> dict[int, int | None]:
    """Return by seed the round in which a row first had the reference's number; None is never.

    The reference itself has it in the round that is selected, as in FedShift's Table 2. Seeds without either run are
    left out.
    """
    experiment = results.experiment
    metric = experiment.metric_of(column)
    target_of = targets(results, column)
    rounds: dict[int, int | None] = {}
    for run in results.of(row, column):
        seed = run.cell.seed
        if seed not in target_of:
            continue
        if row == reference(experiment):
            rounds[seed] = select(run.points, experiment.selection)[-1].round
        else:
            rounds[seed] = reach(run, target_of[seed], metric)
    return rounds


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
    at_once = reach(measured, target, metric) == measured.points[0].round
    return "is had in the first evaluated round" if at_once and len(measured.points) > 1 else ""


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
        ours = round_of_never(better)
    theirs = reach(than, target, metric)
    if theirs is None:
        theirs = select(than.points, selection)[-1].round
    return theirs - times * ours


def round_of_never(measured: SeedResult) -> int:
    """Return the round that stands for never: one after the run's last one.

    A run that ended early counts as one with all rounds of its settings: to end early is no way to be sooner.
    """
    last = measured.points[-1].round
    return (measured.run.settings.general.rounds if measured.run.ended else last) + 1


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


def mean_round(rounds: Iterable[int | None]) -> float | None:
    """Return a mean of rounds; None where a seed never reached the target."""
    numbers = []
    for round in rounds:
        if round is None:
            return None
        numbers.append(round)
    return float(np.mean(numbers)) if numbers else None


def reach_table(results: ExperimentResults) -> Table:
    """Return the rounds and bytes that each row needs for the reference's number."""
    experiment = results.experiment
    columns = list(experiment.columns)
    rows = []
    for row in experiment.rows:
        cells = [reach_cell(results, row.label, column) for column in columns]
        rows.append([TableCell(row.label), *cells])
    selected = SELECTION_WORDS[experiment.selection]
    caption = (
        f"Rounds until {reference(experiment)}'s {words(experiment.metric)} ({selected}) is reached, "
        "mean over seeds; below, speed-up and bytes sent both ways until then by the whole training."
    )
    headings = ["method", *(column or "rounds" for column in columns)]
    return Table(caption, list(map(TableCell, headings)), rows)


def reach_cell(results: ExperimentResults, row: str, column: str) -> TableCell:
    """Return a row's mean rounds until it reached the target, and below them the speed-up and the bytes.

    Of the reference its own first round with the number stands below: a speed-up is over that round. A row that ends
    below the target had the number and lost it again, so that it has no speed-up.
    """
    experiment = results.experiment
    standard = reference(experiment)
    if results.diverged(row, column):
        return TableCell("diverged", seeds_words(results, row, column))
    rounds = reached(results, row, column)
    pairs = {}
    for seed in rounds:
        ours = by_seed(results, row, column, seed)
        theirs = by_seed(results, standard, column, seed)
        assert ours is not None and theirs is not None  # their rounds are known
        pairs[seed] = (ours, theirs)
    if any(in_last_alone(ours, theirs) for ours, theirs in pairs.values()):
        return TableCell(NONE, "a model in the last round alone")
    never = list(rounds.values()).count(None)
    if never:
        texts = ["never" if round is None else str(round) for round in rounds.values()]
        return TableCell(", ".join(texts), f"by seed; never in {never} of {len(rounds)}")
    mean = mean_round(rounds.values())
    if not mean or not takes_training(results, column):
        return TableCell(NONE, "a level that is had at once, or by chance" if rounds else "")

    metric = experiment.metric_of(column)
    target_of = targets(results, column)
    sent, first = [], []
    below = 0
    for seed, (ours, theirs) in pairs.items():
        sent.append(bytes_until(ours.run.records, rounds[seed] or 0))
        first.append(reach(theirs, target_of[seed], metric))
        below += ends_below(ours, target_of[seed], experiment.selection, metric)
    first_mean = mean_round(first) or math.nan
    if row == standard:
        beside = f"first in {in_rounds(first_mean)}"
    elif below:
        beside = f"ends below it in {below} of {plural(len(rounds), 'seed')}"
    else:
        beside = f"{first_mean / mean:.2f}\N{MULTIPLICATION SIGN}"
    return TableCell(in_rounds(mean), f"{beside}, {in_bytes(float(np.mean(sent)))}")


def in_rounds(rounds: float) -> str:
    """Return a mean of rounds."""
    return f"{rounds:.1f}".removesuffix(".0")
