"""Rounds until a level is reached: which levels mean something, and who is sooner."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from frozen import frozen_results

from fedskew.report.claims import judge, never_lines
from fedskew.report.differences import reach_table, takes_training
from fedskew.report.results import ExperimentResults
from fedskew.report.tables import main_table
from server_app.record import ModelNumbers, RoundRecord
from server_app.round_selection import Point

COLUMNS = {"LDA 0.5": {"alpha": 0.5, "imbalance-factor": 10}}
SOONER = {"says": "CReFF is sooner", "better": "creff", "than": "fedavg", "sooner": True}
At = Callable[[tuple[float, ...], tuple[float, ...]], ExperimentResults]


@pytest.fixture
def at(tmp_path):
    """Return a function that returns results with these balanced accuracies by round: FedAvg's and CReFF's."""
    of_entry = {"columns": COLUMNS, "methods": ["fedavg", "creff"], "cells": {}, "notes": {}}
    known = frozen_results(tmp_path, **of_entry, claims=[SOONER])

    def at(fedavg: tuple[float, ...], creff: tuple[float, ...]) -> ExperimentResults:
        measured = {}
        for (row, column), runs in known.measured.items():
            points = []
            for round, level in enumerate(fedavg if row == "fedavg" else creff, 1):
                numbers = ModelNumbers({"balanced-accuracy": level})
                points.append(Point(RoundRecord(round, {"average": numbers}), numbers))
            measured[row, column] = [replace(run, points=tuple(points)) for run in runs]
        return replace(known, measured=measured)

    return at


def sooner(results: ExperimentResults) -> list[float]:
    """Return by how many rounds CReFF is sooner, by seed."""
    return list(judge(results)[0].found.by_seed.values())


@pytest.mark.parametrize(
    ("fedavg", "fair"), [((0.1, 0.1), False), ((0.6, 0.5), False), ((0.3, 0.5), True)]
)
def test_chance_and_the_first_rounds_level_are_no_target(fedavg, fair, at):
    level = at(fedavg, (0.6, 0.7))
    assert takes_training(level.column("LDA 0.5")) == fair
    cell = reach_table(level).rows[1][1]
    assert (cell.text != "—") == fair and ("had at once" in cell.below) != fair
    (verdict,) = judge(level)
    assert (verdict.status == "never") != fair and bool(verdict.found.by_seed) == fair


def test_a_level_that_was_had_before_is_counted_from_there(at):
    """FedAvg ends where it was two rounds ago: who gets there then is no sooner."""
    level = at((0.2, 0.6, 0.7, 0.6), (0.2, 0.6, 0.7, 0.7))
    assert sooner(level) == [0, 0, 0]
    assert [row[1].text for row in reach_table(level).rows] == ["4", "2"]


@pytest.mark.parametrize("creff", [(0.2, 0.65, math.nan), (math.nan,) * 3])
def test_a_row_without_the_number_is_later_than_every_round(creff, at):
    level = at((0.2, 0.6, 0.6), creff)
    assert sooner(level) == [-2, -2, -2]
    assert judge(level)[0].status == "fails"


@pytest.mark.parametrize(("last", "lost"), [(0.4, True), (0.6, False)])
def test_a_row_that_ends_below_the_level_is_not_sooner(last, lost, at):
    """It had FedAvg's number in its first round and lost it."""
    level = at((0.2, 0.3, 0.6), (0.7, 0.5, last))
    cell = reach_table(level).rows[1][1]
    assert cell.text == "1" and ("ends below it in 3 of 3 seeds" in cell.below) == lost
    assert sooner(level) == [-1 if lost else 2] * 3


def test_never_is_a_round_more_than_were_planned(at):
    assert sooner(at((0.2, 0.3, 0.6), (0.2, 0.3, 0.4))) == [3 - 4] * 3
    short = at((0.2, 0.3, 0.6), (0.2, 0.3))
    assert sooner(short) == [3 - 3] * 3


def test_what_can_never_be_measured_is_not_still_to_come(at):
    """A model of the last round alone, as CCVR's, has no mean of five rounds and is never sooner."""
    level = at((0.1, 0.2, 0.3, 0.4, 0.5), (0.6,))
    assert judge(level)[0].status == "never"
    above = replace(level.experiment.claims[0], sooner=False)
    changed = replace(level.experiment, selection="mean-of-last-5", claims=(above,))
    mean = replace(level, experiment=changed)
    assert judge(mean)[0].status == "never" and len(never_lines(mean)) == 1
    assert main_table(mean).rows[1][1].below == "0 of 3 seeds"
    unfinished = {name: replace(run, summary=None) for name, run in mean.runs.items()}
    assert judge(replace(mean, runs=unfinished, measured={}))[0].status == "open"
