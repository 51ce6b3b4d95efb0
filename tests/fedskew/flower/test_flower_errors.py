"""Where flwr ends a run without a reason or goes on without a word, FedSkew says what to change."""

import logging
import re
from typing import Any

import pytest
import torch
from fake_grid import FakeGrid
from flower_grid import Net, PlainNet, client_app, client_data, initial, same, train, weights
from flwr.app import Array, ArrayRecord, Error, Message
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
from torch.utils.data import IterableDataset

import fedskew.flower as flower
from client_app.local_site import NOT_A_PARTICIPANT
from client_app.variants.feature_statistics import FeatureStatistics
from client_app.variants.proximal import Proximal
from data import SettingError
from fedskew.flower.model import as_classifier
from fedskew.flower.samples import samples_of

OFF = {"fraction_evaluate": 0.0}
HEADS = (flower.FedNCM, flower.FedLDA, flower.FedLDAPooled, flower.Fed3R, flower.FedCOF)
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def first_error(strategy: Any, variants: list[Any], **named: Any) -> str:
    """Return what the clients say, of a run that must not end with a model."""
    grid = FakeGrid(client_app(variants, **named))
    try:
        result = train(strategy, grid.app, rounds=1, grid=grid)
    except RuntimeError:
        pass
    else:
        assert not len(result.arrays)
    return str(grid.errors[0])


@pytest.mark.parametrize(
    "variant, strategy",
    [
        ("creff", "CReFF"),
        ("creff-code", "CReFFCode"),
        ("scaffold", "Scaffold"),
        ("ratio-loss", "RatioLoss"),
    ],
)
def test_a_client_says_which_strategy_it_needs(variant: str, strategy: str) -> None:
    for server in (FedAvg(**OFF), flower.ExactFedAvg(initial(), **OFF)):
        sentence = first_error(server, [variant])
        assert f"use strategy = fedskew.flower.{strategy}(model, ...)" in sentence


def test_a_missing_question_names_the_line_that_asks_it() -> None:
    assert "train_config=ConfigRecord(class_counts(grid))" in first_error(
        FedAvg(**OFF), ["fedshift"]
    )


def test_clients_without_a_query_function_are_told_of_it() -> None:
    app = ClientApp()

    @app.train()
    def own(message: Message, context: Any) -> Message:
        return message

    with pytest.raises(RuntimeError, match=r"put @app.query\(\) above"):
        flower.class_counts(FakeGrid(app))


def test_a_query_that_no_variant_answers_names_the_variants() -> None:
    grid = FakeGrid(client_app(["iwds"]))
    with pytest.raises(RuntimeError, match=r"none of this client's variants \(resampling\)"):
        flower.class_counts(grid)


def test_a_site_that_takes_no_part_in_the_run_is_not_in_the_class_counts() -> None:
    """As the gateway answers in its place; any other error is one."""

    def decline(number: int, reply: Message) -> None:
        if number == 2:
            reply.__dict__.update(_content=None, _error=Error(NOT_A_PARTICIPANT, "no part"))

    app = client_app(["fedshift"])
    everybody = flower.class_counts(FakeGrid(app))["class-counts"]
    grid = FakeGrid(app)
    grid.change = decline
    assert 0 < sum(flower.class_counts(grid)["class-counts"]) < sum(everybody)
    with pytest.raises(RuntimeError, match="3 nodes take part in the run, and 4 are needed"):
        flower.class_counts(grid, min_nodes=4)


def test_a_grid_that_most_features_exceed_names_the_one_that_is_enough() -> None:
    grid = FakeGrid(client_app(["fedncm"]))
    with pytest.raises(SettingError, match=r"class-means.range = 0.001: clips .* is enough"):
        train(flower.FedNCM(initial(), **OFF, range=0.001), grid.app, grid=grid)
    train(flower.FedNCM(initial(), **OFF, range=32.0), grid.app, grid=grid)


