"""Models whose features nothing trains: the inputs themselves, random convolutions, and random ReLU features."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from client_app.features import used, with_features
from client_app.models import PLAIN, RANDOM_CONV, build
from client_app.models.random_conv import FILTERS, GRID
from client_app.models.random_relu import STEPS_PER_UNIT, RandomReLU, random_signs
from data import DataSettings, Federation, federate

IMAGES = torch.randn(9, 3, 16, 16, generator=torch.Generator().manual_seed(4))


def test_random_convolutions_do_not_depend_on_the_batch_or_the_seed() -> None:
    model, other = (build("random-conv", (3, 16, 16), 10, seed) for seed in (0, 1))
    whole = model.features(IMAGES)
    assert whole.shape == (9, FILTERS * GRID**2)
    parts = [other.features(part) for part in IMAGES.split(1)]
    assert torch.equal(torch.cat(parts), whole)
    assert not torch.equal(other.head.weight, model.head.weight)


def test_random_relu_features_are_the_formula() -> None:
    """max(0, R z / sqrt(D)) with signs R, of features on a grid."""
    features_BD = torch.rand(9, 40, generator=torch.Generator().manual_seed(5)) * 6
    layer = RandomReLU(40, 300)
    signs_MD = random_signs(300, 40).double()
    assert set(signs_MD.unique().tolist()) == {-1.0, 1.0}
    rounded_BD = (features_BD.double() * STEPS_PER_UNIT).round() / STEPS_PER_UNIT
    expected_BM = (rounded_BD @ signs_MD.T / math.sqrt(40)).clamp(min=0)
    assert torch.allclose(layer(features_BD).double(), expected_BM, atol=1e-6)
    assert torch.equal(torch.cat([layer(row) for row in features_BD.split(1)]), layer(features_BD))
    assert RandomReLU(2, 8)(torch.tensor([[math.inf, 1.0]])).isfinite().all()
    assert RandomReLU(1, 8)(torch.tensor([[1e30]])).max() == 2.0**30 / STEPS_PER_UNIT


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

    def numbers() -> dict[str, list[int]]:
        return {split: numbers.tolist() for split, numbers in used(federation).items()}

    assert numbers() == {"train": [2, 4, 7, 9], "test": [1, 5]}
    federation.validation_indices = [indices(3), indices(8)]
    federation.unseen = SimpleNamespace(train=indices(0), test=indices(6))
    federation.dataset.val_labels = np.zeros(3)
    assert numbers() == {"train": [0, 2, 3, 4, 7, 8, 9], "test": [1, 5, 6], "val": [0, 1, 2]}


def digits_of(seed: int = 0, **settings: object) -> Federation:
    """Return two clients of a few digits."""
    data = {"clients": 2, "partition": "iid", "train_images": 20, "test_images": 10, **settings}
    return federate(DataSettings(**data), seed)  # type: ignore[arg-type]


def test_the_features_of_random_conv_take_the_images_place(tmp_path: Path) -> None:
    for seed in (0, 1):  # of other images of the same data
        federation = digits_of(seed)
        cached = with_features(federation, RANDOM_CONV, PLAIN, str(tmp_path), "cpu")
        logits, labels = [], []
        for one in (federation, cached):
            samples, model = one.train(1), build(RANDOM_CONV, one.dataset.shape, 10, 3)
            logits.append(model(samples.batch(torch.arange(len(samples)))))
            labels.append(samples.labels_N)
        assert torch.equal(*logits) and torch.equal(*labels)


def test_images_that_change_are_not_replaced_by_their_features(tmp_path: Path) -> None:
    folder = str(tmp_path)
    for changing in (digits_of(augmentation="crop-flip"), digits_of(noise=0.1)):
        assert with_features(changing, RANDOM_CONV, PLAIN, folder, "cpu") is changing
    federation = digits_of()
    assert with_features(federation, RANDOM_CONV, PLAIN, folder, "cpu", True) is federation
    assert with_features(federation, "small-cnn", PLAIN, folder, "cpu") is federation
    assert with_features(federation, RANDOM_CONV, PLAIN, folder, "cpu") is not federation
