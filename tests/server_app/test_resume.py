"""A run that is killed anywhere goes on to the same hash; a damaged or busy folder is refused with a sentence."""

import contextlib
import errno
import json
import multiprocessing
import os
import resource
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import FedSkew
from flwr.app import ConfigRecord, Message, RecordDict
from in_process import PLACES, LosingWorkers, Outcome, TamperingGrid, experiment, killed, losses, number_of, small

import client_app.tensor_files
import fedskew
import server_app.app
import server_app.results
from client_app.memory import folder_of, recall, remember
from client_app.player import Player, player
from client_app.tensor_files import Damaged, WriteFailed
from data import DataError, SettingError, federate
from fedskew.cli.main import main
from fedskew.engines.workers import WorkersGrid
from fedskew.export.from_run import TrainedRun
from fedskew.sweep import finished
from server_app.checkpoint import BrokenCheckpoint, Checkpoint, latest
from server_app.lock import FolderBusy
from server_app.results import RunFolder, line_of, verified
from strategies.exchange import TooFewReplies

Train = Callable[..., Outcome]
LOSSES = {2: ("drop", 1), 4: ("nan", 2)}


def kill(results: Path, place: str, plan: Mapping[int, tuple[str, int]], changes: dict[str, Any]) -> None:
    """Run in a process of its own until it kills itself in round 3."""
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=killed, args=(str(results), place, 3, plan, changes))
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("method", "places"),
    [("scaffold+fedavgm+silobn", (*PLACES[:2], *PLACES[3:])), ("creff+fedshift", PLACES[:1]), ("fedbn", PLACES[2:3]),
     ("singleset", PLACES[1:2]), ("ratio-loss", PLACES[5:])],
)  # fmt: skip
def test_kill_and_resume(train: Train, tmp_path: Path, method: str, places: Sequence[str]) -> None:
    """Wherever it is killed, where server, clients and a deployment keep something; other methods in one place."""
    changes = {"method": method, "rounds": 4, "participation": 0.75}
    whole = train("whole", **changes)
    for place in places:
        kill(tmp_path / place, place, {}, changes)
        started = RunFolder(small(tmp_path / place, **changes).folder)
        assert started.summary() is None
        file = started.previous_file if place == "between its names" else started.checkpoint_file
        assert Checkpoint.load(file).round == (3 if place == "after the checkpoint" else 2)
        resumed = train(place, **changes)
        assert any("resuming after round" in line for line in resumed.lines)
        assert resumed.summary["hash"] == whole.summary["hash"]
        assert resumed.records == whole.records
        assert resumed.summary["models"] == whole.summary["models"]


@pytest.mark.parametrize("method", ["fedbn", "creff+fedshift+fedbn", "scaffold+fedavgm+silobn"])
def test_lost_and_refused_replies(train: Train, tmp_path: Path, method: str) -> None:
    changes = {"method": method, "rounds": 4, "min_replies": 0.5}
    whole = train("whole", grid=TamperingGrid(losses(LOSSES)), **changes)
    failures = {record["round"]: record["failures"] for record in whole.records if record["failures"]}
    assert failures == {2: {"1": "no reply"}, 4: {"2": "model: head.bias is not finite"}}
    assert whole.hash != train("undisturbed", **changes).hash
    faithful = train("faithful", grid=TamperingGrid(losses(LOSSES), faithful=True), **changes)
    assert (faithful.hash, faithful.records) == (whole.hash, whole.records)
    kill(tmp_path / "killed", "before the checkpoint", LOSSES, changes)
    resumed = train("killed", grid=TamperingGrid(losses(LOSSES)), **changes)
    assert (resumed.hash, resumed.records) == (whole.hash, whole.records)
    if "scaffold" in method:  # what the server and the clients keep
        workers = train("workers", grid=LosingWorkers(LOSSES), **changes)
        assert (workers.hash, workers.records) == (whole.hash, whole.records)


def test_resume_keeps_the_memory_of_a_refused_client(train: Train, tmp_path: Path) -> None:
    outcome = train(method="fedbn", rounds=3, min_replies=0.5, grid=TamperingGrid(losses({3: ("nan", 1)})))
    checkpoint = Checkpoint.load(outcome.folder.checkpoint_file)
    assert checkpoint.memory_rounds == {0: 3, 1: 2, 2: 3, 3: 3}


