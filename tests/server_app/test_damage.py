"""A run's folder with a file that is damaged, gone, another run's or another format's: noticed, said, and mended."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from in_process import FinishedRun, TamperingGrid, cut, kill, small

import fedskew
from data import DataError, SettingError
from data.renamed_settings import stored
from fedskew.export.from_run import TrainedRun
from fedskew.sweep import finished
from server_app.checkpoint import BrokenCheckpoint, Checkpoint
from server_app.run_folder import RunFolder, line_of, verified

Train = Callable[..., FinishedRun]
DAMAGES: dict[str, Callable[[Path], None]] = {
    "nothing": lambda folder: None,
    "checkpoint cut": lambda folder: cut(folder / "checkpoint.safetensors", 7),
    "checkpoint empty": lambda folder: (
        (folder / "checkpoint.safetensors").write_bytes(b"") and None
    ),
    "checkpoint gone": lambda folder: (folder / "checkpoint.safetensors").unlink(),
    "a bit of the checkpoint": lambda folder: flip(folder / "checkpoint.safetensors", -9),
    "last record cut": lambda folder: cut(folder / "rounds.jsonl", 7),
    "a number of the last record": lambda folder: flip(folder / "rounds.jsonl", -120),
    "first record": lambda folder: flip(folder / "rounds.jsonl", 12),
    "last two records": lambda folder: (
        [drop_line(folder / "rounds.jsonl", 1) for _ in range(2)] and None
    ),
    "all records": lambda folder: (folder / "rounds.jsonl").unlink(),
    "another run's records": lambda folder: of_another_run(folder / "rounds.jsonl"),
    "a bit of a memory file": lambda folder: flip(memory_files(folder)[-1], -1),
    "a memory file gone": lambda folder: memory_files(folder)[-1].unlink(),
    "every memory file": lambda folder: [cut(file, 7) for file in memory_files(folder)] and None,
    "both checkpoints": lambda folder: (
        [flip(file, 90) for file in folder.glob("*.safetensors")] and None
    ),
}
LOST = {
    "first record": [1],
    "last two records": [2],
    "all records": [1, 2],
    "another run's records": [1, 2],
}
"""Rounds whose records are gone; that of the last round comes back, as the round is run again."""
SAID = {
    "nothing": "resuming after round 3",
    "first record": "resuming after round 3",
    "every memory file": "starting again from round 1",
    "both checkpoints": "starting again from round 1",
}


def of_another_run(file: Path) -> None:
    """Write the records as another run does, checksum and all."""
    contents = [verified(line, {}) for line in file.read_text().splitlines()]
    file.write_text("".join(line_of({**content, "run": "another"}) for content in contents))


def memory_files(folder: Path) -> list[Path]:
    """Return the clients' memory files that checkpoints name, those of round 3 last."""
    return sorted(folder.glob("memory/*/round-00000[123].safetensors"), key=lambda file: file.name)


def flip(file: Path, place: int) -> None:
    """Change one bit of a file."""
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)


@pytest.mark.slow
def test_damaged_files_are_noticed_and_the_run_ends_the_same(train: Train, tmp_path: Path) -> None:
    changes = {"method": "scaffold+fedbn", "rounds": 4, "participation": 0.75}
    whole = train("whole", **changes)
    kill(tmp_path / "killed", "after the checkpoint", changes)
    for damage, harm in DAMAGES.items():
        shutil.copytree(tmp_path / "killed", tmp_path / damage)
        harm(small(tmp_path / damage, **changes).folder)
        resumed = train(damage, **changes)
        assert any(SAID.get(damage, "resuming after round 2") in line for line in resumed.lines), (
            damage
        )
        if damage not in ("nothing", "checkpoint gone", "a memory file gone", *LOST):
            assert any("damaged" in line for line in resumed.lines), damage
        assert resumed.summary["hash"] == whole.summary["hash"], damage
        lost = LOST.get(damage, [])
        assert resumed.records == [
            record for record in whole.records if record.get("round") not in lost
        ], damage
        said = [line for line in resumed.lines if "has lost the records of rounds" in line]
        assert bool(lost) == bool(said) and all(
            f"of rounds {', '.join(map(str, lost))}:" in line for line in said
        )