def test_a_grid_of_the_clients_own_is_not_passed_over() -> None:
    own = FeatureStatistics(range=16.0)
    for asked, words in ((32.0, "range is 16 here, and the server asks for 32"), (16.0, "")):
        grid = FakeGrid(client_app(["fed3r", own]))
        strategy = flower.Fed3R(initial(), **OFF, range=asked)
        if words:
            with pytest.raises(RuntimeError, match=words):
                train(strategy, grid.app, rounds=0, grid=grid)
        else:
            train(strategy, grid.app, rounds=0, grid=grid)
            assert {*strategy.deployed} == {"fed3r"}


def wrong_answer(name: str, change: Any) -> Any:
    """Return what makes one node's answer to the question another one."""

    def spoil(number: int, reply: Message) -> None:
        if number == 2 and f"upload/{name}" in reply.content.array_records:
            state = reply.content[f"upload/{name}"].to_torch_state_dict()
            reply.content[f"upload/{name}"] = ArrayRecord(change(state))

    return spoil


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda state: {**state, "sums": state["sums"] + 2**40}, "larger than its count allows"),
        (lambda state: {**state, "sums": state["sums"].double()}, "not int64 of shape"),
        (lambda state: {**state, "counts": state["counts"] - 1000}, "counts are negative"),
        (lambda state: {**state, "more": torch.ones(10**6)}, "bytes, and at most"),
        (lambda state: state, ""),
    ],
)
def test_an_answer_that_cannot_be_one_ends_with_the_nodes_reason(change: Any, words: str) -> None:
    grid = FakeGrid(client_app(["fedcof"]))
    grid.change = wrong_answer("client-means", change)
    strategy = flower.FedCOF(initial(), **OFF, range=32.0)
    if words:
        with pytest.raises(
            RuntimeError, match=rf"(?s)node \d+: client-means: .*{words}.*every node"
        ):
            train(strategy, grid.app, rounds=0, grid=grid)
    else:
        train(strategy, grid.app, rounds=0, grid=grid)


