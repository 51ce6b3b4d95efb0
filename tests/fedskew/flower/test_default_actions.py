"""The app's default actions: flwr's own protocol, with the data that the node's configuration names."""

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fake_grid import FakeGrid
from flower_grid import same
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg
from PIL import Image

from client_app.app import app
from client_app.local_site import NotAgreed, install
from client_app.models import build
from client_app.runtime import initial_seed
from client_app.state import digest
from client_app.tensor_files import read
from data import DataError, SettingError
from fedskew.flower import class_counts, plain_run
from fedskew.flower.records import to_record, to_state
from server_app.app import main
from server_app.checkpoint import Checkpoint
from server_app.settings import defaults
from site_agent.config import read_site
from site_agent.data_view import install as install_sites
from tests.in_process import SERVER_SMALL, SMALL, experiment
from tests.site_files import site_folders

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
NODES = 4
PARTITION = {"partition-id": 0, "num-partitions": NODES}
TASK = {key: value for key, value in SMALL.items() if key != "clients"}
OWN = {"dataset": "data-path", "classes": "cat,dog,bird", "input-shape": "1x8x8"}


def run_config(**changes: Any) -> dict[str, Any]:
    """Return a run config as flwr hands it over, every key included; `_` stands for `-` and `__` for `.`."""
    stated = {key.replace("__", ".").replace("_", "-"): value for key, value in changes.items()}
    return {**defaults(), "readiness": "", "protocol": "plain", **TASK, **stated}


def own_config(**changes: Any) -> dict[str, Any]:
    """Return the run config of nodes with data of their own."""
    usual = {
        key: defaults()[key] for key in ("alpha", "min-samples", "train-images", "test-images")
    }
    return {**run_config(), **usual, **OWN, **changes}


def first_model(classes: int = 10) -> ArrayRecord:
    """Return the model with which a run of seed 0 begins."""
    return to_record(build("mlp-bn", (1, 8, 8), classes, initial_seed(0)).state_dict())


def reply_of(
    kind: str,
    config: dict[str, Any],
    node_config: dict[str, Any],
    arrays: ArrayRecord | None = None,
) -> Message:
    """Return the app's reply to one message."""
    grid = FakeGrid(app, 1, config)
    (node,) = grid.nodes
    grid.contexts[node].node_config = node_config
    content = RecordDict(
        {"arrays": arrays or first_model(), "config": ConfigRecord({"server-round": 1})}
    )
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


def own_grid(tmp_path: Path, config: dict[str, Any], nodes: int = 2) -> FakeGrid:
    """Return a grid whose nodes have data of their own."""
    grid = FakeGrid(app, nodes, config)
    for number, context in enumerate(grid.contexts.values()):
        file = write_npz(tmp_path / f"{number}.npz", number)
        context.node_config = {"data-path": str(file)}
    return grid


@pytest.mark.parametrize("strategy", [FedAvg, FedAdam])
def test_strategies_of_flwr_train_and_evaluate(strategy: type[FedAvg]) -> None:
    grid = FakeGrid(app, NODES, run_config())
    random.seed(0)
    result = strategy().start(grid, first_model(), 2)
    assert not grid.errors
    assert not same(to_state(result.arrays), to_state(first_model()))
    losses = [float(record["train_loss"]) for record in result.train_metrics_clientapp.values()]
    assert losses[1] < losses[0]
    measured = result.evaluate_metrics_clientapp[2]
    assert {*measured} == {"accuracy", "balanced-accuracy", "loss"}
    assert float(measured["accuracy"]) > 0.3


def test_fedshift_under_flwrs_strategy_needs_the_class_counts() -> None:
    grid = FakeGrid(app, NODES, run_config(method="fedshift"))
    counts = class_counts(grid)
    FedAvg(fraction_evaluate=0.0).start(grid, first_model(), 1, train_config=ConfigRecord(counts))
    assert not grid.errors
    FedAvg(fraction_evaluate=0.0).start(grid, first_model(), 1)
    assert "needs the class counts of all clients" in str(grid.errors[0])


def test_the_learning_rate_is_the_messages_or_else_the_run_configs() -> None:
    config = run_config()
    stated = reply_of("train", {**config, "learning-rate": 0.2}, PARTITION)
    grid = FakeGrid(app, 1, config)
    grid.contexts[grid.nodes[0]].node_config = PARTITION
    content = RecordDict({"arrays": first_model()})
    content["config"] = ConfigRecord({"server-round": 1, "lr": 0.2})
    sent = grid.answer(Message(content, dst_node_id=grid.nodes[0], message_type="train"))
    usual = reply_of("train", config, PARTITION)
    models = [to_state(reply.content.array_records["arrays"]) for reply in (stated, sent, usual)]
    assert same(models[0], models[1])
    assert not same(models[0], models[2])


METHODS = (
    "fedavg", "fedshift", "creff+fedbn", "creff+tau-norm", "scaffold", "fednova+fedprox", "ccvr",
    "refit-bias", "scaffold+ccvr+refit-bias", "silobn", "uniform-sampling", "median",
)  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
def test_a_plain_run_has_the_weights_of_fedskews_own(method: str, tmp_path: Path) -> None:
    own = experiment(tmp_path, method=method)
    config = run_config(method=method, results=str(tmp_path), nodes=NODES)
    for name in method.split("+"):
        config |= SERVER_SMALL.get(name, {})
    made = plain_run.run(FakeGrid(app, NODES, config), config, 7, lambda line: None)
    shared = Checkpoint.load(own.folder.checkpoint_file).shared
    average = {name: made.models["average"][name] for name in shared}
    assert digest([average]) == own.summary["hash"]["shared"]
    deployed = Checkpoint.load(own.folder.checkpoint_file).deployed
    assert {*made.models} == {*deployed}
    for name, state in deployed.items():
        assert same({key: made.models[name][key] for key in state}, state), name


