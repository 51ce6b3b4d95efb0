"""Random changes of training images: each image its own, drawn from a given generator, computed on the images' device.

All numbers are drawn on the CPU, so that a seed means the same on every device. `siamese` draws one change for a batch.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

Change = Callable[[Tensor, Generator], Tensor]
PADDING, HOLE, ANGLE = 4, 16, 30.0
"""Pixels that a crop may shift an image; side of Cutout's square; degrees of a rotation either way."""
AREA, RATIO, STRENGTH, TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 0.4, 10
"""Of the random resized crop: share of the image, width over height, draws; of the color jitter: strength."""


def crop(images_B: Tensor, draws: Generator) -> Tensor:
    """Padded by four black pixels on each side and cut back to size at a random place; (B, C, H, W) as given."""
    batch, _, height, width = images_B.shape
    padded = F.pad(images_B, (PADDING,) * 4)
    device = images_B.device

    corner_B2 = torch.randint(0, 2 * PADDING + 1, (batch, 2), generator=draws).to(device)
    top_B1, left_B1 = corner_B2.unsqueeze(-1).unbind(1)
    rows_BH = top_B1 + torch.arange(height, device=device)
    columns_BW = left_B1 + torch.arange(width, device=device)

    # One gather for the whole batch: image, row and column broadcast to (B, H, W).
    image_B11 = torch.arange(batch, device=device).view(batch, 1, 1)
    channels_last = padded.movedim(1, -1)
    cropped = channels_last[image_B11, rows_BH[:, :, None], columns_BW[:, None, :]]
    return cropped.movedim(-1, 1)


def flip(images_B: Tensor, draws: Generator) -> Tensor:
    """Mirrored left to right, every second image on average."""
    uniform_B = torch.rand(len(images_B), generator=draws)
    is_mirrored_B111 = (uniform_B < 0.5).to(images_B.device).view(-1, 1, 1, 1)
    return torch.where(is_mirrored_B111, images_B.flip(-1), images_B)


def cutout(images_B: Tensor, draws: Generator) -> Tensor:
    """A square of 16 x 16 set to zero, its center anywhere in the image (DeVries and Taylor, 2017)."""
    batch, _, height, width = images_B.shape
    device = images_B.device
    center_y = torch.randint(0, height, (batch,), generator=draws).to(device)
    center_x = torch.randint(0, width, (batch,), generator=draws).to(device)

    in_rows_BH = _in_hole(height, center_y)
    in_columns_BW = _in_hole(width, center_x)
    hole_BHW = in_rows_BH[:, :, None] & in_columns_BW[:, None, :]
    every_channel = hole_BHW[:, None]
    return images_B.masked_fill(every_channel, 0.0)


def _in_hole(side: int, center_B: Tensor) -> Tensor:
    """(B, side): whether a row or column is in the hole around each image's center."""
    half = HOLE // 2
    distance_BS = torch.arange(side, device=center_B.device) - center_B[:, None]
    return (distance_BS >= -half) & (distance_BS < half)


def rotate(images_B: Tensor, draws: Generator) -> Tensor:
    """Turned by up to 30 degrees about the center, bilinear, black outside."""
    uniform_B = torch.rand(len(images_B), generator=draws)
    angle_B = (uniform_B * 2 - 1) * math.radians(ANGLE)
    return turned(images_B, angle_B.cos(), angle_B.sin())


def turned(images_B: Tensor, cosine_B: Tensor, sine_B: Tensor) -> Tensor:
    """Each image turned about its center by the angle of this cosine and sine, bilinear, zero outside."""
    height, width = images_B.shape[2:]
    zero_B = torch.zeros_like(cosine_B)
    # Coordinates run from -1 to 1 on both axes, so the sides' ratio keeps a rotation from shearing.
    first_row = cosine_B, -sine_B * height / width, zero_B
    second_row = sine_B * width / height, cosine_B, zero_B
    return sampled(images_B, _affine(*first_row, *second_row), "zeros")


