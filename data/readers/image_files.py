"""Images that stay in their files until a batch needs them, and the range and size of a sample of them."""

import os
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from data.errors import DataError, SetOption
from data.readers.file_type import is_medical
from data.readers.intensity import Stored, UnknownRange, nearly_black
from data.settings import DataSettings

MOST_LOOKED_AT = 1000
"""Images that are looked at: bounds the work, which is a second decoding."""
DARK = 0.25
"""A largest pixel of all images below which wide numbers are asked about: 14 bits in files of 16."""
MOST_HEADS = 2000
"""Images whose heads are read, for their sizes and what they say of the image."""


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """Like an array (N, H, W, C) of bytes that decodes what is asked for; a client's inputs, like a tensor on the CPU.

    Every image is resized: directly to the shape, or, where `central`, its shorter side to 8/7 of it and the center cut
    out (256 and 224 for ImageNet).
    """

    root: Path
    names: NDArray[np.uint8]
    """(N, L): paths below root in UTF-8, padded with zeros."""
    size: tuple[int, int, int]
    """Channels, height, width."""
    central: bool = False
    settings: DataSettings = field(default_factory=DataSettings)
    """How files are read: max-image-pixels, pixel-range and frame."""

    dtype = np.dtype(np.uint8)
    ndim = 4
    device = torch.device("cpu")

    @staticmethod
    def of(
        root: Path,
        files: list[str],
        size: tuple[int, ...],
        settings: DataSettings,
        central: bool = False,
    ) -> "ImageFiles":
        """Of paths below root."""
        encoded = [os.fsencode(file) for file in files]
        longest = max(map(len, encoded), default=1)
        padded = [name.ljust(longest, b"\0") for name in encoded]
        letters = np.frombuffer(b"".join(padded), np.uint8)
        channels, height, width = size
        return ImageFiles(
            root,
            names=letters.reshape(len(files), longest),
            size=(channels, height, width),
            central=central,
            settings=settings,
        )

    def __len__(self) -> int:
        return len(self.names)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """As the array would have it."""
        return (len(self), *self.size[1:], self.size[0])

    def path(self, index: int) -> Path:
        """The file of one image."""
        name = self.names[index].tobytes().rstrip(b"\0")
        return self.root / os.fsdecode(name)

    def only(self, indices: NDArray[np.int64]) -> "ImageFiles":
        """Some of the images, still undecoded."""
        return replace(self, names=np.ascontiguousarray(self.names[indices]))

    def decoded(
        self, indices: NDArray[np.int64] | None = None
    ) -> NDArray[np.uint8] | NDArray[np.float32]:
        """(n, H, W, C): bytes, or float32 on the scale 0..1 where a file has more than 8 bits.

        Raises:
            DataError: a file that is missing or no image.
        """
        # It loads PIL, which a process without files does not need.
        from data.readers.images import open_image

        chosen = np.arange(len(self)) if indices is None else indices
        channels, height, width = self.size
        images: NDArray[np.uint8] | NDArray[np.float32]
        images = np.empty((len(chosen), height, width, channels), np.uint8)
        for row, index in enumerate(chosen.tolist()):
            file = self.path(index)
            image = open_image(file, channels, (width, height), self.central, self.settings)
            if image.dtype != np.uint8 and images.dtype == np.uint8:
                images = as_float(images)  # the first wide image makes all of them wide
            images[row] = image if image.dtype == images.dtype else as_float(image)
        return images

    def index_select(self, dim: int, indices: Tensor) -> Tensor:
        """(n, C, H, W), uint8: what a tensor of all images would give, along dimension 0."""
        assert dim == 0
        # Only named data sets stay in files, and all of their files have 8 bits.
        images = torch.from_numpy(self.decoded(indices.numpy()))
        return images.movedim(-1, 1)


def joined(images: Iterable[NDArray[np.generic]]) -> NDArray[np.generic]:
    """Images of one shape as an array (N, H, W, C): of bytes, or float32 on the scale 0..1 if one is."""
    all_images = list(images)
    types = {image.dtype for image in all_images}
    if len(types) > 1:
        all_images = [as_float(image) if image.dtype == np.uint8 else image for image in all_images]
    return np.stack(all_images)


def as_float(images: NDArray[np.generic]) -> NDArray[np.float32]:
    """Bytes on the scale 0..1."""
    return np.asarray(images, np.float32) / np.float32(255)


@dataclass(frozen=True)
class Look:
    """The range and size of the images that were read."""

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
        """The number of images that were read, in words."""
        return f"{self.looked} of the {self.images} images"

    def beyond(self, span: tuple[float, float]) -> int:
        """How many images have a number beyond a range."""
        black, white = span
        return sum(low < black or high > white for low, high in self.extremes)


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
        low, high = image.extremes
        if np.isfinite([low, high]).all():
            extremes.append((low, high))
        if image.rendered is None and image.span is not None:
            black, white_of_file = image.span
            if black == 0:
                white = max(white, white_of_file)
    if not extremes:
        return None
    return Look(
        low=min(low for low, _ in extremes),
        high=max(high for _, high in extremes),
        extremes=tuple(extremes),
        looked=len(indices),
        images=len(groups),
        largest_span=white,
    )