def test_what_has_no_checksum_counts_as_damaged(train: Train) -> None:
    folder = train().folder
    summary, records, origin = folder.summary(), folder.rounds(), folder.origin()
    assert summary is not None and "checksum" not in summary and origin["settings"]["rounds"] == 2
    folder.summary_file.write_text(json.dumps(summary))
    folder.rounds_file.write_text(
        "".join(json.dumps(record.to_json()) + "\n" for record in records)
    )
    folder.settings_file.write_text(json.dumps(origin))
    assert (folder.summary(), folder.rounds(), folder.origin()) == (None, [], {})
    folder.rounds_file.write_text("[" * 100_000 + "\n[1]\n")
    assert folder.rounds() == []


def change_a_digit(file: Path) -> None:
    """Make another number of the first 0. of a file, which stays JSON."""
    file.write_text(file.read_text().replace("0.", "1.", 1))


@pytest.mark.parametrize(
    "damage", [lambda file: cut(file, 7), change_a_digit], ids=["cut", "changed"]
)
def test_a_damaged_summary_is_written_once_more(
    train: Train, damage: Callable[[Path], None]
) -> None:
    first = train(method="creff")
    damage(first.folder.summary_file)
    again = train(method="creff", grid=(grid := TamperingGrid()))
    assert grid.asked == []
    assert any("summary.json is damaged" in line for line in again.lines)
    assert again.summary["hash"] == first.summary["hash"]


FINISHED_DAMAGES: list[tuple[str, str, Callable[[Path], Any], list[int]]] = [
    ("rounds.jsonl", "is damaged: of 3 rounds it holds 2", lambda file: cut(file, 7), []),
    ("rounds.jsonl", "has lost the records of rounds 1: ", lambda file: change_a_digit(file), [1]),
    ("rounds.jsonl", "has lost the records of rounds 2: ", lambda file: drop_line(file, 1), [2]),
    ("rounds.jsonl", "is damaged: of 3 rounds it holds 0", lambda file: file.unlink(), [1, 2]),
    (
        "rounds.jsonl",
        "is damaged: of 3 rounds it holds 0",
        lambda file: file.write_text("{}\n" * 3),
        [1, 2],
    ),
    ("checkpoint.safetensors", "is missing", lambda file: file.unlink(), []),
    ("checkpoint.safetensors", "is damaged", lambda file: cut(file, 7), []),
    ("settings.json", "is missing or damaged and is written anew", lambda file: cut(file, 7), []),
    (
        "settings.json",
        "is missing or damaged and is written anew",
        lambda file: change_a_digit(file),
        [],
    ),
    ("settings.json", "is missing or damaged and is written anew", lambda file: file.unlink(), []),
]
"""File, what is said, the damage, and the rounds whose records are lost for good."""


def drop_line(file: Path, number: int) -> None:
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:number] + lines[number + 1 :]))


def test_a_finished_run_with_a_damaged_file_is_none_and_is_healed(
    train: Train, tmp_path: Path
) -> None:
    changes: dict[str, Any] = {"method": "scaffold+fedbn", "rounds": 3}
    whole = train("whole", **changes)
    for number, (name, said, harm, lost) in enumerate(FINISHED_DAMAGES):
        results, case = str(number), FINISHED_DAMAGES[number][:2]
        shutil.copytree(tmp_path / "whole", tmp_path / results)
        config = small(tmp_path / results, **changes)
        assert list(finished([config])) == [config.run_id]
        harm(config.folder / name)
        still = (
            lost and 3 - len(lost) == 2
        )  # the last round's record is there, so nothing has to be done
        assert list(finished([config])) == [config.run_id] * bool(still), case
        healed = train(results, grid=(grid := TamperingGrid()), **changes)
        assert f"{config.folder / name} {said}" in " ".join(healed.lines), case
        assert bool(grid.asked) is (name != "settings.json" and not still), (
            f"{case}: only the settings cost no round"
        )
        records = [record for record in whole.records if record["round"] not in lost]
        assert (healed.summary["hash"], healed.records) == (whole.summary["hash"], records), case
        if not still:
            settings = {"settings": stored(config.flat())}
            assert healed.folder.origin() == whole.folder.origin() | settings, case
        assert list(finished([config])) == [config.run_id]


