"""The models' sizes, and FedBN: which tensors stay on a client."""

import pickle
from collections.abc import Callable
from copy import deepcopy
from itertools import pairwise
from math import prod
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from client_builders import SHAPE, same, small_client, train_rounds
from torch import nn

from client_app.client import Variant
from client_app.memory import load as load_memory
from client_app.memory import save as save_memory
from client_app.models import (
    MODELS,
    SMALLEST_SIDE,
    Classifier,
    ModelSettings,
    batch_norm_names,
    build,
    check,
    has_batch_norm,
)
from client_app.models.classifier import channels_go_last
from client_app.optimizer import TrainingSettings
from client_app.state import copy
from client_app.training import train_round
from client_app.variants.local_batch_norm import LocalBatchNorm
from client_app.variants.local_model import LocalModel
from client_app.variants.local_statistics import LocalStatistics
from data import SettingError

LARGE = {
    "alexnet-bn",
    "digit-model",
    "resnet-18",
    "resnet-18-imagenet",
    "resnet-50",
    "resnet-50-imagenet",
}
"""Millions of weights to draw, three times, by the same lines as the small models of their families."""
SETTINGS = TrainingSettings(local_epochs=2, batch_size=4, learning_rate=0.1)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "parameters", "width", "tensors", "sent"),
    [
        ("mcmahan-cnn", (1, 28, 28), 10, 1_663_370, 512, 8, 8),
        ("resnet-8", (3, 32, 32), 10, 1_227_594, 256, 56, 11),
        ("resnet-8", (3, 32, 32), 100, 1_250_724, 256, 56, 11),
        ("digit-model", (3, 28, 28), 10, 14_219_210, 512, 37, 12),
        ("small-cnn", (1, 8, 8), 10, 13_706, 64, 8, 8),
        ("mlp-bn", (1, 8, 8), 10, 17_610, 64, 16, 6),
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
    model = build(name, shape, classes, 0)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    assert len(model.state_dict()) == tensors
    kept = LocalBatchNorm().private_names(model)
    assert len(model.state_dict().keys() - kept) == sent
    assert has_batch_norm(model) == (sent < tensors)
    model.eval()
    with torch.no_grad():
        inputs_B = torch.randn(2, *shape)
        assert model.features(inputs_B).shape == (2, width)
        assert torch.equal(model.head(model.features(inputs_B)), model(inputs_B))
    assert model.head.in_features == width and model.head.out_features == classes
    if name != "mlp-bn" and classes != 100:
        assert f"{parameters:,}" in (MODELS[name].__doc__ or "")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LARGE)) for name in MODELS]
)
def test_weights_come_from_the_seed_alone(name: str) -> None:
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    shape = (1, *([SMALLEST_SIDE.get(name, 4)] * 2))
    first = copy(build(name, shape, 3, 1).state_dict())
    assert torch.equal(torch.random.get_rng_state(), state), "the global generator moved"
    torch.manual_seed(6)
    assert same(first, build(name, shape, 3, 1).state_dict())
    assert not same(first, build(name, shape, 3, 2).state_dict())


@pytest.mark.parametrize("shape", [(64,), (1, 3, 8), (1, 8, 3)])
def test_images_too_small_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(SettingError, match="needs images of 4x4 pixels"):
        build("small-cnn", shape, 10, 0)
    assert build("mlp-bn", shape, 10, 0).head.out_features == 10


@pytest.mark.parametrize("name", SMALLEST_SIDE)
def test_the_smallest_image_goes_through_and_a_smaller_one_is_refused(name: str) -> None:
    side = SMALLEST_SIDE[name]
    assert build(name, (3, side, side), 4, 0).eval()(torch.zeros(1, 3, side, side)).shape == (1, 4)
    with pytest.raises(
        SettingError, match=f"^model = '{name}': needs images of {side}x{side} pixels or more"
    ):
        build(name, (3, side - 1, side), 4, 0)


