"""What a user sees of a sweep: labels, counts, the time left, the last lines."""

import io
import math
from dataclasses import replace
from pathlib import Path

import pytest
from in_process import SERVER_SMALL, cells_of, jobs_of, small
from rich.console import Console

from data.text import LineAboutData, LineAboutRun
from fedskew.cli.results_table import lines, results_table
from fedskew.experiments.plan import Cell, runs
from fedskew.scheduling import JobResult
from fedskew.sweep import labels
from fedskew.sweep.progress import Overview
from server_app.record import ModelNumbers, RoundRecord, Seconds
from server_app.run_folder import RunFolder
from server_app.run_settings import RunSettings


def test_labels_name_rows_column_and_seed(tmp_path: Path) -> None:
    cells = cells_of(
        tmp_path,
        methods=["fedavg", "creff", "fedshift"],
        columns={"a": {}},
        settings=SERVER_SMALL["creff"],
    )
    assert list(labels(runs(cells), cells).values()) == [
        "fedavg/creff, a, seed 0",
        "fedshift, a, seed 0",
    ]
    config = small(tmp_path, seed=3)
    assert labels([config], []) == {config.run_id: "fedavg, seed 3"}


# ---- who gets what ---------------------------------------------------------------------------------------------------


def record(round: int, seconds: float, accuracy: float = 0.5) -> RoundRecord:
    return RoundRecord(
        round,
        {"average": ModelNumbers({"balanced-accuracy": accuracy})},
        seconds=Seconds(round=seconds),
    )


def test_the_overview_counts_and_extrapolates(tmp_path: Path) -> None:
    jobs = jobs_of(tmp_path, 3, rounds=10)
    overview = Overview(Console(file=io.StringIO(), width=120), jobs, at_once=2, finished=1)
    assert overview.time_left() is None
    folders = [RunFolder(job.settings.folder) for job in jobs]
    for job, folder in zip(jobs[:2], folders, strict=False):
        folder.path.mkdir(parents=True)
        overview.started(job)
    assert overview.counts() == "1 of 4 done, 2 running, 1 waiting"
    folders[0].add_round(record(1, 3.0))
    overview.on_line(jobs[0], "round 1")
    folders[1].add_round(record(1, 5.0, math.nan))
    overview.on_line(jobs[1], "round 1")
    assert overview.time_left() == pytest.approx((9 * 3 + 9 * 5 + 10 * 4) / 2)
    assert "fedavg 50.0" in overview.running[jobs[0].settings.run_id].numbers
    assert "fedavg -" in overview.running[jobs[1].settings.run_id].numbers
    overview.ended(jobs[0], JobResult(reason="out of luck"))
    assert overview.counts().startswith("1 of 4 done, 1 running, 1 waiting, 1 failed, about ")
    drawn = Console(file=io.StringIO(), width=120)
    drawn.print(overview.table())
    text = drawn.file.getvalue()  # type: ignore[attr-defined]
    assert "seed 1" in text and "round 1/10" in text and "left" in text and "seed 0" not in text


def test_a_terminal_gets_a_live_table_and_no_line_a_round(tmp_path: Path) -> None:
    (job,) = jobs_of(tmp_path, 1)
    file = io.StringIO()
    with Overview(
        Console(file=file, force_terminal=True, width=120, highlight=False), [job], 1
    ) as overview:
        overview.started(job)
        RunFolder(job.settings.folder).path.mkdir(parents=True)
        RunFolder(job.settings.folder).add_round(record(1, 1.0))
        overview.on_line(job, "round   1/2  loss 1.000")
        overview.live.refresh()
        overview.on_line(job, "client 3 left out")
        overview.ended(
            job, JobResult({"models": {"average": {"last": {"balanced-accuracy": 0.25}}}})
        )
    output = file.getvalue()
    assert "loss 1.000" not in output
    assert (
        "client 3 left out" in output
        and "finished  fedavg 25.0" in output
        and "0 of 1 done, 1 running" in output
    )


