"""Models whose features nothing trains: the inputs themselves, and random convolutions."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from client_app.features import used
from client_app.models import FIXED_FEATURES, build
from client_app.models.random_conv import FILTERS, GRID
from client_app.state import copy
from data import SettingError
from server_app.settings import parse

IMAGES = torch.randn(9, 3, 16, 16, generator=torch.Generator().manual_seed(4))


def test_the_features_of_linear_are_its_inputs() -> None:
    model = build("linear", (3, 16, 16), 10, 0)
    assert torch.equal(model.features(IMAGES), IMAGES.flatten(1))
    assert sorted(model.state_dict()) == ["head.bias", "head.weight"]
    assert build("linear", (7,), 2, 0)(torch.zeros(2, 7)).shape == (2, 2)


def test_random_convolutions_do_not_depend_on_the_batch_or_the_seed() -> None:
    model, other = (build("random-conv", (3, 16, 16), 10, seed) for seed in (0, 1))
    whole = model.features(IMAGES)
    assert whole.shape == (9, FILTERS * GRID**2) and (whole > 0).any(0).float().mean() > 0.9
    for sizes in ([9], [4, 5], [1] * 9):
        parts = [model.features(part) for part in torch.split(IMAGES, sizes)]
        assert torch.equal(torch.cat(parts), whole)
    assert torch.equal(other.features(IMAGES), whole)
    assert not torch.equal(other.head.weight, model.head.weight)


@pytest.mark.parametrize("name", FIXED_FEATURES)
def test_the_head_alone_is_trained_and_sent(name: str) -> None:
    model = build(name, (3, 16, 16), 10, 0)
    assert sorted(model.trained) == sorted(model.state_dict()) == ["head.bias", "head.weight"]
    before = copy({"features": model.features(IMAGES)})["features"]
    model(IMAGES).square().sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert torch.equal(model.features(IMAGES), before)


def test_random_convolutions_need_images() -> None:
    settings = {"model": "random-conv", "method": "fed-lda", "rounds": 0}
    assert parse({**settings, "dataset": "cifar10"}).general.model == "random-conv"
    with pytest.raises(SettingError, match="needs images of 8x8"):
        build("random-conv", (1, 7, 7), 10, 0)
    with pytest.raises(SettingError, match="needs images"):
        build("random-conv", (40,), 2, 0)


def indices(*numbers: int) -> Any:
    return np.array(numbers, np.int64)


def test_features_are_computed_of_every_sample_that_somebody_has_and_of_no_other() -> None:
    federation: Any = SimpleNamespace(
        train_indices=[indices(4, 2), indices(9)],
        holdout_indices=indices(7),
        global_test=indices(5, 1),
        validation_indices=None,
        unseen=None,
        dataset=SimpleNamespace(val_labels=None),
    )
    plain = {split: numbers.tolist() for split, numbers in used(federation).items()}
    assert plain == {"train": [2, 4, 7, 9], "test": [1, 5]}
    federation.validation_indices = [indices(3), indices(8)]
    federation.unseen = SimpleNamespace(train=indices(0), test=indices(6))
    federation.dataset = SimpleNamespace(val_labels=np.zeros(3))
    everything = {split: numbers.tolist() for split, numbers in used(federation).items()}
    assert everything == {"train": [0, 2, 3, 4, 7, 8, 9], "test": [1, 5, 6], "val": [0, 1, 2]}
