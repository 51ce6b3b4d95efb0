"""What a node does with a message that has no action: it is one client of flwr's own protocol.

The run config states the settings, by the names that `fedskew run` has for them, and the node's configuration says
which data are its own:

* `partition-id` and `num-partitions`: a part of the run's data set, as flwr's simulation and its examples have it;
* `data-path`: a file or folder of the node's own, where the run has dataset = data-path.

Everything else is `local_round` and `load_model`, as in any app that uses `fedskew.flower`.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, MetricRecord, RecordDict

from client_app.local_site import OWN_DATA
from client_app.metrics import Scores, evaluate_models
from client_app.models import Classifier
from client_app.process import choose_device, make_deterministic, tune_allocator
from client_app.runtime import on_device
from data import DataError, Federation, SettingError
from data.readers.user_data import kind_of_path
from fedskew.flower.client import load_model, local_round
from fedskew.flower.records import METRICS, config_of
from server_app.run_settings import RunSettings
from server_app.settings import defaults, parse, settings_of_run_config
from server_app.strategy import federation_of, model_of

PARTITION, PARTITIONS = "partition-id", "num-partitions"
"""The entries of a node's configuration that name its part of the run's data set."""


class NodeClient:
    """The one client that a node is in a run: settings, data and model."""

    def __init__(self, run_config: Mapping[str, Any], node_config: Mapping[str, Any]) -> None:
        """Read the node's data.

        Raises:
            SettingError: settings that cannot be used, or that do not go with the node's configuration.
            DataError: data that are missing, or are not what the settings say.
        """
        tune_allocator()
        self.settings = settings_of_node(run_config, node_config)
        # A node with data of its own is the only client of its federation.
        self.number = 0 if is_own_data(run_config) else int(node_config[PARTITION])
        self.device = choose_device(self.settings.general.device)
        self.federation: Federation = federation_of(self.settings)
        self.build: Callable[[], Classifier] = model_of(self.settings, self.federation)

    def train_or_answer(self, message: Message, context: Context) -> Message:
        """Train one round on a train message, or answer a query."""
        training = asdict(self.settings.training)
        # A node is one client, so there is nobody to train with in one pass.
        del training["clients_per_pass"]
        for own in ("finetune_epochs", "finetune_sampling"):  # FedSkew's own protocol alone has it
            del training[own]
        learning_rate = training.pop("learning_rate")
        return local_round(
            message,
            context,
            self.build(),
            self.federation.train(self.number, self.device),
            variants=self.settings.variants,
            epochs=training.pop("local_epochs"),
            lr=None if "lr" in config_of(message) else learning_rate,
            device=self.device,
            seed=self.settings.general.seed,
            **training,
        )

    def evaluate(self, message: Message, context: Context) -> Message:
        """Measure the message's model on the node's test set."""
        samples = self.federation.test(self.number, self.device)
        if not len(samples):
            raise DataError("has an empty test set", where=self.settings.data.dataset)
        model = load_model(message, context, self.build()).to(self.device)
        assert isinstance(model, Classifier)
        state = on_device(model.state_dict(), self.device)
        scores = evaluate_models(model, {"model": state}, samples)["model"]
        content = RecordDict({METRICS: numbers_of(scores)})
        return Message(content, reply_to=message)


def train_or_answer(message: Message, context: Context) -> Message:
    """Train this node's client as flwr's FedAvg asks, or answer a question of a strategy of fedskew.flower."""
    return client_of(context).train_or_answer(message, context)


def evaluate(message: Message, context: Context) -> Message:
    """Measure the model of flwr's FedAvg on this node's test set."""
    return client_of(context).evaluate(message, context)


def client_of(context: Context) -> NodeClient:
    """Return the client of a node's context; a process keeps those of the last messages."""
    make_deterministic()
    return kept_client(tuple(context.run_config.items()), tuple(context.node_config.items()))


@lru_cache(maxsize=16)
def kept_client(
    run_config: tuple[tuple[str, Any], ...], node_config: tuple[tuple[str, Any], ...]
) -> NodeClient:
    """Return the client of a run config and a node's configuration."""
    return NodeClient(dict(run_config), dict(node_config))


