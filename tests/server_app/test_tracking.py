"""TensorBoard, MLflow and Weights & Biases hold what rounds.jsonl holds, once, however often the run was stopped."""

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from in_process import FinishedRun, cut, small

from data import SettingError
from fedskew.engines import Resources, execute
from server_app.run_folder import RunFolder
from server_app.settings import parse
from server_app.trackers import PROJECT, scalars

Train = Callable[..., FinishedRun]
Curves = dict[str, list[tuple[int, float]]]
SHORT: dict[str, Any] = {
    "method": "creff",
    "rounds": 3,
    "local-epochs": 1,
    "train-images": 60,
    "test-images": 40,
    "clients": 2,
}


def recorded(folder: RunFolder) -> Curves:
    """Return every number of rounds.jsonl by its tag, with the rounds."""
    curves: Curves = {}
    for record in folder.rounds():
        for tag, value in scalars(record):
            curves.setdefault(tag, []).append((record.round, value))
    return curves


def of_tensorboard(folder: RunFolder) -> Curves:
    """Return the same from TensorBoard's event files, by step: two starts may share a second."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder.path / "tensorboard"))
    events.Reload()
    return {
        tag: sorted((event.step, event.value) for event in events.Scalars(tag))
        for tag in events.Tags()["scalars"]
    }


def assert_drawn(folder: RunFolder) -> None:
    """Event files hold float32."""
    drawn, wanted = of_tensorboard(folder), recorded(folder)
    assert drawn.keys() == wanted.keys() and len(wanted) > 10
    for tag, points in wanted.items():
        assert drawn[tag] == [(round, pytest.approx(value, rel=1e-6)) for round, value in points]


def test_the_curves_are_the_records_after_every_kind_of_start(train: Train) -> None:
    """Of a run without them, which is finished; of one that lost its last checkpoint; of one from the beginning."""
    pytest.importorskip("tensorboard")
    plain = train(**SHORT)
    assert not (plain.folder.path / "tensorboard").exists()
    drawn = train(tensorboard=True, **SHORT)
    assert drawn.folder.path == plain.folder.path, "it is the same run"
    assert_drawn(drawn.folder)
    drawn.folder.summary_file.unlink()
    cut(drawn.folder.checkpoint_file, 7)
    resumed = train(tensorboard=True, **SHORT)
    assert "resuming after round 2" in resumed.lines
    assert_drawn(resumed.folder)
    repeated = train(tensorboard=True, overwrite=True, **SHORT)
    assert_drawn(repeated.folder)
    assert repeated.hash == plain.hash and repeated.records == plain.records


def test_a_finished_run_is_drawn_without_being_conducted(train: Train, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    outcome, config = train(**SHORT), small(tmp_path / "results", tensorboard=True, **SHORT)
    execute(config, Resources("workers"), print)
    assert_drawn(outcome.folder)


def test_a_tracker_hears_of_the_end_also_when_the_run_fails(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[object] = []

    class Listening:
        def __init__(self) -> None:
            heard.append("begin")

        def round(self, record) -> None:
            heard.append(record.round)

        def end(self, summary) -> None:
            heard.append(summary and summary["rounds"])

    monkeypatch.setattr(
        "server_app.app.trackers_of", lambda settings, folder, records: [Listening()]
    )
    train()
    with pytest.raises(RuntimeError):
        train(learning_rate=1e30)
    assert heard == ["begin", 1, 2, 2, "begin", None]


def test_a_tracker_is_ended_where_the_next_one_cannot_be_made(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[object] = []

    class Open:
        def __init__(self, *of: object) -> None: ...

        def end(self, summary: object) -> None:
            ended.append(summary)

    def away(*of: object) -> None:
        raise ConnectionError("nobody is there")

    monkeypatch.setattr("server_app.run_settings.find_spec", lambda name: name)
    monkeypatch.setattr("server_app.trackers.TensorBoard", Open)
    monkeypatch.setattr("server_app.trackers.MLflow", away)
    with pytest.raises(ConnectionError):
        train(tensorboard=True, mlflow=True)
    assert ended == [None]


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_a_missing_package_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server_app.run_settings.find_spec", lambda name: None)
    with pytest.raises(SettingError) as refused:
        parse({name: True})
    assert refused.value.key == name
    assert refused.value.remedy == f"pip install 'fedskew[{name}]'"


# ---- MLflow and Weights & Biases -------------------------------------------------------------------------------------


def of_mlflow(results: Path, run: str) -> tuple[Curves, Any]:
    """Return the curves from MLflow's own client, and the run."""
    from mlflow import MlflowClient

    client = MlflowClient(f"file://{results / 'mlruns'}")
    experiment = client.get_experiment_by_name(PROJECT)
    (stored,) = client.search_runs([experiment.experiment_id], f"attributes.run_name = '{run}'")
    curves = {
        tag: [(one.step, one.value) for one in client.get_metric_history(stored.info.run_id, tag)]
        for tag in stored.data.metrics
    }
    return curves, stored


@pytest.mark.slow
def test_mlflow_has_every_round_once_also_after_a_resumed_and_a_repeated_start(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    for changes in ({}, {}, {"overwrite": True}):
        outcome = train(**SHORT, mlflow=True, **changes)
        curves, stored = of_mlflow(tmp_path / "results", outcome.folder.path.name)
        assert curves == recorded(outcome.folder) and len(curves) > 10
        assert stored.info.status == "FINISHED" and stored.data.params["method"] == "creff"
        outcome.folder.summary_file.unlink()  # it resumes after its last checkpoint
    with pytest.raises(RuntimeError):
        train(**SHORT, mlflow=True, learning_rate=1e30)
    run = small(tmp_path / "results", **SHORT, learning_rate=1e30).run_id
    assert of_mlflow(tmp_path / "results", run)[1].info.status == "FAILED"


@pytest.mark.slow
def test_weights_and_biases_has_every_round_once_and_writes_nothing_elsewhere(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An offline run of wandb's own; what it is told is noted on the way."""
    wandb = pytest.importorskip("wandb")
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for variable in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(variable)
    begin, curves = wandb.init, dict[str, list[tuple[int, float]]]()

    def noted(**named: Any) -> Any:
        curves.clear()
        run = begin(**named)

        def log(row: dict[str, float], step: int) -> None:
            for tag, value in row.items():
                curves.setdefault(tag, []).append((step, value))
            run.log(row, step=step)

        return SimpleNamespace(log=log, finish=run.finish)

    monkeypatch.setattr(wandb, "init", noted)
    for changes in ({}, {}, {"overwrite": True}):
        outcome = train(**SHORT, wandb=True, **changes)
        assert curves == recorded(outcome.folder) and len(curves) > 10
        assert len([*outcome.folder.path.glob("wandb/offline-run-*/*.wandb")]) == 1
        outcome.folder.summary_file.unlink()  # it resumes after its last checkpoint
    assert not [file for file in home.rglob("*") if file.is_file()]
