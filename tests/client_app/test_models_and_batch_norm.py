"""The models' sizes and outputs, and FedBN: which tensors stay on a client."""

import pickle
from math import prod
from pathlib import Path

import pytest
import torch
from client_builders import same, small_client, train_rounds
from torch import nn

from client_app.client import Variant
from client_app.memory import load as load_memory
from client_app.memory import save as save_memory
from client_app.models import (
    MODELS,
    PLAIN,
    SMALLEST_SIDE,
    Classifier,
    ModelSettings,
    batch_norm_names,
    build,
    check,
    has_batch_norm,
)
from client_app.models.classifier import channels_go_last
from client_app.models.resnet import Block
from client_app.optimizer import TrainingSettings
from client_app.state import copy
from client_app.training import train_round
from client_app.variants.local_parts import LocalBatchNorm, LocalModel, LocalStatistics
from data import SettingError

SETTINGS = TrainingSettings(local_epochs=2, batch_size=4, learning_rate=0.1)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "parameters", "width", "tensors", "sent"),
    [
        ("mcmahan-cnn", (1, 28, 28), 10, 1_663_370, 512, 8, 8),
        ("resnet-8", (3, 32, 32), 10, 1_227_594, 256, 56, 11),
        ("digit-model", (3, 28, 28), 10, 14_219_210, 512, 37, 12),
        ("small-cnn", (1, 8, 8), 10, 13_706, 64, 8, 8),
        ("vgg-9", (3, 32, 32), 10, 3_491_530, 512, 18, 18),
        ("alexnet-bn", (3, 256, 256), 10, 57_063_498, 4096, 51, 16),
        ("resnet-18", (3, 32, 32), 10, 11_173_962, 512, 122, 22),
        ("resnet-18-imagenet", (3, 64, 64), 10, 11_181_642, 512, 122, 22),
        ("resnet-50", (3, 32, 32), 200, 23_910_152, 2048, 320, 55),
        ("resnet-50-imagenet", (3, 64, 64), 200, 23_917_832, 2048, 320, 55),
        ("abide-mlp", (5995,), 2, 96_306, 16, 16, 6),
    ],
)
def test_counts(
    name: str,
    shape: tuple[int, ...],
    classes: int,
    parameters: int,
    width: int,
    tensors: int,
    sent: int,
) -> None:
    with torch.device("meta"):
        model = MODELS[name](shape, classes)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    names = model.state_dict().keys()
    assert (len(names), len(names - LocalBatchNorm().private_names(model))) == (tensors, sent)
    assert has_batch_norm(model) == (sent < tensors)
    assert (model.head.in_features, model.head.out_features) == (width, classes)
    assert f"{parameters:,}" in (MODELS[name].__doc__ or "")


@pytest.mark.parametrize("name", [*SMALLEST_SIDE, "small-cnn"])
def test_the_smallest_image_goes_through_and_a_smaller_one_is_refused(name: str) -> None:
    side = SMALLEST_SIDE.get(name, 4)
    check(name, (3, side, side), PLAIN)
    model = build(name, (3, side, side), 5, 0).eval()
    assert model(torch.zeros(2, 3, side, side)).shape == (2, 5)
    for shape in ((3, side - 1, side), (3, side, side - 1), (64,)):
        with pytest.raises(SettingError):
            check(name, shape, PLAIN)


def test_the_imagenet_stem_computes_what_torchvision_s_network_does() -> None:
    import torchvision.models

    ours = build("resnet-18-imagenet", (3, 64, 64), 10, 0).eval()
    theirs = (
        torchvision.models.resnet18(num_classes=10).eval().to(memory_format=torch.channels_last)
    )
    theirs.load_state_dict(dict(zip(theirs.state_dict(), ours.state_dict().values(), strict=True)))
    inputs_B = torch.randn(2, 3, 64, 64)
    assert torch.equal(ours(inputs_B), theirs(inputs_B))


