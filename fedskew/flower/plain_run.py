"""A run of FedSkew's app in flwr's own protocol: `flwr run` with protocol = plain.

The strategy is FedSkew's mean with the method's server parts, as in any app that uses `fedskew.flower`. The nodes
answer by their default actions. There is no checkpoint: a run that was stopped starts again.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from torch import Tensor

from client_app.local_site import OWN_DATA
from client_app.models import Classifier, build
from client_app.process import choose_device, make_deterministic, tune_allocator
from client_app.runtime import initial_seed
from client_app.state import digest
from client_app.tensor_files import write_atomically, writing
from data import SettingError
from data.readers.catalog import is_sites
from fedskew.flower.default_actions import is_own_data, on_own_data
from fedskew.flower.heads import HeadStrategy
from fedskew.flower.method_strategy import MethodStrategy
from fedskew.flower.questions import class_counts
from fedskew.flower.records import to_record, to_state
from fedskew.flower.variants import sums_class_counts
from server_app.methods import METHODS
from server_app.run_settings import RunSettings
from server_app.settings import PROTOCOL, defaults, parse, settings_of_run_config
from strategies.core.exchange import wait_for_nodes
from strategies.core.round_result import AVERAGE

LEAST_NODES = 2
"""Nodes that a run waits for at least, as flwr's FedAvg does."""
WITHOUT_EFFECT = (
    "clients-per-pass", "finetune-epochs", "min-reply-share", "server-optimizer", "server-learning-rate",
    "server-momentum", "server-momentum-form", "server-second-momentum", "server-adaptivity", "positive-class",
    "overwrite", "tensorboard", "mlflow", "wandb", "holdout-per-class", "keep-best", "patience",
)  # fmt: skip
"""Settings of FedSkew's own runs that a plain run does not carry out: it refuses another value than the default."""


@dataclass(frozen=True)
class PlainResult:
    """What a plain run has made."""

    folder: Path
    models: Mapping[str, Mapping[str, Tensor]]
    """The average, and what the method deploys, by name."""
    metrics: Mapping[str, Mapping[str, float]]
    """By model, what the nodes measured on their test sets, weighted by their samples."""


class PlainStrategy(MethodStrategy):
    """FedSkew's mean, and an evaluation every so many rounds; the last round is always evaluated."""

    exact: ClassVar[bool] = True
    rounds = 0
    evaluate_every = 1

    def configure_evaluate(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
    ) -> Iterable[Message]:
        """Ask the nodes to evaluate where it is due."""
        due = self.evaluate_every > 0 and server_round % self.evaluate_every == 0
        if not due and server_round != self.rounds:
            return []
        return super().configure_evaluate(server_round, arrays, config, grid)

    def measure(self, grid: Grid, arrays: ArrayRecord, timeout: float) -> dict[str, float]:
        """Return what the nodes measure of a model after the last round."""
        asked = super().configure_evaluate(self.rounds, arrays, ConfigRecord(), grid)
        replies = list(grid.send_and_receive(asked, timeout=timeout))
        return numbers_in(self.aggregate_evaluate(self.rounds, replies))


class CalibratingStrategy(HeadStrategy, PlainStrategy):
    """The same with the methods' questions after the last round, as CCVR's."""


def run(
    grid: Grid,
    run_config: Mapping[str, Any],
    run_id: int,
    report_line: Callable[[str], None],
) -> PlainResult:
    """Run what the run config states, write models and numbers to a folder, and return them.

    Raises SettingError for settings that cannot be used, TooFewNodes where too few nodes connect in time, RuntimeError
    for a round without any reply that can be used.
    """
    make_deterministic()
    tune_allocator()
    settings = settings_of_server(run_config)
    nodes = max(LEAST_NODES, settings.exchange.nodes)
    wait_for_nodes(grid, replace(settings.exchange, nodes=nodes))
    classes = len(settings.data.class_names)
    drawn = initial_seed(settings.general.seed)
    model = build(settings.general.model, settings.input_shape, classes, drawn, settings.model)
    strategy = strategy_of(settings, model, nodes)
    config = ConfigRecord()
    timeout = settings.exchange.timeout
    if any(map(sums_class_counts, settings.variants)):
        config.update(class_counts(grid, min_nodes=nodes, timeout=timeout))

    result = strategy.start(
        grid,
        to_record(model.state_dict()),
        settings.general.rounds,
        timeout,
        train_config=config,
    )
    models: dict[str, Mapping[str, Tensor]] = {AVERAGE: to_state(result.arrays)}
    last = result.evaluate_metrics_clientapp.get(settings.general.rounds)
    metrics = {AVERAGE: numbers_in(last)}
    for name, state in sorted(strategy.deployed.items()):
        models[name] = state
        metrics[name] = strategy.measure(grid, to_record(state), timeout)

    name = f"plain-{settings.general.method.replace(':', '.')}-seed{settings.general.seed}-{run_id}"
    folder = Path(settings.general.results) / name
    rounds = {
        "train": by_round(result.train_metrics_clientapp),
        "evaluate": by_round(result.evaluate_metrics_clientapp),
    }
    write(folder, models, {"settings": settings.flat(), "models": metrics, "rounds": rounds})
    for name, numbers in metrics.items():
        values = "  ".join(f"{key} {value:.4f}" for key, value in sorted(numbers.items()))
        report_line(f"{name}: {values or 'no node has evaluated it'}")
    report_line(f"finished: {folder}")
    return PlainResult(folder, models, metrics)


