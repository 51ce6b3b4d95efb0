"""Every method trains in a Flower app, with the numbers of FedSkew's own rounds."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_grid import FakeGrid
from flower_grid import (
    PlainNet,
    client_app,
    client_data,
    initial,
    train,
    weights,
)
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam
from in_process import HEADS, experiment, small

import fedskew.flower as flower
from client_app.models import build
from client_app.runtime import initial_seed
from data import federate
from fedskew.flower.records import state_like
from server_app.checkpoint import Checkpoint
from server_app.methods import METHODS
from strategies.core.server import ServerMethod
from tests.client_app.client_builders import same

OFF = {"fraction_evaluate": 0.0}
SMALL_CREFF = {"features_per_class": 5, "feature_steps": 3, "head_steps": 4}
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

# ---- one row per method ----------------------------------------------------------------------------------------------

KINDS = [getattr(flower, name) for name in flower.__all__]
STRATEGIES = {
    method: kind
    for kind in KINDS
    if isinstance(kind, type) and issubclass(kind, flower.MethodStrategy)
    for method in kind.methods
}
"""The strategy of every method that has a server half."""
WITHOUT_STRATEGY = {"real-features", "real-blocks", "feddyn", "fedexp"}
FLWRS_OWN = {"fedavgm", "fedadagrad", "fedadam", "fedyogi"}
"""Methods whose server half is in FedSkew's own runs alone, or in a strategy of flwr's."""
KEEPING = {"iwds", "moon", "fedbn", "ditto"}
"""Methods whose second round depends on what a client keeps, or on its number."""
TINY: dict[str, Any] = {
    "clients": 3,
    "train_images": 60,
    "test_images": 20,
    "min_samples": 2,
    "local_epochs": 1,
    "learning_rate": 0.05,
    "evaluate_every": 0,
}


def arguments_of(part: ServerMethod) -> dict[str, Any]:
    """Return the settings of a server method that are not at their defaults, as a strategy takes them."""
    names = [field.name for field in fields(part) if not part.is_default(field.name)]
    return {name: getattr(part, name) for name in names}


def test_every_method_has_a_strategy_or_is_known_to_have_none() -> None:
    serving = {name for name, method in METHODS.items() if {*method.serving} - {"fedavg"}}
    assert serving == {*STRATEGIES} | WITHOUT_STRATEGY


@pytest.mark.parametrize("method", [m for m in METHODS if m not in WITHOUT_STRATEGY | FLWRS_OWN])
def test_a_method_has_the_weights_of_fedskew_run_to_the_bit(method: str, tmp_path: Path) -> None:
    """With FedSkew's mean where the method does not combine the models itself."""
    rounds = 2 if method in STRATEGIES or method in KEEPING else 1
    changes = {**TINY, "method": method, "rounds": rounds}
    changes["model"] = "linear" if method in HEADS else "mlp-bn"
    settings = small(tmp_path, **changes)
    checkpoint = Checkpoint.load(experiment(tmp_path, **changes).folder.checkpoint_file)
    parts = federate(settings.data, 0)

    def make() -> Any:
        return build(settings.general.model, parts.dataset.shape, 10, initial_seed(0))

    app = ClientApp()

    def handle(message: Message, context: Context) -> Message:
        samples = parts.train(int(context.node_config["partition-id"]), "cpu")
        return flower.local_round(
            message, context, make(), samples, variants=settings.variants, epochs=1, lr=0.05
        )

    app.train()(handle)
    app.query()(handle)
    kind = STRATEGIES.get(method, flower.ExactFedAvg)
    if settings.parts.combine == "fedavg" and kind is not flower.ExactFedAvg:
        kind = type("Exact", (kind, flower.ExactFedAvg), {})
    arguments: dict[str, Any] = {"variants": settings.variants, "training": settings.training}
    for part in (settings.combine, *settings.deploys):
        arguments |= arguments_of(part) if kind is not flower.ExactFedAvg else {}
        arguments |= {"holdout": parts.holdout()} if part.needs_holdout else {}
    strategy = kind(make(), **OFF, **arguments)
    grid = FakeGrid(app, TINY["clients"], shuffle=3)
    counted = any(variant.upload.question == "class-counts" for variant in settings.variants)
    config = ConfigRecord(flower.class_counts(grid) if counted else {})
    result = strategy.start(grid, ArrayRecord(make().state_dict()), rounds, train_config=config)
    assert not grid.errors
    average = state_like(result.arrays, make().state_dict())
    assert same({name: average[name] for name in checkpoint.shared}, checkpoint.shared)
    for name, state in checkpoint.deployed.items():
        if name in strategy.deployed:
            assert same({key: strategy.deployed[name][key] for key in state}, state), name
    assert {*strategy.deployed} == {*checkpoint.deployed} - {"average"}


# ---- an app of one's own ---------------------------------------------------------------------------------------------


class CReFFAdam(flower.CReFF, FedAdam):
    """CReFF beside flwr's own FedAdam."""


