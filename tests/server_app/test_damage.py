"""A run's folder with a file that is damaged, gone, another run's or another format's: noticed, said, and mended."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from in_process import FinishedRun, TamperingGrid, cut, experiment, small

from client_app.tensor_files import read, write_atomically
from data import SettingError
from fedskew.sweep import earlier_result
from server_app.checkpoint import BrokenCheckpoint, Checkpoint, identity
from server_app.run_folder import RunFolder, line_of, verified

Train = Callable[..., FinishedRun]
Harm = Callable[[Path], object]


def memory_files(folder: Path) -> list[Path]:
    """Return the clients' memory files that checkpoints name, those of round 3 last."""
    return sorted(folder.glob("memory/*/round-00000[123].safetensors"), key=lambda file: file.name)


def flip(file: Path, place: int) -> None:
    """Change one bit of a file."""
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)


def change_a_digit(file: Path) -> None:
    """Make another number of the first 0. of a file, which stays JSON."""
    file.write_text(file.read_text().replace("0.", "1.", 1))


def of_another_run(file: Path) -> None:
    """Write the records as another run does, checksum and all."""
    contents = [verified(line) for line in file.read_text().splitlines()]
    file.write_text("".join(line_of({**content, "run": "another"}) for content in contents))


def of_another_version(file: Path) -> None:
    """Write the checkpoint as a version with other contents does, checksum and all."""
    tensors, metadata = read(file, identity(file))
    contents = json.loads(metadata["fedskew"])
    del contents["clients"]
    write_atomically(file, tensors, {**identity(file), "fedskew": json.dumps(contents)})


# ---- a run that is finished ------------------------------------------------------------------------------------------

FINISHED_DAMAGES: list[tuple[str, str, Harm, list[int]]] = [
    ("rounds.jsonl", "is damaged: of 3 rounds it holds 2", lambda file: cut(file, 7), []),
    ("rounds.jsonl", "has lost the records of rounds 1: ", change_a_digit, [1]),
    ("rounds.jsonl", "is damaged: of 3 rounds it holds 0", Path.unlink, [1, 2]),
    ("checkpoint.safetensors", "is damaged", lambda file: cut(file, 7), []),
    ("settings.json", "is missing or damaged and is written anew", change_a_digit, []),
    ("summary.json", "is damaged", change_a_digit, []),
]
"""File, what is said, the damage, and the rounds whose records are lost for good."""
CHANGES: dict[str, Any] = {"method": "scaffold+fedbn", "rounds": 3, "local_epochs": 1}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    return experiment(tmp_path_factory.mktemp("whole"), **CHANGES)


@pytest.mark.parametrize(("name", "said", "harm", "lost"), FINISHED_DAMAGES)
def test_a_finished_run_with_a_damaged_file_is_healed(
    train: Train,
    tmp_path: Path,
    whole: FinishedRun,
    name: str,
    said: str,
    harm: Harm,
    lost: list[int],
) -> None:
    shutil.copytree(whole.folder.path.parent, tmp_path / "results")
    config = small(tmp_path / "results", **CHANGES)
    assert earlier_result(config) is not None
    harm(config.folder / name)
    is_finished = len(lost) == 1  # the last round's record is there, so nothing has to be done
    assert (earlier_result(config) is not None) == is_finished
    healed = train(**CHANGES)
    assert f"{config.folder / name} {said}" in " ".join(healed.lines)
    records = [record for record in whole.records if record["round"] not in lost]
    assert (healed.summary["hash"], healed.records) == (whole.summary["hash"], records)
    assert healed.folder.origin()["partition-hash"] == whole.summary["partition-hash"]
    assert earlier_result(config) is not None


