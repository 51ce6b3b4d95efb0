"""Where flwr ends a run without a reason or goes on without a word, FedSkew says what to change."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from fake_grid import FakeGrid
from flower_grid import Net, PlainNet, client_app, client_data, initial, train, weights
from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedProx,
    Krum,
)
from torch import nn

import fedskew.flower as flower
from client_app.local_site import NOT_A_PARTICIPANT
from client_app.variants import VARIANTS
from client_app.variants.feature_statistics import FeatureStatistics
from client_app.variants.proximal import Proximal
from data import SettingError
from fedskew.flower.model import as_classifier
from fedskew.flower.variants import WITHOUT_STRATEGY, variants_of
from tests.client_app.client_builders import same

OFF = {"fraction_evaluate": 0.0}
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@contextmanager
def refused(kind: type[Exception], *words: str) -> Iterator[None]:
    """Expect an error of this kind that says these words."""
    with pytest.raises(kind) as caught:
        yield
    assert all(word in str(caught.value) for word in words), caught.value


def first_error(strategy: Any, variants: Any, **named: Any) -> str:
    """Return what the clients say, of a run that must not end with a model."""
    grid = FakeGrid(client_app(variants, **named))
    try:
        result = train(strategy, grid.app, rounds=1, grid=grid, net=named.get("net", Net))
    except RuntimeError:
        pass
    else:
        assert not len(result.arrays)
    return str(grid.errors[0])


# ---- clients and strategies that do not go together ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variants", "net", "words"),
    [
        (["creff"], Net, "use strategy = fedskew.flower.CReFF(model, ...)"),
        (["scaffold"], Net, "use strategy = fedskew.flower.Scaffold(model, ...)"),
        (["fedshift"], Net, "train_config=ConfigRecord(class_counts(grid))"),
        (["fedshift", "fedlc"], Net, "both correct the class prior"),
        (["fedsift"], Net, "did you mean fedshift"),
        (["fedbn"], PlainNet, "the model has none"),
    ],
)
def test_a_client_says_what_its_variants_need(variants: list[str], net: Any, words: str) -> None:
    assert words in first_error(FedAvg(**OFF), variants, net=net)


@pytest.mark.parametrize("name", ["feddyn", *WITHOUT_STRATEGY])
def test_a_client_half_without_its_server_half_is_refused(name: str) -> None:
    with pytest.raises(SettingError) as caught:
        variants_of([name])
    assert caught.value.key == "variants"
    assert [variant.name for variant in variants_of(["moon"])] == ["model-contrast"]
    assert VARIANTS.keys() >= {*WITHOUT_STRATEGY}


@pytest.mark.parametrize(
    ("kind", "variants", "name"),
    [
        (flower.Scaffold, ["scaffold"], "control-variates"),
        (flower.ExactFedAvg, ["fedprox"], ""),
    ],
)
def test_methods_of_sgd_refuse_another_optimizer_on_the_clients(
    kind: Any, variants: list[str], name: str
) -> None:
    app = client_app(variants, optimizer="adamw")
    if name:
        with refused(RuntimeError, f"does not go with {name}, whose equations assume"):
            train(kind(initial(), **OFF), app, rounds=1)
    else:
        train(kind(initial(), **OFF), app, rounds=1)


def test_the_strength_that_flwrs_fedprox_sends_is_the_clients() -> None:
    def trained(mu: float, variants: list[Any]) -> dict[str, torch.Tensor]:
        grid = FakeGrid(client_app(variants))
        strategy = FedProx(**OFF, proximal_mu=mu) if mu else FedAvg(**OFF)
        result = train(strategy, grid.app, rounds=1, grid=grid)
        if grid.errors:
            raise grid.errors[0]
        return weights(result)

    stated = trained(0.0, [Proximal(mu=0.5)])
    assert same(trained(0.5, ["fedprox"]), stated)
    assert not same(trained(0.0, ["fedprox"]), stated)
    with refused(LookupError, "sends proximal-mu = 0.5"):
        trained(0.5, ["fedshift"])
    with refused(ValueError, "mu is 0.1 here, and the server's is 0.5"):
        trained(0.5, [Proximal(mu=0.1)])


def test_a_grid_of_the_clients_own_is_not_passed_over() -> None:
    app = client_app(["fed3r", FeatureStatistics(range=16.0)])
    with refused(RuntimeError, "range is 16 here, and the server's is 32"):
        train(flower.Fed3R(initial(), **OFF, range=32.0), app, rounds=0)
    strategy = flower.Fed3R(initial(), **OFF, range=16.0)
    train(strategy, app, rounds=0)
    assert {*strategy.deployed} == {"fed3r"}
    with pytest.raises(SettingError) as clipped:
        train(flower.FedNCM(initial(), **OFF, range=0.001), client_app(["fedncm"]), rounds=0)
    assert clipped.value.key == "class-means.range" and "is enough" in str(clipped.value)


def test_strategies_and_their_settings_are_checked_when_they_are_made() -> None:
    class ScaffoldKrum(flower.Scaffold, Krum):
        pass

    class CReFFAdam(flower.CReFF, FedAdam):
        pass

    class TwoMeans(flower.Scaffold, flower.FedNova):
        pass

    for kind, settings, error in (
        (ScaffoldKrum, {}, TypeError),
        (TwoMeans, {}, SettingError),
        (flower.CReFF, {"head_steps": -1}, SettingError),
        (flower.CReFF, {"bits": 12}, TypeError),
        (flower.Fed3R, {"bits": 99}, SettingError),
        (flower.FedDF, {}, SettingError),  # without a hold-out
        (flower.CCVR, {"variants": ["fedbn"]}, SettingError),
    ):
        with pytest.raises(error):
            kind(initial(), **OFF, **settings)
    assert CReFFAdam(initial(), **OFF, head_steps=1).parts[0].name == "creff"
    for unknown in ("clients_per_pass", "finetune_epochs"):
        with refused(TypeError, unknown):
            flower.local_round(None, None, Net(), None, **{unknown: 2})  # type: ignore[arg-type]


def test_functions_beside_local_round_refuse_what_they_cannot_carry_out() -> None:
    app = ClientApp()

    @app.train()
    def own(message: Message, context: Any) -> Message:
        flower.local_loss(message, context, client_data(0)[1], 10, variants=["fedprox"])
        return message

    grid = FakeGrid(app)
    train(FedAvg(**OFF), app, rounds=1, grid=grid)
    assert "proximal cannot be a loss function: use local_round" in str(grid.errors[0])
    with refused(ValueError, "the model has none"):
        flower.fedbn_mod(PlainNet)
    grid = FakeGrid(client_app([], app_mods=[flower.fedbn_mod(Net)]))
    train(FedAvg(**OFF), grid.app, rounds=1, grid=grid, arrays=flower.flat_arrays(initial()))
    assert "the server sends flat_arrays" in str(grid.errors[0])


# ---- questions -------------------------------------------------------------------------------------------------------


def test_class_counts_say_who_did_not_answer() -> None:
    app = ClientApp()

    @app.train()
    def own(message: Message, context: Any) -> Message:
        return message

    with refused(RuntimeError, "put @app.query() above"):
        flower.class_counts(FakeGrid(app))
    with refused(RuntimeError, "none of this client's variants (resampling)"):
        flower.class_counts(FakeGrid(client_app(["iwds"])))

    def decline(number: int, reply: Message) -> None:
        if number == 2:
            reply.__dict__.update(_content=None, _error=Error(NOT_A_PARTICIPANT, "no part"))

    app = client_app(["fedshift"])
    everybody = flower.class_counts(FakeGrid(app))["class-counts"]
    grid = FakeGrid(app)
    grid.change = decline
    assert 0 < sum(flower.class_counts(grid)["class-counts"]) < sum(everybody)
    with refused(RuntimeError, "3 nodes take part in the run, and 4 are needed"):
        flower.class_counts(grid, min_nodes=4)

    def blur(number: int, reply: Message) -> None:
        counts = reply.content.metric_records["metrics"]["class-counts"]
        assert isinstance(counts, list)
        reply.content["metrics"] = MetricRecord({"class-counts": [n + 0.5 for n in counts]})

    grid.change = blur
    with refused(RuntimeError, "its answer is not in whole numbers"):
        flower.class_counts(grid)

    def claim(number: int, reply: Message) -> None:
        reply.content["metrics"] = MetricRecord({"class-counts": [samples * 2**16] * 10})

    grid.change = claim
    samples = 10**8
    assert flower.class_counts(grid)["class-counts"] == [4 * samples * 2**16] * 10
    samples = 10**8 + 10
    with refused(RuntimeError, "is of more than 1000000000 samples"):
        flower.class_counts(grid)

    def count_one(number: int, reply: Message) -> None:
        if number == 2:
            reply.content["metrics"] = MetricRecord({"class-counts": 7})

    grid.change = count_one
    with refused(RuntimeError, "of 1 classes"):
        flower.class_counts(grid)


State = Mapping[str, torch.Tensor]


def take_one(state: State) -> State:
    counts = state["counts"].clone()
    counts[int(counts.argmax())] -= 1
    return {**state, "counts": counts}


@pytest.mark.parametrize(
    ("kind", "question", "change", "words"),
    [
        (
            flower.Fed3R,
            "feature-statistics",
            lambda s: {**s, "more": torch.ones(10**6)},
            "is not expected",
        ),
        (flower.FedLDA, "label-counts", take_one, "class counts differ between label-counts and"),
    ],
)
def test_an_answer_that_cannot_be_one_ends_with_its_reason(
    kind: Any, question: str, change: Callable[[State], State], words: str
) -> None:
    def spoil(number: int, reply: Message) -> None:
        name = f"upload/{question}"
        if number == 2 and name in reply.content.array_records:
            reply.content[name] = ArrayRecord(change(reply.content[name].to_torch_state_dict()))

    grid = FakeGrid(client_app(list(kind.methods)))
    train(kind(initial(), **OFF, range=32.0), grid.app, rounds=0, grid=grid)
    grid.change = spoil
    with refused(RuntimeError, words):
        train(kind(initial(), **OFF, range=32.0), grid.app, rounds=0, grid=grid)


def test_clients_that_lack_a_variant_or_a_model_are_told_of_it() -> None:
    with refused(RuntimeError, "there is no model to calibrate"):
        flower.CCVR(initial()).calibrate(FakeGrid(client_app(["ccvr"])), ArrayRecord())
    with refused(RuntimeError, "variants=['feature-gradients']"):
        train(flower.CReFF(initial(), **OFF), client_app([]))
    with refused(RuntimeError, "variants=['fed3r']) on the clients"):
        train(flower.Fed3R(initial(), **OFF, range=32.0), client_app(["iwds"]), rounds=0)
    with refused(RuntimeError, "none of 4 replies can be used", "epochs"):
        train(flower.ExactFedAvg(initial(), **OFF), client_app([], epochs=0))


# ---- replies that must not be combined -------------------------------------------------------------------------------


def arrays_with(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Message], None]:
    def spoil(reply: Message) -> None:
        state = reply.content["arrays"].to_torch_state_dict()
        change(state)
        reply.content["arrays"] = ArrayRecord(state)

    return spoil


def record_with(name: str, size: int) -> Callable[[Message], None]:
    def spoil(reply: Message) -> None:
        reply.content[name] = ArrayRecord({"x": Array(torch.ones(size).numpy())})

    return spoil


@pytest.mark.parametrize(
    ("kind", "variants", "spoil", "words"),
    [
        (flower.ExactFedAvg, [], record_with("more", 3), "must send the model alone"),
        (
            flower.ExactFedAvg,
            [],
            arrays_with(lambda state: state["conv.bias"][0].fill_(torch.nan)),
            "conv.bias is not finite",
        ),
        (
            flower.ExactFedAvg,
            [],
            arrays_with(lambda state: state.update({"conv.bias": torch.ones(7)})),
            "'conv.bias' of shape (7,) is not in the model",
        ),
        (
            flower.ExactFedAvg,
            [],
            lambda reply: reply.content["metrics"].update({"num-examples": 2**52}),
            "a client has at most",
        ),
        (
            flower.ExactFedAvg,
            [],
            lambda reply: reply.content["fedskew"].update({"steps": -1}),
            "steps is -1 and must be 1",
        ),
        (
            flower.ExactFedAvg,
            [],
            lambda reply: reply.content["metrics"].update({"moon/loss": torch.inf}),
            "moon/loss' is not finite",
        ),
        (
            flower.FedNova,
            [],
            lambda reply: reply.content["fedskew"].update({"coefficient-sum": 1e-9}),
            "steps cannot make",
        ),
        (
            flower.Scaffold,
            ["scaffold"],
            record_with("upload/control-variates", 100_000),
            "upload control-variates: ",
        ),
    ],
)
def test_one_bad_client_is_refused_and_the_others_train(
    kind: Any, variants: list[str], spoil: Any, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The run has the bits of one in which that client failed."""

    def fail(reply: Message) -> None:
        del reply.content["arrays"]

    models = []
    for change in (fail, spoil):
        grid = FakeGrid(client_app(variants))
        grid.change = lambda number, reply, change=change: change(reply) if number == 2 else None
        caplog.clear()
        models.append(weights(train(kind(initial(), **OFF), grid.app, rounds=1, grid=grid)))
    (line,) = [message for message in caplog.messages if "is refused: " in message]
    assert words in line
    assert same(*models)


