"""Tables of rankings and of clients."""

from dataclasses import replace
from math import nan
from pathlib import Path

import pytest
from frozen import ONE_COLUMN, frozen_results, with_predictions

from fedskew.report.results import ExperimentResults, SeedResult
from fedskew.report.tables import client_tables, ranking_table
from server_app.evaluation import spread
from server_app.round_selection import Point

AREAS = {0: [0.5, nan, 0.75], 1: [0.7, nan, nan]}
"""AUROC by seed and client."""


def at_three_clients(run: SeedResult) -> SeedResult:
    """Return a run at three clients, which measured AUROC."""
    last = run.points[-1]
    numbers = replace(last.numbers, spreads={"client-auroc": spread(AREAS[run.seed])})
    samples = {
        **run.run.samples,
        "clients": ["0 Lyon", "1 Oslo", "2 Pune"],
        "client-test": [8, 1, 4],
    }
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


def predicted(folder: Path, classes: int) -> ExperimentResults:
    return with_predictions(frozen_results(folder, **ONE_COLUMN), classes)


def test_every_number_of_a_ranking_has_its_interval(tmp_path):
    numbers = ranking_table(predicted(tmp_path, 2).column("LDA 0.5"))
    assert [heading.text for heading in numbers.headings[1:3]] == ["AUROC", "AUPRC"]
    for row in numbers.rows:
        for cell in row[1:]:
            low, high = map(float, cell.below.strip("[]").split(", "))
            assert low <= float(cell.text.split()[0]) <= high


@pytest.mark.parametrize("name", ["0", "1"])
def test_the_caption_names_the_positive_class(name, tmp_path):
    known = predicted(tmp_path, 2)

    def of_two_classes(run: SeedResult) -> SeedResult:
        last = run.points[-1]
        data = replace(run.run.settings.data, classes="0,1")
        of_run = replace(run.run, settings=replace(run.run.settings, data=data))
        numbers = replace(last.numbers, positive_class=name)
        return replace(run, run=of_run, points=(replace(last, numbers=numbers),))

    measured = {place: list(map(of_two_classes, runs)) for place, runs in known.measured.items()}
    table = ranking_table(replace(known, measured=measured).column("LDA 0.5"))
    assert table.caption.endswith(f"sensitivity and specificity of class {name}.")