def test_memory_that_is_not_where_the_server_looks_is_missed_by_the_client(train: Train, tmp_path: Path) -> None:
    plan = {3: ("nan", 1)}
    with pytest.raises(TooFewReplies):
        train(method="fedbn", rounds=3, grid=TamperingGrid(losses(plan)))
    folder = small(tmp_path / "results", method="fedbn", rounds=3).folder
    shutil.rmtree(folder / "memory" / "client-00001")
    with pytest.raises(TooFewReplies, match=r"client 1: the memory of round 2 is not at .*round-000002"):
        train(method="fedbn", rounds=3)


def test_the_hash_of_memory_on_other_machines_is_of_its_digests(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    here = train("here", method="fedbn", rounds=2).summary["hash"]
    monkeypatch.setattr(server_app.app, "folder_of", lambda folder, client: folder / "elsewhere" / str(client))
    there = train("there", method="fedbn", rounds=2).summary["hash"]
    workers = train("workers", grid=WorkersGrid(2), method="fedbn", rounds=2).summary["hash"]
    assert there == workers and there["memory"] not in (None, here["memory"]) and there["all"] != here["all"]
    assert {**there, "all": 0, "memory": 0} == {**here, "all": 0, "memory": 0}
    other = train("other", method="fedbn", rounds=2, learning_rate=0.02).summary["hash"]
    assert other["memory"] != there["memory"]


def test_a_memory_that_is_not_the_one_that_the_server_knows_is_refused_by_name(train: Train, tmp_path: Path) -> None:
    plan = {3: ("nan", 0)}
    with pytest.raises(TooFewReplies):
        train(method="fedbn", rounds=3, grid=TamperingGrid(losses(plan)))
    folder = folder_of(small(tmp_path / "results", method="fedbn", rounds=3).folder, 1)
    changed = {name: {k: t + 1 for k, t in state.items()} for name, state in recall(folder, 2).items()}
    remember(folder, 2, changed)  # whole, and of this client, run and round
    with pytest.raises(
        Damaged, match=r"round-000002.safetensors is whole, and not the memory that the server knows of"
    ):
        recall(folder, 2, known=Checkpoint.load(folder.parent.parent / "checkpoint.safetensors").digests["memory"][1])
    said: list[str] = []
    assert latest(RunFolder(folder.parent.parent), said.append) is not None and "not the memory" in said[0]


def test_a_client_whose_data_have_changed_stays_out(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    changed: list[int] = []

    class OfData:
        """The digests that a player has at the moment."""

        def __get__(self, player: Player, owner: type) -> dict[str, str]:
            return {"data": "ab"[bool(changed)] * 64}

        def __set__(self, player: Player, value: dict[str, str]) -> None:
            pass

    monkeypatch.setattr(Player, "digests", OfData(), raising=False)

    def tamper(asked: Message, records: RecordDict) -> None:
        if not changed and asked.metadata.message_type == "train":
            changed.append(1)

    with pytest.raises(TooFewReplies, match=r"round 2: 0 good replies.*client 0: the data are not those of"):
        train("changed", grid=TamperingGrid(tamper), rounds=2)


def test_a_client_that_tells_of_other_data_is_refused(train: Train) -> None:
    def tamper(asked: Message, records: RecordDict) -> None:
        for client in range(4):
            if f"{client}/model" in records:
                other = "b" if client == 1 and number_of(asked) == 2 else "a"
                records[f"{client}/digests"] = ConfigRecord({"data": other * 64})

    class Unmoved(TamperingGrid):
        """Forgets to send what it knows of the data."""

        def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
            messages = list(messages)
            for message in messages:
                known = message.content.config_records["task"]
                known["data-digests"] = [""] * len(known["clients"])  # type: ignore[arg-type]
            return super().push_messages(messages)

    with pytest.raises(TooFewReplies, match=r"round 2: 3 good replies.*client 1: its data are not those of its first"):
        train("other", grid=Unmoved(tamper), rounds=2)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "nothing": lambda folder: None,
    "checkpoint cut": lambda folder: cut(folder / "checkpoint.safetensors", 7),
    "checkpoint empty": lambda folder: (folder / "checkpoint.safetensors").write_bytes(b"") and None,
    "checkpoint gone": lambda folder: (folder / "checkpoint.safetensors").unlink(),
    "a bit of the checkpoint": lambda folder: flip(folder / "checkpoint.safetensors", -9),
    "last record cut": lambda folder: cut(folder / "rounds.jsonl", 7),
    "a number of the last record": lambda folder: flip(folder / "rounds.jsonl", -120),
    "first record": lambda folder: flip(folder / "rounds.jsonl", 12),
    "last two records": lambda folder: [drop_line(folder / "rounds.jsonl", 1) for _ in range(2)] and None,
    "all records": lambda folder: (folder / "rounds.jsonl").unlink(),
    "another run's records": lambda folder: of_another_run(folder / "rounds.jsonl"),
    "a bit of a memory file": lambda folder: flip(memory_files(folder)[-1], -1),
    "a memory file gone": lambda folder: memory_files(folder)[-1].unlink(),
    "every memory file": lambda folder: [cut(file, 7) for file in memory_files(folder)] and None,
    "both checkpoints": lambda folder: [flip(file, 90) for file in folder.glob("*.safetensors")] and None,
}
LOST = {"first record": [1], "last two records": [2], "all records": [1, 2], "another run's records": [1, 2]}
"""Rounds whose records are gone; that of the last round comes back, as the round is played again."""
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


def cut(file: Path, length: int) -> None:
    """Take bytes off a file's end."""
    file.write_bytes(file.read_bytes()[:-length])


def flip(file: Path, place: int) -> None:
    """Change one bit of a file."""
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)


