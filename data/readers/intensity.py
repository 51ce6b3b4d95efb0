"""The intensity range of images of more than 8 bits: which value is black and which is white."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data.errors import DataError, SetOption
from data.readers.array_types import Array, Booleans, Floats
from data.settings import DataSettings

MOST_LOOKED_AT = 1000
"""Images that are looked at: bounds the work, which is a second decoding."""
DARK = 0.25
"""A largest pixel of all images below which wide numbers are asked about: 14 bits in files of 16."""


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
    if proposed is None:
        black = rounded(low, ROUND_FLOOR)
        white = rounded(max(high, low + 1), ROUND_CEILING)
        takes = "takes these two"
    else:
        black, white = (f"{number:g}" for number in proposed)
        takes = f"takes {black} and {white}"
    found = f"{numbers} of {low:g}..{high:g}{looked}"
    error = UnknownRange(
        f"{found}: nothing says which value is black and which is white",
        remedy=(SetOption("pixel-range", f"{black},{white}"), f" {takes}"),
    )
    error.numbers, error.low, error.high = numbers, low, high
    return error


def rounded(number: float, rounding: str) -> str:
    """Return a number in six digits, rounded so that a range from or to it leaves nothing out."""
    six_digits = Context(prec=6, rounding=rounding)
    return f"{float(six_digits.create_decimal(number)):g}"


@dataclass(frozen=True)
class Stored:
    """The grey numbers of one image as its file has them, before one is black and another white."""

    numbers: Array
    """(H, W), of any real type."""
    what: str
    """What an error calls them."""
    span: tuple[float, float] | None = None
    """Black and white by the file's format; None where that says nothing."""
    rendered: Floats | None = None
    """The same on the scale 0..1, where the file says how to show them: a DICOM window or VOI LUT."""
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
    if stored.rendered is not None and not settings.pixel_range:
        grey = stored.rendered
    elif span is not None:
        grey = on_scale(stored.numbers, *span)
    else:
        raise unknown_range(f"{file}: {stored.what}", low, high)
    if stored.inverted:
        grey = 1 - grey
    if stored.padding is not None:
        grey = np.where(stored.padding, np.float32(0), grey)
    return grey


@dataclass(frozen=True)
class Look:
    """The range of the images that were looked at."""

    extremes: NDArray[np.float64]
    """(images, 2): the least and the largest number of each image whose black and white are a question."""
    number: str
    """How many were looked at, in words."""
    largest_span: float
    """The largest white that a file's format states, where black is 0."""

    @property
    def low(self) -> float:
        """The least number."""
        return float(self.extremes[:, 0].min())

    @property
    def high(self) -> float:
        """The largest number."""
        return float(self.extremes[:, 1].max())


def look_at(
    stored: Callable[[int], object], groups: Sequence[Hashable], most: int = MOST_LOOKED_AT
) -> Look | None:
    """Look at images spread over all groups, such as sites and classes; None where no image's range is a question.

    `stored` gives what a file holds by its index, Stored or anything else; an image that cannot be read is left out, as
    whoever reads it later says why.
    """
    extremes: list[tuple[float, float]] = []
    white = 0.0
    indices = spread(groups, most)
    for index in indices:
        try:
            image = stored(index)
        except DataError:
            continue
        if not isinstance(image, Stored):
            continue
        if np.isfinite(image.extremes).all():
            extremes.append(image.extremes)
        if image.rendered is None and image.span is not None and image.span[0] == 0:
            white = max(white, image.span[1])
    if not extremes:
        return None
    return Look(np.array(extremes), f"{len(indices)} of the {len(groups)} images", white)


def spread(groups: Sequence[Hashable], most: int) -> list[int]:
    """Return at most so many indices, in order: equally many of each group as there are, evenly over each group."""
    if len(groups) <= most:
        return list(range(len(groups)))
    members: dict[Hashable, list[int]] = {}
    for index, group in enumerate(groups):
        members.setdefault(group, []).append(index)
    chosen: list[int] = []
    # The smallest group first, so that what it leaves of its share goes to larger ones.
    for place, indices in enumerate(sorted(members.values(), key=len)):
        share = (most - len(chosen)) // (len(members) - place)
        steps = np.linspace(0, len(indices) - 1, min(share, len(indices)))
        chosen += [indices[step] for step in steps.round().astype(int)]
    return sorted(chosen)


def widened(error: UnknownRange, look: Look | None) -> UnknownRange:
    """Return the error about one image's range with the range of all that were looked at."""
    if look is None:
        return error
    low, high = min(error.low, look.low), max(error.high, look.high)
    return unknown_range(error.numbers, low, high, f" in {look.number} looked at")


def refuse_nearly_black(where: str, look: Look | None) -> None:
    """Raise DataError where files of 16 bits, or of what DICOM states, hold numbers of far fewer alone."""
    if look is None or look.largest_span <= 255 or look.low < 0:
        return
    if look.high <= DARK * look.largest_span:
        what = f"{where}: {look.number} looked at have numbers"
        raise nearly_black(what, look.high, look.largest_span)


def nearly_black(where: str, largest: float, high: float) -> DataError:
    """Return the error for whole numbers on the scale 0..`high` of which the largest is far below it."""
    white = white_of_bits(largest)
    return DataError(
        f"{where} of at most {largest:.10g} on the scale 0..{high:.10g}, nearly black",
        remedy=(
            SetOption("pixel-range", f"0,{white}"),
            f" takes {white} as white, ",
            SetOption("pixel-range", f"0,{high:.10g}"),
            " leaves them so dark",
        ),
    )


def white_of_bits(largest: float) -> int:
    """Return the largest number of as many bits as a whole number has."""
    return int(2 ** max(int(largest).bit_length(), 1) - 1)


def note_of_cut(settings: DataSettings, look: Look | None) -> Iterable[str]:
    """Yield what a user has to know of numbers beyond pixel-range."""
    if look is None:
        return
    black, white = settings.pixel_span
    beyond_N = (look.extremes[:, 0] < black) | (look.extremes[:, 1] > white)
    if beyond_N.any():
        yield (
            f"pixel-range = {settings.pixel_range} cuts numbers of {beyond_N.sum()} images: {look.number} were looked "
            f"at, and they have {look.low:g}..{look.high:g}"
        )


def chosen_frame(file: Path, count: int, settings: DataSettings) -> int:
    """Return the index of the image to take from a file of several. Raises DataError if nothing defines it."""
    if count == 1:
        return 0
    if not settings.frame:
        middle = SetOption("frame", "middle")
        number_of = SetOption("frame", "NUMBER", is_example=True)
        remedy = middle, ", or ", number_of, ", takes one of them"
        raise DataError(f"holds {count} images", where=file, remedy=remedy)
    number = count // 2 if settings.frame == "middle" else int(settings.frame)
    if number >= count:
        raise DataError(f"holds images 0..{count - 1}, and frame = {number}", where=file)
    return number
