"""The intensity range: which value is black and which is white."""

from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data.errors import DataError, SetOption
from data.settings import DataSettings


class UnknownRange(DataError):
    """Numbers of which nothing says which is black and which is white."""

    def __init__(
        self,
        numbers: str,
        low: float,
        high: float,
        looked: str = "",
        proposed: tuple[float, float] | None = None,
    ) -> None:
        """`numbers` says which they are, `looked` ends their description.

        `proposed` is another range than low..high.
        """
        if proposed is None:
            black = rounded(low, ROUND_FLOOR)
            white = rounded(max(high, low + 1), ROUND_CEILING)
            takes = "takes these two"
        else:
            black, white = (f"{number:g}" for number in proposed)
            takes = f"takes {black} and {white}"
        super().__init__(
            f"{numbers} of {low:g}..{high:g}{looked}: nothing says which value is black and which "
            "is white",
            remedy=(SetOption("pixel-range", f"{black},{white}"), f" {takes}"),
        )
        self.numbers, self.low, self.high = numbers, low, high
        self.args = numbers, low, high, looked, proposed  # copy and pickle call the class with them


@dataclass(frozen=True)
class Stored:
    """The grey numbers of one image as its file has them, before one is black and another white."""

    numbers: NDArray[np.generic]
    """(H, W), of any real type."""
    what: str
    """What an error calls them."""
    span: tuple[float, float] | None = None
    """Black and white by the file's format; None where that says nothing."""
    rendered: NDArray[np.float32] | None = None
    """The same on the scale 0..1, where the file says how to show them: a DICOM window or VOI LUT."""
    inverted: bool = False
    """Whether the largest number is black."""
    padding: NDArray[np.bool_] | None = None
    """(H, W): pixels that only fill the rectangle; shown black, and no part of the range."""

    @property
    def extremes(self) -> tuple[float, float]:
        """The least and the largest number; NaN where one is."""
        numbers = np.asarray(self.numbers, np.float32)
        if self.padding is not None and not self.padding.all():
            numbers = numbers[~self.padding]
        return float(numbers.min()), float(numbers.max())


def rounded(number: float, rounding: str) -> str:
    """A number in six digits, rounded so that a range from or to it leaves nothing out."""
    six_digits = Context(prec=6, rounding=rounding)
    return f"{float(six_digits.create_decimal(number)):g}"


def range_hint(largest: float) -> tuple[str | SetOption, ...]:
    """The words after a value that is small on the scale of 16 bits; empty where it is not."""
    bits = max(int(largest).bit_length(), 1)
    if bits < 16:
        return "; if that is nearly white: ", SetOption("pixel-range", f"0,{2**bits - 1}")
    return ()


def nearly_black(where: str, largest: float, high: float) -> DataError:
    """The error for whole numbers on the scale 0..`high` of which the largest is far below it."""
    bits = max(int(largest).bit_length(), 1)
    white = f"{2**bits - 1}"
    return DataError(
        f"{where} of at most {largest:.10g} on the scale 0..{high:.10g}, nearly black",
        remedy=(
            SetOption("pixel-range", f"0,{white}"),
            f" takes {white} as white, ",
            SetOption("pixel-range", f"0,{high:.10g}"),
            " leaves them so dark",
        ),
    )


def on_scale(pixels: NDArray[np.generic], low: float, high: float) -> NDArray[np.float32]:
    """Pixels with low as 0 and high as 1, what is beyond cut; float32."""
    scaled = (np.asarray(pixels, np.float32) - np.float32(low)) / np.float32(high - low)
    return np.asarray(np.clip(scaled, 0, 1), np.float32)


def shown(file: Path, stored: Stored, settings: DataSettings) -> NDArray[np.float32]:
    """An image's numbers on the scale 0..1: by pixel-range, else by what the file says, else if they are in 0..1.

    Raises:
        UnknownRange: none of these.
        DataError: a number that is not finite.
    """
    low, high = stored.extremes
    if not np.isfinite([low, high]).all():
        raise DataError(f"{stored.what} are NaN or infinite: must be finite", where=str(file))
    if settings.pixel_range:
        black, white = settings.pixel_span
        grey = on_scale(stored.numbers, black, white)
    elif stored.rendered is not None:
        grey = stored.rendered
    elif stored.span is not None:
        black, white = stored.span
        grey = on_scale(stored.numbers, black, white)
    elif low >= 0 and high <= 1:
        grey = on_scale(stored.numbers, 0, 1)
    else:
        raise UnknownRange(f"{file}: {stored.what}", low, high)
    if stored.inverted:
        grey = 1 - grey
    if stored.padding is not None:
        grey = np.where(stored.padding, np.float32(0), grey)
    return grey


def chosen_frame(file: Path, count: int, settings: DataSettings) -> int:
    """The index of the image to take from a file of several. Raises DataError if nothing defines it."""
    if count == 1:
        return 0
    if not settings.frame:
        middle = SetOption("frame", "middle")
        any_other = SetOption("frame", "NUMBER", is_example=True)
        raise DataError(
            f"holds {count} images",
            where=str(file),
            remedy=(middle, ", or ", any_other, ", takes one of them"),
        )
    number = count // 2 if settings.frame == "middle" else int(settings.frame)
    if number >= count:
        raise DataError(f"holds images 0..{count - 1}, and frame = {number}", where=str(file))
    return number