def resized_crop(images_B: Tensor, draws: Generator) -> Tensor:
    """A box of 8 to 100 % of the image and a ratio of 3/4 to 4/3, brought to the image's size, bilinear.

    The first of ten drawn boxes that lies inside, or else the whole image. There is no antialiasing, as a box is
    hardly ever larger than what it becomes.
    """
    batch = len(images_B)
    height, width = images_B.shape[2:]

    # Width and height of every try's box, from its area and the ratio of its sides.
    share_BT = torch.empty(batch, TRIES).uniform_(*AREA, generator=draws)
    area_BT = height * width * share_BT
    # The logarithm is uniform, so that 3:4 and 4:3 are equally likely.
    least, most = math.log(RATIO[0]), math.log(RATIO[1])
    log_ratio_BT = torch.empty(batch, TRIES).uniform_(least, most, generator=draws)
    ratio_BT = log_ratio_BT.exp()
    wide_BT = (area_BT * ratio_BT).sqrt().round()
    high_BT = (area_BT / ratio_BT).sqrt().round()

    # The first that fits, or the whole image: a share of 1.
    fits_BT = (wide_BT >= 1) & (wide_BT <= width) & (high_BT >= 1) & (high_BT <= height)
    first_B1 = fits_BT.float().argmax(1, keepdim=True)
    boxes_BT2 = torch.stack([wide_BT / width, high_BT / height], 2)
    share_B2 = boxes_BT2[torch.arange(batch)[:, None], first_B1][:, 0]
    share_B2[~fits_BT.any(1)] = 1

    # The affine map of -1..1 that cuts the box out: its size on the diagonal, its center beside it.
    place_B2 = torch.rand(batch, 2, generator=draws) * 2 - 1
    center_x_B, center_y_B = (place_B2 * (1 - share_B2)).unbind(1)
    share_x_B, share_y_B = share_B2.unbind(1)
    zero_B = torch.zeros(batch)
    first_row = share_x_B, zero_B, center_x_B
    second_row = zero_B, share_y_B, center_y_B
    # The border's color goes on for half a pixel outside the outermost centers; zeros would darken the rim.
    return sampled(images_B, _affine(*first_row, *second_row), "border")


def color_jitter(images_B: Tensor, draws: Generator) -> Tensor:
    """Brightness, contrast and saturation each times .6 to 1.4, in that order; pixels are on the scale 0..1."""
    uniform_B3 = torch.rand(len(images_B), 3, generator=draws)
    factors_B3 = 1 + (uniform_B3 * 2 - 1) * STRENGTH
    brightness, contrast, saturation = factors_B3.to(images_B).view(-1, 3, 1, 1, 1).unbind(1)

    images_B = (images_B * brightness).clamp(0, 1)
    mean_grey = _grey(images_B).mean((2, 3), keepdim=True)
    images_B = _blend(images_B, mean_grey, contrast)
    if images_B.shape[1] != 3:  # a grey image has no saturation
        return images_B
    return _blend(images_B, _grey(images_B), saturation)


def _grey(images_B: Tensor) -> Tensor:
    """(B, 1, H, W): luma."""
    if images_B.shape[1] != 3:
        return images_B
    weights_3 = images_B.new_tensor([0.299, 0.587, 0.114])  # ITU-R BT.601, as PIL
    return (images_B * weights_3[:, None, None]).sum(1, keepdim=True)