def settings_of_server(run_config: Mapping[str, Any]) -> RunSettings:
    """Return the settings of a plain run for its server, which reads no data.

    Raises SettingError for settings that cannot be used, or that a plain run does not carry out.
    """
    config = settings_of_run_config(run_config)
    if is_own_data(config):
        # The server has no file; npz is a kind of data that may be images and vectors.
        config = on_own_data(config, f"npz:/{OWN_DATA}")
    if is_sites(str(config.get("dataset", ""))):
        rule = f"goes with {PROTOCOL} = clients, which the sites of an agreement answer"
        raise SettingError("dataset", config["dataset"], rule)
    settings = parse(config)
    usual = defaults()
    flat = settings.flat()
    for key in WITHOUT_EFFECT:
        if flat[key] != usual[key]:
            raise SettingError(key, flat[key], f"has no effect with {PROTOCOL} = plain")
    for part in settings.deploys:
        if part.closed_form:
            rule = (
                f"has {part.name}, a head in closed form, which {PROTOCOL} = plain does not offer"
            )
            raise SettingError("method", settings.general.method, rule)
    return settings


def strategy_of(settings: RunSettings, model: Classifier, nodes: int) -> PlainStrategy:
    """Return the strategy of the method's server parts, with their settings."""
    serving = tuple(name for name in settings.parts.names if METHODS[name].serving)
    asks_finally = any(part.final_question for part in settings.deploys)
    base = CalibratingStrategy if asks_finally else PlainStrategy
    kind: type[PlainStrategy] = type("PlainStrategy", (base,), {"methods": serving})
    device = settings.general.device
    strategy = kind(
        model,
        variants=settings.variants,
        seed=settings.general.seed,
        # cuda is what the nodes must have; the server takes what it has.
        device=choose_device("auto" if device == "cuda" else device),
        training=settings.training,
        fraction_train=settings.general.participation,
        min_train_nodes=1,
        min_evaluate_nodes=1,
        min_available_nodes=nodes,
    )
    # As arguments they would clash: two methods may have a setting of the same name.
    own = {part.name: part for part in (settings.combine, *settings.monitors, *settings.deploys)}
    strategy.parts = [own[part.name] for part in strategy.parts]
    strategy.rounds = settings.general.rounds
    strategy.evaluate_every = settings.general.evaluate_every
    return strategy


def numbers_in(record: MetricRecord | None) -> dict[str, float]:
    """Return the numbers of a record of metrics; none where there is no record."""
    if record is None:
        return {}
    return {name: value for name, value in record.items() if isinstance(value, int | float)}


def by_round(records: Mapping[int, MetricRecord]) -> dict[str, dict[str, float]]:
    """Return the numbers of every round, for JSON."""
    return {str(number): numbers_in(record) for number, record in records.items()}


def write(
    folder: Path,
    models: Mapping[str, Mapping[str, Tensor]],
    numbers: Mapping[str, object],
) -> None:
    """Write every model as safetensors, and the numbers with the models' hashes as metrics.json."""
    for name, state in models.items():
        write_atomically(folder / f"{name}.safetensors", state)
    hashes = {name: digest([state]) for name, state in models.items()}
    text = json.dumps({**numbers, "hashes": hashes}, indent=1)
    file = folder / "metrics.json"
    with writing(file):
        file.write_text(f"{text}\n", encoding="utf-8")
