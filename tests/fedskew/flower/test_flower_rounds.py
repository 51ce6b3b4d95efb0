"""Every method trains in a Flower app, with the numbers of FedSkew's own rounds."""

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fake_grid import FakeGrid
from flower_grid import (
    CLIENTS,
    DATA,
    Net,
    PlainNet,
    client_app,
    client_data,
    federation,
    initial,
    same,
    train,
    weights,
)
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
)
from torch import Tensor

import fedskew
import fedskew.flower as flower
from client_app.models import build
from client_app.optimizer import TrainingSettings
from client_app.runtime import initial_seed
from client_app.state import State
from fedskew.flower.records import as_dtype_of
from fedskew.flower.variants import variants_of
from server_app.checkpoint import Checkpoint
from strategies.core.server import Server
from strategies.creff import CReFF

OFF = {"fraction_evaluate": 0.0}
SMALL_CREFF = {"features_per_class": 5, "feature_steps": 3, "head_steps": 4}
HOLDOUT = {"steps": 3, "batch_size": 8}
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class CReFFAdam(flower.CReFF, FedAdam):
    """CReFF beside flwr's own FedAdam."""


class ExactCReFF(flower.CReFF, flower.ExactFedAvg):
    """CReFF beside FedSkew's mean."""


class ExactCCVR(flower.CCVR, flower.ExactFedAvg):
    """CCVR beside FedSkew's mean."""


class ExactRefitBias(flower.RefitBias, flower.ExactFedAvg):
    """The refit bias beside FedSkew's mean."""


class ExactTauNorm(flower.TauNorm, flower.ExactFedAvg):
    """tau-normalization beside FedSkew's mean."""


class ExactFed3R(flower.Fed3R, flower.ExactFedAvg):
    """Ridge regression beside FedSkew's mean."""


class ExactFedLDA(flower.FedLDA, flower.ExactFedAvg):
    """The linear discriminant beside FedSkew's mean."""


class ExactFedCOF(flower.FedCOF, flower.ExactFedAvg):
    """FedCOF beside FedSkew's mean."""


STRATEGIES = [
    (flower.ExactFedAvg, {}, [], []),
    (flower.CReFF, SMALL_CREFF, ["creff"], ["creff"]),
    (flower.CReFF, SMALL_CREFF, ["creff", "fedshift"], ["creff"]),
    (CReFFAdam, {**SMALL_CREFF, "eta": 0.01}, ["creff"], ["creff"]),
    (
        flower.CReFFCode,
        {"features_per_class": 5, "feature_steps": 3, "head_epochs": 2},
        ["creff-code"],
        ["creff-code"],
    ),
    (flower.CCVR, {"features_per_class": 5, "head_steps": 4}, ["ccvr"], ["ccvr"]),
    (flower.RefitBias, {"steps": 5}, ["refit-bias"], ["refit-bias"]),
    (flower.FedNCM, {"range": 32.0}, ["fedncm", "fedprox"], ["fedncm"]),
    (flower.FedLDA, {"rho": "auto", "range": 32.0}, ["fed-lda"], ["fed-lda"]),
    (flower.FedLDAPooled, {"range": 32.0}, ["fed-lda-pooled"], ["fed-lda-pooled"]),
    (flower.Fed3R, {"sweep": "0.1,1", "range": 32.0}, ["fed3r"], ["fed3r-0.1", "fed3r-1"]),
    (flower.FedCOF, {"bits": 14, "range": 32.0}, ["fedcof"], ["fedcof"]),
    (flower.TauNorm, {"sweep": "0.5,1"}, ["iwds"], ["tau-norm-0.5", "tau-norm-1"]),
    (flower.Scaffold, {}, ["scaffold"], []),
    (flower.FedNova, {"variants": ["fedprox"]}, ["fedprox"], []),
    (flower.RatioLoss, {"beta": 0.2, "holdout": "data"}, ["ratio-loss"], []),
    (flower.FedDF, {**HOLDOUT, "holdout": "data"}, [], []),
    (flower.FedBE, {**HOLDOUT, "models": 2, "holdout": "data"}, [], []),
    (flower.Median, {}, [], []),
    (flower.TrimmedMean, {"share": 0.3}, [], []),
    (flower.NormClipping, {"bound": 0.5}, [], []),
]