def test_vgg_9_drops_out_as_its_paper_says() -> None:
    with torch.device("meta"):
        model = MODELS["vgg-9"]((3, 32, 32), 10)
    dropping = [one for one in model.modules() if isinstance(one, nn.Dropout | nn.Dropout2d)]
    assert [one.p for one in dropping] == [0.05, 0.1, 0.1]
    assert isinstance(dropping[0], nn.Dropout2d)


@pytest.mark.parametrize(("width", "last"), [(7, False), (8, True)])
def test_a_very_narrow_network_keeps_its_channels_first(width: int, last: bool) -> None:
    """With channels last, oneDNN writes behind a gradient of its shortcut, and the process ends by a signal."""
    assert channels_go_last(Block(width, 2 * width, 2)) == last
    model = build("resnet-8", (1, 8, 8), 4, 0)
    assert not model.state_dict()["features.4.conv1.weight"].is_contiguous()


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [("resnet-8", "image_side", 8), ("linear", "weights", "file")],
)
def test_a_setting_of_other_models_is_refused(name: str, field: str, value: object) -> None:
    check(name, (1, 8, 8), PLAIN)
    with pytest.raises(SettingError) as caught:
        check(name, (1, 8, 8), ModelSettings(**{field: value}))  # type: ignore[arg-type]
    assert caught.value.key.replace("-", "_") == field


def test_he_weights_have_the_deviation_of_their_inputs() -> None:
    he = build("vgg-9", (3, 32, 32), 10, 0, ModelSettings(initialization="he"))
    weights = he.features.state_dict()
    for name, number in {"20.weight": 512, "7.weight": 9 * 128}.items():  # linear, convolution
        assert float(weights[name].std()) == pytest.approx((2 / number) ** 0.5, rel=0.02)
    assert not any(tensor.any() for name, tensor in weights.items() if name.endswith("bias"))
    with pytest.raises(SettingError):
        check("torchvision:shufflenet_v2_x0_5", (3, 64, 64), ModelSettings(initialization="he"))


def test_layers_are_found_by_type_not_by_name() -> None:
    misnamed = nn.Sequential()
    misnamed.add_module("bn", nn.Linear(2, 2))
    misnamed.add_module("linear", nn.BatchNorm1d(2, affine=False))
    names = batch_norm_names(Classifier(misnamed, nn.Linear(2, 2)))
    assert names == {f"features.linear.{name}" for name in misnamed[1].state_dict()}
    others = nn.Sequential(nn.GroupNorm(1, 2), nn.LayerNorm(2))
    assert not has_batch_norm(Classifier(others, nn.Linear(2, 2)))


def test_one_client_s_rounds_are_those_of_fedavg() -> None:
    counts = [(5, 3, 2, 2)]
    plain, _ = train_rounds([], counts, SETTINGS, rounds=3)
    for variant in (LocalBatchNorm(), LocalModel()):  # FedBN and SingleSet
        shared, (report,) = train_rounds([variant], counts, SETTINGS, rounds=3)
        assert same({**shared, **report.memory["private"]}, plain)


@pytest.mark.parametrize("variant", [LocalBatchNorm(), LocalStatistics(), LocalModel()])
def test_what_a_client_keeps_is_what_training_left(tmp_path: Path, variant: Variant) -> None:
    """To the bit: the model that was trained in place, the file, and what the next round starts from."""
    client = small_client()
    report = train_round(client, [variant], SETTINGS)
    left, norms = copy(client.model.state_dict()), batch_norm_names(client.model)
    names = variant.private_names(client.model)
    expected = {"local-batch-norm": norms, "local-statistics": norms - client.model.trained.keys()}
    assert names == expected.get(variant.name, left.keys())
    assert not any(torch.equal(left[name], client.start[name]) for name in names)
    save_memory(tmp_path, 3, report.memory)
    kept = load_memory(tmp_path, 3)["private"]
    assert kept.keys() == names and report.shared.keys() == left.keys() - names
    assert same({**report.shared, **kept}, left)


