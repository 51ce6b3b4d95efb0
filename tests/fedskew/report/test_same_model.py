"""The claim that a row has one model, the same to the bit in every column and seed."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from frozen import frozen_results

from data import SettingError
from fedskew.experiments.experiments import experiment
from fedskew.experiments.plan import Cell
from fedskew.report.claims import judge

ONE, OTHER = "ab" * 32, "cd" * 32
CLAIM = {"says": "one model", "same": ["fedavg"]}


@pytest.mark.parametrize(
    ("of_cell", "status", "words"),
    [
        (lambda cell: ONE, "holds", f"fedavg: one model, {ONE[:16]}, in 4 of 4 runs"),
        (lambda cell: OTHER if cell.seed else ONE, "fails", "fedavg: 2 models in 4 of 4 runs"),
        (
            lambda cell: ONE if cell.seed else "",
            "open",
            f"fedavg: one model, {ONE[:16]}, in 2 of 4 runs",
        ),
    ],
)
def test_one_hash_over_columns_and_seeds_holds(
    of_cell: Callable[[Cell], str], status: str, words: str, tmp_path: Path
) -> None:
    known = frozen_results(tmp_path, seeds=[0, 1], claims=[CLAIM])
    runs = dict(known.runs)
    for cell in known.cells:
        if cell.row == "fedavg" and of_cell(cell):
            summary = {**(runs[cell.run.run_id].summary or {})}
            summary["model-hashes"] = {cell.deployed: of_cell(cell)}
            runs[cell.run.run_id] = replace(runs[cell.run.run_id], summary=summary)
    (verdict,) = judge(replace(known, runs=runs))
    assert (verdict.status, verdict.why_not) == (status, words)


def test_a_row_that_is_none_is_refused() -> None:
    entry = {"title": "", "methods": ["fedncm"]}
    experiment("one", {**entry, "claims": [{**CLAIM, "same": ["fedncm"]}]})
    with pytest.raises(SettingError):
        experiment("one", {**entry, "claims": [{**CLAIM, "same": ["fed3r"]}]})
