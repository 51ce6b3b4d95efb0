"""Paths in flwr's run config: flwr executes the app in a folder of its own, not where `flwr run` was typed."""

import re
import shutil
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fake_grid import FakeGrid

from client_app.app import app
from data import DataError, SettingError
from server_app.app import main

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
TASK: dict[str, Any] = {
    "protocol": "plain",
    "method": "fedavg",
    "model": "mlp-bn",
    "rounds": 1,
    "local-epochs": 1,
    "device": "cpu",
}
OWN = {"classes": "2", "input-shape": "1x4x4", "partition": "iid"}


@pytest.fixture
def superlinks_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which Flower's SuperLink was started, with files of the names that a user has elsewhere."""
    here = tmp_path / "superlink"
    here.mkdir()
    images = np.random.default_rng(0).integers(0, 256, (80, 4, 4), np.uint8)
    labels = np.arange(80) % 2
    arrays = {}
    for part, chosen in (("train", slice(0, 60)), ("test", slice(60, 80))):
        arrays[f"{part}_images"], arrays[f"{part}_labels"] = images[chosen], labels[chosen]
    for name in ("scans.npz", "others.npz"):
        np.savez(here / name, **arrays)
    for name in ("federation.toml", "partition.json", "weights.pt"):
        (here / name).touch()
    (here / "lying_model.py").write_text("def small(shape, classes): ...\n")
    (here / "images").mkdir()
    (tmp_path / "elsewhere").mkdir()
    shutil.copy(here / "scans.npz", tmp_path / "elsewhere")
    monkeypatch.chdir(here)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return here


def flower_run(**changes: Any) -> None:
    """Execute the app as flwr does, with every key of its pyproject.toml in the run config."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    config = {}
    for key, value in project["tool"]["flwr"]["app"]["config"].items():
        if isinstance(value, dict):
            config |= {f"{key}.{name}": entry for name, entry in value.items()}
        else:
            config[key] = value
    config |= {**TASK, **{key.replace("_", "-"): value for key, value in changes.items()}}
    main(FakeGrid(app, 2, config), SimpleNamespace(run_config=config, run_id=9))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "key", "remedy"),
    [
        ({"results": "mine"}, "results", "results='$PWD/mine'"),
        ({"results": "."}, "results", "results='$PWD/.'"),
        ({"data-root": "data"}, "data-root", "data-root='$PWD/data'"),
        ({"cache": "cache"}, "cache", "cache='$PWD/cache'"),
        ({"weights": "weights.pt"}, "weights", "weights='$PWD/weights.pt'"),
        ({"partition-file": "partition.json"}, "partition-file", "$PWD/partition.json"),
        ({"dataset": "npz:scans.npz", **OWN}, "dataset", "data-root='$PWD'"),
        ({"dataset": "domains:npz:scans.npz,npz:others.npz", **OWN}, "dataset", "data-root='$PWD'"),
        ({"dataset": "csv:../table.csv", **OWN}, "dataset", "data-root='$PWD'"),
        ({"dataset": "folder:.", **OWN}, "dataset", "data-root='$PWD'"),
        ({"dataset": "medmnist:pathmnist", **OWN}, "dataset", "data-root='$PWD'"),
        ({"dataset": "hf:images", **OWN}, "dataset", "data-root='$PWD'"),
        ({"dataset": "domains:mnist,usps"}, "dataset", "data-root='$PWD'"),
        ({"dataset": "sites:federation.toml"}, "dataset", "dataset='sites:$PWD/federation.toml'"),
        ({"model": "lying_model:small"}, "model", "PYTHONPATH"),
        ({"method": "fedavg+lying_model:Mean"}, "method", "PYTHONPATH"),
    ],
    ids=lambda value: "" if isinstance(value, str) else str(value)[:60],
)
@pytest.mark.parametrize("protocol", ["plain", "clients"])
def test_a_path_into_the_superlinks_folder_is_refused(
    superlinks_folder: Path, protocol: str, changes: dict[str, Any], key: str, remedy: str
) -> None:
    with pytest.raises(SettingError, match=re.escape(str(superlinks_folder))) as error:
        flower_run(**{**changes, "protocol": protocol})
    assert error.value.key == key
    assert remedy in str(error.value)


def test_a_name_in_the_librarys_cache_is_no_path(superlinks_folder: Path) -> None:
    """The data set is not there, or the library is not, which is said instead."""
    with pytest.raises((DataError, RuntimeError), match="datasets") as error:
        flower_run(dataset="hf:nobody/nothing", **OWN)
    assert "absolute" not in str(error.value)


def test_a_relative_file_for_the_sites_answers_is_refused(superlinks_folder: Path) -> None:
    with pytest.raises(SettingError) as error:
        flower_run(readiness="answers.json", protocol="clients")
    assert error.value.key == "readiness"


@pytest.mark.parametrize("is_below_root", [False, True])
def test_absolute_paths_are_used(superlinks_folder: Path, is_below_root: bool) -> None:
    """The control of the tests above; results of a command that names none are in the user's home."""
    elsewhere = superlinks_folder.parent / "elsewhere"
    if is_below_root:
        data = {"dataset": "npz:scans.npz", "data-root": str(elsewhere)}
        results = superlinks_folder.parent / "results"
        flower_run(**OWN, **data, results=str(results))
    else:
        flower_run(**OWN, dataset=f"npz:{elsewhere / 'scans.npz'}")
        results = superlinks_folder.parent / "home" / "fedskew-results"
    assert (results / "plain-fedavg-seed0-9" / "metrics.json").is_file()
    assert not list(superlinks_folder.glob("*results*"))
