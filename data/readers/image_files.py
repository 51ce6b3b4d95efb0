"""Images that stay in their files until a batch needs them."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from data.errors import DataError, SetOption
from data.readers.array_types import Array, Bytes, Floats, Integers, Shape
from data.readers.file_type import is_dicom_file, is_nifti
from data.readers.intensity import Stored, UnknownRange, shown, unknown_range, white_of_bits
from data.settings import DataSettings

if TYPE_CHECKING:
    from PIL import Image

    from data.readers.images import Pixels

MOST_SIZED = 50
"""Images that are decoded for their sizes."""
MOST_LOOKED_AT = 1000
"""Images whose range is looked at: bounds the work, which is a second decoding."""
DARK = 0.25
"""A largest pixel of all images below which wide numbers are asked about: 14 bits in files of 16."""


@dataclass(frozen=True)
class Look:
    """The range of images that were looked at."""

    low: float
    high: float
    white: float
    """The largest white that a file's format states, where black is 0."""
    number: str
    """How many were looked at, in words."""


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """Like an array (N, H, W, C) of bytes that decodes what is asked for; a client's inputs, like a tensor on the CPU.

    Every image is resized: directly to the shape, or, where `central`, its shorter side to 8/7 of it and the center cut
    out (256 and 224 for ImageNet).
    """

    root: Path
    names: Bytes
    """(N, L): paths below root in UTF-8, padded with zeros."""
    size: Shape = (0, 0, 0)
    """Channels, height, width; 0 for each image's own."""
    central: bool = False
    settings: DataSettings = field(default_factory=DataSettings)
    """How files are read: pixel-range and frame."""

    dtype = np.dtype(np.uint8)
    ndim = 4
    device = torch.device("cpu")

    def __len__(self) -> int:
        return len(self.names)

    @property
    def shape(self) -> Shape:
        """As the array would have it."""
        return (len(self), *self.size[1:], self.size[0])

    def name(self, index: int) -> str:
        """Return the path of one image below root."""
        return os.fsdecode(self.names[index].tobytes().rstrip(b"\0"))

    def path(self, index: int) -> Path:
        """Return the file of one image."""
        return self.root / self.name(index)

    @property
    def paths(self) -> list[Path]:
        """The files of all images."""
        return [self.path(index) for index in range(len(self))]

    def __getitem__(self, indices: Integers) -> "ImageFiles":
        """Return some of the images, still undecoded."""
        return replace(self, names=np.ascontiguousarray(self.names[indices]))

    def stored(self, index: int, settings: DataSettings) -> "Stored | Image.Image":
        """Return what a file holds. Raises DataError."""
        from data.readers.images import stored_in  # it loads PIL

        return stored_in(self.path(index), self.size[0], settings)

    def image(self, index: int) -> "Pixels":
        """Return one image (H, W, C): bytes, or float32 on the scale 0..1 where the file has more than 8 bits.

        Raises:
            DataError: a file that is missing or no image, or numbers of no known scale.
        """
        from data.readers.images import pixels_of

        channels, height, width = self.size
        image: Stored | Image.Image | Floats = self.stored(index, self.settings)
        if isinstance(image, Stored):
            image = shown(self.path(index), image, self.settings)
        return pixels_of(image, channels, (width, height) if height else None, self.central)

    def decoded(self, indices: Integers | None = None) -> Bytes | Floats:
        """Return (n, H, W, C): bytes, or float32 on the scale 0..1 where a file has more than 8 bits.

        Raises:
            DataError: a file that is missing or no image.
        """
        chosen = np.arange(len(self)) if indices is None else indices
        images: Bytes | Floats
        images = np.empty((len(chosen), *self.shape[1:]), np.uint8)
        for row, index in enumerate(chosen.tolist()):
            image = self.image(index)
            if image.dtype != np.uint8 and images.dtype == np.uint8:
                images = as_float(images)  # the first wide image makes all of them wide
            images[row] = image if image.dtype == images.dtype else as_float(image)
        return images

    def look(self) -> Look | None:
        """Return the range of some images; None where none has a range.

        It is that of the numbers as stored, whatever pixel-range and DICOM's windows say. An image that cannot be read
        is left out, as whoever reads it later says why.
        """
        as_stored = replace(self.settings, pixel_range="0,1")
        extremes: list[float] = []
        white = 0.0
        places = spread(len(self), MOST_LOOKED_AT)
        for place in places:
            try:
                image = self.stored(place, as_stored)
            except DataError:
                continue
            if isinstance(image, Stored) and np.isfinite(image.extremes).all():
                extremes += image.extremes
                low, high = image.span or (0.0, 0.0)
                white = max(white, high if low == 0 else 0.0)
        if not extremes:
            return None
        number = f"{len(places)} of the {len(self)} images looked at"
        return Look(min(extremes), max(extremes), white, number)

    def widened(self, error: UnknownRange) -> UnknownRange:
        """Return the error about one image's range with the range of all that are looked at."""
        look = self.look()
        if look is None:
            return error
        low, high = min(error.low, look.low), max(error.high, look.high)
        return unknown_range(error.numbers, low, high, f" in {look.number}")

    def index_select(self, dim: int, indices: Tensor) -> Tensor:
        """Return (n, C, H, W), uint8: what a tensor of all images would give, along dimension 0."""
        # Only named data sets stay in files, and all of their files have 8 bits.
        images = torch.from_numpy(self.decoded(indices.numpy()))
        return images.movedim(-1, 1)