def test_damaged_files_are_noticed_and_the_run_ends_the_same(train: Train, tmp_path: Path) -> None:
    changes = {"method": "scaffold+fedbn", "rounds": 4, "participation": 0.75}
    whole = train("whole", **changes)
    kill(tmp_path / "killed", "after the checkpoint", {}, changes)
    for damage, harm in DAMAGES.items():
        shutil.copytree(tmp_path / "killed", tmp_path / damage)
        harm(small(tmp_path / damage, **changes).folder)
        resumed = train(damage, **changes)
        assert any(SAID.get(damage, "resuming after round 2") in line for line in resumed.lines), damage
        if damage not in ("nothing", "checkpoint gone", "a memory file gone", *LOST):
            assert any("damaged" in line for line in resumed.lines), damage
        assert resumed.summary["hash"] == whole.summary["hash"], damage
        lost = LOST.get(damage, [])
        assert resumed.records == [record for record in whole.records if record.get("round") not in lost], damage
        said = [line for line in resumed.lines if "has lost the records of rounds" in line]
        assert bool(lost) == bool(said) and all(f"of rounds {', '.join(map(str, lost))}:" in line for line in said)


def test_changed_data_are_never_mixed_into_a_run(tmp_path: Path) -> None:
    def trained(results: str, labels: np.ndarray, **more: Any) -> Outcome:
        images = np.random.default_rng(0).integers(0, 256, (200, 8, 8), dtype=np.uint8)
        np.savez(tmp_path / "own.npz", train_images=images, train_labels=labels, test_images=images, test_labels=labels)
        os.utime(tmp_path / "own.npz", (0, 100 * labels[0]))  # another time, as of a file that is written later
        federate.cache_clear()
        player.cache_clear()
        stated = {"dataset": f"npz:{tmp_path / 'own.npz'}", "classes": "2", "input-shape": "1x8x8", "alpha": 5.0}
        return experiment(tmp_path / results, **{**stated, "rounds": 2, **more})

    before, after = np.arange(200) % 2, np.arange(200) % 2
    after[:20] = 1 - after[:20]
    first = trained("results", before)
    with pytest.raises(SettingError, match="was begun on other data or another partition: state fresh = true"):
        trained("results", after)
    first.folder.summary_file.unlink()
    with pytest.raises(SettingError, match="was begun on other data"):
        trained("results", after)
    assert trained("results", after, fresh=True).hash == trained("alone", after).hash != first.hash