@pytest.mark.parametrize("kind, settings, variants, deployed", STRATEGIES)
def test_a_strategy_trains_and_deploys_by_the_users_names(
    kind: type[flower.MethodStrategy],
    settings: dict[str, Any],
    variants: list[str],
    deployed: list[str],
) -> None:
    if "holdout" in settings:
        settings = {**settings, "holdout": client_data(0)}
    strategy = kind(initial(), **OFF, **settings)
    grid = FakeGrid(client_app(variants))
    result = train(strategy, grid.app, counts="fedshift" in variants, grid=grid)
    assert not grid.errors
    assert sorted(strategy.deployed) == deployed
    own = initial().state_dict()
    for state in [weights(result), *strategy.deployed.values()]:
        assert list(state) == list(own)
        assert all(torch.isfinite(tensor).all() for tensor in state.values())
        initial().load_state_dict(state)
    assert not torch.equal(weights(result)["conv.weight"], own["conv.weight"])
    changed = "classify.bias" if kind is flower.RefitBias else "classify.weight"
    assert all(
        not torch.equal(model[changed], weights(result)[changed])
        for model in strategy.deployed.values()
    )


def test_the_round_does_not_depend_on_the_order_of_the_replies() -> None:
    results = [
        weights(train(flower.ExactFedAvg(initial(), **OFF), app, grid=FakeGrid(app, shuffle=seed)))
        for seed in (1, 2)
        for app in [client_app(["fedprox"])]
    ]
    assert same(*results)
    results = [
        weights(train(FedAvg(**OFF), app, grid=FakeGrid(app, shuffle=seed)))
        for seed in (1, 2)
        for app in [client_app(["fedprox"])]
    ]
    assert not same(*results), "flwr's own mean depends on it: docs/guides/flower.md says so"


class Spy(ExactCReFF):
    """Keeps what the methods are given in each round."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.seen: list[tuple[Server, State, Any, dict[str, Any]]] = []

    def _combined(self, arrays: ArrayRecord, updates: Any) -> ArrayRecord:
        combined = super()._combined(arrays, updates)
        self.seen.append((self.server, self._tensors_of(combined), updates, dict(self.deployed)))
        return combined


def test_the_same_replies_make_the_same_head_as_the_projects_own_method() -> None:
    strategy = Spy(initial(), **OFF, **SMALL_CREFF)
    train(strategy, client_app(["creff"]), rounds=3)
    method = CReFF(**SMALL_CREFF)
    state = method.initial_state(replace(strategy.seen[0][0], round=0))
    for server, shared, updates, deployed in strategy.seen:
        made = method.deploy(server, state, shared, updates)
        state = made.state
        head = made.models["creff"]
        assert torch.equal(head["head.weight"], deployed["creff"]["classify.weight"])
        assert torch.equal(head["head.bias"], deployed["creff"]["classify.bias"])
        assert strategy.metrics[server.round] == made.metrics


WHOLE_RUNS = {
    "fedshift": (flower.ExactFedAvg, flower.MethodStrategy),
    "fedshift+iwds+fedprox": (flower.ExactFedAvg, flower.MethodStrategy),
    "creff": (ExactCReFF, flower.CReFF),
    "ccvr": (ExactCCVR, flower.CCVR),
    "refit-bias": (ExactRefitBias, flower.RefitBias),
    "tau-norm": (ExactTauNorm, flower.TauNorm),
    "fed3r": (ExactFed3R, flower.Fed3R),
    "fed-lda": (ExactFedLDA, flower.FedLDA),
    "fedcof": (ExactFedCOF, flower.FedCOF),
    "scaffold": (flower.Scaffold, None),
    "fednova": (flower.FedNova, None),
    "median": (flower.Median, None),
}


FIXED_FEATURES = ("fed3r", "fed-lda", "fedcof")
"""Methods that `fedskew run` has on fixed features alone."""


def whole_run(method: str, kind: type[flower.MethodStrategy], model: str) -> dict[str, State]:
    """Return the average and the deployed models of three rounds inside flwr's loop."""
    parts = federation()
    shape, classes = parts.dataset.shape, parts.dataset.num_classes

    def make() -> Any:
        return build(model, shape, classes, initial_seed(0))

    app = ClientApp()

    def handle(message: Message, context: Context) -> Message:
        samples = parts.train(int(context.node_config["partition-id"]), "cpu")
        names = method.split("+")
        return flower.local_round(
            message, context, make(), samples, variants=names, epochs=2, lr=0.05, seed=0
        )

    app.train()(handle)
    app.query()(handle)
    grid = FakeGrid(app, shuffle=3)
    strategy = kind(make(), **OFF)
    config = ConfigRecord(flower.class_counts(grid) if "fedshift" in method else {})
    start = ArrayRecord(make().state_dict())
    result = strategy.start(grid, start, 3, train_config=config)
    assert not grid.errors
    average = as_dtype_of(weights(result), make().state_dict())
    return {"average": average, **strategy.deployed}


