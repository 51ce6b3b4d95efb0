"""What is wrong with an experiment's runs is told, and nothing unfinished is averaged."""

import json
from pathlib import Path
from typing import Any

import pytest
from frozen import frozen, frozen_results

from fedskew.experiments.experiments import Experiment
from fedskew.experiments.plan import plan
from fedskew.report.document import document
from fedskew.report.page import html
from fedskew.report.results import ExperimentResults, gather
from fedskew.report.text import as_json, markdown
from server_app.run_folder import line_of


def again(experiment: Experiment, results: Path) -> ExperimentResults:
    return gather(experiment, {"results": str(results)})


def folder(
    experiment: Experiment,
    results: Path,
    row: str = "fedshift",
    column: str = "LDA 0.5",
    seed: int = 1,
) -> Path:
    """Return a run's folder."""
    cells = plan(experiment, {"results": str(results)})
    return next(c.run.folder for c in cells if (c.row, c.column, c.seed) == (row, column, seed))


def change(file: Path, key: str, **values: Any) -> None:
    content = json.loads(file.read_text())
    content[key] = {**content[key], **values} if values else "other"
    del content["checksum"]
    file.write_text(line_of(content))


def test_runs_that_belong_together_raise_no_other_warning_than_the_missing(tmp_path: Path) -> None:
    records = frozen_results(tmp_path)
    assert len(records.finished) == 10 and len(records.runs) == 12
    (warning,) = records.warnings
    assert "2 of 12 runs are missing" in warning and "fedshift-seed2" in warning
    assert records.command == f"fedskew run frozen --results {tmp_path}"
    assert frozen_results(tmp_path, seeds=[0, 1]).warnings == ()


def test_an_unfinished_run_is_told_and_left_out(tmp_path: Path) -> None:
    experiment = frozen(tmp_path)
    run = folder(experiment, tmp_path)
    (run / "summary.json").unlink()
    (run / "rounds.jsonl").write_text((run / "rounds.jsonl").read_text().splitlines()[0] + "\n")
    records = again(experiment, tmp_path)
    assert any(
        "Unfinished" in warning and "round 1 of 2" in warning and run.name in warning
        for warning in records.warnings
    )
    assert [measured.cell.seed for measured in records.of("fedshift", "LDA 0.5")] == [0]


@pytest.mark.parametrize("rounds", [0, 1])
def test_a_finished_run_without_all_its_rounds_is_told_and_left_out(
    rounds: int, tmp_path: Path
) -> None:
    experiment = frozen(tmp_path)
    run = folder(experiment, tmp_path)
    lines = (run / "rounds.jsonl").read_text().splitlines(keepends=True)
    (run / "rounds.jsonl").write_text("".join(lines[:rounds]) + lines[rounds][:-9])
    records = again(experiment, tmp_path)
    assert any(
        f"{run.name}: rounds.jsonl is damaged, {rounds} of 2 rounds" in warning
        for warning in records.warnings
    )
    assert [measured.cell.seed for measured in records.of("fedshift", "LDA 0.5")] == [0]
    assert len(records.finished) == 9


@pytest.mark.parametrize("name", ["code", "torch", "flwr"])
def test_runs_of_other_versions_are_told_by_name(name: str, tmp_path: Path) -> None:
    experiment = frozen(tmp_path)
    change(folder(experiment, tmp_path) / "settings.json", "versions", **{name: "another"})
    (warning,) = [
        warning for warning in again(experiment, tmp_path).warnings if "missing" not in warning
    ]
    assert (
        f"different {name}" in warning
        and f"another in {folder(experiment, tmp_path).name}" in warning
    )


def test_a_run_that_was_resumed_with_other_versions_is_told(tmp_path: Path) -> None:
    experiment = frozen(tmp_path)
    for run in tmp_path.iterdir():  # all of them: they do not differ from each other
        content = json.loads((run / "settings.json").read_text())
        del content["checksum"]
        content["earlier-versions"] = [{**content["versions"], "torch": "1", "commit": "earlier"}]
        (run / "settings.json").write_text(line_of(content))
    warnings = [
        warning for warning in again(experiment, tmp_path).warnings if "missing" not in warning
    ]
    assert len(warnings) == 10 and all(
        "begun and finished with different torch," in warning for warning in warnings
    )


