"""Blocks re-trained on real data: what a block is, that nothing else moves, and that it helps on those data."""

import pytest
import torch
import torch.nn.functional as F
from server_builders import samples_of, server_of, state_of
from torch import nn

from client_app.models import Classifier, build
from client_app.state import State, digest
from data import SettingError
from strategies.core.server import Server
from strategies.feddf import logits_of
from strategies.real_data import RealBlocks, blocks


@pytest.mark.parametrize(
    ("model", "number"), [("mcmahan-cnn", 3), ("mlp-bn", 2), ("digit-model", 5), ("resnet-8", 4)]
)
def test_blocks_are_all_parameters_but_those_of_the_head(model: str, number: int) -> None:
    """The stem of a ResNet is a block, and each stage."""
    built = build(model, (3, 32, 32) if model == "resnet-8" else (1, 28, 28), 10, 0)
    named = blocks(built)
    assert len(named) == number
    flat = [name for block in named for name in block]
    assert flat == [name for name, _ in built.named_parameters() if not name.startswith("head")]


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
    still = RealBlocks(steps=0).deploy(server, {}, shared, []).models["real-blocks-1"]
    assert digest([still]) == digest([shared])
    with pytest.raises(SettingError) as refused:
        RealBlocks().deploy(server_of(), {}, shared, [])
    assert refused.value.key == "holdout-per-class"


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
