"""Levels that mean something: chance, the first round, each site alone."""

from dataclasses import replace
from pathlib import Path

import pytest
from frozen import gathered

from fedskew.report.claims import takes_training
from fedskew.report.detail_tables import bar_lines
from fedskew.report.gather import Gathered
from fedskew.report.main_tables import reach_table
from fedskew.report.units import chance_of
from server_app.record import ModelNumbers, RoundRecord
from server_app.selection import Point

COLUMNS = {"LDA 0.5": {"alpha": 0.5, "imbalance-factor": 10}}


def at(known: Gathered, levels: dict[str, tuple[float, ...]]) -> Gathered:
    """Return the report's contents with these balanced accuracies by round."""
    measured = {}
    for (row, column), runs in known.measured.items():
        numbers = [ModelNumbers({"balanced-accuracy": level}) for level in levels[row]]
        points = tuple(Point(RoundRecord(k, {"average": number}), number) for k, number in enumerate(numbers, 1))
        measured[row, column] = [replace(run, points=points) for run in runs]
    return replace(known, measured=measured)


@pytest.fixture
def known(tmp_path: Path) -> Gathered:
    return gathered(tmp_path, columns=COLUMNS, methods=["fedavg", "creff"], cells={}, notes={}, claims=[])


def test_chance_and_the_first_rounds_level_have_no_speed_up(known: Gathered) -> None:
    assert chance_of("balanced-accuracy", 10) == 10 and chance_of("accuracy", 10) is None
    for fedavg, fair in (((0.1, 0.1), False), ((0.6, 0.5), False), ((0.3, 0.5), True)):
        level = at(known, {"fedavg": fedavg, "creff": (0.6, 0.7)})
        assert takes_training(level, "LDA 0.5") == fair
        cell = reach_table(level).rows[1][1]
        assert ("\N{MULTIPLICATION SIGN}" in cell.below) == fair and ("had at once" in cell.below) != fair


def test_what_is_below_each_site_alone_is_said(known: Gathered) -> None:
    assert bar_lines(known) == []
    level = at(known, {"fedavg": (0.5,), "creff": (0.65,)})
    runs = level.of("creff", "LDA 0.5")
    general = replace(runs[0].run.settings.general, method="singleset")
    alone = [replace(run, run=replace(run.run, settings=replace(run.run.settings, general=general))) for run in runs]
    (line,) = bar_lines(replace(level, measured={**level.measured, ("creff", "LDA 0.5"): alone}))
    assert line == "LDA 0.5: below creff, each site alone, in points: fedavg by 15.0."
