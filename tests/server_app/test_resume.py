"""A run that is killed anywhere, loses replies or has been done goes on to the same hash, or is done."""

import json
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from in_process import (
    PLACES,
    FinishedRun,
    LosingWorkers,
    TamperingGrid,
    cut,
    experiment,
    kill,
    losses,
    number_of,
    small,
)

import server_app.app
import server_app.run_folder
import server_app.run_hashes
from client_app.memory import folder_of
from client_app.memory import load as load_memory
from client_app.memory import save as save_memory
from client_app.messages import kind_of
from client_app.runtime import ClientRuntime, simulation_runtime
from client_app.tensor_files import Damaged
from data import SettingError, federate
from fedskew.engines.workers import WorkersGrid
from server_app.checkpoint import Checkpoint, latest
from server_app.methods import METHODS
from server_app.run_folder import RunFolder
from strategies.core.exchange import TooFewReplies

Train = Callable[..., FinishedRun]
LOSSES = {2: ("drop", 1), 4: ("nan", 2)}


class Stopped(Exception):
    """Ends a run in the middle of a round."""


@pytest.mark.parametrize("method", METHODS)
def test_every_method_resumes_to_the_same_bits(train: Train, method: str) -> None:
    """A resumed run has its states from a file, which keeps them in an order of its own."""

    def stop(asked: Message, records: RecordDict) -> None:
        if kind_of(asked) == "train" and number_of(asked) == 3:
            raise Stopped

    changes = {"method": method, "rounds": 3, "local_epochs": 1, "clients": 3, "evaluate_every": 0}
    with pytest.raises(Stopped):
        train("stopped", grid=TamperingGrid(stop), **changes)
    resumed = train("stopped", **changes)
    assert "resuming after round 2" in resumed.lines
    assert resumed.hash == train("whole", **changes).hash


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
        kill(tmp_path / place, place, changes)
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
    changes = {"method": method, "rounds": 4, "min_reply_share": 0.5}
    whole = train("whole", grid=TamperingGrid(losses(LOSSES)), **changes)
    failures = {
        record["round"]: record["failures"] for record in whole.records if record["failures"]
    }
    assert failures == {2: {"1": "no reply"}, 4: {"2": "model: head.bias is not finite"}}
    assert whole.hash != train("undisturbed", **changes).hash
    faithful = train("faithful", grid=TamperingGrid(losses(LOSSES), faithful=True), **changes)
    assert (faithful.hash, faithful.records) == (whole.hash, whole.records)
    kill(tmp_path / "killed", "before the checkpoint", changes, plan=LOSSES)
    resumed = train("killed", grid=TamperingGrid(losses(LOSSES)), **changes)
    assert (resumed.hash, resumed.records) == (whole.hash, whole.records)
    if "scaffold" in method:  # what the server and the clients keep
        workers = train("workers", grid=LosingWorkers(LOSSES), **changes)
        assert (workers.hash, workers.records) == (whole.hash, whole.records)


def test_resume_keeps_the_memory_of_a_refused_client(train: Train, tmp_path: Path) -> None:
    outcome = train(
        method="fedbn", rounds=3, min_reply_share=0.5, grid=TamperingGrid(losses({3: ("nan", 1)}))
    )
    checkpoint = Checkpoint.load(outcome.folder.checkpoint_file)
    assert checkpoint.memory_rounds == {0: 3, 1: 2, 2: 3, 3: 3}


def test_memory_that_is_not_where_the_server_looks_is_missed_by_the_client(
    train: Train, tmp_path: Path
) -> None:
    plan = {3: ("nan", 1)}
    with pytest.raises(TooFewReplies):
        train(method="fedbn", rounds=3, grid=TamperingGrid(losses(plan)))
    folder = small(tmp_path / "results", method="fedbn", rounds=3).folder
    shutil.rmtree(folder / "memory" / "client-00001")
    with pytest.raises(
        TooFewReplies, match=r"client 1: the memory of round 2 is not at .*round-000002"
    ):
        train(method="fedbn", rounds=3)


