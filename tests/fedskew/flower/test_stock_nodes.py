"""Real flwr under FedSkew's default actions and under the quickstart: SuperNodes with data of their own.

A run's model is compared with that of the same run in this process.
"""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fake_grid import FakeGrid
from sklearn.datasets import load_digits

from client_app.app import app
from client_app.state import digest
from deploy.stock_nodes import StockNodes
from fedskew.flower import plain_run
from server_app.settings import defaults

ROOT = Path(__file__).resolve().parents[3]
QUICKSTART = ROOT / "examples" / "flower-quickstart"
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

TASK: dict[str, Any] = {"model": "mlp-bn", "rounds": 2, "local-epochs": 1, "device": "cpu"}
OWN = {**TASK, "dataset": "data-path", "classes": "10", "input-shape": "1x8x8", "nodes": 2}
CREFF = {"creff.features-per-class": 5, "creff.feature-steps": 3, "creff.head-steps": 4}


def as_run_config(settings: dict[str, Any]) -> str:
    """Return settings as `flwr run --run-config` takes them: TOML's values."""
    return " ".join(f"{key}={json.dumps(value)}" for key, value in settings.items())


def hashes_of(results: Path) -> dict[str, str]:
    """Return the hashes of the models that the one plain run in a folder has left."""
    (file,) = results.glob("plain-*/metrics.json")
    hashes: dict[str, str] = json.loads(file.read_text())["hashes"]
    return hashes


def write_digits(file: Path, first: int) -> Path:
    """Write a node's own digits: five classes that it has many of, and a few of the other five."""
    digits = load_digits()
    order = np.random.default_rng(first).permutation(len(digits.target))
    images, labels = digits.images[order] * 255 / 16, digits.target[order]
    test = np.arange(len(labels)) < 200
    common = (labels >= first) & (labels < first + 5)
    train = ~test & (common | (np.arange(len(labels)) % 8 == 0))
    arrays = {}
    for part, chosen in (("train", train), ("test", test)):
        arrays[f"{part}_images"] = images[chosen].astype(np.uint8)
        arrays[f"{part}_labels"] = labels[chosen]
    np.savez(file, **arrays)
    return file


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """The nodes' own data."""
    return [write_digits(tmp_path / f"node{number}.npz", 5 * number) for number in range(2)]


def test_two_supernodes_train_on_data_of_their_own(tmp_path: Path, files: list[Path]) -> None:
    # A node's partition-id is its number here, from which its batches are drawn.
    configs = [
        {"data-path": str(file), "partition-id": number} for number, file in enumerate(files)
    ]
    settings = {**OWN, **CREFF, "method": "fedshift+creff", "protocol": "plain"}
    here = {**defaults(), **settings, "results": str(tmp_path / "here")}
    grid = FakeGrid(app, 2, here)
    for context, config in zip(grid.contexts.values(), configs, strict=True):
        context.node_config = dict(config)
    expected = plain_run.run(grid, here, 1, lambda line: None)
    assert expected.metrics["average"]["accuracy"] > 0.5

    with StockNodes(tmp_path / "flwr", [as_run_config(config) for config in configs]) as nodes:
        output = nodes.run(ROOT, as_run_config({**settings, "results": str(tmp_path / "there")}))
    assert "finished: " in output, output[-3000:]
    models = {name: digest([state]) for name, state in expected.models.items()}
    assert hashes_of(tmp_path / "there") == models
    assert {*models} == {"average", "creff"}


def test_two_supernodes_train_the_quickstart_on_data_of_their_own(
    tmp_path: Path, files: list[Path]
) -> None:
    copied = tmp_path / "app"
    shutil.copytree(QUICKSTART, copied, ignore=shutil.ignore_patterns("__pycache__"))
    words = ["patch", "-s", "-p1", "-i", str(copied / "patches" / "fedshift.diff")]
    subprocess.run(words, cwd=copied, check=True)
    model = tmp_path / "model.pt"
    configs = [as_run_config({"data-path": str(file)}) for file in files]
    with StockNodes(tmp_path / "flwr", configs) as nodes:
        output = nodes.run(copied, f'num-server-rounds=2 local-epochs=3 model-file="{model}"')
    accuracy = re.findall(r"QUICKSTART accuracy ([\d.]+)", output)
    assert accuracy, output[-3000:]
    assert float(accuracy[0]) > 60  # 10 is chance
    assert all(torch.isfinite(tensor).all() for tensor in torch.load(model).values())
