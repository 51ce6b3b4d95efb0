"""Blocks re-trained on real data: what a block is, that nothing else moves, and that it helps on those data."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from in_process import SERVER_SMALL
from server_builders import samples_of, server_of, state_of
from torch import nn

from client_app.models import Classifier, ModelSettings, build
from client_app.state import State, digest
from data import SettingError
from fedskew.engines import execute
from server_app.settings import parse
from strategies.core.server import Server
from strategies.distillation import logits_of
from strategies.real_blocks import RealBlocks, blocks


def names_of(model: Classifier) -> list[list[str]]:
    """Return the names of each block's parameters."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return [[names[id(parameter)] for parameter in block] for block in blocks(model)]


def test_resnet8_has_the_stem_and_three_stages() -> None:
    stem, *stages = names_of(build("resnet-8", (3, 32, 32), 10, 0))
    assert stem == ["features.0.weight", "features.1.weight", "features.1.bias"]
    assert [{name.split(".")[1] for name in stage} for stage in stages] == [{"3"}, {"4"}, {"5"}]


def test_a_narrow_resnet8_has_the_same_blocks_and_fewer_channels() -> None:
    narrow = build("resnet-8", (3, 32, 32), 10, 0, ModelSettings(width=16))
    assert names_of(narrow) == names_of(build("resnet-8", (3, 32, 32), 10, 0))
    assert narrow.head.in_features == 64
    assert sum(parameter.numel() for parameter in narrow.parameters()) == 78_042
    same = build("resnet-8", (3, 32, 32), 10, 0, ModelSettings(width=64)).state_dict()
    assert digest([same]) == digest([build("resnet-8", (3, 32, 32), 10, 0).state_dict()])
    with pytest.raises(SettingError, match="width = 16: is for resnet-8, and model is resnet-18"):
        build("resnet-18", (3, 32, 32), 10, 0, ModelSettings(width=16))


@pytest.mark.parametrize(
    ("model", "number"), [("mcmahan-cnn", 3), ("mlp-bn", 2), ("digit-model", 5)]
)
def test_blocks_are_all_parameters_but_those_of_the_head(model: str, number: int) -> None:
    built = build(model, (1, 28, 28), 10, 0)
    named = names_of(built)
    assert len(named) == number
    blocks = [name for block in named for name in block]
    assert blocks == [name for name, _ in built.named_parameters() if not name.startswith("head")]


def moved(state: State, before: State) -> set[str]:
    """Return the names of the tensors that differ."""
    return {name for name, tensor in state.items() if not torch.equal(tensor, before[name])}


def loss(server: Server, state: State) -> float:
    """Return the cross-entropy on the hold-out."""
    samples = server.own_samples("")
    return F.cross_entropy(logits_of(server.model, state, samples), samples.labels_N).item()


def test_one_block_moves_and_fits_the_holdout() -> None:
    server, shared = server_of(samples_of()), state_of(1)
    models = RealBlocks().deploy(server, {}, shared, []).models
    assert list(models) == ["real-blocks-1"]
    changed = {"features.0.weight", "features.0.bias", "features.1.weight", "features.1.bias"}
    assert moved(models["real-blocks-1"], shared) == changed
    assert loss(server, models["real-blocks-1"]) < 0.9 * loss(server, shared)
    assert digest([shared]) == digest([state_of(1)])


def test_a_block_does_not_see_the_others() -> None:
    model = Classifier(nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 5)), nn.Linear(5, 4))
    shared = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    other = server_of(samples_of())
    server = Server(model, shared, 3, 1, 0, other.training, holdout=other.holdout)
    models = RealBlocks(steps=3).deploy(server, {}, shared, []).models
    for number, layer in enumerate(("features.0", "features.2"), start=1):
        assert moved(models[f"real-blocks-{number}"], shared) == {
            f"{layer}.weight",
            f"{layer}.bias",
        }


def test_no_steps_deploy_the_average() -> None:
    models = RealBlocks(steps=0).deploy(server_of(samples_of()), {}, state_of(1), []).models
    assert digest([models["real-blocks-1"]]) == digest([state_of(1)])


def test_real_blocks_need_a_holdout() -> None:
    with pytest.raises(SettingError, match="holdout-per-class = 0: real-blocks needs images"):
        RealBlocks().deploy(server_of(), {}, state_of(1), [])


@pytest.mark.parametrize("method", ["real-blocks", "real-features"])
def test_it_trains_in_evaluated_rounds_alone_and_ends_alike(method: str, tmp_path: Path) -> None:
    """Between evaluations nobody reads these models, and the average does not depend on them."""
    deployed: dict[int, dict[str, str]] = {}
    rounds: dict[int, list[int]] = {}
    for every in (1, 2):
        number: list[int] = []
        settings = parse(
            {"method": method, "dataset": "digits", "rounds": 3, "evaluate-every": every,
             "clients": 2, "alpha": 1.0, "results": str(tmp_path / str(every)),
             "train-images": 100, "test-images": 50, "min-samples": 5, **SERVER_SMALL[method]}
        )  # fmt: skip
        part = settings.deploys[0]
        original = type(part).deploy
        assert part.deploys_for_evaluation

        def counted(
            self: Any,
            server: Server,
            *rest: Any,
            number: list[int] = number,
            deploy: Any = original,
        ) -> Any:
            number.append(server.round)
            return deploy(self, server, *rest)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(part), "deploy", counted)
            summary = execute(settings, "inprocess", lambda line: None)
        deployed[every], rounds[every] = summary["hash"], number
    assert rounds == {1: [1, 2, 3], 2: [2, 3]}
    assert deployed[1] == deployed[2]