@pytest.mark.parametrize("method", WHOLE_RUNS)
def test_a_whole_run_has_the_weights_of_fedskew_run(method: str, tmp_path: Path) -> None:
    """To the bit with FedSkew's mean, within 1e-5 with flwr's, which sums in float32."""
    network = "linear" if method in FIXED_FEATURES else "small-cnn"
    settings = {
        "method": method,
        "model": network,
        "rounds": 3,
        "local-epochs": 2,
        "learning-rate": 0.05,
        "dataset": "digits",
        "clients": CLIENTS,
        "train-images": DATA.train_images,
        "test-images": DATA.test_images,
        "alpha": DATA.alpha,
        "min-samples": DATA.min_samples,
        "evaluate-every": 3,
        "device": "cpu",
        "results": str(tmp_path),
    }
    checkpoint = Checkpoint.load(fedskew.run(settings).folder / "checkpoint.safetensors")
    expected = {**checkpoint.deployed, "average": checkpoint.shared}
    exact, flwr_mean = WHOLE_RUNS[method]
    for kind, tolerance in [(exact, 0.0), (flwr_mean, 1e-5)]:
        if kind is None:
            continue  # the method combines the models itself
        models = whole_run(method, kind, network)
        assert models.keys() == expected.keys()
        for name, model in models.items():
            assert model.keys() == expected[name].keys()
            worst = max(
                float((model[n].double() - expected[name][n].double()).abs().max()) for n in model
            )
            assert worst <= tolerance, (name, worst)


