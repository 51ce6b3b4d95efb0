"""examples/stock_supernodes: nodes that train on data of their own, on flwr's own SuperLink and SuperNodes as well."""

import json
import re
import runpy
import shutil
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fake_grid import FakeGrid
from flwr.app import Context, Message, RecordDict
from sklearn.datasets import load_digits

from client_app.app import app
from deploy.stock_nodes import StockNodes

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "examples" / "stock_supernodes"
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


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


@pytest.mark.parametrize("stock", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_example_trains_nodes_on_data_of_their_own(
    tmp_path: Path, files: list[Path], stock: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    """In one process, and with flwr's own SuperLink and SuperNodes."""
    model = tmp_path / "model.pt"
    changes = {"num-server-rounds": 3, "model-file": str(model)}
    if stock:
        copied = tmp_path / "app"
        shutil.copytree(EXAMPLE, copied, ignore=shutil.ignore_patterns("__pycache__"))
        configs = [as_run_config({"data-path": str(file)}) for file in files]
        with StockNodes(tmp_path / "flwr", configs) as nodes:
            output = nodes.run(copied, as_run_config(changes))
    else:
        example = runpy.run_path(str(EXAMPLE / "supernodes" / "app.py"))
        stated = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())
        config = {**stated["tool"]["flwr"]["app"]["config"], **changes}
        grid = FakeGrid(example["client"], 2, config)
        for context, file in zip(grid.contexts.values(), files, strict=True):
            context.node_config = {"data-path": str(file)}
        example["server"](grid, Context(1, 1, {}, RecordDict(), config))
        assert not grid.errors, grid.errors
        output = capfd.readouterr().out
    accuracy = re.findall(r"SUPERNODES accuracy ([\d.]+)", output)
    assert accuracy, output[-3000:]
    assert float(accuracy[0]) > 60  # 10 is chance
    models = torch.load(model)
    assert models.keys() == {"average", "creff"}
    assert all(torch.isfinite(tensor).all() for tensor in models["creff"].values())


@pytest.mark.parametrize("config", [{"data-path": "/srv"}, {}])
def test_fedskews_own_app_refuses_a_node_with_data_of_its_own(config: dict[str, str]) -> None:
    grid = FakeGrid(app, 1)
    grid.contexts[grid.nodes[0]].node_config = dict(config)
    grid.answer(Message(RecordDict(), dst_node_id=grid.nodes[0], message_type="train.clients"))
    (error,) = grid.errors
    assert ("data-path" in str(error)) is bool(config)
