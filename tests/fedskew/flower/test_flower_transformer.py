"""examples/flower-transformer: a model of Hugging Face learns in a Flower app with FedShift."""

import importlib
import re
import sys
from pathlib import Path

import pytest
import torch
from fake_grid import FakeGrid
from flwr.app import Context, RecordDict

APP = Path(__file__).resolve().parents[3] / "examples" / "flower-transformer"
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def test_a_transformer_learns_from_skewed_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers", reason="pip install 'fedskew[transformers]'")
    monkeypatch.syspath_prepend(str(APP))
    try:
        server, client, task = (
            importlib.import_module(f"texts.{name}")
            for name in ("server_app", "client_app", "task")
        )
        model = tmp_path / "model.pt"
        config = {"num-server-rounds": 5, "local-epochs": 2, "learning-rate": 0.1, "seed": 0}
        grid = FakeGrid(client.app, 4, {**config, "model-file": str(model)})
        server.app(grid, Context(1, 1, {}, RecordDict(), {**config, "model-file": str(model)}))
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "texts"]:
            del sys.modules[name]
    assert not grid.errors
    accuracy = re.findall(r"TRANSFORMER accuracy ([\d.]+)", capsys.readouterr().out)
    assert float(accuracy[0]) > 80  # 25 is chance
    net = task.Net()
    net.load_state_dict(torch.load(model))
