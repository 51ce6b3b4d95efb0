"""Images that stay in their files until a batch needs them."""

import os
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from data.errors import DataError, SetOption
from data.readers.array_types import Array, Bytes, Floats, Integers, Shape
from data.readers.file_type import is_medical
from data.readers.intensity import (
    DARK,
    Look,
    Stored,
    UnknownRange,
    look_at,
    note_of_cut,
    refuse_nearly_black,
    widened,
)
from data.settings import DataSettings

if TYPE_CHECKING:
    from PIL import Image

    from data.readers.images import Head, Pixels

MOST_HEADS = 2000
"""Images whose heads are read, for their sizes and what they say of the image."""
ANY_SIZE = (0, 0, 0)
"""Each image's own channels, height and width."""


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """Like an array (N, H, W, C) of bytes that decodes what is asked for; a client's inputs, like a tensor on the CPU.

    Every image is resized: directly to the shape, or, where `central`, its shorter side to 8/7 of it and the center cut
    out (256 and 224 for ImageNet).
    """

    root: Path
    names: Bytes
    """(N, L): paths below root in UTF-8, padded with zeros."""
    size: Shape
    """Channels, height, width."""
    central: bool = False
    settings: DataSettings = field(default_factory=DataSettings)
    """How files are read: pixel-range and frame."""

    dtype = np.dtype(np.uint8)
    ndim = 4
    device = torch.device("cpu")

    @classmethod
    def of(
        cls,
        root: Path,
        files: Sequence[str],
        size: Shape,
        settings: DataSettings,
        central: bool = False,
    ) -> "ImageFiles":
        """Return the images of paths below root."""
        return cls(root, letters_of(files), size, central, settings)

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

    def only(self, indices: Integers) -> "ImageFiles":
        """Return some of the images, still undecoded."""
        return replace(self, names=np.ascontiguousarray(self.names[indices]))

    def stored(self, index: int, settings: DataSettings) -> "Stored | Image.Image":
        """Return what a file holds. Raises DataError."""
        from data.readers.images import stored_in  # it loads PIL

        return stored_in(self.path(index), self.size[0], settings)

    def head(self, index: int) -> "Head | None":
        """Return what a file's head says of its image; None where it cannot be read."""
        from data.readers.images import head_of

        return head_of(self.path(index))

    def image(self, index: int) -> "Pixels":
        """Return one image (H, W, C): bytes, or float32 on the scale 0..1 where the file has more than 8 bits.

        Raises:
            DataError: a file that is missing or no image.
        """
        from data.readers.images import as_image, brought

        channels, height, width = self.size
        stored = self.stored(index, self.settings)
        image = as_image(self.path(index), stored, self.settings)
        return brought(image, channels, (width, height) if height else None, self.central)

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

    def look(self, groups: Sequence[Hashable]) -> Look | None:
        """Return the range of images spread over the groups, whatever pixel-range says."""
        unscaled = replace(self.settings, pixel_range="")
        return look_at(lambda index: self.stored(index, unscaled), groups)

    def index_select(self, dim: int, indices: Tensor) -> Tensor:
        """Return (n, C, H, W), uint8: what a tensor of all images would give, along dimension 0."""
        assert dim == 0
        # Only named data sets stay in files, and all of their files have 8 bits.
        images = torch.from_numpy(self.decoded(indices.numpy()))
        return images.movedim(-1, 1)


def letters_of(files: Sequence[str]) -> Bytes:
    """Return (N, L): paths in UTF-8, padded with zeros."""
    encoded = [os.fsencode(file) for file in files]
    longest = max(map(len, encoded), default=1)
    padded = b"".join(name.ljust(longest, b"\0") for name in encoded)
    return np.frombuffer(padded, np.uint8).reshape(len(files), longest)


def as_float(images: Array) -> Floats:
    """Return bytes on the scale 0..1."""
    return np.asarray(images, np.float32) / np.float32(255)


def decoded(
    images: ImageFiles, groups: Sequence[Hashable], where: str, training: bool
) -> Bytes | Floats:
    """Return all images of a split, as ImageFiles.decoded gives them; `groups` says what they are spread over.

    Raises:
        DataError: as ImageFiles.decoded does, with a range that fits the images of all groups; or training images of
            wide numbers that are all nearly black.
    """
    try:
        pixels = images.decoded()
    except UnknownRange as error:
        raise widened(error, images.look(groups)) from None
    # Where the user has said the range, dark images are as they should be.
    range_is_guessed = pixels.dtype == np.float32 and not images.settings.pixel_range
    if training and range_is_guessed and pixels.max() <= DARK:
        refuse_nearly_black(where, images.look(groups))
    return pixels


def shape_of(images: ImageFiles, groups: Sequence[Hashable]) -> tuple[str, list[str]]:
    """Return the shape of the first image, as a setting, and what has to be said of the images.

    `groups` are the images' sites and classes, over which those are spread whose numbers are looked at.

    Raises:
        DataError: an image that cannot be read, or of numbers of no known scale, with a range that fits the others too;
            medical images of several sizes, whose proportions mean something.
    """
    settings = images.settings
    try:
        image = images.image(0)
    except UnknownRange as error:
        raise widened(error, images.look(groups)) from None
    height, width, channels = image.shape
    shape = f"{channels}x{height}x{width}"
    notes: list[str] = []
    if settings.pixel_range:
        notes += note_of_cut(settings, images.look(groups))
    if image.dtype == np.float32:
        notes.append("images of more than 8 bits are trained on as float32 on the scale 0..1")
    looked = map(images.head, range(min(len(images), MOST_HEADS)))
    heads = [head for head in looked if head is not None]
    remarks = Counter(head.remark for head in heads if head.remark)
    for remark, number in remarks.items():
        notes.append(f"{number} of the {len(heads)} images looked at {remark}")
    if not settings.input_shape:
        notes += notes_of_sizes(images.path(0), shape, Counter(head.size for head in heads))
    return shape, notes


def notes_of_sizes(first: Path, shape: str, sizes: Counter[tuple[int, int]]) -> Iterable[str]:
    """Yield what a user has to know of images of several sizes (height, width).

    Raises:
        DataError: they are medical images, whose proportions mean something.
    """
    if len(sizes) < 2:
        return
    common = [f"{height}x{width} ({number})" for (height, width), number in sizes.most_common(3)]
    found = f"images of {len(sizes)} sizes, the most common {', '.join(common)}"
    if is_medical(first):
        rule = f"{found}: must be of one size, or state the one that they are brought to"
        remedy = (SetOption("input-shape", shape),)
        raise DataError(rule, where=first.parent, remedy=remedy)
    yield f"{found}, are all brought to input-shape, here the first one's"