def _blend(images_B: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    return (factor * images_B + (1 - factor) * other).clamp(0, 1)


def _affine(*numbers_B: Tensor) -> Tensor:
    """(B, 2, 3): the maps of these six numbers, row by row."""
    return torch.stack(numbers_B, 1).view(-1, 2, 3)


def sampled(images_B: Tensor, affine_B23: Tensor, outside: str) -> Tensor:
    """Each image sampled, bilinear, where its map leads from coordinates of -1 to 1."""
    grid = F.affine_grid(affine_B23.to(images_B), list(images_B.shape), align_corners=False)
    return F.grid_sample(
        images_B,
        grid,
        mode="bilinear",
        padding_mode=outside,
        align_corners=False,
    )


AUGMENTATIONS: dict[str, tuple[tuple[Change, ...], tuple[Change, ...]]] = {
    "none": ((), ()),
    "crop-flip": ((crop, flip), ()),
    "crop-flip-cutout": ((crop, flip), (cutout,)),
    "rotate": ((flip, rotate), ()),
    "imagenet": ((resized_crop, flip, color_jitter), ()),
}
"""What is done before and what after normalization, which Cutout follows so that its hole is the mean color."""


# ---- one random change, the same for a whole batch -------------------------------------------------------------------


OPERATIONS = ("color", "crop", "cutout", "flip", "scale", "rotate")
SHIFT, HOLE_SHARE, SCALE, SIAMESE_ANGLE = 0.125, 0.5, 1.2, 15.0
"""Of height and width, how far a crop moves and how large a hole is; largest scale; degrees either way."""


def siamese(images_B: Tensor, draws: Generator) -> Tensor:
    """Return all images changed by one of the operations, with one draw of its strengths.

    Differentiable Siamese Augmentation (Zhao and Bilen, ICML 2021). The images, (B, C, H, W), are normalized already,
    so what comes in from outside or fills a hole is the mean color.
    """
    number = int(torch.randint(len(OPERATIONS), (1,), generator=draws))
    # Three strengths whatever the operation, so that each call takes equally many numbers from `draws`.
    first, second, third = torch.rand(3, generator=draws, dtype=torch.float64).tolist()
    height, width = images_B.shape[2:]
    match OPERATIONS[number]:
        case "color":
            return color(images_B, first - 0.5, 2 * second, third + 0.5)
        case "crop":
            return shifted(images_B, shift_of(first, height), shift_of(second, width))
        case "cutout":
            return holed(images_B, center_of(first, height), center_of(second, width))
        case "flip":
            return images_B.flip(-1) if first < 0.5 else images_B
        case "scale":
            smallest = 1 / SCALE
            spread = SCALE - smallest
            return scaled(images_B, smallest + first * spread, smallest + second * spread)
        case _:
            return rotated(images_B, (2 * first - 1) * math.radians(SIAMESE_ANGLE))


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
    hole_is_odd = pixels_of(side, HOLE_SHARE) % 2
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


def shifted(images_B: Tensor, down: int, right: int) -> Tensor:
    """The window shifted by so many pixels down and right, zero outside the image."""
    return F.pad(images_B, (-right, right, -down, down))


def holed(images_B: Tensor, row: int, column: int) -> Tensor:
    """Zero in a hole of half the height and width around a pixel, cut at the border."""
    height, width = images_B.shape[2:]
    result = images_B.clone()
    result[:, :, hole(height, row), hole(width, column)] = 0
    return result


def hole(side: int, center: int) -> slice:
    """Return the rows or columns of a hole around its center."""
    length = pixels_of(side, HOLE_SHARE)
    first = center - length // 2
    return slice(max(first, 0), first + length)  # a negative begin would count from the end


def scaled(images_B: Tensor, width: float, height: float) -> Tensor:
    """The window of so many times the width and height, brought to the image's size; zero outside, bilinear."""
    affine_23 = torch.tensor([[width, 0, 0], [0, height, 0]])
    return sampled(images_B, affine_23.expand(len(images_B), 2, 3), "zeros")


def rotated(images_B: Tensor, angle: float) -> Tensor:
    """Turned about the center, in radians; zero outside, bilinear."""
    batch = (len(images_B),)
    cosine_B = torch.full(batch, math.cos(angle), dtype=torch.float64)
    sine_B = torch.full(batch, math.sin(angle), dtype=torch.float64)
    return turned(images_B, cosine_B, sine_B)
