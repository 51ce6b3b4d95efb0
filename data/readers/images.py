"""Bringing images of any size to the one shape that a model takes."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import interpolate

CHUNK = 2048
"""Images resized at a time: bounds the float copy."""


def bring_to(images: NDArray[np.generic], shape: tuple[int, ...]) -> NDArray[np.generic]:
    """Images (N, H, W) or (N, H, W, C) as (N, *shape), channels first, or vectors (N, F) as they are; dtype is kept.

    Grey becomes RGB by repetition, RGB becomes grey by luma (ITU-R 601, as PIL does it), sizes change bilinearly with
    antialiasing.

    Raises:
        ValueError: vectors of another length, or a number of channels that cannot become the one asked for.
    """
    if images.ndim == 2 or len(shape) == 1:
        if images.shape[1:] != shape:
            raise ValueError(
                f"each example has shape {images.shape[1:]} where input-shape asks for {shape}"
            )
        return images
    channels, height, width = shape
    if images.ndim == 3:
        images = images[..., None]
    present = images.shape[-1]
    if present != channels and (present, channels) not in ((1, 3), (3, 1)):
        raise ValueError(
            f"images have shape {images.shape[1:]}, read as (height, width, channels), and {present} channels cannot "
            f"become {channels}"
        )
    result = np.empty((len(images), channels, height, width), images.dtype)
    for start in range(0, len(images), CHUNK):
        chunk = images[start : start + CHUNK]
        if (present, channels) == (3, 1):
            chunk = _luma(chunk)
        resized = _resize(np.ascontiguousarray(np.moveaxis(chunk, -1, 1)), height, width)
        result[start : start + CHUNK] = resized  # one channel broadcasts to three
    return result


def _luma(images: NDArray[np.generic]) -> NDArray[np.generic]:
    if images.dtype != np.uint8:
        grey = images.astype(np.float64) @ np.array([0.299, 0.587, 0.114])
        return np.asarray(grey[..., None], images.dtype)
    weighted = images.astype(np.uint32) @ np.array([19595, 38470, 7471], np.uint32)
    return np.asarray((weighted + 0x8000) >> 16, np.uint8)[..., None]


def _resize(images: NDArray[np.generic], height: int, width: int) -> NDArray[np.generic]:
    """(N, C, H, W) as (N, C, height, width)."""
    if images.shape[2:] == (height, width):
        return images
    pixels = torch.from_numpy(images.astype(np.float32))
    resized = interpolate(
        pixels, (height, width), mode="bilinear", align_corners=False, antialias=True
    ).numpy()
    if images.dtype == np.uint8:
        return np.asarray(np.clip(np.rint(resized), 0, 255), np.uint8)
    return np.asarray(resized, images.dtype)