def is_own_data(run_config: Mapping[str, Any]) -> bool:
    """Return whether a run trains on the nodes' own data."""
    return run_config.get("dataset") == OWN_DATA


def settings_of_node(run_config: Mapping[str, Any], node_config: Mapping[str, Any]) -> RunSettings:
    """Return the settings of a run for this node. Raises SettingError or DataError."""
    if is_own_data(run_config):
        path = own_path(node_config)
        return parse(on_own_data(run_config, f"{kind_of_path(path)}:{path}"))
    number, clients = partition_of(node_config, str(run_config.get("dataset", "")))
    config = settings_of_run_config(run_config)
    stated = config.get("clients") or clients
    if stated != clients:
        rule = f"must be 0 or {clients}, the {PARTITIONS} of this node's configuration"
        raise SettingError("clients", stated, rule)
    settings = parse({**config, "clients": clients})
    if not 0 <= number < clients:
        rule = (
            f"must be 0 to {clients - 1}, as {PARTITIONS} = {clients} in this node's configuration"
        )
        raise SettingError(PARTITION, number, rule)
    return settings


def on_own_data(run_config: Mapping[str, Any], dataset: str) -> dict[str, Any]:
    """Return the run's settings with `dataset`, all of it one client's, in the place of dataset = data-path.

    Raises SettingError for settings about a partition, and where classes or input-shape are not stated: each node could
    only guess them, and the guesses could differ.
    """
    config = settings_of_run_config(run_config)
    for key in ("classes", "input-shape"):
        if not config.get(key):
            rule = f"must be set with dataset = {OWN_DATA}: no node guesses it from its own files"
            raise SettingError(key, config.get(key, ""), rule)
    usual = defaults()
    for key in ("partition", "partition-file", "clients"):
        if config.get(key, usual[key]) != usual[key]:
            rule = f"has no effect with dataset = {OWN_DATA}: the nodes' data are not partitioned"
            raise SettingError(key, config[key], rule)
    return {**config, "dataset": dataset, "partition": "pooled"}


def own_path(node_config: Mapping[str, Any]) -> Path:
    """Return the file or folder of the node's own data. Raises SettingError or DataError where there is none."""
    stated = node_config.get(OWN_DATA, "")
    path = Path(str(stated)).expanduser()
    if not stated or not path.is_absolute():
        rule = f"must be an absolute path in this node's configuration, as the run has dataset = {OWN_DATA}"
        raise SettingError(
            OWN_DATA,
            stated,
            rule,
            remedy="flower-supernode --node-config 'data-path=\"/folder\"'",
        )
    if not path.exists():
        raise DataError("there is no such file or folder", where=f"{OWN_DATA} of this node: {path}")
    return path


def partition_of(node_config: Mapping[str, Any], dataset: str) -> tuple[int, int]:
    """Return the node's partition and the number of partitions. Raises SettingError where it states none."""
    if PARTITION not in node_config and OWN_DATA in node_config:
        rule = f"must be {OWN_DATA}, as this node has data of its own and no {PARTITION}"
        raise SettingError("dataset", dataset, rule)
    for key, smallest in ((PARTITION, 0), (PARTITIONS, 1)):
        stated = node_config.get(key, "")
        if type(stated) is not int or stated < smallest:
            rule = f"must be a whole number of at least {smallest} in this node's configuration"
            remedy = (
                "flower-supernode --node-config 'partition-id=0 num-partitions=2', or "
                f'data-path="/folder" for data of its own and a run with dataset = {OWN_DATA}'
            )
            raise SettingError(key, stated, rule, remedy=remedy)
    return node_config[PARTITION], node_config[PARTITIONS]


def numbers_of(scores: Scores) -> MetricRecord:
    """Return what flwr's strategies average: accuracy, balanced accuracy over the tested classes, and mean loss."""
    confusion_CC = scores.confusion_CC.double()
    tested_C = confusion_CC.sum(1)
    recall_C = (confusion_CC.diagonal() / tested_C)[tested_C > 0]
    samples = int(tested_C.sum())
    return MetricRecord(
        {
            "num-examples": samples,
            "accuracy": float(confusion_CC.diagonal().sum() / samples),
            "balanced-accuracy": float(recall_C.mean()),
            "loss": float(scores.loss / samples),
        }
    )
