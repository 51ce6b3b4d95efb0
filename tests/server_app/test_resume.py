"""A run that is killed anywhere goes on to the same hash; a damaged or busy folder is refused with a sentence."""

import json
import multiprocessing
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from in_process import PLACES, Outcome, TamperingGrid, killed, losses, small

import server_app.app
from data import SettingError
from server_app.checkpoint import BrokenCheckpoint, Checkpoint
from server_app.results import FolderBusy, RunFolder
from strategies.exchange import TooFewReplies

Train = Callable[..., Outcome]
LOSSES = {3: ("drop", 1), 5: ("nan", 2)}


def kill(results: Path, place: str, plan: Mapping[int, tuple[str, int]], changes: dict[str, Any]) -> None:
    """Run in a process of its own until it kills itself in round 3."""
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=killed, args=(str(results), place, 3, plan, changes))
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL


@pytest.mark.parametrize("method", ["fedbn", "creff+fedshift", "scaffold+fedavgm+silobn", "singleset", "ratio-loss"])
def test_kill_and_resume(train: Train, tmp_path: Path, method: str) -> None:
    changes = {"method": method, "rounds": 4, "participation": 0.75}
    whole = train("whole", **changes)
    for place in PLACES:
        kill(tmp_path / place, place, {}, changes)
        started = RunFolder(small(tmp_path / place, **changes).folder)
        assert started.summary() is None
        assert Checkpoint.load(started.checkpoint_file).round == (3 if place == "after the checkpoint" else 2)
        resumed = train(place, **changes)
        assert any("resuming after round" in line for line in resumed.lines)
        assert resumed.summary["hash"] == whole.summary["hash"]
        assert resumed.records == whole.records
        assert resumed.summary["models"] == whole.summary["models"]


@pytest.mark.parametrize("method", ["fedbn", "creff+fedshift+fedbn", "scaffold+fedavgm+silobn"])
def test_lost_and_refused_replies(train: Train, tmp_path: Path, method: str) -> None:
    changes = {"method": method, "rounds": 6, "min_replies": 0.5}
    whole = train("whole", grid=TamperingGrid(losses(LOSSES)), **changes)
    failures = {record["round"]: record["failures"] for record in whole.records if record["failures"]}
    assert failures == {3: {"1": "no reply"}, 5: {"2": "model: head.bias is not finite"}}
    assert whole.hash != train("undisturbed", **changes).hash
    faithful = train("faithful", grid=TamperingGrid(losses(LOSSES), faithful=True), **changes)
    assert (faithful.hash, faithful.records) == (whole.hash, whole.records)
    kill(tmp_path / "killed", "before the checkpoint", LOSSES, changes)
    resumed = train("killed", grid=TamperingGrid(losses(LOSSES)), **changes)
    assert (resumed.hash, resumed.records) == (whole.hash, whole.records)
    workers = train("workers", grid=TamperingGrid(losses(LOSSES), workers=2), **changes)
    assert (workers.hash, workers.records) == (whole.hash, whole.records)


def test_resume_keeps_the_memory_of_a_refused_client(train: Train, tmp_path: Path) -> None:
    outcome = train(method="fedbn", rounds=3, min_replies=0.5, grid=TamperingGrid(losses({3: ("nan", 1)})))
    checkpoint = Checkpoint.load(outcome.folder.checkpoint_file)
    assert checkpoint.memory_rounds == {0: 3, 1: 2, 2: 3, 3: 3}


def test_lost_memory_names_the_file(train: Train, tmp_path: Path) -> None:
    plan = {3: ("nan", 1)}
    with pytest.raises(TooFewReplies):
        train(method="fedbn", rounds=3, grid=TamperingGrid(losses(plan)))
    folder = small(tmp_path / "results", method="fedbn", rounds=3).folder
    lost = folder / "memory" / "client-00001" / "round-000002.safetensors"
    lost.unlink()
    with pytest.raises(TooFewReplies, match=r"client 1: MemoryLost.*round-000002"):
        train(method="fedbn", rounds=3)


def test_truncated_checkpoint(train: Train, tmp_path: Path) -> None:
    with pytest.raises(TooFewReplies):
        train(grid=TamperingGrid(losses({2: ("nan", 1)})))
    file = small(tmp_path / "results").folder / "checkpoint.safetensors"
    whole = file.read_bytes()
    for length in (0, 5, 200, len(whole) - 7):
        file.write_bytes(whole[:length])
        with pytest.raises(BrokenCheckpoint, match=r"checkpoint\.safetensors"):
            train()
    file.write_bytes(whole)
    assert train().summary["rounds"] == 2


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
    told = ("hash", "models", "rows", "failures")
    assert {key: again.summary[key] for key in told} == {key: first.summary[key] for key in told}


def test_lock_refuses_a_second_process(train: Train, tmp_path: Path) -> None:
    settings = small(tmp_path / "results")
    hold = (
        "import sys; from pathlib import Path; from server_app.results import RunFolder\n"
        "with RunFolder(Path(sys.argv[1])).locked(): print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(settings.folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        with pytest.raises(FolderBusy, match=rf"process {holder.pid} is working on {settings.folder}"):
            train()
        holder.communicate("")
    assert train().summary["rounds"] == 2  # the lock falls with the process


def test_folder_that_cannot_be_written(train: Train, tmp_path: Path) -> None:
    (tmp_path / "results").write_text("a file")
    with pytest.raises(SettingError, match=r"results = .*cannot be written"):
        train()


def test_json_of_the_run_folder(train: Train) -> None:
    outcome = train(method="fedshift", evaluate_every=0)
    told = json.loads(outcome.folder.settings_file.read_text())
    assert told["settings"]["logit-shift.smoothing"] == 1.0
    assert told["versions"]["torch"] and told["versions"]["code"]
    assert [record["evaluated-by"] for record in outcome.records] == ["nobody", "server"]
    assert [bool(record["models"]) for record in outcome.records] == [False, True]
    assert outcome.summary["models"]["average"]["best-test"]["round"] == 2
    assert server_app.app.RunFolder(outcome.folder.path).summary() == json.loads(json.dumps(outcome.summary))
