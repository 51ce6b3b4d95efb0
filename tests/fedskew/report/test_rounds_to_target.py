"""Levels that mean something: chance, the first round, each site alone."""

from dataclasses import replace
from pathlib import Path

import pytest
from frozen import frozen_results

from fedskew.report.claims import judge, never_lines
from fedskew.report.format import chance_of
from fedskew.report.results import ExperimentResults
from fedskew.report.rounds_to_target import reach_table, takes_training
from fedskew.report.tables import main_table
from server_app.record import ModelNumbers, RoundRecord
from server_app.round_selection import Point

COLUMNS = {"LDA 0.5": {"alpha": 0.5, "imbalance-factor": 10}}


def at(known: ExperimentResults, levels: dict[str, tuple[float, ...]]) -> ExperimentResults:
    """Return the report's contents with these balanced accuracies by round."""
    measured = {}
    for (row, column), runs in known.measured.items():
        numbers = [ModelNumbers({"balanced-accuracy": level}) for level in levels[row]]
        points = tuple(
            Point(RoundRecord(k, {"average": number}), number)
            for k, number in enumerate(numbers, 1)
        )
        measured[row, column] = [replace(run, points=points) for run in runs]
    return replace(known, measured=measured)


@pytest.fixture
def known(tmp_path: Path) -> ExperimentResults:
    return frozen_results(
        tmp_path, columns=COLUMNS, methods=["fedavg", "creff"], cells={}, notes={}, claims=[]
    )


def test_chance_and_the_first_rounds_level_have_no_speed_up(known: ExperimentResults) -> None:
    assert chance_of("balanced-accuracy", 10) == 10 and chance_of("accuracy", 10) is None
    for fedavg, fair in (((0.1, 0.1), False), ((0.6, 0.5), False), ((0.3, 0.5), True)):
        level = at(known, {"fedavg": fedavg, "creff": (0.6, 0.7)})
        assert takes_training(level.column("LDA 0.5")) == fair
        cell = reach_table(level).rows[1][1]
        assert ("\N{MULTIPLICATION SIGN}" in cell.below) == fair and (
            "had at once" in cell.below
        ) != fair


SOONER = {"says": "CReFF is sooner", "better": "creff", "than": "fedavg", "sooner": True}


@pytest.fixture
def claimed(tmp_path: Path) -> ExperimentResults:
    return frozen_results(
        tmp_path, columns=COLUMNS, methods=["fedavg", "creff"], cells={}, notes={}, claims=[SOONER]
    )


def test_a_level_that_was_had_before_is_counted_from_there(claimed: ExperimentResults) -> None:
    """FedAvg ends where it was two rounds ago: who gets there then is no sooner."""
    level = at(claimed, {"fedavg": (0.2, 0.6, 0.7, 0.6), "creff": (0.2, 0.6, 0.7, 0.7)})
    assert list(judge(level)[0].found.by_seed.values()) == [0, 0, 0]
    of_fedavg, of_creff = (row[1] for row in reach_table(level).rows)
    assert (of_fedavg.text, of_creff.text) == ("4", "2")
    assert of_fedavg.below.startswith("first in 2") and of_creff.below.startswith("1.00")


def test_a_row_that_ends_below_the_level_has_no_speed_up(claimed: ExperimentResults) -> None:
    """It had FedAvg's number in its first round and lost it: "1 round, 3.33x" is no gain, and it is not sooner."""
    fedavg = (0.2, 0.3, 0.6)
    for creff, lost in (((0.7, 0.5, 0.4), True), ((0.7, 0.5, 0.6), False)):
        level = at(claimed, {"fedavg": fedavg, "creff": creff})
        cell = reach_table(level).rows[1][1]
        assert cell.text == "1" and ("ends below it in 3 of 3 seeds" in cell.below) == lost
        assert ("3.00\N{MULTIPLICATION SIGN}" in cell.below) != lost
        assert list(judge(level)[0].found.by_seed.values()) == [-1 if lost else 2] * 3


def test_never_is_a_round_more_than_were_planned(claimed: ExperimentResults) -> None:
    """A run that ended early counts as one with all its rounds: to end early is no way to be sooner."""
    level = at(claimed, {"fedavg": (0.2, 0.3, 0.6), "creff": (0.2, 0.3, 0.4)})
    assert list(judge(level)[0].found.by_seed.values()) == [3 - 4] * 3
    short = at(claimed, {"fedavg": (0.2, 0.3, 0.6), "creff": (0.2, 0.3)})
    assert list(judge(short)[0].found.by_seed.values()) == [3 - 3] * 3
    rounds = short.measured["creff", "LDA 0.5"][0].run.settings.general.rounds
    for run in short.measured["creff", "LDA 0.5"]:
        run.run.__dict__["ended"] = {"round": 2}
    assert list(judge(short)[0].found.by_seed.values()) == [3 - (rounds + 1)] * 3


def test_nobody_is_sooner_at_a_level_without_training(claimed: ExperimentResults) -> None:
    """At chance, and had in the first evaluated round."""
    for fedavg in ((0.1, 0.1), (0.6, 0.5)):
        (verdict,) = judge(at(claimed, {"fedavg": fedavg, "creff": (0.6, 0.7)}))
        assert verdict.status == "never" and not verdict.found.by_seed


def test_what_can_never_be_measured_is_not_still_to_come(claimed: ExperimentResults) -> None:
    """A model of the last round alone, as CCVR's, has no mean of five rounds and is never sooner."""
    level = at(claimed, {"fedavg": (0.1, 0.2, 0.3, 0.4, 0.5), "creff": (0.6,)})
    assert judge(level)[0].status == "never"
    above = replace(level.experiment.claims[0], sooner=False)
    changed = replace(level.experiment, selection="mean-of-last-5", claims=(above,))
    mean = replace(level, experiment=changed)
    assert judge(mean)[0].status == "never" and len(never_lines(mean)) == 1
    assert main_table(mean).rows[1][1].below == "0 of 3 seeds"
    unfinished = {name: replace(run, summary=None) for name, run in mean.runs.items()}
    assert judge(replace(mean, runs=unfinished, measured={}))[0].status == "open"