LAST, AGAIN, ANEW = "after round 3", "after round 2", "again from round 1"
DAMAGES: list[tuple[Harm, str, list[int]]] = [
    (lambda folder: None, LAST, []),
    (lambda folder: flip(folder / "checkpoint.safetensors", -9), AGAIN, []),
    (lambda folder: of_another_version(folder / "checkpoint.safetensors"), AGAIN, []),
    (lambda folder: flip(folder / "rounds.jsonl", 12), LAST, [1]),
    (lambda folder: of_another_run(folder / "rounds.jsonl"), AGAIN, [1, 2]),
    (lambda folder: flip(memory_files(folder)[-1], -1), AGAIN, []),
    (lambda folder: [flip(file, 90) for file in folder.glob("*.safetensors")], ANEW, []),
]
"""The damage, where the next start begins, and the rounds whose records are lost for good."""


@pytest.mark.parametrize(("harm", "start", "lost"), DAMAGES)
def test_a_run_that_was_stopped_begins_where_its_files_are_whole(
    train: Train, tmp_path: Path, whole: FinishedRun, harm: Harm, start: str, lost: list[int]
) -> None:
    """It has no summary yet."""
    shutil.copytree(whole.folder.path.parent, tmp_path / "results")
    folder = small(tmp_path / "results", **CHANGES).folder
    (folder / "summary.json").unlink()
    harm(folder)
    resumed = train(**CHANGES)
    assert any(
        line.startswith(("resuming ", "no whole ")) and start in line for line in resumed.lines
    )
    assert resumed.summary["hash"] == whole.summary["hash"]
    assert resumed.records == [record for record in whole.records if record["round"] not in lost]


def test_what_has_no_checksum_or_is_something_else_counts_as_damaged(
    whole: FinishedRun, tmp_path: Path
) -> None:
    folder = RunFolder(shutil.copytree(whole.folder.path, tmp_path / whole.folder.path.name))
    summary, records, origin = folder.summary(), folder.rounds(), folder.origin()
    assert summary is not None and len(records) == 3 and origin["settings"]["rounds"] == 3
    folder.summary_file.write_text(json.dumps(summary))
    folder.rounds_file.write_text("".join(json.dumps(one.to_json()) + "\n" for one in records))
    folder.settings_file.write_text(json.dumps(origin))
    assert (folder.summary(), folder.rounds(), folder.origin()) == (None, [], {})
    for text in ("null", '{"settings": []}', "\u00ff", "[" * 100_000 + "\n[1]\n"):
        for file in (folder.settings_file, folder.summary_file, folder.rounds_file):
            file.write_text(text, encoding="latin-1")
        assert (folder.origin(), folder.summary(), folder.rounds()) == ({}, None, [])


def test_a_run_with_one_checkpoint_and_no_record_is_measured_once_more(train: Train) -> None:
    first = train(rounds=1, method="fedbn")
    first.folder.rounds_file.unlink()
    again = train(rounds=1, method="fedbn", grid=(grid := TamperingGrid()))
    assert grid.kinds() == ["evaluate"], "nothing is trained again"
    assert again.hash == first.hash
    assert again.summary["models"] == first.summary["models"]


def test_another_run_s_files_count_nowhere(train: Train, tmp_path: Path) -> None:
    whole, other = train("a"), train("b", seed=1)
    for name in ("summary.json", "settings.json", "checkpoint.safetensors", "rounds.jsonl"):
        shutil.copytree(tmp_path / "a", tmp_path / name)
        folder = RunFolder(small(tmp_path / name).folder)
        shutil.copy(other.folder.path / name, folder.path)
        again = train(name)
        assert again.hash == whole.hash and again.folder.run == whole.summary["run"], name
        assert again.records == whole.records[name == "rounds.jsonl" :], name
    with pytest.raises(BrokenCheckpoint):
        Checkpoint.load(Path(shutil.copy(other.folder.checkpoint_file, whole.folder.path)))


def test_a_run_whose_settings_are_lost_knows_its_data_by_its_summary_alone(train: Train) -> None:
    folder = train(method="fedbn", rounds=1).folder
    folder.settings_file.unlink()
    with pytest.raises(SettingError):
        folder.refuse_other_data("another")
    folder.summary_file.unlink()
    again = train(method="fedbn", rounds=1)
    assert any("whether the data are those that it was begun on" in line for line in again.lines)