def test_a_run_with_one_checkpoint_and_no_record_is_measured_once_more(train: Train) -> None:
    first = train(rounds=1, method="fedbn")
    first.folder.rounds_file.unlink()
    again = train(rounds=1, method="fedbn", grid=(grid := TamperingGrid()))
    assert grid.kinds() == ["evaluate"], "nothing is trained again"
    assert again.hash == first.hash
    assert again.summary["models"] == first.summary["models"]


def test_another_run_s_files_count_nowhere(train: Train, tmp_path: Path) -> None:
    whole, other = train("a", method="fedavg"), train("b", method="fedavg", seed=1)
    assert other.hash != whole.hash
    for name in ("summary.json", "settings.json", "checkpoint.safetensors", "rounds.jsonl"):
        shutil.copytree(tmp_path / "a", tmp_path / name)
        folder = RunFolder(small(tmp_path / name, method="fedavg").folder)
        shutil.copy(other.folder.path / name, folder.path)
        again = train(name, method="fedavg")
        assert (
            again.summary["hash"] == whole.summary["hash"]
            and again.folder.run == whole.summary["run"]
        ), name
        assert again.records == (whole.records if name != "rounds.jsonl" else whole.records[1:]), (
            name
        )
    with pytest.raises(BrokenCheckpoint, match="its run is"):
        Checkpoint.load(Path(shutil.copy(other.folder.checkpoint_file, whole.folder.path)))


def test_a_run_s_folder_that_was_moved_is_still_its_own(train: Train, tmp_path: Path) -> None:
    run = train(method="fedbn")
    moved = run.folder.path.rename(tmp_path / "thesis")
    assert fedskew.load(moved).hash == run.hash
    assert TrainedRun(RunFolder(moved, moved=True)).description.run == run.summary["run"]
    assert [site.name for site, _ in TrainedRun(RunFolder(moved, moved=True)).kept()] == [
        "0",
        "1",
        "2",
        "3",
    ]


def test_a_run_whose_settings_are_lost_goes_on_and_says_what_it_cannot_check(
    train: Train, tmp_path: Path
) -> None:
    whole = train("results", method="fedbn", rounds=3)
    whole.folder.summary_file.unlink()
    cut(whole.folder.settings_file, 7)
    again = train("results", method="fedbn", rounds=3)
    (sentence,) = [line for line in again.lines if "settings.json" in line]
    assert sentence.endswith(
        "written anew; whether the data are those that it was begun on cannot be checked"
    )
    assert (
        again.hash == whole.hash
        and again.folder.origin()["partition-hash"] == whole.summary["partition-hash"]
    )


def test_a_finished_run_whose_settings_are_lost_still_knows_its_data(train: Train) -> None:
    folder = train().folder
    folder.settings_file.unlink()
    with pytest.raises(SettingError, match="was begun on other data"):
        folder.refuse_other_data("another")


@pytest.mark.parametrize(
    "text", ["null", "[]", "{}", "0", '{"settings": []}', '{"models": 1}', "\u00ff"]
)
def test_json_that_is_something_else_counts_as_damaged(train: Train, text: str) -> None:
    folder = train().folder
    for file in (folder.settings_file, folder.summary_file, folder.rounds_file):
        file.write_text(text, encoding="latin-1")
    assert (folder.origin(), folder.summary(), folder.rounds()) == ({}, None, [])
    with pytest.raises(DataError, match=r"settings.json is missing or broken"):
        TrainedRun(folder)
    assert train().summary["rounds"] == 2


def test_checkpoint_of_another_format(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    file = train().folder.checkpoint_file
    monkeypatch.setattr("server_app.checkpoint.FORMAT", 2)
    with pytest.raises(BrokenCheckpoint, match="format 1, not 2"):
        Checkpoint.load(file)