@pytest.mark.parametrize(
    ("kind", "settings", "variants", "deployed"),
    [
        (CReFFAdam, {**SMALL_CREFF, "eta": 0.01}, ["creff", "fedshift"], ["creff"]),
        (flower.CCVR, {"features_per_class": 5, "head_steps": 4}, ["ccvr"], ["ccvr"]),
        (flower.TrimmedMean, {"share": 0.3}, [], []),
    ],
)
def test_a_strategy_trains_and_deploys_by_the_users_names(
    kind: type[flower.MethodStrategy],
    settings: dict[str, Any],
    variants: list[str],
    deployed: list[str],
) -> None:
    """The user's head has a name of its own and is not the last layer."""
    strategy = kind(initial(), **OFF, **settings)
    grid = FakeGrid(client_app(variants))
    result = train(strategy, grid.app, 1, counts="fedshift" in variants, grid=grid)
    assert not grid.errors and sorted(strategy.deployed) == deployed
    own, average = initial().state_dict(), weights(result)
    for state in [average, *strategy.deployed.values()]:
        assert list(state) == list(own)
    assert not torch.equal(average["conv.weight"], own["conv.weight"])
    for model in strategy.deployed.values():
        assert not torch.equal(model["classify.weight"], average["classify.weight"])


@pytest.mark.parametrize(
    ("method", "mod"), [("fedbn", flower.fedbn_mod), ("silobn", flower.silobn_mod)]
)
def test_batch_norm_stays_on_the_client_by_variant_or_by_mod(method: str, mod: Any) -> None:
    """An app of plain training under the mod has the average of the variant, to the bit; evaluation has it, too."""
    by_mod = FakeGrid(client_app([], app_mods=[mod(lambda: initial())]))
    by_variant = FakeGrid(client_app([method]))
    results = [
        train(flower.ExactFedAvg(initial()), grid.app, grid=grid) for grid in (by_mod, by_variant)
    ]
    assert not by_mod.errors and not by_variant.errors
    assert same(*map(weights, results))
    private = {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
    private |= {"norm.weight", "norm.bias"} if method == "fedbn" else set()
    own, shared = initial().state_dict(), weights(results[0])
    # A bias before batch norm has no gradient: whether rounding moves it depends on the CPU.
    for name in own.keys() - {"conv.bias"}:
        assert torch.equal(shared[name].float(), own[name].float()) == (name in private), name
    for node in by_mod.nodes:
        left, right = (
            dict(grid.contexts[node].state["fedskew/private"].to_torch_state_dict())
            for grid in (by_mod, by_variant)
        )
        assert set(left) == private and same(left, right)


class ExactScaffold(flower.Scaffold):
    exact = True


def test_one_flat_array_gives_the_bits_of_an_array_per_tensor() -> None:
    states = []
    for arrays in (None, flower.flat_arrays(initial(PlainNet))):
        grid = FakeGrid(client_app(["scaffold"], net=PlainNet))
        strategy = ExactScaffold(initial(PlainNet), **OFF)
        result = train(strategy, grid.app, grid=grid, arrays=arrays, net=PlainNet)
        assert not grid.errors
        states.append(weights(result))
    message = RecordDict({"arrays": result.arrays})
    model = flower.load_model(
        Message(message, dst_node_id=1, message_type="evaluate"),
        Context(1, 1, {}, RecordDict(), {}),
        initial(PlainNet),
    )
    assert len(states[1]) == 1 and same(states[0], model.state_dict())


def test_the_loss_alone_in_a_loop_of_the_apps_own() -> None:
    """One full-batch step with the loss equals one of local_round's, to the last bits of a mean."""
    results = []
    for app in (
        client_app(["fedshift"], local_steps=1, batch_size=1000, momentum=0.0),
        with_own_loop(),
    ):
        grid = FakeGrid(app)
        strategy = flower.ExactFedAvg(initial(), **OFF)
        results.append(weights(train(strategy, app, rounds=1, counts=True, grid=grid)))
        assert not grid.errors
    for name in results[0]:
        assert torch.allclose(results[0][name], results[1][name], atol=1e-6), name


def with_own_loop() -> ClientApp:
    app = ClientApp()

    @app.train()
    def own(message: Message, context: Context) -> Message:
        inputs, labels = client_data(int(context.node_config["partition-id"]))
        model = flower.load_model(message, context, initial()).train()
        criterion = flower.local_loss(message, context, labels, 10, variants=["fedshift"])
        criterion(model(inputs), labels).backward()
        torch.optim.SGD(model.parameters(), lr=0.05).step()
        metrics = MetricRecord({"num-examples": len(labels)})
        content = {"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}
        return Message(RecordDict(content), reply_to=message)

    @app.query()
    def ask(message: Message, context: Context) -> Message:
        data = client_data(int(context.node_config["partition-id"]))
        return flower.local_round(message, context, initial(), data, variants=["fedshift"])

    return app


def test_calibration_and_tau_norm_work_on_any_strategys_result() -> None:
    grid = FakeGrid(client_app(["ccvr"]))
    result = train(FedAdam(**OFF, eta=0.01), grid.app, 1, grid=grid)
    # flwr's FedAdam makes float64 of the weights
    average = {name: tensor.float() for name, tensor in weights(result).items()}
    model = flower.CCVR(initial(), features_per_class=5).calibrate(grid, result.arrays)
    assert not torch.equal(model["classify.weight"], average["classify.weight"])
    assert torch.equal(model["conv.weight"], average["conv.weight"])
    rows = flower.TauNorm(initial()).normalize(result.arrays)["tau-norm"]["classify.weight"]
    assert torch.allclose(rows.norm(dim=1), torch.ones(10))