def test_the_previous_memory_is_there_when_the_next_round_had_begun(train: Train, tmp_path: Path) -> None:
    changes = {"method": "fedbn", "rounds": 5}
    whole = train("whole", **changes)
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=killed, args=(str(tmp_path / "killed"), "during training", 4, {}, changes))
    process.start()
    process.join(120)
    cut(small(tmp_path / "killed", **changes).folder / "checkpoint.safetensors", 7)
    resumed = train("killed", **changes)
    assert "resuming after round 2" in resumed.lines
    assert (resumed.hash, resumed.records) == (whole.hash, whole.records)


def test_what_has_no_checksum_counts_as_damaged(train: Train) -> None:
    folder = train().folder
    summary, records, origin = folder.summary(), folder.rounds(), folder.origin()
    assert summary is not None and "checksum" not in summary and origin["settings"]["rounds"] == 2
    folder.summary_file.write_text(json.dumps(summary))
    folder.rounds_file.write_text("".join(json.dumps(record.to_json()) + "\n" for record in records))
    folder.settings_file.write_text(json.dumps(origin))
    assert (folder.summary(), folder.rounds(), folder.origin()) == (None, [], {})
    folder.rounds_file.write_text("[" * 100_000 + "\n[1]\n")
    assert folder.rounds() == []


def change_a_digit(file: Path) -> None:
    """Make another number of the first 0. of a file, which stays JSON."""
    file.write_text(file.read_text().replace("0.", "1.", 1))


@pytest.mark.parametrize("damage", [lambda file: cut(file, 7), change_a_digit], ids=["cut", "changed"])
def test_a_damaged_summary_is_written_once_more(train: Train, damage: Callable[[Path], None]) -> None:
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
    ("rounds.jsonl", "is damaged: of 3 rounds it holds 0", lambda file: file.write_text("{}\n" * 3), [1, 2]),
    ("checkpoint.safetensors", "is missing", lambda file: file.unlink(), []),
    ("checkpoint.safetensors", "is damaged", lambda file: cut(file, 7), []),
    ("settings.json", "is missing or damaged and is written anew", lambda file: cut(file, 7), []),
    ("settings.json", "is missing or damaged and is written anew", lambda file: change_a_digit(file), []),
    ("settings.json", "is missing or damaged and is written anew", lambda file: file.unlink(), []),
]
"""File, what is said, the damage, and the rounds whose records are lost for good."""


def drop_line(file: Path, number: int) -> None:
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:number] + lines[number + 1 :]))


def test_a_finished_run_with_a_damaged_file_is_none_and_is_healed(train: Train, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"method": "scaffold+fedbn", "rounds": 3}
    whole = train("whole", **changes)
    for number, (name, said, harm, lost) in enumerate(FINISHED_DAMAGES):
        results, case = str(number), FINISHED_DAMAGES[number][:2]
        shutil.copytree(tmp_path / "whole", tmp_path / results)
        config = small(tmp_path / results, **changes)
        assert list(finished([config])) == [config.run_id]
        harm(config.folder / name)
        still = lost and 3 - len(lost) == 2  # the last round's record is there, so nothing has to be done
        assert list(finished([config])) == [config.run_id] * bool(still), case
        healed = train(results, grid=(grid := TamperingGrid()), **changes)
        assert f"{config.folder / name} {said}" in " ".join(healed.lines), case
        assert bool(grid.asked) is (name != "settings.json" and not still), f"{case}: only the settings cost no round"
        records = [record for record in whole.records if record["round"] not in lost]
        assert (healed.summary["hash"], healed.records) == (whole.summary["hash"], records), case
        if not still:
            assert healed.folder.origin() == whole.folder.origin() | {"settings": config.flat()}, case
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
        assert again.summary["hash"] == whole.summary["hash"] and again.folder.run == whole.summary["run"], name
        assert again.records == (whole.records if name != "rounds.jsonl" else whole.records[1:]), name
    with pytest.raises(BrokenCheckpoint, match="its run is"):
        Checkpoint.load(Path(shutil.copy(other.folder.checkpoint_file, whole.folder.path)))


