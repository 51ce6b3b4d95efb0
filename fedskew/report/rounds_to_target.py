"""Rounds and bytes until a row reaches a target: the reference row's number.

A target counts as worth reaching when it is above chance and takes training.
"""

import math
from collections.abc import Sequence

import numpy as np

from fedskew.formatting import in_bytes, plural
from fedskew.report.format import NONE, SELECTION_WORDS, Line, Table, TableCell, table, words
from fedskew.report.results import (
    ROUNDING,
    ColumnResults,
    ExperimentResults,
    RowResults,
    SeedResult,
)
from server_app.record import RoundRecord


def reach(run: SeedResult, target: float) -> int | None:
    """Return the evaluated round in which a run first had at least `target`; None is never."""
    return next((round for round, number in run.by_round.items() if number >= target), None)


def ends_below(run: SeedResult, target: float) -> bool:
    """Return whether a run's own selected number is below `target`: then reaching it is no gain."""
    return run.number is None or run.number < target


def bytes_until(records: Sequence[RoundRecord], round: int) -> int:
    """Return the bytes sent both ways up to a round, of the training, which several rows can share."""
    until = [record for record in records if record.round <= round]
    return sum(record.bytes_down + record.bytes_up for record in until)


def reached(row: RowResults, reference: RowResults) -> dict[int, int | None]:
    """Return by seed the round in which a row first had the reference's number; None is never.

    The reference itself has it in the round that is selected, as in FedShift's Table 2. Seeds without either run are
    left out.
    """
    rounds: dict[int, int | None] = {}
    for seed, target in reference.numbers.items():
        run = row.of_seed(seed)
        if run is not None:
            itself = row.row == reference.row
            rounds[seed] = run.selected[-1].round if itself else reach(run, target)
    return rounds


def in_last_alone(run: SeedResult, than: SeedResult) -> bool:
    """Return whether a row has a model in the last round alone, as CCVR has, while the other has earlier ones."""
    return len(run.points) == 1 < len(than.points)


def no_level(run: SeedResult) -> str:
    """Return why a run's number is no target that others could reach sooner; empty where it is one.

    It is none where it is not above chance, or where the run had it in its first evaluated round.
    """
    if run.number is None:
        return "is none"
    if run.chance is not None and run.number <= run.chance + ROUNDING:
        return "is not above chance"
    at_once = reach(run, run.number) == run.points[0].round
    return "is had in the first evaluated round" if at_once and len(run.points) > 1 else ""


def takes_training(column: ColumnResults) -> bool:
    """Return whether the reference's number is a target worth reaching in every seed."""
    return not any(map(no_level, column.reference.runs))


def rounds_sooner(better: SeedResult, than: SeedResult, times: float = 1) -> float:
    """Return the rounds that `than` needs for its own number, less `times` those that `better` needs for it.

    A run that never has it, or that ends below it, counts as one more round than were run: a number that is lost again
    is no gain.
    """
    target = than.number
    assert target is not None  # no_level has refused a run without a number
    ours = reach(better, target)
    if ours is None or ends_below(better, target):
        ours = better.points[-1].round + 1
    return (reach(than, target) or than.selected[-1].round) - times * ours


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


def reach_table(results: ExperimentResults) -> Table:
    """Return the rounds and bytes that each row needs for the reference's number."""
    headings = ["method"]
    lines: list[Line] = [[row.label] for row in results.experiment.rows]
    for column in results.columns:
        headings.append(column.name or "rounds")
        for row, line in zip(column.rows, lines, strict=True):
            line.append(reach_cell(row, column))
    number = f"{words(results.experiment.metric)} ({SELECTION_WORDS[results.experiment.selection]})"
    caption = (
        f"Rounds until {results.reference}'s {number} is reached, "
        "mean over seeds; below, bytes sent both ways until then by the whole training."
    )
    return table(caption, headings, lines)


def reach_cell(row: RowResults, column: ColumnResults) -> TableCell:
    """Return a row's mean rounds until it reached the target, and below them the bytes.

    A row that ends below the target had the number and lost it again.
    """
    if row.diverged:
        return TableCell("diverged", row.seeds_with(len(row.runs)))
    reference = column.reference
    by_seed = reached(row, reference)
    ours = [run for run in row.runs if run.seed in by_seed]
    theirs = [run for run in reference.runs if run.seed in by_seed]
    if any(map(in_last_alone, ours, theirs)):
        return TableCell(NONE, "a model in the last round alone")
    rounds = [round for round in by_seed.values() if round is not None]
    never = len(by_seed) - len(rounds)
    if never:
        texts = ["never" if round is None else str(round) for round in by_seed.values()]
        return TableCell(", ".join(texts), f"by seed; never in {never} of {len(by_seed)}")
    if not rounds or not takes_training(column):
        return TableCell(NONE, "a level that is had at once, or by chance" if rounds else "")

    sent = [bytes_until(run.run.records, by_seed[run.seed] or 0) for run in ours]
    below = in_bytes(float(np.mean(sent)))
    lost = sum(ends_below(run, reference.numbers[run.seed]) for run in ours)
    if lost and row.row != reference.row:
        below = f"ends below it in {lost} of {plural(len(rounds), 'seed')}, {below}"
    return TableCell(in_rounds(float(np.mean(rounds))), below)


def in_rounds(rounds: float) -> str:
    """Return a mean of rounds."""
    return f"{rounds:.1f}".removesuffix(".0")