def test_what_is_said_of_the_data_is_said_once_for_all_runs(tmp_path: Path) -> None:
    """Runs on two classes each say which is positive: 16 such lines would hide the 16 results."""
    jobs = jobs_of(tmp_path, 2)
    file = io.StringIO()
    words = "positive class: ill (the rarer one of the samples): AUPRC, sensitivity and specificity are about it"
    line, other_line = LineAboutData(words), LineAboutData(words.replace("ill", "well"))
    with Overview(Console(file=file, width=200), jobs, 1) as overview:
        for job in jobs:
            overview.started(job)
            overview.on_line(job, line)
            overview.on_line(job, "client 3 left out")
        overview.on_line(jobs[1], other_line)
    said, first, second, other = file.getvalue().splitlines()
    assert said == line and other == other_line
    assert first.endswith("client 3 left out") and second.endswith("client 3 left out")


def test_elsewhere_each_result_is_a_line_and_a_round_is_none(tmp_path: Path) -> None:
    jobs = jobs_of(tmp_path, 2)
    file = io.StringIO()
    with Overview(Console(file=file, width=200), jobs, 1) as overview:
        for job in jobs:
            overview.started(job)
            overview.on_line(job, LineAboutRun(f"run folder: {job.settings.folder}"))
            RunFolder(job.settings.folder).path.mkdir(parents=True)
            for round in (1, 2):
                RunFolder(job.settings.folder).add_round(record(round, 1.0))
                overview.on_line(job, f"round   {round}/2  loss 1.000")
        overview.on_line(jobs[0], "client 3 left out")
        done = {"models": {"average": {"last": {"balanced-accuracy": 0.25}}}}
        overview.ended(jobs[0], JobResult(done))
        overview.ended(jobs[1], JobResult(reason="out of luck"))
    remark, finished, failed = file.getvalue().splitlines()
    assert remark.endswith("client 3 left out")
    assert "finished  fedavg 25.0  (1 of 2 done, 1 running, about" in finished
    assert failed.endswith("failed: out of luck  (1 of 2 done, 0 running, 1 failed)")


def test_experiments_of_a_suite_are_told_apart(tmp_path: Path) -> None:
    first = cells_of(tmp_path, methods=["fedavg"])
    second = [
        replace(cell, experiment="two")
        for cell in cells_of(tmp_path, methods=["fedavg"], settings={"alpha": 0.3})
    ]
    cells = [*first, *second]
    assert list(labels(runs(cells), cells).values()) == [
        "one, fedavg, seed 0",
        "two, fedavg, seed 0",
    ]
    numbers = {"balanced-accuracy": 0.5, "macro-f1": 0.5, "recall": [0.5] * 10}
    models = {"models": {"average": {"last": numbers, "best-test": numbers}}}
    shown = lines(cells, runs(cells), {config.run_id: models for config in runs(cells)})
    headings = [column.header for column in results_table(shown).columns]
    assert headings[:2] == ["experiment", "method"]
    assert list(results_table(shown).columns[0].cells) == ["one", "two"]
    assert "experiment" not in [column.header for column in results_table(shown[:1]).columns]
    again = [*first, replace(first[0], experiment="two")]
    assert len(lines(again, runs(again), {config.run_id: models for config in runs(again)})) == 2, (
        "a run of both is shown in both"
    )


def test_classes_are_called_by_their_names_or_by_numbers_with_a_legend(tmp_path: Path) -> None:
    names = ["normal", "pneumonia", "pneumothorax"]
    config = small(tmp_path)
    config = replace(config, data=replace(config.data, classes=",".join(names)))
    numbers = {"balanced-accuracy": 0.5, "macro-f1": 0.5, "recall": [0.5] * 3}
    models = {
        "models": {"average": {"last": numbers, "best-test": numbers}},
        "rows": {"average": "fedavg"},
    }
    shown = lines([], [config], {config.run_id: models})
    assert [column.header for column in results_table(shown).columns][-3:] == names
    numbered = results_table(shown, full_names=False)
    assert [column.header for column in numbered.columns][-3:] == ["0", "1", "2"]
    assert numbered.caption == "Classes: 0 normal, 1 pneumonia, 2 pneumothorax"
    assert results_table(shown, by_class=False).columns[-1].header == "F1"


def test_labels_do_not_depend_on_settings_alone(tmp_path: Path) -> None:
    config: RunSettings = small(tmp_path)
    assert (
        labels([config], [Cell("one", "a row", "", 0, config, "average")])[config.run_id]
        == "a row, seed 0"
    )