def test_nodes_with_data_of_their_own_train(tmp_path: Path) -> None:
    config = own_config(method="creff", rounds=3, results=str(tmp_path))
    grid = own_grid(tmp_path, config)
    lines: list[str] = []
    made = plain_run.run(grid, config, 7, lines.append)
    assert not grid.errors
    assert {*made.models} == {*made.metrics} == {"average", "creff"}
    assert made.metrics["creff"]["accuracy"] > 0.8
    assert made.folder.parent == tmp_path and lines[-1] == f"finished: {made.folder}"
    saved = read(made.folder / "creff.safetensors")[0]
    assert same(saved, made.models["creff"])


def test_a_folder_of_images_is_a_nodes_own_data(tmp_path: Path) -> None:
    for label, shade in (("cat", 40), ("dog", 200)):
        folder = tmp_path / "images" / label
        folder.mkdir(parents=True)
        for number in range(12):
            Image.new("L", (8, 8), shade + number).save(folder / f"{number}.png")
    node = {"data-path": str(tmp_path / "images")}
    config = {**own_config(), "classes": "cat,dog"}
    arrays = first_model(2)
    trained = reply_of("train", config, node, arrays)
    measured = reply_of("evaluate", config, node, arrays)
    total = sum(
        int(reply.content.metric_records["metrics"]["num-examples"])
        for reply in (trained, measured)
    )
    assert total == 24


def test_the_node_configuration_is_checked_in_one_sentence(tmp_path: Path) -> None:
    file = str(write_npz(tmp_path / "own.npz", 0))
    more = str(write_npz(tmp_path / "more.npz", 0, classes=5))
    for config, node, field, words in (
        (run_config(), {}, "partition-id", "must be a whole number of at least 0"),
        (
            run_config(),
            {"partition-id": 0},
            "num-partitions",
            "must be a whole number of at least 1",
        ),
        (run_config(), {"partition-id": 4, "num-partitions": 4}, "partition-id", "must be 0 to 3"),
        (
            run_config(),
            {"partition-id": "0", "num-partitions": 4},
            "partition-id",
            "a whole number",
        ),
        (run_config(clients=5), PARTITION, "clients", "must be 0 or 4, the num-partitions"),
        (run_config(), {"data-path": file}, "dataset", "must be data-path, as this node has data"),
        (own_config(), {}, "data-path", "must be an absolute path in this node's configuration"),
        (own_config(), {"data-path": "own.npz"}, "data-path", "must be an absolute path"),
        (own_config(partition="iid"), {"data-path": file}, "partition", "are not partitioned"),
        (own_config(classes=""), {"data-path": file}, "classes", "must be set with dataset"),
    ):
        with pytest.raises(SettingError) as error:
            reply_of("train", config, node, first_model(3))
        assert error.value.key == field and words in str(error.value)
        assert "\n" not in str(error.value)
    for path, words in ((str(tmp_path / "none"), "there is no such file"), (more, "label")):
        with pytest.raises(DataError, match=words):
            reply_of("train", own_config(), {"data-path": path}, first_model(3))
    assert reply_of("train", run_config(), PARTITION).has_content()
    assert reply_of("train", own_config(), {"data-path": file}, first_model(3)).has_content()


def test_a_server_with_another_number_of_classes_is_refused(tmp_path: Path) -> None:
    node = {"data-path": str(write_npz(tmp_path / "own.npz", 0))}
    with pytest.raises(ValueError, match=r"the server sent head\.weight of shape \(10, "):
        reply_of("train", own_config(), node, first_model(10))


@pytest.mark.parametrize(
    "changes, key",
    [
        ({"min-reply-share": 0.5}, "min-reply-share"),
        ({"method": "fedadam"}, "server-optimizer"),
        ({"clients-per-pass": 4}, "clients-per-pass"),
        ({"finetune-epochs": 1}, "finetune-epochs"),
        ({"method": "fed-lda", "model": "linear"}, "method"),
        ({"dataset": "sites:federation.toml"}, "dataset"),
    ],
)
def test_the_server_refuses_what_a_plain_run_does_not_carry_out(
    changes: dict[str, Any], key: str
) -> None:
    with pytest.raises(SettingError) as error:
        plain_run.settings_of_server({**run_config(), **changes})
    assert error.value.key == key
    plain_run.settings_of_server(run_config())


def test_the_run_config_names_the_protocol(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = run_config(results=str(tmp_path), nodes=NODES)
    context = SimpleNamespace(run_config=config, run_id=9)
    main(FakeGrid(app, NODES, config), context)  # type: ignore[arg-type]
    assert (tmp_path / "plain-fedavg-seed0-9" / "metrics.json").is_file()
    assert "average: accuracy" in capsys.readouterr().out
    with pytest.raises(SettingError, match="protocol = 'both': must be one of clients, plain"):
        main(FakeGrid(app), SimpleNamespace(run_config={**config, "protocol": "both"}, run_id=9))  # type: ignore[arg-type]


def test_fedskews_own_messages_refuse_a_node_with_data_of_its_own() -> None:
    with pytest.raises(SettingError, match="data-path = '/srv': is in this node's configuration"):
        reply_of("train.clients", run_config(), {"data-path": "/srv"})


@pytest.mark.parametrize("kind", ["train", "evaluate", "query"])
def test_a_site_answers_fedskews_own_messages_alone(kind: str, tmp_path: Path) -> None:
    folder = site_folders(tmp_path / "sites")
    install_sites({0: read_site(folder / "north/site.toml")})
    try:
        with pytest.raises(NotAgreed, match="a site answers messages for the action 'clients'"):
            reply_of(kind, run_config(), PARTITION)
    finally:
        install({})
