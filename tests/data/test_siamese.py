"""Differentiable Siamese Augmentation: each operation in closed form, and one draw for a whole batch."""

import math

import pytest
import torch

from data.augmentation import color, holed, rotated, scaled, shifted, siamese

IMAGES = torch.randn(6, 3, 32, 28, generator=torch.Generator().manual_seed(0))


def draws(seed=1):
    return torch.Generator().manual_seed(seed)


def places(height, width):
    """Two channels that hold each pixel's place, (x, y) from -1 to 1 at the outer edges."""
    x = (2 * torch.arange(width) + 1) / width - 1
    y = (2 * torch.arange(height) + 1) / height - 1
    return torch.stack(torch.meshgrid(y, x, indexing="ij")[::-1])[None]


def test_color_in_closed_form():
    brighter = IMAGES + 0.3
    grey = IMAGES.mean(1, keepdim=True)
    assert torch.allclose(color(IMAGES, 0, 2, 1) - grey, 2 * (IMAGES - grey), atol=1e-5)
    flat = color(IMAGES, 0.3, 1, 0)
    assert torch.allclose(flat, brighter.mean((1, 2, 3), keepdim=True).expand_as(flat), atol=1e-5)
    halved = color(IMAGES, 0, 1, 0.5).std((1, 2, 3))
    assert torch.allclose(halved, IMAGES.std((1, 2, 3)) / 2, atol=1e-5)


@pytest.mark.parametrize(("down", "right"), [(0, -4), (3, 1)])
def test_a_crop_is_a_shift_with_zeros_outside(down, right):
    rolled = torch.roll(IMAGES, (-down, -right), (2, 3))
    rows, columns = torch.arange(32) + down, torch.arange(28) + right
    inside = ((rows >= 0) & (rows < 32))[:, None] & ((columns >= 0) & (columns < 28))
    assert torch.equal(shifted(IMAGES, down, right), rolled * inside)


@pytest.mark.parametrize(
    ("size", "place", "hole"),
    [((32, 28), (32, 0), 8 * 7), ((7, 9), (3, 4), 4 * 5)],
)
def test_cutout_is_a_quarter_of_the_image_cut_at_the_border(size, place, hole):
    images = IMAGES[:, :, : size[0], : size[1]]
    changed = holed(images, *place)
    zero = (changed == 0).all((0, 1))
    assert zero.sum() == hole and torch.equal(changed[:, :, ~zero], images[:, :, ~zero])


def test_scale_and_rotation_lead_where_their_maps_say():
    """On an image of its own coordinates the result is the map itself, wherever that stays inside."""
    image = places(33, 29)
    zoomed = scaled(image, 0.9, 1.1)
    wanted = image * torch.tensor([0.9, 1.1])[:, None, None]
    inside = (wanted.abs() < 0.93).all(1)[0]
    assert inside.float().mean() > 0.7
    assert torch.allclose(zoomed[0][:, inside], wanted[0][:, inside], atol=1e-5)
    assert zoomed[0, 1, 0, 14].abs() < 0.5, "outside is zero"
    pixels = image * torch.tensor([29.0, 33.0])[:, None, None] / 2  # distances a rotation keeps
    angle = math.radians(10)
    turned = torch.complex(*pixels[0]) * complex(math.cos(angle), math.sin(angle))
    inside = (turned.real.abs() < 13.5) & (turned.imag.abs() < 15.5)
    assert inside.float().mean() > 0.7
    result = torch.complex(*rotated(pixels, angle)[0])
    assert torch.allclose(result[inside], turned[inside], atol=1e-4)


def test_one_draw_for_the_whole_batch():
    images, state = torch.randn(3, 1, 8, 9, generator=draws(0)), torch.random.get_rng_state()
    results = []
    for seed in range(20):
        changed = siamese(images, draws(seed))
        for image, alone in zip(changed, images.split(1), strict=True):
            assert torch.allclose(image, siamese(alone, draws(seed))[0], atol=1e-6)
        results.append(changed)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert len({tuple(result.flatten().tolist()) for result in results}) > 10
