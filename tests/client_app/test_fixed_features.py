"""Models whose features nothing trains: the inputs themselves, and random convolutions."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from client_app.features import used, with_features
from client_app.models import PLAIN, RANDOM_CONV, build
from client_app.models.random_conv import FILTERS, GRID
from data import DataSettings, Federation, federate

IMAGES = torch.randn(9, 3, 16, 16, generator=torch.Generator().manual_seed(4))


def test_random_convolutions_do_not_depend_on_the_batch_or_the_seed() -> None:
    model, other = (build("random-conv", (3, 16, 16), 10, seed) for seed in (0, 1))
    whole = model.features(IMAGES)
    assert whole.shape == (9, FILTERS * GRID**2)
    parts = [other.features(part) for part in IMAGES.split(1)]
    assert torch.equal(torch.cat(parts), whole)
    assert not torch.equal(other.head.weight, model.head.weight)


def indices(*numbers: int) -> Any:
    return np.array(numbers, np.int64)


def test_features_are_computed_of_every_sample_that_somebody_has_and_of_no_other() -> None:
    federation: Any = SimpleNamespace(
        train_indices=[indices(4, 2), indices(9)],
        holdout_indices=indices(7),
        global_test=indices(5, 1),
        validation_indices=None,
        dataset=SimpleNamespace(val=None),
    )

    def numbers() -> dict[str, list[int]]:
        return {split: numbers.tolist() for split, numbers in used(federation).items()}

    assert numbers() == {"train": [2, 4, 7, 9], "test": [1, 5]}
    federation.validation_indices = [indices(3), indices(8)]
    federation.dataset.val = SimpleNamespace(labels=np.zeros(3))
    assert numbers() == {"train": [2, 3, 4, 7, 8, 9], "test": [1, 5], "val": [0, 1, 2]}


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
    changing = digits_of(augmentation="crop-flip")
    assert with_features(changing, RANDOM_CONV, PLAIN, folder, "cpu") is changing
    federation = digits_of()
    assert with_features(federation, RANDOM_CONV, PLAIN, folder, "cpu", True) is federation
    assert with_features(federation, "small-cnn", PLAIN, folder, "cpu") is federation
    assert with_features(federation, RANDOM_CONV, PLAIN, folder, "cpu") is not federation
