"""Which number is black and which is white."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data.settings import DataError, DataSettings


def range_hint(largest: float) -> str:
    """The words after a value that is small on the scale of 16 bits; empty where it is not."""
    bits = max(int(largest).bit_length(), 1)
    return f"; if that is nearly white: --set pixel-range=0,{2**bits - 1}" if bits < 16 else ""


def on_scale(pixels: NDArray[np.generic], low: float, high: float) -> NDArray[np.float32]:
    """Pixels with low as 0 and high as 1, what is beyond cut; float32."""
    scaled = (np.asarray(pixels, np.float32) - np.float32(low)) / np.float32(high - low)
    return np.asarray(np.clip(scaled, 0, 1), np.float32)


def unknown_range(where: str, low: float, high: float) -> DataError:
    """The error for numbers of low..high of which nothing says which is black and which is white."""
    return DataError(
        f"{where} of {low:g}..{high:g}: nothing says which value is black and which is white: "
        f"--set pixel-range={low:g},{max(high, low + 1):g} takes these two"
    )


def scaled(
    file: Path,
    what: str,
    numbers: NDArray[np.float32],
    span: tuple[float, float] | None,
    settings: DataSettings,
) -> NDArray[np.float32]:
    """An image's numbers on the scale 0..1: by pixel-range, else by what the file says, else if they are in 0..1.

    Raises:
        DataError: none of these, or a number that is not finite.
    """
    low, high = float(numbers.min()), float(numbers.max())
    if not np.isfinite([low, high]).all():
        raise DataError(f"{file}: {what} are NaN or infinite: must be finite")
    if settings.pixel_range:
        span = settings.pixel_span
    elif span is None and not (low >= 0 and high <= 1):
        raise unknown_range(f"{file}: {what}", low, high)
    return on_scale(numbers, *(span or (0, 1)))


def chosen_frame(file: Path, count: int, settings: DataSettings) -> int:
    """Which of so many images in a file is meant. Raises DataError where nothing says it."""
    if count == 1:
        return 0
    if not settings.frame:
        raise DataError(
            f"{file}: holds {count} images: --set frame=middle, or --set frame=NUMBER, takes one of them"
        )
    number = count // 2 if settings.frame == "middle" else int(settings.frame)
    if number >= count:
        raise DataError(f"{file}: holds images 0..{count - 1}, and frame = {number}")
    return number