# ---- privacy mods and wrappers ---------------------------------------------------------------------------------------


def test_a_privacy_mod_and_an_upload_end_with_a_sentence() -> None:
    with refused(RuntimeError, "flwr's privacy mods refuse feature-gradients"):
        mods = [LocalDpMod(2.0, 1e-6, 1.0, 1e-5)]
        train(flower.CReFF(initial(), **OFF), client_app(["creff"], mods=mods))


def test_answers_that_no_mod_protects_are_named_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for variants in ([], ["fedshift"]):
        caplog.clear()
        app = client_app(variants, net=PlainNet, mods=[LocalDpMod(2.0, 1e-6, 1e9, 1e-5)])
        with caplog.at_level(logging.INFO, "flwr"):
            train(FedAvg(**OFF), app, rounds=1, net=PlainNet, counts=bool(variants))
        assert ("no privacy wrapper or mod covers them" in caplog.text) is bool(variants)


@pytest.mark.parametrize("kind", [flower.TauNorm, flower.Fed3R])
def test_a_wrappers_noise_covers_what_is_deployed_or_the_run_is_refused(kind: Any) -> None:
    """TauNorm's model would be made before the wrapper adds its noise."""
    wrapped = DifferentialPrivacyServerSideFixedClipping(kind(initial(), **OFF), 1.0, 1.0, 4)
    with pytest.raises(RuntimeError) as caught:
        train(wrapped, client_app([]), rounds=1)
    assert "clipping and noise would not cover" in str(caught.value)
    assert (".calibrate on" in str(caught.value)) is hasattr(kind, "calibrate")
    exact = flower.ExactFedAvg(initial(), **OFF)
    control = DifferentialPrivacyServerSideFixedClipping(exact, 0.0, 1.0, 4)
    assert len(weights(train(control, client_app([]), rounds=1)))


# ---- the user's model ------------------------------------------------------------------------------------------------


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.last = nn.Linear(5, 8), nn.Linear(8, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return 3 * self.last(self.body(inputs).relu())


class Auxiliary(Scaled):
    """Has a later layer that the forward pass does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.more = nn.Linear(8, 4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.last(self.body(inputs).relu())


@pytest.mark.parametrize(
    ("net", "head", "words"),
    [
        (Scaled(), "", "does more with the logits of 'last'"),
        (Auxiliary(), "", "does not use the head"),
        (nn.Sequential(nn.Linear(5, 3, bias=False)), "", "nn.Linear with a bias"),
        (Auxiliary(), "last", ""),
    ],
)
def test_a_model_is_taken_or_refused_and_is_whole_afterwards(
    net: nn.Module, head: str, words: str
) -> None:
    inputs, before = torch.rand(4, 5), [name for name, _ in net.named_parameters()]
    output = net(inputs)
    if words:
        with refused(ValueError, words), as_classifier(net, head, inputs):
            pass
    else:
        with as_classifier(net, head, inputs) as classifier:
            assert classifier.head.out_features == 3
    assert [name for name, _ in net.named_parameters()] == before
    assert torch.equal(net(inputs), output)