def test_the_hash_of_memory_on_other_machines_is_of_its_digests(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = train("here", method="fedbn", rounds=2).summary["hash"]
    monkeypatch.setattr(
        server_app.run_hashes,
        "folder_of",
        lambda folder, client: folder / "elsewhere" / str(client),
    )
    there = train("there", method="fedbn", rounds=2).summary["hash"]
    workers = train("workers", grid=WorkersGrid(2), method="fedbn", rounds=2).summary["hash"]
    assert (
        there == workers
        and there["memory"] not in (None, here["memory"])
        and there["all"] != here["all"]
    )
    assert {**there, "all": 0, "memory": 0} == {**here, "all": 0, "memory": 0}
    other = train("other", method="fedbn", rounds=2, learning_rate=0.02).summary["hash"]
    assert other["memory"] != there["memory"]


def test_a_memory_that_is_not_the_one_that_the_server_knows_is_refused_by_name(
    train: Train, tmp_path: Path
) -> None:
    plan = {3: ("nan", 0)}
    with pytest.raises(TooFewReplies):
        train(method="fedbn", rounds=3, grid=TamperingGrid(losses(plan)))
    folder = folder_of(small(tmp_path / "results", method="fedbn", rounds=3).folder, 1)
    changed = {
        name: {k: t + 1 for k, t in state.items()} for name, state in load_memory(folder, 2).items()
    }
    save_memory(folder, 2, changed)  # whole, and of this client, run and round
    with pytest.raises(
        Damaged,
        match=r"round-000002.safetensors is whole, and not the memory that the server knows of",
    ):
        load_memory(
            folder,
            2,
            expected_digest=Checkpoint.load(
                folder.parent.parent / "checkpoint.safetensors"
            ).digests["memory"][1],
        )
    said: list[str] = []
    assert (
        latest(RunFolder(folder.parent.parent), said.append) is not None
        and "not the memory" in said[0]
    )


def test_a_client_whose_data_have_changed_stays_out(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed: list[int] = []

    class OfData:
        """The digests that a client process has at the moment."""

        def __get__(self, simulation_runtime: ClientRuntime, owner: type) -> dict[str, str]:
            return {"data": "ab"[bool(changed)] * 64}

        def __set__(self, simulation_runtime: ClientRuntime, value: dict[str, str]) -> None:
            pass

    monkeypatch.setattr(ClientRuntime, "digests", OfData(), raising=False)

    def tamper(asked: Message, records: RecordDict) -> None:
        if not changed and kind_of(asked) == "train":
            changed.append(1)

    with pytest.raises(
        TooFewReplies, match=r"round 2: 0 good replies.*client 0: the data are not those of"
    ):
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

    with pytest.raises(
        TooFewReplies,
        match=r"round 2: 3 good replies.*client 1: its data are not those of its first",
    ):
        train("other", grid=Unmoved(tamper), rounds=2)


def test_changed_data_are_never_mixed_into_a_run(tmp_path: Path) -> None:
    def trained(results: str, labels: np.ndarray, **more: Any) -> FinishedRun:
        images = np.random.default_rng(0).integers(0, 256, (200, 8, 8), dtype=np.uint8)
        np.savez(
            tmp_path / "own.npz",
            train_images=images,
            train_labels=labels,
            test_images=images,
            test_labels=labels,
        )
        os.utime(
            tmp_path / "own.npz", (0, 100 * labels[0])
        )  # another time, as of a file that is written later
        federate.cache_clear()
        simulation_runtime.cache_clear()
        stated = {
            "dataset": f"npz:{tmp_path / 'own.npz'}",
            "classes": "2",
            "input-shape": "1x8x8",
            "alpha": 5.0,
        }
        return experiment(tmp_path / results, **{**stated, "rounds": 2, **more})

    before, after = np.arange(200) % 2, np.arange(200) % 2
    after[:20] = 1 - after[:20]
    first = trained("results", before)
    with pytest.raises(
        SettingError, match="was begun on other data or another partition: state overwrite = true"
    ):
        trained("results", after)
    first.folder.summary_file.unlink()
    with pytest.raises(SettingError, match="was begun on other data"):
        trained("results", after)
    assert (
        trained("results", after, overwrite=True).hash == trained("alone", after).hash != first.hash
    )


def test_the_previous_memory_is_there_when_the_next_round_had_begun(
    train: Train, tmp_path: Path
) -> None:
    changes = {"method": "fedbn", "rounds": 5}
    whole = train("whole", **changes)
    kill(tmp_path / "killed", "during training", changes, round=4)
    cut(small(tmp_path / "killed", **changes).folder / "checkpoint.safetensors", 7)
    resumed = train("killed", **changes)
    assert "resuming after round 2" in resumed.lines
    assert (resumed.hash, resumed.records) == (whole.hash, whole.records)


def test_finished_run_is_not_repeated(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    grids = [TamperingGrid() for _ in range(3)]
    first = train(grid=grids[0], method="fedshift")
    again = train(grid=grids[1], method="fedshift")
    assert (again.summary, grids[1].asked) == (first.summary, [])
    assert any("overwrite" in line for line in again.lines)
    fresh = train(grid=grids[2], method="fedshift", overwrite=True)
    assert grids[2].kinds() == grids[0].kinds() == ["query", "train", "train"]
    assert (fresh.hash, fresh.records) == (first.hash, first.records)


def test_run_killed_before_its_summary_only_writes_it(train: Train) -> None:
    first = train(method="creff")
    first.folder.summary_file.unlink()
    again = train(method="creff", grid=(grid := TamperingGrid()))
    assert grid.asked == []
    keys = ("hash", "models", "rows", "failures")
    assert {key: again.summary[key] for key in keys} == {key: first.summary[key] for key in keys}


def test_other_versions_that_made_rounds_of_a_run_stay_on_record(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    for torch, earlier in (
        ("1", None),
        ("2", ["1"]),
        ("2", ["1"]),
        ("1", ["2"]),
        ("3", ["2", "1"]),
    ):
        monkeypatch.setattr(server_app.run_folder, "versions", lambda torch=torch: {"torch": torch})
        folder = train().folder
        folder.summary_file.unlink()
        origin = folder.origin()
        assert origin["versions"] == {"torch": torch}
        assert [versions["torch"] for versions in origin.get("earlier-versions", [])] == (
            earlier or []
        )
    folder.checkpoint_file.unlink()
    folder.previous_file.unlink()
    assert "earlier-versions" not in train().folder.origin(), "all rounds are made anew"


def test_json_of_the_run_folder(train: Train) -> None:
    outcome = train(method="fedshift", evaluate_every=0)
    origin = json.loads(outcome.folder.settings_file.read_text())
    assert origin["settings"]["logit-shift.smoothing"] == 1.0
    assert origin["versions"]["torch"] and origin["versions"]["code"]
    assert [record["evaluated-by"] for record in outcome.records] == ["nobody", "server"]
    assert [bool(record["models"]) for record in outcome.records] == [False, True]
    assert outcome.summary["models"]["average"]["best-test"]["round"] == 2
    assert server_app.app.RunFolder(outcome.folder.path).summary() == json.loads(
        json.dumps(outcome.summary)
    )