def test_class_counts_that_differ_between_two_questions_are_refused() -> None:
    def take_one(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        counts = state["counts"].clone()
        counts[int(counts.argmax())] -= 1
        return {**state, "counts": counts}

    for change, refused in ((take_one, True), (dict, False)):
        grid = FakeGrid(client_app(["fed-lda"]))
        grid.change = wrong_answer("label-counts", change)
        strategy = flower.FedLDA(initial(), **OFF, range=32.0)
        if refused:
            with pytest.raises(RuntimeError, match="class counts differ between label-counts and"):
                train(strategy, grid.app, rounds=0, grid=grid)
        else:
            train(strategy, grid.app, rounds=0, grid=grid)


def test_clients_without_the_heads_variant_are_told_of_it() -> None:
    for kind in HEADS:
        (name,) = kind.methods
        with pytest.raises(RuntimeError, match=rf"variants=\['{name}'\]\) on the clients"):
            train(kind(initial(), **OFF, range=32.0), client_app(["iwds"]), rounds=0)


def test_there_is_nothing_to_calibrate_without_a_model() -> None:
    with pytest.raises(RuntimeError, match="there is no model to calibrate"):
        flower.CCVR(initial()).calibrate(FakeGrid(client_app(["ccvr"])), ArrayRecord())


def test_clients_that_lack_the_upload_end_the_run_with_a_sentence() -> None:
    with pytest.raises(RuntimeError, match=r"variants=\['feature-gradients'\]"):
        train(flower.CReFF(initial(), **OFF), client_app([]))


def test_no_client_left_is_an_error_and_not_an_empty_model() -> None:
    app = client_app([], epochs=0)  # a setting that no client can train with
    with pytest.raises(
        RuntimeError, match=r"none of 4 replies can be used, the first because: .*epochs"
    ):
        train(flower.ExactFedAvg(initial(), **OFF), app)


def add_record(number: int, reply: Message) -> None:
    if number == 2:
        reply.content["more"] = ArrayRecord({"x": Array(torch.ones(3).numpy())})


def add_upload(number: int, reply: Message) -> None:
    if number == 2:
        reply.content["upload/feature-gradients"] = ArrayRecord({"x": Array(torch.ones(3).numpy())})


def send_nan(number: int, reply: Message) -> None:
    if number == 2:
        state = reply.content["arrays"].to_torch_state_dict()
        state["conv.bias"][0] = torch.nan
        reply.content["arrays"] = ArrayRecord(state)


def claim_samples(number: int, reply: Message) -> None:
    if number == 2:
        reply.content["metrics"]["num-examples"] = 2**52


def other_shape(number: int, reply: Message) -> None:
    if number == 2:
        state = reply.content["arrays"].to_torch_state_dict()
        reply.content["arrays"] = ArrayRecord({**state, "conv.bias": torch.ones(7)})


def huge_model(number: int, reply: Message) -> None:
    if number == 2:
        state = reply.content["arrays"].to_torch_state_dict()
        reply.content["arrays"] = ArrayRecord({**state, "conv.bias": torch.ones(200_000)})


@pytest.mark.parametrize(
    "change, words",
    [
        (add_record, "must send the model alone"),
        (add_upload, "which ExactFedAvg does not take"),
        (send_nan, "conv.bias is not finite"),
        (claim_samples, "a client has at most"),
        (other_shape, "float32 of 7, not float32 of 6"),
        (huge_model, "bytes, and at most"),
    ],
)
def test_one_bad_client_is_refused_and_the_others_train(
    change: Any, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The run has the bits of one in which that client failed."""
    models = []
    for spoil in (change, fail):
        app = client_app([])
        grid = FakeGrid(app)
        grid.change = spoil
        with caplog.at_level(logging.WARNING, "flwr"):
            strategy = flower.ExactFedAvg(initial(), **OFF)
            models.append(weights(train(strategy, app, rounds=1, grid=grid)))
    assert re.search(r"node \d+ is refused: .*" + words, caplog.text)
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])


def fail(number: int, reply: Message) -> None:
    if number == 2:
        del reply.content["arrays"]


def test_a_record_too_many_ends_flwrs_own_run() -> None:
    """The trap that the guide names; the control of the test above."""
    grid = FakeGrid(client_app([]))
    grid.change = add_record
    with pytest.raises(Exception, match=r"(?s).*exactly one|ArrayRecord.*"):
        train(FedAvg(**OFF), grid.app, rounds=1, grid=grid)


@pytest.mark.parametrize("variant, kind", [("creff", flower.CReFF), ("scaffold", flower.Scaffold)])
def test_an_upload_beyond_what_the_model_makes_is_refused(
    variant: str, kind: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def enlarge(number: int, reply: Message) -> None:
        if number == 2:
            names = [name for name in reply.content.array_records if name.startswith("upload/")]
            reply.content[names[0]] = ArrayRecord({"x": Array(torch.ones(100_000).numpy())})

    grid = FakeGrid(client_app([variant]))
    grid.change = enlarge
    train(kind(initial(), **OFF), grid.app, rounds=1, grid=grid)
    assert re.search(r"is refused: upload [\w-]+ has 4\d{5} bytes, and at most", caplog.text)


def test_a_coefficient_sum_that_would_own_fednovas_mean_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def shrink(number: int, reply: Message) -> None:
        if number == 2:
            reply.content["fedskew"]["coefficient-sum"] = 1e-9

    grid = FakeGrid(client_app([]))
    grid.change = shrink
    train(flower.FedNova(initial(), **OFF), grid.app, rounds=1, grid=grid)
    assert "which" in caplog.text and "steps cannot make" in caplog.text


def test_a_privacy_mod_on_the_whole_app_is_named_where_evaluation_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    mod = LocalDpMod(2.0, 1e-6, 1.0, 1e-5)
    for on_app in (True, False):
        caplog.clear()
        where = {"app_mods": [mod]} if on_app else {"mods": [mod]}
        app = client_app([], net=PlainNet, **where)
        result = train(flower.ExactFedAvg(initial(PlainNet)), app, rounds=1, net=PlainNet)
        assert ("belong to training alone" in caplog.text) is on_app
        assert bool(result.evaluate_metrics_clientapp) is not on_app


def test_an_app_that_cannot_evaluate_is_logged_with_its_own_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = ClientApp()

    @app.train()
    def own(message: Message, context: Any) -> Message:
        return flower.local_round(message, context, initial(), client_data(0), lr=0.05)

    train(flower.ExactFedAvg(initial()), app, rounds=1)
    assert "the first because: No evaluate function registered" in caplog.text
    assert "privacy mods" not in caplog.text


def test_a_privacy_mod_and_an_upload_end_with_a_sentence() -> None:
    app = client_app(["creff"], mods=[LocalDpMod(2.0, 1e-6, 1.0, 1e-5)])
    with pytest.raises(
        RuntimeError,
        match="flwr's privacy mods refuse feature-gradients, which they cannot protect",
    ):
        train(flower.CReFF(initial(), **OFF), app)
    app = client_app(["ratio-loss"], mods=[LocalDpMod(2.0, 1e-6, 1.0, 1e-5)])
    with pytest.raises(RuntimeError, match="flwr's privacy mods refuse ratio-loss"):
        train(flower.RatioLoss(initial(), **OFF, holdout=client_data(0)), app)


def test_privacy_mods_are_not_blamed_for_other_failures() -> None:
    with pytest.raises(RuntimeError, match="epochs") as failure:
        train(flower.CReFF(initial(), **OFF), client_app(["creff"], epochs=0))
    assert "privacy" not in str(failure.value)


@pytest.mark.parametrize(
    "variant, kind",
    [
        ("ccvr", flower.CCVR),
        ("refit-bias", flower.RefitBias),
        ("fed3r", flower.Fed3R),
        ("fedshift", FedAvg),
    ],
)
def test_answers_that_no_mod_protects_are_named_in_the_log(
    variant: str, kind: Any, caplog: pytest.LogCaptureFixture
) -> None:
    mod = LocalDpMod(2.0, 1e-6, 1e9, 1e-5)
    settings: dict[str, Any] = {"range": 32.0} if variant == "fed3r" else {}
    own = FedAvg(**OFF) if kind is FedAvg else kind(initial(PlainNet), **OFF, **settings)
    counts = variant == "fedshift"
    for strategy, variants, unprotected in ((own, [variant], True), (FedAvg(**OFF), [], False)):
        caplog.clear()
        app = client_app(variants, net=PlainNet, mods=[mod])
        with caplog.at_level(logging.INFO, "flwr"):
            train(strategy, app, rounds=1, net=PlainNet, counts=counts and unprotected)
        assert ("no privacy wrapper or mod covers them" in caplog.text) is unprotected


@pytest.mark.parametrize(
    "kind", [flower.TauNorm, flower.CCVR, flower.RefitBias, flower.FedNova, flower.CReFF, *HEADS]
)
def test_a_wrappers_noise_covers_what_is_deployed_or_the_run_is_refused(kind: Any) -> None:
    """TauNorm's model would be made before the wrapper adds its noise."""
    wrapped = DifferentialPrivacyServerSideFixedClipping(kind(initial(), **OFF), 1.0, 1.0, 4)
    with pytest.raises(RuntimeError, match="clipping and noise would not cover") as failure:
        train(wrapped, client_app([]), rounds=1)
    assert (".calibrate on" in str(failure.value)) is hasattr(kind, "calibrate")
    control = DifferentialPrivacyServerSideFixedClipping(
        flower.ExactFedAvg(initial(), **OFF), 0.0, 1.0, 4
    )
    assert len(weights(train(control, client_app([]), rounds=1)))


def test_two_strategies_that_combine_are_refused() -> None:
    class ScaffoldKrum(flower.Scaffold, Krum):
        pass

    class CReFFAdam(flower.CReFF, FedAdam):
        pass

    class TwoMeans(flower.Scaffold, flower.FedNova):
        pass

    with pytest.raises(TypeError, match=r"scaffold combines .* so does Krum"):
        ScaffoldKrum(initial(), **OFF)
    with pytest.raises(SettingError, match="want to combine"):
        TwoMeans(initial(), **OFF)
    assert CReFFAdam(initial(), **OFF).parts[0].name == "creff"


def test_settings_are_checked_and_unknown_ones_refused() -> None:
    with pytest.raises(TypeError, match="head_stepz"):
        flower.CReFF(initial(), **OFF, head_stepz=3)
    with pytest.raises(SettingError, match="must be"):
        flower.CReFF(initial(), **OFF, head_steps=-1)
    with pytest.raises(SettingError, match="images of the server's own"):
        flower.FedDF(initial(), **OFF)
    with pytest.raises(SettingError, match="keeps a part on each client"):
        flower.CCVR(initial(), **OFF, variants=["fedbn"])
    with pytest.raises(SettingError, match="keeps a part on each client"):
        flower.RefitBias(initial(), **OFF, variants=["fedbn"])
    with pytest.raises(SettingError, match="keeps a part on each client"):
        flower.Fed3R(initial(), **OFF, variants=["fedbn"])
    with pytest.raises(SettingError, match="must be"):
        flower.Fed3R(initial(), **OFF, bits=99)
    with pytest.raises(TypeError, match="bits"):
        flower.CReFF(initial(), **OFF, bits=12)
    with pytest.raises(TypeError, match="clients_per_pass"):
        flower.local_round(None, None, Net(), None, clients_per_pass=2)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="finetune_epochs"):
        flower.local_round(None, None, Net(), None, finetune_epochs=2)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "variants, net, words",
    [
        (["fedshift", "fedlc"], Net, "both correct the class prior"),
        (["fedbn", "silobn"], Net, "what of batch norm stays"),
        (["fedsift"], Net, "did you mean fedshift"),
        (["fedbn"], PlainNet, "the model has none"),
    ],
)
def test_variants_that_cannot_work_are_refused_on_the_client(
    variants: list[str], net: Any, words: str
) -> None:
    grid = FakeGrid(client_app(variants, net=net))
    train(FedAvg(**OFF), grid.app, rounds=1, net=net, grid=grid)
    assert words in str(grid.errors[0])