def test_rows_of_one_seed_on_other_partitions_are_told(tmp_path: Path) -> None:
    experiment = frozen(tmp_path)
    change(folder(experiment, tmp_path) / "settings.json", "partition-hash")
    (warning,) = [
        warning for warning in again(experiment, tmp_path).warnings if "missing" not in warning
    ]
    assert (
        "LDA 0.5, seed 1" in warning and f"other in {folder(experiment, tmp_path).name}" in warning
    )


def test_settings_that_cannot_be_read_are_one_sentence(tmp_path: Path) -> None:
    experiment = frozen(tmp_path)
    (folder(experiment, tmp_path) / "settings.json").write_text("{")
    warnings = [
        warning
        for warning in again(experiment, tmp_path).warnings
        if folder(experiment, tmp_path).name in warning
    ]
    assert (
        warnings[0]
        == f"{folder(experiment, tmp_path).name}: settings.json is missing or damaged; its own command writes it anew."
    )
    assert not any("differs from the experiment" in warning for warning in warnings)


def test_settings_that_are_not_the_experiments_are_told(tmp_path: Path) -> None:
    experiment = frozen(tmp_path)
    change(folder(experiment, tmp_path) / "settings.json", "settings", momentum=0.1, nodes=7)
    (warning,) = [
        warning for warning in again(experiment, tmp_path).warnings if "missing" not in warning
    ]
    assert "momentum" in warning and "nodes" not in warning  # the number of nodes changes no number


def test_a_model_that_a_finished_run_lacks_is_told(tmp_path: Path) -> None:
    experiment = frozen(tmp_path)
    run = folder(experiment, tmp_path, "creff")
    records = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    for record in records:
        del record["models"]["creff"], record["checksum"]
    (run / "rounds.jsonl").write_text("".join(map(line_of, records)))
    gathered_again = again(experiment, tmp_path)
    assert any(
        "has no model creff" in warning for warning in document(gathered_again).results.warnings
    )
    assert (
        len(gathered_again.of("creff", "LDA 0.5")) == 2
        and len(gathered_again.of("fedavg", "LDA 0.5")) == 3
    )


def test_lost_records_are_said_and_marked_in_every_report(
    tmp_path: Path, no_drawings: None
) -> None:
    """A changed digit in an early record: its weights are still there, so the run counts, without that round."""
    experiment = frozen(tmp_path)
    run = folder(experiment, tmp_path)
    lines = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    first, last = (
        line_of({key: value for key, value in line.items() if key != "checksum"}) for line in lines
    )
    (run / "rounds.jsonl").write_text(first.replace('"round": 1', '"round": 7', 1) + last)
    records = again(experiment, tmp_path)
    sentence = f"{run.name}: the records of rounds 1 are lost; curves, bests and means lack them."
    assert sentence in records.warnings and len(records.finished) == 10
    (measured,) = (
        measured for measured in records.of("fedshift", "LDA 0.5") if measured.cell.seed == 1
    )
    assert [point.round for point in measured.points] == [2]
    whole = document(records)
    assert f"> {sentence}" in markdown([whole]) and sentence in html([whole])
    assert sentence in as_json([whole])[0]["warnings"]


def test_a_client_that_stands_out_or_fails_is_named(tmp_path: Path) -> None:
    experiment = frozen(tmp_path)
    run = folder(experiment, tmp_path)
    norms = {0: 1.0, 1: 1000.0, 2: 1.0, 4: 2.0}
    updates = [
        {"client": client, "norm": norm, "cosine": 0.5, "examples": 10}
        for client, norm in norms.items()
    ]
    lines = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    changed = {"updates": updates, "failures": {"3": "no reply"}}
    kept = [{key: value for key, value in line.items() if key != "checksum"} for line in lines]
    (run / "rounds.jsonl").write_text("".join(line_of({**line, **changed}) for line in kept))
    summary = json.loads((run / "summary.json").read_text())
    summary.pop("checksum", None)
    (run / "summary.json").write_text(line_of({**summary, "failures": 2}))
    text = markdown([document(again(experiment, tmp_path))])
    assert "2 times a client failed in a round and was left out of it: client 3 (2)." in text
    assert any(
        line.startswith(f"| {run.name} |") and "| 2 of 2 | far |" in line
        for line in text.splitlines()
    )
