"""Which numbers many images hold, so that a range is proposed from more than the first one."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from data.readers.image_files import ImageFiles
from data.readers.intensity import Stored, UnknownRange, nearly_black
from data.settings import DataError, DataSettings

MOST = 1000
"""Images that are looked at: bounds the work, which is a second decoding."""
DARK = 0.25
"""A largest pixel of all images below which wide numbers are asked about: 14 bits in files of 16."""


@dataclass(frozen=True)
class Look:
    """What the images that were looked at hold."""

    low: float
    high: float
    extremes: tuple[tuple[float, float], ...]
    """The least and the largest number of each image whose black and white are a question."""
    looked: int
    images: int
    """How many there are."""
    largest_span: float = 0.0
    """The largest white that a file's format states, where black is 0."""

    @property
    def number(self) -> str:
        """How many images were looked at, in words."""
        return f"{self.looked} of the {self.images} images"

    def beyond(self, span: tuple[float, float]) -> int:
        """How many images have a number beyond a range."""
        return sum(low < span[0] or high > span[1] for low, high in self.extremes)


def look_at(
    stored: Callable[[int], object], groups: Sequence[Hashable], most: int = MOST
) -> Look | None:
    """Look at images spread over all groups, such as sites and classes; None where no image's range is a question.

    `stored` gives what a file holds by its place, Stored or anything else; an image that cannot be read is left out, as
    whoever reads it later says why.
    """
    extremes: list[tuple[float, float]] = []
    white = 0.0
    places = spread(groups, most)
    for place in places:
        try:
            image = stored(place)
        except DataError:
            continue
        if not isinstance(image, Stored):
            continue
        low, high = image.extremes
        if np.isfinite([low, high]).all():
            extremes.append((low, high))
        if image.window is None and image.span is not None and image.span[0] == 0:
            white = max(white, image.span[1])
    if not extremes:
        return None
    low, high = min(low for low, _ in extremes), max(high for _, high in extremes)
    return Look(low, high, tuple(extremes), len(places), len(groups), white)


def spread(groups: Sequence[Hashable], most: int) -> list[int]:
    """At most so many places, in order, as equally many of each group as there are, evenly over each group."""
    if len(groups) <= most:
        return list(range(len(groups)))
    members: dict[Hashable, list[int]] = {}
    for place, group in enumerate(groups):
        members.setdefault(group, []).append(place)
    chosen: list[int] = []
    ascending = sorted(members.values(), key=len)  # what a small group leaves goes to larger ones
    for index, places in enumerate(ascending):
        share = (most - len(chosen)) // (len(ascending) - index)
        count = min(share, len(places))
        if count:
            steps = np.linspace(0, len(places) - 1, count).round().astype(int)
            chosen += [places[step] for step in steps]
    return sorted(chosen)


def widened(error: UnknownRange, look: Look | None) -> UnknownRange:
    """The error about one image's range with the range of all that were looked at."""
    if look is None:
        return error
    low, high = min(error.low, look.low), max(error.high, look.high)
    return UnknownRange(error.where, low, high, f" in {look.number} looked at")


def refuse_nearly_black(where: str, look: Look | None) -> None:
    """Raise DataError where files of 16 bits, or of what DICOM states, hold numbers of far fewer alone."""
    if look is None or look.largest_span <= 255 or look.low < 0:
        return
    if look.high <= DARK * look.largest_span:
        what = f"{where}: {look.number} looked at have numbers"
        raise nearly_black(what, look.high, look.largest_span)


def decoded(
    images: ImageFiles, groups: Sequence[Hashable], where: str, training: bool
) -> NDArray[np.uint8] | NDArray[np.float32]:
    """All images of a split, as ImageFiles.decoded gives them; `groups` says what they are spread over.

    Raises:
        DataError: as ImageFiles.decoded does, with a range that fits the images of all groups; or training images of
            wide numbers that are all nearly black.
    """
    from data.readers.images import stored_in  # it loads PIL

    unscaled = replace(images.settings, pixel_range="")

    def stored(place: int) -> object:
        return stored_in(images.path(place), images.size[0], unscaled)

    try:
        pixels = images.decoded()
    except UnknownRange as error:
        raise widened(error, look_at(stored, groups)) from None
    asked = training and pixels.dtype == np.float32 and not images.settings.pixel_range
    if asked and pixels.max() <= DARK:
        refuse_nearly_black(where, look_at(stored, groups))
    return pixels


def note_of_cut(settings: DataSettings, look: Look | None) -> Iterable[str]:
    """Yield what a user has to know of numbers beyond pixel-range."""
    if look is None or not (number := look.beyond(settings.pixel_span)):
        return
    yield (
        f"pixel-range = {settings.pixel_range} cuts numbers of {number} images: {look.number} were looked at, and they "
        f"have {look.low:g}..{look.high:g}"
    )
