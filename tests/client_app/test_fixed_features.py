"""Models whose features nothing trains: the inputs themselves, and random convolutions."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from client_app.features import principal_components, used, with_features
from client_app.models import PLAIN, RANDOM_CONV, ModelSettings, build, check, has_fixed_features
from client_app.models.random_conv import FEATURES, FILTERS, GRID
from client_app.variants.feature_gradients import AugmentedGradients
from data import DataSettings, Federation, SettingError, federate
from server_app.settings import parse
from server_app.strategy import federation_of, how_vectorized, model_of

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
    variants = [AugmentedGradients()]
    assert with_features(federation, RANDOM_CONV, PLAIN, folder, "cpu", variants) is federation
    assert with_features(federation, "small-cnn", PLAIN, folder, "cpu") is federation
    assert with_features(federation, RANDOM_CONV, PLAIN, folder, "cpu") is not federation


def inputs_of(federation: Federation, client: int) -> torch.Tensor:
    samples = federation.train(client)
    return samples.batch(torch.arange(len(samples)))


def test_components_are_those_of_all_clients_training_samples(tmp_path: Path) -> None:
    settings = ModelSettings(components=3, hidden=2)

    def kept(settings: ModelSettings, **data: Any) -> Federation:
        given = {"train_images": 60, "holdout_per_class": 1, **data}
        return with_features(digits_of(**given), RANDOM_CONV, settings, str(tmp_path), "cpu")

    plain, reduced = kept(PLAIN), kept(settings)
    plain_ND = torch.cat([inputs_of(plain, 0), inputs_of(plain, 1)]).double()
    reduced_NK = torch.cat([inputs_of(reduced, 0), inputs_of(reduced, 1)])
    # The closed form: left singular vectors of the standardized features, each with variance 1.
    scale_D = plain_ND.std(0, correction=0)
    centered_ND = (plain_ND - plain_ND.mean(0)) / scale_D
    left_NN, _, right_DD = torch.linalg.svd(centered_ND, full_matrices=False)
    sides_K = right_DD[:3].gather(1, right_DD[:3].abs().argmax(1, keepdim=True)).sign().flatten()
    expected_NK = left_NN[:, :3] * sides_K * len(plain_ND) ** 0.5
    torch.testing.assert_close(reduced_NK.double(), expected_NK, rtol=0, atol=1e-3)

    # Another partition of the same samples gives the same bits.
    others = kept(settings, clients=5, partition="lda", alpha=0.3, min_samples=1)
    rows_NK = torch.cat([inputs_of(others, client) for client in range(5)])
    assert torch.equal(rows_NK.sort(0).values, reduced_NK.sort(0).values)
    # The test samples and the hold-out have no part in them.
    tested = reduced.dataset.test.inputs[reduced.global_test]
    features = torch.from_numpy(plain.dataset.test.inputs[plain.global_test]).double()
    values_D, vectors_DD = torch.linalg.eigh(centered_ND.T @ centered_ND / len(centered_ND))
    first_D = vectors_DD[:, -1] / values_D[-1].sqrt()
    first_D *= vectors_DD[vectors_DD[:, -1].abs().argmax(), -1].sign()
    torch.testing.assert_close(
        torch.from_numpy(tested[:, 0]).double(),
        (features - plain_ND.mean(0)) / scale_D @ first_D,
        rtol=0,
        atol=1e-3,
    )


def test_a_feature_that_never_varies_has_no_part_and_signs_are_fixed() -> None:
    features_ND = torch.randn(6, 4, generator=torch.Generator().manual_seed(2))
    features_ND[:, 2] = 5.0
    _, directions_DK = principal_components(features_ND.numpy(), 3)
    assert directions_DK.isfinite().all() and not directions_DK[2].any()
    vectors_DK = directions_DK * features_ND.std(0)[:, None]
    assert (vectors_DK.gather(0, vectors_DK.abs().argmax(0, keepdim=True)) > 0).all()


def test_more_components_than_samples_or_features_are_refused(tmp_path: Path) -> None:
    check(RANDOM_CONV, (1, 8, 8), ModelSettings(components=FEATURES))
    with pytest.raises(SettingError):
        check(RANDOM_CONV, (1, 8, 8), ModelSettings(components=FEATURES + 1))
    settings = ModelSettings(components=20)
    with pytest.raises(SettingError, match="20 training samples"):
        with_features(digits_of(), RANDOM_CONV, settings, str(tmp_path), "cpu")


def test_a_hidden_layer_stands_between_features_and_head() -> None:
    settings = ModelSettings(components=5, hidden=4)
    model = build(RANDOM_CONV, (5,), 3, 0, settings)
    names = ["features.1.weight", "features.1.bias", "head.weight", "head.bias"]
    assert list(model.state_dict()) == names
    weight, bias, head_weight, head_bias = model.state_dict().values()
    inputs_B = torch.randn(7, 5)
    hidden_B = F.relu(inputs_B @ weight.T + bias)
    torch.testing.assert_close(model(inputs_B), hidden_B @ head_weight.T + head_bias)
    of_images = build(RANDOM_CONV, (3, 16, 16), 3, 0, ModelSettings(hidden=4))
    assert list(of_images.state_dict()) == names
    assert has_fixed_features(RANDOM_CONV, "none", 0)
    assert not has_fixed_features(RANDOM_CONV, "none", 4)


def test_the_line_about_clients_per_pass_is_about_kept_features(tmp_path: Path) -> None:
    data = {"train-images": 40, "test-images": 10, "clients": 2, "min-samples": 2}
    model = {"model": RANDOM_CONV, "components": 3, "hidden": 2, "clients-per-pass": 2}
    settings = parse({**data, **model, "method": "fedavg", "cache": str(tmp_path)})
    federation = federation_of(settings)
    network = model_of(settings, federation)
    assert how_vectorized(settings, network, federation) == "in one pass"
    of_images = federate(settings.data, 0)
    assert how_vectorized(settings, network, of_images).startswith("one by one")
