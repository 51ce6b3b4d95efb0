"""What is wrong with an experiment's runs is told, and nothing unfinished is averaged."""

from pathlib import Path
from typing import Any

import pytest
from frozen import change, folder_of, frozen, frozen_results

from fedskew.experiments import Experiment
from fedskew.report.document import document
from fedskew.report.results import gather


def warnings_of(experiment: Experiment, results: Path) -> list[str]:
    """Return the warnings but for that of the two runs that are missing from the start."""
    found = document(gather(experiment, {"results": str(results)})).results
    return [warning for warning in found.warnings if "2 of 12 runs are missing" not in warning]


def seeds_of(experiment: Experiment, results: Path, row: str = "fedshift") -> list[int]:
    """Return the seeds of a row in LDA 0.5 that count."""
    found = gather(experiment, {"results": str(results)})
    return [run.seed for run in found.of(row, "LDA 0.5").runs]


def test_runs_that_belong_together_raise_no_other_warning_than_the_missing(tmp_path):
    records = frozen_results(tmp_path)
    assert len(records.finished) == 10 and len(records.runs) == 12
    (warning,) = records.warnings
    assert "2 of 12 runs are missing" in warning and "fedshift-seed2" in warning
    assert records.command == f"fedskew run frozen --results {tmp_path}"
    assert frozen_results(tmp_path, seeds=[0, 1]).warnings == ()


def unfinished(run: Path) -> None:
    (run / "summary.json").unlink()
    (run / "rounds.jsonl").write_text((run / "rounds.jsonl").read_text().splitlines()[0] + "\n")


def cut_short(run: Path) -> None:
    (run / "rounds.jsonl").write_text((run / "rounds.jsonl").read_text()[:-9])


def lost_a_record(run: Path) -> None:
    text = (run / "rounds.jsonl").read_text()
    (run / "rounds.jsonl").write_text(text.replace('"round": 1', '"round": 7', 1))


def lost_a_client(run: Path) -> None:
    change(run / "rounds.jsonl", lambda line: line.update(failures={"3": "no reply"}))
    change(run / "summary.json", lambda summary: summary.update(failures=2))


@pytest.mark.parametrize(
    ("damage", "words", "seeds"),
    [
        (unfinished, "unfinished and left out, round 1 of 2", [0]),
        (cut_short, "rounds.jsonl is damaged, 1 of 2 rounds", [0]),
        (lost_a_record, "the records of rounds 1 are lost", [0, 1]),
        (lost_a_client, "2 times a client failed in a round and was left out", [0, 1]),
    ],
)
def test_a_damaged_run_is_told_and_counts_where_its_last_round_is_there(
    damage, words, seeds, tmp_path
):
    experiment = frozen(tmp_path)
    run = folder_of(tmp_path, "fedshift")
    damage(run)
    assert any(f"{run.name}: {words}" in warning for warning in warnings_of(experiment, tmp_path))
    assert seeds_of(experiment, tmp_path) == seeds


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("versions", {"torch": "another"}, "different torch"),
        ("partition-hash", "other", "LDA 0.5, seed 1"),
        ("settings", {"momentum": 0.1, "nodes": 7}, "momentum"),
    ],
)
def test_a_run_that_does_not_belong_with_the_others_is_told(key, value, words, tmp_path):
    """Other versions, another partition, another setting; the number of nodes changes no number."""
    experiment = frozen(tmp_path)
    run = folder_of(tmp_path, "fedshift")

    def changed(origin: dict[str, Any]) -> None:
        origin[key] = {**origin[key], **value} if isinstance(value, dict) else value

    change(run / "settings.json", changed)
    (warning,) = warnings_of(experiment, tmp_path)
    assert words in warning and run.name in warning and "nodes" not in warning


def test_a_run_that_was_resumed_with_other_versions_is_told(tmp_path):
    experiment = frozen(tmp_path)

    def resumed(origin: dict[str, Any]) -> None:
        origin["earlier-versions"] = [{**origin["versions"], "torch": "1", "commit": "earlier"}]

    for run in tmp_path.iterdir():  # all of them: they do not differ from each other
        change(run / "settings.json", resumed)
    found = warnings_of(experiment, tmp_path)
    assert len(found) == 10
    assert all("begun and finished with different torch," in warning for warning in found)


def test_a_model_that_a_finished_run_lacks_is_told(tmp_path):
    experiment = frozen(tmp_path)
    rounds = folder_of(tmp_path, "creff") / "rounds.jsonl"
    change(rounds, lambda record: record["models"].pop("creff"))
    (warning,) = warnings_of(experiment, tmp_path)
    assert "has no model creff" in warning
    assert seeds_of(experiment, tmp_path, "creff") == [0, 2]
    assert seeds_of(experiment, tmp_path, "fedavg") == [0, 1, 2]
