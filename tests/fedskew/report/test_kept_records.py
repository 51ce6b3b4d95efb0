"""Kept records: written from a finished run, checked when read, and refused where they are wrong."""

import gzip
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from data import DataError
from fedskew.engines.local import LocalGrid
from fedskew.experiments import Experiment
from fedskew.experiments import experiment as read_experiment
from fedskew.experiments.plan import plan, runs
from fedskew.report.differences import differences
from fedskew.report.kept_records import file_of, keep, kept_run, packed
from fedskew.report.results import ExperimentResults, gather
from fedskew.report.runs import Run
from server_app.app import run
from server_app.run_settings import RunSettings
from tests.in_process import SMALL

SETTINGS = {key: value for key, value in SMALL.items() if key not in ("method", "device")}
ENTRY: dict[str, Any] = {
    "title": "small",
    "settings": {**SETTINGS, "rounds": 6},
    "methods": ["fedavg", "fedprox"],
    "metric": "accuracy",
    "selection": "mean-of-last-5",
}


def planned(small: Experiment, results: Path) -> list[RunSettings]:
    return runs(plan(small, {"results": str(results), "device": "cpu"}))


@pytest.fixture(scope="module")
def small():
    return read_experiment("small", ENTRY)


@pytest.fixture(scope="module")
def trained(small, tmp_path_factory):
    """A results folder with the entry's finished runs."""
    results = tmp_path_factory.mktemp("results")
    for settings in planned(small, results):
        with LocalGrid() as grid:
            run(grid, settings, lambda line: None)
    return results


@pytest.fixture
def folder(small, trained, tmp_path):
    """A folder of records of these runs."""
    for settings in planned(small, trained):
        keep(Run.read(settings), tmp_path / "kept")
    return tmp_path / "kept"


@pytest.fixture
def record(small, trained, folder):
    """The first record, and the settings of its run."""
    settings = planned(small, trained)[0]
    return file_of(folder, settings.run_id), settings


def results_of(small: Experiment, results: Path, records: Path | None) -> ExperimentResults:
    overrides = {"results": str(results), "device": "cpu"}
    return gather(small, overrides, kept=partial(kept_run, records))


def test_a_report_from_kept_records_is_the_report_from_the_runs(small, trained, folder, tmp_path):
    there = results_of(small, trained, None)
    elsewhere = results_of(small, tmp_path / "empty", folder)
    assert len(there.finished) == len(elsewhere.finished) == 2
    assert all(run.file for run in elsewhere.runs.values())
    assert not results_of(small, tmp_path / "empty", None).finished
    found = [differences(known.column("")) for known in (there, elsewhere)]
    ours, theirs = ([one.found for one in of_column] for of_column in found)
    assert ours == theirs


def content_of(file: Path) -> dict[str, Any]:
    """Return a record's content without its checksum."""
    content: dict[str, Any] = json.loads(gzip.decompress(file.read_bytes()))
    del content["checksum"]
    return content


def test_a_file_of_another_run_and_a_damaged_one_are_refused(record):
    file, settings = record
    content = content_of(file)
    content["origin"]["settings"]["retired"] = ""
    file.write_bytes(packed(content))
    run = kept_run(file.parent, settings)
    assert run is not None and run.finished  # the control, of a version with another setting
    content["origin"]["settings"]["alpha"] = 0.7
    text = gzip.decompress(file.read_bytes()).replace(b'"failures": 0', b'"failures": 1')
    damaged = [packed(content), file.read_bytes()[:-100], b"{}", gzip.compress(text)]
    for key in ("origin", "rounds", "summary"):
        damaged += [packed({**content_of(file), key: 3})]
        damaged += [packed({name: of for name, of in content_of(file).items() if name != key})]
    for wrong in damaged:
        file.write_bytes(wrong)
        with pytest.raises(DataError) as refused:
            kept_run(file.parent, settings)
        assert str(refused.value).startswith(f"{file}: ")


def test_a_suite_is_judged_by_kept_records(folder, tmp_path, fedskew):
    """One seed decides nothing; an equation holds by its test. Each paper is corrected for itself."""
    above = {"says": "FedProx is above FedAvg", "number": "+1"}
    above |= {"better": "fedprox", "than": "fedavg"}
    equation = {"says": "it is so", "held_by": "tests/data/test_x.py::test_y"}
    entry = {**ENTRY, "paper": "Nobody, Table 1", "claims": [above, equation]}
    file = tmp_path / "experiments.yaml"
    file.write_text(json.dumps({"small": entry, "mine": {"title": "Mine", "papers": True}}))
    words = ["report", "mine", "--experiments", file, "--results", tmp_path / "none"]
    words += ["--set", "device=cpu", "--records", folder]
    status, page, _ = fedskew(*words, "--markdown")
    assert status == 0 and "| Nobody | 2 | 1 | 1 | 0 | 1 |\n" in page
    said = "2 of 2 runs are finished: 2 of 2 statements are measured, and 1 of these decided"
    assert said in page
    row = next(line for line in page.splitlines() if line.startswith("| FedProx is above"))
    assert row.startswith("| FedProx is above FedAvg (Table 1) | +1 | ")
    assert row.endswith(" | open: one seed says nothing of others |")
