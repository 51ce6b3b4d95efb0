"""Runs of no experiment in a report: which table they stand in, under which names."""

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import FedSkew
from frozen import HERE, frozen, write

from fedskew.cli import report as report_cli
from fedskew.experiments.experiments import Experiment, experiment
from fedskew.report import results as report_results
from fedskew.report.run_records import RunRecords, short_name
from fedskew.report.single_runs import single_runs
from server_app.round_selection import summarize
from server_app.run_folder import RunFolder, line_of
from server_app.run_settings import RunSettings, Scalar
from server_app.settings import parse


def finished(results: Path, rows: dict[str, str] | None = None, **stated: Scalar) -> RunSettings:
    """Write a finished run's folder with frozen numbers, as a run of these settings leaves it."""
    settings = {key.replace("_", "-"): value for key, value in stated.items()}
    run = parse({"dataset": "digits", "rounds": 2, "results": str(results), **settings})
    kept = json.loads((HERE / "records.json").read_text())["LDA 0.5, IF 10 / creff / 0"]
    write(run, kept)
    folder = RunFolder(run.folder)
    rows = rows or {"average": run.general.method}
    models: dict[str, Any] = {
        name: numbers for name, numbers in summarize(folder.rounds()).items() if name in rows
    }
    folder.summary_file.write_text(
        line_of({"models": models, "failures": 0, "hash": {"all": "ab"}, "rows": rows})
    )
    return run


def test_rows_are_what_differs_and_columns_what_differs_of_the_data(tmp_path: Path) -> None:
    for seed in (0, 1):
        finished(tmp_path, method="fedavg", seed=seed)
        finished(tmp_path, method="fedavg", seed=seed, learning_rate=0.01)
        finished(tmp_path, method="fedprox", seed=seed, alpha=0.5)
    finished(tmp_path, {"average": "fedavg", "creff": "creff"}, method="creff", seed=2)
    (results,), left_out = single_runs(tmp_path, ())
    rows = [row.label for row in results.experiment.rows]
    assert rows == ["fedavg", "fedavg, learning-rate 0.01", "fedprox", "creff"]
    assert list(results.experiment.columns) == ["alpha 0.1", "alpha 0.5"] and not left_out
    seeds = {place: [run.cell.seed for run in runs] for place, runs in results.measured.items()}
    assert seeds == {("fedavg", "alpha 0.1"): [0, 1, 2], ("fedavg, learning-rate 0.01", "alpha 0.1"): [0, 1],
                     ("fedprox", "alpha 0.5"): [0, 1], ("creff", "alpha 0.1"): [2]}  # fmt: skip


def test_every_data_set_has_a_table_and_planned_runs_have_none(tmp_path: Path) -> None:
    known = finished(tmp_path, method="fedavg")
    finished(tmp_path, method="fedavg", dataset="digits-3-8")
    assert [part.experiment.title for part in single_runs(tmp_path, {known.run_id})[0]] == [
        "Runs on digits-3-8"
    ]


def test_a_run_that_cannot_be_read_is_left_out_in_a_sentence(tmp_path: Path) -> None:
    run = finished(tmp_path, method="fedavg")
    stated = json.loads((run.folder / "settings.json").read_text())
    stated.pop("checksum")
    stated["settings"]["of-a-later-version"] = 1
    (run.folder / "settings.json").write_text(line_of(stated))
    results, (sentence,) = single_runs(tmp_path, ())
    assert (
        not results
        and sentence.startswith(f"{run.run_id}: left out")
        and "of-a-later-version" in sentence
    )


def test_the_command_line_reports_on_them(
    tmp_path: Path, fedskew: FedSkew, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_cli, "find_all", lambda names, file: [])
    status, _, errors = fedskew("report", "--results", tmp_path)
    assert status == 1 and "no finished run in" in errors
    finished(tmp_path, method="fedavg")
    status, output, _ = fedskew("report", "--results", tmp_path)
    assert status == 0 and "Runs on digits" in output


def test_an_experiment_that_cannot_be_run_does_not_keep_the_others_from_a_report(
    tmp_path: Path, fedskew: FedSkew, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = experiment(
        "gone",
        {
            "title": "",
            "settings": {"dataset": "digits", "model": "alexnet-bn"},
            "methods": ["fedavg"],
        },
    )
    frozen_ones = frozen(tmp_path)
    monkeypatch.setattr(report_cli, "find_all", lambda names, file: [gone, frozen_ones])
    status, output, errors = fedskew("report", "--csv", "--results", tmp_path)
    assert status == 0 and "frozen,LDA 0.1,fedavg" in output
    assert (
        "gone: left out, as it cannot be run: model = 'alexnet-bn': needs images of 63x63" in errors
    )
    assert fedskew("report", "gone", "frozen", "--results", tmp_path)[0] == 2


def test_the_command_for_what_is_missing_names_the_file_of_the_experiment(
    tmp_path: Path, fedskew: FedSkew
) -> None:
    file = tmp_path / "mine here.yaml"
    file.write_text("mine: {title: mine, methods: [fedavg, fedprox], settings: {rounds: 2}}")
    words = ["report", "mine", "--experiments", file, "--results", tmp_path]
    command = f"fedskew run mine --experiments '{file}' --results {tmp_path}"
    assert command in fedskew(*words)[2]
    finished(tmp_path, method="fedavg")
    assert json.loads(fedskew(*words, "--json")[1])[0]["command"] == command


def test_names_of_runs_and_data_leave_out_the_folders_of_the_user() -> None:
    path = "npz:/home/somebody/secret/scans.npz"
    run = parse({"dataset": path, "classes": "a,b", "input-shape": "4", "method": "fedavg"})
    name = RunRecords(run, {}, [], None).label
    assert "somebody" not in run.run_id and name == f"scans-npz-fedavg-seed0-{run.run_id[-10:]}"
    assert short_name("domains:npz:/a/one.npz,npz:/b/two.npz") == "one.npz, two.npz"
    assert [short_name(data) for data in ("digits", "domains:mnist,usps")] == [
        "digits",
        "domains:mnist,usps",
    ]


def test_only_experiments_of_the_runs_data_sets_are_planned(
    tmp_path: Path, fedskew: FedSkew, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run whose settings.json is damaged could be of any experiment: then all are planned."""
    planned: list[str] = []
    gather = report_results.gather

    def gather_and_note(entry: Experiment, *rest: Any) -> Any:
        planned.append(entry.name)
        return gather(entry, *rest)

    entry = {"title": "", "methods": ["fedavg"], "seeds": [0]}
    small = {"clients": 2, "rounds": 2}
    digits = experiment("digits", {**entry, "settings": {"dataset": "digits", **small}})
    office = experiment("office", {**entry, "settings": {"dataset": "office", **small}})
    monkeypatch.setattr(report_cli, "find_all", lambda names, file: [digits, office])
    monkeypatch.setattr(report_results, "gather", gather_and_note)
    assert fedskew("report", "--results", tmp_path)[0] == 1 and planned == []
    run = finished(tmp_path, method="fedavg")
    assert fedskew("report", "--csv", "--results", tmp_path)[0] == 0
    assert planned == ["digits"]
    (run.folder / "settings.json").write_text("{")
    fedskew("report", "--csv", "--results", tmp_path)
    assert planned == ["digits", "digits", "office"]
