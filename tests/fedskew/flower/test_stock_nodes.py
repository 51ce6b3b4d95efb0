"""Real flwr under the quickstart: SuperNodes that train on data of their own."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from deploy.stock_nodes import StockNodes

ROOT = Path(__file__).resolve().parents[3]
QUICKSTART = ROOT / "examples" / "flower-quickstart"
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def as_run_config(settings: dict[str, Any]) -> str:
    """Return settings as `flwr run --run-config` takes them: TOML's values."""
    return " ".join(f"{key}={json.dumps(value)}" for key, value in settings.items())


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
