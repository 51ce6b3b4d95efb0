"""A run that is killed anywhere, loses replies or has been done resumes to the same hash, or is done.

test_server_contract.py resumes every method; here are the places of a kill, lost replies, clients' memory and data.
"""

import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from in_process import (
    PLACES,
    FinishedRun,
    TamperingGrid,
    experiment,
    kill,
    losses,
    number_of,
    small,
)

import server_app.checkpoint
import server_app.run_folder
from client_app.memory import folder_of
from client_app.memory import load as load_memory
from client_app.memory import save as save_memory
from client_app.messages import kind_of
from client_app.runtime import ClientRuntime
from client_app.tensor_files import Damaged
from data import SettingError
from fedskew.engines.workers import WorkersGrid
from server_app.checkpoint import Checkpoint, latest
from server_app.run_folder import RunFolder
from strategies.core.exchange import TooFewReplies
from strategies.core.server import Diverged

Train = Callable[..., FinishedRun]
KEEPING: dict[str, Any] = {
    "method": "scaffold+fedavgm+silobn",
    "rounds": 4,
    "participation": 0.75,
    "local_epochs": 1,
    "train_images": 100,
    "test_images": 50,
}
"""A method of which server, clients and a server optimizer keep something."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    return experiment(tmp_path_factory.mktemp("whole"), **KEEPING)


@pytest.mark.parametrize("place", PLACES[:3])
def test_a_killed_process_resumes(
    train: Train, tmp_path: Path, whole: FinishedRun, place: str
) -> None:
    """By kill -9; test_killed_at_writes.py stops a run at every single write."""
    kill(tmp_path / "results", place, KEEPING)
    started = RunFolder(small(tmp_path / "results", **KEEPING).folder)
    assert started.summary() is None
    file = started.previous_file if place == "between its names" else started.checkpoint_file
    assert Checkpoint.load(file).round == 2
    resumed = train(**KEEPING)
    assert any("resuming after round" in line for line in resumed.lines)
    assert resumed.summary["hash"] == whole.summary["hash"]
    assert resumed.records == whole.records
    assert resumed.summary["models"] == whole.summary["models"]


# ---- memory and data of the clients ----------------------------------------------------------------------------------


def test_a_memory_that_is_gone_or_another_one_is_named(train: Train, tmp_path: Path) -> None:
    """The first is missed by its client, the second noticed by the server, although it is whole."""
    changes = {"method": "fedbn", "rounds": 2}
    with pytest.raises(Diverged):
        train(grid=TamperingGrid(losses({2: ("nan", 0)})), **changes)
    folder = RunFolder(small(tmp_path / "results", **changes).folder)
    digest = Checkpoint.load(folder.checkpoint_file).client_states[1].memory
    of_client_1 = folder_of(folder.path, 1)
    memory = load_memory(of_client_1, 1, expected_digest=digest)
    shutil.rmtree(of_client_1)
    with pytest.raises(TooFewReplies) as ended:
        train(**changes)
    assert "client 1: the memory of round 1 is not at " in str(ended.value)
    changed = {
        name: {key: tensor + 1 for key, tensor in state.items()} for name, state in memory.items()
    }
    save_memory(of_client_1, 1, changed)  # whole, and of this client, run and round
    with pytest.raises(Damaged):
        load_memory(of_client_1, 1, expected_digest=digest)
    said: list[str] = []
    assert latest(folder, said.append) is None and "not the memory" in said[0]


def test_the_hash_of_memory_on_other_machines_is_of_its_digests(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"method": "fedbn", "rounds": 1}
    here = train("here", **changes).summary["hash"]
    monkeypatch.setattr(
        server_app.checkpoint,
        "folder_of",
        lambda folder, client: folder / "elsewhere" / str(client),
    )
    there = train("there", **changes).summary["hash"]
    assert there == train("workers", grid=WorkersGrid(2), **changes).summary["hash"]
    assert there["memory"] not in (None, here["memory"]) and there["all"] != here["all"]
    assert {**there, "all": 0, "memory": 0} == {**here, "all": 0, "memory": 0}


def test_a_client_whose_data_have_changed_stays_out(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed: list[int] = []

    class OfData:
        """The digests that a client process has at the moment."""

        def __get__(self, runtime: ClientRuntime, owner: type) -> dict[str, str]:
            return {"data": "ab"[bool(changed)] * 64}

        def __set__(self, runtime: ClientRuntime, value: dict[str, str]) -> None:
            pass

    monkeypatch.setattr(ClientRuntime, "digests", OfData(), raising=False)

    def tamper(asked: Message, records: RecordDict) -> None:
        if not changed and kind_of(asked) == "train":
            changed.append(1)

    with pytest.raises(TooFewReplies) as ended:
        train("changed", grid=TamperingGrid(tamper), rounds=2)
    assert "client 0: the data are not those of" in str(ended.value)


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

    for _ in ("begun", "resumed"):
        with pytest.raises(TooFewReplies) as ended:
            train("other", grid=Unmoved(tamper), rounds=2)
        assert "; client 1: its data are not those of its first" in str(ended.value)


def test_changed_data_are_never_mixed_into_a_run(tmp_path: Path) -> None:
    def trained(labels: np.ndarray, **more: Any) -> FinishedRun:
        images = np.random.default_rng(0).integers(0, 256, (200, 8, 8), dtype=np.uint8)
        training = {"train_images": images, "train_labels": labels}
        np.savez(tmp_path / "own.npz", **training, test_images=images, test_labels=labels)
        # Another time, as of a file that is written later.
        os.utime(tmp_path / "own.npz", (0, 100 * labels[0]))
        stated = {"dataset": f"npz:{tmp_path / 'own.npz'}", "classes": "2", "alpha": 5.0}
        return experiment(tmp_path / "results", **stated, input_shape="1x8x8", rounds=1, **more)

    before, after = np.arange(200) % 2, np.arange(200) % 2
    after[:20] = 1 - after[:20]
    first = trained(before)
    for _ in ("finished", "begun"):
        with pytest.raises(SettingError):
            trained(after)
        first.folder.summary_file.unlink(missing_ok=True)
    assert trained(after, overwrite=True).hash != first.hash


# ---- what has been done ----------------------------------------------------------------------------------------------


def test_a_finished_run_is_not_repeated(train: Train) -> None:
    changes = {"method": "fedshift", "rounds": 1}
    first = train(**changes)
    again = train(grid=(grid := TamperingGrid()), **changes)
    assert (again.summary, grid.asked) == (first.summary, [])
    first.folder.summary_file.unlink()
    again = train(grid=grid, **changes)
    assert grid.asked == [], "only the summary is written"
    for key in ("hash", "models", "rows", "failures"):
        assert again.summary[key] == first.summary[key]
    fresh = train(grid=(grid := TamperingGrid()), overwrite=True, **changes)
    assert grid.kinds() == ["query", "train"]
    assert (fresh.hash, fresh.records) == (first.hash, first.records)
    fresh.folder.clear()
    assert (fresh.folder.rounds(), fresh.folder.summary()) == ([], None)


def test_other_versions_that_made_rounds_of_a_run_stay_on_record(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    for torch, earlier in (("1", []), ("2", ["1"]), ("2", ["1"]), ("3", ["1", "2"])):
        monkeypatch.setattr(server_app.run_folder, "versions", lambda torch=torch: {"torch": torch})
        folder = train(rounds=1).folder
        folder.summary_file.unlink()
        origin = folder.origin()
        assert origin["versions"] == {"torch": torch}
        others = [versions["torch"] for versions in origin.get("earlier-versions", [])]
        assert others == earlier
