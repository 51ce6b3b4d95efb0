"""Backbones: a file's weights in a published network, what of them stays as it is, and features that are kept."""

import json
import os
import pickle
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from in_process import experiment, small
from safetensors.torch import save_file
from torch import Tensor, nn

from client_app.features import with_features
from client_app.models import ModelSettings, build, check
from client_app.models.backbone import (
    body_of,
    normalization_of,
    read,
    require_timm,
    sha256_of,
)
from client_app.models.settings import of_hash
from data import DataSettings, SettingError, federate
from server_app.settings import parse

NAME = "torchvision:shufflenet_v2_x0_5"
"""Its first parts are a convolution and a batch norm, its last ones too; 342 thousand numbers without the head."""
SHAPE = (1, 8, 8)
backbone = sys.modules[require_timm.__module__]
"""The module: client_app.models has a function of its name."""
DATA = DataSettings(clients=2, partition="iid", train_images=20, test_images=10)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of NAME's weights, drawn from another seed than any test's, its head of 1,000 classes among them."""
    from torchvision import models

    torch.manual_seed(99)
    path: Path = tmp_path_factory.mktemp("weights") / "shufflenet.safetensors"
    save_file(models.shufflenet_v2_x0_5(weights=None).state_dict(), path)
    return path


@pytest.fixture
def copied(weights: Path, tmp_path: Path) -> Path:
    """A copy of the file, for a test to replace."""
    file = tmp_path / "copy.safetensors"
    file.write_bytes(weights.read_bytes())
    return file


def with_weights(file: Path, **more: Any) -> ModelSettings:
    return ModelSettings(weights=str(file), image_side=16, **more)


def planned(file: Path, **more: Any) -> dict[str, Any]:
    return {"method": "fedavg", "model": NAME, "image-side": 16, "weights": str(file), **more}


def test_the_weights_are_the_file_s_and_the_head_is_new(weights: Path) -> None:
    first, other = (build(NAME, SHAPE, 3, seed, with_weights(weights)) for seed in (0, 1))
    body, _, head = body_of(NAME)
    of_body = {key: t for key, t in read(str(weights)).items() if not key.startswith(head)}
    body.load_state_dict(of_body)
    for name, tensor in body.state_dict().items():
        assert torch.equal(first.state_dict()[f"features.1.{name}"], tensor)
    assert not torch.equal(first.head.weight, other.head.weight)
    images_B = torch.rand(2, *SHAPE)
    colored_B = images_B.expand(-1, 3, -1, -1)
    enlarged_B = nn.functional.interpolate(colored_B, (16, 16), mode="bilinear")
    assert torch.allclose(first.eval().features(images_B), body.eval()(enlarged_B), atol=1e-5)


def test_a_run_on_kept_features_sends_the_head_alone_and_says_which_weights(
    copied: Path, tmp_path: Path
) -> None:
    short = {"rounds": 1, "clients": 2, "partition": "iid", "alpha": 0.1, "min-samples": 10, "local-epochs": 1,
             "train-images": 20, "test-images": 10}  # fmt: skip
    config = planned(copied, freeze="all", cache=str(tmp_path / "cache"), **short)
    settings = small(tmp_path, **config)
    experiment(tmp_path, **config)
    origin = json.loads((settings.folder / "settings.json").read_text())
    assert origin["weights-sha256"] == sha256_of(str(copied))
    record = json.loads((settings.folder / "rounds.jsonl").read_text())
    assert record["bytes-up"] < 2 * (1024 * 10 * 4 + 5000)
    moved = str(copied.rename(copied.with_name("moved.safetensors")))
    assert small(tmp_path, **{**config, "weights": moved}).run_id == settings.run_id


def test_the_kept_features_are_the_network_s(weights: Path, tmp_path: Path) -> None:
    federation = federate(replace(DATA, train_images=10), 0)
    frozen = with_weights(weights, freeze="all")
    kept = with_features(federation, NAME, frozen, str(tmp_path), "cpu")
    network = build(NAME, SHAPE, 2, 0, with_weights(weights)).eval()
    first = torch.arange(1)
    with torch.no_grad():
        features_1D = network.features(federation.train(0).batch(first))
    assert torch.allclose(kept.train(0).batch(first), features_1D, atol=1e-5)
    assert (
        with_features(federation, NAME, with_weights(weights), str(tmp_path), "cpu") is federation
    )


def test_normalization_is_the_weights_own_where_none_is_stated(weights: Path) -> None:
    known = normalization_of(NAME)
    assert known is not None and known[0] == (0.485, 0.456, 0.406)
    assert parse(planned(weights)).data.means == (pytest.approx(0.449),)
    colored = parse(planned(weights, dataset="cifar10"))
    assert colored.data.stds == known[1]
    assert parse(planned(weights, mean="0.3")).data.means == (0.3,)
    assert parse(colored.flat()).run_id == colored.run_id


def test_group_norm_takes_every_batch_norm_s_place() -> None:
    model = build("resnet-8", SHAPE, 10, 0, ModelSettings(norm="group"))
    groups = [module.num_groups for module in model.modules() if isinstance(module, nn.GroupNorm)]
    assert groups == [2] * 9


class Loud:
    def __reduce__(self) -> tuple[Any, ...]:
        return pytest.fail, ("code was run",)


def changed(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[dict[str, Tensor]], bytes]:
    return lambda state: dumped({**state, name: change(state[name])})


def dumped(state: Any) -> bytes:
    import io

    stream = io.BytesIO()
    torch.save(state, stream)
    return stream.getvalue()


def without(state: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    return {key: tensor for key, tensor in state.items() if key != name}


@pytest.mark.parametrize(
    ("suffix", "content", "said"),
    [
        (
            "pth",
            lambda state: dumped(without(state, "conv5.0.weight")),
            'Missing key(s) in state_dict: "conv5.0.weight"',
        ),
        (
            "pth",
            lambda state: dumped({**state, "more": state["fc.bias"]}),
            'Unexpected key(s) in state_dict: "more"',
        ),
        ("pth", changed("conv5.1.bias", lambda bias: bias[:3]), "size mismatch for conv5.1.bias"),
        (
            "pth",
            changed("conv5.1.bias", lambda bias: torch.cat([bias[1:], bias[:1] + torch.inf])),
            "bias is not finite",
        ),
        ("pth", lambda state: pickle.dumps({"conv1": Loud()}, protocol=2), "holds code"),
        ("pth", lambda state: b"no weights", "a .pth of tensors alone"),
        ("pth", lambda state: dumped({"epoch": 3}), "tensors alone, by name"),
        ("safetensors", lambda state: b"no weights", "a file of safetensors"),
    ],
)
def test_what_are_no_weights_of_the_network_is_refused_and_never_run(
    suffix: str, content: Callable[[Any], bytes], said: str, weights: Path, tmp_path: Path
) -> None:
    file = tmp_path / f"changed.{suffix}"
    file.write_bytes(content(read(str(weights))))
    with pytest.raises(SettingError) as caught:
        parse(planned(file))
    assert (caught.value.key, caught.value.value) == ("weights", str(file))
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_weights_may_lie_in_a_training_checkpoint_whatever_counters_it_has(
    weights: Path, tmp_path: Path
) -> None:
    state = without(read(str(weights)), "conv5.1.num_batches_tracked")
    file = tmp_path / "checkpoint.pth"
    file.write_bytes(dumped({"epoch": 3, "state_dict": state}))
    assert read(str(file)).keys() == state.keys()
    parse(planned(file))


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"augmentation": "crop-flip"}, "augmentation"),
        ({"method": "creff-code"}, "method"),
        ({"method": "fedbn"}, "model"),
        ({"dataset": "abide"}, "model"),
    ],
)
def test_what_does_not_go_with_kept_features_is_refused(
    changes: dict[str, str], key: str, weights: Path
) -> None:
    colored = planned(weights, dataset="cifar10", freeze="all", components=5)
    assert parse(colored).has_fixed_features
    with pytest.raises(SettingError) as caught:
        parse({**colored, **changes})
    assert caught.value.key == key


@pytest.mark.parametrize(
    ("shape", "side", "fits"),
    [
        ((3, 29, 40), 0, True),
        ((3, 28, 40), 0, False),
        ((3, 40, 28), 0, False),
        ((1, 1, 1), 29, True),
        ((2, 29, 29), 0, False),
    ],
)
def test_images_are_as_large_as_the_network_needs_or_enlarged(
    shape: tuple[int, ...], side: int, fits: bool
) -> None:
    settings = ModelSettings(image_side=side)
    if fits:
        check("torchvision:densenet121", shape, settings)
    else:
        with pytest.raises(SettingError):
            check("torchvision:densenet121", shape, settings)


@pytest.mark.slow
def test_a_network_of_timm_gives_timm_s_own_features(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    torch.manual_seed(5)
    network = timm.create_model("test_resnet", pretrained=False).eval()
    published, file = network.default_cfg, tmp_path / "test_resnet.safetensors"
    save_file(network.state_dict(), file)
    shape = published["input_size"]
    model = build("timm:test_resnet", shape, 4, 0, ModelSettings(weights=str(file))).eval()
    images_B = torch.rand(2, *shape)
    features_BF = network.forward_head(network.forward_features(images_B), pre_logits=True)
    assert torch.allclose(model.features(images_B), features_BF, atol=1e-5)
    assert normalization_of("timm:test_resnet") == (published["mean"], published["std"])


def test_a_network_of_timm_needs_the_package_and_a_name_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """timm takes `hf-hub:NAME` for a model too, and would download it."""
    known = SimpleNamespace(is_model=lambda name: name.removeprefix("hf-hub:") == "resnet18")
    monkeypatch.setitem(sys.modules, "timm", known)
    monkeypatch.setattr(backbone, "find_spec", lambda name: object())
    require_timm("timm:resnet18")
    for name in ("timm:resnet19", "timm:hf-hub:resnet18"):
        with pytest.raises(SettingError):
            require_timm(name)
    monkeypatch.setattr(backbone, "find_spec", lambda name: None)
    with pytest.raises(SettingError):
        require_timm("timm:resnet18")


def replaced(file: Path) -> None:
    """Put another file of the network's weights in a file's place, of the same size and time of change."""
    about = file.stat()
    save_file({name: tensor + 1 for name, tensor in read(str(file)).items()}, file)
    os.utime(file, ns=(about.st_atime_ns, about.st_mtime_ns))


def test_a_file_that_is_replaced_after_its_hash_was_compared_is_not_loaded(copied: Path) -> None:
    looked_at = sha256_of(str(copied))
    hashed = of_hash(with_weights(copied), looked_at)
    build(NAME, SHAPE, 3, 0, hashed)
    replaced(copied)
    with pytest.raises(SettingError) as caught:
        build(NAME, SHAPE, 3, 0, hashed)
    assert looked_at in str(caught.value)


def test_a_file_of_more_than_four_gib_is_not_read(copied: Path) -> None:
    assert read(str(copied)) and sha256_of(str(copied))
    most = 4 * 2**30
    os.truncate(copied, most + 1)  # takes no room on the disk
    for look in (read, sha256_of):
        with pytest.raises(SettingError):
            look(str(copied))