def test_the_imagenet_stem_computes_what_torchvision_s_network_does() -> None:
    import torchvision.models

    ours = build("resnet-18-imagenet", (3, 64, 64), 10, 0).eval()
    theirs = (
        torchvision.models.resnet18(num_classes=10).eval().to(memory_format=torch.channels_last)
    )
    theirs.load_state_dict(dict(zip(theirs.state_dict(), ours.state_dict().values(), strict=True)))
    inputs_B = torch.randn(2, 3, 64, 64)
    assert torch.equal(ours(inputs_B), theirs(inputs_B))


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_a_seed_gives_our_resnet_the_weights_that_it_gives_torchvision_s(name: str) -> None:
    import torchvision.models

    ours = build(f"{name.replace('net', 'net-')}-imagenet", (3, 32, 32), 10, seed=5)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        theirs = getattr(torchvision.models, name)(num_classes=10)
        # `build` makes the first convolution once more, as it may have other channels.
        theirs.conv1 = nn.Conv2d(3, 64, 7, 2, padding=3, bias=False)
        nn.init.kaiming_normal_(theirs.conv1.weight, mode="fan_out", nonlinearity="relu")
    for mine, other in zip(ours.state_dict().values(), theirs.state_dict().values(), strict=True):
        assert torch.equal(mine, other)


