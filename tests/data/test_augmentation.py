"""Augmentation: each operation against one image at a time, seeded, and in training steps alone."""

import math
from dataclasses import replace

import pytest
import torch

from data import DataSettings, federate
from data.augmentation import AUGMENTATIONS, color_jitter, crop, cutout, flip, resized_crop, rotate

IMAGES = torch.rand(64, 3, 32, 28, generator=torch.Generator().manual_seed(0))


def draws(seed=1):
    return torch.Generator().manual_seed(seed)


def test_a_crop_is_a_shift_by_up_to_four_pixels():
    cropped = crop(IMAGES, draws())
    shifts = set()
    for before, after in zip(IMAGES, cropped, strict=True):
        padded = torch.nn.functional.pad(before, (4, 4, 4, 4))
        matching = [
            (y, x)
            for y in range(9)
            for x in range(9)
            if torch.equal(padded[:, y : y + 32, x : x + 28], after)
        ]
        assert len(matching) == 1
        shifts |= set(matching)
    assert {0, 8} <= {y for y, _ in shifts} and {0, 8} <= {x for _, x in shifts}


def test_a_flip_is_the_mirror_image_for_about_half():
    flipped = flip(IMAGES, draws())
    mirrored = [
        torch.equal(after, before.flip(-1)) for before, after in zip(IMAGES, flipped, strict=True)
    ]
    assert all(m or torch.equal(a, b) for m, a, b in zip(mirrored, flipped, IMAGES, strict=True))
    assert 16 < sum(mirrored) < 48


def test_cutout_is_one_square_cut_at_the_border():
    areas = set()
    for before, after in zip(IMAGES, cutout(IMAGES, draws()), strict=True):
        hole = (after == 0).all(0)
        rows, columns = int(hole.any(1).sum()), int(hole.any(0).sum())
        assert hole.sum() == rows * columns and rows <= 16 and columns <= 16
        assert torch.equal(after[:, ~hole], before[:, ~hole])
        areas.add(int(hole.sum()))
    assert 256 in areas and min(areas) < 256


def test_a_rotation_turns_about_the_center_by_up_to_30_degrees():
    square = torch.zeros(200, 1, 41, 31)
    square[:, :, 20, 15] = 1
    square[:, :, 20, 27] = 2  # 12 pixels right of the center
    angles = []
    for image in rotate(square, draws()):
        away = image[0].clone()
        away[18:23, 13:18] = 0
        y, x = (
            float((away * places).sum() / away.sum())
            for places in (torch.arange(41.0)[:, None], torch.arange(31.0))
        )
        assert abs(math.hypot(y - 20, x - 15) - 12) < 0.5  # though the image is not square
        angles.append(math.degrees(math.atan2(y - 20, x - 15)))
    assert 24 < max(angles) <= 31 and -31 <= min(angles) < -24


def test_a_resized_crop_is_a_box_of_the_image():
    ramp = torch.stack(torch.meshgrid(torch.arange(32.0), torch.arange(28.0), indexing="ij"))
    boxes = resized_crop(ramp.expand(300, -1, -1, -1), draws())
    high = (boxes[:, 0, -1, 0] - boxes[:, 0, 0, 0]) / 31 * 32
    wide = (boxes[:, 1, 0, -1] - boxes[:, 1, 0, 0]) / 27 * 28
    area = high * wide / (32 * 28)
    assert (boxes >= 0).all() and boxes[:, 0].max() <= 31 and boxes[:, 1].max() <= 27
    assert area.min() < 0.15 and area.max() > 0.85 and 0.45 < area.median() < 0.65
    small = area < 0.5  # a large box is cut at the border
    ratio = (wide / high)[small]
    assert ratio.min() > 0.65 and ratio.max() < 1.5  # whole pixels widen 3/4 and 4/3 a little


def test_color_jitter_is_torchvision_s_for_the_same_factors():
    from torchvision.transforms import functional

    jittered = color_jitter(IMAGES, draws())
    factors = 1 + (torch.rand(64, 3, generator=draws()) * 2 - 1) * 0.4
    for before, after, (brightness, contrast, saturation) in zip(
        IMAGES, jittered, factors.tolist(), strict=True
    ):
        expected = functional.adjust_contrast(
            functional.adjust_brightness(before, brightness), contrast
        )
        # torchvision's luma has .2989 for red and .114 for blue, so its weights do not quite sum to 1.
        assert torch.allclose(after, functional.adjust_saturation(expected, saturation), atol=1e-3)


def test_the_setting_names_every_augmentation_and_no_other():
    """It has a list of its own, as the augmentations load torch."""
    (rule,) = DataSettings.rules["augmentation"]
    assert rule.words == f"must be one of {', '.join(AUGMENTATIONS)}"


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_only_a_training_step_sees_augmented_images(name):
    plain, augmented = federate(DataSettings(), 0), federate(DataSettings(augmentation=name), 0)
    indices = torch.arange(20)
    assert augmented.hash == plain.hash
    assert torch.equal(
        augmented.test().batch(indices, draws()), plain.test().batch(indices)
    )  # never a test image
    changed = augmented.train(0).batch(indices, draws())
    assert torch.equal(changed, plain.train(0).batch(indices)) == (name == "none")


def test_cutout_comes_after_normalization():
    federation = federate(DataSettings(augmentation="crop-flip-cutout"), 0)
    samples = replace(
        federation.train(0), inputs_N=torch.full((20, 1, 32, 32), 255, dtype=torch.uint8)
    )
    values = samples.batch(torch.arange(20), draws()).unique().tolist()
    assert values == [-1.0, 0.0, 1.0]  # black padding, the hole, white
