"""What is wrong with an experiment's runs is told, and nothing unfinished is averaged."""

import json
from pathlib import Path
from typing import Any

import pytest
from frozen import frozen, gathered

from fedskew.experiments.experiments import Experiment
from fedskew.experiments.plan import plan
from fedskew.report.gather import Gathered, gather
from server_app.results import line_of


def again(experiment: Experiment, results: Path) -> Gathered:
    return gather(experiment, {"results": str(results)})


def folder(
    experiment: Experiment, results: Path, row: str = "fedshift", column: str = "LDA 0.5", seed: int = 1
) -> Path:
    """Return a run's folder."""
    cells = plan(experiment, {"results": str(results)})
    return next(c.run.folder for c in cells if (c.row, c.column, c.seed) == (row, column, seed))


def change(file: Path, key: str, **values: Any) -> None:
    content = json.loads(file.read_text())
    content[key] = {**content[key], **values} if values else "other"
    file.write_text(json.dumps(content))


def test_runs_that_belong_together_raise_no_other_warning_than_the_missing(tmp_path: Path) -> None:
    records = gathered(tmp_path)
    assert len(records.finished) == 10 and len(records.runs) == 12
    (warning,) = records.warnings
    assert "2 of 12 runs are missing" in warning and "fedshift-seed2" in warning
    assert records.command == f"fedskew run frozen --results {tmp_path}"
    assert gathered(tmp_path, seeds=[0, 1]).warnings == ()


def test_an_unfinished_run_is_told_and_left_out(tmp_path: Path) -> None:
    experiment = frozen(tmp_path)
    run = folder(experiment, tmp_path)
    (run / "summary.json").unlink()
    (run / "rounds.jsonl").write_text((run / "rounds.jsonl").read_text().splitlines()[0] + "\n")
    records = again(experiment, tmp_path)
    assert any(
        "Unfinished" in warning and "round 1 of 2" in warning and run.name in warning for warning in records.warnings
    )
    assert [measured.cell.seed for measured in records.of("fedshift", "LDA 0.5")] == [0]


@pytest.mark.parametrize("rounds", [0, 1])
def test_a_finished_run_without_all_its_rounds_is_told_and_left_out(rounds: int, tmp_path: Path) -> None:
    experiment = frozen(tmp_path)
    run = folder(experiment, tmp_path)
    lines = (run / "rounds.jsonl").read_text().splitlines(keepends=True)
    (run / "rounds.jsonl").write_text("".join(lines[:rounds]) + lines[rounds][:-9])
    records = again(experiment, tmp_path)
    assert any(f"{run.name}: rounds.jsonl is damaged, {rounds} of 2 rounds" in warning for warning in records.warnings)
    assert [measured.cell.seed for measured in records.of("fedshift", "LDA 0.5")] == [0]
    assert len(records.finished) == 9


@pytest.mark.parametrize("name", ["code", "torch", "flwr"])
def test_runs_of_other_versions_are_told_by_name(name: str, tmp_path: Path) -> None:
    experiment = frozen(tmp_path)
    change(folder(experiment, tmp_path) / "settings.json", "versions", **{name: "another"})
    (warning,) = [warning for warning in again(experiment, tmp_path).warnings if "missing" not in warning]
    assert f"different {name}" in warning and f"another in {folder(experiment, tmp_path).name}" in warning


def test_a_run_that_was_resumed_with_other_versions_is_told(tmp_path: Path) -> None:
    experiment = frozen(tmp_path)
    for run in tmp_path.iterdir():  # all of them: they do not differ from each other
        content = json.loads((run / "settings.json").read_text())
        content["earlier-versions"] = [{**content["versions"], "torch": "1", "commit": "earlier"}]
        (run / "settings.json").write_text(json.dumps(content))
    warnings = [warning for warning in again(experiment, tmp_path).warnings if "missing" not in warning]
    assert len(warnings) == 10 and all("begun and finished with different torch," in warning for warning in warnings)


def test_rows_of_one_seed_on_other_partitions_are_told(tmp_path: Path) -> None:
    experiment = frozen(tmp_path)
    change(folder(experiment, tmp_path) / "settings.json", "partition-hash")
    (warning,) = [warning for warning in again(experiment, tmp_path).warnings if "missing" not in warning]
    assert "LDA 0.5, seed 1" in warning and f"other in {folder(experiment, tmp_path).name}" in warning


def test_settings_that_cannot_be_read_are_one_sentence(tmp_path: Path) -> None:
    experiment = frozen(tmp_path)
    (folder(experiment, tmp_path) / "settings.json").write_text("{")
    warnings = [
        warning for warning in again(experiment, tmp_path).warnings if folder(experiment, tmp_path).name in warning
    ]
    assert (
        warnings[0]
        == f"{folder(experiment, tmp_path).name}: settings.json is missing or damaged; its own command writes it anew."
    )
    assert not any("differs from the experiment" in warning for warning in warnings)


def test_settings_that_are_not_the_experiments_are_told(tmp_path: Path) -> None:
    experiment = frozen(tmp_path)
    change(folder(experiment, tmp_path) / "settings.json", "settings", momentum=0.1, nodes=7)
    (warning,) = [warning for warning in again(experiment, tmp_path).warnings if "missing" not in warning]
    assert "momentum" in warning and "nodes" not in warning  # the number of nodes changes no number


def test_a_model_that_a_finished_run_lacks_is_told(tmp_path: Path) -> None:
    experiment = frozen(tmp_path)
    run = folder(experiment, tmp_path, "creff")
    records = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    for record in records:
        del record["models"]["creff"], record["checksum"]
    (run / "rounds.jsonl").write_text("".join(map(line_of, records)))
    gathered_again = again(experiment, tmp_path)
    assert any("no numbers of creff" in warning for warning in gathered_again.warnings)
    assert len(gathered_again.of("creff", "LDA 0.5")) == 2 and len(gathered_again.of("fedavg", "LDA 0.5")) == 3
