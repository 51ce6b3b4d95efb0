"""Differentiable Siamese Augmentation (Zhao and Bilen, ICML 2021): one random change, the same for a whole batch.

The images, (B, C, H, W), are normalized already, so what comes in from outside or fills a hole is the mean color.
"""

import math

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from data.augmentation import sampled

OPERATIONS = ("color", "crop", "cutout", "flip", "scale", "rotate")
SHIFT, HOLE, SCALE, ANGLE = 0.125, 0.5, 1.2, 15.0
"""Of height and width, how far a crop moves and how large a hole is; largest scale; degrees either way."""


def siamese(images_B: Tensor, draws: Generator) -> Tensor:
    """Return all images changed by one of the operations, with one draw of its strengths."""
    number = int(torch.randint(len(OPERATIONS), (1,), generator=draws))
    # Three strengths whatever the operation, so that each call takes equally many numbers from `draws`.
    first, second, third = torch.rand(3, generator=draws, dtype=torch.float64).tolist()
    height, width = images_B.shape[2:]
    match OPERATIONS[number]:
        case "color":
            return color(images_B, first - 0.5, 2 * second, third + 0.5)
        case "crop":
            return crop(images_B, shift_of(first, height), shift_of(second, width))
        case "cutout":
            return cutout(images_B, center_of(first, height), center_of(second, width))
        case "flip":
            return images_B.flip(-1) if first < 0.5 else images_B
        case "scale":
            smallest = 1 / SCALE
            spread = SCALE - smallest
            return scale(images_B, smallest + first * spread, smallest + second * spread)
        case _:
            return rotate(images_B, (2 * first - 1) * math.radians(ANGLE))


def pixels_of(side: int, share: float) -> int:
    """Return a share of a side as the nearest whole number of pixels."""
    return int(side * share + 0.5)


def shift_of(draw: float, side: int) -> int:
    """Return a shift by at most SHIFT of a side, from a draw in 0..1."""
    farthest = pixels_of(side, SHIFT)
    shifts = 2 * farthest + 1  # both ways, and 0
    return int(draw * shifts) - farthest


def center_of(draw: float, side: int) -> int:
    """Return the row or column of a hole's center, from a draw in 0..1."""
    hole_is_odd = pixels_of(side, HOLE) % 2
    centers = side + 1 - hole_is_odd  # the center of an even hole lies between two pixels
    return int(draw * centers)


def color(images_B: Tensor, brightness: float, saturation: float, contrast: float) -> Tensor:
    """Brightness is added, then distances from each pixel's and each image's mean are multiplied.

    0, 1, 1 changes nothing.
    """
    brighter = images_B + brightness

    mean_of_pixel = brighter.mean(1, keepdim=True)
    saturated = (brighter - mean_of_pixel) * saturation + mean_of_pixel

    mean_of_image = saturated.mean((1, 2, 3), keepdim=True)
    return (saturated - mean_of_image) * contrast + mean_of_image


def crop(images_B: Tensor, down: int, right: int) -> Tensor:
    """The window shifted by so many pixels down and right, zero outside the image."""
    return F.pad(images_B, (-right, right, -down, down))


def cutout(images_B: Tensor, row: int, column: int) -> Tensor:
    """Zero in a hole of half the height and width around a pixel, cut at the border."""
    height, width = images_B.shape[2:]
    result = images_B.clone()
    result[:, :, hole(height, row), hole(width, column)] = 0
    return result


def hole(side: int, center: int) -> slice:
    """Return the rows or columns of a hole around its center."""
    length = pixels_of(side, HOLE)
    first = center - length // 2
    return slice(max(first, 0), first + length)  # a negative begin would count from the end


def scale(images_B: Tensor, width: float, height: float) -> Tensor:
    """The window of so many times the width and height, brought to the image's size; zero outside, bilinear."""
    return warp(images_B, [[width, 0, 0], [0, height, 0]])


def rotate(images_B: Tensor, angle: float) -> Tensor:
    """Turned about the center, in radians; zero outside, bilinear."""
    height, width = images_B.shape[2:]
    cosine = math.cos(angle)
    sine = math.sin(angle)
    # Coordinates run from -1 to 1 on both axes, so the sides' ratio keeps a rotation from shearing.
    first_row = [cosine, -sine * height / width, 0]
    second_row = [sine * width / height, cosine, 0]
    return warp(images_B, [first_row, second_row])


def warp(images_B: Tensor, affine: list[list[float]]) -> Tensor:
    """Sampled where the (2, 3) map leads from the image's coordinates, which run from -1 to 1."""
    affine_B23 = torch.tensor(affine).expand(len(images_B), 2, 3)
    return sampled(images_B, affine_B23, "zeros")