@pytest.mark.parametrize(
    "kind, variants, name",
    [
        (flower.Scaffold, ["scaffold"], "control-variates"),
        (flower.FedNova, [], "fednova"),
        (flower.ExactFedAvg, ["fedshift"], ""),
    ],
)
@pytest.mark.parametrize("training", [{"optimizer": "adam"}, {"schedule_unit": "step"}])
def test_methods_of_sgd_refuse_another_optimizer_on_the_clients(
    kind: Any, variants: list[str], name: str, training: dict[str, Any]
) -> None:
    training = {**training, "schedule": "cosine", "schedule_rounds": 2}
    grid = FakeGrid(client_app(variants, **training))
    strategy = kind(initial(), **OFF)
    if name:
        with pytest.raises(RuntimeError, match=f"does not go with {name}, whose equations assume"):
            train(strategy, grid.app, rounds=1, grid=grid)
    else:
        train(strategy, grid.app, rounds=1, grid=grid, counts=True)
        assert not grid.errors


def test_the_strength_that_flwrs_fedprox_sends_is_the_clients() -> None:
    def trained(mu: float, variants: list[Any]) -> dict[str, torch.Tensor]:
        grid = FakeGrid(client_app(variants))
        strategy = FedProx(**OFF, proximal_mu=mu) if mu else FedAvg(**OFF)
        result = train(strategy, grid.app, rounds=1, grid=grid)
        if grid.errors:
            raise grid.errors[0]
        return weights(result)

    assert same(trained(0.5, ["fedprox"]), trained(0.0, [Proximal(mu=0.5)]))
    assert same(trained(0.5, [Proximal(mu=0.5)]), trained(0.0, [Proximal(mu=0.5)]))
    assert not same(trained(0.5, ["fedprox"]), trained(0.0, ["fedprox"]))
    with pytest.raises(
        LookupError, match=r"sends proximal-mu = 0.5, .* use variants=\[\"fedprox\"\]"
    ):
        trained(0.5, ["fedshift"])
    with pytest.raises(ValueError, match=r"mu is 0\.1 here, and the server's FedProx sends 0\.5"):
        trained(0.5, [Proximal(mu=0.1)])


