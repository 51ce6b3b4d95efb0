"""What is wrong with an experiment's runs is told, and nothing unfinished is averaged."""

import json
from pathlib import Path
from typing import Any

import pytest
from frozen import frozen, frozen_results

from fedskew.experiments.experiments import Experiment
from fedskew.experiments.plan import plan
from fedskew.report.document import document
from fedskew.report.results import gather
from server_app.run_folder import line_of


def warnings_of(experiment: Experiment, results: Path) -> list[str]:
    """Return the warnings but for that of the two runs that are missing from the start."""
    found = document(gather(experiment, {"results": str(results)})).results
    return [warning for warning in found.warnings if "2 of 12 runs are missing" not in warning]


def seeds_of(experiment: Experiment, results: Path, row: str = "fedshift") -> list[int]:
    """Return the seeds of a row in LDA 0.5 that count."""
    found = gather(experiment, {"results": str(results)})
    return [run.seed for run in found.of(row, "LDA 0.5").runs]


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
    found = [warning for warning in warnings_of(experiment, tmp_path) if "unfinished" in warning]
    assert len(found) == 1 and "round 1 of 2" in found[0] and run.name in found[0]
    assert seeds_of(experiment, tmp_path) == [0]


def test_a_finished_run_without_all_its_rounds_is_told_and_left_out(tmp_path: Path) -> None:
    experiment = frozen(tmp_path)
    run = folder(experiment, tmp_path)
    first, last = (run / "rounds.jsonl").read_text().splitlines(keepends=True)
    (run / "rounds.jsonl").write_text(first + last[:-9])
    found = warnings_of(experiment, tmp_path)
    assert any(f"{run.name}: rounds.jsonl is damaged, 1 of 2 rounds" in line for line in found)
    assert seeds_of(experiment, tmp_path) == [0]


@pytest.mark.parametrize(
    ("key", "values", "words"),
    [
        ("versions", {"torch": "another"}, "different torch"),
        ("partition-hash", {}, "LDA 0.5, seed 1"),
        ("settings", {"momentum": 0.1, "nodes": 7}, "momentum"),
    ],
)
def test_a_run_that_does_not_belong_with_the_others_is_told(
    key: str, values: dict[str, Any], words: str, tmp_path: Path
) -> None:
    """Other versions, another partition, another setting; the number of nodes changes no number."""
    experiment = frozen(tmp_path)
    run = folder(experiment, tmp_path)
    change(run / "settings.json", key, **values)
    (warning,) = warnings_of(experiment, tmp_path)
    assert words in warning and run.name in warning and "nodes" not in warning


def test_a_run_that_was_resumed_with_other_versions_is_told(tmp_path: Path) -> None:
    experiment = frozen(tmp_path)
    for run in tmp_path.iterdir():  # all of them: they do not differ from each other
        content = json.loads((run / "settings.json").read_text())
        del content["checksum"]
        content["earlier-versions"] = [{**content["versions"], "torch": "1", "commit": "earlier"}]
        (run / "settings.json").write_text(line_of(content))
    found = warnings_of(experiment, tmp_path)
    assert len(found) == 10
    assert all("begun and finished with different torch," in warning for warning in found)


def test_a_model_that_a_finished_run_lacks_is_told(tmp_path: Path) -> None:
    experiment = frozen(tmp_path)
    run = folder(experiment, tmp_path, "creff")
    records = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    for record in records:
        del record["models"]["creff"], record["checksum"]
    (run / "rounds.jsonl").write_text("".join(map(line_of, records)))
    (warning,) = warnings_of(experiment, tmp_path)
    assert "has no model creff" in warning
    assert seeds_of(experiment, tmp_path, "creff") == [0, 2]
    assert seeds_of(experiment, tmp_path, "fedavg") == [0, 1, 2]


def test_lost_records_are_told_and_their_run_counts(tmp_path: Path) -> None:
    """A changed digit in an early record: its weights are still there, so the run counts, without that round."""
    experiment = frozen(tmp_path)
    run = folder(experiment, tmp_path)
    text = (run / "rounds.jsonl").read_text()
    (run / "rounds.jsonl").write_text(text.replace('"round": 1', '"round": 7', 1))
    (warning,) = warnings_of(experiment, tmp_path)
    assert warning.startswith(f"{run.name}: the records of rounds 1 are lost")
    assert seeds_of(experiment, tmp_path) == [0, 1]


def test_a_client_that_fails_is_named(tmp_path: Path) -> None:
    experiment = frozen(tmp_path)
    run = folder(experiment, tmp_path)
    lines = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    kept = [{**line, "failures": {"3": "no reply"}} for line in lines]
    for line in kept:
        del line["checksum"]
    (run / "rounds.jsonl").write_text("".join(map(line_of, kept)))
    summary = json.loads((run / "summary.json").read_text())
    summary.pop("checksum", None)
    (run / "summary.json").write_text(line_of({**summary, "failures": 2}))
    (warning,) = warnings_of(experiment, tmp_path)
    assert "2 times a client failed" in warning and "client 3 (2)" in warning