def test_a_run_s_folder_that_was_moved_is_still_its_own(train: Train, tmp_path: Path) -> None:
    run = train(method="fedbn")
    moved = run.folder.path.rename(tmp_path / "thesis")
    assert fedskew.load(moved).hash == run.hash
    assert TrainedRun(RunFolder(moved, moved=True)).description.run == run.summary["run"]
    assert [site.name for site, _ in TrainedRun(RunFolder(moved, moved=True)).kept()] == ["0", "1", "2", "3"]


def test_a_record_is_on_the_disk_before_its_checkpoint(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    order, fsync, save = list[str](), os.fsync, Checkpoint.save
    monkeypatch.setattr(os, "fsync", lambda file: order.append("record") or fsync(file))
    monkeypatch.setattr(Checkpoint, "save", lambda *given: order.append("checkpoint") or save(*given))
    train(method="fedavg")
    assert order == ["record", "checkpoint"] * 2


def test_a_run_whose_settings_are_lost_goes_on_and_says_what_it_cannot_check(train: Train, tmp_path: Path) -> None:
    whole = train("results", method="fedbn", rounds=3)
    whole.folder.summary_file.unlink()
    cut(whole.folder.settings_file, 7)
    again = train("results", method="fedbn", rounds=3)
    (sentence,) = [line for line in again.lines if "settings.json" in line]
    assert sentence.endswith("written anew; whether the data are those that it was begun on cannot be checked")
    assert again.hash == whole.hash and again.folder.origin()["partition-hash"] == whole.summary["partition-hash"]


def test_a_finished_run_whose_settings_are_lost_still_knows_its_data(train: Train) -> None:
    folder = train().folder
    folder.settings_file.unlink()
    with pytest.raises(SettingError, match="was begun on other data"):
        folder.refuse_other_data("another")


@pytest.mark.parametrize("text", ["null", "[]", "{}", "0", '{"settings": []}', '{"models": 1}', "\u00ff"])
def test_json_that_is_something_else_counts_as_damaged(train: Train, text: str) -> None:
    folder = train().folder
    for file in (folder.settings_file, folder.summary_file, folder.rounds_file):
        file.write_text(text, encoding="latin-1")
    assert (folder.origin(), folder.summary(), folder.rounds()) == ({}, None, [])
    with pytest.raises(DataError, match=r"settings.json is missing or broken"):
        TrainedRun(folder)
    assert train().summary["rounds"] == 2


@pytest.mark.parametrize("name", ["checkpoint.safetensors", "rounds.jsonl", "summary.json", "round-000003.safetensors"])
def test_a_full_disk_is_one_sentence_and_harms_nothing(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The disk is full when a file of that name is written in or after round 3."""
    changes = {"method": "fedbn", "rounds": 4}
    whole = train("whole", **changes)
    real, folder = client_app.tensor_files.writing, small(tmp_path / "full", **changes).folder

    @contextlib.contextmanager
    def full(path: Path) -> Iterator[None]:
        with real(path):
            begun = name == "summary.json" or (path.exists() and len(RunFolder(folder).rounds()) >= 2)
            if path.name == name and (begun or name == "round-000003.safetensors"):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            yield

    with monkeypatch.context() as patch:
        for module in (client_app.tensor_files, server_app.results):
            patch.setattr(module, "writing", full)
        with pytest.raises((WriteFailed, TooFewReplies), match=rf"{name} cannot be written: No space left on device"):
            train("full", **changes)
    resumed = train("full", **changes)
    assert (resumed.hash, resumed.records) == (whole.hash, whole.records)


def limited(words: list[str], errors: Path) -> None:
    """Run a command whose files cannot grow beyond 40,000 bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
    sys.argv, sys.stderr = ["fedskew", *words], errors.open("w")
    main()


def test_a_file_that_grows_too_large_is_one_sentence(tmp_path: Path, fedskew: FedSkew) -> None:
    """The operating system itself refuses, in the middle of a file."""
    results, errors = tmp_path / "results", tmp_path / "errors"
    words = ["run", "--engine", "inprocess", "--results", str(results), "--set", "rounds=2", "--set", "local-steps=1"]
    process = multiprocessing.get_context("forkserver").Process(target=limited, args=(words, errors))
    process.start()
    process.join()
    assert process.exitcode == 1
    assert errors.read_text().count("\n") == 1
    assert "checkpoint.safetensors cannot be written" in errors.read_text() and "File too large" in errors.read_text()
    (folder,) = (file for file in results.iterdir() if file.is_dir())
    assert not [file for file in folder.iterdir() if file.name.startswith(".")]
    assert fedskew(*words)[0] == 0


def test_checkpoint_of_another_format(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    file = train().folder.checkpoint_file
    monkeypatch.setattr("server_app.checkpoint.FORMAT", 2)
    with pytest.raises(BrokenCheckpoint, match="format 1, not 2"):
        Checkpoint.load(file)


def test_finished_run_is_not_repeated(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    grids = [TamperingGrid() for _ in range(3)]
    first = train(grid=grids[0], method="fedshift")
    again = train(grid=grids[1], method="fedshift")
    assert (again.summary, grids[1].asked) == (first.summary, [])
    assert any("fresh" in line for line in again.lines)
    fresh = train(grid=grids[2], method="fedshift", fresh=True)
    assert grids[2].kinds() == grids[0].kinds() == ["query", "train", "train"]
    assert (fresh.hash, fresh.records) == (first.hash, first.records)


def test_run_killed_before_its_summary_only_writes_it(train: Train) -> None:
    first = train(method="creff")
    first.folder.summary_file.unlink()
    again = train(method="creff", grid=(grid := TamperingGrid()))
    assert grid.asked == []
    keys = ("hash", "models", "rows", "failures")
    assert {key: again.summary[key] for key in keys} == {key: first.summary[key] for key in keys}


def test_other_versions_that_made_rounds_of_a_run_stay_on_record(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    for torch, earlier in (("1", None), ("2", ["1"]), ("2", ["1"]), ("1", ["2"]), ("3", ["2", "1"])):
        monkeypatch.setattr(server_app.results, "versions", lambda torch=torch: {"torch": torch})
        folder = train().folder
        folder.summary_file.unlink()
        origin = folder.origin()
        assert origin["versions"] == {"torch": torch}
        assert [versions["torch"] for versions in origin.get("earlier-versions", [])] == (earlier or [])
    folder.checkpoint_file.unlink()
    folder.previous_file.unlink()
    assert "earlier-versions" not in train().folder.origin(), "all rounds are made anew"


def hold(folder: Path, other: Connection) -> None:
    """Hold a folder's lock until somebody says so."""
    with RunFolder(folder).locked():
        other.send("held")
        other.recv()


def test_lock_refuses_a_second_process(train: Train, tmp_path: Path) -> None:
    folder, context = small(tmp_path / "results").folder, multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe()
    holder = context.Process(target=hold, args=(folder, theirs))
    holder.start()
    assert ours.poll(60) and ours.recv() == "held"
    with pytest.raises(FolderBusy, match=rf"process {holder.pid} is working on {folder}"):
        train()
    ours.send("enough")
    holder.join()
    assert train().summary["rounds"] == 2  # the lock falls with the process


def test_folder_that_cannot_be_written(train: Train, tmp_path: Path) -> None:
    (tmp_path / "results").write_text("a file")
    with pytest.raises(SettingError, match=r"results = .*cannot be written"):
        train()


def test_json_of_the_run_folder(train: Train) -> None:
    outcome = train(method="fedshift", evaluate_every=0)
    origin = json.loads(outcome.folder.settings_file.read_text())
    assert origin["settings"]["logit-shift.smoothing"] == 1.0
    assert origin["versions"]["torch"] and origin["versions"]["code"]
    assert [record["evaluated-by"] for record in outcome.records] == ["nobody", "server"]
    assert [bool(record["models"]) for record in outcome.records] == [False, True]
    assert outcome.summary["models"]["average"]["best-test"]["round"] == 2
    assert server_app.app.RunFolder(outcome.folder.path).summary() == json.loads(json.dumps(outcome.summary))
