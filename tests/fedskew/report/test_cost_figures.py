"""Figures by cost, of recalls by round, and of ranks over columns."""

from dataclasses import replace

import numpy as np
import pytest
from frozen import frozen_results

from fedskew.report.cost_figures import (
    by_bytes,
    by_core_seconds,
    core_seconds_until,
    mean_by_cost,
    megabytes_until,
    spread_of_ends,
)
from fedskew.report.page import recall_by_round
from fedskew.report.rank_diagram import critical_difference, rank_diagram, ranks
from fedskew.report.results import ExperimentResults
from server_app.record import RoundRecord, Seconds

COLUMN = "LDA 0.1"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> ExperimentResults:
    return frozen_results(tmp_path_factory.mktemp("frozen"))


def test_costs_are_sums_up_to_the_round() -> None:
    records = [
        RoundRecord(
            round=round,
            models={},
            bytes_down=1_000_000 * round,
            bytes_up=500_000,
            seconds=Seconds(client_work=10.0 * round, server=1.0, evaluation=100.0, round=200.0),
        )
        for round in (1, 2, 3)
    ]
    assert megabytes_until(records, 2) == pytest.approx(1 + 2 + 2 * 0.5)
    assert core_seconds_until(records, 2) == 10 + 20 + 2, "evaluation and waiting do not count"
    assert core_seconds_until(records, 3) == 10 + 20 + 30 + 3


def test_the_line_by_cost_has_the_means_over_the_seeds(results: ExperimentResults) -> None:
    group = results.of("fedavg", COLUMN)
    line = mean_by_cost(group, "balanced-accuracy", megabytes_until)
    assert line is not None
    costs, values = line
    last = [100 * run.points[-1].numbers.means["balanced-accuracy"] for run in group]
    sent = [megabytes_until(run.run.records, run.points[-1].round) for run in group]
    assert len(costs) == len(group[0].points)
    assert values[-1] == pytest.approx(np.mean(last))
    assert costs[-1] == pytest.approx(np.mean(sent)) and (np.diff(costs) > 0).all()


def test_a_row_that_costs_more_than_ten_times_as_much_asks_for_a_logarithmic_axis() -> None:
    def line(end: float) -> tuple[np.ndarray, np.ndarray]:
        return np.array([1.0, end]), np.zeros(2)

    assert spread_of_ends({"a": line(2.0), "b": line(30.0)}) == 15
    assert spread_of_ends({"a": line(2.0), "free": line(0.0)}) == 1, "no logarithm of nothing"


def test_both_costs_are_drawn_with_units(results: ExperimentResults) -> None:
    sent = by_bytes(results, COLUMN, "bytes")
    assert sent is not None and sent.by_row and "MB sent" in sent.alt and "fedavg" in sent.alt
    computed = by_core_seconds(results, COLUMN, "seconds")
    assert computed is not None and "core seconds" in computed.alt


def test_recalls_by_round_are_means_over_the_seeds(results: ExperimentResults) -> None:
    group = results.of("creff", COLUMN)
    by_round = recall_by_round(group)
    assert list(by_round) == [point.round for point in group[0].points]
    last = group[0].points[-1].round
    expected = np.mean([run.points[-1].numbers.recall for run in group], axis=0)
    np.testing.assert_allclose(by_round[last], 100 * expected)


def test_nemenyis_critical_differences_are_the_published_ones() -> None:
    """Demsar (2006), Table 5a has q = 2.569 for four methods, and the text 1.25 for four of them on 14 data sets."""
    assert critical_difference(4, 14) == pytest.approx(1.25, abs=0.005)
    assert critical_difference(2, 6) == pytest.approx(1.960 * np.sqrt(2 * 3 / 36), abs=1e-3)


def test_two_columns_have_no_rank_diagram_and_three_have_one(results: ExperimentResults) -> None:
    assert ranks(results) == {} and rank_diagram(results, "ranks") is None
    columns = {**results.experiment.columns, "again": results.experiment.columns[COLUMN]}
    measured = dict(results.measured)
    rows = [row.label for row in results.experiment.rows]
    for row in rows:
        measured[row, "again"] = results.measured[row, COLUMN]
    experiment = replace(results.experiment, columns=columns, cells={}, notes={})
    three = replace(results, experiment=experiment, measured=measured)

    ranks_of = ranks(three)
    means = {}
    for row in rows:
        numbers = [run.points[-1].numbers for run in three.of(row, COLUMN)]
        means[row] = float(np.mean([found.means["balanced-accuracy"] for found in numbers]))
    ordered = sorted(rows, key=means.__getitem__, reverse=True)
    for rank, row in enumerate(ordered, 1):
        assert ranks_of[row][0] == ranks_of[row][2] == rank
    diagram = rank_diagram(three, "ranks")
    assert diagram is not None and "Nemenyi" in diagram.alt
    mean_rank = f"{ordered[0]} {ranks_of[ordered[0]].mean():.1f}"
    assert mean_rank in diagram.alt
    assert diagram.svg.narrow.startswith("<svg")
