"""The setting lift: random ReLU features between fixed features and the head."""

import math

import pytest
import torch

from client_app.models import ModelSettings, build
from client_app.models.random_relu import STEPS_PER_UNIT, RandomReLU, random_signs
from data import SettingError
from server_app.settings import parse

FEATURES_BD = torch.rand(9, 40, generator=torch.Generator().manual_seed(5)) * 6
LIFTED = ModelSettings(lift=300)


def test_they_are_the_formula() -> None:
    layer = RandomReLU(40, 300)
    signs_MD = random_signs(300, 40).double()
    assert set(signs_MD.unique().tolist()) == {-1.0, 1.0}
    rounded_BD = (FEATURES_BD.double() * STEPS_PER_UNIT).round() / STEPS_PER_UNIT
    expected_BM = (rounded_BD @ signs_MD.T / math.sqrt(40)).clamp(min=0)
    assert torch.allclose(layer(FEATURES_BD).double(), expected_BM, atol=1e-6)
    unrounded_BM = (FEATURES_BD.double() @ signs_MD.T / math.sqrt(40)).clamp(min=0)
    # A rounding of at most half a step a feature, 40 of them.
    largest = 40 / 2 / STEPS_PER_UNIT / math.sqrt(40)
    assert (layer(FEATURES_BD) - unrounded_BM).abs().max() <= largest


def test_their_mean_product_is_the_arc_cosine_kernel() -> None:
    """With M to infinity: |x| |y| (sin a + (pi - a) cos a) / 2 pi for the angle a (Cho & Saul 2009, equation 6)."""
    x_D, y_D = torch.randn(2, 1024, generator=torch.Generator().manual_seed(6)).double()
    lifted_2M = RandomReLU(1024, 16_384)(torch.stack([x_D, x_D + y_D])).double()
    measured = float(lifted_2M[0] @ lifted_2M[1]) / 16_384 * 1024
    first, second = x_D, x_D + y_D
    sizes = float(first.norm() * second.norm())
    angle = math.acos(float(first @ second) / sizes)
    expected = sizes * (math.sin(angle) + (math.pi - angle) * math.cos(angle)) / (2 * math.pi)
    assert measured == pytest.approx(expected, rel=0.05)


def test_they_do_not_depend_on_the_batch_the_order_or_the_seed() -> None:
    first, other = (build("linear", (40,), 10, seed, LIFTED) for seed in (0, 1))
    whole = first.features(FEATURES_BD)
    assert whole.shape == (9, 300) and whole.dtype == torch.float32
    for sizes in ([4, 5], [1] * 9):
        parts = [first.features(part) for part in torch.split(FEATURES_BD, sizes)]
        assert torch.equal(torch.cat(parts), whole)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(7))
    assert torch.equal(first.features(FEATURES_BD[order]), whole[order])
    assert torch.equal(other.features(FEATURES_BD), whole)
    assert not torch.equal(other.head.weight, first.head.weight)
    assert sorted(first.state_dict()) == ["head.bias", "head.weight"]


def test_an_infinite_feature_stays_within_what_is_exact() -> None:
    lifted = RandomReLU(2, 8)(torch.tensor([[math.inf, 1.0]]))
    assert lifted.isfinite().all()


def test_only_fixed_features_are_lifted() -> None:
    stated = {"method": "fed-lda", "rounds": 0, "lift": 64}
    assert parse({**stated, "model": "random-conv", "dataset": "cifar10"}).model.lift == 64
    rule = "lift = 64: needs features that stay as they are: freeze = all beside a backbone"
    with pytest.raises(SettingError, match=rule):
        parse({**stated, "method": "fedavg", "rounds": 1, "model": "small-cnn"})
