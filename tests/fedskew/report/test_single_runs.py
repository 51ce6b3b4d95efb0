"""Runs of no experiment in a report: which table they stand in, under which names."""

import json
from pathlib import Path
from typing import Any

from frozen import HERE, change, write

from fedskew.report.runs import Run
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


def test_rows_are_what_differs_and_columns_what_differs_of_the_data(tmp_path):
    for seed in (0, 1):
        finished(tmp_path, method="fedavg", seed=seed)
        finished(tmp_path, method="fedavg", seed=seed, learning_rate=0.01)
        finished(tmp_path, method="fedprox", seed=seed, alpha=0.5)
    finished(tmp_path, {"average": "fedavg", "creff": "creff"}, method="creff", seed=2)
    (results,), left_out = single_runs(tmp_path)
    rows = [row.label for row in results.experiment.rows]
    assert rows == ["fedavg", "fedavg, learning-rate 0.01", "fedprox", "creff"]
    assert list(results.experiment.columns) == ["alpha 0.1", "alpha 0.5"] and not left_out
    seeds = {place: [run.cell.seed for run in runs] for place, runs in results.measured.items()}
    assert seeds == {("fedavg", "alpha 0.1"): [0, 1, 2], ("fedavg, learning-rate 0.01", "alpha 0.1"): [0, 1],
                     ("fedprox", "alpha 0.5"): [0, 1], ("creff", "alpha 0.1"): [2]}  # fmt: skip


def test_data_of_one_name_are_tables_of_their_own(tmp_path):
    """As the files of two sites are, which are both called data.npz."""
    for site in ("north", "south"):
        dataset = f"npz:{tmp_path}/{site}/data.npz"
        finished(tmp_path / "results", dataset=dataset, classes="10", input_shape="1x8x8")
    tables, _ = single_runs(tmp_path / "results")
    names = [results.experiment.name for results in tables]
    assert names == ["runs-data.npz", "runs-data.npz-2"]
    assert len({results.experiment.title for results in tables}) == 2


def test_a_finished_run_stands_for_a_row_that_an_unfinished_one_has_too(tmp_path):
    unfinished = finished(tmp_path, method="fedavg")
    (unfinished.folder / "summary.json").unlink()
    finished(tmp_path, {"average": "fedavg", "creff": "creff"}, method="creff")
    (results,), _ = single_runs(tmp_path)
    assert {row for row, _ in results.measured} == {"fedavg", "creff"}


def test_a_setting_of_another_version_counts_where_it_changed_the_run_s_id(tmp_path):
    run = finished(tmp_path, method="fedavg")
    settings = run.folder / "settings.json"
    change(settings, lambda origin: origin["settings"].update({"of-another-version": 1}))
    (results,), left_out = single_runs(tmp_path)
    assert results.has_ended and not left_out and not results.warnings
    run.folder.rename(tmp_path / "digits-fedavg-seed0-0123456789")
    results, (sentence,) = single_runs(tmp_path)
    assert not results and sentence.startswith("digits-fedavg-seed0-0123456789: left out")
    assert "of-another-version" in sentence


def test_the_command_line_reports_on_them(tmp_path, fedskew):
    words = ("report", "--results", tmp_path)
    assert fedskew(*words)[0] == 1
    finished(tmp_path, method="fedavg")
    status, output, _ = fedskew(*words)
    assert status == 0 and "Runs on digits" in output
    (tmp_path / "unreadable" / "settings.json").mkdir(parents=True)
    status, _, errors = fedskew(*words)
    assert status == 0 and errors.startswith("unreadable: left out, as its settings cannot be read")
    settings = next(tmp_path.glob("digits*/settings.json"))
    settings.rename(tmp_path / "kept")
    status, _, errors = fedskew(*words)
    assert status == 1 and "left out, as its settings.json is missing or damaged" in errors
    status, _, errors = fedskew(*words, "--set", "data-root=x")
    assert status == 2 and "is for named experiments" in errors


def test_names_of_runs_and_data_leave_out_the_folders_of_the_user():
    path = "npz:/home/somebody/secret/scans.npz"
    run = parse({"dataset": path, "classes": "a,b", "input-shape": "4", "method": "fedavg"})
    assert "somebody" not in run.run_id and Run(run, {}, [], None).data_name == "scans.npz"
