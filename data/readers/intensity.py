"""The intensity range of images of more than 8 bits: which value is black and which is white."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data.errors import DataError, SetOption
from data.readers.array_types import Array, Booleans, Floats
from data.settings import DataSettings


class UnknownRange(DataError):
    """Numbers of which nothing says which is black and which is white."""

    numbers: str
    low: float
    high: float


def unknown_range(
    numbers: str,
    low: float,
    high: float,
    looked: str = "",
    proposed: tuple[float, float] | None = None,
) -> UnknownRange:
    """Return the error about numbers from `low` to `high`.

    Args:
        numbers: Which they are, in words.
        low: The least one.
        high: The largest one.
        looked: Ends their description.
        proposed: Another range than low..high.
    """
    # Whole numbers, so that the range leaves nothing out.
    black, white = proposed or (np.floor(low), np.ceil(max(high, low + 1)))
    found = f"{numbers} of {low:g}..{high:g}{looked}"
    error = UnknownRange(
        f"{found}: nothing says which value is black and which is white",
        remedy=(SetOption("pixel-range", f"{black:.0f},{white:.0f}"), " takes these two"),
    )
    error.numbers, error.low, error.high = numbers, low, high
    return error


@dataclass(frozen=True)
class Stored:
    """The grey numbers of one image as its file has them, before one is black and another white."""

    numbers: Array
    """(H, W), of any real type."""
    what: str
    """What an error calls them."""
    span: tuple[float, float] | None = None
    """Black and white by the file's format; None where that says nothing."""
    inverted: bool = False
    """Whether the largest number is black."""
    padding: Booleans | None = None
    """(H, W): pixels that only fill the rectangle; shown black, and no part of the range."""

    @property
    def extremes(self) -> tuple[float, float]:
        """The least and the largest number; NaN where one is."""
        numbers = np.asarray(self.numbers, np.float32)
        if self.padding is not None and not self.padding.all():
            numbers = numbers[~self.padding]
        return float(numbers.min()), float(numbers.max())


def on_scale(pixels: Array, low: float, high: float) -> Floats:
    """Return pixels with low as 0 and high as 1, what is beyond cut; float32."""
    scaled = (np.asarray(pixels, np.float32) - np.float32(low)) / np.float32(high - low)
    return np.asarray(np.clip(scaled, 0, 1), np.float32)


def shown(file: Path, stored: Stored, settings: DataSettings) -> Floats:
    """Return an image on the scale 0..1: by pixel-range, else by what the file says, else if it is in 0..1.

    Raises:
        UnknownRange: none of these.
        DataError: a number that is not finite.
    """
    low, high = stored.extremes
    if not np.isfinite([low, high]).all():
        raise DataError(f"{stored.what} are NaN or infinite: must be finite", where=file)
    span = settings.pixel_span if settings.pixel_range else stored.span
    if span is None and low >= 0 and high <= 1:
        span = 0.0, 1.0
    if span is None:
        raise unknown_range(f"{file}: {stored.what}", low, high)
    grey = on_scale(stored.numbers, *span)
    if stored.inverted:
        grey = 1 - grey
    if stored.padding is not None:
        grey = np.where(stored.padding, np.float32(0), grey)
    return grey


def white_of_bits(largest: float) -> int:
    """Return the largest number of as many bits as a whole number has."""
    return int(2 ** max(int(largest).bit_length(), 1) - 1)


def chosen_frame(file: Path, count: int, settings: DataSettings) -> int:
    """Return the index of the image to take from a file of several. Raises DataError if nothing defines it."""
    if count == 1:
        return 0
    if not settings.frame:
        remedy = SetOption("frame", "middle"), ", or a number, takes one of them"
        raise DataError(f"holds {count} images", where=file, remedy=remedy)
    number = count // 2 if settings.frame == "middle" else int(settings.frame)
    if number >= count:
        raise DataError(f"holds images 0..{count - 1}, and frame = {number}", where=file)
    return number