def letters_of(files: Sequence[str]) -> Bytes:
    """Return (N, L): paths in UTF-8, padded with zeros."""
    names = np.array([os.fsencode(file) for file in files], np.bytes_)
    return names.view(np.uint8).reshape(len(files), names.itemsize)


def as_float(images: Array) -> Floats:
    """Return bytes on the scale 0..1."""
    return np.asarray(images, np.float32) / np.float32(255)


def spread(count: int, most: int) -> list[int]:
    """Return so many places out of `count`, evenly over them with both ends; all where there are no more."""
    places: list[int] = np.linspace(0, count - 1, min(count, most)).round().astype(int).tolist()
    return places


def decoded(images: ImageFiles, where: str, training: bool) -> Bytes | Floats:
    """Return all images of a split, as ImageFiles.decoded gives them.

    Raises:
        DataError: as ImageFiles.decoded does, with a range that fits other images too; or training images of wide
            numbers that are all nearly black.
    """
    try:
        pixels = images.decoded()
    except UnknownRange as error:
        raise images.widened(error) from None
    # Where the user has said the range, dark images are as they should be.
    range_is_guessed = pixels.dtype == np.float32 and not images.settings.pixel_range
    if training and range_is_guessed and pixels.max() <= DARK:
        refuse_few_bits(images, where)
    return pixels


def refuse_few_bits(images: ImageFiles, where: str) -> None:
    """Raise DataError for files of 16 bits, or of what DICOM states, that hold numbers of far fewer alone."""
    look = images.look()
    if look is None or look.white <= 255 or look.low < 0 or look.high > DARK * look.white:
        return
    white, stated = white_of_bits(look.high), f"{look.white:.10g}"
    found = f"{look.number} have numbers of at most {look.high:.10g} on the scale 0..{stated}"
    raise DataError(
        f"{where}: {found}, nearly black",
        remedy=(
            SetOption("pixel-range", f"0,{white}"),
            f" takes {white} as white, ",
            SetOption("pixel-range", f"0,{stated}"),
            " leaves them so dark",
        ),
    )


def shape_of(images: ImageFiles) -> tuple[str, list[str]]:
    """Return a shape for all images, as a setting, and what has to be said of them.

    It has the first one's size, and three channels where one of those looked at is in color.

    Raises:
        DataError: an image that cannot be read, or of numbers of no known scale, with a range that fits the others too;
            medical images of several sizes, whose proportions mean something.
    """
    try:
        image = images.image(0)
        # One of them in memory at a time.
        shapes = {images.image(place).shape for place in spread(len(images), MOST_SIZED)}
    except UnknownRange as error:
        raise images.widened(error) from None
    height, width, _ = image.shape
    sizes = {shape[:2] for shape in shapes}
    channels = {shape[2] for shape in shapes}
    shape = f"{max(channels)}x{height}x{width}"
    notes: list[str] = []
    if len(channels) > 1 and not images.settings.input_shape:
        notes.append("some images are grey and others in color: input-shape makes all of one kind")
    if image.dtype == np.float32:
        notes.append("images of more than 8 bits are trained on as float32 on the scale 0..1")
    first = images.path(0)
    if is_nifti(first):
        notes.append(
            "NIfTI volumes are turned to their closest canonical orientation (right, front, top), in which one with "
            "neither sform nor qform is taken to be"
        )
    if len(sizes) > 1 and not images.settings.input_shape:
        examples = [f"{height}x{width}" for height, width in sorted(sizes)[:2]]
        found = f"images of {len(sizes)} sizes, such as {' and '.join(examples)}"
        if is_nifti(first) or (first.is_file() and is_dicom_file(first)):
            rule = f"{found}: must be of one size, or state the one that they are brought to"
            remedy = (SetOption("input-shape", shape),)
            raise DataError(rule, where=first.parent, remedy=remedy)
        notes.append(f"{found}, are all brought to input-shape, here the first one's")
    return shape, notes
