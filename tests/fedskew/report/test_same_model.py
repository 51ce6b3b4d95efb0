"""The verdict on rows whose model must be the same to the bit in every column and seed."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from frozen import frozen_results

from data import SettingError
from fedskew.experiments.experiments import experiment
from fedskew.experiments.plan import Cell
from fedskew.report.claims import ModelVerdict, judge_models
from fedskew.report.document import document
from fedskew.report.results import ExperimentResults

ONE, OTHER = "ab" * 32, "cd" * 32


def with_hashes(results: Path, of_cell: Callable[[Cell], str]) -> ExperimentResults:
    """Return the frozen results of two seeds, of which FedAvg has to have one model; a cell's hash is given."""
    known = frozen_results(results, seeds=[0, 1], same_model=["fedavg"], claims=[])
    runs = dict(known.runs)
    for cell in known.cells:
        if cell.row == "fedavg" and of_cell(cell):
            summary = {**(runs[cell.run.run_id].summary or {})}
            summary["model-hashes"] = {cell.deployed: of_cell(cell)}
            runs[cell.run.run_id] = replace(runs[cell.run.run_id], summary=summary)
    return replace(known, runs=runs)


def verdict(results: ExperimentResults) -> ModelVerdict:
    (judged,) = judge_models(results)
    return judged


def test_one_hash_over_columns_and_seeds_holds(tmp_path: Path) -> None:
    results = with_hashes(tmp_path, lambda cell: ONE)
    judged = verdict(results)
    assert (judged.row, judged.status, judged.missing) == ("fedavg", "holds", 0)
    assert len(judged.hashes[ONE]) == 4
    (section,) = [part for part in document(results).sections if part.key == "models"]
    assert [row[1].text for row in section.tables[0].rows] == ["holds"]


def test_another_hash_in_one_column_fails_and_a_missing_one_leaves_it_open(tmp_path: Path) -> None:
    judged = verdict(with_hashes(tmp_path, lambda cell: OTHER if cell.column == "LDA 0.5" else ONE))
    assert judged.status == "does not hold"
    assert judged.hashes[OTHER] == ["LDA 0.5, seed 0", "LDA 0.5, seed 1"]
    judged = verdict(with_hashes(tmp_path, lambda cell: ONE if cell.seed else ""))
    assert (judged.status, judged.missing) == ("not measured yet", 2)


def test_a_row_that_is_none_is_refused() -> None:
    entry = {"title": "", "methods": ["fedncm"], "same_model": ["fedncm"]}
    experiment("one", entry)
    with pytest.raises(SettingError):
        experiment("one", {**entry, "same_model": ["fed3r"]})
