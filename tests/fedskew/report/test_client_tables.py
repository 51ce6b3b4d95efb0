"""What a report says of single clients, and tables that stay within a page."""

from dataclasses import replace
from math import nan
from pathlib import Path

import pytest
from frozen import frozen_results

from fedskew.report.results import ExperimentResults
from fedskew.report.tables import client_tables
from server_app.evaluation import spread
from server_app.round_selection import Point

AREAS = {0: [0.5, nan, 0.75], 1: [0.7, nan, nan]}
"""AUROC by seed and client."""


@pytest.fixture
def known(tmp_path: Path) -> ExperimentResults:
    """Two seeds of FedAvg at three clients, which measured AUROC."""
    columns = {"": {"alpha": 0.5, "imbalance-factor": 10}}
    one = {"columns": columns, "methods": ["fedavg"], "seeds": [0, 1]}
    none = {"claims": [], "cells": {}, "notes": {}, "series": []}
    frozen = frozen_results(tmp_path, **one, **none)
    runs = []
    for run in frozen_results(tmp_path).of("fedavg", "LDA 0.5").runs[:2]:
        numbers = replace(
            run.points[-1].numbers, spreads={"client-auroc": spread(AREAS[run.cell.seed])}
        )
        held = run.run.samples["train"][:3]
        samples = {
            **run.run.samples,
            "clients": ["0 Lyon", "1 Oslo", "2 Pune"],
            "client-test": [8, 1, 4],
            "train": held,
        }
        records = replace(run.run, origin={**run.run.origin, "samples": samples})
        runs.append(replace(run, run=records, points=(Point(run.points[-1].record, numbers),)))
    return replace(frozen, measured={("fedavg", ""): runs})


def test_every_client_has_a_row_with_mean_and_spread_over_the_seeds(
    known: ExperimentResults,
) -> None:
    (table,) = client_tables(known)
    assert table.caption == "AUROC in percent at each client, last round, over seeds."
    assert [cell.text for cell in table.headings] == ["client", "test samples", "fedavg"]
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["Lyon", "8", "60.0 ± 14.1"], ["Oslo", "1", "—"], ["Pune", "4", "75.0"],
        ["worst client", "", "60.0 ± 14.1"],
    ]  # fmt: skip