def spread(groups: Sequence[Hashable], most: int) -> list[int]:
    """At most so many indices, in order, as equally many of each group as there are, evenly over each group."""
    if len(groups) <= most:
        return list(range(len(groups)))
    members: dict[Hashable, list[int]] = {}
    for index, group in enumerate(groups):
        members.setdefault(group, []).append(index)
    chosen: list[int] = []
    # The smallest group first, so that what it leaves of its share goes to larger ones.
    groups_left = len(members)
    for indices in sorted(members.values(), key=len):
        share = (most - len(chosen)) // groups_left
        groups_left -= 1
        count = min(share, len(indices))
        if count:
            steps = np.linspace(0, len(indices) - 1, count).round().astype(int)
            chosen += [indices[step] for step in steps]
    return sorted(chosen)


def widened(error: UnknownRange, look: Look | None) -> UnknownRange:
    """The error about one image's range with the range of all that were looked at."""
    if look is None:
        return error
    low = min(error.low, look.low)
    high = max(error.high, look.high)
    return UnknownRange(error.numbers, low, high, f" in {look.number} looked at")


def refuse_nearly_black(where: str, look: Look | None) -> None:
    """Raise DataError where files of 16 bits, or of what DICOM states, hold numbers of far fewer alone."""
    if look is None or look.largest_span <= 255 or look.low < 0:
        return
    if look.high <= DARK * look.largest_span:
        what = f"{where}: {look.number} looked at have numbers"
        raise nearly_black(what, look.high, look.largest_span)


def decoded(
    images: ImageFiles,
    groups: Sequence[Hashable],
    where: str,
    training: bool,
) -> NDArray[np.uint8] | NDArray[np.float32]:
    """All images of a split, as ImageFiles.decoded gives them; `groups` says what they are spread over.

    Raises:
        DataError: as ImageFiles.decoded does, with a range that fits the images of all groups; or training images of
            wide numbers that are all nearly black.
    """
    from data.readers.images import stored_in  # it loads PIL

    unscaled = replace(images.settings, pixel_range="")

    def stored(index: int) -> object:
        return stored_in(images.path(index), images.size[0], unscaled)

    try:
        pixels = images.decoded()
    except UnknownRange as error:
        raise widened(error, look_at(stored, groups)) from None

    # Where the user has said the range, dark images are as they should be.
    range_is_guessed = pixels.dtype == np.float32 and not images.settings.pixel_range
    if training and range_is_guessed and pixels.max() <= DARK:
        refuse_nearly_black(where, look_at(stored, groups))
    return pixels


def note_of_cut(settings: DataSettings, look: Look | None) -> Iterable[str]:
    """Yield what a user has to know of numbers beyond pixel-range."""
    if look is None:
        return
    number = look.beyond(settings.pixel_span)
    if number == 0:
        return
    yield (
        f"pixel-range = {settings.pixel_range} cuts numbers of {number} images: {look.number} were looked at, and they "
        f"have {look.low:g}..{look.high:g}"
    )


def shape_of(
    images: Sequence[Path], settings: DataSettings, groups: Sequence[Hashable] = ()
) -> tuple[str, list[str]]:
    """The shape of the first image, as a setting, and what has to be said of it.

    `groups` are the images' sites and classes, over which those are spread whose numbers are looked at; left out, the
    folders that they are in.

    Raises:
        DataError: an image that cannot be read, or of numbers of no known scale, with a range that fits the others too;
            medical images of several sizes, whose proportions mean something.
    """
    from data.readers.images import head_of, open_image, stored_in  # it loads PIL

    def look_at_all() -> Look | None:
        unscaled = replace(settings, pixel_range="")
        among = groups or [file.parent for file in images]
        return look_at(lambda place: stored_in(images[place], 0, unscaled), among)

    try:
        image = open_image(images[0], 0, settings=settings)
    except UnknownRange as error:
        raise widened(error, look_at_all()) from None
    height, width, channels = image.shape
    shape = f"{channels}x{height}x{width}"
    notes: list[str] = []
    if settings.pixel_range:
        notes += note_of_cut(settings, look_at_all())
    if image.dtype == np.float32:
        notes.append("images of more than 8 bits are trained on as float32 on the scale 0..1")
    heads = [head for head in map(head_of, images[:MOST_HEADS]) if head is not None]
    remarks = Counter(head.remark for head in heads if head.remark)
    for remark, number in remarks.items():
        notes.append(f"{number} of the {len(heads)} images looked at {remark}")
    if not settings.input_shape:
        notes += notes_of_sizes(images[0], shape, Counter(head.size for head in heads))
    return shape, notes


def notes_of_sizes(first: Path, shape: str, sizes: Counter[tuple[int, int]]) -> Iterable[str]:
    """Yield what a user has to know of images of several sizes (height, width).

    Raises:
        DataError: they are medical images, whose proportions mean something.
    """
    if len(sizes) < 2:
        return
    common = [f"{height}x{width} ({number})" for (height, width), number in sizes.most_common(3)]
    if len(sizes) > 3:
        common.append("...")
    found = f"images of {len(sizes)} sizes, {', '.join(common)}"
    if is_medical(first):
        rule = f"{found}: must be of one size, or state the one that they are brought to"
        remedy = (SetOption("input-shape", shape),)
        raise DataError(rule, where=str(first.parent), remedy=remedy)
    yield f"{found}, are all brought to input-shape, here the first one's"
