"""MLflow's file store and an offline run of Weights & Biases, read back: every number of rounds.jsonl, once."""

import io
import json
import os
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from in_process import small
from rich.console import Console

from data import SettingError
from fedskew.sweep import run_all
from server_app.run_folder import RunFolder
from server_app.settings import parse
from server_app.trackers import PROJECT, scalars

Curves = dict[str, list[tuple[int, float]]]
Train = Callable[..., Any]
SHORT = {
    "method": "fedavg",
    "rounds": 3,
    "local-epochs": 1,
    "train-images": 40,
    "test-images": 40,
    "clients": 2,
}
BLOCK = 2**15
"""Bytes of a block of LevelDB's log, the form of a .wandb file, behind a header of seven bytes."""


def recorded(folder: RunFolder) -> Curves:
    """Return every number of rounds.jsonl by its tag, with the rounds."""
    curves: Curves = {}
    for record in folder.rounds():
        for tag, value in scalars(record):
            curves.setdefault(tag, []).append((record.round, value))
    return curves


def of_mlflow(results: Path, run: str) -> tuple[Curves, Any]:
    """Return the same from MLflow's own client, and the run."""
    from mlflow import MlflowClient

    client = MlflowClient(f"file://{results / 'mlruns'}")
    experiment = client.get_experiment_by_name(PROJECT)
    (stored,) = client.search_runs([experiment.experiment_id], f"attributes.run_name = '{run}'")
    histories = {
        tag: client.get_metric_history(stored.info.run_id, tag) for tag in stored.data.metrics
    }
    return {
        tag: [(point.step, point.value) for point in points] for tag, points in histories.items()
    }, stored


def records_of(file: Path) -> Iterator[bytes]:
    """Yield the records of a .wandb file, as far as it is written."""
    content, whole, place = file.read_bytes(), b"", 7
    while place + 7 <= len(content):
        if BLOCK - place % BLOCK < 7:  # the rest of a block, too short for a record's head
            place += BLOCK - place % BLOCK
            continue
        length, kind = struct.unpack("<HB", content[place + 4 : place + 7])
        whole, place = whole + content[place + 7 : place + 7 + length], place + 7 + length
        if kind in (1, 4) and place <= len(content):  # whole, or its last part
            yield whole
            whole = b""


def of_wandb(folder: Path) -> tuple[Curves, dict[str, Any]]:
    """Return the same from the one offline run, by wandb's own messages, and its configuration.

    A process of wandb's own writes the file, and may be at it when `finish` returns: its last record is awaited.
    """
    from wandb.proto import wandb_internal_pb2 as messages

    (file,) = folder.glob("wandb/offline-run-*/*.wandb")
    until = time.monotonic() + 900
    records: list[messages.Record] = []
    while not (records and records[-1].HasField("exit")):
        assert time.monotonic() < until, f"{file}: no last record among {len(records)}"
        time.sleep(0.05)
        records = [messages.Record.FromString(content) for content in records_of(file)]
    curves: Curves = {}
    config: dict[str, Any] = {}
    for record in records:
        config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
        row = {
            item.key or "/".join(item.nested_key): json.loads(item.value_json)
            for item in record.history.item
        }
        for tag in (tag for tag in row if not tag.startswith("_")):
            curves.setdefault(tag, []).append((row["_step"], row[tag]))
    return curves, config


@pytest.mark.slow
def test_mlflow_has_every_round_once_also_after_a_resumed_and_a_repeated_start(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    outcome = train(**SHORT, mlflow=True)
    curves, stored = of_mlflow(tmp_path / "results", outcome.folder.path.name)
    assert curves == recorded(outcome.folder) and len(curves) > 10
    assert stored.info.status == "FINISHED" and stored.data.params["method"] == "fedavg"
    (outcome.folder.path / "summary.json").unlink()  # goes on after its last checkpoint
    for changes in ({}, {"overwrite": True}):
        outcome = train(**SHORT, mlflow=True, **changes)
        assert of_mlflow(tmp_path / "results", outcome.folder.path.name)[0] == recorded(
            outcome.folder
        )
    with pytest.raises(RuntimeError):
        train(**SHORT, mlflow=True, learning_rate=1e30)
    run = small(tmp_path / "results", **SHORT, learning_rate=1e30).run_id
    assert of_mlflow(tmp_path / "results", run)[1].info.status == "FAILED"


@pytest.mark.slow
def test_weights_and_biases_has_every_round_once_and_writes_nothing_elsewhere(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for variable in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(variable)
    outcome = train(**SHORT)
    config = small(tmp_path / "results", **SHORT, wandb=True)
    run_all([config], [], Console(file=io.StringIO()))  # finished: drawn from its records
    curves, stated = of_wandb(outcome.folder.path)
    assert curves == recorded(outcome.folder) and stated["method"] == "fedavg"
    outcome = train(**SHORT, wandb=True, overwrite=True)
    curves, stated = of_wandb(outcome.folder.path)
    assert curves == recorded(outcome.folder) and len(curves) > 10
    assert not [file for file in home.rglob("*") if file.is_file()]


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_a_missing_package_is_one_sentence(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server_app.run_settings.find_spec", lambda name: None)
    with pytest.raises(SettingError, match=rf"{name} = True: .*pip install 'fedskew\[{name}\]'"):
        parse({name: True})
