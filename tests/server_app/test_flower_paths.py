"""Paths in flwr's run config: flwr executes the app in a folder of its own, not where `flwr run` was typed."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_grid import FakeGrid

from client_app.app import app
from data import SettingError
from server_app.app import main
from server_app.settings import defaults, settings_of_run_config

OWN = {"classes": "2", "input-shape": "1x4x4", "partition": "iid"}


@pytest.fixture
def superlinks_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which Flower's SuperLink was started, with files of the names that a user has elsewhere."""
    here = tmp_path / "superlink"
    here.mkdir()
    for name in ("scans.npz", "federation.toml", "partition.json", "weights.pt"):
        (here / name).touch()
    (here / "lying_model.py").write_text("def small(shape, classes): ...\n")
    (here / "images").mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return here


def flower_run(**changes: Any) -> None:
    """Execute the app as flwr does, with every key of its pyproject.toml in the run config."""
    task = {"method": "fedavg", "model": "mlp-bn", "rounds": 1, "device": "cpu"}
    config = {**defaults(), **task, **{k.replace("_", "-"): value for k, value in changes.items()}}
    main(FakeGrid(app, 2, config), SimpleNamespace(run_config=config, run_id=9))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "key", "remedy"),
    [
        ({"results": "mine"}, "results", "results='$PWD/mine'"),
        ({"partition-file": "partition.json"}, "partition-file", "$PWD/partition.json"),
        ({"dataset": "npz:scans.npz", **OWN}, "dataset", "data-root='$PWD'"),
        ({"dataset": "domains:npz:/a.npz,npz:b.npz", **OWN}, "dataset", "data-root='$PWD'"),
        ({"dataset": "hf:images", **OWN}, "dataset", "data-root='$PWD'"),
        ({"dataset": "sites:federation.toml"}, "dataset", "dataset='sites:$PWD/federation.toml'"),
        ({"model": "lying_model:small"}, "model", "PYTHONPATH"),
        ({"readiness": "answers.json"}, "readiness", "$PWD/answers.json"),
    ],
)
def test_a_path_into_the_superlinks_folder_is_refused(
    superlinks_folder: Path, changes: dict[str, Any], key: str, remedy: str
) -> None:
    with pytest.raises(SettingError) as refused:
        flower_run(**changes)
    assert refused.value.key == key and remedy in str(refused.value)
    assert str(superlinks_folder) in str(refused.value)


def test_absolute_paths_and_names_are_taken(superlinks_folder: Path) -> None:
    """The control of the test above; results of a command that names none are in the user's home."""
    usual = defaults()
    taken = settings_of_run_config({**usual, "readiness": ""})
    assert taken["results"] == "~/fedskew-results"
    for changes in (
        {"dataset": "npz:scans.npz", "data-root": "/data"},
        {"dataset": "npz:/data/scans.npz", "results": "/results"},
        {"weights": "~/weights.pt"},
    ):
        stated = settings_of_run_config({**usual, **changes})
        assert {key: stated[key] for key in changes} == changes