def test_a_loss_refuses_what_it_cannot_carry_out() -> None:
    app = ClientApp()

    @app.train()
    def own(message: Message, context: Any) -> Message:
        labels = client_data(0)[1]
        flower.local_loss(message, context, labels, 10, variants=["fedprox"])
        return message

    grid = FakeGrid(app)
    train(FedAvg(**OFF), app, rounds=1, grid=grid)
    assert "proximal cannot be a loss function: use local_round" in str(grid.errors[0])


def test_a_mod_without_batch_norm_or_with_flat_arrays_is_refused() -> None:
    with pytest.raises(ValueError, match="the model has none"):
        flower.fedbn_mod(PlainNet)
    grid = FakeGrid(client_app([], app_mods=[flower.fedbn_mod(Net)]))
    train(FedAvg(**OFF), grid.app, rounds=1, grid=grid, arrays=flower.flat_arrays(initial()))
    assert "the server sends flat_arrays" in str(grid.errors[0])


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.last = nn.Linear(5, 8), nn.Linear(8, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return 3 * self.last(self.body(inputs).relu())


class LogSoftmax(Scaled):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.last(self.body(inputs).relu()).log_softmax(1)


class Auxiliary(Scaled):
    """Has a later layer that the forward pass does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.more = nn.Linear(8, 4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.last(self.body(inputs).relu())


@pytest.mark.parametrize(
    "net, head, words",
    [
        (Scaled(), "", "does more with the logits of 'last'"),
        (Auxiliary(), "", "does not use the head"),
        (nn.Sequential(nn.Linear(5, 3, bias=False)), "", "nn.Linear with a bias"),
        (nn.Linear(5, 3), "", "no nn.Linear inside"),
        (LogSoftmax(), "", ""),
        (Auxiliary(), "last", ""),
        (nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3)), "", ""),
    ],
)
def test_a_model_is_taken_or_refused_and_is_whole_afterwards(
    net: nn.Module, head: str, words: str
) -> None:
    inputs, before = torch.rand(4, 5), [name for name, _ in net.named_parameters()]
    output = net(inputs)
    if words:
        with pytest.raises(ValueError, match=words), as_classifier(net, head, inputs):
            pass
    else:
        with as_classifier(net, head, inputs) as classifier:
            assert (
                sum(p.numel() for p in classifier.trained.values())
                <= sum(p.numel() for p in net.parameters())
                + classifier.head.weight.numel()
                + classifier.head.bias.numel()
            )
    assert [name for name, _ in net.named_parameters()] == before
    assert all(weight.requires_grad for weight in net.parameters())
    assert torch.equal(net(inputs), output)


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([])


@pytest.mark.parametrize(
    "data, words",
    [
        ((torch.rand(3, 2), torch.rand(3)), "must be one class number"),
        (Endless(), "only be read from start to end"),
        ([{"img": torch.ones(2), "what": 1}] * 3, "name them with label="),
        ([{"img": "a file", "label": 1}] * 3, "give the data set a transform"),
        ([], "the data set is empty"),
    ],
)
def test_data_that_cannot_be_used_are_refused(data: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        samples_of(data)


def test_every_form_of_data_gives_the_same_samples() -> None:
    inputs, labels = torch.rand(70, 2), torch.arange(70) % 3
    pairs = list(zip(inputs, labels, strict=True))
    dicts = [{"img": image, "label": int(label)} for image, label in pairs]
    loader = torch.utils.data.DataLoader(pairs, batch_size=8, shuffle=True)  # type: ignore[var-annotated, arg-type]
    for data in [(inputs, labels), (inputs.numpy(), labels.numpy()), pairs, dicts, loader]:
        samples = samples_of(data)
        assert torch.equal(samples.labels_N, labels)
        assert torch.equal(samples.batch(torch.arange(70)), inputs)
    named = samples_of([{"a": image, "b": image, "y": label} for image, label in pairs])
    assert torch.equal(named.only(torch.tensor([3, 5])).batch(torch.tensor([1]))["b"], inputs[5:6])
