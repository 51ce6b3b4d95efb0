"""Tables of rankings, of clients, and of the rounds until a level is reached: which levels mean something."""

import math
from dataclasses import replace

import pytest
from frozen import ONE_COLUMN, frozen_results, with_predictions

from fedskew.report.claims import judge, never_lines
from fedskew.report.differences import reach_table, takes_training
from fedskew.report.results import ExperimentResults, SeedResult
from fedskew.report.tables import client_tables, main_table, ranking_table
from server_app.evaluation import spread
from server_app.record import ModelNumbers, RoundRecord
from server_app.round_selection import Point

AREAS = {0: [0.5, math.nan, 0.75], 1: [0.7, math.nan, math.nan]}
"""AUROC by seed and client."""


def at_three_clients(run: SeedResult) -> SeedResult:
    """Return a run at three clients, which measured AUROC."""
    last = run.points[-1]
    numbers = replace(last.numbers, spreads={"client-auroc": spread(AREAS[run.seed])})
    changed = {"clients": ["0 Lyon", "1 Oslo", "2 Pune"], "client-test": [8, 1, 4]}
    samples = {**run.run.samples, **changed}
    records = replace(run.run, origin={**run.run.origin, "samples": samples})
    return replace(run, run=records, points=(Point(last.record, numbers),))


def test_every_client_has_a_row_with_mean_and_spread_over_the_seeds(tmp_path):
    frozen = frozen_results(tmp_path, **ONE_COLUMN, seeds=[0, 1])
    place = ("fedavg", "LDA 0.5")
    measured = {place: list(map(at_three_clients, frozen.measured[place]))}
    (table,) = client_tables(replace(frozen, measured=measured).column("LDA 0.5"))
    assert table.caption == "LDA 0.5: AUROC in percent at each client, last round, over seeds."
    assert [cell.text for cell in table.headings] == ["client", "fedavg"]
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["Lyon", "60.0 ± 14.1"], ["Oslo", "—"], ["Pune", "75.0"], ["worst client", "60.0 ± 14.1"],
    ]  # fmt: skip


@pytest.fixture
def predicted(tmp_path):
    return with_predictions(frozen_results(tmp_path, **ONE_COLUMN), 2)


def test_every_number_of_a_ranking_has_its_interval(predicted):
    numbers = ranking_table(predicted.column("LDA 0.5"))
    assert [heading.text for heading in numbers.headings[1:3]] == ["AUROC", "AUPRC"]
    for row in numbers.rows:
        for cell in row[1:]:
            low, high = map(float, cell.below.strip("[]").split(", "))
            assert low <= float(cell.text.split()[0]) <= high


@pytest.mark.parametrize("name", ["0", "1"])
def test_the_caption_names_the_positive_class(name, predicted):
    def of_two_classes(run: SeedResult) -> SeedResult:
        last = run.points[-1]
        data = replace(run.run.settings.data, classes="0,1")
        of_run = replace(run.run, settings=replace(run.run.settings, data=data))
        numbers = replace(last.numbers, positive_class=name)
        return replace(run, run=of_run, points=(replace(last, numbers=numbers),))

    measured = {
        place: list(map(of_two_classes, runs)) for place, runs in predicted.measured.items()
    }
    table = ranking_table(replace(predicted, measured=measured).column("LDA 0.5"))
    assert table.caption.endswith(f"sensitivity and specificity of class {name}.")


SOONER = {"says": "CReFF is sooner", "better": "creff", "than": "fedavg", "sooner": True}


@pytest.fixture
def at(tmp_path):
    """Return a function that returns results with these balanced accuracies by round: FedAvg's and CReFF's."""
    known = frozen_results(tmp_path, **{**ONE_COLUMN, "claims": [SOONER]})

    def at(fedavg, creff):
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
