"""The app's default actions: flwr's own protocol, with the data that the node's configuration names."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_grid import FakeGrid
from flower_grid import same
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp.strategy import FedAvg
from PIL import Image

from client_app.app import app
from client_app.local_site import NotAgreed, install
from client_app.models import build
from client_app.runtime import initial_seed
from client_app.tensor_files import read
from data import DataError, SettingError
from fedskew.flower import plain_run
from fedskew.flower.records import to_record, to_state
from server_app.settings import defaults
from site_agent.config import read_site
from site_agent.data_view import install as install_sites
from tests.in_process import SMALL
from tests.site_files import site_folders

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
NODES = 4
PARTITION = {"partition-id": 0, "num-partitions": NODES}
TASK = {key: value for key, value in SMALL.items() if key != "clients"}
USUAL = ("alpha", "min-samples", "train-images", "test-images")
OWN = {"dataset": "data-path", "classes": "cat,dog,bird", "input-shape": "1x8x8"}


def run_config(**changes: Any) -> dict[str, Any]:
    """Return a run config as flwr hands it over, every key included; `_` stands for `-`."""
    stated = {key.replace("_", "-"): value for key, value in changes.items()}
    return {**defaults(), "readiness": "", "protocol": "plain", **TASK, **stated}


def own_config(**changes: Any) -> dict[str, Any]:
    """Return the run config of nodes with data of their own."""
    return {**run_config(), **{key: defaults()[key] for key in USUAL}, **OWN, **changes}


def first_model(classes: int = 10) -> ArrayRecord:
    """Return the model with which a run of seed 0 begins."""
    return to_record(build("mlp-bn", (1, 8, 8), classes, initial_seed(0)).state_dict())


def reply_of(
    kind: str, config: dict[str, Any], node_config: dict[str, Any], arrays: ArrayRecord
) -> Message:
    """Return the app's reply to one message."""
    grid = FakeGrid(app, 1, config)
    (node,) = grid.nodes
    grid.contexts[node].node_config = node_config
    content = RecordDict({"arrays": arrays, "config": ConfigRecord({"server-round": 1})})
    reply = grid.answer(Message(content, dst_node_id=node, message_type=kind))
    if grid.errors:
        raise grid.errors[0]
    return reply


def write_npz(file: Path, seed: int, classes: int = 3) -> Path:
    """Write a node's own data: images whose brightness says their class."""
    draws = np.random.default_rng(seed)
    arrays = {}
    for part, samples in (("train", 60), ("test", 30)):
        labels = np.arange(samples) % classes
        noise = draws.integers(0, 60, (samples, 8, 8))
        arrays[f"{part}_images"] = (noise + 60 * labels[:, None, None]).astype(np.uint8)
        arrays[f"{part}_labels"] = labels
    np.savez(file, **arrays)
    return file


def test_a_strategy_of_flwr_trains_and_evaluates() -> None:
    grid = FakeGrid(app, NODES, run_config())
    random.seed(0)
    result = FedAvg().start(grid, first_model(), 2)
    assert not grid.errors
    assert not same(to_state(result.arrays), to_state(first_model()))
    losses = [float(record["train_loss"]) for record in result.train_metrics_clientapp.values()]
    assert losses[1] < losses[0]
    measured = result.evaluate_metrics_clientapp[2]
    assert {*measured} == {"accuracy", "balanced-accuracy", "loss"}


def test_nodes_with_data_of_their_own_train(tmp_path: Path) -> None:
    """One has an npz file, the other a folder of images."""
    for label, shade in (("cat", 30), ("dog", 90), ("bird", 150)):
        folder = tmp_path / "images" / label
        folder.mkdir(parents=True)
        for number in range(20):
            Image.new("L", (8, 8), shade + number).save(folder / f"{number}.png")
    config = own_config(method="creff", rounds=3, results=str(tmp_path))
    grid = FakeGrid(app, 2, config)
    paths = (write_npz(tmp_path / "own.npz", 0), tmp_path / "images")
    for context, path in zip(grid.contexts.values(), paths, strict=True):
        context.node_config = {"data-path": str(path)}
    lines: list[str] = []
    made = plain_run.run(grid, config, 7, lines.append)
    assert not grid.errors
    assert {*made.models} == {*made.metrics} == {"average", "creff"}
    assert made.metrics["average"]["accuracy"] > 0.5
    assert made.folder.parent == tmp_path and lines[-1] == f"finished: {made.folder}"
    assert same(read(made.folder / "creff.safetensors")[0], made.models["creff"])


def test_the_node_configuration_is_checked(tmp_path: Path) -> None:
    own = {"data-path": str(write_npz(tmp_path / "own.npz", 0))}
    for config, node, field in (
        (run_config(), {}, "partition-id"),
        (run_config(), {"partition-id": 0}, "num-partitions"),
        (run_config(), {"partition-id": 4, "num-partitions": 4}, "partition-id"),
        (run_config(), {"partition-id": "0", "num-partitions": 4}, "partition-id"),
        (run_config(clients=5), PARTITION, "clients"),
        (run_config(), own, "dataset"),
        (own_config(), {}, "data-path"),
        (own_config(), {"data-path": "own.npz"}, "data-path"),
        (own_config(partition="iid"), own, "partition"),
        (own_config(classes=""), own, "classes"),
    ):
        with pytest.raises(SettingError) as refused:
            reply_of("train", config, node, first_model(3))
        assert refused.value.key == field
    more = write_npz(tmp_path / "more.npz", 0, classes=5)
    for path in (tmp_path / "none", more):
        with pytest.raises(DataError):
            reply_of("train", own_config(), {"data-path": str(path)}, first_model(3))
    with pytest.raises(ValueError):
        reply_of("train", own_config(), own, first_model(10))
    assert reply_of("train", run_config(), PARTITION, first_model()).has_content()
    assert reply_of("train", own_config(), own, first_model(3)).has_content()


def test_fedskews_own_messages_refuse_a_node_with_data_of_its_own() -> None:
    with pytest.raises(SettingError) as refused:
        reply_of("train.clients", run_config(), {"data-path": "/srv"}, first_model())
    assert refused.value.key == "data-path"


@pytest.mark.parametrize("kind", ["train", "evaluate", "query"])
def test_a_site_answers_fedskews_own_messages_alone(kind: str, tmp_path: Path) -> None:
    folder = site_folders(tmp_path / "sites")
    install_sites({0: read_site(folder / "north/site.toml")})
    try:
        with pytest.raises(NotAgreed):
            reply_of(kind, run_config(), PARTITION, first_model())
    finally:
        install({})