def test_a_first_round_shares_what_fedavg_averages() -> None:
    """What is not batch norm's is FedAvg's mean of the same updates, and one for all clients."""
    counts = [(8, 4, 2, 1), (1, 2, 4, 8)]
    plain, _ = train_rounds([], counts, SETTINGS, rounds=1)
    shared, reports = train_rounds([LocalBatchNorm()], counts, SETTINGS, rounds=1)
    assert same(shared, {name: plain[name] for name in shared}) and len(shared) < len(plain)
    first, second = (report.memory["private"] for report in reports)
    assert not any(torch.equal(first[name], second[name]) for name in first if "bias" in name)


def test_a_model_without_batch_norm_sends_everything() -> None:
    plain = train_round(small_client(model="small-cnn"), [], SETTINGS)
    local = train_round(small_client(model="small-cnn"), [LocalBatchNorm()], SETTINGS)
    assert same(plain.shared, local.shared) and not local.memory


def test_a_copied_model_computes_with_the_state_that_it_loads() -> None:
    """What was looked up before the copy was made must not be taken for the copy's own parameters."""
    model = build("mlp-bn", (1, 4, 4), 3, seed=0).eval()
    before, other = copy(model.tensors), build("mlp-bn", (1, 4, 4), 3, seed=1)
    twin = pickle.loads(pickle.dumps(model))
    twin.load(other.state_dict())
    assert same(twin.state_dict(), other.state_dict()) and same(model.state_dict(), before)


def test_a_state_of_other_names_or_shapes_is_refused() -> None:
    """Also where each tensor could be spread over the model's: a single number is no layer."""
    model = build("mlp-bn", (1, 4, 4), 3, seed=0)
    state = copy(model.state_dict())
    others = (
        {**state, "head.scale": torch.ones(())},
        {name: tensor for name, tensor in state.items() if name != "head.bias"},
        {**state, "head.bias": state["head.bias"][:1]},
        {name: tensor[None] for name, tensor in state.items()},
    )
    for other in others:
        with pytest.raises(RuntimeError):
            model.load(other)


OUTPUTS: dict[str, tuple[tuple[int, ...], float]] = {
    "small-cnn": ((2, 9, 8), -0.50329),
    "mcmahan-cnn": ((1, 9, 8), 0.38637),
    "vgg-9": ((1, 9, 8), -0.4607),
    "digit-model": ((1, 9, 8), 0.031257),
    "resnet-8": ((2, 9, 8), 1.2853),
    "resnet-18": ((3, 8, 8), 2.0641),
    "resnet-50": ((3, 8, 8), -78.207),
    "resnet-18-imagenet": ((3, 33, 32), 7.2658),
    "resnet-50-imagenet": ((3, 33, 32), -115.06),
    "alexnet-bn": ((3, 64, 63), -0.63386),
    "random-conv": ((2, 9, 8), 15.867),
    "mlp-bn": ((1, 3, 4), 1.8289),
    "abide-mlp": ((7,), 0.7979),
    "linear": ((2, 3), 4.9902),
}
"""Of a network with the weights of seed 0, its outputs for fixed inputs, weighed by a wave: shape, and number."""


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_network_gives_the_outputs_that_it_gave(name: str) -> None:
    """Within a tolerance, as another CPU rounds otherwise: a padding, a width or a step of the draw would show."""
    shape, expected = OUTPUTS[name]
    inputs_B = torch.arange(2.0 * prod(shape)).mul(0.61).sin().reshape(2, *shape)
    generator = torch.random.get_rng_state()
    model = build(name, shape, 3, seed=0).eval()
    assert torch.equal(torch.random.get_rng_state(), generator), "the global generator moved"
    outputs = torch.cat([model.features(inputs_B).flatten(), model(inputs_B).flatten()])
    wave = torch.arange(float(len(outputs))).mul(0.37).cos()
    assert (outputs @ wave).item() == pytest.approx(expected, rel=1e-3)