def test_the_digit_model_is_its_layers() -> None:
    model = build("digit-model", (1, 8, 8), 10, 0).train()
    state = dict(model.named_parameters())
    inputs_B = torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))

    def normalized(layer: int, outputs: torch.Tensor) -> torch.Tensor:
        weight, bias = state[f"features.{layer}.weight"], state[f"features.{layer}.bias"]
        return F.relu(F.batch_norm(outputs, None, None, weight, bias, training=True))

    def parameters(layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        return state[f"features.{layer}.weight"], state[f"features.{layer}.bias"]

    x = F.max_pool2d(normalized(1, F.conv2d(inputs_B, *parameters(0), padding=2)), 2)
    x = F.max_pool2d(normalized(5, F.conv2d(x, *parameters(4), padding=2)), 2)
    x = normalized(9, F.conv2d(x, *parameters(8), padding=2)).flatten(1)
    x = normalized(16, F.linear(normalized(13, F.linear(x, *parameters(12))), *parameters(15)))
    torch.testing.assert_close(model.features(inputs_B), x, rtol=1e-4, atol=1e-4)


def test_vgg_9_is_its_layers() -> None:
    """Dropout draws from the global generator, so the same seed drops the same values."""
    model = build("vgg-9", (1, 8, 8), 10, 0).train()
    state = dict(model.named_parameters())
    inputs_B = torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    layers = [
        name.split(".")[1]
        for name in state
        if name.startswith("features.") and name.endswith(".weight")
    ]
    weights = [
        (state[f"features.{layer}.weight"], state[f"features.{layer}.bias"]) for layer in layers
    ]

    def convolutions(x: torch.Tensor, first: int) -> torch.Tensor:
        for weight, bias in weights[first : first + 2]:
            x = F.relu(F.conv2d(x, weight, bias, padding=1))
        return F.max_pool2d(x, 2)

    torch.manual_seed(1)
    ours = model.features(inputs_B)
    torch.manual_seed(1)
    x = F.dropout2d(convolutions(convolutions(inputs_B, 0), 2), 0.05)
    x = F.relu(F.linear(F.dropout(convolutions(x, 4).flatten(1), 0.1), *weights[6]))
    x = F.dropout(F.relu(F.linear(x, *weights[7])), 0.1)
    torch.testing.assert_close(ours, x, rtol=1e-4, atol=1e-5)


def as_drawn(features: nn.Module) -> nn.Sequential:
    """Return the same layers with every pooling behind its activation, as the papers draw them."""
    layers = list(features.children())
    for place, (first, second) in enumerate(pairwise(layers)):
        if isinstance(first, nn.MaxPool2d):
            assert isinstance(second, nn.ReLU)
            layers[place : place + 2] = [second, first]
    return nn.Sequential(*layers)


@pytest.mark.parametrize(
    ("name", "side"),
    [
        ("small-cnn", 8),
        ("mcmahan-cnn", 28),
        ("vgg-9", 32),
        pytest.param("alexnet-bn", 64, marks=pytest.mark.slow),
    ],
)
def test_pooling_before_the_activation_changes_no_bit(name: str, side: int) -> None:
    ours = build(name, (3, side, side), 10, 0)
    drawn = Classifier(as_drawn(ours.features), ours.head)
    inputs_B, labels_B = torch.randn(6, 3, side, side), torch.arange(6)
    results = []
    for model in (ours, drawn):
        torch.manual_seed(0)  # dropout
        logits_BC = model(inputs_B)
        gradients = torch.autograd.grad(
            F.cross_entropy(logits_BC, labels_B), list(ours.parameters())
        )
        results.append([logits_BC, *gradients])
    assert list(map(type, drawn.features.children())) != list(map(type, ours.features.children()))
    for first, second in zip(*results, strict=True):
        assert torch.equal(first, second)


def test_channels_last_in_memory_stays_in_the_model() -> None:
    model = build("small-cnn", (3, 16, 16), 4, 0).eval()
    images_B, convolution = torch.randn(2, 3, 16, 16), "features.0.weight"
    assert not model.state_dict()[convolution].is_contiguous()
    assert all(tensor.is_contiguous() for tensor in copy(model.state_dict()).values())
    outputs = model(images_B)
    torch.testing.assert_close(model.to(memory_format=torch.contiguous_format)(images_B), outputs)


@pytest.mark.parametrize(("width", "last"), [(4, False), (7, False), (8, True), (0, True)])
def test_a_very_narrow_network_keeps_its_channels_first(width: int, last: bool) -> None:
    """With channels last, oneDNN writes behind a gradient of its shortcut, and the process ends by a signal."""
    model = build("resnet-8", (1, 8, 8), 4, 0, ModelSettings(width=width))
    assert channels_go_last(model) == last
    assert model.state_dict()["features.4.conv1.weight"].is_contiguous() != last


def test_he_weights_keep_the_activations_of_a_deep_model_without_batch_norm() -> None:
    plain = build("vgg-9", (3, 32, 32), 10, 0).eval()
    he = build("vgg-9", (3, 32, 32), 10, 0, ModelSettings(initialization="he")).eval()
    weights = he.state_dict()
    inputs = {"features.20.weight": 512, "features.7.weight": 9 * 128}  # linear, and a convolution
    for name, number in inputs.items():
        assert float(weights[name].std()) == pytest.approx((2 / number) ** 0.5, rel=0.02)
    biases = [name for name in weights if name.startswith("features") and name.endswith("bias")]
    assert len(biases) == 8 and not any(weights[name].any() for name in biases)
    assert torch.equal(he.head.weight, plain.head.weight), "the head's stay"

    # The mean square of the images is 1; max-pooling raises it, and torch's weights lose it layer by layer.
    images_B = torch.randn(64, 3, 32, 32)
    with torch.no_grad():
        assert plain.features(images_B).square().mean() < 0.01
        assert 0.5 < he.features(images_B).square().mean() < 20


@pytest.mark.parametrize("name", ["torchvision:shufflenet_v2_x0_5", "efficientnet-lite0"])
def test_he_weights_are_for_small_models(name: str) -> None:
    with pytest.raises(SettingError, match="initialization = 'he': is for the small models"):
        check(name, (3, 64, 64), ModelSettings(initialization="he"))


def test_layers_are_found_by_type_not_by_name() -> None:
    names = batch_norm_names(build("resnet-8", (3, 32, 32), 10, 0))
    assert any("downsample.1" in name for name in names)
    assert {name.rsplit(".", 1)[1] for name in names} == {
        "weight",
        "bias",
        "running_mean",
        "running_var",
        "num_batches_tracked",
    }
    misnamed = nn.Sequential()
    misnamed.add_module("bn", nn.Linear(2, 2))
    misnamed.add_module("linear", nn.BatchNorm1d(2, affine=False))
    assert batch_norm_names(Classifier(misnamed, nn.Linear(2, 2))) == {
        "features.linear.running_mean",
        "features.linear.running_var",
        "features.linear.num_batches_tracked",
    }
    assert batch_norm_names(nn.BatchNorm1d(2, track_running_stats=False)) == {"weight", "bias"}
    assert not has_batch_norm(
        Classifier(nn.Sequential(nn.GroupNorm(1, 2), nn.LayerNorm(2)), nn.Linear(2, 2))
    )


def test_names_sent_and_kept_make_up_the_state() -> None:
    client = small_client()
    report = train_round(client, [LocalBatchNorm()], SETTINGS)
    kept = report.memory["private"]
    assert not kept.keys() & report.shared.keys()
    assert same({**kept, **report.shared}, client.model.state_dict())
    assert kept.keys() == batch_norm_names(client.model)
    assert not report.uploads
    plain = train_round(small_client(), [], SETTINGS)
    assert same(plain.shared, client.model.state_dict()), (
        "one client: FedBN's first round is FedAvg's"
    )
    assert not plain.memory


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
    left = copy(
        {name: client.model.state_dict()[name] for name in variant.private_names(client.model)}
    )
    assert left and not any(
        torch.equal(tensor, client.start[name]) for name, tensor in left.items()
    )
    save_memory(tmp_path, 3, report.memory)
    kept = load_memory(tmp_path, 3)["private"]
    assert same(kept, left)
    assert same({**report.shared, **kept}, client.model.state_dict())


def test_a_first_round_shares_what_fedavg_averages() -> None:
    """What is not batch norm's is FedAvg's mean of the same updates, and one for all clients."""
    counts = [(8, 4, 2, 1), (1, 2, 4, 8)]
    plain, _ = train_rounds([], counts, SETTINGS, rounds=1)
    shared, reports = train_rounds([LocalBatchNorm()], counts, SETTINGS, rounds=1)
    assert same(shared, {name: plain[name] for name in shared}) and len(shared) < len(plain)
    for report in reports:
        kept = report.memory["private"]
        assert same(
            kept, {name: report.trained.state[name] for name in kept}
        )  # to the bit as training left it


def test_a_model_without_batch_norm_sends_everything() -> None:
    plain = train_round(small_client(model="small-cnn"), [], SETTINGS)
    local = train_round(small_client(model="small-cnn"), [LocalBatchNorm()], SETTINGS)
    assert same(plain.shared, local.shared) and not local.memory


def test_clients_differ_in_batch_norm_alone() -> None:
    counts = [(8, 4, 2, 1), (1, 2, 4, 8)]
    shared, reports = train_rounds([LocalBatchNorm()], counts, SETTINGS)
    private = [report.memory["private"] for report in reports]
    model = build("mlp-bn", SHAPE, 4, 0).eval()
    inputs_B = small_client().samples.inputs_N
    logits = []
    for kept in (private[0], private[1], private[0]):
        model.load_state_dict({**shared, **kept})
        with torch.no_grad():
            logits.append(model(inputs_B))
    assert torch.equal(logits[0], logits[2])
    assert not torch.allclose(logits[0], logits[1], atol=1e-3)


@pytest.mark.parametrize(
    "copied",
    [deepcopy, lambda model: pickle.loads(pickle.dumps(model))],
    ids=["deepcopy", "pickle"],
)
def test_a_copied_model_computes_with_the_state_that_it_loads(
    copied: Callable[[Classifier], Classifier],
) -> None:
    """What was looked up before the copy was made must not be taken for the copy's own parameters."""
    model = build("mlp-bn", (1, 4, 4), 3, seed=0)
    model.freeze([model.features[1]])  # type: ignore[index]
    inputs = torch.rand(5, 1, 4, 4)
    model.train()
    assert model.tensors and model.by_name  # looked up
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    twin = copied(model)
    other = build("mlp-bn", (1, 4, 4), 3, seed=1)
    twin.load(other.state_dict())
    own = twin.state_dict()
    assert all(tensor.data_ptr() == own[name].data_ptr() for name, tensor in twin.tensors.items())
    assert all(weight is twin.by_name[name] for name, weight in twin.named_parameters())
    assert torch.equal(twin.eval()(inputs), other.eval()(inputs))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert twin.trained.keys() == model.trained.keys() < dict(twin.named_parameters()).keys()
    assert not twin.train().frozen[0].training and twin.head.training


def test_a_state_of_other_names_or_shapes_is_refused() -> None:
    """Also where each tensor could be spread over the model's: a single number is no layer."""
    model = build("mlp-bn", (1, 4, 4), 3, seed=0)
    state = copy(model.state_dict())
    model.load({name: tensor + 1 if "head" in name else tensor for name, tensor in state.items()})
    assert torch.equal(model.head.bias, state["head.bias"] + 1)
    first = next(iter(state))
    others = (
        {**state, "head.scale": torch.ones(())},
        {name: tensor for name, tensor in state.items() if name != first},
        {**state, first: state[first].flatten()[:1]},
        {name: torch.zeros(1, *tensor.shape) for name, tensor in state.items()},
        {name: torch.zeros((1,) * max(1, tensor.dim())) for name, tensor in state.items()},
    )
    for other in others:
        with pytest.raises(RuntimeError, match="Error"):
            model.load(other)


def layers_of(model: Classifier) -> list[tuple[object, ...]]:
    """Return the convolutions and poolings of a model: kind, width, kernel, stride and padding."""
    layers: list[tuple[object, ...]] = []
    for module in model.features.modules():
        if isinstance(module, nn.Conv2d):
            sizes = (module.kernel_size[0], module.stride[0], module.padding[0])
            layers.append(("conv", module.out_channels, *sizes))
        if isinstance(module, nn.MaxPool2d):
            layers.append(("pool", module.kernel_size, module.stride))
    return layers


def test_the_convolutions_are_those_of_the_papers() -> None:
    """FedBN's AlexNet has AlexNet's; McMahan et al. have two of 5x5 with pooling of 2x2."""
    with torch.device("meta"):
        alexnet = MODELS["alexnet-bn"]((3, 256, 256), 10)
        mcmahan = MODELS["mcmahan-cnn"]((1, 28, 28), 10)
    assert layers_of(alexnet) == [
        ("conv", 64, 11, 4, 2),
        ("pool", 3, 2),
        ("conv", 192, 5, 1, 2),
        ("pool", 3, 2),
        ("conv", 384, 3, 1, 1),
        ("conv", 256, 3, 1, 1),
        ("conv", 256, 3, 1, 1),
        ("pool", 3, 2),
    ]
    small = MODELS["small-cnn"]((1, 8, 8), 10)
    assert layers_of(small) == [
        ("conv", 16, 3, 1, 1),
        ("pool", 2, 2),
        ("conv", 32, 3, 1, 1),
        ("pool", 2, 2),
    ]
    assert layers_of(mcmahan) == [
        ("conv", 32, 5, 1, 2),
        ("pool", 2, 2),
        ("conv", 64, 5, 1, 2),
        ("pool", 2, 2),
    ]
    with torch.device("meta"):
        assert layers_of(MODELS["resnet-18"]((3, 32, 32), 10))[0] == ("conv", 64, 3, 1, 1)
    (pooled,) = [m for m in alexnet.features.modules() if isinstance(m, nn.AdaptiveAvgPool2d)]
    assert pooled.output_size == 6


OUTPUTS: dict[str, tuple[tuple[int, ...], float]] = {
    "small-cnn": ((2, 9, 8), -0.50329),
    "mcmahan-cnn": ((1, 9, 8), 0.38637),
    "vgg-9": ((1, 9, 8), -0.4607),
    "resnet-8": ((2, 9, 8), 1.2853),
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
    model = build(name, shape, 3, seed=0).eval()
    with torch.no_grad():
        outputs = torch.cat([model.features(inputs_B).flatten(), model(inputs_B).flatten()])
    wave = torch.arange(float(len(outputs))).mul(0.37).cos()
    assert float(outputs @ wave) == pytest.approx(expected, rel=1e-3)