@pytest.mark.parametrize("variant", ["fedbn", "silobn"])
def test_private_tensors_stay_on_the_client_and_its_evaluation_has_them(variant: str) -> None:
    strategy = FedAvg()
    grid = FakeGrid(client_app([variant]))
    result = train(strategy, grid.app, grid=grid)
    own, shared = initial().state_dict(), weights(result)
    assert not grid.errors and len(result.evaluate_metrics_clientapp) == 2
    private = {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
    if variant == "fedbn":
        private |= {"norm.weight", "norm.bias"}
    for name in own:
        if name in private:
            assert torch.allclose(shared[name].float(), own[name].float())
        else:
            assert not torch.equal(shared[name], own[name])
    kept = [context.state["fedskew/private"] for context in grid.contexts.values()]
    assert all(set(record) == private for record in kept)
    means = [record["norm.running_mean"].numpy() for record in kept]
    assert not (means[0] == means[1]).all()


@pytest.mark.parametrize(
    "method, mod", [("fedbn", flower.fedbn_mod), ("silobn", flower.silobn_mod)]
)
def test_a_mod_keeps_what_local_round_keeps(method: str, mod: Any) -> None:
    """An app of plain training under the mod has the average of the variant, to the bit."""
    by_mod = FakeGrid(client_app([], app_mods=[mod(Net)]))
    by_variant = FakeGrid(client_app([method]))
    results = [
        weights(train(flower.ExactFedAvg(initial()), grid.app, grid=grid))
        for grid in (by_mod, by_variant)
    ]
    assert not by_mod.errors and same(*results)
    for node in by_mod.nodes:
        left, right = (g.contexts[node].state["fedskew/private"] for g in (by_mod, by_variant))
        assert set(left) == set(right)
        assert all((left[name].numpy() == right[name].numpy()).all() for name in left)


@pytest.mark.parametrize("variants", [["fedshift"], ["creff"], ["scaffold"], ["fedbn"]])
def test_one_flat_array_gives_the_bits_of_an_array_per_tensor(variants: list[str]) -> None:
    kinds = {"creff": ExactCReFF, "scaffold": flower.Scaffold}
    states = []
    for arrays in (None, flower.flat_arrays(initial())):
        settings = SMALL_CREFF if variants == ["creff"] else {}
        kind = kinds.get(variants[0], flower.ExactFedAvg)
        strategy = kind(initial(), variants=[v for v in variants if v == "fedbn"], **settings)
        grid = FakeGrid(client_app(variants))
        counts = "fedshift" in variants
        result = train(strategy, grid.app, grid=grid, arrays=arrays, counts=counts)
        assert not grid.errors
        record = result.arrays
        if arrays is not None:
            assert len(record) == 1
            tensors = initial()
            flat = flower.load_model(message_with(record), context_of(grid), tensors)
            states.append({n: t for n, t in flat.state_dict().items() if "norm" not in n})
        else:
            states.append({n: t for n, t in weights(result).items() if "norm" not in n})
    assert same(*states)


def message_with(record: ArrayRecord) -> Message:
    return Message(RecordDict({"arrays": record}), dst_node_id=1, message_type="evaluate")


def context_of(grid: FakeGrid) -> Context:
    context = next(iter(grid.contexts.values()))
    return Context(1, 1, context.node_config, RecordDict(), {})


def test_the_loss_alone_in_a_loop_of_the_apps_own() -> None:
    """One full-batch step with the loss equals one of local_round's, to the last bits of a mean."""
    results = []
    for own_loop in (True, False):
        app = client_app(["fedshift"], local_steps=1, batch_size=1000, momentum=0.0)
        if own_loop:
            app = with_own_loop()
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
        content = {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": len(labels)}),
        }
        return Message(RecordDict(content), reply_to=message)

    @app.query()
    def ask(message: Message, context: Context) -> Message:
        data = client_data(int(context.node_config["partition-id"]))
        return flower.local_round(message, context, initial(), data, variants=["fedshift"])

    return app


def test_ratio_loss_trains_at_the_server_as_it_is_told() -> None:
    weights_by_rate = []
    for rate in (0.01, 0.2):
        training = TrainingSettings(local_epochs=1, learning_rate=rate)
        strategy = flower.RatioLoss(
            initial(), **OFF, beta=1.0, holdout=client_data(0), training=training
        )
        train(strategy, client_app(["ratio-loss"]), rounds=1)
        weights_by_rate.append(strategy.metrics[1]["class-weights"])
    assert weights_by_rate[0] != weights_by_rate[1]


def test_calibration_and_tau_norm_work_on_any_strategys_result() -> None:
    app = client_app(["ccvr", "refit-bias"])
    grid = FakeGrid(app)
    result = train(FedAdam(**OFF, eta=0.01), app, grid=grid)
    model = flower.CCVR(initial(), features_per_class=5).calibrate(grid, result.arrays)
    assert not torch.equal(model["classify.weight"], weights(result)["classify.weight"])
    # flwr's FedAdam makes float64 of the weights
    assert torch.equal(model["conv.weight"], weights(result)["conv.weight"].float())
    refit = flower.RefitBias(initial()).calibrate(grid, result.arrays)
    assert not torch.equal(refit["classify.bias"], weights(result)["classify.bias"].float())
    assert torch.equal(refit["classify.weight"], weights(result)["classify.weight"].float())
    rows = flower.TauNorm(initial()).normalize(result.arrays)["tau-norm"]["classify.weight"]
    assert torch.allclose(rows.norm(dim=1), torch.ones(10))


def test_a_head_in_closed_form_on_a_model_that_is_not_trained() -> None:
    """FedNCM's rows are the class means of all clients' features; how the samples are split changes nothing."""
    net = initial()
    features: list[Tensor] = []
    net.classify.register_forward_pre_hook(lambda module, inputs: features.append(inputs[0]))
    everybody = [client_data(number) for number in range(CLIENTS)]
    inputs = torch.cat([images for images, _ in everybody])
    labels = torch.cat([own for _, own in everybody])
    with torch.no_grad():
        net.eval()(inputs)
    strategy = flower.FedNCM(initial(), **OFF, bits=20, range=32.0)
    grid = FakeGrid(client_app(["fedncm"]))
    result = train(strategy, grid.app, rounds=0, grid=grid)
    assert not grid.errors
    assert same(weights(result), dict(initial().state_dict()))
    head = strategy.deployed["fedncm"]
    for label in range(10):
        mean_D = features[0][labels == label].double().mean(0)
        assert torch.allclose(head["classify.weight"][label].double(), mean_D, atol=1e-4)
        half = mean_D.square().sum() / 2
        assert torch.allclose(head["classify.bias"][label].double(), -half, atol=1e-3)

    models = []
    for parts in ([inputs], list(inputs.chunk(3))):
        app = ClientApp()
        owned = list(zip(parts, labels.split([len(part) for part in parts]), strict=True))

        @app.query()
        def ask(message: Message, context: Context, owned: Any = owned) -> Message:
            data = owned[int(context.node_config["partition-id"])]
            return flower.local_round(message, context, initial(), data, variants=["fed-lda"])

        strategy = flower.FedLDA(initial(), **OFF, range=32.0, min_available_nodes=1)
        grid = FakeGrid(app, len(owned))
        models.append(strategy.calibrate(grid, ArrayRecord(initial().state_dict())))
    # The features of a sample may differ in their last bits with the batch that it is in.
    assert all(torch.allclose(models[0][n], models[1][n], atol=1e-3) for n in models[0])


def test_two_heads_in_one_strategy_and_on_the_result_of_another() -> None:
    class Both(flower.FedNCM, flower.Fed3R):
        pass

    grid = FakeGrid(client_app(["fedncm", "fed3r"]))
    both = Both(initial(), **OFF, range=32.0)
    result = train(both, grid.app, grid=grid)
    assert not grid.errors and {*both.deployed} == {"fedncm", "fed3r"}
    alone = flower.Fed3R(initial(), range=32.0)
    assert same(alone.calibrate(grid, result.arrays), both.deployed["fed3r"])
    assert alone.metrics[0]["clipped-features"] == 0


def test_a_methods_name_stands_for_its_settings_in_an_app_too() -> None:
    """uniform-sampling is resampling with beta = 0, and not IWDS."""
    (uniform,) = variants_of(["uniform-sampling"])
    (iwds,) = variants_of(["iwds"])
    assert uniform.beta_start == uniform.beta_end == 0.0
    assert iwds.beta_start == 0.9999


def test_flat_arrays_keep_batch_norms_counter_out_of_the_clipping_norm() -> None:
    """The first trap of the guide: under flwr's wrapper the counter takes up most of the bound."""
    moved = []
    for arrays in (None, flower.flat_arrays(initial())):
        inner = flower.ExactFedAvg(initial(), **OFF)
        wrapped = DifferentialPrivacyServerSideFixedClipping(inner, 0.0, 0.2, CLIENTS)
        grid = FakeGrid(client_app([], epochs=5))
        record = train(wrapped, grid.app, rounds=1, grid=grid, arrays=arrays).arrays
        assert not grid.errors
        model = flower.load_model(message_with(record), context_of(grid), initial())
        change = model.state_dict()["conv.weight"] - initial().state_dict()["conv.weight"]
        moved.append(float(change.norm()))
    assert 0 < moved[0] < moved[1] / 2


def test_noise_makes_batch_norms_variance_negative_and_such_a_reply_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A trap of the guide: flwr's FedAvg takes the model, and its evaluation is NaN."""
    np.random.seed(0)  # flwr's noise is numpy's
    mods = [LocalDpMod(1.0, 1.0, 0.01, 1e-5)]
    result = train(FedAvg(**OFF), client_app([], mods=mods), rounds=1)
    assert (weights(result)["norm.running_var"] < 0).any()
    for net, refused in ((Net, True), (PlainNet, False)):
        caplog.clear()
        strategy = flower.ExactFedAvg(initial(net), **OFF)
        with contextlib.suppress(RuntimeError):  # where all four are refused
            train(strategy, client_app([], net=net, mods=mods), rounds=1, net=net)
        assert ("norm.running_var is -" in caplog.text) is refused
